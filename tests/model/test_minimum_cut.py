"""Rows that hold a series are expanded in few numbers, and their code is bounded."""

from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from _series import MODELS
from populations import POPULATIONS
from pytensor.graph.traversal import toposort
from scipy.special import gammaln, logsumexp

import pymc_subsample as pms
from pymc_subsample.compiled.functions import building_graphs
from pymc_subsample.expansion import expand, fusion, linear_predictors, row_code
from pymc_subsample.expansion.packing import Packer
from pymc_subsample.expansion.row_code import RowCode
from pymc_subsample.graph.interpreter import NoForm
from pymc_subsample.graph.nodes import is_product
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.model import TallModel
from pymc_subsample.model.identity import extremes
from pymc_subsample.model.minimum_cut import fewest_predictors

N = 300


def tall(name, **options):
    return TallModel(MODELS[name](N, **options))


def operations(model, order, monkeypatch):
    """How many scalar operations the code of a row has, and that of what rows share."""
    counts: list[int] = []

    def counted(inputs, outputs):
        counts.append(sum(1 for _ in toposort(outputs, blockers=list(inputs))))
        return None, None

    monkeypatch.setattr(fusion, "scalar_function", counted)
    predictors = sorted(linear_predictors(model), key=lambda p: p.shared)
    with building_graphs():
        varying = sum(p.forms.size for p in predictors if not p.shared)
        code = RowCode(model, predictors, varying, Packer(model))
        x, data = code.x, list(code.data.values())
        graph = fusion.row_graph([*x, *data], code.up_to(order))
        x, data = graph.inputs[: len(x)], graph.inputs[len(x) :]
        fusion.fuse(graph, [*x[:varying], *data], x[varying:])
    return sum(counts)


# Elements of predictors that every row has its own value of, and of parameters.
@pytest.mark.costly(cases=3)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("com_poisson", (1, 1)),
        ("tweedie", (1, 7)),
        ("conditional_logit", (0, 2)),
        ("latent_class", (0, 9)),
        ("hidden_markov", (0, 6)),
        ("ordinal_many", (20, 0)),
        ("mixture_many", (15, 30)),
        ("adstock", (0, 5)),
        ("poisson_lognormal", (0, 3)),
        ("n_mixture", (1, 2)),
    ],
)
def test_rows_see_the_fewest_numbers(name, expected):
    model = tall(name)
    offsets = {var: part.start for var, part in model.phi_slices.items()}
    found = fewest_predictors(model.batch, offsets, partial(extremes, model))
    sizes = [sum(p.forms.size for p in found if p.shared == shared) for shared in (False, True)]
    assert tuple(sizes) == expected


@pytest.mark.costly(cases=1)
@pytest.mark.parametrize("name", ["tweedie", "com_poisson", "conditional_logit"])
def test_code_grows_with_the_terms_and_no_faster(name, monkeypatch):
    few, many = (operations(tall(name, terms=k), 2, monkeypatch) for k in (12, 40))
    # A multiple of the terms, and a few that do not grow: in their square it would be eleven times.
    assert few < many <= 1.05 * 40 / 12 * few
    assert many <= fusion.MOST_OPERATIONS


@pytest.mark.costly
def test_code_of_a_row_is_bounded(monkeypatch):
    """Two derivatives of 400 terms are more than may be compiled, the terms alone are not."""
    assert operations(tall("com_poisson", terms=400), 0, monkeypatch) <= fusion.MOST_OPERATIONS
    with pytest.raises(NoForm):
        operations(tall("com_poisson", terms=400), 2, monkeypatch)


@pytest.mark.costly
def test_a_longer_series_is_loops():
    """Its code does not grow with the terms."""
    expansion = expand(tall("com_poisson", terms=1_000))
    assert expansion.linear


def integrated(name, local):
    return TallModel(pms.marginalize(POPULATIONS[name][0](units=30), local, n_nodes=3))


