"""The difference estimator, its error and the choice of the subsample, by exact enumeration."""

from itertools import product

import numba
import numpy as np
import pytest
from scipy.special import gammaln, logsumexp

from pymc_subsample.expansion.estimators import (
    PERTURBATION_BOUND,
    ROW_BOUND,
    SMALLEST_SUBSAMPLE,
    VARIANCE_BOUND,
    ResidualMoments,
    choose_n_blocks,
    choose_subsample_size,
    moments_from_sums,
)
from pymc_subsample.kernels.estimates import moments as subsample_moments

RESIDUALS = np.array([0.3, -1.2, 0.05, 2.0, -0.4, 0.7])


def moments_of(d):
    return moments_from_sums(np.array([[np.sum(d**p)] for p in range(1, 5)]), len(d))


def all_subsamples(n, m):
    return np.array(list(product(range(n), repeat=m)))


def estimates(d, m, temperature=1.0):
    """Sum estimate and estimated variance on every subsample of m rows."""
    weight = len(d) / (m * temperature)
    drawn = d[all_subsamples(len(d), m)]
    centred = drawn - drawn.mean(axis=1, keepdims=True)
    return weight * drawn.sum(axis=1), weight**2 * (centred**2).sum(axis=1)


def log_expectation(d, m):
    """Exact log E[exp(lhat - s2/2)] - l, from the m-fold multinomial over the rows."""
    n, weight = len(d), len(d) / m
    d = d - d.mean()
    counts = np.array([c for c in product(range(m + 1), repeat=n - 1) if sum(c) <= m])
    counts = np.column_stack([counts, m - counts.sum(axis=1)])
    log_probability = gammaln(m + 1) - gammaln(counts + 1).sum(axis=1) - m * np.log(n)
    total = counts @ d
    spread = counts @ d**2 - total**2 / m
    return logsumexp(log_probability + weight * total - weight**2 * spread / 2)


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_estimate_is_unbiased_and_has_the_stated_variance(m, temperature):
    d = RESIDUALS
    total, variance = estimates(d, m, temperature)
    exact = moments_of(d).variance(m, temperature)[0]
    np.testing.assert_allclose(total.mean(), d.sum() / temperature, rtol=1e-13)
    np.testing.assert_allclose(total.var(), exact, rtol=1e-13)
    np.testing.assert_allclose(variance.mean(), exact * (m - 1) / m, rtol=1e-13)


def test_estimated_moments_on_every_subsample():
    m, weight = 3, 2.0
    found = numba.njit(lambda d, weight: subsample_moments(d, weight))
    for subsample in all_subsamples(6, m):
        d = RESIDUALS[subsample]
        centred = d - d.mean()
        expected = [weight**p * np.sum(x**p) for p, x in ((1, d), (2, centred))]
        np.testing.assert_allclose(found(d, weight), expected, rtol=1e-12, atol=1e-12)


def test_moments_from_sums_equal_central_moments():
    d = np.random.default_rng(1).gamma(2.0, size=(50, 3)) + [0.0, 5.0, -3.0]
    sums = np.array([np.sum(d**p, axis=0) for p in range(1, 5)])
    found = moments_from_sums(sums, 50)
    for p, values in ((2, found.second), (3, found.third), (4, found.fourth)):
        np.testing.assert_allclose(values, ((d - d.mean(axis=0)) ** p).mean(axis=0), rtol=1e-9)
    assert found.n_rows == 50


def test_moments_of_equal_residuals_are_zero():
    found = moments_of(np.full(7, 0.1))
    assert 0 <= found.second[0] < 1e-15
    assert 0 <= found.fourth[0] < 1e-15


# The expansion of log E[exp(lhat - s2 / 2)] behind `perturbation`, by enumeration. With residuals
# scaled by epsilon its terms are the coefficients of powers 2, 3 and 4 of epsilon.


@pytest.mark.parametrize("m", [2, 3, 5])
def test_expansion_of_the_log_expectation(m):
    d, n = RESIDUALS, len(RESIDUALS)
    epsilon = 2e-3
    forth, back = log_expectation(epsilon * d, m), log_expectation(-epsilon * d, m)
    exact = moments_of(d)
    variance = n**2 * exact.second[0] / m
    third = n**3 * exact.third[0] / m**2
    np.testing.assert_allclose((forth + back) / 2 / epsilon**2, variance / (2 * m), rtol=1e-3)
    np.testing.assert_allclose(
        (forth - back) / 2 / epsilon**3, -third * (1 / 3 - 1 / (2 * m)), rtol=1e-3
    )


def second_order(exact, m):
    """Error of the log expectation up to terms of order 1/m at constant variance."""
    n = exact.n_rows
    variance = n**2 * exact.second[0] / m
    third = n**3 * exact.third[0] / m**2
    fourth = n**4 * exact.fourth[0] / m**3
    return -third / 3 + (variance + variance**2) / (2 * m) - fourth / 12


