"""Gradients from random rows, and what gradients at draws say of the curvature there."""

import numpy as np
import pymc as pm
import pytest
from scipy.stats import binom

from pymc_subsample.diagnostics.look import log_posteriors
from pymc_subsample.expansion import expand
from pymc_subsample.model import TallModel
from pymc_subsample.samplers.gradients.draw_gradients import least_curvature, look_at_random

REPEATS = 400


@pytest.fixture(scope="module")
def groups():
    """Counts in groups of 5 to 400 rows, whose effects have a scale."""
    rng = np.random.default_rng(2)
    group = np.repeat(np.arange(4), [5, 50, 400, 400])
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1)
        effect = pm.Normal("effect", 0, scale, shape=4)
        pm.Poisson("y", pm.math.exp(effect[group]), observed=rng.poisson(2.0, len(group)))
    return expand(TallModel(model), 0)


@pytest.mark.costly
def test_gradients_from_random_rows_are_unbiased_and_so_are_products(groups):
    thetas = np.random.default_rng(0).normal([0, 1, 1, 1, 1], 0.3, (6, 5))
    _, exact = log_posteriors(groups, thetas)
    looks = [look_at_random(groups, thetas, thetas[:0], 100, seed) for seed in range(REPEATS)]
    found = np.array([look.scores for look in looks])
    assert found.shape == (REPEATS, 2, *thetas.shape)
    for values, truth in (
        (found.mean(axis=1), exact),
        (found[:, 0] * found[:, 1], exact**2),
        (found[:, 0, :, 1:2] * found[:, 1], exact[:, 1:2] * exact),
    ):
        error = values.std(axis=0, ddof=1) / np.sqrt(REPEATS)
        # Thirty numbers: a normal one is as far away once in 10^5 tries, and these have tails.
        np.testing.assert_array_less(np.abs(values.mean(axis=0) - truth), 5.5 * error + 1e-9)


@pytest.mark.costly
@pytest.mark.parametrize("order", [0, 1, 2])
def test_what_random_rows_say_of_a_normal_is_right(order):
    """Without noise by control variates of order 2; log densities at far draws by all rows."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 300))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=2)
        pm.Normal("y", b[0] + b[1] * x, 1, observed=y)
    normal = expand(TallModel(model), order)
    thetas = rng.normal(0, 0.2, (6, 2))
    logp, score = log_posteriors(normal, thetas)
    looks = [look_at_random(normal, thetas[:4], thetas[4:], 40, k) for k in range(REPEATS)]
    np.testing.assert_allclose([look.logp[4:] for look in looks], [logp[4:]] * REPEATS)
    levels = np.array([look.logp[:4] for look in looks]) - logp[:4]
    scores = np.array([look.scores[0] for look in looks]) - score[:4]
    for error in (levels, scores):
        noise = error.std(axis=0, ddof=1) / np.sqrt(REPEATS)
        np.testing.assert_array_less(np.abs(error.mean(axis=0)), 5.5 * noise + 1e-9)
        assert (np.max(np.abs(error)) < 1e-9) == (order == 2)


def test_priors_are_not_estimated(groups):
    thetas = np.random.default_rng(0).normal([0, 1, 1, 1, 1], 0.3, (3, 5))
    _, exact = log_posteriors(groups, thetas)
    found = look_at_random(groups, thetas, thetas[:0], 100).scores
    np.testing.assert_allclose(found[:, :, 0], [exact[:, 0]] * 2)


@pytest.mark.parametrize("wide", [0.3, 1.0, 30.0])
def test_curvature_of_a_normal_is_known_from_any_draws(wide):
    curvature = np.array([0.1, 1.0, 50.0])
    z = 7 + wide * np.random.default_rng(1).standard_normal((100, 3))
    found = least_curvature(z, np.array([-curvature * (z - 6.5)] * 2), 1e-4)
    np.testing.assert_allclose(found, curvature)


@pytest.mark.parametrize("shape", [1.0, 5.0, 50.0])
def test_curvature_is_not_overestimated(shape):
    """Of logarithms of gamma variables, whose mean curvature is their shape."""
    rng = np.random.default_rng(3)
    above = 0
    for _ in range(500):
        z = np.log(rng.gamma(shape, size=(100, 1)))
        above += int(least_curvature(z, np.array([shape - np.exp(z)] * 2), 1e-3)[0] > shape)
    assert above <= binom.isf(1e-5, 500, 1e-3)


def test_draws_that_nothing_pulls_back_tell_nothing():
    z = np.random.default_rng(1).standard_normal((100, 1))
    assert least_curvature(z, np.array([z] * 2), 1e-3) == 0
    assert least_curvature(0 * z, np.zeros((2, 100, 1)), 1e-3) == 0
