"""Loops that are written out give what PyTensor's loops give."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import toposort
from pytensor.scan.op import Scan
from pytensor.scan.utils import until

from pymc_subsample.graph.concrete import concretize
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.graph.unrolled import LONGEST, without_loops

T, J = 5, 3
b = pt.vector("b", shape=(2,))
x = np.random.default_rng(1).normal(size=(T, J))
X = pt.as_tensor(x)
LENGTHS = pt.as_tensor(np.array([1, 3, 2, 0, 2]))


def loop(step, sequences=(), states=None, others=(b,), **given):
    return pytensor.scan(
        step, sequences=sequences, outputs_info=states, non_sequences=list(others),
        return_updates=False, **given,
    )  # fmt: skip


def carried(x, before, b):
    return pt.tanh(b[0] * before + x * b[1])


def two_back(now, last, before, earlier, b):
    return now * b[0] - last * before + b[1] * earlier, now.sum() + before[0]


def forward(x, level, trend, b):
    new = level + b[0] * trend + x
    return new, trend * b[1] + new - level, pt.exp(new).sum()


def of_a_column(column, b):
    return loop(carried, [column], [pt.zeros(())]).sum()


LOOPS = {
    "states": loop(carried, [X], [pt.zeros(J)]),
    "last state": loop(carried, [X], [pt.zeros(J)])[-1] * b[1],
    "some states": loop(carried, [X], [pt.zeros(J)])[1:-1],
    "every second": loop(carried, [X], [pt.zeros(J)])[::2, 1:],
    "a start of parameters": loop(carried, [X], [b[0] + X[0]])[-1],
    "backwards": loop(carried, [X], [pt.zeros(J)], go_backwards=True),
    "values before": loop(
        two_back,
        [{"input": X, "taps": [0, -1]}],
        [{"initial": X[:2], "taps": [-1, -2]}, None],
    )[0],
    "what steps make": loop(
        two_back,
        [{"input": X, "taps": [0, -1]}],
        [{"initial": X[:2], "taps": [-1, -2]}, None],
    )[1],
    "two states": pt.concatenate(loop(forward, [X], [pt.zeros(J), pt.ones(J), None])[:2]),
    "steps alone": loop(
        lambda before, x, b: before * b[0] + x[0], [], [pt.ones(J)], (X, b), n_steps=4
    )[-1],
    "no states": loop(lambda x, b: pt.exp(x * b[0]).sum() + x[:2] @ b, [X]),
    "alike in all steps": loop(lambda x, b: (x * b[0], b * 2), [X])[1] + X.sum(),
    "a loop within": loop(of_a_column, [X.T]),
    "steps of different lengths": loop(lambda x, n, b: (x * b[0])[:n].sum(), [X, LENGTHS]),
    "steps indexed by data": loop(carried, [X], [pt.zeros(J)])[
        np.array([4, 0, 2]), np.arange(J)
    ],
}  # fmt: skip


def written_out(graph):
    concrete = concretize([graph], [b], {"b": np.zeros(2)})
    return without_loops(concrete.outputs, concrete.values, concrete.arrays), concrete


def has_loops(graphs):
    return any(isinstance(node.op, Scan) for node in toposort(graphs))


@pytest.mark.parametrize("name", LOOPS)
def test_values_are_those_of_loops(name):
    [graph], concrete = written_out(LOOPS[name])
    assert not has_loops([graph])
    function = numpy_function([*concrete.values, *concrete.arrays], [graph])
    at = np.array([0.4, -0.7])
    [found] = function(at, *concrete.arrays.values())
    [expected] = numpy_function([b], [LOOPS[name]])(at)
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_one_state_is_read_without_the_others():
    [graph], _ = written_out(LOOPS["last state"])
    assert not any("Join" in str(node.op) for node in toposort([graph]))


LEFT = {
    "of parameters alone": loop(lambda before, b: before * b[0], [], [pt.ones(2)], n_steps=T),
    "of data alone": b[0] * loop(lambda x, before: x + before, [X], [pt.zeros(J)], ())[-1],
    "with a condition": loop(
        lambda x, before, b: (carried(x, before, b), until(before.sum() > 1)), [X], [pt.zeros(J)]
    ),
    "of too many steps": loop(
        carried, [pt.as_tensor(np.ones((LONGEST + 1, J)))], [pt.zeros(J)]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_loops_that_are_left(name):
    assert has_loops(written_out(LEFT[name])[0])
