"""Exact steps on units and on sets of rows: what bounds their log-likelihoods, and how sharply."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from local_variables import LOCAL_VARIABLES
from scipy.special import expit

import pymc_subsample as pms
from pymc_subsample.samplers.scalable.forecast import remainders

UNITS = 600
rng = np.random.default_rng(5)


def classes():
    unit = np.repeat(np.arange(UNITS), 5)
    x, late = rng.normal(size=len(unit)), rng.random(UNITS) < 0.4
    y = rng.random(len(unit)) < expit(np.where(late[unit], 1.2, -1.2) + 0.5 * x)
    with pm.Model() as model:
        share, b = pm.Beta("share", 2, 2), pm.Normal("b")
        low, gap = pm.Normal("low"), pm.LogNormal("gap", 0.5, 0.5)
        kind = pm.Bernoulli("kind", share, shape=UNITS)
        pm.Bernoulli("y", logit_p=low + gap * kind[unit] + b * x, observed=y)
    return model


def sets():
    sizes = rng.integers(2, 7, UNITS)
    of, X = np.repeat(np.arange(UNITS), sizes), rng.normal(size=(sizes.sum(), 3))
    u = X @ [0.8, -0.5, 0.3] + rng.gumbel(size=len(of))
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    chosen = np.lexsort((-u, of))[first]
    with pm.Model() as model:
        utility = pt.dot(X, pm.Normal("b", shape=3))
        total = pt.zeros(UNITS)[of].inc(pt.exp(utility))
        pm.Potential("choice", utility[chosen] - pt.log(total))
    return model


# Models, the largest share of units that may decide on a proposal, that which may be read for every
# one, and how many times as large as what some points show a bound may be: sites where nothing was
# seen are in one of two states, whose enclosures have lost what the states have in common.
MODELS = {
    "classes": (classes, 0.25, 0.1, 10),
    "sets": (sets, 0.01, 0.1, 10),
    "occupancy": (lambda: LOCAL_VARIABLES["occupancy"][0](UNITS), 0.6, 0.3, 20),
}


def largest_remainders(step, points=200):
    """Return what bounds hold of each unit, and the largest of these that some points show."""
    table, center, expansion = step.bounds.table, step.reference.center, step.deciding.expansion
    bound = np.full(expansion.n_rows, np.nan)
    bound[table.order] = table.bound
    [elements], [metric] = table.elements, table.metric
    u = np.random.default_rng(0).normal(size=(points, len(elements)))
    far = table.limits[0] * np.linspace(0.1, 1.0, points)[:, None]
    phi = np.tile(center, (points, 1))
    moved = np.linalg.solve(metric, (far * u / np.linalg.norm(u, axis=1, keepdims=True)).T).T
    phi[:, elements] += moved
    left = np.concatenate([*expansion.over(remainders, center, phi)], axis=1)
    return bound, (np.abs(left) / far**table.power).max(axis=0)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", MODELS)
def test_bounds_of_units_hold_and_few_of_these_decide(name):
    make, share, always, looser = MODELS[name]
    step = pms.ScalableMH(model=make())
    assert step.n_rows == UNITS
    assert step.bounds.per_decision < share * UNITS
    bound, found = largest_remainders(step)
    drawn = np.isfinite(bound)
    assert drawn.mean() > 1 - always
    assert np.all(found[drawn] <= bound[drawn] * (1 + 1e-6) + 1e-9)
    # A part of them would not do.
    assert np.any(looser * found[drawn] > bound[drawn])


@pytest.mark.costly
def test_auto_takes_exact_draws_of_choices_among_sets():
    assert isinstance(pms.auto(model=sets()), pms.ScalableMH)


@pytest.mark.costly
@pytest.mark.parametrize("name", ["classes", "sets"])
def test_few_units_are_bright(name):
    """Bounds are verified on all units at set-up; of loose ones most would be bright."""
    step = pms.FireflyMC(model=MODELS[name][0]())
    assert (step.n_rows, step.bound_taken) == (UNITS, "softmax")
    assert 0.0 < step.expected_bright < 0.05 * UNITS
