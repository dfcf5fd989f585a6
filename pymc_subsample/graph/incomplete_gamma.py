r"""Intervals of derivatives of the incomplete gamma function in its shape.

For any c, :math:`P(a, x) = \gamma_0(a, x) h(a)`, where :math:`h(a) = e^{c a} / \Gamma(a)` and
derivatives of

.. math:: \gamma_0(a, x) = e^{-c a} \int_0^x t^{a-1} e^{-t} dt, \qquad
          \gamma_k(a, x) = e^{-c a} \int_0^x (\log t - c)^k t^{a-1} e^{-t} dt,

are integrals whose sign changes once. The part below :math:`e^c` rises in size with x and falls
with a, the part above rises with both, so their values at the ends of intervals enclose all others.
With c the digamma function in the middle of an interval little of these products cancels.
"""

import math

import numpy as np
from scipy import special

type Ends = tuple[np.ndarray, np.ndarray]

# The series of e^-t for t <= 1 leaves 1 / 20! = 4e-19.
_TERMS = 20
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
# Beyond so many widths from its peak, the integrand in log t is e^-36 of what it is there, or less.
_WIDTHS, _BEYOND = 10.0, 50.0
# 64 nodes resolve what is above e^c, for shapes near zero too.
_LEAST_CENTER = -3.0


def shape_integrals(a: Ends, x: Ends, most: int, c: np.ndarray, scale: np.ndarray) -> list[Ends]:
    r"""Enclose :math:`e^{-s} \gamma_k(a, x)` for k up to `most`, where s is `scale`.

    Nothing is known of a <= 0 or x < 0: these ends are not numbers.
    """

    def parts(a: np.ndarray, x: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        a, x = np.where(a > 0, a, np.nan), np.where(x < 0, np.nan, x)
        return _integrals(*np.broadcast_arrays(a, x, c, scale), most=most)

    corner = {(i, j): parts(a[i], x[j]) for i in (0, 1) for j in (0, 1)}
    found = []
    for k in range(most + 1):
        low, high = corner[1, 0][k][0], corner[0, 1][k][0]
        ends = (low, high) if k % 2 == 0 else (-high, -low)
        found.append((ends[0] + corner[0, 0][k][1], ends[1] + corner[1, 1][k][1]))
    return found


def center_of(a: Ends) -> tuple[np.ndarray, np.ndarray]:
    """Return c for shapes in intervals, and about the logarithm of 1 / h, by which to scale."""
    middle = np.mean(a, axis=0)
    c = np.maximum(special.psi(np.where(middle > 0, middle, np.nan)), _LEAST_CENTER)
    return c, special.gammaln(middle) - c * middle


def _integrals(
    a: np.ndarray, x: np.ndarray, c: np.ndarray, scale: np.ndarray, *, most: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return sizes of the parts of each integral below and above e^c."""
    end = np.log(x)
    first = np.minimum(np.minimum(end, c), 0.0)
    below = _start(a, first, c, scale, most)
    below = below + _between(a, first, np.minimum(end, c), c, scale, most)
    return list(zip(below, _between(a, c, np.maximum(end, c), c, scale, most), strict=True))


def _start(
    a: np.ndarray, end: np.ndarray, c: np.ndarray, scale: np.ndarray, most: int
) -> np.ndarray:
    """Integrate up to e^end <= 1, by the series of e^-t."""
    far = c - end
    found = np.zeros((most + 1, *a.shape))
    for n in range(_TERMS):
        height = (-1) ** n / math.factorial(n) * np.exp(n * end - a * far - scale)
        # Each integral of u^k e^(-(a + n) u) by the one before it.
        power, total = np.ones_like(a), 1 / (a + n)
        for k in range(most + 1):
            if k:
                power = power * np.where(np.isinf(far), 0.0, far)
                total = (power + k * total) / (a + n)
            found[k] += np.where(np.isinf(far), 0.0, height * total)
    return found


def _between(
    a: np.ndarray, low: np.ndarray, high: np.ndarray, c: np.ndarray, scale: np.ndarray, most: int
) -> np.ndarray:
    """Integrate from e^low to e^high, which are on one side of e^c."""
    stop = np.minimum(high, np.log(a + _WIDTHS * np.sqrt(a) + _BEYOND))
    begin = np.maximum(np.minimum(stop, np.log(a)) - _WIDTHS / np.sqrt(a), low)
    half = np.where(high > low, np.maximum(stop - begin, 0.0) / 2, 0.0)
    nodes, weights = (x.reshape(-1, *[1] * a.ndim) for x in (1 + _NODES, _WEIGHTS))
    with np.errstate(invalid="ignore"):
        v = np.where(half > 0, begin, 0.0) + half * nodes
    heights = np.exp(a * (v - c) - np.exp(v) - scale) * half * weights
    size = np.abs(v - c)
    return np.array([(size**k * heights).sum(axis=0) for k in range(most + 1)])
