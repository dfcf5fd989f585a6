"""Vectors in compiled code: copies, and products with a triangular or diagonal factor."""

import numba
import numpy as np

from pymc_subsample.compile import FAST


@numba.njit
def copy(source, target):
    """Copy a vector; a slice assignment takes a second or two to compile."""
    for a in range(source.shape[0]):
        target[a] = source[a]


@numba.njit
def is_finite(x):
    """Whether x is finite; with reassociation ``np.isfinite`` of a sum is always true."""
    return -np.inf < x < np.inf


@numba.njit(fastmath=FAST)
def scale_up(factor, x, out):
    """Multiply by the mass matrix's factor: ``factor @ x``; a single row is a diagonal."""
    if factor.shape[0] == 1:
        for a in range(x.shape[0]):
            out[a] = factor[0, a] * x[a]
    else:
        for a in range(x.shape[0]):
            total = 0.0
            for b in range(a + 1):
                total += factor[a, b] * x[b]
            out[a] = total


@numba.njit(fastmath=FAST)
def scale_back(factor, gradient, active, out):
    """``factor.T @ gradient[active]``."""
    if factor.shape[0] == 1:
        for a in range(out.shape[0]):
            out[a] = factor[0, a] * gradient[active[a]]
    else:
        for a in range(out.shape[0]):
            out[a] = 0.0
        for a in range(out.shape[0]):
            g = gradient[active[a]]
            for b in range(a + 1):
                out[b] += factor[a, b] * g
