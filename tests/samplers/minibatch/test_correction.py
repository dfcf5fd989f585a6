"""The correction of the Barker test against the logistic; the test's error by exact enumeration."""

import sys
from pathlib import Path

import numpy as np
import pytest
from barker_errors import (
    fourth_coefficient,
    leading_error,
    second_order_error,
    third_cumulant,
    worst_error,
)
from scipy.optimize import linprog
from scipy.special import expit, gammaln, ndtr
from scipy.stats import kstwo

from pymc_subsample.samplers.minibatch import correction
from pymc_subsample.samplers.minibatch.correction import BarkerCorrection, barker_correction

SCRIPTS = Path(__file__).parents[3] / "scripts"
CLAIMED = {1.0: 6e-8, 1.2: 2e-5, 1.3: 1.2e-4}
DELTAS = np.linspace(-6, 6, 25)


def direct_cdf(x, found: BarkerCorrection):
    """CDF of normal plus correction, summed over all mass points."""
    return ndtr((x[:, None] - found.support) / found.sigma) @ found.probabilities


# The correction.


@pytest.mark.costly
@pytest.mark.parametrize("sigma", [0.02, 0.4, 0.8, 1.0, 1.2, 1.3, 1.6])
def test_correction_is_a_symmetric_distribution(sigma):
    found = barker_correction(sigma)
    assert found.sigma == sigma
    assert np.all(np.diff(found.support) > 0)
    assert np.all(found.probabilities > 0)
    np.testing.assert_allclose(found.probabilities.sum(), 1, rtol=1e-13)
    np.testing.assert_allclose(found.support, -found.support[::-1], atol=1e-12)
    np.testing.assert_allclose(found.probabilities, found.probabilities[::-1], rtol=1e-12)


@pytest.mark.parametrize(("sigma", "claimed"), [(0.4, 1e-10), (0.8, 1e-10), *CLAIMED.items()])
def test_error_is_as_claimed_off_the_grid_and_in_the_tails(sigma, claimed):
    found = barker_correction(sigma)
    x = np.append(np.random.default_rng(2).uniform(-25, 25, 20_000), np.linspace(25, 99, 75))
    error = np.max(np.abs(direct_cdf(x, found) - expit(x)))
    assert 0.9 * found.error < error < 1.001 * found.error
    assert found.error < claimed
    np.testing.assert_allclose(found.total_cdf(x), direct_cdf(x, found), atol=1e-14)


def test_default_comes_from_a_table():
    assert barker_correction().sigma in correction._shipped_tables()


