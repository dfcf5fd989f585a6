"""Intervals hold what their graphs can give, and bounds of remainders near the reference hold."""

from itertools import product

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_subsample as pms
from pymc_subsample.bounds import predictor_ranges as reach_module
from pymc_subsample.bounds.predictor_ranges import nearby
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.coefficients import combined
from pymc_subsample.expansion.quadratic import Posterior
from pymc_subsample.expansion.search import find_mode
from pymc_subsample.graph.interpreter import NoForm
from pymc_subsample.graph.intervals import Enclosure, enclose
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.model import TallModel
from pymc_subsample.samplers.minibatch.confidence import local_bounds
from pymc_subsample.samplers.minibatch.largest_term import local_bound

GRAPHS = {
    "sums": lambda x, y: 2 * x - y + 1,
    "products": lambda x, y: x * y * (x - 3),
    "square": lambda x, y: (x - y) * (x - y) + x**2,
    "quotient": lambda x, y: x / (2 + y**2),
    "across zero": lambda x, y: 1 / x,
    "powers": lambda x, y: x**3 - abs(y) ** 1.5 + (1 + x**2) ** -2,
    "power by data": lambda x, y: (1 + x**2) ** y,
    "negative base": lambda x, y: x**y,
    "logs": lambda x, y: pt.log(x**2 + 1) + pt.log1p(y**2) + pt.sqrt(1 + y**2),
    "log of what may be negative": lambda x, y: pt.log(x),
    "exponentials": lambda x, y: pt.exp(x) - pt.expm1(y) + pt.tanh(x * y),
    "sigmoid": lambda x, y: pt.sigmoid(x) * (1 - pt.sigmoid(x)) * (1 - 2 * pt.sigmoid(x)),
    "softplus": lambda x, y: pt.softplus(x - y),
    "choice": lambda x, y: pt.switch(pt.and_(x > 0, y < 1), x**2, -y),
    "extremes": lambda x, y: pt.maximum(x, y) - pt.minimum(x, 2 * y),
    "choice by index": lambda x, y: pt.stack([x, -y, x * y], axis=1)[
        pt.arange(x.shape[0]), (y > 0).astype("int64") - 1
    ],
    "comparison": lambda x, y: pt.eq(x, y) + pt.ge(x, y) * x,
    "whole numbers": lambda x, y: pt.cast(x, "int64") + pt.floor(y) - pt.ceil(x) * pt.trunc(y),
    "truth of a number": lambda x, y: pt.cast(pt.trunc(x), "bool") * y,
    "error functions": lambda x, y: pt.erf(x) + pt.erfc(y) + pt.erfcx(abs(x)),
    "gamma": lambda x, y: pt.gammaln(x**2 + 0.3) + pt.psi(y**2 + 0.1),
    "trigamma": lambda x, y: pt.polygamma(1, x**2 + 0.3) - pt.polygamma(2, y**2 + 0.3),
}


@pytest.mark.costly(cases=5)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("width", [0.0, 0.1, 2.0])
def test_values_lie_in_their_enclosure(name, width):
    x, y = pt.dvector("x"), pt.dvector("y")
    graph = GRAPHS[name](x, y).astype("float64")
    rng = np.random.default_rng(1)
    centers = rng.normal(0, 2, (2, 50))
    [found] = enclose([graph], [x, y])([Enclosure(c - width, c + width) for c in centers])
    evaluate = numpy_function([x, y], [graph])
    for _ in range(200):
        at = centers + width * rng.choice([-1, 1, 2], centers.shape) * rng.uniform(0, 0.5, (2, 50))
        assert np.all(np.abs(at - centers) <= width + 1e-12)
        [value] = evaluate(*at)
        slack = 1e-9 * (1 + np.abs(value))
        ok = np.isnan(value) | ((found.low <= value + slack) & (value <= found.high + slack))
        assert ok.all()
    if width == 0.0 and name not in ("negative base", "log of what may be negative"):
        np.testing.assert_allclose(found.low, found.high, rtol=1e-9, atol=1e-12)


