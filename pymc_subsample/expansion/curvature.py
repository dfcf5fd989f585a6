"""The sum of the rows' curvatures: full, by its elements that are not zero, or its diagonal.

As an array it is full, shape (P, P), or lists k elements, shape (3, k): row, column and value. The
second form is used where groups make most elements zero, and for a diagonal, in both cases for
hundreds of parameters or more: the shape tells which form it is.
"""

import numpy as np
import scipy.linalg
import scipy.sparse

from pymc_subsample.model import TallModelError

# The mass matrix is dense up to this many parameters, and sparse or diagonal beyond.
MAX_DENSE = 500
# Matrices over all parameters are formed up to this size, in phi and in theta.
MAX_CURVATURE = 5000
# A row's terms beyond which a list of elements is filled too slowly.
MAX_TERMS = 60

# Of a matrix with a diagonal of ones: below it an inverse is not trusted, and below that an
# eigenvalue is none.
_INVERTIBLE, _SMALLEST_EIGENVALUE = 1e-13, 2e-15
# Units in the last place to which sums of many terms are exact, as measured.
_EXACT = 8
# Elements of a direction that are named, beside its largest.
_NAMED = 0.05
# Up to this size eigenvalues cost nothing.
_SMALL = 200


class SparseSum:
    """Adds sparse curvatures, shape (P, P), and holds their sum."""

    def __init__(self, size: int) -> None:
        self.matrix = scipy.sparse.csr_array((size, size))

    def add(self, matrix: scipy.sparse.sparray) -> None:
        """Add a matrix, shape (P, P)."""
        self.matrix = self.matrix + matrix


Sum = np.ndarray | SparseSum
# Of l*, shape (1,), its gradient, (P,), and its curvature; and how many rows have none, (1,).
Totals = tuple[np.ndarray, np.ndarray, Sum, np.ndarray]


def empty_sum(kind: str, size: int) -> Sum:
    """Return a zero to add curvatures to, for an expansion's kind of curvature."""
    if kind == "sparse":
        return SparseSum(size)
    return np.zeros((size, size) if kind == "full" else size)


def sum_of(array: np.ndarray, kind: str, size: int) -> Sum:
    """Return the sum that `as_array` makes into an array, for an expansion's kind of curvature."""
    if kind == "full":
        return array.copy()
    row, column, value = array
    if kind == "diagonal":
        return value.copy()
    total, where = SparseSum(size), (row.astype(np.int64), column.astype(np.int64))
    total.add(scipy.sparse.csr_array((value, where), (size, size)))
    return total


def add(total: Sum, part: Sum) -> None:
    """Add a sum over some rows to that of those before."""
    if isinstance(total, SparseSum):
        assert isinstance(part, SparseSum)
        total.add(part.matrix)
    else:
        total += part


def as_array(total: Sum, weight: float) -> np.ndarray:
    """Return `weight` times a sum as an array, shape (P, P) or (3, k); the sum may be changed."""
    if isinstance(total, SparseSum):
        found = total.matrix.tocoo()
        return np.array([*found.coords, weight * found.data], dtype=float)
    if total.ndim == 1:
        place = np.arange(len(total), dtype=float)
        return np.array([place, place, weight * total])
    total *= weight
    return total


def times(curvature: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Multiply vectors, shape (P,) or (P, k), by a curvature as an array; an empty one is zero."""
    size = len(x)
    if curvature.size == 0:
        return np.zeros_like(x)
    if len(curvature) == size:
        return curvature @ x
    row, column, value = curvature
    where = row.astype(np.int64), column.astype(np.int64)
    return scipy.sparse.coo_array((value, where), (size, size)).tocsr() @ x


def covariance(matrix: np.ndarray) -> np.ndarray:
    """Invert a precision matrix; directions of negative curvature are taken by their size."""
    scale, scaled, inverse = _scaled(matrix)
    if inverse is None:
        values, vectors = _spectrum(scaled)
        inverse = (vectors / values) @ vectors.T
    return inverse / np.outer(scale, scale)


def covariance_factor(matrix: np.ndarray) -> np.ndarray:
    """Return the lower factor of `covariance(matrix)`, also where that is nearly singular."""
    scale, scaled, inverse = _scaled(matrix)
    if inverse is None:
        values, vectors = _spectrum(scaled)
        lower = np.linalg.qr((vectors / np.sqrt(values)).T, mode="r").T
    else:
        lower = np.linalg.cholesky(inverse)
    return np.ascontiguousarray(lower * np.sign(np.diag(lower)) / scale[:, None])


def rounded(matrix: np.ndarray, share: float) -> np.ndarray:
    """Return elements of directions whose precision rounding may change by more than a share.

    Elements of sums are exact to eps, eight units in the last place, and eigenvalues to eps times
    the largest: with eigenvectors v of the matrix with a diagonal of ones, those of less than
    ``eps max((sum |v|)^2, max(lambda)) / share`` are not known to it.
    """
    scale = units(matrix)
    values, vectors = scipy.linalg.eigh(matrix / np.outer(scale, scale))
    size = np.abs(vectors)
    largest = np.abs(values).max(initial=1.0)
    known = _EXACT * np.finfo(float).eps * np.maximum(size.sum(axis=0) ** 2, largest)
    lost = size[:, np.abs(values) * share < known]
    return np.flatnonzero(np.any(lost >= _NAMED * size.max(initial=0.0), axis=1))


def units(matrix: np.ndarray) -> np.ndarray:
    """Roots of a precision's diagonal, which make its rows and columns alike; 1 where it is 0."""
    scale = np.sqrt(np.abs(np.diag(matrix)))
    return np.where(scale > 0, scale, 1.0)


def _scaled(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Roots of a diagonal, the matrix with ones there, and its inverse where that is easy."""
    if not np.all(np.isfinite(matrix)):
        raise TallModelError(
            "The curvature of the log posterior is not finite where it was looked at. Standardise "
            "the columns of the data, or give the parameters another `initval`."
        )
    scale = units(matrix)
    scaled = matrix / np.outer(scale, scale)
    return scale, scaled, _positive_inverse(scaled) if len(matrix) > _SMALL else None


def _spectrum(scaled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sizes of the eigenvalues, which are kept from zero, and eigenvectors."""
    values, vectors = scipy.linalg.eigh(scaled)
    largest = np.abs(values).max(initial=0.0) or 1.0
    return np.maximum(np.abs(values), _SMALLEST_EIGENVALUE * largest), vectors


def _positive_inverse(matrix: np.ndarray) -> np.ndarray | None:
    """Invert a well-conditioned positive definite matrix; None for any other."""
    if not np.all(np.isfinite(matrix)):
        return None
    cholesky, failed = scipy.linalg.lapack.dpotrf(matrix, lower=True)
    if failed:
        return None
    norm = np.abs(matrix).sum(axis=0).max()
    reciprocal, _ = scipy.linalg.lapack.dpocon(cholesky, norm, uplo="L")
    if reciprocal < _INVERTIBLE:
        return None
    inverse, _ = scipy.linalg.lapack.dpotri(cholesky, lower=True, overwrite_c=True)
    below = np.tril(inverse)
    return below + np.tril(below, -1).T
