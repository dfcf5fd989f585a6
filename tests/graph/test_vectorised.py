"""Graphs of rows with axes in front are the graphs of each element of these, side by side."""

import numpy as np
import pytensor.tensor as pt
import pytest

from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.graph.vectorised import vectorised

TABLE = pt.as_tensor(np.arange(30.0).reshape(5, 6))
v, x = pt.scalar("v"), pt.tensor("x", shape=(4,))
i = pt.tensor("i", shape=(2,), dtype="int64")
j = pt.tensor("j", shape=(2, 1), dtype="int64")
rng = np.random.default_rng(0)
VALUES = {v: rng.normal(size=2), x: rng.normal(size=(2, 4)),
          i: rng.integers(0, 5, (2, 2)), j: rng.integers(0, 5, (2, 2, 1))}  # fmt: skip
GRAPHS = {
    "as long as another": pt.alloc(v, x.shape[0]) * x,
    "an index of rows and one of columns": TABLE[i, j],
    "one of them is the same for all": TABLE[i, np.array([[1], [3]])],
    "and the other": TABLE[np.array([1, 3]), j],
    "from what is in front": (v * TABLE)[i, j],
}


@pytest.mark.parametrize("name", GRAPHS)
def test_axes_in_front_do_not_mix(name):
    inputs, graph = list(VALUES), GRAPHS[name]
    larger = [pt.tensor(shape=VALUES[u].shape, dtype=u.type.dtype) for u in inputs]
    together = vectorised(graph, dict(zip(inputs, larger, strict=True)), 1)
    [found] = numpy_function(larger, [together])(*VALUES.values())
    alone = numpy_function(inputs, [graph])
    expected = [alone(*(value[k] for value in VALUES.values()))[0] for k in range(2)]
    np.testing.assert_array_equal(found, expected)
