"""The sum of the control variates over all rows."""

import numba
import numpy as np
from numba import types

from pymc_subsample.compile import FAST, MATRIX, SCALAR, VECTOR


@numba.njit(
    SCALAR(VECTOR, VECTOR, SCALAR, VECTOR, MATRIX, types.int64, VECTOR),
    cache=True,
    fastmath=FAST,
)
def control_sum(phi, center, level, slope, curvature, order, grad):
    """Sum of the control variates over all rows at phi; adds its gradient to `grad`.

    `curvature` has shape (P, P), or (3, k): row, column and value of the elements that count.
    """
    value = level
    if order == 0:
        return value
    size = phi.shape[0]
    delta, bent = np.empty(size), np.zeros(size)
    for a in range(size):
        delta[a] = phi[a] - center[a]
    if order == 2 and curvature.shape[0] != size:
        for k in range(curvature.shape[1]):
            bent[int(curvature[0, k])] += curvature[2, k] * delta[int(curvature[1, k])]
    elif order == 2:
        a = 0
        while a + 4 <= size:
            for b in range(size):
                bent[b] += (curvature[a, b] * delta[a] + curvature[a + 1, b] * delta[a + 1]) + (
                    curvature[a + 2, b] * delta[a + 2] + curvature[a + 3, b] * delta[a + 3]
                )
            a += 4
        while a < size:
            for b in range(size):
                bent[b] += curvature[a, b] * delta[a]
            a += 1
    for a in range(size):
        value += delta[a] * (slope[a] + 0.5 * bent[a])
        grad[a] += slope[a] + bent[a]
    return value
