"""What Ops do to elements, in the domain of plain numbers, is what PyTensor does to arrays.

Bounds and sources hold for the numbers that graphs give.
"""

import numpy as np
import pytensor.tensor as pt
import pytest

from pymc_subsample.graph.concrete import depends_on
from pymc_subsample.graph.dependence import Sources
from pymc_subsample.graph.interpreter import Elements, NoForm, array_of
from pymc_subsample.graph.numpy_functions import evaluate, numpy_function
from pymc_subsample.graph.overall_intervals import OverallIntervals

x, y, A = (
    pt.tensor(n, dtype="float64", shape=s) for n, s in (("x", (4,)), ("y", (4,)), ("A", (2, 3, 4)))
)
B = A[0]
GRAPHS = {
    "broadcasting": x + B * 2 - y[None, :3].T,
    "sums": A.sum(axis=(0, -1)) + A.sum() - pt.prod(B, axis=0)[:3] + pt.max(A, axis=2)[1],
    "rearranged": A.dimshuffle(2, "x", 0, 1)[1:, 0].reshape((3, 6)).T,
    "joined": pt.concatenate([B, A[1, ::-1], pt.ones((3, 4))], axis=1),
    "stacked": pt.stack([x[1], y.sum(), pt.constant(2.0)]),
    "split": pt.split(x * y, [1, 3], n_splits=2)[1],
    "diagonal": pt.diagonal(pt.outer(x, y)),
    "repeated": pt.alloc(x, 3, 4) + pt.shape(A)[0],
    "vectors": pt.dot(x, y) + x,
    "matrix and vector": B @ x,
    "vector and matrix": x @ B.T,
    "matrices": B @ B.T,
    "stacks": pt.matmul(A, A.mT),
    "chosen": B[[2, 0, 0], [1, 3, 3]] - A[:, [1, 1]][0, 0, :3],
    "chosen by truth": x[np.array([True, False, True, True])],
    "set": pt.set_subtensor(B[1:, 2], y[:2]),
    "set by places": pt.set_subtensor(x[[3, 0]], [7.0, 8.0]),
    "increased": pt.inc_subtensor(B[:, ::2], 1.5),
    "increased by places": pt.inc_subtensor(x[[1, 3]], y[:2]),
    "truths": (B > 0).sum(axis=1) + pt.any(B > 1, axis=1) * pt.all(x > -9) - (x > 0).sum(),
    "counted": x * pt.arange(1, 5),
}


class Numbers(Elements):
    """Arrays of numbers."""

    def _number(self, x):
        return x

    def _integer(self, element):
        return int(element)

    def _apply(self, op, elements):
        return [op.impl(*elements)]


@pytest.mark.parametrize("name", GRAPHS)
def test_plain_numbers(name):
    graph, rng = GRAPHS[name], np.random.default_rng(1)
    values = {v: rng.normal(size=v.type.shape) for v in (x, y, A)}
    known = {v: array_of(value.flat, value.shape) for v, value in values.items()}
    [found] = Numbers(known).evaluate([graph])
    [expected] = numpy_function(list(values), [graph])(*values.values())
    np.testing.assert_allclose(found.astype(float), expected, rtol=1e-13)


@pytest.mark.parametrize("name", GRAPHS)
def test_what_an_element_depends_on(name):
    """Sources are those elements that change it, if they are moved one by one."""
    graph, rng = GRAPHS[name], np.random.default_rng(1)
    values = {v: rng.normal(size=v.type.shape) for v in (x, y, A)}
    function = numpy_function(list(values), [graph])
    for v, value in values.items():
        names = np.arange(value.size, dtype=np.int32).reshape(value.shape)
        data = {w: other for w, other in values.items() if w is not v}
        [found] = Sources({v: names}, data, 1).evaluate([graph])
        [before] = function(*values.values())
        for i in names.flat:
            moved = value.copy()
            moved.flat[i] *= -3.0
            [after] = function(*(values | {v: moved}).values())
            depends = np.zeros(found.shape, dtype=bool)
            for source in found.sources:
                depends |= source == i
            assert np.all(depends | (before == after))
            if name not in ("sums", "truths"):  # where most elements do not matter
                np.testing.assert_array_equal(depends, before != after)


def test_what_has_no_form_is_refused():
    known = {v: array_of(np.ones(4), (4,)) for v in (x, y)}
    with pytest.raises(NoForm):
        Numbers(known).evaluate([pt.inc_subtensor(x[[1, 1]], y[:2])])
    with pytest.raises(NoForm):
        Numbers(known).evaluate([pt.sort(x)])


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (lambda x, d: pt.sigmoid(x) >= 0, True),
        (lambda x, d: pt.sigmoid(x) <= 1, True),
        (lambda x, d: pt.sigmoid(x) > 0, False),  # it underflows
        (lambda x, d: 1 - pt.sigmoid(x) >= 0, True),
        (lambda x, d: pt.sigmoid(x) <= 0.9, False),
        (lambda x, d: pt.exp(x) > 0, True),
        (lambda x, d: pt.exp(x) * d >= 0, True),
        (lambda x, d: pt.exp(x) * (d - 2) >= 0, False),
        (lambda x, d: d / pt.exp(x) > 0, True),
        (lambda x, d: pt.sqrt(x**2 + d**2) > 0, True),
        (lambda x, d: pt.sqrt(x**2) > 0, False),
        (lambda x, d: 2 * pt.exp(x) - 2 >= 0, False),
        (lambda x, d: d * d > 1, False),  # reached
        (lambda x, d: x >= 0, False),
        (lambda x, d: x + d <= 1, False),
        (lambda x, d: pt.switch(x > 0, pt.exp(x), 1.0) > 0, True),
        (lambda x, d: pt.tanh(x) + 1 >= 0, True),
        (lambda x, d: -pt.exp(x) < 0, False),  # true, but not recognised
        (lambda x, d: 1 / x >= 0, False),
    ],
)
def test_bounds(condition, expected):
    x, data = pt.dvector("x"), pt.dvector("data")
    holds = condition(x, data)
    dependent = depends_on([holds], [x]) | {holds}
    values = {data: np.array([1.0, 2.0, 1.5])}
    bounds = OverallIntervals(dependent, lambda var: evaluate([var], values))
    assert bounds.always(holds) == expected
