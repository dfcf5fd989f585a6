"""Rows whose derivatives are not finite as they are written: rewritten, or left without some.

Reference values are those of the formulas as they are written, in extended precision, which
underflows at exp(-11,355); derivatives are differences of these.
"""

import re
import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from chains import QUIET, assert_moments
from scipy.special import expit

import pymc_subsample as pms
from pymc_subsample.bounds.remainders import bound_rows
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.expansion.residuals import residuals_around
from pymc_subsample.expansion.undefined import flat_rows
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.kernels.model import PERTURBED
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.model.logarithms import shifted

LONG = np.longdouble
N, FLAT = 300, [4, 17, 90]
# Step of differences of extended precision: shares of (900 h)^2, and of 1e-19 / h^2.
STEP = LONG(2e-6)


def differences(rows, theta):
    """Values (n,), slopes (n, d) and curvatures (n, d, d) of ``rows(*theta)``."""
    theta, d = np.asarray(theta, dtype=LONG), len(theta)

    def at(*moves):
        return rows(*(theta + STEP * sum(moves, np.zeros(d))))

    unit = np.eye(d)
    slope = [(at(e) - at(-e)) / (2 * STEP) for e in unit]
    bend = [
        [(at(e, f) - at(e, -f) - at(-e, f) + at(-e, -f)) / (4 * STEP**2) for f in unit]
        for e in unit
    ]
    return rows(*theta), np.array(slope).T, np.array(bend).transpose(2, 0, 1)


def potential(loglik):
    with pm.Model() as model:
        pm.Potential("ll", loglik(pt, pm.Normal("a", 0.9), pm.Normal("b", 1.1)))
    return TallModel(model)


_rng = np.random.default_rng(1)
U, V = _rng.uniform(-900, -100, size=(2, N))
WEIGHT = np.where(_rng.random(N) < 0.4, 0.0, _rng.uniform(0.1, 3, N))
MANY = _rng.uniform(-900, -100, size=(N, 3))
MASK = (_rng.random((N, 3)) < 0.5) | (np.arange(3) == 2)

LOGARITHMS = {
    "indicator": lambda m, a, b: m.log(m.exp(a * U) + (WEIGHT > 0) * m.exp(b * V)),
    "data": lambda m, a, b: m.log(m.exp(a * U) + WEIGHT * m.exp(b * V)),
    "data everywhere": lambda m, a, b: m.log((WEIGHT + 1) * m.exp(a * U) + WEIGHT * m.exp(b * V)),
    "parameter": lambda m, a, b: m.log(a * m.exp(a * U) + (1 - a) * m.exp(b * V)),
    "three terms": lambda m, a, b: m.log(
        a * m.exp(a * U) + WEIGHT * m.exp(b * V) + 2 * m.exp(a * V) / (1 + b)
    ),
    "product": lambda m, a, b: m.log(a * m.exp(b * U) * m.exp(a * V)),
    "quotient": lambda m, a, b: m.log(m.exp(a * U) / (m.exp(b * V) + 3 * m.exp(a * V))),
    "difference": lambda m, a, b: m.log(2 * m.exp(a * U) - m.exp(a * U - abs(b))),
    "zero inflation": lambda m, a, b: m.log(a * (WEIGHT == 0) + (1 - a) * m.exp(b * V)),
    "choice": lambda m, a, b: m.log(
        m.exp(a * U) + (np.where if m is np else pt.switch)(WEIGHT > 0, b * m.exp(b * V), 0.0)
    ),
    "choice against what is no number": lambda m, a, b: m.log(
        m.exp(a * U)
        + (np.where if m is np else pt.switch)(WEIGHT > 0, b * m.exp(b * V) / WEIGHT, 0.0)
    ),
    "negative, with an axis added": lambda m, a, b: m.log(
        (-m.exp(a * U - abs(b)))[:, None] + np.array([2.0, 3.0]) * m.exp(a * U)[:, None]
    ).sum(axis=1),
    "constant": lambda m, a, b: m.log(
        (np.array([1.0, 0.0, 2.0]) * m.exp(a * MANY + b)).sum(axis=1)
    ),
    "axis": lambda m, a, b: m.log((MASK * m.exp(a * MANY + b)).sum(axis=1)),
    "axis, and a term": lambda m, a, b: m.log(
        m.exp(b * V) + (MASK * m.exp(a * MANY + b)).sum(axis=1)
    ),
}