@pytest.mark.parametrize("variance", [0.25, 1.0])
@pytest.mark.parametrize(
    "shape",
    [[-1.0, 1.0, 1.0, -1.0], [0.0, 0.0, 1.0, -2.0], [1.0, 1.0, 1.0, -3.0], [-1.0, 0.0, 0.0, 4.0]],
    ids=["two points", "skewed", "skewed to the left", "skewed to the right"],
)
def test_perturbation_bounds_the_error_of_large_subsamples(shape, variance):
    m, shape = 80, np.array(shape)
    d = shape * np.sqrt(variance / moments_of(shape).variance(m)[0])
    exact, error = moments_of(d), log_expectation(d, m)
    np.testing.assert_allclose(error, second_order(exact, m), atol=0.1 * abs(error) + 2e-4)
    bound = exact.perturbation(m)[0]
    assert abs(error) <= bound
    assert bound <= 3 * abs(error) + 2 / m


def test_perturbation_of_normal_residuals():
    # log E is -(m - 1)/2 log(1 + v/m) + v/2 for a normal estimate of variance v.
    n, m = 1000, 100
    for variance in (0.1, 0.5, 1.0):
        second = variance * m / n**2
        exact = ResidualMoments(*(np.array([x]) for x in (second, 0.0, 3 * second**2)), n)
        error = variance / 2 - (m - 1) / 2 * np.log1p(variance / m)
        np.testing.assert_allclose(second_order(exact, m), error, atol=2 / m**2)
        assert error <= exact.perturbation(m)[0] <= 3 * error


def test_temperature_divides_residuals():
    d, m, temperature = RESIDUALS, 40, 3.0
    hot, cold = moments_of(d), moments_of(d / temperature)
    np.testing.assert_allclose(hot.variance(m, temperature), cold.variance(m))
    np.testing.assert_allclose(hot.perturbation(m, temperature), cold.perturbation(m))


@pytest.mark.parametrize("scale", [1e-6, 1e-4, 3e-4, 1e-3, 1e-2, 1.0])
@pytest.mark.parametrize("temperature", [1.0, 4.0])
@pytest.mark.parametrize("tails", ["normal", "outliers"])
def test_subsample_size_keeps_both_bounds_and_is_the_smallest(scale, temperature, tails):
    rng = np.random.default_rng(2)
    n = 100_000
    d = scale * rng.normal(size=(n, 2))
    if tails == "outliers":
        d[:20] *= 100
    sums = np.array([np.sum(d**p, axis=0) for p in range(1, 5)])
    exact = moments_from_sums(sums, n)
    m = choose_subsample_size(exact, temperature)

    def within(m):
        return (
            np.max(exact.variance(m, temperature)) <= 0.75 * VARIANCE_BOUND
            and np.max(exact.perturbation(m, temperature)) <= PERTURBATION_BOUND
        )

    assert SMALLEST_SUBSAMPLE <= m <= n
    assert m == n or within(m)
    smaller = int(np.floor((m - 1) / 1.1)) - 1
    assert m == SMALLEST_SUBSAMPLE or not within(smaller)


def test_subsample_size_bounds_what_one_row_adds():
    n, second = 1_000_000, 1e-12
    quiet = [np.array([x]) for x in (second, 0.0, 3 * second**2)]
    for largest, temperature, expected in ((0.0, 1.0, 100), (1e-3, 1.0, 2000), (1e-3, 4.0, 500)):
        moments = ResidualMoments(*quiet, n, largest=largest)
        assert choose_subsample_size(moments, temperature) == expected
        assert n * largest / (expected * temperature) <= ROW_BOUND


def test_all_rows_where_moments_overflow():
    infinite = np.array([np.nan])
    assert choose_subsample_size(ResidualMoments(infinite, infinite, infinite, 1000)) == 1000


def test_subsample_size_with_few_rows():
    few = moments_of(0.5 * np.random.default_rng(3).normal(size=40))
    assert choose_subsample_size(few) == 40


@pytest.mark.parametrize("m", [1, 7, 10, 100, 101, 110, 250, 1000, 1024, 99_990])
@pytest.mark.parametrize("variance", [0.0, 1e-3, 0.3, 1.0, 50.0])
def test_blocks_divide_the_subsample(m, variance):
    blocks = choose_n_blocks(m, variance)
    assert m % blocks == 0
    assert 1 <= blocks <= 200
    if m % 100 == 0:
        assert 10 <= blocks <= 100
        assert blocks >= 25 or variance < 1


@pytest.mark.parametrize(("m", "least"), [(101, 5), (97, 5), (4, 4), (2, 2), (211, 1), (422, 2)])
def test_few_blocks_only_where_nothing_else_divides(m, least):
    blocks = choose_n_blocks(m, 0.0)
    assert blocks >= least
    assert blocks == least or least == 5


def test_more_blocks_for_noisier_estimates():
    blocks = [choose_n_blocks(1000, variance) for variance in (0.01, 0.5, 1.0, 3.0)]
    assert blocks == sorted(blocks)
    assert blocks[0] < blocks[-1]
