"""A second mode of the posterior is found and reported."""

import logging

import numpy as np
import pymc as pm

import pymc_subsample as pms


def square(prior_mean, n=400):
    """Only the square of w meets the data."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=n)
    y = 1.5 * x + rng.normal(size=n)
    with pm.Model() as model:
        w = pm.Normal("w", prior_mean, 0.3 if prior_mean else 2.0, initval=0.5)
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", w**2 * x + b, 1.0, observed=y)
    return model


def test_mirrored_modes_are_reported(caplog):
    with caplog.at_level(logging.WARNING, "pymc.subsample"):
        pms.HMCECS(model=square(prior_mean=0))
    assert "at least two modes" in caplog.text
    assert "differ in w." in caplog.text


def test_a_single_mode_is_not(caplog):
    with caplog.at_level(logging.WARNING, "pymc.subsample"):
        step = pms.HMCECS(model=square(prior_mean=1.2))
    assert not caplog.text
    assert step.reference.theta[0] > 0


def test_the_higher_mode_becomes_the_reference():
    """Two clusters of rows, the smaller one at the start of the search."""
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(0, 0.2, 100), rng.normal(1.6, 0.2, 300)])
    with pm.Model() as model:
        a = pm.Normal("a", 0, 3, initval=0.0)
        near = pm.logp(pm.Normal.dist(a, 0.2), y)
        pm.Potential("y", pm.math.logaddexp(near, pm.logp(pm.Normal.dist(0, 10), y)))
    step = pms.HMCECS(model=model)
    assert abs(step.reference.theta[0] - 1.6) < 0.1
