"""The largest of many estimated errors is not taken for a perturbation; a real one is."""

import numpy as np
import pymc as pm
import pytest

import pymc_subsample as pms
from pymc_subsample.diagnostics.checks import SHIFT_BOUND, STRETCH_BOUND
from pymc_subsample.diagnostics.perturbation import (
    DrawErrors,
    EstimateErrors,
    errors_by_all,
    errors_by_few,
    estimate_errors,
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
    return step.expansion, step.reference, step.reference.theta + z * sd, np.full(300, 1 / 300), z


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("m", [5_000, 20_000])
def test_few_rows_and_all_at_some_draws_say_what_all_rows_do(draws, m):
    """And 5,000 random rows alone, among which are few of those that matter, do not."""
    ex, at, thetas, shares, z = draws
    exact = estimate_errors(ex, at, thetas, m, 1.0)
    true = perturbation(known(exact.bias, shares).weights(), shares, z)
    assert excess(true) > 0.3
    of_all = errors_by_all(ex, at, thetas, shares, exact.variance, z, m, 1.0, NONE)
    few = errors_by_few(ex, at, thetas, shares, m, 1.0, NONE)
    off = perturbation(of_all.weights(), shares, z)
    assert excess(off) == pytest.approx(excess(true), rel=0.02)
    assert of_all.average(_noise) == pytest.approx(shares @ _noise(exact), rel=0.02)
    assert abs(few.average(_noise) / (shares @ _noise(exact)) - 1) > 0.1


@pytest.mark.costly
def test_the_farthest_draws_in_single_parameters_are_among_those_at_all_rows(draws):
    """And count as themselves, the others for the rest: shares add up."""
    ex, at, thetas, shares, z = draws
    z = z.copy()
    z[[17, 93], [3, 30]] = 9.0, -8.0
    found = errors_by_all(ex, at, thetas, shares, np.ones(len(z)), z, 5_000, 1.0, NONE)
    assert {17, 93} <= set(found.index)
    assert len(np.unique(found.index)) == len(found.index) <= 80
    np.testing.assert_array_equal(found.chosen[np.isin(found.index, [17, 93])], shares[[17, 93]])
    assert found.chosen.sum() == pytest.approx(1)


@pytest.mark.costly
def test_as_few_draws_as_are_read_at_all_rows_are_known_exactly(draws):
    ex, at, thetas, _, z = draws
    k, few = np.full(12, 1 / 12), slice(0, 12)
    exact = estimate_errors(ex, at, thetas[few], 5_000, 1.0)
    found = errors_by_all(ex, at, thetas[few], k, exact.variance, z[few], 5_000, 1.0, NONE)
    weights = found.weights() / found.weights().sum()
    expected = known(exact.bias, k).weights()
    np.testing.assert_allclose(weights, expected / expected.sum(), rtol=1e-6)


def test_errors_that_are_no_numbers_at_a_draw_are_infinite(draws):
    """Far out in one parameter: rates overflow there."""
    ex, at, thetas, shares, z = draws
    thetas, z = thetas.copy(), z.copy()
    thetas[5, 0], z[5, 0] = 800.0, 1e3
    found = errors_by_all(ex, at, thetas, shares, np.ones(len(z)), z, 5_000, 1.0, NONE)
    off = perturbation(found.weights(), shares, z)
    assert off.shift == off.stretch == np.inf
    assert np.isfinite(found.average(_noise))
    alone = errors_by_all(ex, at, thetas, shares, np.ones(len(z)), z, 5_000, 1.0, NONE, sampled=0)
    assert alone.shares.sum() == pytest.approx(1)


@pytest.mark.costly(cases=0)
def test_the_farthest_draws_alone_correct_themselves_only(draws):
    ex, at, thetas, shares, z = draws
    exact = estimate_errors(ex, at, thetas, 5_000, 1.0)
    found = errors_by_all(ex, at, thetas, shares, exact.variance, z, 5_000, 1.0, NONE, sampled=0)
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
