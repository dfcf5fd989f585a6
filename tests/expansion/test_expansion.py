"""Control variates: Taylor expansions, their sums over all rows, and the reference point.

The expected values are PyTensor's own derivatives of the batch graph, evaluated in plain Python.
"""

import tracemalloc
import warnings
from copy import copy
from dataclasses import replace
from types import SimpleNamespace

import numba
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.optimize
from models import MODELS, G, K, N, dose_response, row_gradient
from pytensor.gradient import grad, grad_scale
from scipy.special import expit, polygamma

import pymc_subsample as pms
from pymc_subsample import expansion as control_variates
from pymc_subsample.expansion import expand, general
from pymc_subsample.expansion import expansion as expansion_module
from pymc_subsample.expansion.curvature import covariance, covariance_factor
from pymc_subsample.expansion.factors import factor
from pymc_subsample.expansion.fusion import fuse, row_graph
from pymc_subsample.expansion.quadratic import Posterior, Quadratic
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.expansion.residuals import residuals_around
from pymc_subsample.expansion.search import find_mode
from pymc_subsample.expansion.verification import Agreement
from pymc_subsample.graph.concrete import rebuild
from pymc_subsample.graph.interpreter import NoForm
from pymc_subsample.graph.numpy_functions import PYTHON_MODE, numpy_function
from pymc_subsample.kernels.model import ALONE, BLOCK_POISSON, BRIGHT, MINIBATCH, PERTURBED
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.model.predictors import find_predictors
from pymc_subsample.rows.row_store import RowStore
from tests.model.test_predictors import PRODUCTS, model_of_integers

# Compile in a few seconds each on the linear path.
LINEAR = [
    "bernoulli_logit",
    "poisson_offset",
    "normal",
    "student_t",
    "negative_binomial",
    "gamma",
    "categorical_softmax",
    "weibull_censored_potential",
    "slopes_noncentred",
    "effects_crossed",
]
SLOW_LINEAR = [
    "ordered_logistic",
    "mixture_of_regressions",
    "slopes_correlated",
    "two_outcomes",
    "zero_inflated_poisson",
]
NOT_LINEAR = ["row_softmax_and_norm", "two_layer_network"]


def residual_moments(*arguments):
    return residuals_around(*arguments).moments()


def slow(names):
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


class Taylor:
    """Row log-likelihoods in phi and their derivatives, evaluated in plain Python."""

    def __init__(self, tall):
        self.tall = tall
        phi, vector = pt.vector("phi", shape=(tall.phi_size,)), pt.vector("v")
        weights = pt.vector("weights")
        parts = {
            new: phi[place].reshape(new.type.shape).astype(new.type.dtype)
            for new, place in tall.phi_slices.items()
        }
        [rows] = rebuild(tall.batch.outputs, parts | tall.derived)
        self.data = tall.raw_batch(slice(None))

        def compiled(inputs, output):
            return pytensor.function(
                [*inputs, *tall.raw], output, mode=PYTHON_MODE, on_unused_input="ignore"
            )

        slope = grad((rows * weights).sum(), phi)
        bent = grad((slope * vector).sum(), phi, disconnected_inputs="ignore")
        all_phi = pt.join(0, *(graph.ravel() for graph in tall.phi_graphs))
        prior = grad(tall.logprior_graph + (all_phi * vector).sum(), tall.theta)
        self._rows = compiled([phi], rows)
        self._slope = compiled([phi, weights], slope)
        self._bent = compiled([phi, weights, vector], bent)
        self.phi = pytensor.function([tall.theta], all_phi, mode=PYTHON_MODE)
        self.pull_back = pytensor.function(
            [tall.theta, vector], prior, mode=PYTHON_MODE, on_unused_input="ignore"
        )

    def rows(self, phi):
        """l_i, shape (n,)."""
        return self._rows(phi, *self.data)

    def slope(self, phi, weights):
        """Gradient of sum_i w_i l_i, shape (P,)."""
        return self._slope(phi, weights, *self.data)

    def bent(self, phi, weights, vector):
        """Hessian of sum_i w_i l_i times a vector, shape (P,)."""
        return self._bent(phi, weights, vector, *self.data)

    def difference(self, phi, index, center, order, weight, correction):
        """Residuals d_i on rows `index` and the gradient of w sum d - c/2 w^2 sum (d - mean)^2."""
        delta, n = phi - center, self.tall.n_rows
        d = self.rows(phi) - self.rows(center)
        for i in np.unique(index):
            one = np.eye(n)[i]
            if order >= 1:
                d[i] -= self.slope(center, one) @ delta
            if order >= 2:
                d[i] -= 0.5 * delta @ self.bent(center, one, delta)
        d = d[index]
        weights = np.zeros(n)
        np.add.at(weights, index, weight - correction * weight**2 * (d - d.mean()))
        gradient = self.slope(phi, weights)
        if order >= 1:
            gradient = gradient - self.slope(center, weights)
        if order >= 2:
            gradient = gradient - self.bent(center, weights, delta)
        return d, gradient


@pytest.fixture(scope="session")
def taylor(tall_model):
    made = {}

    def make(name):
        if name not in made:
            made[name] = Taylor(tall_model(name))
        return made[name]

    return make


def no_loops(*arguments, **more):
    raise NoForm


@pytest.fixture
def interpreted(monkeypatch):
    """Evaluate the graphs of the general path in plain Python: no compilation."""

    def compile_graph(name, inputs, outputs, buffers, signature):
        function = pytensor.function(
            list(inputs), list(outputs.values()), mode=PYTHON_MODE, on_unused_input="ignore"
        )

        def call(*arguments):
            values = function(*arguments[: len(inputs)])
            buffer = dict(zip(buffers, arguments[len(inputs) :], strict=True))
            for target, value in zip(outputs, values, strict=True):
                for i, x in enumerate(np.ravel(value)):
                    exec(f"{target}= x", {**buffer, "i": i, "x": x})

        call.address = 0
        return call

    monkeypatch.setattr(general, "compile_graph", compile_graph)
    monkeypatch.setattr(general, "compile_batch", no_loops)
    monkeypatch.setattr(expansion_module, "compile_loops", compile_graph)


