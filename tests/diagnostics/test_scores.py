"""Gradients of the log posterior, and the moments that follow from them."""

import numpy as np
import pytest
from models import MODELS

from pymc_subsample.diagnostics import scores
from pymc_subsample.diagnostics.look import log_posteriors
from pymc_subsample.expansion import expand
from pymc_subsample.model import TallModel


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    "name", ["bernoulli_logit", "small_unsubsampled_outcome", "two_layer_network", "normal_mixture"]
)
def test_log_posterior_and_gradient_are_those_of_the_model(name):
    model = MODELS[name](np.random.default_rng(1))
    tall = TallModel(model)
    start = tall.ravel(tall.initial_point)
    thetas = start + 0.1 * np.random.default_rng(0).normal(size=(3, tall.size))
    logp, gradient = log_posteriors(expand(tall, 0), thetas)
    exact = model.compile_logp(mode="FAST_COMPILE")
    slope = model.compile_dlogp(mode="FAST_COMPILE")
    for theta, value, grad in zip(thetas, logp, gradient, strict=True):
        assert value == pytest.approx(exact(tall.unravel(theta)), rel=1e-10)
        np.testing.assert_allclose(grad, slope(tall.unravel(theta)), rtol=1e-7)


@pytest.mark.parametrize("stretch", [1.0, 1.5])
def test_stein_moments_are_exact_for_a_normal_posterior_wherever_the_draws_are(stretch):
    rng = np.random.default_rng(9)
    cov = np.array([[2.0, 0.6], [0.6, 0.5]])
    mean = np.array([1.0, -3.0])
    theta = 4 + stretch * rng.normal(size=(60, 2))
    score = -np.linalg.solve(cov, (theta - mean).T).T
    own = np.diag(cov)
    found, doubted = scores.target(theta, score @ cov, own, 0.01 * own)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(found.sd, np.sqrt(np.diag(cov)), rtol=1e-10)
    np.testing.assert_allclose([doubted.mean, doubted.sd], [found.mean, found.sd], rtol=1e-10)
