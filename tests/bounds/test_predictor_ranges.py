"""Bounds of the rows' terms from how far their linear predictors move."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from models import K, N

from pymc_subsample.bounds import predictor_ranges as reach_module
from pymc_subsample.bounds.predictor_ranges import everywhere
from pymc_subsample.expansion import expand
from pymc_subsample.expansion import expansion as expansion_module
from pymc_subsample.expansion.everywhere import distinct, largest_size
from pymc_subsample.model import TallModel
from pymc_subsample.samplers.minibatch.largest_term import farthest, linear_bound

# Suprema of derivatives 1, 2, 3 of log p in the predictor.
LOGISTIC = [1.0, 1 / 4, 1 / (6 * np.sqrt(3))]


@pytest.mark.costly(cases=2)
@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize(
    "name", ["bernoulli_logit", "bernoulli_logit_intercept_dot", "bernoulli_p", "dtype_bool"]
)
def test_derivatives_of_logistic_regression(name, order, expansion):
    bound, _ = everywhere(expansion(name, order))
    assert LOGISTIC[order] <= bound <= 1.002 * LOGISTIC[order]


def student(order, nu=4.0, scale=0.7):
    """Supremum of a derivative of log(1 + z^2 / (nu s^2)) (nu + 1) / 2, on a fine grid."""
    z = np.linspace(-20, 20, 400_001)
    a = nu * scale**2
    first = z / (z**2 + a)
    second = (a - z**2) / (z**2 + a) ** 2
    third = 2 * z * (z**2 - 3 * a) / (z**2 + a) ** 3
    return (nu + 1) * np.abs([first, second, third][order]).max()


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("order", [0, 1, 2])
def test_derivatives_of_student_t_regression_with_known_scale(order):
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(N, 2)), rng.integers(-2, 3, N).astype(float)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.StudentT("y", nu=4, mu=X @ beta, sigma=0.7, observed=y)
    bound, _ = everywhere(expand(TallModel(model), order))
    assert student(order) * 0.9999 <= bound <= 1.002 * student(order)


@pytest.mark.costly(cases=3)
@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("poisson_offset", 0),  # not bounded
        ("poisson_offset", 2),
        ("bernoulli_probit", 0),
        ("normal", 0),  # its scale is a second predictor
        ("categorical_softmax", 2),
        ("two_layer_network", 2),
        ("weibull_censored_potential", 0),
    ],
)
def test_models_without_a_bound(name, order, expansion):
    assert everywhere(expansion(name, order)) is None


@pytest.mark.costly
def test_normal_regression_with_known_scale():
    """Its first derivative is not bounded; the second is 1 / sigma^2, the third zero.

    The predictor may be mu or (y - mu) / sigma: the product of slope and reach is the same.
    """
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, 2))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        pm.Normal("y", X @ beta, 0.5, observed=np.round(X.sum(axis=1)))
    tall = TallModel(model)
    assert everywhere(expand(tall, 0)) is None
    slope, table = everywhere(expand(tall, 1))
    scale = table[2] / np.abs(X).max(axis=0)
    np.testing.assert_allclose(slope * scale**2, 4, rtol=2e-3)
    assert everywhere(expand(tall, 2))[0] < 1e-10


@pytest.mark.costly
def test_binomial_regression_takes_the_largest_number_of_trials(expansion):
    bound, _ = everywhere(expansion("binomial", 2))
    np.testing.assert_allclose(bound, 19 * LOGISTIC[2], rtol=2e-3)


@pytest.mark.parametrize(
    ("derivative", "expected"),
    [
        (lambda x: 2 * pt.tanh(x), 2.0),
        (lambda x: -3 * pt.exp(-(x**2)), 3.0),
        (lambda x: x, None),
        (lambda x: pt.log(x), None),
        (lambda x: pt.log1p(x**2), None),
        (lambda x: pt.exp(-x), None),
        (lambda x: 2e-4 / (x**2 + 1e-4) ** 1.5, 200.0),  # narrower than a step of the grid
        (lambda x: 1 / ((1e3 * (x - 0.1234)) ** 2 + 1), 1.0),
        (lambda x: x / pt.sqrt(x**2), None),
    ],
)
def test_largest_size(derivative, expected):
    x, y = pt.vector("x"), pt.vector("y")
    found = largest_size(derivative(x) * y, x, [y], np.array([[1.0, -0.5]]))
    assert found is None if expected is None else expected <= found <= 1.002 * expected


ROW_FUNCTIONS = {
    "smooth": lambda x: pt.softplus(x),
    "kink": lambda x: -abs(x),
    "rectifier": lambda x: -pt.softplus(pt.maximum(x - 0.3, 0.0)),
    "step": lambda x: pt.sigmoid(x) + pt.floor(x),
    "switch": lambda x: pt.switch(x > 1.0, 1.0, 0.0),
    "huber": lambda x: -pt.switch(abs(x) < 1, x**2 / 2, abs(x) - 0.5),
    "root of a square": lambda x: -pt.sqrt((x - 0.2) ** 2),
    "root of a fourth power": lambda x: -(((x - 0.2) ** 4) ** 0.25),
    "log of a square": lambda x: -pt.exp(pt.log((x - 0.2) ** 2) / 2),
    "saw": lambda x: pt.arcsin(pt.sin(x)),
    "steps": lambda x: pt.arctan(pt.tan(x)),
}


@pytest.mark.costly(cases=3)
@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("name", ROW_FUNCTIONS)
def test_derivatives_do_not_see_kinks_and_steps(name, order):
    """Differentiated, a kink is zero everywhere: that bounds no remainder."""
    X = np.random.default_rng(1).normal(size=(N, 2))
    with pm.Model() as model:
        pm.Potential("y", ROW_FUNCTIONS[name](X @ pm.Normal("beta", shape=2)))
    bound = expand(TallModel(model), order).slope()
    # Without control variates a kink has a largest slope.
    exists = {"smooth": 2, "kink": 0, "rectifier": 0}
    assert (bound is not None) == (order <= exists.get(name, -1))


@pytest.mark.costly
@pytest.mark.parametrize("first", [5.0, 40.0])
def test_kinks_are_looked_for_where_the_data_are(first):
    X = np.random.default_rng(1).normal(size=(400, 2))
    y = first + np.arange(400.0) % 40
    with pm.Model() as model:
        pm.Laplace("y", X @ pm.Normal("beta", shape=2), 1, observed=y)
    assert expand(TallModel(model), 0).slope() is not None
    assert expand(TallModel(model), 1).slope() is None


def test_distinct_kinds_of_rows():
    rng = np.random.default_rng(2)

    def found(rows, positions):
        batches = SimpleNamespace(over=lambda f, *rest: (f(None, [x], *rest) for x in rows))
        return distinct(batches, positions)

    rows = [rng.integers(0, 2, (3, 50)).astype(float) for _ in range(4)]
    assert sorted(map(tuple, found(rows, [0, 2]).T)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert found(rows, []).shape[0] == 0
    assert found([rng.normal(size=(1, 65))], [0]) is None
    assert found([rng.normal(size=(1, 40)) for _ in range(2)], [0]) is None


# The table


def with_design(X, y=None, groups=None):
    y = np.arange(len(X)) % 2 if y is None else y
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=X.shape[1])
        eta = X @ beta
        if groups is not None:
            eta = eta + pm.Normal("a", 0, 1, shape=int(groups.max()) + 1)[groups]
        pm.Bernoulli("y", logit_p=eta, observed=y)
    return model


@pytest.fixture(scope="module")
def design():
    """Correlated columns of different scales, with an outlier."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(N, K)) @ [[1, 0.9, 0], [0, 0.3, 0], [0, 0, 50.0]]
    X[17] *= 4
    return X


