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

from pymc_subsample.graph.intervals import WORK

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

    Nothing is known of a <= 0 or x <= 0: these ends are not numbers.
    """
    (a_low, a_high), (x_low, x_high) = (
        (np.where(v > 0, v, np.nan) for v in ends) for ends in (a, x)
    )
    below = [
        _below(*np.broadcast_arrays(*ends, c, scale), most=most)
        for ends in ((a_high, x_low), (a_low, x_high))
    ]
    above = [
        _above(*np.broadcast_arrays(*ends, c, scale), most=most)
        for ends in ((a_low, x_low), (a_high, x_high))
    ]
    found = []
    for k in range(most + 1):
        low, high = (part[k] for part in below)
        ends = (low, high) if k % 2 == 0 else (-high, -low)
        found.append((ends[0] + above[0][k], ends[1] + above[1][k]))
    return found


def center_of(a: Ends) -> tuple[np.ndarray, np.ndarray]:
    """Return c for shapes in intervals, and about the logarithm of 1 / h, by which to scale."""
    middle = np.mean(a, axis=0)
    c = np.maximum(special.psi(np.where(middle > 0, middle, np.nan)), _LEAST_CENTER)
    return c, special.gammaln(middle) - c * middle


def _below(
    a: np.ndarray, x: np.ndarray, c: np.ndarray, scale: np.ndarray, *, most: int
) -> np.ndarray:
    """Return sizes of the parts below e^c of the integrals."""
    end = np.minimum(np.log(x), c)
    first = np.minimum(end, 0.0)
    return _start(a, first, c, scale, most) + _between(a, first, end, c, scale, most)


def _above(
    a: np.ndarray, x: np.ndarray, c: np.ndarray, scale: np.ndarray, *, most: int
) -> np.ndarray:
    """Return the parts above e^c."""
    return _between(a, c, np.maximum(np.log(x), c), c, scale, most)


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
    size, found = np.abs(v - c), []
    for _ in range(most + 1):
        found.append(heights.sum(axis=0))
        heights = heights * size
    WORK.elements += (most + 1) * heights.size
    return np.array(found)
