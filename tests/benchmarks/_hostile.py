"""Models of the hostile trial: what subsampling, a Taylor expansion or a search for modes may miss.

Each has a family, the posterior of all rows (`_hostile_truth`), and the samplers it is meant for:
the continuous ones or `AusterityGibbs`. Those with `healthy` set should be sampled right.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from _bank_references import Moments
from _hostile_truth import gaussian, grid, importance, nuts, of_scipy, states, truncated
from scipy.special import expit
from scipy.stats import beta as beta_distribution

sys.path.append(str(Path(__file__).parents[1] / "shared"))

import mode_bank
from _written import bambi, flights


@dataclass(frozen=True)
class Target:
    """One model with its truth; it has what the bank's store of references asks of a problem.

    Attributes
    ----------
    name, family : str
    model : callable
        ``model()``: the PyMC model with its data.
    truth : callable
        ``truth(model)``: means and sds of the posterior of all rows.
    healthy : bool
        Whether a sampler that it suits should pass.
    unsuitable : tuple of str
        Samplers whose documentation excludes it: they may refuse it although it is healthy.
    binary : bool
        Whether it is a model for `AusterityGibbs`.
    """

    name: str
    family: str
    model: Callable[[], pm.Model]
    truth: Callable[[pm.Model], Moments]
    healthy: bool
    unsuitable: tuple[str, ...]
    binary: bool

    def rows(self, _spoiled: bool = False) -> dict[str, np.ndarray]:
        """The log density at two points, to nine digits: it stands for data and priors."""
        model = self.model()
        start, logp = model.initial_point(), model.compile_logp(mode="FAST_COMPILE")
        other = {k: 1 - v if self.binary else v + 0.01 for k, v in start.items()}
        found = [float(logp(point)) for point in (start, other)]
        digits = [float(f"{v / 10 ** np.ceil(np.log10(abs(v))):.9f}") for v in found]
        return {"logp": np.array(digits)}


TARGETS: dict[str, Target] = {}


def target(family, truth, healthy=False, unsuitable=(), binary=False):
    def register(model):
        name = model.__name__
        TARGETS[name] = Target(name, family, model, truth, healthy, unsuitable, binary)
        return model

    return register


def draws(seed, n, k=1):
    rng = np.random.default_rng([12, seed])
    return rng, np.column_stack([np.ones(n), rng.normal(size=(n, k - 1))]) if k > 1 else np.ones(n)


# Healthy: models as people write them

NO_BOUND = ("FireflyMC",)


@target("healthy", importance(), healthy=True)
def logistic_units():
    """Columns of very different units, not centred."""
    rng, X = draws(1, 5_000, 4)
    X = X * [1, 1, 100, 0.01] + [0, 0, 300, 0.05]
    y = rng.random(5_000) < expit(-1.0 + 0.5 * X[:, 1] + 0.004 * (X[:, 2] - 300) - 30 * X[:, 3])
    with pm.Model() as model:
        b = pm.Normal("b", 0, [10, 2, 1, 100], shape=4)
        pm.Bernoulli("y", logit_p=X @ b, observed=y.astype(float))
    return model


@target("healthy", importance(), healthy=True, unsuitable=NO_BOUND)
def poisson_exposure():
    rng, X = draws(2, 5_000, 3)
    days = rng.integers(30, 366, 5_000)
    y = rng.poisson(days * np.exp(X @ [-5.0, 0.3, -0.2]))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 5, shape=3)
        pm.Poisson("y", days * pm.math.exp(X @ b), observed=y)
    return model


@target("healthy", importance(), healthy=True)
def robust():
    rng, X = draws(3, 5_000, 3)
    y = X @ [1.0, -0.5, 0.2] + rng.standard_t(4, 5_000)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 5, shape=3)
        pm.StudentT("y", nu=4, mu=X @ b, sigma=1.0, observed=y)
    return model


@target("healthy", importance(), healthy=True, unsuitable=NO_BOUND)
def robust_scale():
    """The same with a scale to be learnt, on data in minutes."""
    rng, X = draws(4, 5_000, 2)
    y = 30 + 10 * X[:, 1] + 15 * rng.standard_t(4, 5_000)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 100), pm.Normal("b", 0, 10)
        sigma = pm.HalfCauchy("sigma", 10)
        pm.StudentT("y", nu=4, mu=a + b * X[:, 1], sigma=sigma, observed=y)
    return model


def _eight():
    rng, _ = draws(5, 4_000)
    group = rng.integers(0, 8, 4_000)
    return group, rng.random(4_000) < expit(-0.5 + 0.8 * rng.normal(size=8)[group])


def counted(group, y, hyper):
    """The same posterior from the counts of groups, centred: `z` and `a` follow."""

    def other():
        n, ones = np.bincount(group), np.bincount(group, weights=y).astype(int)
        with pm.Model() as model:
            mu, tau = hyper()
            a = pm.Normal("a", mu, tau, shape=len(n))
            pm.Deterministic("z", (a - mu) / tau)
            pm.Binomial("y", n, logit_p=a, observed=ones)
        return model

    return other


def _hyper_of_eight():
    return pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)


@target("healthy", nuts(counted(*_eight(), _hyper_of_eight)), healthy=True)
def small_hierarchy():
    """Eight groups of hundreds of rows, non-centred."""
    group, y = _eight()
    with pm.Model() as model:
        mu, tau = _hyper_of_eight()
        z = pm.Normal("z", 0, 1, shape=8)
        pm.Bernoulli("y", logit_p=(mu + tau * z)[group], observed=y.astype(float))
    return model


@cache
def some_flights():
    return flights(4_000, 0)


@target("healthy", importance(), healthy=True, unsuitable=NO_BOUND)
def bambi_default():
    """A Gaussian regression with every default of Bambi's."""
    frame = some_flights()
    return bambi("arrival_delay ~ hour + wind + distance", frame)