@pytest.mark.costly(cases=3)
@pytest.mark.parametrize("name", LOGARITHMS)
def test_logarithms_of_sums_that_underflow(name):
    """Exponentials of -900 to -100: most are no numbers in double precision."""
    theta, loglik = np.array([0.9, 1.1]), LOGARITHMS[name]

    @np.errstate(divide="ignore", invalid="ignore")
    def rows(a, b):
        return loglik(np, a, b)

    assert_expanded(potential(loglik), rows, theta)


def assert_expanded(tall, rows, theta):
    value, slope, bend = differences(rows, theta)
    np.testing.assert_allclose(tall.row_loglik(theta, slice(None)), value.astype(float), rtol=1e-12)
    expansion = expand(tall)
    at = reference_at(expansion, theta)
    assert at.flat == 0
    assert_sums(at, expansion, theta, slope.sum(axis=0), bend.sum(axis=0))


def assert_sums(at, expansion, theta, slope, bend):
    """Compare in theta, of which phi may be functions."""
    size = len(theta)

    def pulled(point, gradient):
        return expansion.pull_back(point, gradient) - expansion.pull_back(point, 0 * gradient)

    slope, curvature = slope.astype(float), np.zeros((size, size))
    np.testing.assert_allclose(
        pulled(theta, at.slope), slope, rtol=1e-8, atol=1e-9 * np.abs(slope).max()
    )
    for k, e in enumerate(np.eye(size)):
        ends = []
        for point in (theta + 1e-6 * e, theta - 1e-6 * e):
            phi, _ = expansion.parameters(point)
            ends.append(pulled(point, at.slope + at.curvature @ (phi - at.center)))
        curvature[:, k] = (ends[0] - ends[1]) / 2e-6
    # A share by either difference, and rounding of sums of N values of up to 900.
    allowed = 1e-5 * float(np.abs(bend).max()) + N * 900 * float(np.finfo(LONG).eps / STEP**2)
    np.testing.assert_allclose(curvature, bend.astype(float), atol=allowed)


def test_logarithms_of_nothing():
    """-inf where data say so, whatever the other factors are."""
    a, w = pt.scalar("a"), pt.vector("w")
    log = shifted(pt.log(pt.switch(w > 0, a * pt.exp(a * w), 0.0)), [a], [w])
    [found] = numpy_function([a, w], [log])(0.5, WEIGHT)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(found, np.where(WEIGHT > 0, np.log(0.5) + 0.5 * WEIGHT, -np.inf))


def test_sums_of_sums_are_looked_at_once():
    """A chain of thirty periods, each state of which leads to two."""
    p, w = pt.scalar("p"), pt.vector("w")
    up, down = pt.exp(-p * w), pt.exp(-w)
    for _ in range(30):
        stay, leave = p * pt.exp(-w), (1 - p) * pt.exp(-2 * w)
        up, down = stay * up + leave * down, leave * up + stay * down
    [found] = numpy_function([p, w], [shifted(pt.log(up + down), [p], [w])])(0.5, WEIGHT)
    ends = np.logaddexp(-0.5 * WEIGHT, -WEIGHT)
    steps = 30 * (np.log(0.5) + np.logaddexp(-WEIGHT, -2 * WEIGHT))
    np.testing.assert_allclose(found, ends + steps, rtol=1e-12)