@pytest.fixture(scope="module")
def table(design):
    return everywhere(expand(TallModel(with_design(design)), 0))[1]


def test_table_holds_maxima_and_a_factor_of_the_products(design, table):
    size = K
    np.testing.assert_allclose(table[size], np.abs(design).max(axis=0), rtol=1e-12)
    W = table[:size]
    np.testing.assert_allclose(W.T @ W, design.T @ design, rtol=1e-6)
    leverages = np.einsum("ij,jk,ik->i", design, np.linalg.inv(design.T @ design), design)
    np.testing.assert_allclose(table[size + 1, 0], np.sqrt(leverages.max()), rtol=1e-6)


def test_no_predictor_moves_farther_than_farthest(design, table):
    rng = np.random.default_rng(4)
    tight = []
    for scale in ([1, 1, 1], [1, 1, 1e-3], [1, -1, 0], [0, 0, 1], [0, 0, 0]):
        for _ in range(50):
            one, move = rng.normal(size=(2, K))
            other = one + scale * move
            actual = np.abs(design @ (other - one)).max()
            bound = farthest(one, other, table)
            assert bound >= actual * (1 - 1e-9)
            assert bound <= np.abs(other - one) @ np.abs(design).max(axis=0) + 1e-12
            tight.append(actual / bound if actual > 0 else 1.0)
    assert np.median(tight) > 0.5
    assert np.max(tight[:-50]) > 0.95