# Several modes


@target("several modes", importance({"mu": np.array([-10.0, 10])}, {"mu": np.array([10.0, -10])}))
def labels():
    """Swapped labels hold a quarter of the mass."""
    return mode_bank.mixture()


@target("several modes", importance({"b": np.array(2.0)}, {"b": np.array(-2.0)}))
def square():
    return mode_bank.square()


@target("several modes", importance({"b": np.array(30.0)}, {"b": np.array(-30.0)}))
def far_square():
    """Roots that are hundreds of posterior sds apart, under a prior as wide."""
    rng, _ = draws(6, 2_000)
    x = rng.normal(size=2_000)
    with pm.Model() as model:
        b = pm.Normal("b", 10, 40)
        pm.Normal("y", b**2 * x, 20.0, observed=900 * x + 20 * rng.normal(size=2_000))
    return model


@target(
    "several modes",
    importance(
        *(
            {"c": np.array(1.0), "a_log__": np.log(0.8), "ph": np.array(1.0 + 2 * np.pi * k)}
            for k in range(-6, 6)
        )
    ),
)
def phase():
    """A phase that is known up to turns: a dozen modes."""
    return mode_bank.phase()


@target(
    "several modes",
    importance(*({"b": np.array([2.0 * s, 1.0 * t])} for s in (-1, 1) for t in (-1, 1))),
)
def two_squares():
    return mode_bank.two_squares()


@target("several modes", importance({"mu": np.array(-12.0)}, {"mu": np.array(12.0)}))
def conflict():
    """Two camps of rows, and a likelihood that may ignore either."""
    return mode_bank.conflict()


def step_prior():
    """Four groups whose spread fits two ideas of it: one mode in the scale, or the other."""
    rng, _ = draws(7, 8_000)
    group = np.arange(8_000) % 4
    y = np.array([-0.3, -0.1, 0.15, 0.35])[group] + rng.normal(size=8_000)
    with pm.Model() as model:
        log_tau = pm.NormalMixture("log_tau", w=[0.75, 0.25], mu=[-2.0, 0.2], sigma=0.15)
        a = pm.Normal("a", 0, pm.math.exp(log_tau), shape=4)
        pm.Normal("y", a[group], 1.0, observed=y)
    return model


@target(
    "several modes",
    importance(
        *({"log_tau": np.array(t), "a": np.array([-0.3, -0.1, 0.15, 0.35])} for t in (-1.8, 0.1))
    ),
)
def modes_of_the_scale():
    return step_prior()


# Likelihoods without gradients, or with jumps


