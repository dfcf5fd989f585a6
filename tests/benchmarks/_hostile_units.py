"""Models of the hostile trial whose effects are integrated: units that tell little, or too much.

Truths sum over each unit's effect by a fine mesh, on counts: no nodes that follow a mode.
"""

from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from _hostile import NO_BOUND, draws, target
from _hostile_truth import importance
from scipy import stats
from scipy.special import expit

FAMILY = "effects of many levels"
NORMAL = np.linspace(-10, 10, 1_001), stats.norm.logpdf


def collapsed(hyper, terms, effects=NORMAL, spread=lambda points: points):
    """Posterior of the globals alone, by a sum over the mesh `spread(points)` of every effect.

    `hyper` makes the globals; `terms(z, *globals)` are log-likelihoods (units, points) and how
    often each unit occurs; `effects` has the mesh's points and the effects' log density.
    """

    def truth(_):
        points, density = effects
        z = spread(points)
        weight = density(z) + np.log(np.gradient(z, points)) + np.log(points[1] - points[0])
        with pm.Model() as model:
            each, times = terms(z, *hyper())
            pm.Potential("units", pt.sum(times * pt.logsumexp(each + weight, axis=1)))
        return importance()(model)

    return truth


def counts_of(unit, y):
    """Rows and ones of each kind of unit, and how many units are of the kind."""
    kinds = np.column_stack([np.bincount(unit), np.bincount(unit, weights=y)])
    kinds, times = np.unique(kinds, axis=0, return_counts=True)
    return kinds[:, :1], kinds[:, 1:], times


def of_counts(unit, y, cumulant):
    """Terms of rows that are binary (softplus), or Poisson (exp), up to a constant."""
    n, total, times = counts_of(unit, y)

    def terms(z, mu, tau):
        eta = mu + tau * z
        return total * eta - n * cumulant(eta), times

    return terms


binary = partial(of_counts, cumulant=pt.softplus)
poisson = partial(of_counts, cumulant=pt.exp)


def logistic_panel(seed, unit, mu, tau):
    rng, _ = draws(seed, 1)
    z = rng.normal(size=unit.max() + 1)
    return unit, (rng.random(len(unit)) < expit(mu + tau * z[unit])).astype(float)


def common():
    return pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)


def non_centred(unit, y, hyper):
    with pm.Model() as model:
        mu, tau = hyper()
        z = pm.Normal("z", 0, 1, shape=int(unit.max()) + 1)
        pm.Bernoulli("y", logit_p=mu + tau * z[unit], observed=y)
    return model


THREE_ROWS = logistic_panel(81, np.repeat(np.arange(1_500), 3), -0.5, 0.8)


@target(FAMILY, collapsed(common, binary(*THREE_ROWS)), healthy=True, unsuitable=NO_BOUND)
def units_of_three_rows():
    """Fifteen hundred units of three binary rows."""
    return non_centred(*THREE_ROWS, common)


ALIKE = logistic_panel(82, np.repeat(np.arange(500), 8), 0.3, 0.0)


@target(FAMILY, collapsed(common, binary(*ALIKE)))
def units_that_do_not_differ():
    """The scale of the effects is zero."""
    return non_centred(*ALIKE, common)


def wide():
    return pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)


APART = logistic_panel(83, np.repeat(np.arange(500), 6), 0.0, 8.0)


@target(FAMILY, collapsed(wide, binary(*APART), (np.linspace(-8, 8, 4_001), stats.norm.logpdf)))
def units_far_apart():
    """Most units have outcomes that are all alike: the scale is eight logits."""
    return non_centred(*APART, wide)


def bounded():
    return pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 10)


SEPARATED = np.repeat(np.arange(400), 5), np.repeat(np.arange(400) % 2, 5).astype(float)


@target(
    FAMILY,
    collapsed(bounded, binary(*SEPARATED), (np.linspace(-8, 8, 8_001), stats.norm.logpdf)),
)
def separated_units():
    """Each unit has outcomes that are all alike: the prior alone ends the scale."""
    return non_centred(*SEPARATED, bounded)