def point(tall, seed):
    rng = np.random.default_rng(seed)
    return tall.ravel(tall.initial_point) + 0.2 * rng.normal(size=tall.size)


def differences(ex, theta, center, index, weight=3.0, correction=1.0):
    rows = ex.take(index)
    ex.anchor(center, rows)
    d, grad_phi = np.empty(len(index)), np.zeros(ex.phi_size)
    phi, _ = ex.parameters(theta)
    ex.residual(phi, rows, center, PERTURBED, weight, correction, d, grad_phi)
    return d, grad_phi


def assert_close(actual, expected, tolerance=1e-10):
    expected = np.asarray(expected)
    assert np.isfinite(expected).all()
    scale = max(1.0, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * scale)


def check_expansion(ex, taylor, order):
    """Parameters, residuals, gradients and sums equal PyTensor's own derivatives."""
    tall = taylor.tall
    star, theta = point(tall, 1), point(tall, 2)
    center, _ = ex.parameters(star)
    phi, logprior = ex.parameters(theta)
    assert_close(phi, taylor.phi(theta))
    assert_close(logprior, tall.logprior(theta))
    vector = np.random.default_rng(3).normal(size=ex.phi_size)
    assert_close(ex.pull_back(theta, vector), taylor.pull_back(theta, vector))

    index = np.random.default_rng(4).integers(0, N, 13)
    index[-2:] = index[0]  # a row may come more than once
    for weight, correction in ((3.0, 1.0), (0.7, 0.0)):
        d, grad_phi = differences(ex, theta, center, index, weight, correction)
        expected = taylor.difference(phi, index, center, order, weight, correction)
        assert_close(d, expected[0])
        assert_close(grad_phi, expected[1])
    alone, rows = np.zeros(ex.phi_size), ex.take(index)
    ex.anchor(center, rows)
    [found] = ex.residuals(rows, center, [phi])
    assert_close(found, expected[0])
    ex.gradient(phi, rows, center, weight, alone)
    assert_close(alone, expected[1])
    assert Agreement(tall, ex).of_gradient()

    reference, ones = reference_at(ex, star), np.ones(N)
    assert_close(reference.level, taylor.rows(center).sum())
    assert_close(reference.slope, taylor.slope(center, ones))
    columns = [taylor.bent(center, ones, axis) for axis in np.eye(ex.phi_size)]
    assert_close(reference.curvature, np.column_stack(columns))


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("name", [*LINEAR, *slow(SLOW_LINEAR)])
def test_linear_path(name, expansion, taylor):
    ex = expansion(name)
    assert ex.linear
    check_expansion(ex, taylor(name), order=2)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("length", [8, 150])
def test_a_stack_of_each_row_times_one_matrix(length):
    """As nodes of correlated effects: in lines of their own, and in loops over predictors."""
    rng = np.random.default_rng(0)
    at, x = rng.normal(size=(N, length, 2)), rng.normal(size=(N, length))
    with pm.Model() as model:
        b, factor = pm.Normal("b", shape=2), pm.Normal("factor", shape=(2, 2))
        effect = b + pt.as_tensor(at) @ factor[None]
        mean = pt.logsumexp(pt.tanh(effect[:, :, 0] + effect[:, :, 1] * x), axis=1)
        pm.Normal("y", mean, 1, observed=rng.normal(size=N))
    tall = TallModel(model)
    ex = expand(tall)
    assert ex.linear
    check_expansion(ex, Taylor(tall), order=2)


@pytest.mark.costly
@pytest.mark.parametrize("order", [0, 1])
def test_lower_orders_of_the_linear_path(order, expansion, taylor):
    check_expansion(expansion("poisson_offset", order), taylor("poisson_offset"), order)


@pytest.mark.costly(cases=0)
def test_compiled_general_path(expansion, taylor):
    ex = expansion("slopes_noncentred", linear=False)
    assert not ex.linear
    check_expansion(ex, taylor("slopes_noncentred"), order=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["bernoulli_logit", "normal", "student_t", "ordered_logistic", *NOT_LINEAR]
)
def test_compiled_general_path_of_more_models(name, expansion, taylor):
    check_expansion(expansion(name, linear=False), taylor(name), order=2)


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("name", [*LINEAR, *SLOW_LINEAR, *NOT_LINEAR])
@pytest.mark.usefixtures("interpreted")
def test_graphs_of_the_general_path(name, tall_model, taylor):
    ex = expand(tall_model(name), 2, linear=False)
    check_expansion(ex, taylor(name), order=2)


def choices():
    """Return a model of sets of two or of four rows, whose utilities pick effects by an index."""
    rng = np.random.default_rng(5)
    of = np.repeat(np.arange(N), rng.choice([2, 4], N))
    _, first = np.unique(of, return_index=True)
    product, price = rng.integers(0, 6, len(of)), rng.normal(size=len(of))
    with pm.Model() as model:
        effect, slope = pm.Normal("effect", 0, 1, shape=6), pm.Normal("slope", 0, 1)
        u = effect[product] + pt.exp(slope) * price
        total = pt.zeros(N)[of].inc(pt.exp(u))
        pm.Potential("first", u[first] - pt.log(total))
    return TallModel(model)


