"""The largest of many estimated errors is not taken for a perturbation; a real one is."""

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest

import pymc_subsample as pms
from pymc_subsample.diagnostics.checks import SHIFT_BOUND, STRETCH_BOUND
from pymc_subsample.diagnostics.estimate_errors import (
    Estimator,
    errors_by_all,
    errors_by_few,
    read_all,
    read_few,
)
from pymc_subsample.diagnostics.perturbation import (
    DrawErrors,
    EstimateErrors,
    perturbation,
    standardised,
    with_known_sd,
)
from pymc_subsample.samplers.hmc_ecs.checks import _noise

NONE = np.zeros(0, dtype=np.int64)


def known(bias, shares):
    """Errors that are known of all draws."""
    found = EstimateErrors(np.ones(len(bias)), bias)
    return DrawErrors(shares, found, NONE, found.at(NONE), np.zeros(0))


def looked_at(rng, bias, d, k=64):
    z, shares = rng.standard_normal((k, d)), np.full(k, 1 / k)
    return perturbation(known(bias(z), shares).weights(), shares, z)


def excess(off):
    return max(off.shift / SHIFT_BOUND, off.stretch / STRETCH_BOUND)


def seen(off):
    return max(off.seen_shift / SHIFT_BOUND, off.seen_stretch / STRETCH_BOUND)


@pytest.mark.parametrize("d", [100, 200])
def test_a_bias_that_depends_on_no_parameter_is_no_perturbation(d):
    """No mean is off, and no sd by more than 1.2%; of the uncorrected estimates many alarm."""
    rng = np.random.default_rng(1)
    found = [
        looked_at(rng, lambda z: 0.14 * np.sum(z**2 - 1, axis=1) / np.sqrt(2 * d), d)
        for _ in range(100)
    ]
    assert np.mean([seen(off) > 1 for off in found]) > 0.2
    assert np.mean([excess(off) > 1 for off in found]) <= 0.05


@pytest.mark.parametrize("d", [1, 20, 200])
@pytest.mark.parametrize("power", [1, 2])
def test_one_perturbed_parameter_among_many_is_seen(d, power):
    """Its mean is off by 0.25 sds or its sd by about 15%, more than twice what is tolerable."""
    rng = np.random.default_rng(2)
    size = {1: 0.25, 2: 0.2}[power]
    found = [looked_at(rng, lambda z: size * z[:, 0] ** power, d) for _ in range(100)]
    assert np.mean([excess(off) > 1 for off in found]) > 0.9


def test_nothing_is_taken_off_a_single_parameter():
    rng = np.random.default_rng(3)
    off = looked_at(rng, lambda z: 0.3 * z[:, 0] + 0.2 * z[:, 0] ** 2, 1)
    assert (off.shift, off.stretch) == pytest.approx((off.seen_shift, off.seen_stretch))


def test_what_is_not_finite_is_infinite():
    shares = np.full(2, 0.5)
    errors = known(np.array([0.0, np.nan]), shares)
    off = perturbation(errors.weights(), shares, np.zeros((2, 3)))
    assert off.shift == off.stretch == np.inf


def test_all_rows_correct_what_few_say():
    """With each draw looked at for what it stands for, nothing of the few rows is left."""
    rng = np.random.default_rng(4)
    k = 30
    shares = rng.dirichlet(np.ones(k))
    few, whole = (EstimateErrors(*np.exp(rng.normal(size=(2, k)))) for _ in range(2))
    errors = DrawErrors(shares, few, np.arange(k), whole, shares)
    weights = errors.weights()
    expected = shares * np.exp(-whole.bias)
    np.testing.assert_allclose(weights / weights.sum(), expected / expected.sum())
    assert errors.average(_noise) == pytest.approx(shares @ whole.variance)


@pytest.mark.costly(cases=0)
def test_a_sample_of_the_draws_corrects_without_bias():
    """Over draws of the sample, averages are those over all draws by all rows: 4 errors."""
    rng = np.random.default_rng(5)
    k, j = 40, 6
    shares, chance = rng.dirichlet(np.ones(k)), rng.dirichlet(np.ones(k))
    few, whole = (EstimateErrors(*np.exp(rng.normal(size=(2, k)))) for _ in range(2))
    found = []
    for _ in range(20_000):
        index = rng.choice(k, j, p=chance)
        stands = shares[index] / (j * chance[index])
        found.append(DrawErrors(shares, few, index, whole.at(index), stands).average(_noise))
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - shares @ whole.variance) < 4 * error


def heavy(n=150_000, groups=40):
    """Groups of few rows beside one of most: tails of each are another draw's doing."""
    rng = np.random.default_rng(6)
    small = np.repeat(np.arange(groups - 1), 5)
    g = np.concatenate([small, np.full(n - len(small), groups - 1)])
    y = rng.poisson(np.exp(0.3 * rng.normal(size=groups)[g]))
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1, shape=groups)
        pm.Poisson("y", pm.math.exp(a[g]), observed=y)
    return model


@pytest.fixture(scope="module")
def draws():
    """Draws of that posterior as its expansion has it, and all that errors there depend on."""
    step = pms.HMCECS(model=heavy(), rng=1)
    z = np.random.default_rng(7).normal(size=(300, 40))
    sd = np.linalg.norm(step.tuning.factor, axis=1)
    by = Estimator(
        expansion=step.expansion, reference=step.reference, subsample_size=5_000, temperature=1.0,
        always=NONE,
    )  # fmt: skip
    return by, step.reference.theta + z * sd, np.full(300, 1 / 300), z