@pytest.mark.costly
def test_second_derivatives_are_those_of_slopes_along_directions(monkeypatch):
    model = integrated("heavy_tails", "effect")
    rows = np.arange(model.n_rows)
    center = expand(model, 1).parameters(model.ravel(model.initial_point))[0]

    def sums():
        expansion = expand(model)
        assert expansion.linear
        return expansion.totals([expansion.take(rows)], center, True)

    expected = sums()
    monkeypatch.setattr(row_code, "_OF_PAIRS", 1_000)
    assert has_directions(model)
    for ours, theirs in zip(sums(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def has_directions(model):
    packer = Packer(model)
    return RowCode(model, linear_predictors(model), 0, packer).along is not None


@pytest.mark.costly
def test_of_many_numbers_second_derivatives_are_along_directions():
    """Seven predictors of units with correlated effects have 28, of 4,600 nodes."""
    assert has_directions(integrated("correlated_slopes", "effects"))
    assert not has_directions(integrated("heavy_tails", "effect"))


def test_numbers_that_rows_pick_or_multiply_stay():
    """Twelve effects of three coefficients: an index among them cannot be one among these."""
    rng = np.random.default_rng(0)
    basis, g = rng.normal(size=(12, 3)), rng.integers(0, 12, N)
    with pm.Model() as model:
        c = pm.Normal("c", 0, 1, shape=3)
        pm.Normal("y", (basis @ c)[g], 1.0, observed=rng.normal(size=N))
    assert TallModel(model).phi_size == 12
    model = weighted(lambda: pt.exp(basis @ pm.Normal("c", 0, 1, shape=3)))
    assert model.phi_size == 3
    assert expand(model).linear


def network(units):
    """Rows that see hidden units through a product with their weights."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(N, 3))
    with pm.Model() as model:
        W = pm.Normal("W", 0, 1, shape=(3, units), initval=rng.normal(size=(3, units)))
        v = pm.Normal("v", 0, 1, shape=(units, 1), initval=np.ones((units, 1)))
        mean = (pt.tanh(X @ W) @ v).ravel()
        pm.Normal("y", mean, pm.HalfNormal("sigma", 1), observed=rng.normal(size=N))
    return TallModel(model)


@pytest.mark.costly(cases=2)
@pytest.mark.parametrize(("units", "linear"), [(2, True), (4, True), (5, False)])
def test_hidden_units_and_their_weights_are_predictors(units, linear):
    """Of four units these are 4 + 4, with sigma nine; of five, eleven are not few."""
    model = network(units)
    predictors = linear_predictors(model)
    assert (predictors is not None) == linear == expand(model, 1).linear
    if linear:
        assert sum(p.forms.size for p in predictors) == 2 * units + 1


def test_products_with_many_weights_stay():
    """Eleven numbers that rows share are too many predictors, whatever the product is of."""
    products = [n for n in toposort(network(11).batch.outputs) if is_product(n)]
    assert len(products) == 2
    assert sum(is_product(n) for n in toposort(network(10).batch.outputs)) == 1


def weighted(weights, link=pt.tanh, length=12):
    """Rows that see a function of few numbers through an elementwise product."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(N, length))
    with pm.Model() as model:
        mean = link(x * weights()).sum(axis=1)
        pm.Normal("y", mean, 1.0, observed=rng.normal(size=N))
    return TallModel(model)


@pytest.mark.parametrize("size", [3, 15])
def test_one_predictor_stays(size):
    """Of which expansions are exact here, whatever its coefficients are made of."""
    basis = np.random.default_rng(0).normal(size=(40, size))
    c = {"shape": size}
    model = weighted(lambda: pt.exp(basis @ pm.Normal("c", 0, 1, **c)), lambda eta: eta, 40)
    assert model.phi_size == 40
    [predictor] = linear_predictors(model)
    assert not predictor.shared


def test_no_expansion_is_in_counts_or_truths():
    """Which have no slope, while what is made of them does."""
    at = np.arange(12.0)

    def counted():
        k, a = pm.Poisson("k", 3), pm.Normal("a", 0, 1)
        return pt.exp(-(a**2) * at / 10) * pt.switch(at < k, 1.0, 0.5)

    for weights in (counted, lambda: pt.switch(pm.Normal("a", 0, 1) > 0, at, 1.0)):
        kinds = {v.type.dtype for v in weighted(weights).batch.parameters}
        assert kinds == {"float64"}


def test_what_a_row_cannot_compute_stays():
    """Weights from an inverse: each row would invert a matrix, which compiles for minutes."""

    def weights():
        v = np.ones((12, 2)) @ pm.Normal("c", 0, 1, shape=2)
        return pt.linalg.inv(pt.eye(12) + pt.outer(v, v)).sum(axis=0)

    assert weighted(weights).phi_size == 12


def test_numbers_have_the_order_of_the_graph():
    """Whatever the addresses of its variables are: draws are the same in any process."""

    def weights():
        parts = [pm.Normal(f"v{k}", k, 1) for k in range(8)]
        return sum(pt.exp(v * np.arange(20.0) / 20) for v in parts)

    model = weighted(weights, length=20)
    phi = [model.theta, *model.phi_graphs]
    [found] = numpy_function([phi[0]], [pt.concatenate([g.ravel() for g in phi[1:]])])(
        model.ravel(model.initial_point)
    )
    assert len(set(np.diff(found))) == 1


@pytest.mark.costly(cases=0)
def test_rows_too_long_for_any_code_take_the_general_path(monkeypatch):
    monkeypatch.setattr(fusion, "MOST_OPERATIONS", 3)
    monkeypatch.setattr(row_code, "_MOST_LOOPS", 3)
    expansion = expand(tall("poisson_tail", terms=2))
    assert not expansion.linear


@pytest.mark.costly
def test_derivatives_of_a_series_are_right():
    """Against differences of the formula in NumPy; with a term too few they are not."""
    terms = 12
    model = tall("com_poisson", terms=terms)
    expansion = expand(model)
    assert expansion.linear
    assert expansion.n_predictors == 2
    rng = np.random.default_rng(0)  # as the model draws its data
    x = rng.standard_normal(N)
    y = rng.poisson(np.exp(1.0 + 0.3 * x))

    def loglik(b0, b1, nu, terms=terms):
        j, rate = np.arange(terms), b0 + b1 * x
        log_z = logsumexp(j * rate[:, None] - nu * gammaln(j + 1.0), axis=1)
        return y * rate - nu * gammaln(y + 1.0) - log_z

    theta = np.array([0.8, 0.3, np.log(1.2)])
    center, _ = expansion.parameters(theta)
    rows = expansion.take(np.arange(N))
    expansion.anchor(center, rows)
    level = rows[-6:]  # log-likelihood, two slopes, three curvatures
    at, h = np.array([0.8, 0.3, 1.2]), 1e-4
    e = h * np.eye(3)
    exact = loglik(*at)
    np.testing.assert_allclose(level[0], exact, rtol=1e-12)
    assert np.abs(loglik(*at, terms - 1) - exact).max() > 1e-9
    of_eta = (loglik(*(at + e[0])) - loglik(*(at - e[0]))) / (2 * h)
    of_nu = (loglik(*(at + e[2])) - loglik(*(at - e[2]))) / (2 * h)
    both = sum(s * t * loglik(*(at + s * e[0] + t * e[2])) for s in (-1, 1) for t in (-1, 1)) / (
        4 * h**2
    )
    twice = [(loglik(*(at + d)) - 2 * exact + loglik(*(at - d))) / h**2 for d in (e[0], e[2])]
    # Differences of second order: h**2 times a third or fourth derivative, and rounding over h**2.
    np.testing.assert_allclose(level[1:3], [of_eta, of_nu], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(level[3:], [twice[0], both, twice[1]], rtol=1e-4, atol=1e-4)