@pytest.mark.costly
@pytest.mark.parametrize("order", [0, 1, 2])
def test_sets_of_two_sizes_are_loops(order, monkeypatch):
    """Each set by the code of its size; a function of PyTensor's would be a failure."""
    monkeypatch.setattr(general, "compile_graph", None)
    tall = choices()
    assert len(tall.batch.tests) == 1
    check_expansion(expand(tall, order, linear=False), Taylor(tall), order)


def residual_of(tall, star, theta, index, rule):
    """Return residuals, and the slope of what a rule makes of them."""
    ex = expand(tall, 2, linear=False)
    center, phi = ex.parameters(star)[0], ex.parameters(theta)[0]
    d, slope = np.empty(len(index)), np.zeros(ex.phi_size)
    ex.build["residual"]()(phi, ex.take(index), center, rule, 3.0, -50.0, d, slope)
    return d, np.zeros(0) if rule == ALONE else slope


@pytest.mark.costly
@pytest.mark.parametrize("rule", [PERTURBED, BLOCK_POISSON, ALONE])
def test_loops_and_graphs_have_the_same_residuals(rule, monkeypatch):
    tall = choices()
    star, theta, index = point(tall, 1), point(tall, 2), np.arange(2 * MINIBATCH)
    found = []
    ways = {"compile_graph": None}, {"compile_batch": no_loops}
    for others in ways:  # a function of the other way would be a failure
        with monkeypatch.context() as patched:
            for function, instead in others.items():
                patched.setattr(general, function, instead)
            found.append(residual_of(tall, star, theta, index, rule))
    assert_close(found[0][0], found[1][0])
    assert_close(found[0][1], found[1][1])


@pytest.mark.costly
@pytest.mark.parametrize("name", ["two_layer_network", "slopes_noncentred"])
def test_no_loops_of_matrices_or_of_many_parameters(name, tall_model, monkeypatch):
    """BLAS takes all rows at once; and each row would go through all parameters."""
    monkeypatch.setattr(general, "compile_batch", None)
    assert not expand(tall_model(name), 1, linear=False).linear


@pytest.mark.costly
def test_a_kind_of_row_may_see_no_parameter(monkeypatch):
    """Its slope is zero."""
    monkeypatch.setattr(general, "compile_graph", None)
    rng = np.random.default_rng(6)
    x, z = rng.normal(size=(N, 4)), rng.normal(size=17)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1, shape=2)
        pm.Potential("p", pt.tanh(a[0] * x).sum(axis=1) - pt.exp(a[1]) * pt.sqr(x).sum(axis=1))
        pm.Potential("q", (a[0] - a[0]) * z)
    tall = TallModel(model)
    ex = expand(tall, 2, linear=False)
    reference = reference_at(ex, point(tall, 1))
    center, _ = ex.parameters(point(tall, 1))
    assert_close(reference.slope, Taylor(tall).slope(center, np.ones(N + 17)))


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.usefixtures("interpreted")
def test_lower_orders_of_the_general_path(order, tall_model, taylor):
    name = "two_layer_network"
    check_expansion(expand(tall_model(name), order), taylor(name), order)


@pytest.mark.costly
@pytest.mark.parametrize("linear", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", ["uint8", pytest.param("int16", marks=pytest.mark.slow)])
def test_products_of_integers_do_not_overflow_when_compiled(dtype, linear):
    narrow, wide = map(TallModel, model_of_integers(sum_of_products, dtype))
    theta = np.array([0.02, -0.5])
    ex = expand(narrow, linear=linear)
    reference = reference_at(ex, theta)
    assert_close(reference.level, wide.row_loglik(theta, slice(None)).sum())
    expected = row_gradient(wide, theta, slice(None))
    prior = ex.pull_back(theta, np.zeros(ex.phi_size))
    assert_close(ex.pull_back(theta, reference.slope) - prior, expected)


def sum_of_products(A, B, C, b, c):
    products = [f(A, B, C, b, c) for f in PRODUCTS.values()]
    return sum(products[1:], products[0])


def test_masked_infinities_stay_out_of_the_sums():
    rng = np.random.default_rng(1)
    x = np.maximum(rng.normal(size=N), 0.0)
    with pm.Model() as model:
        b, xx = pm.Normal("b"), pt.as_tensor(x)
        pm.Normal("y", pt.switch(xx > 0, b * pt.log(xx), 0.0), 1, observed=rng.normal(size=N))
    tall = TallModel(model)
    ex = expand(tall)
    assert ex.linear
    reference = reference_at(ex, np.array([0.3]))
    log_x = np.log(x[x > 0])
    assert_close(reference.curvature, [[-(log_x @ log_x)]])
    assert np.isfinite(reference.slope).all()


def fused(graph, x):
    """The scalar function of a graph over rows."""
    graphs = row_graph([x], [graph])
    return fuse(graphs, graphs.inputs, [])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: -pt.softplus(x),
        lambda x: 3 * x - pt.softplus(x),
        lambda x: pt.log(pt.softplus(x)),
        lambda x: pt.log(2 * pt.softplus(x)) - pt.softplus(x),
        lambda x: 1 / pt.softplus(x),
        lambda x: pt.log(1e-30 + pt.softplus(x)),
    ],
)
def test_softplus_is_exact_where_it_must_be(function):
    x = pt.vector("x", dtype="float64")
    row = fused(function(x), x).row
    found = numba.njit(lambda value: row(value))  # not made to be called from Python
    for value in (-60.0, -45.0, -1.0, 0.0, 30.0):
        [exact] = numpy_function([x], [function(x)])(np.array([value]))
        np.testing.assert_allclose(found(value), exact.item(), rtol=1e-14, atol=1e-15)


def test_trigamma_is_compiled_and_exact():
    """PyTensor's calls Python at every row, says so in a warning, and cannot be cached."""
    x = pt.vector("x", dtype="float64")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fused(pt.tri_gamma(x), x)
    assert found.key is not None
    row = found.row
    found = numba.njit(lambda value: row(value))
    for value in np.geomspace(1e-4, 1e6, 41):
        np.testing.assert_allclose(found(value), polygamma(1, value), rtol=2e-14)
    assert np.isnan(found(-0.5))