def test_as_they_are_written_they_underflow():
    value = LOGARITHMS["data"](np, 0.9, 1.1)
    assert np.isneginf(value).any()


@pytest.mark.parametrize(("lowest", "said"), [(-1e3, True), (-30.0, False)])
def test_what_cannot_be_compared_is_said(lowest, said):
    """Where all rows underflow by the model's own operations, and not where they do not."""
    depth = lowest + 0.1 * U
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expand(potential(lambda m, a, b: m.log(a * m.exp(a * depth) + m.exp(b * depth) / b)))
    found = [w for w in caught if "could not be compared with it" in str(w.message)]
    assert bool(found) == said


SPENT = _rng.gamma(2, 1, size=(N, 3)) * (_rng.random(N) < 0.6)[:, None]
POWERS = {
    "slope above two": lambda m, a, b: ((SPENT * b ** np.arange(3)).sum(axis=1)) ** (2 + a),
    "slope above one": lambda m, a, b: ((SPENT * b ** np.arange(3)).sum(axis=1)) ** (1 + 0.5 * a),
    "slope below one": lambda m, a, b: ((SPENT * b ** np.arange(3)).sum(axis=1)) ** (0.5 * a),
    "number": lambda m, a, b: a * ((SPENT * b ** np.arange(3)).sum(axis=1)) ** 1.5,
    "root": lambda m, a, b: a * m.sqrt((SPENT * b ** np.arange(3)).sum(axis=1)),
    "scaled": lambda m, a, b: (SPENT[:, 0] / (b * b)) ** a,
    "data": lambda m, a, b: b * SPENT[:, 0] ** a,
    "exponential of a logarithm": lambda m, a, b: m.exp(a * m.log(b * SPENT[:, 0])),
    "the same of data": lambda m, a, b: b * m.exp(a * m.log(SPENT[:, 0])),
    "product of matrices": lambda m, a, b: m.dot(SPENT, m.stack([b, a, b * a])) ** a,
    "several": lambda m, a, b: (((SPENT * b) ** a) * np.arange(1.0, 4.0)).sum(axis=1),
}


@pytest.mark.costly(cases=2)
@pytest.mark.parametrize("name", POWERS)
def test_powers_of_zeros(name):
    """Derivatives of 0 ** a are zero where nothing moves the zero, below a = 1 too."""
    theta, loglik = np.array([0.9, 0.6]), POWERS[name]
    zero = ~SPENT.any(axis=1)
    assert 0.2 < zero.mean() < 0.6

    def rows(a, b):
        power = loglik(np, a, b)
        return np.where(zero, 0.0, power)

    assert_expanded(potential(loglik), rows, theta)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(("power", "value"), [(0.0, 1.0), (-1.0, np.inf), (0.5, 0.0)])
def test_values_of_powers_of_zeros(power, value):
    tall = potential(lambda m, a, b: (SPENT[:, 0] * b) ** a)
    found = tall.row_loglik(np.array([power, 0.7]), slice(None))
    np.testing.assert_array_equal(found[SPENT[:, 0] == 0], value)
    nonzero = SPENT[:, 0] > 0
    np.testing.assert_allclose(found[nonzero], (SPENT[nonzero, 0] * 0.7) ** power)


def test_zeros_that_parameters_move_are_left_alone():
    """Where b is zero all rows are; none of them is by its data."""
    x = np.abs(U)
    tall = potential(lambda m, a, b: (x * b) ** (a + 1))
    assert not any(v.name == "zero" for v in tall.batch.columns)
    tall = potential(lambda m, a, b: (SPENT[:, 0] * b) ** (a + 1))
    assert any(v.name == "zero" for v in tall.batch.columns)


# Rows without second derivatives: the square of exp(475) is no number.


