"""Factors of a covariance: dense, diagonal, and by a sparse Cholesky factor of the precision."""

import numba
import numpy as np
import pymc as pm
import pytest

import pymc_subsample as pms
from pymc_subsample.chain.tuning import Tuning
from pymc_subsample.expansion.estimators import VARIANCE_AIM
from pymc_subsample.expansion.factors import (
    Kind,
    deviations,
    factor,
    kind,
    scaled,
    sparse_factor,
    stretched,
    whiten,
)
from pymc_subsample.kernels.dynamics import Moves
from pymc_subsample.kernels.estimates import SubsampleEstimate, outside
from pymc_subsample.kernels.vectors import scale_back, scale_up
from pymc_subsample.samplers.hmc_ecs import adaptation

SIZE = 40


def crossed(size=SIZE, border=4, seed=1):
    """Return a precision of many effects, each tied to a few others."""
    rng = np.random.default_rng(seed)
    matrix = np.diag(rng.uniform(2.0, 30.0, size))
    tied = rng.choice(size, border, replace=False)
    ties = 0.3 * rng.normal(size=(border, size))
    matrix[tied] += ties
    matrix[:, tied] += ties.T
    return matrix + size * np.diag(np.isin(np.arange(size), tied))


def forms():
    matrix = crossed()
    diagonal = np.diag(np.diag(matrix))
    return {
        "dense": (matrix, factor(np.linalg.inv(matrix))),
        "diagonal": (diagonal, 1 / np.sqrt(np.diag(matrix))[None]),
        "sparse": (matrix, sparse_factor(matrix)),
    }


@pytest.mark.parametrize("form", ["dense", "diagonal", "sparse"])
def test_factors_multiply_and_divide(form):
    precision, F = forms()[form]
    assert kind(F) is {"dense": Kind.FULL, "diagonal": Kind.DIAGONAL, "sparse": Kind.SPARSE}[form]
    z = np.random.default_rng(2).normal(size=(3, SIZE))
    x = scaled(F, z)
    lengths = np.einsum("ki,ij,kj->k", x, precision, x)
    np.testing.assert_allclose(lengths, np.sum(z**2, axis=1), rtol=1e-5)
    np.testing.assert_allclose(whiten(F, x.T).T, z, atol=1e-12)
    np.testing.assert_allclose(whiten(F, x[0]), z[0], atol=1e-12)
    out = np.empty(SIZE)
    scale_up(F, z[0], out)
    np.testing.assert_allclose(out, x[0], rtol=1e-10)
    slope, order = np.random.default_rng(3).normal(size=SIZE), np.arange(SIZE)
    numba.njit(lambda *arguments: scale_back(*arguments))(F, slope, order, out)
    np.testing.assert_allclose(out @ z[0], slope @ x[0], rtol=1e-10)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("form", ["dense", "diagonal", "sparse"])
def test_radius_of_the_ellipsoid(form):
    _, F = forms()[form]
    rng = np.random.default_rng(4)
    origin, z = rng.normal(size=SIZE), rng.normal(size=SIZE)
    theta = origin + scaled(F, z[None])[0]
    moves = Moves(np.arange(SIZE), F, 0.0, 0.0)
    for radius in (0.999, 1.001):
        given = SubsampleEstimate(
            1.0, 1.0, 1.0, origin, radius * np.linalg.norm(z), np.empty((0, 0)), 1.0
        )
        assert numba.njit(lambda *at: outside(*at))(given, moves, theta) == (radius < 1)


@pytest.mark.parametrize("form", ["diagonal", "sparse"])
def test_stretched_factors_have_their_variances(form):
    _, F = forms()[form]
    ratio = np.random.default_rng(5).uniform(0.1, 9.0, SIZE)
    x = scaled(stretched(F, ratio), np.eye(SIZE)).T
    np.testing.assert_allclose(np.sum(whiten(F, x) ** 2, axis=1), ratio, rtol=1e-10)


def test_deviations():
    precision, F = forms()["sparse"]
    expected = np.sqrt(np.diag(np.linalg.inv(precision)))
    np.testing.assert_allclose(deviations(F, SIZE), expected, rtol=1e-6)
    _, F = forms()["dense"]
    np.testing.assert_allclose(deviations(F, SIZE), expected)


