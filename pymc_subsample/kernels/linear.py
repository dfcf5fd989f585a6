r"""The affine map from parameters to the predictors of a batch of rows, and back.

Row i sees :math:`x_i = (\eta_i, s)`: R predictors :math:`\eta_i = o_i + Z_i \varphi` that vary
over rows, and numbers :math:`s = c + S \varphi` shared by all rows, E in total.

Rows are stored one contiguous vector per column, shape (columns, m), so that every loop below
runs over rows and vectorises. The map is given by an integer table, (n, 6), of its entries, in this
order, and a scale for each:

- `OFFSET`, predictor, column;
- `DENSE`, predictor, first column, first element of phi, its stride, length;
- `GATHER`, predictor, coefficient column or -1, first element of phi, group column;
- `CONST`, predictor, element of phi, the same for every row.
"""

import numpy as np
from numba import types

from pymc_subsample.compiled.cache import kept
from pymc_subsample.compiled.functions import FAST, MATRIX, SCALAR, VECTOR
from pymc_subsample.kernels.model import BLOCK_POISSON, MINIBATCH, PERTURBED

_jit = kept(fastmath=FAST)

OFFSET, DENSE, GATHER, CONST = range(4)


@_jit
def predict(table, scales, phi, rows, eta):
    """Add what varies over rows to the predictors `eta`, shape (R, m)."""
    m = rows.shape[1]
    for t in range(table.shape[0]):
        kind, e, c, p = table[t, 0], table[t, 1], table[t, 2], table[t, 3]
        scale = scales[t]
        if kind == OFFSET:
            for i in range(m):
                eta[e, i] += scale * rows[c, i]
        elif kind == DENSE:
            step, length = table[t, 4], table[t, 5]
            j = 0
            while j + 4 <= length:  # four columns at a time: eta is read and written once for them
                f0, f1 = scale * phi[p + j * step], scale * phi[p + (j + 1) * step]
                f2, f3 = scale * phi[p + (j + 2) * step], scale * phi[p + (j + 3) * step]
                a = c + j
                for i in range(m):
                    eta[e, i] += (f0 * rows[a, i] + f1 * rows[a + 1, i]) + (
                        f2 * rows[a + 2, i] + f3 * rows[a + 3, i]
                    )
                j += 4
            while j < length:
                f0 = scale * phi[p + j * step]
                for i in range(m):
                    eta[e, i] += f0 * rows[c + j, i]
                j += 1
        elif kind == GATHER:
            g = table[t, 4]
            if c >= 0:
                for i in range(m):
                    eta[e, i] += scale * rows[c, i] * phi[p + np.int64(rows[g, i])]
            else:
                for i in range(m):
                    eta[e, i] += scale * phi[p + np.int64(rows[g, i])]


@_jit
def backproject(table, scales, v, rows, grad):
    """Add sum_i Z_i' v_i, with v of shape (E, m), to `grad`, shape (P,)."""
    m = rows.shape[1]
    for t in range(table.shape[0]):
        kind, e, c, p = table[t, 0], table[t, 1], table[t, 2], table[t, 3]
        scale = scales[t]
        if kind == DENSE:
            step, length = table[t, 4], table[t, 5]
            j = 0
            while j + 4 <= length:
                a = c + j
                s0 = s1 = s2 = s3 = 0.0
                for i in range(m):
                    s0 += v[e, i] * rows[a, i]
                    s1 += v[e, i] * rows[a + 1, i]
                    s2 += v[e, i] * rows[a + 2, i]
                    s3 += v[e, i] * rows[a + 3, i]
                grad[p + j * step] += scale * s0
                grad[p + (j + 1) * step] += scale * s1
                grad[p + (j + 2) * step] += scale * s2
                grad[p + (j + 3) * step] += scale * s3
                j += 4
            while j < length:
                s0 = 0.0
                for i in range(m):
                    s0 += v[e, i] * rows[c + j, i]
                grad[p + j * step] += scale * s0
                j += 1
        elif kind == GATHER:
            g = table[t, 4]
            if c >= 0:
                for i in range(m):
                    grad[p + np.int64(rows[g, i])] += scale * rows[c, i] * v[e, i]
            else:
                for i in range(m):
                    grad[p + np.int64(rows[g, i])] += scale * v[e, i]
        elif kind == CONST:
            total = 0.0
            for i in range(m):
                total += v[e, i]
            grad[c] += scale * total


@_jit
def weigh(rule, weight, setting, d, v):
    """Scale each v_i by the derivative in d_i of what the rule makes of d; see `kernels.model`."""
    if rule == PERTURBED:
        mean = 0.0
        for i in range(d.shape[0]):
            mean += d[i]
        mean /= d.shape[0]
        for e in range(v.shape[0]):
            for i in range(d.shape[0]):
                v[e, i] *= weight - setting * weight * weight * (d[i] - mean)
    elif rule == BLOCK_POISSON:
        for start in range(0, d.shape[0], MINIBATCH):
            stop = min(start + MINIBATCH, d.shape[0])
            total = 0.0
            for i in range(start, stop):
                total += d[i]
            slope = weight / (weight * total - setting)
            for e in range(v.shape[0]):
                for i in range(start, stop):
                    v[e, i] *= slope
    else:  # BRIGHT
        for e in range(v.shape[0]):
            for i in range(d.shape[0]):
                v[e, i] *= weight / -np.expm1(-weight * d[i])


# Constants of compiled code cannot be written to.
_TABLE, _SCALES = (
    types.Array(x, n, "C", readonly=True) for x, n in ((types.int64, 2), (SCALAR, 1))
)
# The functions, with what a model's functions call them with, by their names.
KERNELS = {
    "predict": (predict, types.void(_TABLE, _SCALES, VECTOR, MATRIX, MATRIX)),
    "backproject": (backproject, types.void(_TABLE, _SCALES, MATRIX, MATRIX, VECTOR)),
    "weigh": (weigh, types.void(types.int64, SCALAR, SCALAR, VECTOR, MATRIX)),
}