def stretched(predictors):
    return [replace(p, forms=np.vectorize(lambda f: f.scaled(1.001))(p.forms)) for p in predictors]


@pytest.mark.costly
@pytest.mark.parametrize("order", [0, 2])
def test_misread_predictors_are_noticed(order, tall_model, monkeypatch, caplog):
    tall = tall_model("poisson_offset")
    monkeypatch.setattr(
        control_variates,
        "find_predictors",
        lambda *arguments: stretched(find_predictors(*arguments)),
    )
    with pytest.raises(TallModelError, match="graph was misread"):
        expand(tall, order, linear=True)
    assert not expand(tall, order).linear
    assert "general path" in caplog.text


@pytest.mark.costly
@pytest.mark.parametrize("top", [3.2, 5.0])
def test_predictors_may_be_large_at_the_start(top):
    """Where log(1 - p), as PyMC writes it, is rounding or infinite by its own Ops."""
    rng = np.random.default_rng(0)
    hour = rng.integers(5, 24, 2000).astype(float)
    late = rng.random(2000) < 1 / (1 + np.exp(2.6 - 0.1 * hour))
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 5), pm.Uniform("b", 0, top)
        pm.Bernoulli("late", logit_p=a + b * hour, observed=late)
    tall = TallModel(model)
    ex = expand(tall, 2)
    start = tall.ravel(tall.initial_point)
    eta = 0.5 * top * hour
    found = np.empty(2000)
    ex.loglik(ex.parameters(start)[0], ex.take(np.arange(2000)), found)
    exact = -np.logaddexp(0, np.where(late, -eta, eta))
    np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("linear", [True, False])
def test_rules_weigh_the_gradients_of_residuals(linear, tall_model):
    """Each adds the rows' gradients, weighted by its derivative in their residuals."""
    ex = expand(tall_model("poisson_offset"), 2, linear=linear)
    center, phi = (ex.parameters(point(tall_model("poisson_offset"), seed))[0] for seed in (1, 2))
    rows, each = ex.take(np.arange(2 * MINIBATCH)), np.zeros((2 * MINIBATCH, ex.phi_size))
    ex.anchor(center, rows)
    for i, gradient in enumerate(each):
        ex.gradient(phi, np.ascontiguousarray(rows[:, i : i + 1]), center, 1.0, gradient)
    [d] = ex.residuals(rows, center, [phi])
    w, s = 3.0, -50.0
    total = np.repeat(d.reshape(2, MINIBATCH).sum(1), MINIBATCH)
    weights = {
        PERTURBED: w - s * w**2 * (d - d.mean()),
        BLOCK_POISSON: w / (w * total - s),
        BRIGHT: w / -np.expm1(-w * d),
    }
    for rule in weights if linear else (PERTURBED, BLOCK_POISSON):
        found, grad = np.empty(len(d)), np.ones(ex.phi_size)
        ex.residual(phi, rows, center, rule, w, s, found, grad)
        assert_close(found, d)
        assert_close(grad - 1.0, weights[rule] @ each)


@pytest.mark.parametrize("wrong", ["value", "gradient"])
def test_a_wrong_prior_is_noticed(wrong, tall_model, monkeypatch):
    """Its value or its gradient off by a part in a thousand, and both right."""
    tall = tall_model("poisson_offset")
    ex = expand(tall, 2)
    assert Agreement(tall, ex).of_posterior()
    right = ex.parameters, ex.pull_back
    if wrong == "value":
        monkeypatch.setattr(
            ex, "parameters", lambda at: (right[0](at)[0], 1.001 * right[0](at)[1]), raising=False
        )
    else:
        monkeypatch.setattr(
            ex,
            "pull_back",
            lambda at, g: right[1](at, g) + 0.01 * right[1](at, np.zeros_like(g)),
            raising=False,
        )
    assert not Agreement(tall, ex).of_posterior()


@pytest.mark.parametrize("order", [0, 1, 2])
def test_a_wrong_gradient_of_a_batch_is_noticed(order, tall_model, monkeypatch):
    """That of SGLD and its relatives, off by a little in one element."""
    tall = tall_model("poisson_offset")
    ex = expand(tall, order)
    assert Agreement(tall, ex).of_gradient()
    right = ex.gradient

    def wrong(phi, rows, center, weight, grad):
        right(phi, rows, center, weight, grad)
        grad[0] += 0.1 * weight * rows.shape[1]

    monkeypatch.setattr(ex, "gradient", wrong)
    assert not Agreement(tall, ex).of_gradient()


def test_a_wrong_gradient_of_a_batch_is_refused(monkeypatch):
    monkeypatch.setattr(Agreement, "of_gradient", lambda self: False)
    with pytest.raises(pms.TallModelError, match="is not that of the model"):
        pms.sgmcmc.SGLD(model=MODELS["poisson_offset"](np.random.default_rng(1)))


@pytest.mark.usefixtures("interpreted")
def test_a_wrong_general_path_is_noticed(tall_model, monkeypatch):
    tall = copy(tall_model("poisson_offset"))
    [rows] = tall.batch.outputs
    for wrong in (1.0001 * rows, pt.switch(pt.eq(pt.arange(rows.shape[0]), 7), 0.0, rows)):
        tall.batch = replace(tall.batch, outputs=[wrong])
        with pytest.raises(TallModelError, match="graph was misread"):
            expand(tall, 1, linear=False)