@target("no gradient", grid((-1.5, 3.5, 40_001)))
def floor():
    """A slope that is seen through whole numbers."""
    rng, _ = draws(8, 500)
    x = rng.uniform(0, 3, 500)
    with pm.Model() as model:
        b = pm.Normal("b", 1, 0.5)
        pm.Normal("y", pt.floor(b * x), 1.0, observed=np.floor(1.3 * x) + rng.normal(size=500))
    return model


@target("no gradient", grid((-4.0, 4.0, 40_001)))
def change_point():
    """The row at which the mean changes."""
    rng, _ = draws(9, 2_000)
    x = rng.uniform(0, 1, 2_000)
    with pm.Model() as model:
        c = pm.Uniform("c", 0, 1)
        mean = pm.math.switch(x > c, 0.5, 0.0)
        pm.Normal("y", mean, 1.0, observed=np.where(x > 0.4, 0.5, 0.0) + rng.normal(size=2_000))
    return model


@target("no gradient", grid((-1.0, 2.0, 6_001)))
def kink():
    """Median regression: a slope with a corner in every row."""
    rng, _ = draws(10, 1_000)
    x = rng.normal(size=1_000)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2)
        pm.Laplace("y", b * x, 1.0, observed=0.5 * x + rng.laplace(size=1_000))
    return model


@target("no gradient", grid((1.4, 2.4, 40_001)))
def edge_of_support():
    """Uniform rows whose upper end is the parameter: its posterior begins at the largest row."""
    rng, _ = draws(11, 1_000)
    with pm.Model() as model:
        top = pm.Exponential("top", 0.1, initval=5.5)
        pm.Uniform("y", 0, top, observed=rng.uniform(0, 5, 1_000))
    return model


# Separation, outliers, rare rows


@target("few informative rows", grid((-80.0, 5.0, 681), (-5.0, 65.0, 561)))
def near_separation():
    """One row stands against a perfect split."""
    _, X = draws(12, 1_000, 2)
    y = X[:, 1] > 1.5
    y[np.argsort(X[:, 1])[-60]] = False
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 10), pm.Normal("b", 0, 10)
        pm.Bernoulli("y", logit_p=a + b * X[:, 1], observed=y.astype(float))
    return model


@target("few informative rows", grid((-60.0, 5.0, 651), (-10.0, 60.0, 701)))
def separation():
    """A perfect split: priors alone hold the slope."""
    _, X = draws(13, 1_000, 2)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 10), pm.Normal("b", 0, 5)
        pm.Bernoulli("y", logit_p=a + b * X[:, 1], observed=(X[:, 1] > 1.2).astype(float))
    return model


@target("few informative rows", importance())
def rare_events():
    """Five events in 20,000 rows, and a column that is seldom other than zero."""
    rng, _ = draws(14, 20_000)
    x = (rng.random(20_000) < 0.002).astype(float)
    y = np.zeros(20_000)
    y[np.r_[np.flatnonzero(x)[:2], [11, 5_000, 15_000]]] = 1
    with pm.Model() as model:
        a, b = pm.Normal("a", -5, 3), pm.Normal("b", 0, 3)
        pm.Bernoulli("y", logit_p=a + b * x, observed=y)
    return model


def logistic(X, y):
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=3)
        pm.Bernoulli("y", logit_p=X @ b, observed=y.astype(float))
    return model


@target("few informative rows", importance())
def empty_rows():
    """Nine rows in ten say nothing about anything."""
    rng, X = draws(15, 10_000, 3)
    X[1_000:] = 0
    return logistic(X, rng.random(10_000) < expit(X @ [0.3, 0.8, -0.5]))


@target("outliers and tails", importance())
def outlier_in_x():
    """Logistic rows, one of them far out and on the wrong side."""
    rng, X = draws(16, 10_000, 3)
    y = (rng.random(10_000) < expit(X @ [-0.5, 0.6, -0.4])).astype(float)
    X[7, 1:], y[7] = [40.0, -60.0], 0.0
    return logistic(X, y)


@target("outliers and tails", importance())
def outlier_in_y():
    """A count of thousands among counts of few."""
    rng, X = draws(17, 10_000, 3)
    y = rng.poisson(np.exp(X @ [0.5, 0.3, -0.2]))
    y[3] = 3_000
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=3)
        pm.Poisson("y", pm.math.exp(X @ b), observed=y)
    return model


