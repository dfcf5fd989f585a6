"""P-values of draws are uniform for right draws, and small for wrong ones."""

import numpy as np
import pytest
import scipy.stats
from scipy.special import digamma, polygamma

from pymc_subsample.diagnostics import goodness
from pymc_subsample.diagnostics.reading_draws import spread


def ar(rng, phi, chains, draws, d):
    noise = rng.normal(size=(chains, draws, d))
    x = noise.copy()
    for t in range(1, draws):
        x[:, t] = phi * x[:, t - 1] + np.sqrt(1 - phi**2) * noise[:, t]
    return x


def log_gamma(u, a=20.0):
    """Standard normal to log Gamma(a), whose score is a - exp(x); and its exact moments."""
    x = np.log(scipy.stats.gamma.ppf(scipy.stats.norm.cdf(u), a))
    return x, digamma(a), np.sqrt(polygamma(1, a))


def p_values(rng, stretch=1.0, shift=0.0, phi=0.4, d=3, a=20.0):
    x, mean, sd = log_gamma(ar(rng, phi, 2, 500, d), a)
    every = mean + stretch * (x - mean) + shift * sd
    theta = every[:, spread(500, 2, 200)]
    score = a - np.exp(theta)
    guess = np.diag(np.exp(-every.mean(axis=(0, 1))))
    test = goodness.moment_test(theta, score, every, guess)
    shape = goodness.shape_test(theta, score, guess, rng)
    return test, shape, goodness.combined(test, shape)


@pytest.mark.costly
def test_p_values_are_uniform_for_draws_of_the_posterior():
    """A skewed target, dependent draws; each bound fails a right test once in 1e4."""
    rng = np.random.default_rng(6)
    p = np.array([p_values(rng) for _ in range(100)])
    for each in p.T:
        assert scipy.stats.kstest(each, "uniform").pvalue > 1e-4
        assert np.sum(each < 0.05) <= scipy.stats.binom.isf(1e-4, 100, 0.05)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_scores_beyond_all_bounds_have_a_p_value():
    """As of counts whose rates are wrong by many powers of ten, whose squares' squares overflow."""
    rng = np.random.default_rng(8)
    theta = rng.standard_normal((2, 300, 3))
    score = -theta * 1e80
    assert goodness.moment_test(theta, score, theta, np.eye(3)) < 1e-10


@pytest.mark.parametrize(("stretch", "shift"), [(1.15, 0.0), (1 / 1.15, 0.0), (1.0, 0.3)])
def test_p_values_are_small_where_draws_are_off(stretch, shift):
    rng = np.random.default_rng(7)
    p = np.array([p_values(rng, stretch, shift)[2] for _ in range(12)])
    assert np.all(p < 0.01)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(("draws", "d", "phi"), [(50, 10, 0.0), (50, 30, 0.2), (250, 10, 0.6)])
def test_p_values_of_short_chains_are_not_too_small(draws, d, phi):
    """Four chains, all of whose draws are audited or few; each bound fails once in 1e4."""
    rng = np.random.default_rng(16)
    found = []
    for _ in range(100):
        every, _, _ = log_gamma(ar(rng, phi, 4, draws, d), 5.0)
        theta = every[:, spread(draws, 4, 200)]
        score = 5.0 - np.exp(theta)
        guess = np.eye(d) / 5.0
        test = goodness.moment_test(theta, score, every, guess)
        found.append(goodness.combined(test, goodness.shape_test(theta, score, guess, rng)))
    p = np.array(found)
    assert np.mean(np.isfinite(p)) > 0.5
    for level in (0.05, 0.01):
        assert np.sum(p < level) <= scipy.stats.binom.isf(1e-4, 100, level)


def test_p_values_see_errors_in_short_chains():
    rng = np.random.default_rng(17)
    for stretch, shift in ((1.3, 0.0), (1.0, 0.4)):
        x, mean, sd = log_gamma(ar(rng, 0.0, 4, 50, 10), 20.0)
        every = mean + stretch * (x - mean) + shift * sd
        assert goodness.moment_test(every, 20.0 - np.exp(every), every, np.eye(10) / 20) < 1e-3


def test_too_few_effective_draws_have_no_p_value():
    rng = np.random.default_rng(18)
    x = ar(rng, 0.97, 4, 100, 3)
    assert np.isnan(goodness.moment_test(x, -x, x, np.eye(3)))
    assert np.isnan(goodness.shape_test(x, -x, np.eye(3), rng))
    assert np.isnan(goodness.combined(np.nan, np.nan))
    assert goodness.combined(0.3, np.nan) == pytest.approx(0.3)


def test_kernel_discrepancy_sees_a_wrong_shape():
    """Uniform draws of the target's mean and variance: no moment tells, the kernel does."""
    rng = np.random.default_rng(8)
    x = rng.uniform(-np.sqrt(3), np.sqrt(3), size=(2, 400, 1))
    assert goodness.shape_test(x, -x, np.eye(1), rng) < 0.01
    right = rng.normal(size=(2, 400, 1))
    assert goodness.shape_test(right, -right, np.eye(1), rng) > 0.01