@pytest.mark.usefixtures("interpreted")
def test_a_wrong_gradient_is_noticed(tall_model):
    tall = copy(tall_model("poisson_offset"))
    [rows] = tall.batch.outputs
    tall.batch = replace(tall.batch, outputs=[grad_scale(rows, 1.01)])
    with pytest.raises(TallModelError, match="graph was misread"):
        expand(tall, 1, linear=False)


# Data of every kind, minibatches, dimensions and potentials; `expand` compares with the model.
KINDS = [
    "minibatch_groups",
    "dims_bernoulli",
    "index_column_of_matrix",
    "outcome_and_potential",
]


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", [*KINDS, *slow(sorted(MODELS.keys() - {*KINDS}))])
@pytest.mark.filterwarnings("ignore")
def test_compiled_expansion_is_the_model(name, tall_model, caplog):
    assert Agreement(tall_model(name), expand(tall_model(name), 1)).of_posterior()
    assert "general path" not in caplog.text


@pytest.mark.costly
@pytest.mark.parametrize("name", ["minibatch_groups", "dims_hierarchy", "potential_only"])
@pytest.mark.usefixtures("interpreted")
def test_interpreted_expansion_is_the_model(name, tall_model):
    assert Agreement(tall_model(name), expand(tall_model(name), 1, linear=False)).of_posterior()


def test_forcing_the_linear_path_of_a_network_raises(tall_model):
    with pytest.raises(ValueError, match="no linear predictors"):
        expand(tall_model("two_layer_network"), linear=True)


# Changes of the residuals, for Metropolis-Hastings


def check_change(ex, taylor, order):
    """Differences of the residuals at two points equal those of the directly computed ones.

    Rows are packed by the compiled code that reads them out of memory.
    """
    tall = taylor.tall
    star, theta, new = (point(tall, seed) for seed in (1, 2, 3))
    center, phi, new_phi = (ex.parameters(t)[0] for t in (star, theta, new))
    index = np.random.default_rng(4).integers(0, N, 13)
    rows = np.zeros((ex.width, len(index)))
    ex.gather(ex.packer.table, index, rows)
    if order:
        ex.anchor(center, rows)
    for one, other in ((phi, new_phi), (new_phi, phi), (phi, phi), (center, phi)):
        found = np.full(len(index), np.nan)
        ex.change(one, other, center, rows, found)
        before, after = (
            taylor.difference(at, index, center, order, 1.0, 0.0)[0] for at in (one, other)
        )
        assert_close(found, after - before)
    direct = tall.row_loglik(new, slice(None)) - tall.row_loglik(theta, slice(None))
    if order == 0:
        ex.change(phi, new_phi, center, rows, found)
        assert_close(found, direct[index])
    else:
        assert not np.allclose(found, direct[index])


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("bernoulli_logit", 0),
        ("poisson_offset", 0),
        ("poisson_offset", 1),
        ("poisson_offset", 2),
        ("normal", 1),
        ("categorical_softmax", 2),
        ("slopes_noncentred", 2),
        pytest.param("student_t", 2, marks=pytest.mark.slow),
        pytest.param("weibull_censored_potential", 2, marks=pytest.mark.slow),
        *(pytest.param(n, k, marks=pytest.mark.slow) for n in SLOW_LINEAR for k in (0, 1, 2)),
    ],
)
def test_changes_of_the_linear_path(name, order, expansion, taylor):
    ex = expansion(name, order)
    assert ex.linear
    check_change(ex, taylor(name), order)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("slopes_noncentred", 1),
        *(pytest.param(n, k, marks=pytest.mark.slow) for n in NOT_LINEAR for k in (0, 1, 2)),
    ],
)
def test_changes_of_the_compiled_general_path(name, order, expansion, taylor):
    check_change(expansion(name, order, linear=False), taylor(name), order)


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize(
    "name", ["poisson_offset", "two_layer_network", *slow(["row_softmax_and_norm"])]
)
@pytest.mark.usefixtures("interpreted")
def test_changes_of_the_general_path(name, order, tall_model, taylor):
    check_change(expand(tall_model(name), order, linear=False), taylor(name), order)


# Order of the error


@pytest.mark.parametrize("order", [0, 1, 2])
def test_residuals_shrink_as_a_power_of_the_distance(order, expansion, tall_model):
    ex = expansion("poisson_offset", order)
    star = point(tall_model("poisson_offset"), 1)
    center, _ = ex.parameters(star)
    direction = np.random.default_rng(2).normal(size=len(star))
    lengths = np.array([4e-3, 2e-3, 1e-3])
    sizes = [
        np.linalg.norm(differences(ex, star + h * direction, center, np.arange(N))[0])
        for h in lengths
    ]
    np.testing.assert_allclose(np.diff(np.log(sizes)) / np.log(0.5), order + 1, atol=0.02)


@pytest.fixture(scope="module")
def known_sigma():
    rng = np.random.default_rng(5)
    X, g = rng.normal(size=(60, K)), rng.integers(0, G, 60)
    y = X.sum(axis=1) + rng.normal(size=60)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=K)
        a = pm.Normal("a", 0, 1, shape=G)
        pm.Normal("y", X @ beta + a[g], 0.7, observed=y)
    tall = TallModel(model)
    return tall, expand(tall)


@pytest.mark.costly
def test_quadratic_loglikelihoods_are_matched_exactly(known_sigma):
    tall, ex = known_sigma
    rng = np.random.default_rng(6)
    star, theta = rng.normal(size=(2, tall.size))
    center, _ = ex.parameters(star)
    d, grad_phi = differences(ex, 10 * theta, center, np.arange(60))
    scale = np.abs(tall.row_loglik(10 * theta, slice(None))).max()
    np.testing.assert_allclose(d, 0, atol=1e-13 * scale)
    np.testing.assert_allclose(grad_phi, 0, atol=1e-10 * scale)
    reference = reference_at(ex, star)
    exact = row_gradient(tall, 10 * theta, slice(None)) + ex.pull_back(
        10 * theta, np.zeros(ex.phi_size)
    )
    np.testing.assert_allclose(Quadratic(ex, reference).gradient(10 * theta), exact, rtol=1e-11)


