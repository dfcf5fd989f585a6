"""Scalar graphs as lines of Python equal PyTensor's own functions."""

import numba
import numpy as np
import pytensor
import pytensor.scalar as ps
import pytest
from pytensor.graph.traversal import toposort

from pymc_subsample.compiled import scalar_source as arithmetic

x, y = ps.float64("x"), ps.float64("y")
VALUES = [(0.3, -1.7), (-2.5, 0.0), (0.0, 4.0), (7.0, 0.25), (np.inf, 1.0), (np.nan, -1.0)]
SHORT = [
    ps.add(x, y, x) * 2 - x / y,
    ps.neg(ps.sqr(x)) + ps.reciprocal(y),
    ps.exp(x) + ps.log(y) + ps.log1p(ps.abs(x)) + ps.sqrt(y),
    ps.switch(ps.gt(x, y), x, ps.constant(-np.inf)),
    ps.switch(ps.le(x, ps.constant(-1.5)), ps.constant(np.nan), y),
    ps.cast(ps.eq(x, y), "float64") + ps.cast(ps.neq(x, 0.0), "float64"),
    ps.identity(y) * ps.constant(1e-300) * ps.constant(np.int8(3)),
]
OTHERS = [
    ps.pow(x, ps.constant(np.int8(3))) + ps.tanh(y),
    ps.switch(ps.and_(ps.lt(x, y), ps.invert(ps.isinf(x))), ps.expm1(x), ps.clip(x, -1.0, 1.0)),
    ps.cast(ps.cast(x, "float32"), "float64"),
]


@pytest.mark.parametrize("graph", SHORT + OTHERS)
def test_values_are_those_of_pytensor(graph):
    row, key = arithmetic.scalar_function([x, y], [graph, y])
    assert key is not None
    called = numba.njit(lambda x, y: row(x, y))
    expected = pytensor.function([x, y], graph, mode="FAST_COMPILE", on_unused_input="ignore")
    for at in VALUES:
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(called(*at), [expected(*at), at[1]], rtol=1e-14)


@pytest.mark.parametrize("graph", SHORT)
def test_operations_that_are_one_operator_need_no_function(graph):
    assert all(arithmetic._form(node) for node in toposort([graph]))


def test_what_differs_has_another_key():
    graphs = [x * y, x + y, x * 2.0, x * 3.0, x**2, x**3, ps.tanh(x), ps.erf(x)]
    keys = [arithmetic.scalar_function([x, y], [graph])[1] for graph in graphs]
    assert len(set(keys)) == len(keys)
    assert arithmetic.scalar_function([x, y], [x * y])[1] == keys[0]


def test_no_two_uses_of_variables_have_one_name():
    """Numba names a use by variable and place: of x2 at 1246 it was that of x21 at 246."""
    inputs = [ps.float64() for _ in range(22)]
    row, _ = arithmetic.scalar_function(inputs, [ps.exp(ps.add(*inputs)) * inputs[3]])
    assert not any(name[-1].isdigit() for name in row.py_func.__code__.co_varnames)