def test_the_whitened_bound_is_attained_in_the_direction_of_the_largest_leverage(design, table):
    inverse = np.linalg.inv(design.T @ design)
    leverages = np.einsum("ij,jk,ik->i", design, inverse, design)
    x = design[np.argmax(leverages)]
    move = inverse @ x
    bound = farthest(np.zeros(K), move, table)
    np.testing.assert_allclose(bound, x @ move, rtol=1e-6)
    assert bound < 0.9 * np.abs(move) @ np.abs(design).max(axis=0)


@pytest.mark.costly
def test_groups_and_missing_columns_have_a_table(design):
    """Group effects are columns of zeros and ones; a column of zeros makes no trouble."""
    rng = np.random.default_rng(5)
    groups = rng.integers(0, 4, N)
    X = np.c_[design, np.zeros(N)]
    tall = TallModel(with_design(X, groups=groups))
    assert [v.name for v in tall.phi_slices] == ["a", "beta"]
    _, table = everywhere(expand(tall, 0))
    full = np.c_[np.eye(4)[groups], X]
    assert np.isfinite(table).all()
    for _ in range(50):
        move = rng.normal(size=full.shape[1])
        bound = farthest(np.zeros(len(move)), move, table)
        assert bound >= np.abs(full @ move).max() * (1 - 1e-9)


def test_chunks_do_not_change_the_table(design, table, monkeypatch):
    ex = expand(TallModel(with_design(design)), 0)
    monkeypatch.setattr(expansion_module, "_CHUNK_BYTES", 8 * ex.width * 10)
    np.testing.assert_allclose(everywhere(ex)[1], table, rtol=1e-9)


def test_rows_that_are_left_out_bound_nothing(design, table):
    """The farthest one, and those of a column that all others have zeros in."""
    X = np.c_[design, np.arange(N) < 3]
    out = np.array([0, 1, 2, 17])
    ex = expand(TallModel(with_design(X)), 0)
    _, found = everywhere(ex, out)
    _, expected = everywhere(expand(TallModel(with_design(np.delete(X, out, axis=0))), 0))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    rng = np.random.default_rng(6)
    for scale in ([1, 1, 1, 1], [0, 0, 0, 1]):
        move = scale * rng.normal(size=K + 1)
        actual = np.abs(np.delete(X, out, axis=0) @ move).max()
        assert actual * (1 - 1e-9) <= farthest(np.zeros(K + 1), move, found)
    assert farthest(np.zeros(K + 1), move, everywhere(ex)[1]) > 0.0
    assert farthest(np.zeros(K + 1), move, found) == 0.0


def test_many_parameters_take_the_crude_bound_alone(monkeypatch, design, table):
    monkeypatch.setattr(reach_module, "_MAX_DENSE", K - 1)
    _, crude = everywhere(expand(TallModel(with_design(design)), 0))
    move = np.array([0.3, -0.3, 0.0])
    np.testing.assert_allclose(
        farthest(np.zeros(K), move, crude), np.abs(move) @ np.abs(design).max(axis=0)
    )
    assert farthest(np.zeros(K), move, table) < farthest(np.zeros(K), move, crude)


# The bound itself


@pytest.mark.costly
@pytest.mark.parametrize("order", [0, 1, 2])
def test_no_row_exceeds_the_bound(order, expansion, tall_model):
    ex, tall = expansion("bernoulli_logit", order), tall_model("bernoulli_logit")
    slope, table = everywhere(ex)
    rng, weight, ratios = np.random.default_rng(6), N / 2.0, []
    rows = ex.take(np.arange(N))
    for spread in (0.01, 0.3, 2.0, 10.0):
        for _ in range(100):
            center = rng.normal(size=tall.phi_size)
            phi, new_phi = center + spread * rng.normal(size=(2, tall.phi_size))
            ex.anchor(center, rows)
            y = np.empty(N)
            ex.change(phi, new_phi, center, rows, y)
            bound = linear_bound(phi, new_phi, center, order, weight, slope, table)
            largest = weight * np.abs(y).max()
            # Differences of log-likelihoods are exact to rounding, however small.
            assert largest <= bound + 1e-12 * weight * np.abs(phi).max()
            if bound > 1e-6 * weight:
                ratios.append(largest / bound)
    assert 0.2 < np.max(ratios) <= 1 + 1e-9  # a fifth of the bound would be too small
