"""Small models, most of them with posteriors that are known exactly."""

from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace

import numpy as np
import pymc as pm
from chains import assert_moments
from scipy.special import expit, log_expit
from scipy.stats import norm


@dataclass
class Line:
    """Rows whose log-likelihood is in a + b x, in NumPy; theta, (a, b), has shape (..., 2)."""

    x: np.ndarray
    y: np.ndarray

    def eta(self, theta):
        return theta[..., :1] + theta[..., 1:] * self.x


class Case(SimpleNamespace):
    """A model of two parameters, their `names`, `logp` on a grid, and about where they are."""

    @cached_property
    def exact(self):
        """Posterior means and sds, by quadrature."""
        center, scale = np.array(self.center), np.array([0.3, 0.3])
        for _ in range(6):  # zoom in on the bulk
            axes = [c + s * np.linspace(-1, 1, 161) for c, s in zip(center, scale, strict=True)]
            a, b = np.meshgrid(*axes, indexing="ij")
            with np.errstate(invalid="ignore", divide="ignore"):
                logp = self.logp(a, b)
            weight = np.nan_to_num(np.exp(logp - np.nanmax(logp)))
            weight /= weight.sum()
            moments = [(float((weight * v).sum()), v) for v in (a, b)]
            center = np.array([m for m, _ in moments])
            sd = np.array([np.sqrt((weight * (v - m) ** 2).sum()) for m, v in moments])
            scale = 7 * np.maximum(sd, (axes[0][1] - axes[0][0]) / 7)
        return center, sd

    @property
    def mean(self):
        return self.exact[0]

    @property
    def sd(self):
        return self.exact[1]

    def assert_posterior(self, idata):
        for name, mean, sd in zip(self.names, *self.exact, strict=True):
            assert_moments(idata["posterior"][name], mean, sd)


def logistic(n=600, seed=1):
    """Two coefficients, rows sorted by outcome."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    y = np.sort((rng.random(n) < expit(0.3 + 0.8 * x)).astype("int8"))
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        b = pm.Normal("b", 0, 2)
        pm.Bernoulli("y", logit_p=a + b * x, observed=y)
    return Case(
        model=model,
        logp=lambda a, b: (
            norm.logpdf(a, 0, 2)
            + norm.logpdf(b, 0, 2)
            + sum(log_expit((2 * int(k) - 1) * (a + b * v)) for k, v in zip(y, x, strict=True))
        ),
        center=(y.mean() - 0.5, 0.0),
        names=("a", "b"),
    )


def poisson(n=600, seed=2):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.normal(size=n))
    y = rng.poisson(np.exp(0.5 + 0.4 * x))
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        b = pm.Normal("b", 0, 2)
        pm.Poisson("y", mu=pm.math.exp(a + b * x), observed=y)

    def logp(a, b):
        total = norm.logpdf(a, 0, 2) + norm.logpdf(b, 0, 2) + y.sum() * a + (y @ x) * b
        return total - sum(np.exp(a + b * v) for v in x)

    return Case(model=model, logp=logp, center=(0.5, 0.4), names=("a", "b"))


def normal(n=600, seed=3):
    """Mean and scale, rows sorted."""
    rng = np.random.default_rng(seed)
    y = np.sort(rng.normal(1.0, 0.7, size=n))
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        b = pm.HalfNormal("b", 2)
        pm.Normal("y", a, b, observed=y)

    def logp(a, b):
        squares = ((y - y.mean()) ** 2).sum() + n * (a - y.mean()) ** 2
        return norm.logpdf(a, 0, 2) + norm.logpdf(b, 0, 2) - n * np.log(b) - squares / (2 * b**2)

    return Case(model=model, logp=logp, center=(1.0, 0.7), names=("a", "b"))


def groups_of_all_sizes():
    """Numbers of twenty groups, from a few to thousands, with means and scales of their own."""
    rng = np.random.default_rng(18)
    weight = np.geomspace(1.0, 300.0, 20)
    g = np.concatenate(
        [np.repeat(np.arange(20), 3), rng.choice(20, 99_940, p=weight / sum(weight))]
    )
    return g, rng.normal(rng.normal(size=20)[g], np.exp(rng.normal(0.5, 0.3, 20))[g])


def regression_on_itself(seed=0):
    """A slope of one of 2,000 rows."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=2000)
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 1)
        pm.Normal("y", slope * x, 1, observed=x + rng.normal(size=2000))
    return model


def wide(n, kind):
    """A model with data of `n` rows given in some way."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, (n, 6)).astype("int8")
    y = rng.integers(0, 2, n).astype("int8")
    with pm.Model() as model:
        if kind == "data":
            x, y = pm.Data("x", x), pm.Data("y_data", y)
        elif kind == "transposed":
            x = np.ascontiguousarray(x.T).T
        b = pm.Normal("b", 0, 1, shape=6)
        pm.Bernoulli("y", logit_p=pm.math.dot(x, b), observed=y)
    return model


def pairs(n=20, m=500):
    """Return binary variables that factors of two of them tie together."""
    rng = np.random.default_rng(2)
    i, j = rng.integers(0, n, (2, m))
    with pm.Model() as model:
        x = pm.Bernoulli("x", 0.5, shape=n)
        pm.Potential("psi", rng.normal(0, 0.05, m) * x[i] * x[j])
    return model


def mean_of(y, prior_sd=1.0):
    """The mean of normal outcomes."""
    with pm.Model() as model:
        a = pm.Normal("a", 0, prior_sd)
        pm.Normal("y", a, 1.0, observed=y)
    return model


def centred_hierarchy(groups, size=100, tau=None):
    """Normal groups, rows sorted by group, with the mean of each; their scale is `tau` if given."""
    rng = np.random.default_rng(7)
    g = np.repeat(np.arange(groups), size)
    y = rng.normal(0.5, 0.5, groups)[g] + rng.normal(size=groups * size)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        a = pm.Normal("a", mu, tau or pm.HalfNormal("tau", 1), shape=groups)
        pm.Normal("y", a[g], 1.0, observed=y)
    return model, y.reshape(groups, size).mean(axis=1)