def test_no_sparse_factor_of_other_matrices(monkeypatch):
    assert sparse_factor(-crossed()) is None
    indefinite = crossed()
    indefinite[0, 1] = indefinite[1, 0] = 1e3
    assert sparse_factor(indefinite) is None
    assert sparse_factor(np.full((SIZE, SIZE), np.nan)) is None
    assert sparse_factor(np.kron(np.eye(20), np.ones((2, 2)))) is None
    assert sparse_factor(np.eye(3)) is None
    monkeypatch.setattr("pymc_subsample.expansion.factors._MOST_PER_ROW", 3)
    assert sparse_factor(crossed()) is None


@pytest.fixture(scope="module")
def many_effects():
    """Crossed groups with known scales, whose posterior is normal."""
    rng = np.random.default_rng(6)
    n, rows, columns = 6_000, 600, 15
    g, h = rng.integers(0, rows, n), rng.integers(0, columns, n)
    y = rng.normal(size=rows)[g] + rng.normal(size=columns)[h] + rng.normal(size=n)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1, shape=rows)
        b = pm.Normal("b", 0, 1, shape=columns)
        pm.Normal("y", a[g] + b[h], 1.0, observed=y)
    X = np.zeros((n, rows + columns))
    X[np.arange(n), g] = X[np.arange(n), rows + h] = 1.0
    covariance = np.linalg.inv(X.T @ X + np.eye(rows + columns))
    return model, covariance @ X.T @ y, np.sqrt(np.diag(covariance))


@pytest.mark.costly(cases=0)
def test_many_effects_move_by_their_sparse_precision(many_effects):
    """Means and sds within 5 standard errors of 330 effective draws, of 1,000."""
    model, mean, sd = many_effects
    with model:
        step = pms.HMCECS(integrate=False, rng=1)
        assert kind(step.tuning.factor) is Kind.SPARSE
        idata = pm.sample(
            step=step, chains=1, tune=200, draws=1_000, random_seed=1, progressbar=False,
            quiet=True, compute_convergence_checks=False,
        )  # fmt: skip
    draws = np.concatenate([idata.posterior[name].values[0] for name in "ab"], axis=1)
    error = np.abs(draws.mean(axis=0) - mean) / sd * np.sqrt(330)
    assert error.max() < 5
    assert np.abs(draws.std(axis=0) / sd - 1).max() < 5 / np.sqrt(2 * 330)
    assert idata.sample_stats["n_steps"].mean() < 12


def test_variances_of_sparse_factors_are_adapted():
    size = 120
    F = sparse_factor(crossed(size))
    tuning = Tuning(100, np.arange(size), size, F, 0.8)
    rng = np.random.default_rng(7)
    ratio = np.r_[9.0, np.ones(size - 1)]
    tuning.thetas = scaled(F, np.sqrt(ratio) * rng.standard_normal((800, size)))
    tuning.variances = np.zeros(800)
    better = tuning.better_factor()
    np.testing.assert_allclose(
        better, stretched(F, np.var(whiten(F, tuning.recent().T), axis=1)), rtol=0.1
    )
    tuning.thetas = scaled(F, rng.standard_normal((800, size)))
    assert tuning.better_factor() is None


def test_a_covariance_that_cannot_be_factored_is_not_formed():
    """Draws are far wider than the mass matrix in a direction that all parameters share."""
    rng, scale = np.random.default_rng(1), np.array([1e-5, 1.0, 1e5])
    correlated = np.linalg.cholesky(0.999 * np.ones((3, 3)) + 0.001 * np.eye(3))
    lower = scale[:, None] * correlated
    tuning = Tuning(1000, np.arange(3), 3, lower, 0.8)
    tuning.thetas = (np.array([1e7, 1.0, 1.0]) * rng.normal(size=(1000, 3))) @ lower.T
    tuning.variances = np.zeros(1000)
    better = tuning.better_factor()
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(better @ better.T)
    assert np.all(np.triu(better, 1) == 0)
    white = np.linalg.solve(better, tuning.recent().T)
    np.testing.assert_allclose(white.std(axis=1), 1.0, atol=0.05)
    tuning.thetas = np.tile(tuning.thetas[:1], (1000, 1)) * rng.normal(size=(1000, 1)) * 1e12
    assert tuning.better_factor() is None


