"""Importance weights give the moments of the target, with honest errors."""

import numpy as np
import pytest
import scipy.stats

from pymc_subsample.diagnostics.reading_draws import spread
from pymc_subsample.diagnostics.weights import plain_moments, smooth, weighted_moments


def test_weighted_moments_are_those_of_the_target_with_honest_errors():
    """Draws of N(0.4, 1.3) weighed to N(0, 1): z-scores of 300 repetitions are standard normal."""
    rng = np.random.default_rng(4)
    z = []
    for _ in range(300):
        every = 0.4 + 1.3 * rng.normal(size=(4, 400, 1))
        at = spread(400, 4, 200)
        x = every[:, at, 0]
        log_ratio = scipy.stats.norm.logpdf(x) - scipy.stats.norm.logpdf(x, 0.4, 1.3)
        weights, k_hat = smooth(log_ratio - 1000)
        assert k_hat < 0.7
        found = weighted_moments(weights, every[:, at], every)
        raw = plain_moments(every)
        bias, sd_error = raw.mean - found.mean - 0.4, raw.sd / found.sd - 1.3
        z.append([
            found.mean / found.mean_mcse, (found.sd - 1) / found.sd_mcse, bias / found.bias_mcse,
            sd_error / found.sd_error_mcse / 1.3,
        ])  # fmt: skip
    z = np.array(z)[..., 0]
    assert np.all(np.abs(z.mean(axis=0)) < 0.4)
    assert np.all((z.std(axis=0) > 0.75) & (z.std(axis=0) < 1.35))


def test_signs_are_not_needed_by_the_weights():
    """Draws of p |Lhat|, Lhat = (1 + noise) L: raw moments need the sign, the others don't."""
    rng = np.random.default_rng(5)
    n = 40_000
    theta = rng.normal(size=n)
    noise = rng.normal(0.3 * theta, 0.8)  # mean of Lhat is not L, as where few rows dominate
    estimate = 1 + noise
    keep = rng.random(n) * 8 < np.abs(estimate)
    theta, estimate = theta[keep][:4000].reshape(2, 2000, 1), estimate[keep][:4000].reshape(2, 2000)
    weights, _ = smooth(np.log(np.maximum(1 / np.abs(estimate), 1e-12)))
    found = weighted_moments(np.minimum(weights, 50), theta, theta)
    raw = plain_moments(theta, np.sign(estimate))
    assert raw.mean[0] == pytest.approx(0.3, abs=5 * raw.mean_mcse[0])
    assert raw.mean[0] - plain_moments(theta).mean[0] > 2 * raw.mean_mcse[0]
    assert abs(found.mean[0]) < 5 * found.mean_mcse[0]


def test_hopeless_weights_say_so():
    weights, k_hat = smooth(np.r_[np.zeros(99), 500.0].reshape(2, 50))
    assert k_hat > 1
    assert weights.max() == pytest.approx(100, rel=1e-6)
    equal, none = smooth(np.full((2, 50), -1e6))
    assert np.all(equal == 1)
    assert none == -np.inf