# Groups


@pytest.fixture(scope="module")
def repeated_groups():
    """Two gathers of the same parameter, whose groups are often equal, and a table of cells."""
    rng = np.random.default_rng(7)
    g, h, x = rng.integers(0, 4, N), rng.integers(0, 4, N), rng.normal(size=N)
    y = rng.poisson(1.5, N)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 0.5, shape=4)
        b = pm.Normal("b", 0, 0.5, shape=4)
        c = pm.Normal("c", 0, 0.3, shape=(4, 4))
        pm.Poisson("y", pt.exp(a[g] + 0.5 * a[h] + x * (b[g] - b[h]) + c[g, h]), observed=y)
    return TallModel(model)


@pytest.mark.costly
def test_gathers_of_repeated_groups(repeated_groups):
    ex = expand(repeated_groups)
    assert ex.linear
    check_expansion(ex, Taylor(repeated_groups), order=2)


# Sums in chunks


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize(
    ("name", "linear"),
    [("poisson_offset", None), ("slopes_noncentred", None), ("slopes_noncentred", False)],
)
def test_sums_do_not_depend_on_chunks(name, linear, expansion, tall_model, monkeypatch):
    ex, star, theta = expansion(name, 2, linear), *(point(tall_model(name), s) for s in (1, 2))

    def sums(size):
        monkeypatch.setattr(expansion_module, "_CHUNK_BYTES", 8 * ex.width * size)
        assert max(rows.shape[1] for rows in ex.chunks()) == size
        at = reference_at(ex, star)
        found = residual_moments(ex, at, theta[None])
        return [at.level, at.slope, at.curvature, found.second, found.third, found.fourth]

    whole = sums(N)
    for size in (1, 7):
        for actual, expected in zip(sums(size), whole, strict=True):
            assert_close(actual, expected, 1e-11)


def tiled(ex, times):
    """The same expansion over rows repeated without copies of more than `times` N numbers."""
    columns = [np.concatenate([c] * times) for c in ex.store.columns]
    return replace(ex, store=RowStore(columns, times * ex.n_rows))


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("name", ["poisson_offset", "slopes_noncentred"])
def test_memory_of_the_sums_does_not_grow_with_the_rows(name, expansion, tall_model, monkeypatch):
    monkeypatch.setattr(expansion_module, "_CHUNK_BYTES", 2**17)
    star, theta = (point(tall_model(name), s) for s in (1, 2))
    peaks = {}
    for times in (1000, 4000):  # the outlying rows that are kept are as many
        ex = tiled(expansion(name), times)
        residual_moments(ex, reference_at(ex, star), theta[None])  # compiles
        tracemalloc.start()
        try:
            reference = reference_at(ex, star)
            residual_moments(ex, reference, theta[None])
            peaks[times] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert_close(reference.level, times * reference_at(expansion(name), star).level)
    assert peaks[4000] < 1.2 * peaks[1000]
    # Chunks, and twice the outlying rows that are kept, number and residual, and their copy.
    assert peaks[1000] < 10 * 2**17 + 2 * 2 * 20_000 * 16


# Residuals over all rows


@pytest.mark.costly
@pytest.mark.parametrize("name", ["poisson_offset", "slopes_noncentred"])
def test_residual_moments_equal_direct_computation(name, expansion, taylor):
    ex, expected = expansion(name), taylor(name)
    star = point(expected.tall, 1)
    thetas = np.array([point(expected.tall, s) for s in (2, 3)])
    reference = reference_at(ex, star)
    found = residual_moments(ex, reference, thetas)
    assert found.n_rows == N
    for k, theta in enumerate(thetas):
        phi = expected.phi(theta)
        d, _ = expected.difference(phi, np.arange(N), reference.center, 2, 1.0, 0.0)
        for power, values in ((2, found.second), (3, found.third), (4, found.fourth)):
            central = np.mean((d - d.mean()) ** power)
            np.testing.assert_allclose(values[k], central, rtol=1e-8)


def test_largest_residual_at_far_points(expansion, taylor):
    ex, expected = expansion("poisson_offset"), taylor("poisson_offset")
    near, far, farther = (point(expected.tall, s) for s in (1, 2, 3))
    reference = reference_at(ex, near)
    sizes = [
        np.abs(expected.difference(theta, np.arange(N), reference.center, 2, 1.0, 0.0)[0]).max()
        for theta in (expected.phi(far), expected.phi(farther))
    ]
    found = residual_moments(ex, reference, near[None], np.array([far, farther]))
    np.testing.assert_allclose(found.largest, max(sizes), rtol=1e-10)
    assert found.second.shape == (1,)
    assert residual_moments(ex, reference, near[None]).largest == 0


# Mass matrix


@pytest.mark.costly
def test_residuals_that_are_not_finite_name_their_rows():
    x, y = np.linspace(0.1, 1, N), np.ones(N, dtype=int)
    with pm.Model() as model:
        rate = pm.Normal("a", 0.5) + pm.Normal("b", initval=1.0) * x
        pm.Poisson("y", rate, observed=y)
    tall = TallModel(model)
    ex = expand(tall)
    reference = reference_at(ex, np.array([0.5, 1.0]))
    with pytest.raises(TallModelError, match=r"'y' is not finite .* in rows 94, 95, 96: .*link"):
        residual_moments(ex, reference, np.array([[0.5, 1.0], [0.5, -0.5 / x[93:95].mean()]]))


def finite_difference_hessian(function, x, h=1e-5):
    steps = h * np.eye(len(x))
    return np.array([(function(x + s) - function(x - s)) / (2 * h) for s in steps])


