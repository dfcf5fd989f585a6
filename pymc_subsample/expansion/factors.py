r"""Factors F of a covariance, :math:`\Sigma = F F'`, in which chains move: :math:`\theta = F z`.

As an array F is lower triangular, shape (a, a), or a diagonal, shape (1, a). Of many parameters
whose precision is sparse, as that of thousands of effects of crossed groups, it is
:math:`F = L^{-\top}` with L the Cholesky factor of the precision in an order of elimination that
keeps it sparse: shape (3, k), its elements column by column, each column's diagonal first, as row,
column and value. `kind` says which form an array has; nothing else looks at its shape, but for the
kernels that read it.
"""

from enum import Enum

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from pymc_subsample.compiled.process import one_thread
from pymc_subsample.expansion.curvature import MAX_DENSE
from pymc_subsample.kernels.vectors import is_sparse, scale_up

# Elements of a precision, in units of its diagonal, that are rounding errors of differences.
_SMALLEST = 1e-6
# A sparse factor has at most this many elements per parameter: each is one product per use.
_MOST_PER_ROW = 200
# Solved for at once.
_COLUMNS = 256


class Kind(Enum):
    """Forms of a factor."""

    FULL = "lower triangular, shape (a, a)"
    DIAGONAL = "standard deviations, shape (1, a), of several parameters"
    SPARSE = "elements of a Cholesky factor of the precision, shape (3, k)"


def kind(factor: np.ndarray) -> Kind:
    """Return the form of a factor."""
    if is_sparse(factor):
        return Kind.SPARSE
    return Kind.DIAGONAL if len(factor) == 1 < factor.shape[1] else Kind.FULL


@one_thread
def factor(cov: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factor or, for many parameters, standard deviations (1, a)."""
    if len(cov) > MAX_DENSE:
        return np.sqrt(np.diag(cov))[None, :]
    return np.ascontiguousarray(np.linalg.cholesky(cov))


def reshaped(lower: np.ndarray, cov: np.ndarray) -> np.ndarray | None:
    """Return the lower factor of ``lower @ cov @ lower.T``, which need not be made for it.

    None where `cov` is singular to rounding.
    """
    try:
        return np.ascontiguousarray(lower @ np.linalg.cholesky(cov))
    except np.linalg.LinAlgError:
        return None


@one_thread
def sparse_factor(matrix: np.ndarray) -> np.ndarray | None:
    """Factor a sparse precision, shape (a, a); None where it is not positive definite or sparse."""
    scale = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    if not np.all(scale > 0) or not np.all(np.isfinite(matrix)):
        return None
    scaled = matrix / np.outer(scale, scale)
    scaled[np.abs(scaled) < _SMALLEST] = 0.0
    size = len(scaled)
    if size <= 3 or np.count_nonzero(scaled) > _MOST_PER_ROW * size:
        return None
    try:
        found = scipy.sparse.linalg.splu(
            scipy.sparse.csc_array(scaled), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )  # fmt: skip
    except RuntimeError:  # exactly singular
        return None
    pivots = found.U.diagonal()
    if np.any(found.perm_r != found.perm_c) or not np.all(pivots > 0):
        return None
    lower = scipy.sparse.csc_array(found.L * np.sqrt(pivots))
    lower.sort_indices()
    if lower.nnz > _MOST_PER_ROW * size:
        return None
    place = np.argsort(found.perm_r)  # of each position in the order of elimination
    row = place[lower.indices]
    column = np.repeat(place, np.diff(lower.indptr))
    return np.array([row, column, scale[row] * lower.data], dtype=float)


def whiten(factor: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Divide by a factor along the first axis of x, shape (a,) or (a, k)."""
    form = kind(factor)
    if form is Kind.DIAGONAL:
        return (x.T / factor[0]).T
    if form is Kind.SPARSE:
        row, column = factor[:2].astype(int)
        return scipy.sparse.coo_array((factor[2], (column, row)), (len(x),) * 2) @ x
    return np.linalg.solve(factor, x)


@one_thread
def scaled(factor: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Multiply standard normal vectors, shape (k, a), by a factor."""
    form = kind(factor)
    if form is Kind.DIAGONAL:
        return z * factor[0]
    if form is Kind.SPARSE:
        found = np.empty_like(z)
        for one, out in zip(z, found, strict=True):
            scale_up(factor, one, out)
        return found
    return z @ factor.T


def stretched(factor: np.ndarray, ratio: np.ndarray) -> np.ndarray:
    """Return the factor for whitened coordinates whose variances are `ratio`, shape (a,)."""
    if kind(factor) is Kind.SPARSE:
        row, column, value = factor
        return np.array([row, column, value / np.sqrt(ratio[column.astype(int)])])
    return factor * np.sqrt(ratio)


def deviations(factor: np.ndarray, size: int) -> np.ndarray:
    """Return standard deviations of each element, shape (a,)."""
    form = kind(factor)
    if form is Kind.SPARSE:
        total = np.zeros(size)
        for start in range(0, size, _COLUMNS):
            columns = np.arange(start, min(start + _COLUMNS, size))
            units = np.zeros((len(columns), size))
            units[columns - start, columns] = 1.0
            total += np.sum(scaled(factor, units) ** 2, axis=0)
        return np.sqrt(total)
    return np.sqrt(np.sum(factor**2, axis=0 if form is Kind.DIAGONAL else 1))