@pytest.mark.costly(cases=0)
def test_shipped_tables_are_what_the_script_makes(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import make_tables

    assert set(correction._shipped_tables()) == set(make_tables.SIGMAS) == set(CLAIMED)
    lines = make_tables.table().splitlines()[1:]
    made = np.array([[float(entry) for entry in line.split(",")] for line in lines])
    x = np.linspace(-30, 30, 2001)
    for sigma in make_tables.SIGMAS:
        shipped = barker_correction(sigma)
        _, support, probabilities = made[made[:, 0] == sigma].T
        fresh = correction._measured(sigma, support, probabilities, 0.05)
        # Solvers may differ in a mass point; the error and the distribution of the sum may not.
        np.testing.assert_allclose(fresh.error, shipped.error, rtol=0.02)
        between = np.max(np.abs(direct_cdf(x, fresh) - direct_cdf(x, shipped)))
        assert between < 0.2 * shipped.error
    del sys.modules["make_tables"]


def test_no_distribution_does_much_better():
    """A signed measure of norm one bounds the error of every distribution from below."""
    sigma = 1.2
    x, y = -np.arange(0.1, 20, 0.1), np.append(np.arange(0, 30, 0.02), 60.0)
    pair = (ndtr((x[:, None] - y) / sigma) + ndtr((x[:, None] + y) / sigma)) / 2
    least = pair - expit(x)[:, None]
    # Maximise the bound t over positive and negative parts: their sum with every y is t or more.
    found = linprog(
        np.append(np.zeros(2 * len(x)), -1.0),
        A_ub=np.column_stack((-least.T, least.T, np.ones(len(y)))),
        b_ub=np.zeros(len(y)),
        A_eq=[[1.0] * 2 * len(x) + [0.0]],
        b_eq=[1.0],
    )
    measure = found.x[: len(x)] - found.x[len(x) : -1]
    bound = np.min(measure @ least) / np.abs(measure).sum()
    error = barker_correction(sigma).error
    assert 0.97 * error < bound < error


@pytest.mark.costly(cases=0)
def test_error_grows_with_sigma():
    errors = [barker_correction(sigma).error for sigma in (0.8, 1.0, 1.15, 1.2, 1.3, 1.5, 1.6)]
    assert np.all(np.diff(errors) > 0)
    assert 3e-3 < errors[-1] < 5e-3


def test_cdf_of_the_correction_is_a_step_function():
    found = barker_correction(1.2)
    at = found.cdf(found.support)
    np.testing.assert_allclose(at, np.cumsum(found.probabilities), rtol=1e-14)
    np.testing.assert_allclose(
        at - found.cdf(found.support - 1e-9), found.probabilities, atol=1e-14
    )
    assert found.cdf(-100.0) == 0
    np.testing.assert_allclose(found.cdf([[100.0, 50.0]]), [[1.0, 1.0]], rtol=1e-13)


def ks_distance(draws):
    order = expit(np.sort(draws))
    steps = np.arange(len(order) + 1) / len(order)
    return max(np.max(steps[1:] - order), np.max(order - steps[:-1]))


@pytest.mark.parametrize("sigma", [0.4, 1.0, 1.2])
def test_draws_plus_normal_are_logistic(sigma):
    rng, n = np.random.default_rng(3), 400_000
    normal = rng.normal(scale=sigma, size=n)
    found = barker_correction(sigma)
    corrected = normal + found.rvs(n, rng)
    bound = kstwo.isf(1e-5, n)
    assert ks_distance(corrected) < bound + found.error
    # Without the correction, or with a normal one of the right variance, it is not.
    assert ks_distance(normal) > 5 * bound
    scale = np.sqrt(np.pi**2 / 3)
    assert ks_distance(normal / sigma * scale) > 5 * bound


def test_rvs_follows_scipy():
    found = barker_correction(1.0)
    assert np.ndim(found.rvs(random_state=1)) == 0
    assert found.rvs((2, 3), random_state=1).shape == (2, 3)
    np.testing.assert_array_equal(
        found.rvs(9, random_state=7), found.rvs(9, random_state=np.random.default_rng(7))
    )
    assert set(found.rvs(1000, 1)) <= set(found.support)


def test_tables_are_shared_and_read_only():
    found = barker_correction(1.0)
    assert barker_correction(1) is found
    with pytest.raises(ValueError, match="read-only"):
        found.probabilities[0] = 1.0


@pytest.mark.parametrize("sigma", [0, -1.0, np.nan, np.inf, 1.7, [1.0, 1.2], "1"])
def test_bad_sigma(sigma):
    with pytest.raises(ValueError, match=r"sigma is .*; expected .* above 0, at most 1\.6"):
        barker_correction(sigma)


# The error of the test, by enumeration of all batches of b rows from a few distinct values.


class Enumeration:
    """Estimates, estimated variances and probabilities of all batches; the sd of the estimate is s.

    `shares` of the values among n rows drawn without replacement, or among infinitely many.
    """

    def __init__(self, values, shares, b, s, n=None):
        values, shares = np.asarray(values, float), np.asarray(shares)
        centred = values - shares @ values
        second, third, fourth = (shares @ centred**p for p in (2, 3, 4))
        self.fraction = 0.0 if n is None else b / n
        self.skewness = third / second**1.5
        self.kurtosis = fourth / second**2 - 3
        counts = np.array(np.meshgrid(*[np.arange(b + 1)] * (len(values) - 1))).reshape(
            len(values) - 1, -1
        )
        counts = np.vstack([counts, b - counts.sum(axis=0)])
        if n is None:
            counts = counts[:, np.all(counts >= 0, axis=0)]
            log_p = gammaln(b + 1) + np.sum(
                counts * np.log(shares)[:, None] - gammaln(counts + 1), axis=0
            )
            unit = second / b
        else:
            rows = np.round(n * shares)[:, None]
            assert rows.sum() == n
            np.testing.assert_allclose(rows[:, 0], n * shares)
            counts = counts[:, np.all((counts >= 0) & (counts <= rows), axis=0)]

            def log_choose(n, k):
                return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)

            log_p = log_choose(rows, counts).sum(axis=0) - log_choose(n, b)
            unit = (1 - self.fraction) * second * n / (n - 1) / b
        x = centred * s / np.sqrt(unit)
        self.p = np.exp(log_p)
        self.e = x @ counts / b
        spread = (x**2 @ counts / b - self.e**2) * b / (b - 1)
        self.s2 = (1 - self.fraction) * spread / b
        self.b, self.s = b, s

    def error(self, table, variance=None):
        """P(accept) - F over `DELTAS`."""
        variance = self.s2 if variance is None else variance
        sd = np.sqrt(np.maximum(table.sigma**2 - variance, 1e-12))
        accept = [
            sum(
                w * (self.p @ ndtr((delta + self.e + point) / sd))
                for point, w in zip(table.support, table.probabilities, strict=True)
            )
            for delta in DELTAS
        ]
        return np.array(accept) - expit(DELTAS)

    def formula(self, terms):
        k = third_cumulant(self.skewness, self.s, self.b, self.fraction)
        c = fourth_coefficient(self.kurtosis, self.s, self.b, self.fraction)
        first = leading_error(DELTAS, k)
        return first + (terms == 2) * second_order_error(DELTAS, k, c)


RARE = ([0.0, 1.0], [0.8, 0.2])
THREE = ([0.0, 1.0, 3.0], [0.7, 0.25, 0.05])
SYMMETRIC = ([-1.0, 0.0, 1.0], [0.1, 0.8, 0.1])