def _squares():
    rng, _ = draws(84, 1)
    unit = np.repeat(np.arange(400), 4)
    return unit, rng.normal(size=400)[unit] ** 2 + 0.7 * rng.normal(size=1_600)


def _scale():
    return pm.HalfNormal("tau", 2), pm.HalfNormal("sigma", 1)


def _squared_terms(z, tau, sigma):
    unit, y = _squares()
    n, total = (np.bincount(unit, weights=w)[:, None] for w in (None, y))
    squares = np.bincount(unit, weights=y**2)[:, None]
    mean = tau * z**2
    residual = squares - 2 * total * mean + n * mean**2
    return -n * pt.log(sigma) - residual / (2 * sigma**2), 1.0


@target(FAMILY, collapsed(_scale, _squared_terms, (np.linspace(-8, 8, 401), stats.norm.logpdf)))
def bimodal_units():
    """Rows tell the square of a unit's effect: two modes in each unit."""
    unit, y = _squares()
    with pm.Model() as model:
        tau, sigma = _scale()
        z = pm.Normal("z", 0, 1, shape=400)
        pm.Normal("y", tau * z[unit] ** 2, sigma, observed=y)
    return model


FIVE = logistic_panel(85, np.repeat(np.arange(5), 600), -0.5, 1.0)


@target(FAMILY, collapsed(common, binary(*FIVE)))
def five_units():
    """Five units of hundreds of rows: too few to draw from."""
    return non_centred(*FIVE, common)


HALF = logistic_panel(86, np.r_[np.zeros(3_000, int), np.repeat(np.arange(1, 601), 5)], 0.5, 1.0)


@target(FAMILY, collapsed(common, binary(*HALF), (np.linspace(-8, 8, 4_001), stats.norm.logpdf)))
def half_in_one_unit():
    """One unit has half of the rows, six hundred the others; centred."""
    unit, y = HALF
    with pm.Model() as model:
        mu, tau = common()
        z = pm.Normal("z", mu, tau, shape=601)
        pm.Bernoulli("y", logit_p=z[unit], observed=y)
    return model


def _an_effect_per_row():
    rng, _ = draws(87, 1)
    return np.arange(4_000), rng.poisson(np.exp(0.5 + 0.6 * rng.normal(size=4_000)))


@target(FAMILY, collapsed(common, poisson(*_an_effect_per_row())), healthy=True,
        unsuitable=NO_BOUND)  # fmt: skip
def counts_with_an_effect_each():
    """Overdispersed counts: a normal effect for each row."""
    _, y = _an_effect_per_row()
    with pm.Model() as model:
        mu, tau = common()
        z = pm.Normal("z", mu, tau, shape=4_000)
        pm.Poisson("y", pm.math.exp(z), observed=y)
    return model


def _heavy():
    rng, _ = draws(88, 1)
    unit = np.repeat(np.arange(400), 5)
    effect = stats.t.rvs(2.5, size=400, random_state=rng)
    effect[0] = 60.0
    return unit, 2.0 + effect[unit] + rng.normal(size=2_000)


def _heavy_hyper():
    return pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 3), pm.HalfNormal("sigma", 2)


def _heavy_terms(z, mu, tau, sigma):
    unit, y = _heavy()
    n, total = (np.bincount(unit, weights=w)[:, None] for w in (None, y))
    squares = np.bincount(unit, weights=y**2)[:, None]
    mean = mu + tau * z
    residual = squares - 2 * total * mean + n * mean**2
    return -n * pt.log(sigma) - residual / (2 * sigma**2), 1.0


@target(
    FAMILY,
    collapsed(
        _heavy_hyper, _heavy_terms, (np.linspace(-9, 9, 1_801), stats.t(2.5).logpdf), np.sinh
    ),
)
def heavy_effects():
    """Student-t effects, one of them sixty scales out."""
    unit, y = _heavy()
    with pm.Model() as model:
        mu, tau, sigma = _heavy_hyper()
        z = pm.StudentT("z", nu=2.5, mu=mu, sigma=tau, shape=400)
        pm.Normal("y", z[unit], sigma, observed=y)
    return model
