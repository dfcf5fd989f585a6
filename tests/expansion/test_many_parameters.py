"""Many parameters: curvatures kept as a list or a diagonal, orders that follow, no copies of X."""

import logging
import tracemalloc
from dataclasses import replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.special import expit

import pymc_subsample as pms
from pymc_subsample.expansion import expand, general, hyperparameter_mode, linear
from pymc_subsample.expansion.curvature import covariance, times
from pymc_subsample.expansion.quadratic import Posterior, Quadratic
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.expansion.search import find_mode
from pymc_subsample.kernels.control import control_sum
from pymc_subsample.model import TallModel, TallModelError, verification
from pymc_subsample.rows import row_store as rows

# Dense columns, groups, both with two predictors, several predictors per row, shared scales.
NAMES = [
    "normal",
    "negative_binomial",
    "effects_crossed",
    "slopes_noncentred",
    "categorical_softmax",
]


def point(tall, seed):
    start = tall.ravel(tall.initial_point)
    return start + 0.2 * np.random.default_rng(seed).normal(size=tall.size)


def full(curvature, size):
    return times(curvature, np.eye(size))


@pytest.fixture(params=NAMES)
def both(request, expansion, tall_model):
    """Return an expansion, references with its curvature in full and as a list, and a point."""
    ex, tall = expansion(request.param), tall_model(request.param)
    star, theta = point(tall, 1), point(tall, 2)
    assert ex.curvature == "full"
    return ex, reference_at(ex, star), reference_at(replace(ex, curvature="sparse"), star), theta


@pytest.mark.costly(cases=1)
def test_a_list_of_elements_is_the_curvature(both):
    ex, known, listed, theta = both
    assert listed.curvature.shape[0] == 3 != ex.phi_size
    actual, expected = full(listed.curvature, ex.phi_size), known.curvature
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
    slopes = [Quadratic(ex, at).gradient(theta) for at in (listed, known)]
    np.testing.assert_allclose(*slopes, rtol=1e-8)


@pytest.mark.costly(cases=1)
def test_control_variates_are_summed_from_a_list(both):
    ex, known, listed, theta = both
    phi, _ = ex.parameters(theta)
    found = []
    for at in (known, listed):
        grad = np.zeros(ex.phi_size)
        value = control_sum(phi, at.sums(2), at.level, grad)
        found.append([value, *grad])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9, atol=1e-8)


@pytest.mark.costly(cases=1)
def test_diagonal(both):
    ex, known, _, _ = both
    diagonal = reference_at(replace(ex, curvature="diagonal"), known.theta)
    expected = np.diag(np.diag(known.curvature))
    np.testing.assert_allclose(full(diagonal.curvature, ex.phi_size), expected, rtol=1e-9)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", ["normal", "slopes_noncentred"])
def test_diagonal_of_the_general_path(name, expansion, tall_model):
    """The estimate's variance is twice the sum of squares of the row's others, over 16."""
    ex = expansion(name, 2, False)
    known = reference_at(ex, point(tall_model(name), 1))
    found = reference_at(replace(ex, curvature="diagonal"), known.theta)
    actual, expected = full(found.curvature, ex.phi_size), np.diag(known.curvature)
    others = known.curvature - np.diag(expected)
    # Signs are the same in all rows, so the errors are those of one estimate per element.
    error = np.sqrt((others**2).sum(axis=1) / general._PROBES) + 1e-9 * np.abs(expected)
    assert np.all(np.abs(np.diag(actual) - expected) < 5 * error)
    assert np.count_nonzero(actual - np.diag(np.diag(actual))) == 0


@pytest.mark.costly
def test_precision_and_scales(both):
    ex, known, listed, _ = both
    active = np.arange(ex.theta_size)
    matrix = Quadratic(ex, known).precision(active)
    np.testing.assert_allclose(
        Quadratic(ex, listed).precision(active), matrix, rtol=1e-5, atol=1e-6 * np.abs(matrix).max()
    )
    found = Quadratic(ex, listed).scales(active[1:])
    np.testing.assert_allclose(found, 1 / np.sqrt(np.abs(np.diag(matrix))[1:]), rtol=1e-5)


@pytest.mark.parametrize("lowest", [0.1, -0.1, 0.0], ids=["positive", "indefinite", "singular"])
def test_covariance_of_many_parameters(lowest):
    rng = np.random.default_rng(3)
    vectors, _ = np.linalg.qr(rng.normal(size=(300, 300)))
    values = rng.uniform(0.5, 2.0, 300)
    values[0] = lowest
    matrix = (vectors * values) @ vectors.T
    found = covariance(matrix)
    assert np.all(np.linalg.eigvalsh(found) > 0)
    if lowest > 0:
        np.testing.assert_allclose(found @ matrix, np.eye(300), atol=1e-9)


@pytest.mark.parametrize("name", ["normal", "negative_binomial"])
def test_the_mode_is_found_by_gradients(name, expansion, tall_model):
    ex, active = expansion(name), np.arange(tall_model(name).size)
    start = point(tall_model(name), 4)
    newton = find_mode(Posterior(ex), start, active, np.random.default_rng(1))
    sd = np.sqrt(np.diag(covariance(newton.precision(active))))
    ex = replace(ex, curvature="diagonal")
    found = find_mode(Posterior(ex), start, active, np.random.default_rng(1))
    # Each gradient is below 0.1 in units of the sds given the others; Newton's is within 0.1.
    assert np.sqrt(np.mean(((found.theta - newton.theta) / sd) ** 2)) < 0.3