@pytest.mark.costly(cases=4)
@pytest.mark.parametrize("name", ["poisson_offset", "student_t", "slopes_noncentred"])
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_precision_is_the_hessian_of_the_log_posterior(name, temperature, expansion, taylor):
    ex, expected = expansion(name), taylor(name)
    tall = expected.tall
    star = point(tall, 1)
    none = np.zeros(tall.phi_size)

    def exact_gradient(theta):
        rows = row_gradient(tall, theta, slice(None))
        return expected.pull_back(theta, none) + rows / temperature

    reference = reference_at(ex, star, temperature)
    value = tall.logprior(star) + tall.row_loglik(star, slice(None)).sum() / temperature
    np.testing.assert_allclose(Quadratic(ex, reference).height, value, rtol=1e-11)
    assert_close(Quadratic(ex, reference).gradient(star), exact_gradient(star))
    hessian = finite_difference_hessian(exact_gradient, star)
    everything = np.arange(tall.size)
    assert_close(Quadratic(ex, reference).precision(everything), -hessian, 1e-6)
    some = np.array([0, tall.size - 1])
    assert_close(Quadratic(ex, reference).precision(some), -hessian[np.ix_(some, some)], 1e-6)


def test_covariance_inverts_and_repairs_a_precision():
    rng = np.random.default_rng(8)
    scale = 10.0 ** np.arange(-4, 5, 2)
    A = rng.normal(size=(5, 8))
    matrix = A @ A.T * np.outer(scale, scale)
    identity = scale[:, None] * (covariance(matrix) @ matrix) / scale
    np.testing.assert_allclose(identity, np.eye(5), atol=1e-10)
    L = factor(covariance(matrix))
    np.testing.assert_allclose(L @ L.T, covariance(matrix), rtol=1e-8)
    saddle = covariance(np.diag([4.0, -2.0, 0.25]))
    np.testing.assert_allclose(saddle, np.diag([0.25, 0.5, 4.0]))


@pytest.mark.parametrize("function", [covariance, covariance_factor])
def test_curvature_without_a_number_is_refused_by_name(function):
    with pytest.raises(TallModelError, match="curvature of the log posterior is not finite"):
        function(np.diag([1.0, np.nan, 2.0]))


# Reference point


def logistic_rows(n, k, rng, order):
    X = np.column_stack([np.ones(n), rng.normal(size=(n, k - 1))])
    y = rng.binomial(1, expit(X @ [-1.0, *([0.5] * (k - 1))]))
    if order == "sorted by y":
        rows = np.argsort(y, kind="stable")
    elif order == "sorted by X":
        rows = np.lexsort(X.T)
    else:
        rows = np.arange(n)
    return X[rows], y[rows]


def logistic_mode(X, y, prior_sd):
    """Posterior mode and precision by Newton's method from 0 on all rows."""
    beta = np.zeros(X.shape[1])
    for _ in range(50):
        p = expit(X @ beta)
        matrix = (X.T * (p * (1 - p))) @ X + np.diag(1 / prior_sd**2)
        step = np.linalg.solve(matrix, X.T @ (y - p) - beta / prior_sd**2)
        beta += step
    assert np.abs(step).max() < 1e-9 * np.abs(beta).max()
    return beta, matrix


@pytest.fixture(scope="module")
def logistic():
    """Compiled logistic regression of three columns, to be driven with other rows."""
    prior_sd = np.array([3.0, 3.0, 3.0])
    X, y = logistic_rows(50, K, np.random.default_rng(9), "as drawn")
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, prior_sd)
        pm.Bernoulli("y", logit_p=X @ beta, observed=y)
    ex = expand(TallModel(model))
    [first] = [i for i, column in enumerate(ex.store.columns) if column.ndim == 1]

    def with_rows(X, y):
        columns = [y, X] if first == 0 else [X, y]
        return replace(ex, store=RowStore(columns, len(y)))

    return SimpleNamespace(with_rows=with_rows, prior_sd=prior_sd)


def distance(theta, mode, matrix):
    """Root mean square distance from the mode in posterior standard deviations."""
    return np.sqrt((theta - mode) @ matrix @ (theta - mode) / len(mode))


def found(ex, seed=10, start=None):
    start = np.zeros(ex.theta_size) if start is None else start
    every, rng = np.arange(ex.theta_size), np.random.default_rng(seed)
    return find_mode(Posterior(ex), start, every, rng).reference


@pytest.mark.parametrize("order", ["as drawn", "sorted by y", "sorted by X"])
@pytest.mark.parametrize("n", [200, 30_000])
def test_reference_is_the_mode_whatever_the_order_of_rows(order, n, logistic):
    X, y = logistic_rows(n, K, np.random.default_rng(11), order)
    reference = found(logistic.with_rows(X, y))
    mode, matrix = logistic_mode(X, y, logistic.prior_sd)
    assert distance(reference.theta, mode, matrix) < 0.12


@pytest.mark.parametrize("start", [np.array([20.0, -20.0, 20.0]), np.array([-100.0, 0.0, 100.0])])
def test_reference_from_a_bad_start(start, logistic):
    X, y = logistic_rows(30_000, K, np.random.default_rng(12), "as drawn")
    reference = found(logistic.with_rows(X, y), start=start)
    mode, matrix = logistic_mode(X, y, logistic.prior_sd)
    assert distance(reference.theta, mode, matrix) < 0.12


def test_reference_of_a_rare_outcome(logistic):
    rng = np.random.default_rng(13)
    n = 100_000
    X, y = np.column_stack([np.ones(n), rng.normal(size=(n, 2))]), np.zeros(n, dtype=np.int64)
    y[rng.choice(n, 60, replace=False)] = 1
    reference = found(logistic.with_rows(X, np.sort(y)))
    mode, matrix = logistic_mode(X, np.sort(y), logistic.prior_sd)
    assert distance(reference.theta, mode, matrix) < 0.12


