"""Functions of the parameters as loops equal PyTensor's own, model by model."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from models import MODELS

from pymc_subsample.compiled.functions import compile_graph
from pymc_subsample.expansion import expansion as expansions
from pymc_subsample.expansion import loops
from pymc_subsample.graph.interpreter import NoForm
from pymc_subsample.kernels.model import BACKWARD
from pymc_subsample.model import TallModel


def both(tall, monkeypatch):
    """Functions by loops and by PyTensor, and whether loops were possible."""
    tried = []

    def recorded(name, inputs, outputs, *rest):
        try:
            loops.parameter_loops(inputs, outputs)
            tried.append(True)
        except NoForm:
            tried.append(False)
        return loops.compile_loops(name, inputs, outputs, *rest)

    monkeypatch.setattr(expansions, "compile_loops", recorded)
    mine = {name: make() for name, make in expansions.parameter_functions(tall).items()}
    monkeypatch.setattr(expansions, "compile_loops", compile_graph)
    other = {name: make() for name, make in expansions.parameter_functions(tall).items()}
    return mine, other, tried


def compare(tall, mine, other, rng):
    for _ in range(3):
        theta = tall.ravel(tall.initial_point) + 0.3 * rng.normal(size=tall.size)
        weights = rng.normal(size=tall.phi_size)
        phi, prior, grad = ([np.empty(k) for _ in range(2)] for k in (tall.phi_size, 1, tall.size))
        for k, functions in enumerate((mine, other)):
            functions["forward"](theta, phi[k], prior[k])
            functions["backward"](theta, weights, grad[k])
        for left, right in (phi, prior, grad):
            np.testing.assert_allclose(left, right, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_the_bank(tall_model, name, monkeypatch):
    tall = tall_model(name)
    mine, other, _ = both(tall, monkeypatch)
    compare(tall, mine, other, np.random.default_rng(3))


def hierarchy(rng):
    """Groups, a matrix, lengths of one and transforms, all elementwise."""
    g, x = rng.integers(0, 4, 50), rng.normal(size=(50, 3))
    mu = pm.Normal("mu", 0, 1)
    tau = pm.HalfNormal("tau", 1, shape=1)
    a = pm.Normal("a", mu, tau, shape=4)
    b = pm.StudentT("b", nu=4, mu=0, sigma=1, shape=(3, 2))
    s = pm.Uniform("s", 0.1, 3)
    pm.Normal("y", a[g] + (x @ b).sum(axis=1), s, observed=rng.normal(size=50))


def dirichlet(rng):
    """A simplex, whose elements know of each other."""
    p = pm.Dirichlet("p", np.ones(3))
    pm.Categorical("y", p=p, observed=rng.integers(0, 3, 50))


def centred(rng):
    """A sum inside another: coefficients told how far they are from their mean."""
    b = pm.Normal("b", 0, 1, shape=3)
    pm.Potential("spread", -pt.sum((b - pt.sum(b) / 3) ** 2))
    pm.Normal("y", rng.normal(size=(50, 3)) @ b, 1.0, observed=rng.normal(size=50))


def correlated(rng):
    b = pm.MvNormal("b", np.zeros(2), np.array([[1.0, 0.3], [0.3, 1.0]]))
    pm.Normal("y", rng.normal(size=(50, 2)) @ b, 1.0, observed=rng.normal(size=50))


def different_means(rng):
    """A prior mean of its own for each element."""
    b = pm.Normal("b", np.array([1.0, 2.0]), 1.0, shape=2)
    pm.Normal("y", rng.normal(size=(50, 2)) @ b, 1.0, observed=rng.normal(size=50))


def joined(rng):
    """Free parameters after a constant, in one axis and the other."""
    b = pm.Normal("b", 0, 1, shape=2)
    c = pm.Normal("c", 0, 1, shape=(2, 2))
    first = pt.concatenate([pt.zeros(1), b])
    second = pt.concatenate([pt.ones((2, 1)), c], axis=1)
    mean = rng.normal(size=(50, 3)) @ first + rng.normal(size=(50, 3)) @ second[1]
    pm.Normal("y", mean, 1.0, observed=rng.normal(size=50))


def accumulated_along_one(rng):
    """Cumulative sums along an axis of length one leave everything as it is."""
    b = pm.Normal("b", 0, 1, shape=3)
    c = pt.cumsum(b[None, :], axis=0)[0] + pt.cumsum(b[:, None], axis=1)[:, 0]
    pm.Normal("y", rng.normal(size=(50, 3)) @ c, 1.0, observed=rng.normal(size=50))


def accumulated(rng):
    b = pm.Normal("b", 0, 1, shape=3)
    c = pt.cumsum(b)
    pm.Normal("y", rng.normal(size=(50, 3)) @ c, 1.0, observed=rng.normal(size=50))


@pytest.mark.costly(cases=0)
@pytest.mark.parametrize(
    ("build", "possible"),
    [
        (hierarchy, [True, True]),
        (centred, [True, True]),
        (dirichlet, [True, True]),
        (correlated, [True, True]),
        (different_means, [True, True]),
        (accumulated, [True, True]),
        (joined, [True, True]),
        (accumulated_along_one, [False, False]),
    ],
)
def test_loops_where_graphs_are_elementwise_and_only_there(build, possible, monkeypatch):
    rng = np.random.default_rng(4)
    with pm.Model() as model:
        build(rng)
    tall = TallModel(model)
    mine, other, tried = both(tall, monkeypatch)
    assert tried == possible
    compare(tall, mine, other, rng)


x, w = pt.vector("x", shape=(4,)), pt.vector("w", shape=(4,))


@pytest.mark.costly(cases=5)
@pytest.mark.parametrize(
    "graph",
    [
        x + w[::-1],
        x + pt.concatenate([w[:2], w[2:]]),
        x * w.max(),
        x + pt.cumsum(w),
        x.reshape((2, 2)).T.ravel() + w,
        x + w.reshape((2, 2)).sum(axis=0).sum() * w[:2].repeat(2),
        x.reshape((2, 2)).max(axis=0)[np.array([1, 1, 0, 0])] - w.min() * x.prod(),
        pt.special.softmax(x) + pt.special.log_softmax(w),
        x * pt.sum(x > -9) + pt.sum(w.reshape((2, 2)) > -9, axis=1).repeat(2),
        pt.switch(pt.all(x > w) | pt.any(x < -1), x, w),
        pt.switch(pt.any(x.reshape((2, 2)) > 0, axis=1), x[:2], w[:2]).repeat(2),
        pt.diagonal(pt.outer(x, w)),
        pt.split(x * w, [1, 3], n_splits=2)[1].sum() + x,
        pt.dot(x, w) + x,
        pt.outer(x[:2], w[:2]).ravel() + x,
        pt.sort(x) + w,
        x[[3, 0, 0, 1]] * w,
        pt.set_subtensor(pt.empty(1)[0], pt.exp(x[1])) + w,
        pt.zeros(4)[[1, 1, 3, 0]].set(0.5) + pt.exp(x),
        (x + 1)[pt.as_tensor([2, 2])].sum() * w,
        pt.set_subtensor(x[1:3], pt.exp(w[:2])),
        pt.inc_subtensor(pt.exp(x)[np.array([1, 1, 3])], w[1:]),
        pt.inc_subtensor(x[::2], 3.0),
        pt.dot(x.reshape((2, 2)), pt.exp(w).reshape((2, 2))).T.ravel(),
        (x.reshape((2, 2)) * w.reshape((2, 2)).sum(axis=0)).ravel(),
        pt.concatenate([w[:1], pt.cumsum(x)[::-1][:3]]),
        pt.stack([x[1], w[2], x[0] * w[0], pt.sum(w)]) + np.arange(4.0),
        pt.join(1, x.reshape((2, 2))[:, :1], w.reshape((2, 2))[:, :1]).ravel(),
        pt.log1p(pt.exp(x * w + x)) ** 2 + pt.sum(w * pt.log1p(pt.exp(x * w + x)) ** 2 * x[::-1]),
        x.reshape((2, 2))[pt.arange(2), [1, 0]].repeat(2),
        pt.tri(4) @ x + w,
        x[1:][:1] + w,
    ],
)
def test_whatever_mixes_elements_is_left_to_pytensor(graph):
    """Or computed as it should be."""
    mine = loops.compile_loops("f", [x, w], {"out[i]": graph}, ["out"], BACKWARD)
    other = compile_graph("f", [x, w], {"out[i]": graph}, ["out"], BACKWARD)
    rng = np.random.default_rng(5)
    values, found = rng.normal(size=(2, 4)), np.empty((2, 4))
    mine(*values, found[0])
    other(*values, found[1])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)


@pytest.mark.costly(cases=5)
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("reduction", [pt.max, pt.min, pt.sum, pt.prod])
def test_reductions_keep_what_is_not_a_number(reduction, place):
    for graph, lost in [
        (reduction(x) + w, slice(None)),
        (reduction(x.reshape((2, 2)), axis=1).repeat(2) + w, slice(place // 2 * 2, None)),
    ]:
        values, found = np.array([[3.0, -1.0, 2.0, 5.0], np.zeros(4)]), np.empty(4)
        values[0, place] = np.nan
        loops.parameter_loops([x, w], {"out[i]": graph})
        loops.compile_loops("f", [x, w], {"out[i]": graph}, ["out"], BACKWARD)(*values, found)
        assert np.isnan(found[lost][:2]).all()


def test_a_number_as_a_vector_and_a_vector_as_a_number():
    outputs = {"out[i]": pt.sum(x).reshape((1,)), "out[1 + i]": (x[:1] + 1).reshape((1,))}
    outputs |= {"out[2]": pt.sqr(w[1:2]).reshape(())}
    found = np.full(4, np.nan)
    loops.compile_loops("f", [x, w], outputs, ["out"], BACKWARD)(
        np.array([1.0, 2.0, 3.0, 4.0]), np.array([5.0, 6.0, 7.0, 8.0]), found
    )
    np.testing.assert_allclose(found, [10, 2, 36, np.nan])
    loops.parameter_loops([x, w], outputs)


@pytest.mark.parametrize(
    "graph",
    [
        x + w,
        pt.exp(x) * pt.sum(pt.sqr(w)) + x[1],
        x * pt.sum(w * pt.sum(x)),
        x * pt.sum(pt.sqr(x - pt.sum(x) / 4)),
        w * pt.sum(pt.exp(w - pt.sum(pt.exp(x - pt.sum(w))))) + pt.sum(w),
        pt.switch(x[-1] > 0, x, w),
        x[:1] + w,
        pt.sum(x[1:3]) * x,
    ],
)
def test_elementwise_graphs_are_loops(graph):
    code = loops.parameter_loops([x, w], {"out[i]": graph})
    assert "for i in range(4):" in code.before
    test_whatever_mixes_elements_is_left_to_pytensor(graph)