def logistic(n, d, seed=5, spread=0.5):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = rng.random(n) < expit(X @ rng.normal(0, spread, d))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=d)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=y.astype(int))
    return model


@pytest.fixture
def few(monkeypatch):
    """Let curvatures be limited to three parameters."""
    for module in (linear, general):
        monkeypatch.setattr(module, "MAX_CURVATURE", 3)


@pytest.mark.costly
@pytest.mark.parametrize("d", [3, 4])
def test_order_by_the_number_of_parameters(d, few, caplog):
    with caplog.at_level(logging.INFO, "pymc.subsample"), logistic(3000, d):
        step = pms.HMCECS()
    assert step.control_variate_order == step.expansion.order == (2 if d <= 3 else 1)
    assert ("control variates of order 1" in caplog.text) == (d > 3)


def test_order_2_is_refused_beyond(few):
    with logistic(3000, 4), pytest.raises(TallModelError, match=r"order=1.* 8 rows"):
        pms.HMCECS(control_variate_order=2)


@pytest.mark.parametrize("order", [3, True, "2", None])
def test_orders_that_are_none(order):
    with (
        logistic(300, 2),
        pytest.raises(ValueError, match=r'control_variate_order must be .*"auto"'),
    ):
        pms.HMCECS(control_variate_order=order)


@pytest.mark.costly
def test_too_many_parameters_for_order_1(few):
    """The variance of the estimate with as many rows as there are is P^2 / 2n: 40 * 40 / 400."""
    with logistic(200, 40), pytest.raises(TallModelError, match="about 800") as error:
        pms.HMCECS()
    assert "use control_variate_order=2" not in str(error.value)


@pytest.mark.costly
def test_variance_of_order_1_is_half_the_square_of_the_parameters():
    """Rows that weigh nearly alike, on the 95% ellipsoid, whose squared radius is 31.4."""
    with logistic(20_000, 20, spread=0.05):
        step = pms.HMCECS(control_variate_order=1)
    expected = 31.4**2 / 2
    variance = step.prepared.moments.variance(1)
    np.testing.assert_allclose(variance, expected, rtol=0.25)


@pytest.mark.slow
def test_order_1_beyond_samples_the_posterior(few):
    with logistic(3000, 5) as model:
        idata = pm.sample(
            2000, tune=500, step=pms.HMCECS(), chains=1, progressbar=False, random_seed=1
        )
    assert not np.any(idata["checks"]["failed"] > 0)
    tall = TallModel(model)
    ex = expand(tall, 2)
    active = np.arange(5)
    at = find_mode(Posterior(ex), np.zeros(5), active, np.random.default_rng(0))
    sd = np.sqrt(np.diag(covariance(at.precision(active))))
    draws = idata["posterior"]["beta"].values[0]
    # Of some 1,500 effective draws; the mode is within 0.1 sd of the mean.
    assert np.all(np.abs(draws.mean(axis=0) - at.theta) < 0.2 * sd)
    np.testing.assert_allclose(draws.std(axis=0), sd, rtol=0.12)


def test_groups_make_a_list(monkeypatch):
    monkeypatch.setattr(linear, "MAX_DENSE", 3)
    rng = np.random.default_rng(6)
    g, x = rng.integers(0, 60, 3000), rng.normal(size=3000)
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0, 1, shape=60)
        slope = pm.Normal("slope", 0, 1)
        pm.Normal("y", alpha[pm.Data("g", g)] + slope * pm.Data("x", x), 1.0, observed=x)
    ex = expand(TallModel(model))
    assert ex.curvature == "sparse"
    at = reference_at(ex, np.zeros(61))
    assert at.curvature.shape == (3, 60 + 2 * 60 + 1)
    monkeypatch.setattr(linear, "MAX_TERMS", 1)
    assert expand(TallModel(model)).curvature == "full"


@pytest.mark.costly(cases=0)
def test_scale_of_many_groups_stays_off_its_pole(monkeypatch):
    """The joint mode has a scale of zero; the one found is near that of the data, 0.5."""
    monkeypatch.setattr(hyperparameter_mode, "MAX_INNER", 10)
    rng = np.random.default_rng(7)
    g = rng.integers(0, 40, 4000)
    y = rng.normal(rng.normal(0, 0.5, 40)[g], 1.0)
    with pm.Model():
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau", 1.0)
        alpha = pm.Normal("alpha", mu, tau, shape=40)
        pm.Normal("y", alpha[pm.Data("g", g)], 1.0, observed=y)
        step = pms.HMCECS()
    place = step.tall.slices[step.tall.names.index("tau_log__")]
    values = step.expansion.values(step.reference.theta)
    assert abs(np.exp(values[place].item()) / 0.5 - 1) < 0.4


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_set_up_does_not_copy_the_columns(dtype, monkeypatch):
    for module, name in ((rows, "_BATCH_BYTES"), (verification, "_LARGEST_BYTES")):
        monkeypatch.setattr(module, name, 2**20)
    X = np.random.default_rng(8).normal(size=(40_000, 100)).astype(dtype)

    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=X.shape[1])
        pm.Bernoulli("y", logit_p=pt.constant(X) @ beta, observed=np.zeros(len(X), np.int8))
    tracemalloc.start()
    try:
        expand(TallModel(model))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 0.8 * X.nbytes