@target("outliers and tails", importance())
def outlier_of_the_scale():
    """A normal model whose scale one row in 5,000 determines."""
    rng, X = draws(18, 5_000, 2)
    y = X @ [1.0, 0.5] + rng.normal(size=5_000)
    y[100] = 500.0
    with pm.Model() as model:
        b, sigma = pm.Normal("b", 0, 10, shape=2), pm.HalfNormal("sigma", 10)
        pm.Normal("y", X @ b, sigma, observed=y)
    return model


@target("outliers and tails", importance())
def cauchy_rows():
    """Cauchy rows with priors of Student-t 1.5; the rows know everything."""
    rng, X = draws(19, 3_000, 2)
    y = X @ [2.0, -1.0] + 3 * rng.standard_cauchy(3_000)
    with pm.Model() as model:
        b = pm.StudentT("b", nu=1.5, mu=0, sigma=1, shape=2)
        sigma = pm.HalfStudentT("sigma", nu=1.5, sigma=1)
        pm.Cauchy("y", X @ b, sigma, observed=y)
    return model


@target("outliers and tails", importance())
def degrees_of_freedom():
    """Rows of tails as heavy as the model has to find out."""
    rng, _ = draws(20, 5_000)
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 10), pm.HalfNormal("sigma", 5)
        nu = pm.Gamma("nu", 2, 0.1)
        pm.StudentT("y", nu=nu, mu=mu, sigma=sigma, observed=rng.standard_t(1.5, 5_000))
    return model


# Hierarchies


def funnel(centred):
    with pm.Model() as model:
        mode_bank.hierarchy(centred, 0.02, groups=6)
    return model


def averaged():
    """The same posterior from the means of groups, non-centred: `a` follows."""
    data = funnel(True)
    y = data.rvs_to_values[data["y"]].data
    group = np.random.default_rng(22)
    group.normal(size=mode_bank.N)
    group = group.integers(0, 6, mode_bank.N)
    n = np.bincount(group)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 1)
        a = pm.Deterministic("a", mu + tau * pm.Normal("z", 0, 1, shape=6))
        pm.Normal("y", a, 3.0 / np.sqrt(n), observed=np.bincount(group, weights=y) / n)
    return model


@target("hierarchies", nuts(averaged))
def funnel_noncentred():
    """Groups that hardly differ."""
    return funnel(False)


@target("hierarchies", nuts(averaged))
def funnel_centred():
    """The same, centred: its density has a pole at a scale of zero."""
    return funnel(True)


def _unequal():
    rng, _ = draws(21, 1)
    sizes = np.array([1, 3, 10, 30, 100, 1_000, 5_000, 10_000])
    group = rng.permutation(np.repeat(np.arange(8), sizes))
    return group, rng.random(len(group)) < expit(-0.5 + 1.0 * rng.normal(size=8)[group])


def _hyper_of_unequal():
    return pm.Normal("mu", 0, 1.5), pm.HalfNormal("tau", 1)


@target("hierarchies", nuts(counted(*_unequal(), _hyper_of_unequal)))
def groups_of_1_to_10_000():
    group, y = _unequal()
    with pm.Model() as model:
        mu, tau = _hyper_of_unequal()
        a = pm.Normal("a", mu, tau, shape=8)
        pm.Bernoulli("y", logit_p=a[group], observed=y.astype(float))
    return model


def _of_one():
    rng, _ = draws(22, 1)
    group = np.r_[np.arange(8), np.full(5_000, 8)]
    return group, rng.poisson(np.exp(1.0 + 0.7 * rng.normal(size=9)[group]))


def summed():
    """The same posterior from sums, with the large group centred."""
    group, y = _of_one()
    sums = np.bincount(group, weights=y).astype(int)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        small, large = pm.Normal("small", 0, 1, shape=8), pm.Normal("large", 0, tau)
        z = pm.Deterministic("z", pt.concatenate([small, (large / tau)[None]]))
        pm.Poisson("y", np.bincount(group) * pm.math.exp(1.0 + tau * z), observed=sums)
    return model


@target("hierarchies", nuts(summed))
def groups_of_one():
    """Eight groups of one row beside one of 5,000."""
    group, y = _of_one()
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        z = pm.Normal("z", 0, 1, shape=9)
        pm.Poisson("y", pm.math.exp(1.0 + (tau * z)[group]), observed=y)
    return model


