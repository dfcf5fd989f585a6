"""Acceptance tests as functions of what they have seen, and the rates at which they are wrong."""

from itertools import combinations, product

import barker_errors
import numba
import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import expit, ndtr, ndtri

from pymc_subsample.compiled.functions import Compiled, address_of, function_at, generator_at
from pymc_subsample.expansion import expand
from pymc_subsample.kernels.batches import draw, restore
from pymc_subsample.kernels.model import ANCHOR, GATHER, LEFT
from pymc_subsample.kernels.vectors import named
from pymc_subsample.model import TallModel
from pymc_subsample.samplers.minibatch import correction
from pymc_subsample.samplers.minibatch.acceptance import Criterion, Reader, accept, begun, merged
from pymc_subsample.samplers.minibatch.decisions import (
    ACCEPT,
    DECIDE,
    REJECT,
    Evidence,
    austerity,
    barker,
    confidence,
)

ERROR_RATE = 1e-5


def evidence_of(y, n, known=0.0, uniform=0.5, normal=0.0, look=1, low=np.nan, high=np.nan):
    """What a test sees after the rows `y` of n."""
    y = np.asarray(y, dtype=float)
    second, third = (np.mean((y - y.mean()) ** k) for k in (2, 3))
    seen = n, len(y), look, y.mean(), second, third
    return Evidence(*map(float, (*seen, low, high, known, np.log(uniform), uniform, normal)))


