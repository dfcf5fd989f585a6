"""Models of the hostile trial with awkward rows: no curvature, limits on a scale, edges, series.

Each is of a kind that was refused, or told wrongly, though NUTS samples it.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from _hostile import NO_BOUND, draws, target
from _hostile_truth import grid, importance
from scipy.special import expit

FAMILY = "awkward rows"


@target(FAMILY, importance(), unsuitable=NO_BOUND)
def underflowing_buyer():
    """BG/NBD by hand (Fader, Hardie and Lee 2005): a term of one heavy buyer underflows."""
    rng, _ = draws(61, 3_000)
    T = rng.uniform(20, 60, 3_000)
    x = np.minimum(rng.negative_binomial(0.6, 0.15, 3_000), 40).astype(float)
    last = np.where(x > 0, T * rng.beta(np.maximum(x, 1), 1), 0.0)
    x[0], last[0], T[0] = 98.0, 53.44, 53.55
    with pm.Model() as model:
        a, b, alpha, r = (pm.HalfNormal(name, 3) for name in ("a", "b", "alpha", "r"))
        counts = pt.gammaln(r + x) - pt.gammaln(r) + r * pt.log(alpha)
        shares = pt.gammaln(a + b) + pt.gammaln(b + x) - pt.gammaln(b) - pt.gammaln(a + b + x)
        alive = pt.exp(-(r + x) * pt.log(alpha + T))
        gone = pt.exp(pt.log(a) - pt.log(b + np.maximum(x, 1) - 1) - (r + x) * pt.log(last + alpha))
        pm.Potential("ll", counts + shares + pt.log(alive + (x > 0) * gone))
    return model


@target(FAMILY, importance(), unsuitable=NO_BOUND)
def weeks_without_spend():
    """A Hill curve of adstock that is zero in some rows: zeros to a power."""
    rng, _ = draws(62, 3_000)
    lag = rng.gamma(2, 1, (3_000, 4)) * (rng.random(3_000) < 0.7)[:, None]
    spent = (lag * 0.5 ** np.arange(4)).sum(1)
    y = 1 + 2 * spent**1.6 / (2**1.6 + spent**1.6) + rng.normal(0, 0.5, 3_000)
    with pm.Model() as model:
        alpha, kappa = pm.Beta("alpha", 2, 2), pm.HalfNormal("kappa", 5)
        slope = 1 + pm.Gamma("slope", 2, 3)
        beta, level = pm.HalfNormal("beta", 2), pm.Normal("level", 0, 5)
        stock = (lag * alpha ** np.arange(4)).sum(axis=1)
        mu = level + beta * stock**slope / (kappa**slope + stock**slope)
        pm.Normal("sales", mu, pm.HalfNormal("sigma", 1), observed=y)
    return model


@target(FAMILY, importance(proposals=200_000), unsuitable=NO_BOUND)
def counts_without_dispersion():
    """A negative binomial of Poisson counts: alpha runs to infinity."""
    rng, X = draws(63, 4_000, 2)
    y = rng.poisson(np.exp(X @ [0.5, 0.3]))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=2)
        pm.NegativeBinomial(
            "y", mu=pm.math.exp(X @ b), alpha=pm.Gamma("alpha", 2, 0.02), observed=y
        )
    return model


@target(FAMILY, importance(), unsuitable=NO_BOUND)
def hardly_any_inflation():
    """A zero-inflated Poisson of Poisson counts: psi runs to one."""
    rng, X = draws(64, 4_000, 2)
    y = rng.poisson(np.exp(X @ [0.8, 0.3]))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=2)
        pm.ZeroInflatedPoisson("y", pm.Beta("psi", 2, 1), pm.math.exp(X @ b), observed=y)
    return model


@target(FAMILY, importance(), unsuitable=NO_BOUND)
def few_failures():
    """A Weibull of which a few dozen of thousands have ended."""
    rng, X = draws(65, 4_000, 2)
    time = 30 * np.exp(0.3 * X[:, 1]) * rng.weibull(1.5, 4_000)
    seen = time < 1.0
    with pm.Model() as model:
        b, shape = pm.Normal("b", 2, 2, shape=2), pm.Gamma("shape", 4, 2)
        scale = pm.math.exp(X @ b)
        t = np.minimum(time, 1.0)
        hazard = (t / scale) ** shape
        pm.Potential(
            "ll", seen * (pt.log(shape / scale) + (shape - 1) * pt.log(t / scale)) - hazard
        )
    return model


@target(FAMILY, importance(), unsuitable=NO_BOUND)
def censored_gamma():
    """A censored Gamma, of whose distribution function PyTensor has no second derivatives."""
    rng, X = draws(66, 3_000, 2)
    y = np.minimum(rng.gamma(2.0, np.exp(X @ [0.0, 0.3]) / 2.0), 2.0)
    with pm.Model() as model:
        b, shape = pm.Normal("b", 0, 2, shape=2), pm.HalfNormal("shape", 5)
        waiting = pm.Gamma.dist(alpha=shape, beta=shape / pm.math.exp(X @ b))
        pm.Censored("y", waiting, lower=None, upper=2.0, observed=y)
    return model


@target(FAMILY, grid((0.3, 0.7, 301), (0.3, 0.7, 301)), unsuitable=NO_BOUND)
def cut_by_a_potential():
    """A constraint that cuts the posterior where it is high."""
    rng, X = draws(67, 4_000, 2)
    y = X @ [0.5, 0.5] + rng.normal(size=4_000)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=2)
        pm.Potential("constraint", pt.switch(b[0] + b[1] > 0.97, -np.inf, 0.0))
        pm.Normal("y", X @ b, 1.0, observed=y)
    return model


@target(FAMILY, grid((2.0, 8.0, 6_001)), unsuitable=NO_BOUND)
def saturated_slope():
    """The slope of a step that rows hardly bound: its prior alone ends it."""
    rng, _ = draws(68, 2_000)
    x = rng.normal(size=2_000)
    y = np.tanh(200 * x) + rng.normal(size=2_000)
    with pm.Model() as model:
        k = pm.HalfNormal("k", 150)
        pm.Normal("y", pm.math.tanh(k * x), 1.0, observed=y)
    return model


@target(FAMILY, importance(), unsuitable=NO_BOUND)
def series_of_eight():
    """A Tweedie by eight terms of its series (Dunn and Smyth 2005)."""
    rng, X = draws(69, 3_000, 2)
    power, phi, mu = 1.6, 20.0, np.exp(X @ [3.0, 0.3])
    counts = rng.poisson(mu ** (2 - power) / (phi * (2 - power)))
    size = np.maximum(counts, 1) * (2 - power) / (power - 1)
    y = rng.gamma(size, phi * (power - 1) * mu ** (power - 1)) * (counts > 0)

    def logp(value, mu, phi, p):
        a, j = (2 - p) / (p - 1), np.arange(1, 9)[None, :]
        v = pt.switch(value > 0, value, 1.0)
        each = a * pt.log(v) - a * pt.log(p - 1) - (1 + a) * pt.log(phi) - pt.log(2 - p)
        terms = j * each[:, None] - pt.gammaln(j + 1) - pt.gammaln(j * a)
        zero = -(mu ** (2 - p)) / (phi * (2 - p))
        series = pt.logsumexp(terms, axis=1) - pt.log(v)
        return pt.switch(value > 0, series - v * mu ** (1 - p) / (phi * (p - 1)) + zero, zero)

    with pm.Model() as model:
        b, phi = pm.Normal("b", [3, 0], 1), pm.LogNormal("phi", 3, 1)
        p = pm.Uniform("p", 1.05, 1.95)
        pm.CustomDist("claim", pm.math.exp(X @ b), phi, p, logp=logp, observed=y)
    return model


@target(FAMILY, importance(), unsuitable=NO_BOUND)
def coinciding_components():
    """A mixture by hand of two components that nearly coincide."""
    rng, _ = draws(70, 3_000)
    y = rng.normal(0.15 * np.sign(rng.random(3_000) - 0.5), 1.0)
    with pm.Model() as model:
        low, gap = pm.Normal("low", 0, 1), pm.HalfNormal("gap", 1)
        w = pm.Beta("w", 5, 5)
        each = [pm.logp(pm.Normal.dist(m, 1.0), y) for m in (low, low + gap)]
        pm.Potential("ll", pt.log(w * pt.exp(each[0]) + (1 - w) * pt.exp(each[1])))
    return model


@target(FAMILY, importance(proposals=200_000), unsuitable=NO_BOUND)
def dose_without_effect():
    """An emax curve whose half-effect dose rows hardly tell."""
    rng, _ = draws(71, 4_000)
    dose = rng.choice([0.0, 5.0, 25.0, 50.0], 4_000)
    y = 2.0 + 3.0 * dose / (60.0 + dose) + rng.normal(0, 3.0, 4_000)
    with pm.Model() as model:
        base, top = pm.Normal("base", 0, 5), pm.HalfNormal("top", 10)
        half = pm.LogNormal("half", 4, 1)
        pm.Normal("y", base + top * dose / (half + dose), 3.0, observed=y)
    return model


def hurdle(density):
    rng, X = draws(72, 3_000, 2)
    bought = rng.random(3_000) < expit(X @ [0.5, 0.8])
    y = np.where(bought, rng.gamma(2.0, np.exp(X @ [1.0, 0.2])), 0.0)
    y[0] = 900.0
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2, shape=2), pm.Normal("b", 0, 2, shape=2)
        p, rate = pm.math.sigmoid(X @ a), 2.0 / pm.math.exp(X @ b)
        pm.Potential("ll", density(y, p, rate, np.where(y > 0, y, 1.0)))
    return model


def by_terms(y, p, rate, v):
    amounts = pt.log(p) + 2 * pt.log(rate) + np.log(v) - rate * v
    return pt.switch(y > 0, amounts, pt.log(1 - p))


@target(FAMILY, lambda _: importance()(hurdle(by_terms)), unsuitable=NO_BOUND)
def hurdle_by_hand():
    """Zeros and amounts in one expression: an exponential underflows in one row."""
    return hurdle(
        lambda y, p, rate, v: pt.log(
            (y == 0) * (1 - p) + (y > 0) * p * rate**2 * v * pt.exp(-rate * v)
        )
    )
