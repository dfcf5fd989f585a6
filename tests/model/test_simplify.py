"""Stable forms of a row's log-likelihood."""

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import ancestors
from pytensor.tensor.blockwise import Blockwise
from scipy.special import gammainc, gammaincc

from pymc_subsample.graph.concrete import rebuild
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.model.predictors import MAX_PREDICTORS
from pymc_subsample.model.simplify import _complemented, _substituted


@pytest.mark.parametrize(
    ("written", "exact", "x"),
    [
        (pt.gammainc, gammaincc, np.array([0.1, 1.0, 30.0, 60.0])),
        (pt.gammaincc, gammainc, np.array([1e-12, 1e-6, 0.1, 30.0])),
    ],
)
def test_complements_keep_their_digits(written, exact, x):
    """Where one minus what is written has none left, or a few."""
    inputs = [pt.vector(c, dtype="float64") for c in "ax"]
    graph = pt.log1mexp(pt.log(written(*inputs)))
    [stable] = rebuild([graph], {}, _complemented)
    a = np.full(4, 2.5)
    with np.errstate(all="ignore"):
        [before], [after] = (numpy_function(inputs, [g])(a, x) for g in (graph, stable))
    np.testing.assert_allclose(after, np.log(exact(a, x)), rtol=1e-13)
    assert not np.allclose(before, after, rtol=1e-6)


@pytest.mark.parametrize("columns", [None, 2])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit_diagonal", [True, False])
def test_triangular_systems_are_written_out(columns, lower, unit_diagonal):
    rng = np.random.default_rng(1)
    n, m = 4, 3
    matrix = rng.normal(size=(n, n)) + 3 * np.eye(n)
    right = rng.normal(size=(m, n) if columns is None else (m, n, columns))
    inputs = [
        pt.tensor("matrix", dtype="float64", shape=(n, n)),
        pt.tensor("b", dtype="float64", shape=right.shape),
    ]
    solved = pt.linalg.solve_triangular(
        *inputs, lower=lower, unit_diagonal=unit_diagonal, b_ndim=1 if columns is None else 2
    )
    [written] = rebuild([solved], {}, _substituted)
    assert not any(isinstance(v.owner.op, Blockwise) for v in ancestors([written]) if v.owner)
    [found] = numpy_function(inputs, [written])(matrix, right)
    triangle = (np.tril if lower else np.triu)(matrix)
    if unit_diagonal:
        np.fill_diagonal(triangle, 1)
    solution = np.linalg.solve(triangle, right[..., None] if columns is None else right)
    np.testing.assert_allclose(found, solution.reshape(right.shape), rtol=1e-12)


def test_large_triangular_systems_stay():
    solved = pt.linalg.solve_triangular(
        pt.tensor("matrix", dtype="float64", shape=(MAX_PREDICTORS + 1,) * 2),
        pt.tensor("b", dtype="float64", shape=(3, MAX_PREDICTORS + 1)),
        b_ndim=1,
    )
    [same] = rebuild([solved], {}, _substituted)
    assert same.owner.op == solved.owner.op