def overflowing(n=3000, flat=FLAT, noise=1.0):
    rng = np.random.default_rng(3)
    x = rng.normal(size=n)
    x[flat] = rng.uniform(450, 500, len(flat))
    y = np.logaddexp(0, x + np.log(0.5)) + noise * rng.normal(size=n)
    with pm.Model() as model:
        b, k = pm.Normal("b", 0.9, 1), pm.Normal("k", 0.5, 1)
        pm.Normal("y", pt.log1p(k * pt.exp(b * x)), noise, observed=y)
    return model, x, y


CENTER, AWAY = np.array([1.0, 0.55]), np.array([[1.002, 0.5], [0.997, 0.6]])


@pytest.fixture(scope="module")
def flat():
    model, x, y = overflowing()
    return TallModel(model), x, y


def test_rows_without_curvature_are_expanded_to_order_one(flat):
    """The control variates of all other rows are of order 2, and none is off by anything else."""
    tall, x, y = flat
    expansion = expand(tall)
    at = reference_at(expansion, CENTER)
    assert at.flat == len(FLAT)
    assert at.is_finite
    assert not at.is_smooth
    rows = expansion.take(np.arange(tall.n_rows))
    points = np.array([expansion.parameters(theta)[0] for theta in AWAY])
    left = expansion.residuals(rows, at.center, points)
    assert np.flatnonzero(expansion.sums.flat(rows, at.center)).tolist() == FLAT

    def loglik(b, k):
        mu = np.log1p(LONG(k) * np.exp(LONG(b) * x.astype(LONG)))
        return -((y - mu) ** 2) / 2 - np.log(2 * LONG(np.pi)) / 2

    value, slope, bend = differences(loglik, CENTER)
    bend[FLAT] = 0.0
    for theta, found in zip(AWAY, left, strict=True):
        move = theta - CENTER
        proxy = value + slope @ move + np.einsum("iab,a,b->i", bend, move, move) / 2
        exact = loglik(*theta) - proxy
        np.testing.assert_allclose(found, exact.astype(float), atol=1e-7)
        # Sums and differences belong together: the estimate by all rows is the log-likelihood.
        shift = expansion.parameters(theta)[0] - at.center
        total = at.level + at.slope @ shift + shift @ at.curvature @ shift / 2 + found.sum()
        np.testing.assert_allclose(total, float(loglik(*theta).sum()), rtol=1e-12)


def test_gradients_follow_control_variates_of_mixed_order(flat):
    """The gradient of differences and of sums is that of the log-likelihood of all rows."""
    tall, x, y = flat
    expansion = expand(tall)
    at = reference_at(expansion, CENTER)
    rows = expansion.take(np.arange(tall.n_rows))
    expansion.anchor(at.center, rows)
    phi, _ = expansion.parameters(AWAY[0])
    d, by_difference, by_gradient = np.empty(tall.n_rows), np.zeros(2), np.zeros(2)
    expansion.residual(phi, rows, at.center, PERTURBED, 1.0, 0.0, d, by_difference)
    expansion.gradient(phi, rows, at.center, 1.0, by_gradient)
    b, k = AWAY[0]
    mu, share = np.log1p(k * np.exp(b * x)), expit(b * x + np.log(k))
    exact = np.array([((y - mu) * share * x).sum(), ((y - mu) * share / k).sum()])
    for found in (by_difference, by_gradient):
        found += at.slope + at.curvature @ (phi - at.center)
        np.testing.assert_allclose(found, exact, rtol=1e-9)


@pytest.mark.costly(cases=0)
def test_the_general_path_leaves_them_out_of_its_sums(flat):
    tall, _, _ = flat
    one, other = (reference_at(expand(tall, linear=linear), CENTER) for linear in (True, False))
    assert one.flat == other.flat == len(FLAT)
    np.testing.assert_allclose(one.slope, other.slope, rtol=1e-10)
    np.testing.assert_allclose(one.curvature, other.curvature, rtol=1e-9)


