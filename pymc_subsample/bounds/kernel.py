r"""Rows in strata: metrics in what their rows see, bounds, and tables to draw rows by.

Rows of a stratum s see the same k elements of phi. With :math:`u = W_s (\phi - \phi^*)` in these
and :math:`r_s = \|u\|`, a row's remainder of order p - 1 is at most :math:`c_i r_s^p`.
"""

from collections import namedtuple

import numpy as np
from numba import types

from pymc_subsample.compiled.cache import kept
from pymc_subsample.compiled.functions import FAST, INDEX, MATRIX, SCALAR, VECTOR

_SINGLE = types.Array(types.float32, 1, "C")
_ROWS = types.Array(types.int32, 1, "C")
_PLACES = types.Array(types.int64, 2, "C")
_CUBE = types.Array(types.float64, 3, "C")

# Bounds of the rows' remainders.
#
# elements, metric : arrays (S, k), (S, k, k); W_s is lower triangular
# power : p; control variates are of order p - 1
# cubes : array (S, K), K = k (k + 1) (k + 2) / 6, or (S, 0), in u; see `cubic_sum`
# limits, beyond : arrays (L,), (S, L); where r_s is within a limit, bounds are so much larger
# total : array (S,); sum of the c_i of a stratum
# start : array (S + 1,); where a stratum starts among the n' rows in `order`
# order, bound, threshold, alias : arrays (n',); row numbers, c_i and alias tables of each stratum
# always : array (e,); rows that every decision reads
StratumBounds = namedtuple(
    "StratumBounds",
    "elements metric power cubes limits beyond total start order bound threshold alias always",
)
BOUNDS = types.NamedTuple(
    [
        _PLACES, _CUBE, types.int64, MATRIX, VECTOR, MATRIX, VECTOR, INDEX, _ROWS, _SINGLE, _SINGLE,
        _ROWS, _ROWS,
    ],
    StratumBounds,
)  # fmt: skip


@kept(types.void(_PLACES, _CUBE, types.int64, VECTOR, VECTOR, VECTOR))
def distances(elements, metric, strata, phi, center, out):
    """Write r_s of the first strata at phi."""
    size = elements.shape[1]
    for s in range(strata):
        total = 0.0
        for a in range(size):
            moved = 0.0
            for b in range(a + 1):
                at = elements[s, b]
                moved += metric[s, a, b] * (phi[at] - center[at])
            total += moved * moved
        out[s] = np.sqrt(total)


@kept(types.void(_CUBE, INDEX, MATRIX, MATRIX))
def whiten(factor, stratum, x, out):
    r"""Write :math:`L_s' x_i`, the gradient of a predictor in u, shape (m, k).

    `factor`, shape (S, k, k), holds L_s, the inverse of W_s; `x` has shape (k, m). Its length is
    the farthest that x_i' delta moves while r_s is one.
    """
    size = x.shape[0]
    for i in range(x.shape[1]):
        s = stratum[i]
        for b in range(size):
            moved = 0.0
            for a in range(b, size):
                moved += factor[s, a, b] * x[a, i]
            out[i, b] = moved


@kept(types.void(VECTOR, _SINGLE, _ROWS))
def alias_table(weights, threshold, alias):
    """Make the tables of Walker's alias method (Vose 1991) for weights of mean one."""
    size = weights.shape[0]
    left = weights.copy()
    stack = np.empty(size, dtype=np.int64)  # small ones from the left, large ones from the right
    small, large = 0, size
    for j in range(size):
        alias[j] = j
        threshold[j] = 1.0
        if left[j] < 1.0:
            stack[small] = j
            small += 1
        else:
            large -= 1
            stack[large] = j
    while small > 0 and large < size:
        small -= 1
        j, k = stack[small], stack[large]
        threshold[j] = left[j]
        alias[j] = k
        left[k] -= 1.0 - left[j]
        if left[k] < 1.0:
            large += 1
            stack[small] = k
            small += 1


@kept(types.void(MATRIX, MATRIX, MATRIX, INDEX, MATRIX), fastmath=FAST)
def add_cubes(p, q, v, stratum, out):
    r"""Add :math:`p_{ia} q_{ib} v_{ic}`, a >= b >= c, of rows i to those of their strata.

    `p`, `q` and `v` have shape (m, k), `out` has (S, K), in the order of `cubic_sum`; rows are in
    the order of their strata.
    """
    m, k = p.shape
    i = 0
    while i < m:
        s, at = stratum[i], 0
        if i + 4 <= m and stratum[i + 3] == s:  # `out` is read and written once for four
            for a in range(k):
                p0, p1, p2, p3 = p[i, a], p[i + 1, a], p[i + 2, a], p[i + 3, a]
                if p0 == 0.0 and p1 == 0.0 and p2 == 0.0 and p3 == 0.0:
                    at += (a + 1) * (a + 2) // 2
                    continue
                for b in range(a + 1):
                    w0, w1 = p0 * q[i, b], p1 * q[i + 1, b]
                    w2, w3 = p2 * q[i + 2, b], p3 * q[i + 3, b]
                    for c in range(b + 1):
                        out[s, at + c] += (w0 * v[i, c] + w1 * v[i + 1, c]) + (
                            w2 * v[i + 2, c] + w3 * v[i + 3, c]
                        )
                    at += b + 1
            i += 4
            continue
        for a in range(k):
            for b in range(a + 1):
                w0 = p[i, a] * q[i, b]
                for c in range(b + 1):
                    out[s, at + c] += w0 * v[i, c]
                at += b + 1
        i += 1


@kept(SCALAR(_PLACES, _CUBE, MATRIX, VECTOR, VECTOR), fastmath=FAST)
def cubic_sum(elements, metric, cubes, phi, center):
    r"""Sum :math:`C_{s,abc} u_a u_b u_c` over strata and a >= b >= c, :math:`u = W_s \delta`.

    Of the rows' Taylor expansions it is the term of order 3, if `cubes` are theirs. In delta itself
    terms of columns far from zero would cancel each other, and leave their rounding.
    """
    total = 0.0
    if cubes.shape[1] == 0:
        return total
    k = elements.shape[1]
    u = np.empty(k)
    for s in range(elements.shape[0]):
        for a in range(k):
            u[a] = 0.0
            for b in range(a + 1):
                u[a] += metric[s, a, b] * (phi[elements[s, b]] - center[elements[s, b]])
        at = 0
        for a in range(k):
            outer = 0.0
            for b in range(a + 1):
                inner = 0.0
                for c in range(b + 1):
                    inner += cubes[s, at + c] * u[c]
                at += b + 1
                outer += inner * u[b]
            total += outer * u[a]
    return total