@pytest.mark.costly
def test_reference_with_columns_far_from_standard():
    rng = np.random.default_rng(14)
    n = 20_000
    year, price = rng.normal(2000, 10, n), rng.lognormal(10, 1, n)
    X = np.column_stack([np.ones(n), year, price])
    y = rng.binomial(1, expit(0.05 * (year - 2000) + 1e-5 * price))
    prior_sd = np.array([1000.0, 1.0, 1.0])
    with pm.Model() as model:
        a = pm.Normal("a", 0, prior_sd[0])
        b = pm.Normal("b", 0, prior_sd[1])
        c = pm.Normal("c", 0, prior_sd[2])
        pm.Bernoulli("y", logit_p=a + b * year + c * price, observed=y)
    reference = found(expand(TallModel(model)))
    mode, matrix = logistic_mode(X, y, prior_sd)
    assert distance(reference.theta, mode, matrix) < 0.12


@pytest.mark.costly
def test_reference_of_a_hierarchical_model():
    rng = np.random.default_rng(15)
    n, groups = 5_000, 8
    g, x = np.sort(rng.integers(0, groups, n)), rng.normal(size=n)
    y = 0.5 + rng.normal(0, 0.7, groups)[g] + 0.3 * x + rng.normal(0, 1.5, n)
    with pm.Model() as model:
        mu, b = pm.Normal("mu", 0, 2), pm.Normal("b", 0, 1)
        tau, sigma = pm.HalfNormal("tau", 1), pm.HalfNormal("sigma", 2)
        z = pm.Normal("z", 0, 1, shape=groups)
        pm.Normal("y", (mu + tau * z)[g] + b * x, sigma, observed=y)
    tall = TallModel(model)
    ex = expand(tall)
    start = tall.ravel(tall.initial_point)
    reference = found(ex, start=start)

    def objective(theta):
        value = tall.logprior(theta) + tall.row_loglik(theta, slice(None)).sum()
        phi_gradient = row_gradient(tall, theta, slice(None))
        prior_gradient = ex.pull_back(theta, np.zeros(ex.phi_size))
        return -value / n, -(phi_gradient + prior_gradient) / n

    mode = scipy.optimize.minimize(
        objective, start, jac=True, method="BFGS", options={"gtol": 1e-8, "maxiter": 500}
    ).x
    at_mode = reference_at(ex, mode)
    matrix = Quadratic(ex, at_mode).precision(np.arange(tall.size))
    assert np.linalg.eigvalsh(matrix).min() > 0
    assert distance(reference.theta, mode, matrix) < 0.12


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize("seed", [0, 4])
def test_reference_where_derivatives_overflow_before_values(seed):
    """A first step may lead to slopes that are finite and wrong; no step leads out again."""
    tall = TallModel(dose_response())
    ex, active = expand(tall), np.arange(tall.size)
    at = found(ex, seed, tall.ravel(tall.initial_point))
    score, cov = ex.pull_back(at.theta, at.slope), covariance(Quadratic(ex, at).precision(active))
    assert np.sqrt(score @ cov @ score / tall.size) < 0.12
    truth = np.array([10, 40, np.log(30), np.log(1.6), np.log(8)])
    assert np.all(np.abs(at.theta - truth) < 5 * np.sqrt(np.diag(cov)))


def test_reference_at_a_temperature(logistic):
    rng, T = np.random.default_rng(16), 8.0
    X = 0.1 * rng.normal(size=(400, K))
    y = rng.binomial(1, expit(X @ [5.0, -5.0, 5.0]))
    ex = logistic.with_rows(X, y)
    hot = find_mode(Posterior(ex, T), np.zeros(K), np.arange(K), np.random.default_rng(17))
    # A log-likelihood over T has the mode of a prior that is tighter by sqrt(T).
    mode, matrix = logistic_mode(X, y, logistic.prior_sd / np.sqrt(T))
    assert distance(hot.theta, mode, matrix / T) < 0.12
    cold, _ = logistic_mode(X, y, logistic.prior_sd)
    assert distance(cold, mode, matrix / T) > 0.3


@pytest.mark.costly
def test_inactive_parameters_stay_where_they_are(logistic):
    X, y = logistic_rows(3_000, K, np.random.default_rng(18), "as drawn")
    start = np.array([0.3, -0.7, 0.0])
    posterior = Posterior(logistic.with_rows(X, y))
    at = find_mode(posterior, start, np.array([2]), np.random.default_rng(19))
    assert at.theta[:2].tolist() == start[:2].tolist()
    rest = at.theta.copy()
    p = expit(X @ rest)
    slope = X[:, 2] @ (y - p) - rest[2] / 9
    curvature = (p * (1 - p)) @ X[:, 2] ** 2 + 1 / 9
    assert abs(slope) / np.sqrt(curvature) < 0.12


@pytest.mark.costly
def test_large_predictors_are_no_misreading():
    """As written, log(1 - p) is mostly rounding where few rows see a coefficient in raw units."""
    rng = np.random.default_rng(0)
    g = rng.integers(0, 40, 20_000)
    x = np.column_stack([np.ones(20_000), rng.gamma(4, 2.5, 20_000), rng.gamma(2, 360, 20_000)])
    with pm.Model() as model:
        mean = pm.Normal("mean", [-1, 0, 0], [2, 0.5, 0.01])
        sd = pm.HalfNormal("sd", [1, 0.1, 0.001])
        b = pm.Normal("b", mean, sd, shape=(40, 3))
        pm.Bernoulli("y", logit_p=(b[g] * x).sum(axis=1), observed=rng.random(20_000) < 0.2)
    assert expand(TallModel(model)).phi_size == 120