def test_intervals_are_as_narrow_as_single_occurrences_allow():
    x, y = pt.dvector("x"), pt.dvector("y")
    [found] = enclose([(x - y) ** 2], [x, y])(
        [Enclosure(np.array([-1.0, 2.0]), np.array([1.0, 3.0])), Enclosure(0.0, 0.0)]
    )
    np.testing.assert_allclose(found.low, [0, 4])
    np.testing.assert_allclose(found.high, [1, 9])


def test_what_has_no_rule_is_not_enclosed():
    x = pt.dvector("x")
    with pytest.raises(NoForm):
        enclose([pt.sin(x)], [x])([Enclosure(0.0, 1.0)])
    with pytest.raises(NoForm):
        enclose([pt.mod(x, 2.0)], [x])([Enclosure(0.0, 3.0)])


# Remainders

N = 400


def _x(seed=2):
    return np.random.default_rng(seed).normal(size=(N, 2))


def normal():
    X, rng = _x(), np.random.default_rng(3)
    with pm.Model() as model:
        beta, sigma = pm.Normal("beta", 0, 2, shape=2), pm.HalfNormal("sigma", 2)
        pm.Normal("y", X @ beta, sigma, observed=X.sum(axis=1) + 1.5 * rng.standard_t(4, N))
    return model


def poisson():
    X, rng = _x(), np.random.default_rng(3)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=2)
        rate = pm.math.exp(0.5 + X @ beta)
        pm.Poisson("y", rate, observed=rng.poisson(np.exp(0.5 + X @ [0.3, -0.2])))
    return model


def student():
    y = 1 + 2 * np.random.default_rng(3).standard_t(4, N)
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 5), pm.HalfNormal("sigma", 5)
        pm.StudentT("y", nu=4, mu=mu, sigma=sigma, observed=y)
    return model


def groups():
    rng = np.random.default_rng(4)
    g = rng.integers(0, 4, N)
    with pm.Model() as model:
        a, sigma = pm.Normal("a", 0, 2, shape=4), pm.HalfNormal("sigma", 2)
        pm.Normal("y", a[g], sigma, observed=g + rng.normal(size=N))
    return model


@pytest.fixture(scope="module", params=[normal, poisson, student, groups])
def case(request):
    """A model, its expansions and their references by order."""
    tall = TallModel(request.param())
    made = {}
    for order in (1, 2):
        ex = expand(tall, order)
        start, every = tall.ravel(tall.initial_point), np.arange(tall.size)
        at = find_mode(Posterior(ex), start, every, np.random.default_rng(1))
        made[order] = ex, at.reference
    return made


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("order", [1, 2])
def test_no_row_exceeds_the_local_bound(case, order):
    ex, at = case[order]
    table = nearby(ex, at.center, at.curvature)
    size = ex.phi_size
    metric, radii = table[:size, :size], table[size:, 0]
    np.testing.assert_allclose(
        metric.T @ metric, -at.curvature, rtol=1e-6, atol=1e-6 * np.abs(at.curvature).max()
    )
    rng, rows, ratios = np.random.default_rng(5), ex.take(np.arange(N)), []
    ex.anchor(at.center, rows)
    inverse = np.linalg.inv(metric)
    for _ in range(400):
        z = rng.normal(size=(2, size))
        z *= (rng.uniform(0, radii[-1], 2) / np.linalg.norm(z, axis=1))[:, None]
        phi, new_phi = at.center + z @ inverse.T
        y = np.empty(N)
        ex.change(phi, new_phi, at.center, rows, y)
        bound = local_bound(phi, new_phi, at.center, order, 3.0, table)
        if np.isfinite(bound):
            assert 3 * np.abs(y).max() <= bound + 1e-9
            ratios.append(3 * np.abs(y).max() / bound)
    assert len(ratios) > 100
    assert np.max(ratios) > 0.04
    outside = at.center + inverse @ np.r_[1.01 * radii[-1], np.zeros(size - 1)]
    assert local_bound(at.center, outside, at.center, order, 1.0, table) == np.inf
    assert local_bound(outside, at.center, at.center, order, 1.0, table) == np.inf


