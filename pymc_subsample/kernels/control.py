"""The sum of the control variates over all rows."""

import numpy as np

from pymc_subsample.compiled.cache import kept
from pymc_subsample.compiled.functions import FAST, SCALAR, VECTOR
from pymc_subsample.kernels.model import SUMS


@kept(SCALAR(VECTOR, SUMS, SCALAR, VECTOR), fastmath=FAST)
def control_sum(phi, sums, level, grad):
    """Sum of the control variates over all rows at phi; adds its gradient to `grad`.

    `level` takes the place of that of `sums`, whose curvature has shape (P, P), or (3, k): row,
    column and value of the elements that count.
    """
    center, _, slope, curvature, order = sums
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
        while a + 8 <= size:  # eight rows at a time: bent is read and written once for them
            d0, d1, d2, d3 = delta[a], delta[a + 1], delta[a + 2], delta[a + 3]
            d4, d5, d6, d7 = delta[a + 4], delta[a + 5], delta[a + 6], delta[a + 7]
            for b in range(size):
                bent[b] += (
                    (curvature[a, b] * d0 + curvature[a + 1, b] * d1)
                    + (curvature[a + 2, b] * d2 + curvature[a + 3, b] * d3)
                ) + (
                    (curvature[a + 4, b] * d4 + curvature[a + 5, b] * d5)
                    + (curvature[a + 6, b] * d6 + curvature[a + 7, b] * d7)
                )
            a += 8
        while a < size:
            d0 = delta[a]
            for b in range(size):
                bent[b] += curvature[a, b] * d0
            a += 1
    for a in range(size):
        value += delta[a] * (slope[a] + 0.5 * bent[a])
        grad[a] += slope[a] + bent[a]
    return value
