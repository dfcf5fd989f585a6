"""Bounds on the terms of all rows, from how far the parameters move."""

from collections import namedtuple

import numpy as np
from numba import types

from pymc_subsample.compiled.cache import kept
from pymc_subsample.compiled.functions import MATRIX, SCALAR, VECTOR, inner

# Where a bound comes from: somebody gave it, predictors, a pass over all rows, or a table of radii.
GIVEN_BOUND, LINEAR_BOUND, FULL_BOUND, LOCAL_BOUND = range(4)

# What the bound is: `slope` itself (infinite where a test needs none), `linear_bound` with `slope`
# and `table`, none, or `local_bound` with `table`.
TermBound = namedtuple("TermBound", "kind slope table")
BOUND = types.NamedTuple([types.int64, SCALAR, MATRIX], TermBound)


@inner
def distance(one, other, metric):
    """Length of ``metric @ (one - other)``; `metric` has its factor in the first P rows."""
    size = one.shape[0]
    total = 0.0
    for a in range(size):
        moved = 0.0
        for b in range(size):
            moved += metric[a, b] * (one[b] - other[b])
        total += moved * moved
    return np.sqrt(total)


@inner
def farthest(one, other, reach):
    r"""Largest change of any row's predictor between two values of phi.

    `reach`, shape (P + 2, P), bounds :math:`|x_i' \delta|` in two ways: by
    :math:`\sum_a |\delta_a| \max_i |x_{ia}|`, maxima in row P, and by
    :math:`\|W \delta\| \max_i \|W^{-T} x_i\|`, W in the first P rows and the maximum in the last.
    """
    size = one.shape[0]
    crude = 0.0
    for a in range(size):
        crude += abs(one[a] - other[a]) * reach[size, a]
    return min(crude, distance(one, other, reach) * reach[size + 1, 0])


@kept(SCALAR(VECTOR, VECTOR, VECTOR, types.int64, SCALAR, SCALAR, MATRIX))
def linear_bound(phi, new_phi, center, order, weight, slope, reach):
    r"""Bound |y| over all rows by how far their predictor moves.

    A row's log-likelihood is a function of one predictor whose derivative of order k + 1 is at most
    `slope` in size. Its remainder of order k is then at most :math:`c |z|^{k+1} / (k + 1)!` where
    the predictor is z from the reference; without control variates it changes by at most c times
    the change of the predictor.
    """
    if order == 0:
        return weight * slope * farthest(new_phi, phi, reach)
    power, factorial = order + 1, 2.0 if order == 1 else 6.0  # (k + 1)!
    near, far = farthest(phi, center, reach), farthest(new_phi, center, reach)
    return weight * slope / factorial * (near**power + far**power)


@kept(SCALAR(VECTOR, VECTOR, VECTOR, types.int64, SCALAR, MATRIX))
def local_bound(phi, new_phi, center, order, weight, table):
    """Bound |y| over all rows near the reference; infinite farther away.

    `table` holds, below its factor of a metric, radii in increasing order and beside each of them
    the largest remainder of a row within it over the distance to the power of order + 1; see
    `bounds.predictor_ranges`.
    """
    size, power = phi.shape[0], order + 1
    near, far = distance(phi, center, table), distance(new_phi, center, table)
    for j in range(size, table.shape[0]):
        if near <= table[j, 0] and far <= table[j, 0]:
            return weight * table[j, 1] * (near**power + far**power)
    return np.inf


@inner
def largest_term(bound, phi, new_phi, center, order, weight):
    """Bound |y| over all rows by a `TermBound`; infinite where that takes a pass over them.

    The others are as `acceptance.Reader` has them.
    """
    if bound.kind == LINEAR_BOUND:
        return linear_bound(phi, new_phi, center, order, weight, bound.slope, bound.table)
    if bound.kind == LOCAL_BOUND:
        return local_bound(phi, new_phi, center, order, weight, bound.table)
    return bound.slope if bound.kind == GIVEN_BOUND else np.inf
