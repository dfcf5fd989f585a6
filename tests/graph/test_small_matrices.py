"""Linear algebra of small matrices by their elements."""

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import ancestors
from pytensor.tensor.blockwise import Blockwise

from pymc_subsample.graph.concrete import rebuild
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.graph.small_matrices import _MOST as MOST
from pymc_subsample.graph.small_matrices import factorised, substituted


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
    [written] = rebuild([solved], {}, substituted)
    assert not any(isinstance(v.owner.op, Blockwise) for v in ancestors([written]) if v.owner)
    [found] = numpy_function(inputs, [written])(matrix, right)
    triangle = (np.tril if lower else np.triu)(matrix)
    if unit_diagonal:
        np.fill_diagonal(triangle, 1)
    solution = np.linalg.solve(triangle, right[..., None] if columns is None else right)
    np.testing.assert_allclose(found, solution.reshape(right.shape), rtol=1e-12)


def test_large_triangular_systems_stay():
    solved = pt.linalg.solve_triangular(
        pt.tensor("matrix", dtype="float64", shape=(MOST + 1,) * 2),
        pt.tensor("b", dtype="float64", shape=(3, MOST + 1)),
        b_ndim=1,
    )
    [same] = rebuild([solved], {}, substituted)
    assert same.owner.op == solved.owner.op


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_small_covariances_are_factorised_with_their_gradients(lower, batch):
    rng = np.random.default_rng(1)
    root = rng.normal(size=(*batch, 4, 4))
    covariance = root @ root.swapaxes(-1, -2) + np.eye(4)
    weights = rng.normal(size=covariance.shape)
    x = pt.tensor("x", dtype="float64", shape=covariance.shape)
    # A function of a symmetric matrix, whose gradient does not depend on which half is read.
    symmetric = (x + x.swapaxes(-1, -2)) / 2
    graph = pt.linalg.cholesky(symmetric, lower=lower)
    [written] = rebuild([graph], {}, factorised)
    assert not any(isinstance(v.owner.op, Blockwise) for v in ancestors([written]) if v.owner)
    found, expected = (
        numpy_function([x], [g, pt.grad((g * weights).sum(), x)])(covariance)
        for g in (written, graph)
    )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_what_is_no_covariance_has_no_factor():
    x = pt.tensor("x", dtype="float64", shape=(2, 2))
    [written] = rebuild([pt.linalg.cholesky(x)], {}, factorised)
    [found] = numpy_function([x], [written])(np.array([[1.0, 2.0], [2.0, 1.0]]))
    assert np.isnan(found[1, 1])


def test_large_covariances_stay():
    factor = pt.linalg.cholesky(pt.tensor("x", dtype="float64", shape=(MOST + 1,) * 2))
    [same] = rebuild([factor], {}, factorised)
    assert same.owner.op == factor.owner.op