# Directions that the data leave open, and units


def _collinear():
    rng, x = draws(23, 3_000, 2)
    X = np.column_stack([x[:, 1], x[:, 1] + 1e-3 * rng.normal(size=3_000)])
    return X, X.sum(axis=1) + rng.normal(size=3_000)


@target("flat directions and units", gaussian(*_collinear(), 1.0, 10.0))
def collinear():
    X, y = _collinear()
    with pm.Model() as model:
        b = pm.Normal("b", 0, 10, shape=2)
        pm.Normal("y", X @ b, 1.0, observed=y)
    return model


def _sum():
    rng, _ = draws(24, 5_000)
    return np.ones((5_000, 2)), 3 + rng.normal(size=5_000)


@target("flat directions and units", gaussian(*_sum(), 1.0, 100.0))
def only_the_sum():
    """Two intercepts; their difference is known by the prior alone, thousands of times wider."""
    _, y = _sum()
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 100), pm.Normal("b", 0, 100)
        pm.Normal("y", a + b + np.zeros(len(y)), 1.0, observed=y)
    return model


def _units():
    rng, X = draws(25, 5_000, 4)
    X = X * [1, 1e-6, 1, 1e6] + [0, 0, 0, 1e7]
    return X, X @ [1.0, 5e5, -0.5, 2e-7] + rng.normal(size=5_000)


@target("flat directions and units", gaussian(*_units(), 1.0, [100.0, 1e7, 10.0, 1e-4]))
def units_of_a_million():
    """Columns of units from 1e-6 to 1e6, one of them far from zero."""
    X, y = _units()
    with pm.Model() as model:
        b = pm.Normal("b", 0, [100.0, 1e7, 10.0, 1e-4], shape=4)
        pm.Normal("y", X @ b, 1.0, observed=y)
    return model


@target("flat directions and units", importance())
def outcome_of_a_millionth():
    """An outcome in units of 1e-6 with a scale to be learnt."""
    rng, X = draws(26, 3_000, 2)
    y = 1e-6 * (X @ [3.0, 1.0] + rng.normal(size=3_000))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1e-5, shape=2)
        sigma = pm.HalfNormal("sigma", 1e-5)
        pm.Normal("y", X @ b, sigma, observed=y)
    return model


@target("flat directions and units", importance())
def unused_tail():
    """A parameter that meets no row, with heavy tails."""
    rng, X = draws(27, 3_000, 2)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 5, shape=2)
        pm.StudentT("spare", nu=6, mu=0, sigma=3)
        pm.Normal("y", X @ b, 1.0, observed=X @ [1.0, 0.5] + rng.normal(size=3_000))
    return model


@target("flat directions and units", grid((-6.0, 6.0, 801), (-3.0, 4.0, 701)))
def banana():
    """Twelve rows know a sum of a parameter and another one's square: a ridge that bends."""
    rng, _ = draws(28, 12)
    y = 1.0 + rng.normal(size=12)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0.5, 0.5)
        pm.Normal("y", np.ones(12) * (a + b**2), 1.0, observed=y)
    return model


# Bounds and small data


@target("bounds", of_scipy(beta_distribution(1, 5_001)))
def no_success():
    """A probability whose 5,000 rows are all zero."""
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1)
        pm.Bernoulli("y", p, observed=np.zeros(5_000))
    return model


def _edge():
    rng, _ = draws(29, 4_000)
    y = -0.01 + rng.normal(size=4_000)
    return y - y.mean() - 0.015


@target("bounds", truncated(_edge().mean(), 1 / np.sqrt(4_000), 0.0, 10.0))
def beyond_the_bound():
    """A mean that the data put below the least that the prior allows."""
    with pm.Model() as model:
        mu = pm.Uniform("mu", 0, 10)
        pm.Normal("y", mu, 1.0, observed=_edge())
    return model


@target("bounds", importance())
def correlation_near_one():
    """A correlation of almost one, within its interval."""
    rng, _ = draws(30, 1_000)
    x = rng.normal(size=1_000)
    y = 0.999 * x + np.sqrt(1 - 0.999**2) * rng.normal(size=1_000)
    with pm.Model() as model:
        rho = pm.Uniform("rho", -1, 1)
        pm.Normal("y", rho * x, pm.math.sqrt(1 - rho**2), observed=y)
    return model


