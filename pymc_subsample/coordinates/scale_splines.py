r"""Scales of effects as the chain sees them: by the quantiles of their distributions.

The logarithm of a scale that may be close to zero has a long tail, and so has that of a scale
about which few groups know little. An element s of theta is moved as t, with :math:`s = G(t)` where
:math:`G` is an increasing spline through quantiles of s at those of a standard normal distribution.

G is a natural cubic spline with knots at `KNOTS`, straight beyond them. Its constants are by how
much values at the knots differ from the knots themselves, and the second derivatives there: without
any, G is the identity.
"""

import numpy as np

from pymc_subsample.compiled.cache import kept
from pymc_subsample.compiled.functions import inner

# Knots, in standard deviations: one draw in 16,000 is beyond 4, and quantiles of scales bend little
# within half a one.
_FIRST, _STEP, _COUNT = -4.0, 0.5, 17
KNOTS = _FIRST + _STEP * np.arange(_COUNT)
# Constants of an element.
WIDTH = 2 * _COUNT


@inner
def value(psi, start, k):
    """Return G at knot k."""
    return _FIRST + _STEP * k + psi[start + k]


@inner
def piece(psi, start, t):
    """Return G, G' and G'' at t."""
    inside = min(max(t, _FIRST), -_FIRST)
    k = min(int((inside - _FIRST) // _STEP), _COUNT - 2)
    low, high = value(psi, start, k), value(psi, start, k + 1)
    bend_low, bend_high = psi[start + _COUNT + k], psi[start + _COUNT + k + 1]
    b = (inside - _FIRST) / _STEP - k
    a = 1.0 - b
    # The cubic through both knots with these second derivatives there.
    cubic = (a * a * a - a) * bend_low + (b * b * b - b) * bend_high
    slope = (3 * b * b - 1) * bend_high - (3 * a * a - 1) * bend_low
    slope = (high - low) / _STEP + slope * _STEP / 6
    found = a * low + b * high + cubic * _STEP * _STEP / 6
    bent = a * bend_low + b * bend_high if t == inside else 0.0
    return found + slope * (t - inside), slope, bent


@kept()
def bend(elements, start, psi, theta):
    """Write s for t; return log |ds / dt|. Constants start at `start` of psi."""
    volume = 0.0
    for i in range(elements.shape[0]):
        s, slope, _ = piece(psi, start + WIDTH * i, psi[elements[i]])
        theta[elements[i]] = s
        volume += np.log(slope)
    return volume


@kept()
def bend_back(elements, start, psi, bar):
    """Turn derivatives in s into those in t, in place, and add the volume's."""
    for i in range(elements.shape[0]):
        _, slope, bent = piece(psi, start + WIDTH * i, psi[elements[i]])
        bar[elements[i]] = bar[elements[i]] * slope + bent / slope


@kept()
def straighten(elements, start, theta, psi):
    """Write t for s of psi, in place; theta holds the constants."""
    for i in range(elements.shape[0]):
        at, s = start + WIDTH * i, psi[elements[i]]
        if not -np.inf < s < np.inf:
            psi[elements[i]] = s
            continue
        low, high = _FIRST, -_FIRST
        first, slope, _ = piece(theta, at, low)
        if s <= first:
            psi[elements[i]] = low + (s - first) / slope
            continue
        last, slope, _ = piece(theta, at, high)
        if s >= last:
            psi[elements[i]] = high + (s - last) / slope
            continue
        t = 0.0
        for _ in range(200):  # at most, as Newton steps converge in some five, bisection in fifty
            found, slope, _ = piece(theta, at, t)
            if found < s:
                low = t
            else:
                high = t
            new = t + (s - found) / slope
            if not low < new < high:
                new = 0.5 * (low + high)
            if new == t or abs(new - t) < 1e-14:
                break
            t = new
        psi[elements[i]] = t