def test_bounds_read_rows_without_curvature_always(flat):
    """What order 2 would leave of them is no bound of what order 1 does."""
    tall, _, _ = flat
    expansion = expand(tall)
    at = reference_at(expansion, CENTER)
    points = at.center + [0.001, 0.03] * np.random.default_rng(1).normal(size=(200, 2))
    always = bound_rows(expansion, at, points).table.always
    assert set(FLAT) <= set(always.tolist())
    assert len(always) < tall.n_rows / 4


def test_the_cause_is_named(flat):
    tall, _, _ = flat
    expansion = expand(tall)
    said = flat_rows(expansion, reference_at(expansion, CENTER))
    assert f"{len(FLAT)} rows have no finite second derivatives" in said
    assert "(4, 17, 90)" in said
    assert re.search(r"In row 4 the exponential of \d+.* overflows", said)


@pytest.mark.costly(cases=1)
def test_rows_without_curvature_are_read_always():
    model, _, _ = overflowing()
    step = pms.HMCECS(model=model)
    assert set(FLAT) <= set(step.subsample.always.tolist())
    assert step.subsample_size < 300


@pytest.mark.costly(cases=0)
def test_where_all_rows_have_control_variates_of_one_order_it_is_one(monkeypatch):
    monkeypatch.setattr("pymc_subsample.expansion.linear_predictors", lambda model: None)
    model, _, _ = overflowing()
    step = pms.HMCECS(model=model)
    assert step.control_variate_order == step.expansion.order == 1
    assert np.isfinite(step.moments.variance(step.subsample_size)).all()
    with pytest.raises(TallModelError, match=r"not finite in 3 rows \(4, 17, 90\)\. In row 4 the"):
        pms.HMCECS(model=model, control_variate_order=2)


def test_residuals_of_rows_with_and_without_a_curvature(flat):
    """Negative control: what is left of the rows in question is far more than of any other."""
    tall, _, _ = flat
    expansion = expand(tall)
    at = reference_at(expansion, CENTER)
    found = residuals_around(expansion, at, AWAY)
    assert set(found.index[: len(FLAT)].tolist()) == set(FLAT)
    scores = np.abs(found.outlying[:1]).max(axis=0)
    assert scores[2] > 10 * scores[3]


def posterior(x, y):
    """Means and standard deviations of b and k, on a grid."""
    b, k = np.linspace(0.99, 1.01, 401), np.linspace(0.3, 0.85, 401)
    grid = np.array([
        [-((y - np.logaddexp(0, one * x + np.log(other))) ** 2).sum() / 2 for other in k]
        for one in b
    ])  # fmt: skip
    grid += -((b[:, None] - 0.9) ** 2 + (k - 0.5) ** 2) / 2
    mass = np.exp(grid - grid.max())
    mass /= mass.sum()
    assert mass[[0, -1]].sum() + mass[:, [0, -1]].sum() < 1e-6
    found = []
    for values, weight in ((b, mass.sum(axis=1)), (k, mass.sum(axis=0))):
        mean = (values * weight).sum()
        found.append((mean, np.sqrt(((values - mean) ** 2 * weight).sum())))
    return found


@pytest.mark.costly(cases=0)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("step", [pms.HMCECS, pytest.param(pms.ScalableMH, marks=pytest.mark.slow)])
def test_posterior(step):
    """Rows without second derivatives tell most of what is known of b."""
    model, x, y = overflowing()
    with model:
        idata = pm.sample(2000, tune=1000, chains=2, step=step(), random_seed=1, **QUIET)
    for name, (mean, sd) in zip(("b", "k"), posterior(x, y), strict=True):
        assert_moments(idata.posterior[name].values, mean, sd)


def test_what_underflows_is_no_zero():
    """At the start all of these are zero, and at the data's own scale none."""
    x = 1e4 * _rng.uniform(1, 2, size=N)
    tall = potential(lambda m, a, b: m.exp(-b * x) ** a)
    assert not any(v.name == "zero" for v in tall.batch.columns)