@target("bounds", importance())
def thirty_rows():
    rng, X = draws(31, 30, 3)
    return logistic(X, rng.random(30) < expit(X @ [0.3, 1.0, -1.0]))


@target("bounds", importance())
def thirty_rows_of_unknown_scale():
    rng, X = draws(32, 30, 2)
    with pm.Model() as model:
        b, sigma = pm.Normal("b", 0, 5, shape=2), pm.HalfNormal("sigma", 3)
        pm.Normal("y", X @ b, sigma, observed=X @ [1.0, -0.5] + rng.normal(size=30))
    return model


# Binary variables, for `AusterityGibbs`


def graph(coupling, n_rows=4_000, size=8, field=0.0, seed=41):
    """Pairs of spins, many rows per pair."""
    rng, _ = draws(seed, n_rows)
    pairs = np.array([rng.choice(size, 2, replace=False) for _ in range(n_rows)])
    strength = coupling / n_rows * (1 + 0.5 * rng.normal(size=n_rows))
    with pm.Model() as model:
        x = pm.Bernoulli("x", expit(field), shape=size)
        spin = 2 * x - 1
        pm.Potential("pairs", strength * spin[pairs[:, 0]] * spin[pairs[:, 1]])
    return model


@target("binary", states, healthy=True, binary=True)
def spins():
    return graph(6.0)


@target("binary", states, healthy=True, binary=True)
def spins_in_a_field():
    return graph(8.0, field=0.7, seed=42)


@target("binary", states, healthy=True, binary=True)
def repelling_spins():
    return graph(-10.0, seed=43)


@target("binary", states, binary=True)
def magnet():
    """All spins up or all down, and no way between."""
    return graph(120.0, seed=44)


@target("binary", states, binary=True)
def leaning_magnet():
    """The same with one of the two more likely."""
    return graph(90.0, field=0.05, seed=45)


@target("binary", states, binary=True)
def one_heavy_row():
    """A row that weighs as much as all others."""
    rng, _ = draws(46, 4_000)
    pairs = np.array([rng.choice(6, 2, replace=False) for _ in range(4_000)])
    strength = 2.0 / 4_000 * rng.normal(size=4_000)
    strength[17] = -2.5
    with pm.Model() as model:
        x = pm.Bernoulli("x", 0.5, shape=6)
        spin = 2 * x - 1
        pm.Potential("pairs", strength * spin[pairs[:, 0]] * spin[pairs[:, 1]])
    return model


@target("binary", states, binary=True)
def cancelling_rows():
    """Large terms of either sign that nearly cancel: a batch sees their noise."""
    rng, _ = draws(47, 4_000)
    pairs = np.array([rng.choice(6, 2, replace=False) for _ in range(4_000)])
    strength = 0.3 * rng.normal(size=4_000)
    strength -= strength.mean()
    with pm.Model() as model:
        x = pm.Bernoulli("x", 0.5, shape=6)
        spin = 2 * x - 1
        pm.Potential("pairs", strength * spin[pairs[:, 0]] * spin[pairs[:, 1]] * 0.2)
    return model


@target("binary", states, binary=True)
def impossible_states():
    """A row in a thousand forbids that both of a pair are one."""
    rng, _ = draws(48, 4_000)
    pairs = np.array([rng.choice(6, 2, replace=False) for _ in range(4_000)])
    forbids = np.where(np.arange(4_000) % 1_000 == 3, -np.inf, 0.0)
    with pm.Model() as model:
        x = pm.Bernoulli("x", 0.4, shape=6)
        both = x[pairs[:, 0]] * x[pairs[:, 1]]
        pm.Potential("pairs", pt.switch(pt.eq(both, 1), forbids, 0.001))
    return model


@target("binary", states, binary=True)
def twins():
    """Two columns that are the same: one of them is in, and a single change puts both out."""

    rng, _ = draws(49, 4_000)
    X = rng.normal(size=(4_000, 6))
    X[:, 1] = X[:, 0]
    y = 0.07 * X @ [1.0, 0.0, 0.5, 0.5, 0.5, 0.5] + rng.normal(size=4_000)
    with pm.Model() as model:
        x = pm.Bernoulli("x", 0.5, shape=6)
        pm.Normal("y", 0.07 * pm.math.dot(X, x), 1.0, observed=y)
    return model