def test_every_derivative_counts_as_often_as_it_occurs():
    rng = np.random.default_rng(6)
    moves = rng.uniform(0, 2, size=(2, 5))
    which = [(0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 1, 1)]
    sizes = dict(zip(which, rng.uniform(1, 2, (4, 5)), strict=True))
    total = sum(
        sizes[tuple(sorted(each))] * np.prod(moves[list(each)], axis=0) / 6
        for each in product(range(2), repeat=3)
    )
    enclosures = [Enclosure(-s, s / 2) for s in sizes.values()]
    np.testing.assert_allclose(combined(which, enclosures, moves), total)


@pytest.mark.costly(cases=0)
def test_chunks_do_not_change_the_table(monkeypatch):
    from pymc_subsample.expansion import expansion as module

    tall = TallModel(normal())
    ex = expand(tall, 2)
    start, every = tall.ravel(tall.initial_point), np.arange(tall.size)
    at = find_mode(Posterior(ex), start, every, np.random.default_rng(1)).reference
    table = nearby(ex, at.center, at.curvature)
    monkeypatch.setattr(module, "_CHUNK_BYTES", 8 * ex.width * 33)
    np.testing.assert_allclose(nearby(ex, at.center, at.curvature), table, rtol=1e-9)
    monkeypatch.setattr(reach_module, "_MAX_DENSE", ex.phi_size - 1)
    assert nearby(ex, at.center, at.curvature) is None


@pytest.mark.costly
def test_models_without_few_predictors_have_no_local_bound(expansion, tall_model):
    for name in ("two_layer_network",):
        ex = expansion(name, 2)
        size = tall_model(name).phi_size
        assert nearby(ex, np.zeros(size), -np.eye(size)) is None


# The step


def run(step, draws, tune=0, seed=1):
    step.setup_chain(np.random.default_rng(seed), tune, draws)
    point, stats = step.model.initial_point(), []
    for d in range(draws + tune):
        if d == tune:
            step.stop_tuning()
        point, [stat] = step.step(point)
        stats.append(stat)
    return stats


@pytest.mark.costly(cases=0)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_regression_with_unknown_scale_takes_no_passes():
    model = normal()
    step = pms.ConfidenceMH(model=model, transitions_per_draw=4)
    stats = run(step, 60, tune=200)[200:]
    passes = [s["n_evaluations"] - 16 * s["batch_size"] for s in stats]
    assert np.mean(np.array(passes) > 0) < 0.05
    assert np.all(np.isin(passes, 4 * N * np.arange(5)))
    full = pms.ConfidenceMH(model=model, transitions_per_draw=4, bound="full")
    spent = [s["n_evaluations"] - 16 * s["batch_size"] for s in run(full, 5)]
    np.testing.assert_allclose(spent, 16 * N)


@pytest.mark.costly(cases=0)
def test_proposals_far_from_the_reference_take_a_pass():
    step = pms.ConfidenceMH(
        model=normal(), transitions_per_draw=1,
        proposal=lambda point, rng: ({"beta": point["beta"] + 100.0}, 0.0),
    )  # fmt: skip
    [stat] = run(step, 1)
    assert stat["n_evaluations"] == 4 * (stat["batch_size"] + N)


@pytest.mark.costly
def test_the_table_follows_the_reference():
    step = pms.ConfidenceMH(model=normal())
    first = local_bounds(step)
    assert local_bounds(step) is first
    from pymc_subsample.expansion.reference import reference_at

    step.reference = reference_at(step.expansion, step.reference.theta + 0.05)
    assert not np.allclose(local_bounds(step), first)


def test_a_local_bound_needs_control_variates():
    with pytest.raises(ValueError, match='bound="local" needs control variates'):
        pms.ConfidenceMH(model=normal(), bound="local", control_variate_order=None)