@pytest.mark.costly(cases=0)
def test_a_noisy_chain_takes_more_rows(many_effects, monkeypatch):
    model, _, _ = many_effects
    step = pms.HMCECS(model=model, integrate=False, rng=1)
    monkeypatch.setattr(Tuning, "noise", lambda _: 1.5)
    monkeypatch.setattr(Tuning, "should_recentre", lambda *_: False)
    step.setup_chain(np.random.default_rng(1), tune=200, draws=10)
    point, sizes = model.initial_point(), []
    for _ in range(200):
        point, [stats] = step.step(point)
        sizes.append(stats["subsample_size"])
    assert sorted(set(sizes)) == [100, 200, 400, 800]
    assert step.subsample.rows.shape[1] == 800
    for given in ({"subsample_size": 100}, {"reference": {"a": np.zeros(600), "b": np.zeros(15)}}):
        assert not pms.HMCECS(model=model, integrate=False, rng=1, **given).may_resize


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("distance", [0.1, 8.0])
def test_the_subsample_covers_draws_where_the_estimate_was_noisiest(distance):
    rng = np.random.default_rng(3)
    X = rng.standard_t(4, (1000, 3))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=3)
        pm.Poisson("y", pm.math.exp(X @ b), observed=rng.poisson(np.exp(0.1 * X.sum(axis=1))))
    step = pms.HMCECS(model=model, integrate=False, rng=1)
    step.setup_chain(np.random.default_rng(1), tune=200, draws=10)
    rng, before = np.random.default_rng(2), step.subsample_size
    tuning = step.tuning
    z = rng.standard_normal((80, len(step.active)))
    z[-9:-1] *= distance / np.linalg.norm(z[-9:-1], axis=1, keepdims=True)
    tuning.thetas, tuning.variances = np.tile(step.reference.theta, (80, 1)), np.full(80, 0.1)
    tuning.thetas[:, step.active] += scaled(tuning.factor, z)
    tuning.variances[-9:-1] = 2.0 + rng.random(8)
    noisy = tuning.thetas[-9:-1]
    assert {t.tobytes() for t in tuning.noisiest()} == {t.tobytes() for t in noisy}
    assert tuning.peak() == tuning.variances.max()
    adaptation.cover(step)
    if distance < 1:
        assert step.subsample_size == before
    else:
        assert before < step.subsample_size <= 4 * before
        noise = np.max(step.moments.variance(step.subsample_size))
        assert noise <= VARIANCE_AIM or step.subsample_size == 4 * before


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("n_blocks", [25, 200])
def test_more_rows_are_a_multiple_of_given_blocks(many_effects, n_blocks):
    model, _, _ = many_effects
    step = pms.HMCECS(model=model, integrate=False, rng=1, n_blocks=n_blocks)
    step.setup_chain(np.random.default_rng(1), tune=200, draws=10)
    point, before = model.initial_point(), step.subsample_size
    adaptation.enlarge(step, 1.3 / 0.75)
    assert step.subsample_size % n_blocks == 0
    assert step.subsample_size >= before * 1.3 / 0.75
    step.step(point)
    assert step.subsample.rows.shape[1] == step.subsample_size
    for ratio, size in ((np.inf, step.subsample_size), (1e9, 4 * step.subsample_size)):
        adaptation.enlarge(step, ratio)
        assert step.subsample_size == size


@pytest.mark.costly(cases=0)
def test_state_with_a_sparse_factor_round_trips(many_effects):
    model, _, _ = many_effects
    first, second = (pms.HMCECS(model=model, integrate=False, rng=seed) for seed in (1, 2))
    for step in (first, second):
        step.setup_chain(np.random.default_rng(3), tune=10, draws=10)
    point, _ = first.step(model.initial_point())
    second.sampling_state = first.sampling_state
    twin, point = second.step(point)[0], first.step(point)[0]
    for name in point:
        np.testing.assert_array_equal(point[name], twin[name])


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    "make",
    [
        lambda model: pms.sgmcmc.PSGLD(model=model, integrate=False, rng=1),
        lambda model: pms.sgmcmc.SGHMC(model=model, integrate=False, rng=1),
        lambda model: pms.MinibatchBarkerMH(model=model, integrate=False, rng=1),
        lambda model: pms.HMCECS(model=model, rng=1, vars=[model["a"]]),
    ],
    ids=["PSGLD", "SGHMC", "Barker", "some variables"],
)
def test_other_steps_move_by_a_sparse_precision(many_effects, make):
    model, mean, sd = many_effects
    step = make(model)
    idata = pm.sample(
        step=step, model=model, chains=1, tune=100, draws=100, random_seed=1, progressbar=False,
        quiet=True, compute_convergence_checks=False,
    )  # fmt: skip
    draws = idata.posterior["a"].values[0]
    assert np.all(np.isfinite(draws))
    # Starts are within a few standard deviations, and so is every draw of a chain that is sane.
    assert np.median(np.abs(draws - mean[:600]) / sd[:600]) < 3