@pytest.mark.costly
@pytest.mark.parametrize(
    ("rows", "b", "n"),
    [
        (RARE, 400, None),
        (RARE, 400, 1600),
        (RARE, 400, 800),
        (RARE, 400, 500),
        (THREE, 160, None),
        (THREE, 160, 400),
        (SYMMETRIC, 160, None),
        (SYMMETRIC, 160, 400),
    ],
)
def test_error_formula_is_exact_to_its_order(rows, b, n):
    """Four times the rows: a quarter is left, or an eighth with the terms of order 1 / b."""
    table, s = barker_correction(0.8), 0.5
    left = []
    for batch in (Enumeration(*rows, b // 4, s, n and n // 4), Enumeration(*rows, b, s, n)):
        np.testing.assert_allclose(batch.p.sum(), 1, rtol=1e-10)
        np.testing.assert_allclose(batch.p @ batch.s2, s**2, rtol=1e-10)
        exact = batch.error(table)
        left.append([np.max(np.abs(exact - batch.formula(terms))) for terms in (1, 2)])
    (first_before, second_before), (first, second) = left
    assert first_before > 3.5 * first
    assert second_before > 7 * second
    assert second < first < 4e-5
    k = third_cumulant(batch.skewness, s, b, batch.fraction)
    largest = worst_error(k)
    np.testing.assert_allclose(np.max(np.abs(exact)), largest, rtol=0.02, atol=2e-5)


def test_a_known_variance_leaves_half_the_error_with_the_other_sign():
    batch = Enumeration(*RARE, 400, 0.6)
    table = barker_correction(1.0)
    known = batch.error(table, variance=np.full_like(batch.s2, 0.36))
    np.testing.assert_allclose(known, -batch.formula(1) / 2, atol=0.05 * np.max(np.abs(known)))


def test_divisor_b_adds_half_a_second_derivative():
    batch = Enumeration(*SYMMETRIC, 60, 0.5)
    table = barker_correction(0.8)
    biased = batch.error(table, batch.s2 * 59 / 60) - batch.error(table)
    u = expit(DELTAS) * expit(-DELTAS)
    second_derivative = u * (1 - 2 * expit(DELTAS))
    np.testing.assert_allclose(biased, 0.25 / 120 * second_derivative, atol=4e-6)


@pytest.mark.parametrize(
    ("draw", "skewness", "kurtosis"),
    [
        (lambda rng, size: rng.exponential(size=size) - 1, 2.0, 6.0),
        (lambda rng, size: np.exp(0.5 * rng.normal(size=size)) - np.exp(0.125), 1.7502, 5.8984),
    ],
    ids=["exponential", "lognormal"],
)
def test_error_of_skewed_continuous_rows_by_simulation(draw, skewness, kurtosis):
    rng, b, s, n_batches = np.random.default_rng(4), 100, 0.6, 60_000
    table = barker_correction(1.0)
    x = draw(rng, (n_batches, b))
    x *= s * np.sqrt(b) / (1.0 if skewness == 2 else np.sqrt(np.exp(0.25) * np.expm1(0.25)))
    e, s2 = x.mean(axis=1), x.var(axis=1, ddof=1) / b
    sd = np.sqrt(np.maximum(1 - s2, 1e-12))
    k, c = third_cumulant(skewness, s, b), fourth_coefficient(kurtosis, s, b)
    for delta in (-1.5, 0.0, 1.5):
        accept = ndtr((delta + e[:, None] + table.support) / sd[:, None]) @ table.probabilities
        # Less two terms of mean zero, which only carry noise.
        level = expit(delta)
        u = level * (1 - level)
        rest = accept - level - u * e - u * (1 - 2 * level) / 2 * (e**2 - s2)
        expected = leading_error(delta, k) + second_order_error(delta, k, c)
        # 4.5 standard errors, and what the next order may leave.
        allowed = 4.5 * rest.std() / np.sqrt(n_batches) + 0.05 * worst_error(k)
        assert abs(rest.mean() - expected) < allowed


def test_formulas_of_the_error():
    x, h = DELTAS, 0.02
    k, c = 0.3, 0.02

    def derivative(order):
        # Contour integral: exact to rounding, since F has no pole within pi of the real line.
        z = np.exp(2j * np.pi * np.arange(64) / 64)
        values = 1 / (1 + np.exp(-(x[:, None] + z)))
        return np.real(np.mean(values / z**order, axis=1)) * np.exp(gammaln(order + 1))

    np.testing.assert_allclose(leading_error(x, k), -k / 3 * derivative(3), atol=1e-12)
    np.testing.assert_allclose(
        second_order_error(x, k, c),
        c * derivative(4) + k**2 / 18 * derivative(6),
        atol=1e-10,
    )
    fine = np.abs(leading_error(np.arange(-8, 8, h), k))
    np.testing.assert_allclose(fine.max(), worst_error(-k), rtol=1e-12)
    assert leading_error(0.0, k) > 0
    far = np.array([-800.0, 800.0])
    np.testing.assert_array_equal(leading_error(far, k), 0)
    np.testing.assert_array_equal(second_order_error(far, k, c), 0)