def cases(seed, count=400):
    """Batches of 20 to 200 of 200 rows, thresholds and look numbers of all sorts."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        n = 200
        b = n if rng.random() < 0.15 else int(rng.integers(20, n))
        y = rng.normal(0, 10 ** rng.uniform(-1, 2)) + 10 ** rng.uniform(-1, 1.5) * rng.gamma(
            1, 1, b
        )
        known = -y.mean() + rng.normal(0, 3)
        yield n, y, known, rng.random(), rng.normal(), int(rng.integers(1, 6))


# Rows without replacement


class Sequence:
    """A generator whose uniform numbers are given."""

    def __init__(self, numbers):
        self.numbers = list(numbers)

    def random(self):
        return self.numbers.pop(0)


@pytest.mark.parametrize(("n", "parts"), [(5, [3]), (5, [1, 2]), (4, [2, 2]), (6, [4])])
def test_every_ordered_subset_is_as_likely_as_any_other(n, parts):
    """By enumeration of the choices that the uniform numbers make."""
    total = sum(parts)
    choices = list(product(*(range(n - at) for at in range(total))))
    seen = []
    for choice in choices:
        rng = Sequence((k + 0.5) / (n - at) for at, k in enumerate(choice))
        permutation, rows, start = np.arange(n, dtype=np.uint32), [], 0
        for size in parts:
            index = np.empty(size, dtype=np.int64)
            draw(rng, permutation, start, index)
            rows += index.tolist()
            start += size
        assert len(set(rows)) == total
        seen.append(tuple(rows))
        restore(permutation, total)
        np.testing.assert_array_equal(permutation, np.arange(n))
    assert len(set(seen)) == len(choices)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(("n", "size"), [(6, 3), (50, 30), (50, 50), (1000, 7), (1, 1)])
def test_compiled_draws_leave_the_permutation_as_it_was(n, size):
    rng, permutation = np.random.default_rng(1), np.arange(n, dtype=np.uint32)
    counts, pairs, index = np.zeros(n), np.zeros((n, n)), np.empty(size, dtype=np.int64)
    repeats = 20_000
    for _ in range(repeats):
        draw(rng, permutation, 0, index)
        counts[index] += 1
        if 1 < n < 10:
            pairs[np.ix_(index, index)] += 1
        restore(permutation, size)
    np.testing.assert_array_equal(permutation, np.arange(n))
    # Counts of rows are hypergeometric with a common mean and negative correlations.
    share = size / n
    z = (counts - repeats * share) / max(np.sqrt(repeats * share * (1 - share)), 1)
    statistic = (z**2).sum() * (n - 1) / n if n > 1 else 0.0
    if share < 1:
        assert ERROR_RATE / 2 < stats.chi2.sf(statistic, n - 1) < 1 - ERROR_RATE / 2
    else:
        assert statistic == 0
    if 1 < n < 10:
        joint = size * (size - 1) / (n * (n - 1))
        off = pairs[~np.eye(n, dtype=bool)]
        z = (off - repeats * joint) / np.sqrt(repeats * joint * (1 - joint))
        assert np.abs(z).max() < stats.norm.isf(ERROR_RATE / len(z))


# Moments


@pytest.mark.parametrize(("location", "scale"), [(0.0, 1.0), (-3.0, 0.1), (1e5, 1.0), (0.0, 1e-8)])
@pytest.mark.parametrize("sizes", [[1] * 40, [40], [1, 39], [39, 1], [7, 20, 13], [2, 2, 36]])
def test_moments_merge(location, scale, sizes):
    rng = np.random.default_rng(2)
    y = location + scale * rng.gamma(0.5, 1.0, 40)
    found, start = (0.0, 0.0, 0.0, 0.0), 0
    for size in sizes:
        found = merged(y[start : start + size], *found)
        start += size
        count, mean, *moments = found
        seen = y[:start]
        assert count == start
        rounding = 1e-13 * (1 + abs(location) / scale)
        np.testing.assert_allclose(mean, seen.mean(), rtol=1e-14, atol=1e-13 * scale)
        for moment, power in zip(moments, (2, 3), strict=True):
            expected = np.mean((seen - seen.mean()) ** power)
            np.testing.assert_allclose(
                moment, expected, rtol=10 * rounding, atol=10 * rounding * scale**power
            )


def test_moments_merge_into_those_of_another_order():
    rng = np.random.default_rng(3)
    y, results = rng.lognormal(size=300), []
    for order in (y, y[::-1], np.sort(y)):
        found = 0.0, 0.0, 0.0, 0.0
        for part in np.array_split(order, 7):
            found = merged(part, *found)
        results.append(found[1:])
    np.testing.assert_allclose(results, [results[0]] * 3, rtol=1e-12)


# Settings


@pytest.mark.parametrize(
    "kind",
    [austerity.AusteritySettings, barker.BarkerSettings, confidence.ConfidenceSettings],
)
def test_settings_are_the_first_numbers_of_an_array(kind):
    size = len(kind._fields)
    settings = named(kind)

    @numba.njit
    def last(x):
        return settings(x)[-1]

    x = np.arange(1.0, size + 4)
    assert settings(x) == kind(*x[:size])
    assert last(x) == size
    assert kind._fields[0] == "batch_size"  # which `accept` reads


# Austerity


def test_t_test_of_austerity():
    epsilon, batch, outcomes = 0.05, 15, set()
    for n, y, known, u, *_ in cases(4):
        b, settings = len(y), np.array([batch, epsilon])
        answer, *found = austerity.decide(settings, evidence_of(y, n, known, u))
        probability, error, variance = found
        distance = y.mean() + known - np.log(u)
        np.testing.assert_allclose(probability, min(1.0, np.exp(y.mean() + known)), rtol=1e-9)
        exact = ACCEPT if distance > 0 else REJECT
        if b == n:
            assert answer == exact
            assert error == variance == 0
            outcomes.add(("all", answer))
            continue
        sd = y.std(ddof=1) / np.sqrt(b) * np.sqrt(1 - (b - 1) / (n - 1))
        p_value = stats.t.sf(abs(distance) / sd, b - 1)
        np.testing.assert_allclose(variance, sd**2, rtol=1e-10)
        np.testing.assert_allclose(error, p_value, rtol=1e-8, atol=1e-14)
        assert answer == (exact if p_value < epsilon else min(n, b + batch))
        outcomes.add("more" if answer > 0 else answer)
        outcomes.add("the rest") if answer == n else None
    assert outcomes >= {ACCEPT, REJECT, "more", "the rest", ("all", ACCEPT), ("all", REJECT)}


def test_the_t_test_is_that_of_scipy_when_the_population_is_large():
    rng = np.random.default_rng(5)
    y, n = rng.normal(0.3, 1, 30), 10**9
    answer = austerity.decide(np.array([30, 0.05]), evidence_of(y, n, 0.0, 1.0))
    expected = stats.ttest_1samp(y, 0.0, alternative="greater").pvalue
    np.testing.assert_allclose(answer.error, expected, rtol=1e-6)


def test_austerity_at_level_zero_reads_all_rows():
    for n, y, known, u, *_ in cases(6, 50):
        answer = austerity.decide(np.array([10, 0.0]), evidence_of(y, n, known, u)).decision
        exact = ACCEPT if y.mean() + known > np.log(u) else REJECT
        assert answer == (exact if len(y) == n else n)


def test_rows_that_are_all_alike_decide_at_once():
    y = np.full(10, 0.5)
    for u, answer in ((0.4, ACCEPT), (0.9, ACCEPT)):
        found = austerity.decide(np.array([10, 0.01]), evidence_of(y, 100, 0.0, u))
        assert found.decision == answer
    found = austerity.decide(np.array([10, 0.01]), evidence_of(-y, 100, 0.0, 0.9))
    assert found.decision == REJECT
    assert found.error == 0


# Confidence


def numpy_radius(inequality, n, b, span, sd, level):
    log = {
        "hoeffding-serfling": np.log(2 / level),
        "bernstein": np.log(3 / level),
        "bernstein-serfling": np.log(5 / level),
    }[inequality]
    if inequality == "hoeffding-serfling":
        return span * np.sqrt(log / (2 * b) * (1 - (b - 1) / n))
    if inequality == "bernstein":
        return sd * np.sqrt(2 * log / b) + 3 * span * log / b
    rho = 1 - (b - 1) / n if b <= n / 2 else (1 - b / n) * (1 + 1 / b)
    return sd * np.sqrt(2 * rho * log / b) + (7 / 3 + 3 / np.sqrt(2)) * span * log / b


@pytest.mark.parametrize("inequality", confidence.INEQUALITIES)
def test_confidence_test(inequality):
    delta, p, gamma, outcomes = 0.1, 3.0, 1.5, set()
    number = confidence.INEQUALITIES.index(inequality)
    for n, y, known, u, _, look in cases(7, 1000):
        evidence = evidence_of(y, n, known, u, look=look, low=y.min() - 0.5, high=y.max() + 0.3)
        settings = np.array([20, delta, p, gamma, number])
        answer, _, error, _ = confidence.decide(settings, evidence)
        distance, b = y.mean() + known - np.log(u), len(y)
        exact = ACCEPT if distance > 0 else REJECT
        if b == n:
            assert answer == exact
            continue
        level = (p - 1) / (p * look**p) * delta
        c = numpy_radius(inequality, n, b, np.ptp(y) + 0.8, y.std(), level)
        np.testing.assert_allclose(
            confidence.radius(number, n, b, np.ptp(y) + 0.8, y.std(), level), c, rtol=1e-12
        )
        assert answer == (exact if abs(distance) > c else min(n, int(np.ceil(gamma * b))))
        assert error == delta
        outcomes.add("more" if answer > 0 else answer)
    assert outcomes == {ACCEPT, REJECT, "more"}


@pytest.mark.parametrize("p", [1.1, 2.0, 5.0])
def test_levels_of_all_looks_sum_to_no_more_than_delta(p):
    looks = np.arange(1, 100_000)
    assert ((p - 1) / (p * looks**p)).sum() < 1


# Barker


def barker_settings(sigma=1.2, max_error=0.02, batch=15):
    table = correction.barker_correction(sigma)
    numbers = [batch, max_error, sigma, table.error, len(table.support)]
    return np.concatenate([numbers, table.support, np.cumsum(table.probabilities)])


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(("sigma", "max_error"), [(1.2, 0.02), (1.0, 0.002), (1.0, np.inf)])
def test_barker_test(sigma, max_error):
    table, outcomes = correction.barker_correction(sigma), set()
    for n, y, known, u, normal, _ in cases(8, 1000):
        evidence, b = evidence_of(y, n, known, u, normal), len(y)
        answer, *found = barker.decide(barker_settings(sigma, max_error), evidence)
        ratio = y.mean() + known
        np.testing.assert_allclose(found[0], expit(ratio), rtol=1e-9)
        if b == n:
            assert answer == (ACCEPT if u > expit(-ratio) else REJECT)
            outcomes.add(("all", answer))
            continue
        variance = y.var(ddof=1) / b * (1 - b / n)
        third = barker_errors.third_cumulant(
            stats.skew(y), np.sqrt(y.var() / b * (1 - b / n)), b, b / n
        )
        error = table.error + barker_errors.worst_error(third)
        np.testing.assert_allclose(found[1:], [error, variance], rtol=1e-8)
        if variance >= sigma**2 or error > max_error:
            assert min(n, b + 15) <= answer <= n
            if answer > b + 15 and answer < n:
                # Four fifths of what would bring the variance to its bound.
                rows = answer / 0.8
                left = y.var(ddof=1) / rows * (1 - rows / n)
                np.testing.assert_allclose(left, sigma**2, rtol=2 / (1 - rows / n) / rows)
                outcomes.add("far")
            outcomes.add("more")
            continue
        k = np.searchsorted(np.cumsum(table.probabilities), u)
        total = ratio + np.sqrt(sigma**2 - variance) * normal + table.support[k]
        assert answer == (ACCEPT if total > 0 else REJECT)
        outcomes.add(answer)
    assert outcomes >= {ACCEPT, REJECT, "more", "far", ("all", ACCEPT), ("all", REJECT)}


@pytest.mark.costly(cases=0)
def test_barker_test_on_all_rows_accepts_with_barkers_probability():
    """By quadrature over the uniform number."""
    grid = (np.arange(4000) + 0.5) / 4000
    for known in (-3.0, -0.4, 0.0, 1.7):
        y = np.array([0.2, -0.1, 0.5])
        answers = [barker.decide(barker_settings(), evidence_of(y, 3, known, u)) for u in grid]
        share = np.mean([answer.decision == ACCEPT for answer in answers])
        np.testing.assert_allclose(share, expit(known + 0.2), atol=1 / 2000)


SKEWED = np.array([0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 5.0])
EVEN = np.arange(12.0)


def batches(values, b, sd):
    """Every batch of b of the values, centred, with the estimate's standard deviation `sd`."""
    n = len(values)
    y = values - values.mean()
    y *= sd / np.sqrt(y.var(ddof=1) / b * (1 - b / n))
    return y, [y[list(index)] for index in combinations(range(n), b)]


