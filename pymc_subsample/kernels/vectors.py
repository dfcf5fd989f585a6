"""Vectors in compiled code: copies, and products with a factor of a covariance.

A factor F has one of the forms of `expansion.factors`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_subsample.compiled.cache import kept
from pymc_subsample.compiled.functions import FAST, inner


def named(kind: Any) -> Callable:
    """Return a compiled function that makes a named tuple of the first numbers of an array."""
    numbers = ", ".join(f"x[{i}]" for i in range(len(kind._fields)))
    return inner(eval(f"lambda x: kind({numbers})", {"kind": kind}))


@inner
def copy(source, target):
    """Copy a vector; a slice assignment takes a second or two to compile."""
    for a in range(source.shape[0]):
        target[a] = source[a]


@inner
def clear(x):
    """Fill a vector with zeros."""
    for a in range(x.shape[0]):
        x[a] = 0.0


@inner
def is_finite(x):
    """Whether x is finite; with reassociation ``np.isfinite`` of a sum is always true."""
    return -np.inf < x < np.inf


@inner
def is_sparse(factor):
    """Whether a factor is given by the elements of a sparse Cholesky factor of the precision."""
    return factor.shape[0] == 3 and factor.shape[1] > 3


@kept(fastmath=FAST)  # the set-up calls it from Python
def scale_up(factor, x, out):
    """``F @ x``."""
    if factor.shape[0] == 1:
        for a in range(x.shape[0]):
            out[a] = factor[0, a] * x[a]
    elif is_sparse(factor):
        total = 0.0
        for k in range(factor.shape[1] - 1, -1, -1):
            row, column = int(factor[0, k]), int(factor[1, k])
            if row == column:
                out[row] = (x[row] - total) / factor[2, k]
                total = 0.0
            else:
                total += factor[2, k] * out[row]
    else:
        for a in range(x.shape[0]):
            total = 0.0
            for b in range(a + 1):
                total += factor[a, b] * x[b]
            out[a] = total


@inner(fastmath=FAST)
def scale_back(factor, gradient, active, out):
    """``F.T @ gradient[active]``."""
    if factor.shape[0] == 1:
        for a in range(out.shape[0]):
            out[a] = factor[0, a] * gradient[active[a]]
    elif is_sparse(factor):
        for a in range(out.shape[0]):
            out[a] = gradient[active[a]]
        for k in range(factor.shape[1]):
            row, column = int(factor[0, k]), int(factor[1, k])
            if row == column:
                out[row] /= factor[2, k]
            else:
                out[row] -= factor[2, k] * out[column]
    else:
        clear(out)
        for a in range(out.shape[0]):
            g = gradient[active[a]]
            for b in range(a + 1):
                out[b] += factor[a, b] * g


@inner
def squared_length(factor, x):
    """Squared length of ``F^-1 @ x``, which is overwritten."""
    total = 0.0
    if is_sparse(factor):
        along = 0.0
        for k in range(factor.shape[1]):
            if factor[0, k] == factor[1, k]:
                total += along * along
                along = 0.0
            along += factor[2, k] * x[int(factor[0, k])]
        total += along * along
    else:
        for a in range(x.shape[0]):
            rest = x[a]
            if factor.shape[0] == 1:
                x[a] = rest / factor[0, a]
            else:
                for b in range(a):
                    rest -= factor[a, b] * x[b]
                x[a] = rest / factor[a, a]
            total += x[a] * x[a]
    return total


@kept(nogil=True)
def count(index, value, weights, out):
    """Add value_i w_ai of each row i to out[a, index_i].

    `index` and `value` have shape (m,), `weights` (k, m), `out` (k, number of groups).
    """
    for a in range(weights.shape[0]):
        for i in range(weights.shape[1]):
            out[a, index[i]] += value[i] * weights[a, i]
