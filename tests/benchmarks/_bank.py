"""The bank of the trust benchmark: data sets, their spoiled versions, models.

A problem draws its rows from a fixed seed. `spoil` makes one of them a gross outlier. Everything
that a model sees is in `rows`, a dict of arrays whose first axis is the rows.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.interpolate import BSpline
from scipy.special import expit, softmax

Rows = dict[str, np.ndarray]

ORDERED = pm.distributions.transforms.ordered
GROUPS = 20
CLASSES = 3
KNOTS = 8


@dataclass(frozen=True)
class Problem:
    """One model with data.

    Attributes
    ----------
    name : str
    n_rows : int
    draw : callable
        ``draw(rng, n)``: rows.
    spoil : callable
        ``spoil(rows)`` turns the first row into a gross outlier, in place.
    model : callable
        ``model(rows)``: the PyMC model.
    """

    name: str
    n_rows: int
    draw: Callable[[np.random.Generator, int], Rows]
    spoil: Callable[[Rows], None]
    model: Callable[[Rows], pm.Model]

    def rows(self, outlier: bool = False) -> Rows:
        rng = np.random.default_rng([7, *self.name.encode()])
        rows = self.draw(rng, self.n_rows)
        if outlier:
            self.spoil(rows)
        return rows


def fingerprint(rows: Rows) -> str:
    """Identifies the data that a stored reference belongs to, to ten digits."""
    text = "".join(f"{key}{np.array2string(sums(rows[key]), precision=10)}" for key in sorted(rows))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sums(column: np.ndarray) -> np.ndarray:
    flat = column.reshape(len(column), -1).astype(float)
    return np.array([flat.sum(), np.abs(flat).max(), np.arange(len(flat)) @ flat.sum(axis=1)])


PROBLEMS: dict[str, Problem] = {}


def problem(n_rows, draw, spoil):
    def register(model):
        name = model.__name__
        PROBLEMS[name] = Problem(name, n_rows, draw, spoil, model)
        return model

    return register


def design(rng, n, k):
    return np.column_stack([np.ones(n), rng.normal(size=(n, k - 1))])


def replaced(**values):
    """Replace the first row's values; a tuple replaces a vector's elements from 1 on."""

    def spoil(rows):
        for key, value in values.items():
            if isinstance(value, tuple):
                rows[key][0, 1 : 1 + len(value)] = value
            else:
                rows[key][0] = value

    return spoil


# Generalised linear models


def binary_rows(rng, n):
    X = design(rng, n, 8)
    beta = np.array([-0.5, 0.6, -0.4, 0.3, 0.2, -0.2, 0.1, 0.0])
    return {"X": X, "y": (rng.random(n) < expit(X @ beta)).astype(float)}


@problem(20_000, binary_rows, replaced(X=(30.0, 45.0), y=0.0))
def logistic(rows):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=rows["X"].shape[1])
        pm.Bernoulli("y", logit_p=rows["X"] @ beta, observed=rows["y"])
    return model


def count_rows(rng, n):
    X = design(rng, n, 5)
    exposure = rng.uniform(0.5, 3, n)
    beta = np.array([0.2, 0.4, -0.3, 0.2, 0.0])
    return {"X": X, "exposure": exposure, "y": rng.poisson(exposure * np.exp(X @ beta))}


@problem(20_000, count_rows, replaced(X=(12.0,), y=60))
def poisson(rows):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=rows["X"].shape[1])
        rate = pm.math.exp(rows["X"] @ beta + np.log(rows["exposure"]))
        pm.Poisson("y", rate, observed=rows["y"])
    return model


def overdispersed_rows(rng, n):
    X = design(rng, n, 4)
    mu = np.exp(X @ np.array([1.0, 0.4, -0.3, 0.1]))
    return {"X": X, "y": rng.negative_binomial(3.0, 3.0 / (3.0 + mu))}


@problem(10_000, overdispersed_rows, replaced(y=2_000))
def negative_binomial(rows):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=rows["X"].shape[1])
        alpha = pm.Exponential("alpha", 0.5)
        pm.NegativeBinomial("y", mu=pm.math.exp(rows["X"] @ beta), alpha=alpha, observed=rows["y"])
    return model


def positive_rows(rng, n):
    X = design(rng, n, 4)
    mean = np.exp(X @ np.array([0.5, 0.4, -0.3, 0.1]))
    return {"X": X, "y": rng.gamma(2.5, mean / 2.5)}


@problem(10_000, positive_rows, replaced(y=1e-9))
def gamma(rows):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=rows["X"].shape[1])
        shape = pm.Gamma("shape", 2, 1)
        mean = pm.math.exp(rows["X"] @ beta)
        pm.Gamma("y", alpha=shape, beta=shape / mean, observed=rows["y"])
    return model


def real_rows(rng, n):
    X = design(rng, n, 6)
    return {"X": X, "y": X @ np.array([1, 0.5, -0.5, 0.2, 0.1, 0]) + 1.5 * rng.normal(size=n)}


@problem(20_000, real_rows, replaced(y=150.0))
def linear(rows):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 5, shape=rows["X"].shape[1])
        sigma = pm.HalfNormal("sigma", 5)
        pm.Normal("y", rows["X"] @ beta, sigma, observed=rows["y"])
    return model


def class_rows(rng, n):
    X = design(rng, n, 4)
    weights = np.array([[0.3, -0.2], [0.6, 0.0], [-0.4, 0.5], [0.0, 0.2]])
    p = softmax(np.column_stack([np.zeros(n), X @ weights]), axis=1)
    return {"X": X, "y": (rng.random((n, 1)) > p.cumsum(axis=1)[:, :-1]).sum(axis=1)}


@problem(10_000, class_rows, replaced(X=(30.0,), y=0))
def categorical(rows):
    X = rows["X"]
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=(X.shape[1], CLASSES - 1))
        eta = pt.concatenate([pt.zeros((len(X), 1)), X @ beta], axis=1)
        pm.Categorical("y", logit_p=eta, observed=rows["y"])
    return model


# Heavier tails, groups, curves, survival


def heavy_rows(rng, n):
    X = design(rng, n, 4)
    return {"X": X, "y": X @ np.array([1, 0.5, -0.5, 0.2]) + rng.standard_t(5, n)}


@problem(10_000, heavy_rows, replaced(y=1e4))
def student_t(rows):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 5, shape=rows["X"].shape[1])
        sigma = pm.HalfNormal("sigma", 5)
        nu = pm.Gamma("nu", 2, 0.1)
        pm.StudentT("y", nu=nu, mu=rows["X"] @ beta, sigma=sigma, observed=rows["y"])
    return model


def grouped_rows(rng, n):
    """Groups of sizes that differ by a factor of ten."""
    share = np.geomspace(1, 10, GROUPS)
    group = rng.choice(GROUPS, n, p=share / share.sum())
    x = rng.normal(size=n)
    eta = rng.normal(-0.3, 0.6, GROUPS)[group] + 0.5 * x
    return {"group": group, "x": x, "y": (rng.random(n) < expit(eta)).astype(float)}


@problem(20_000, grouped_rows, replaced(x=30.0, y=0.0, group=0))
def intercepts(rows):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        tau = pm.HalfNormal("tau", 1)
        a = pm.Normal("a", mu, tau, shape=GROUPS)
        b = pm.Normal("b", 0, 1)
        pm.Bernoulli("y", logit_p=a[rows["group"]] + b * rows["x"], observed=rows["y"])
    return model


def mixed_rows(rng, n):
    first = rng.random(n) < 0.35
    return {"y": np.where(first, rng.normal(-1.5, 1, n), rng.normal(2, 0.7, n))}


@problem(10_000, mixed_rows, replaced(y=12.0))
def mixture(rows):
    with pm.Model() as model:
        w = pm.Beta("w", 2, 2)
        mu = pm.Normal("mu", 0, 3, shape=2, transform=ORDERED, initval=[-1.0, 1.0])
        sigma = pm.HalfNormal("sigma", 2, shape=2)
        weights = pt.stack([w, 1 - w])
        pm.NormalMixture("y", w=weights, mu=mu, sigma=sigma, observed=rows["y"])
    return model


def curve_rows(rng, n):
    x = rng.uniform(0, 1, n)
    knots = np.r_[[0.0] * 3, np.linspace(0, 1, KNOTS - 2), [1.0] * 3]
    basis = BSpline.design_matrix(x, knots, 3).toarray()
    return {"B": basis, "y": np.sin(6 * x) + x + 0.4 * rng.normal(size=n)}


@problem(10_000, curve_rows, replaced(y=40.0))
def spline(rows):
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 2)
        w = pm.GaussianRandomWalk(
            "w", sigma=tau, init_dist=pm.Normal.dist(0, 3), shape=rows["B"].shape[1]
        )
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", rows["B"] @ w, sigma, observed=rows["y"])
    return model


def survival_rows(rng, n):
    X = design(rng, n, 4)
    time = rng.weibull(1.4, n) * np.exp(X @ np.array([1.0, 0.4, -0.3, 0.1]))
    end = rng.uniform(1, 8, n)
    return {"X": X, "time": np.minimum(time, end), "end": end}


def _long_lived(rows):
    rows["end"][0] = 100.0
    rows["time"][0] = 60.0


@problem(10_000, survival_rows, _long_lived)
def weibull(rows):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=rows["X"].shape[1])
        alpha = pm.Gamma("alpha", 2, 1)
        latent = pm.Weibull.dist(alpha=alpha, beta=pm.math.exp(rows["X"] @ beta))
        pm.Censored("time", latent, lower=None, upper=rows["end"], observed=rows["time"])
    return model


def surface_rows(rng, n):
    X = rng.normal(size=(n, 2))
    hidden = np.tanh(X @ np.array([[1.2, 0.3], [-0.5, 1.0]]) + [0.3, -0.4])
    return {"X": X, "y": 0.2 + hidden @ [1.0, 2.0] + 0.3 * rng.normal(size=n)}


@problem(10_000, surface_rows, replaced(y=20.0))
def network(rows):
    """Two hidden units; their output weights are positive and in order, which names them."""
    with pm.Model() as model:
        W = pm.Normal("W", 0, 1, shape=(2, 2))
        b = pm.Normal("b", 0, 1, shape=2)
        v = pm.Normal("log_v", 0, 1, shape=2, transform=ORDERED, initval=[-0.5, 0.5])
        c = pm.Normal("c", 0, 1)
        sigma = pm.HalfNormal("sigma", 1)
        hidden = pm.math.tanh(rows["X"] @ W + b)
        pm.Normal("y", c + hidden @ pm.math.exp(v), sigma, observed=rows["y"])
    return model