def acceptance(batch, n, known, settings, table):
    """Probability that a batch is accepted, over the test's own random numbers."""
    evidence = evidence_of(batch, n, known)
    answer = barker.decide(settings, evidence)
    assert answer.decision in (ACCEPT, REJECT)
    sd = np.sqrt(table.sigma**2 - answer.variance)
    return table.probabilities @ ndtr((evidence.mean + known + table.support) / sd)


@pytest.mark.costly(cases=0)
def test_the_test_is_the_integrand_over_its_random_numbers():
    table, settings = correction.barker_correction(1.2), barker_settings(1.2, np.inf)
    _, all_batches = batches(SKEWED, 6, 0.5)
    normals = ndtri((np.arange(100) + 0.5) / 100)
    uniforms = (np.arange(200) + 0.5) / 200
    for batch in all_batches[:: len(all_batches) // 3]:
        answers = [
            barker.decide(settings, evidence_of(batch, 12, 0.7, u, z)).decision
            for u in uniforms for z in normals
        ]  # fmt: skip
        share = np.mean(np.array(answers) == ACCEPT)
        np.testing.assert_allclose(share, acceptance(batch, 12, 0.7, settings, table), atol=0.01)


@pytest.mark.costly
@pytest.mark.parametrize("values", [SKEWED, EVEN], ids=["skewed", "even"])
@pytest.mark.parametrize("sd", [0.3, 0.6])
def test_barker_acceptance_over_all_batches_is_as_predicted(values, sd):
    """Every batch of 6 of 12 rows; what is left is the predicted error."""
    n, b = 12, 6
    table, settings = correction.barker_correction(1.2), barker_settings(1.2, np.inf)
    y, all_batches = batches(values, b, sd)
    skewness, kurtosis = stats.skew(y), stats.kurtosis(y)
    # The formulas take the sd that the cumulants of the population stand for.
    k = barker_errors.third_cumulant(skewness, np.sqrt(y.var() / b * (1 - b / n)), b, b / n)
    c = barker_errors.fourth_coefficient(kurtosis, np.sqrt(y.var() / b * (1 - b / n)), b, b / n)
    largest = 0.0
    for delta in (-2.0, -0.5, 0.0, 0.8, 2.5):
        found = np.mean([acceptance(a, n, delta, settings, table) for a in all_batches])
        first = barker_errors.leading_error(delta, k)
        second = barker_errors.second_order_error(delta, k, c)
        left = found - expit(delta) - first - second
        assert abs(left) < table.error + 0.2 * (barker_errors.worst_error(k) + 0.1 * sd**4)
        largest = max(largest, abs(found - expit(delta)))
    assert largest < 2 * barker_errors.worst_error(k) + 0.1 * sd**4 + table.error


def test_without_its_correction_the_barker_test_is_another():
    table, settings = correction.barker_correction(1.2), barker_settings(1.2, np.inf)
    alone = correction.BarkerCorrection(1.2, np.zeros(1), np.ones(1), 0.0)
    _, all_batches = batches(EVEN, 6, 0.6)
    for with_table, numbers, wrong in (
        (table, settings, False),
        (alone, np.array([15, np.inf, 1.2, 0.0, 1, 0.0, 1.0]), True),
    ):
        found = np.mean([acceptance(a, 12, 1.0, numbers, with_table) for a in all_batches])
        assert (abs(found - expit(1.0)) > 0.05) == wrong


# Decisions on populations of every kind, by the compiled loop


@numba.njit
def loop_of(criterion, model, permutation, generator, full, unseen):
    reader = Reader(
        function_at(model.functions[0], ANCHOR), function_at(model.functions[1], LEFT),
        function_at(model.functions[2], GATHER), model.columns, model.width, np.zeros(1), 0,
        permutation, np.empty(0, np.uint32), float(permutation.shape[0]),
    )  # fmt: skip
    decide, rng = function_at(criterion.decide, DECIDE), generator_at(generator)
    return accept(decide, criterion.settings, reader, rng, np.zeros(1), np.ones(1), full, unseen)


class Loop:
    """The compiled loop on rows whose contributions y are given: log-likelihoods theta y / n."""

    def __init__(self):
        with pm.Model() as model:
            theta = pm.Normal("theta")
            pm.Potential("rows", theta * np.linspace(-1, 1, 50))
        self.ex = expand(TallModel(model), 0)
        assert len(self.ex.packer) == 1
        self.model = self.ex.model("anchor", "left", "gather")

    def __call__(self, decide, settings, y, rng, *, known=0.0, uniform=0.5, normal=0.0,
                 low=np.nan, high=np.nan, full=False, permutation=None, column=None):  # fmt: skip
        n = len(y)
        if column is None:
            column = np.asarray(y, dtype=float) / n
        if permutation is None:
            permutation = np.arange(n, dtype=np.uint32)
        table = np.array([2, 5, 0, column.ctypes.data, 8])  # see `expansion.gather`
        model = self.model._replace(columns=table)
        criterion = Criterion(
            Compiled(decide, DECIDE, None).address, np.asarray(settings, dtype=float)
        )
        unseen = begun(known, np.log(uniform), uniform, normal, float(low), float(high))
        return loop_of(criterion, model, permutation, address_of(rng), int(full), unseen)


@pytest.fixture(scope="module")
def loop():
    return Loop()


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("n", [10, 255, 256, 257, 1500])
def test_the_loop_reads_all_rows_once(loop, n):
    rng = np.random.default_rng(9)
    y = rng.gamma(1, 1, n)
    for batch in (n, max(2, n // 7)):
        permutation = np.arange(n, dtype=np.uint32)
        evidence, _ = loop(austerity.decide, [batch, 0.0], y, rng, permutation=permutation)
        assert evidence.n_seen == evidence.n_rows == n
        assert evidence.look == (1 if batch == n else 2)
        moments = [y.mean(), y.var(), np.mean((y - y.mean()) ** 3)]
        found = evidence.mean, evidence.second, evidence.third
        np.testing.assert_allclose(found, moments, rtol=1e-10)
        np.testing.assert_array_equal(permutation, np.arange(n))


@pytest.mark.costly
@pytest.mark.parametrize("n", [10, 256, 700])
def test_bounds_by_a_pass_over_all_rows_are_exact(loop, n):
    rng = np.random.default_rng(10)
    y = rng.normal(1, 2, n)
    evidence, _ = loop(confidence.decide, [5, 0.1, 2, 2, 0], y, rng, full=True)
    np.testing.assert_allclose([evidence.low, evidence.high], [y.min(), y.max()], rtol=1e-12)


def test_the_loop_reads_a_simple_random_sample(loop):
    """Mean and variance of the mean of a batch."""
    rng = np.random.default_rng(11)
    y, b = rng.gamma(1, 1, 40), 15
    permutation, means = np.arange(40, dtype=np.uint32), []
    for _ in range(8000):
        evidence, _ = loop(  # decides at once
            confidence.decide, [b, 0.1, 2, 2, 2], y, rng, known=1e3, low=0.0, high=0.0,
            permutation=permutation,
        )  # fmt: skip
        assert evidence.n_seen == b
        means.append(evidence.mean)
    variance = y.var(ddof=1) / b * (1 - b / 40)
    z = stats.norm.isf(ERROR_RATE / 4)
    assert abs(np.mean(means) - y.mean()) < z * np.sqrt(variance / 8000)
    kurtosis = 3.0
    assert abs(np.var(means) / variance - 1) < z * np.sqrt((kurtosis - 1) / 8000)


@pytest.mark.parametrize("decide", [austerity.decide, confidence.decide])
def test_rows_that_are_not_finite_settle_the_matter(loop, decide):
    settings = [20, 0.1] if decide is austerity.decide else [20, 0.1, 2, 2, 0]
    rng = np.random.default_rng(12)
    # The rows' terms are finite, as zero times infinity is not, and overflow with their weight.
    for values, answer in (([-1e308], REJECT), ([1e308], ACCEPT), ([np.nan, 1e308], REJECT)):
        column = rng.normal(size=20)
        column[7 : 7 + len(values)] = values
        _, found = loop(decide, settings, column, rng, low=-5, high=5, column=column)
        assert found[:2] == (answer, answer == ACCEPT)


RARE = np.where(np.arange(4000) < 40, 100.0, 0.0)
HEAVY = np.minimum(stats.lognorm(2.0).ppf((np.arange(4000) + 0.5) / 4000), 400.0)


def wrong_rate(loop, decide, settings, y, threshold, repeats, low=np.nan, high=np.nan):
    """Share of wrong decisions, and rows read, at a threshold for the mean of y."""
    rng, permutation = np.random.default_rng(13), np.arange(len(y), dtype=np.uint32)
    right = ACCEPT if y.mean() > threshold else REJECT
    wrong, rows = 0, 0
    for _ in range(repeats):
        evidence, answer = loop(
            decide, settings, y, rng, known=-threshold, uniform=1.0, low=low, high=high,
            permutation=permutation,
        )  # fmt: skip
        wrong += answer.decision != right
        rows += evidence.n_seen
    return wrong / repeats, rows / repeats


@pytest.mark.costly(cases=4)
@pytest.mark.parametrize("number", range(3), ids=confidence.INEQUALITIES)
@pytest.mark.parametrize("y", [RARE, HEAVY], ids=["rare", "heavy"])
def test_confidence_is_wrong_no_more_often_than_it_says(loop, number, y):
    delta, repeats, shares = 0.1, 400, []
    for far in (0.3, 3.0, 30.0):
        for threshold in (y.mean() - far, y.mean() + far):
            rate, rows = wrong_rate(
                loop, confidence.decide, [50, delta, 2, 2, number], y, threshold, repeats,
                y.min(), y.max(),
            )  # fmt: skip
            assert repeats * rate <= stats.binom.isf(ERROR_RATE, repeats, delta)
            shares.append(rows / len(y))
    assert min(shares) < 0.8  # decided before all rows were seen


def test_confidence_with_too_small_a_bound_is_wrong(loop):
    rate, _ = wrong_rate(
        loop, confidence.decide, [50, 0.1, 2, 2, 0], RARE, 0.5, 1000, 0.0, 1.0
    )  # fmt: skip
    assert rate > 0.3


def test_austerity_is_wrong_on_rare_rows(loop):
    """What the confidence sampler is for: a batch without rare rows looks certain."""
    rate, _ = wrong_rate(loop, austerity.decide, [50, 0.01], RARE, 0.5, 1000)
    assert rate > 0.3


def numpy_wrong_rate(n, batch, epsilon, distance, sd, repeats, seed):
    """The sequential test on normal rows: errors of the means are a walk that ends at zero."""
    rng = np.random.default_rng(seed)
    looks = np.arange(batch, n, batch)
    variances = sd**2 * (1 / looks - 1 / n)
    steps = np.sqrt(variances - np.append(variances[1:], 0.0))
    walk = (rng.standard_normal((repeats, len(looks))) * steps)[:, ::-1].cumsum(axis=1)[:, ::-1]
    t = (distance + walk) / np.sqrt(sd**2 / looks * (1 - (looks - 1) / (n - 1)))
    sure = stats.t.sf(np.abs(t), looks - 1) < epsilon
    first = np.argmax(sure, axis=1)
    decided = sure.any(axis=1)
    wrong = decided & (t[np.arange(repeats), first] < 0)
    rows = np.where(decided, looks[first], n)
    return wrong.mean(), rows.mean()


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("batch", "epsilon", "far"),
    [
        (500, 0.05, 0.0),
        (100, 0.05, 0.5),
        pytest.param(100, 0.01, 0.2, marks=pytest.mark.slow),
    ],
)
def test_austerity_is_wrong_as_often_as_theory_says(loop, batch, epsilon, far):
    """On normal rows; `far` in standard errors of the first batch."""
    n, repeats = 1000, 5000
    y = stats.norm.ppf((np.arange(n) + 0.5) / n)
    distance = max(far, 1e-6) / np.sqrt(batch)
    rate, rows = wrong_rate(
        loop, austerity.decide, [batch, epsilon], y, y.mean() - distance, repeats
    )
    expected, expected_rows = numpy_wrong_rate(
        n, batch, epsilon, distance, y.std(ddof=1), 400_000, 14
    )
    error = np.sqrt(expected * (1 - expected) * (1 / repeats + 1 / 400_000))
    # Estimated variances: the walk's are known, which changes rates by order 1 / batch.
    assert abs(rate - expected) < stats.norm.isf(ERROR_RATE / 2) * error + 3 * expected / batch
    assert abs(rows - expected_rows) < 0.03 * expected_rows
    if batch == 500:  # one test before all rows are seen: its level is its error
        assert abs(expected - epsilon) < 0.002
        assert rate > 0.8 * epsilon
    elif far:
        assert rate > 0.2 * epsilon
