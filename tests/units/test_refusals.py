"""What is not integrated out, with its reason, and what belongs to a level through a prior."""

import logging

import numpy as np
import pymc as pm
import pytest

import pymc_subsample as pms
from pymc_subsample.model import TallModel
from pymc_subsample.units.discovery import find_groupings
from pymc_subsample.units.reading import read
from pymc_subsample.units.sampled import units_of

LEVELS = 1_000
INDEX = np.repeat(np.arange(LEVELS), 2)
ROWS = np.random.default_rng(0).normal(size=2 * LEVELS)


@pytest.mark.parametrize("spelling", ["in the prior", "in the rows"])
def test_a_scale_of_each_level_is_local_with_its_effect(spelling):
    with pm.Model() as model:
        lam, tau = pm.HalfCauchy("lam", 1, shape=LEVELS), pm.HalfNormal("tau")
        z = pm.Normal("z", 0, tau * lam if spelling == "in the prior" else tau, shape=LEVELS)
        pm.Normal("y", z[INDEX] if spelling == "in the prior" else (z * lam)[INDEX], observed=ROWS)
    [grouping], reasons = find_groupings(read(model))
    assert sorted(grouping.names) == ["lam", "z"]
    assert list(reasons) == ["tau"]


@pytest.mark.parametrize(
    ("reader", "said"),
    [("rows", "'z' is read as a whole by each row in 'few'"), ("potential", "'z' is read by 'p'")],
)
def test_what_reads_effects_otherwise_is_said(reader, said, caplog):
    with pm.Model() as model:
        z = pm.Normal("z", pm.Normal("mu"), pm.HalfNormal("tau"), shape=LEVELS)
        pm.Normal("y", z[INDEX], observed=ROWS)
        if reader == "rows":
            pm.Normal("few", z[:5].sum(), observed=np.ones(3))
        else:
            pm.Potential("p", -(z.sum() ** 2))
    with caplog.at_level(logging.INFO, "pymc.subsample"):
        assert units_of(model, "auto", "HMCECS") is None
    assert f"HMCECS: not integrated out: {said}" in caplog.text


def test_levels_beyond_those_of_the_variable_are_refused_by_name():
    with pm.Model() as model:
        z = pm.Normal("z", 0, pm.HalfNormal("tau"), shape=LEVELS)
        pm.Normal("y", z[3 * INDEX], observed=ROWS)
    with pytest.raises(pms.TallModelError, match=r"index of 'z' .* from 0 to 2,997, .* 1,000 ele"):
        pms.marginalize(model)


def narrow():
    """Return a model in which the square of one level is measured with three digits."""
    index = np.r_[np.repeat(np.arange(60), 2), 0]
    linear = np.r_[np.ones(120), 0.0]
    rows = np.r_[np.random.default_rng(2).normal(0.3, 1, 120), 0.12]
    rows[:2] = 0.1
    with pm.Model() as model:
        z = pm.Normal("z", pm.Normal("mu"), 1.0, shape=60)
        mean = linear * z[index] + (1 - linear) * z[index] ** 2
        pm.Normal("y", mean, np.where(linear > 0, 0.7, 0.002), observed=rows)
    return model


@pytest.mark.costly
def test_a_second_mode_that_is_narrow_is_refused():
    with pytest.raises(pms.TallModelError, match="Level 0 of 'z' has about"):
        pms.marginalize(narrow(), "z")


def of_rows(shape, prior=pm.Normal):
    """Return a model with an effect of each of few rows, of one outcome or several."""
    n = shape[0]
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", shape=shape[1:]), pm.HalfNormal("tau")
        z = prior("z", shape=n)
        rows = np.random.default_rng(0).poisson(1.0, shape)
        pm.Poisson(
            "y", pm.math.exp(mu + tau * z.reshape((n, *[1] * (len(shape) - 1)))), observed=rows
        )
    return model


@pytest.mark.costly
@pytest.mark.parametrize("shape", [(8,), (30, 3)])
def test_effects_of_few_single_rows_are_integrated(shape):
    """As parameters they would be refused, however few they are."""
    assert units_of(of_rows(shape), "auto", "HMCECS").names == ["z"]


@pytest.mark.costly
def test_effects_of_single_rows_that_cannot_be_integrated_are_refused_for_that_reason():
    def apart(name, shape):
        return pm.NormalMixture(name, [0.5, 0.5], [-4, 4], [0.1, 0.1], shape=shape)

    with pytest.raises(pms.TallModelError, match="of its probability given its rows far from"):
        units_of(of_rows((50,), apart), "auto", "HMCECS")


def test_what_keeps_a_variable_of_each_row_is_said():
    switches = of_rows((50,), lambda name, shape: pm.Bernoulli(name, 0.3, shape=shape))
    for model in (of_rows((50,)), switches):
        with pytest.raises(pms.TallModelError, match='a step does so with integrate="auto"'):
            TallModel(model)


def test_shapes_that_do_not_fit_are_named_as_of_a_model_without_units():
    level = np.repeat(np.arange(100), 3)
    with pm.Model() as model:
        z = pm.Normal("z", 0, pm.HalfNormal("tau"), shape=100)
        pm.Normal("y", z[level][:, None] + np.zeros((300, 2)), 1, observed=np.zeros((300, 3)))
    for reader in (pms.marginalize, TallModel):
        with pytest.raises(pms.TallModelError, match=r"'y' is observed with shape \(300, 3\)"):
            reader(model)