def exactly(by, thetas):
    """Errors by all rows at all draws."""
    every = np.arange(len(thetas))
    return read_all(by, read_few(by, thetas), thetas, every, len(thetas))[0]


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("m", [5_000, 20_000])
def test_few_rows_and_all_at_some_draws_say_what_all_rows_do(draws, m):
    """And 5,000 random rows alone, among which are few of those that matter, do not."""
    by, thetas, shares, z = draws
    by = replace(by, subsample_size=m)
    exact, rows = exactly(by, thetas), read_few(by, thetas)
    true = perturbation(known(exact.bias, shares).weights(), shares, z)
    assert excess(true) > 0.3
    of_all = errors_by_all(by, rows, thetas, shares, exact.variance, z)
    few = errors_by_few(by, rows, shares)
    off = perturbation(of_all.weights(), shares, z)
    assert excess(off) == pytest.approx(excess(true), rel=0.02)
    assert of_all.average(_noise) == pytest.approx(shares @ _noise(exact), rel=0.02)
    assert abs(few.average(_noise) / (shares @ _noise(exact)) - 1) > 0.1


@pytest.mark.costly
def test_the_farthest_draws_in_single_parameters_are_among_those_at_all_rows(draws):
    """And count as themselves, the others for the rest: shares add up."""
    by, thetas, shares, z = draws
    z = z.copy()
    z[[17, 93], [3, 30]] = 9.0, -8.0
    found = errors_by_all(by, read_few(by, thetas), thetas, shares, np.ones(len(z)), z)
    assert {17, 93} <= set(found.index)
    assert len(np.unique(found.index)) == len(found.index) <= 80
    np.testing.assert_array_equal(found.chosen[np.isin(found.index, [17, 93])], shares[[17, 93]])
    assert found.chosen.sum() == pytest.approx(1)


@pytest.mark.costly
def test_as_few_draws_as_are_read_at_all_rows_are_known_exactly(draws):
    by, thetas, _, z = draws
    k, thetas, z = np.full(12, 1 / 12), thetas[:12], z[:12]
    exact, rows = exactly(by, thetas), read_few(by, thetas)
    found = errors_by_all(by, rows, thetas, k, exact.variance, z)
    weights = found.weights() / found.weights().sum()
    expected = known(exact.bias, k).weights()
    np.testing.assert_allclose(weights, expected / expected.sum(), rtol=1e-6)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("always", [NONE, np.arange(3, 150_000, 7), np.arange(50)])
def test_one_pass_finds_the_rows_of_the_largest_residuals(draws, always):
    by, thetas, _, _ = draws
    by = replace(by, always=always, temperature=2.0)
    thetas, index = thetas[:30], np.array([4, 9, 28])
    rows = read_few(by, thetas)
    assert not np.isin(rows.index, always).any()
    found, outlying = read_all(by, rows, thetas, index, 2)
    others = np.setdiff1d(np.arange(by.expansion.n_rows), always)
    x = by.residuals(others, thetas[index])
    sizes = np.abs(x[:2]).max(axis=0)
    assert np.all(np.diff(outlying) > 0)
    assert 500 < len(outlying) <= 5_000
    kept = np.isin(others, outlying)
    assert kept.sum() == len(outlying)
    assert sizes[kept].min() >= sizes[~kept].max()
    m, x = by.subsample_size, x - x.mean(axis=1, keepdims=True)
    variance = m * np.mean(x**2, axis=1)
    bias = m * np.log(np.mean(np.exp(x - x**2 / 2), axis=1)) + (variance + variance**2) / (2 * m)
    np.testing.assert_allclose(found.variance, variance, rtol=1e-9)
    np.testing.assert_allclose(found.bias, bias, rtol=1e-6, atol=1e-9)


def test_errors_that_are_no_numbers_at_a_draw_are_infinite(draws):
    """Far out in one parameter: rates overflow there."""
    by, thetas, shares, z = draws
    thetas, z = thetas.copy(), z.copy()
    thetas[5, 0], z[5, 0] = 800.0, 1e3
    rows = read_few(by, thetas)
    found = errors_by_all(by, rows, thetas, shares, np.ones(len(z)), z)
    off = perturbation(found.weights(), shares, z)
    assert off.shift == off.stretch == np.inf
    assert np.isfinite(found.average(_noise))
    alone = errors_by_all(by, rows, thetas, shares, np.ones(len(z)), z, sampled=0)
    assert alone.shares.sum() == pytest.approx(1)


@pytest.mark.costly(cases=0)
def test_the_farthest_draws_alone_correct_themselves_only(draws):
    by, thetas, shares, z = draws
    exact, rows = exactly(by, thetas), read_few(by, thetas)
    found = errors_by_all(by, rows, thetas, shares, exact.variance, z, sampled=0)
    assert len(found.index) == 8
    weights = found.weights() / found.weights().sum()
    few = known(found.few.bias, shares).weights()
    expected = np.log(shares) - np.where(np.isin(np.arange(300), found.index), exact.bias, 0.0)
    ratio = np.log(weights) - expected
    apart = ratio[found.index] - ratio[found.index].mean()
    np.testing.assert_allclose(apart, 0, atol=1e-6)
    others = np.setdiff1d(np.arange(300), found.index)
    np.testing.assert_allclose(weights[others] / few[others], weights[others[0]] / few[others[0]])


def test_variables_whose_variance_one_draw_makes_are_not_judged_on_their_own_scale():
    rng = np.random.default_rng(2)
    shares = np.full(500, 1 / 500)
    values = np.column_stack([np.exp(rng.normal(size=500)), rng.normal(size=500), np.ones(500)])
    values[7, 1] = 1e200
    z = standardised(values, shares)
    assert abs(z[7, 1]) > 20
    assert with_known_sd(z, shares).shape == (500, 2)
