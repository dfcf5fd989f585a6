"""Quantiles of the scales of effects; see `scale_splines`."""

import numpy as np
from scipy.special import ndtri_exp

from pymc_subsample.coordinates.scale_splines import KNOTS
from pymc_subsample.expansion.quadratic import Quadratic

# Points on either side at which a density is evaluated, and how far: until it is so much less on
# the log scale, from one width to another. A choice: a normal density is e^-14 times its largest at
# 5.3 standard deviations, and the farthest knot is at 4.
_POINTS = 50
_NEGLIGIBLE = 14.0
_NARROWEST, _WIDEST = 1e-3, 1e3
# Share of its mean slope that a spline has everywhere. A choice: the map is inverted by Newton
# steps, which need a slope.
_FLATTEST = 1e-3


def marginal(quadratic: Quadratic, psi: np.ndarray, element: int) -> np.ndarray:
    """Return the spline through quantiles of one scale, all else in psi as it is.

    On the quadratic log-likelihood, where effects are integrated over as far as it is normal in
    them. Zeros, that is the identity, where there is no such spline.
    """
    from scipy.interpolate import PchipInterpolator  # takes a sixth of a second

    point, start = psi.copy(), psi[element]

    def density(s: float) -> float:
        point[element] = s
        return quadratic.log_density(point)

    straight = np.zeros(2 * len(KNOTS))
    with np.errstate(all="ignore"):
        top = density(start)
        sides = []
        for sign in (-1.0, 1.0):
            width = _NARROWEST
            while density(start + sign * width) > top - _NEGLIGIBLE and width < _WIDEST:
                width *= 1.5  # a choice: fine enough for twelve evaluations a decade
            sides.append(start + sign * width * np.linspace(0, 1, _POINTS) ** 2)
        grid = np.concatenate([sides[0][:0:-1], sides[1]])
        logp = np.array([density(s) for s in grid])
        if not np.all(np.isfinite(logp)):
            return straight
        smooth = PchipInterpolator(grid, logp)
        share = np.linspace(0, 1, 20, endpoint=False)  # between points, for sums of the density
        fine = (grid[:-1, None] + np.diff(grid)[:, None] * share).ravel()
        mass = np.exp(smooth(fine) - logp.max()) * np.gradient(fine)
        below = np.cumsum(mass) - 0.5 * mass
        above = np.cumsum(mass[::-1])[::-1] - 0.5 * mass
        left, right = (ndtri_exp(np.log(part / mass.sum())) for part in (below, above))
    z = np.where(below < above, left, -right)
    known = np.isfinite(z)
    values = np.interp(KNOTS, z[known], fine[known])
    if not np.all(np.diff(values) > 0):
        return straight
    found = through(values)
    return straight if found is None else found


def through(values: np.ndarray) -> np.ndarray | None:
    """Return the constants of the spline through values at the knots; None if it may fall."""
    from scipy.interpolate import CubicSpline

    spline = CubicSpline(KNOTS, values, bc_type="natural")
    bends = spline(KNOTS, 2)
    # Slopes are extreme at knots and where second derivatives change sign.
    low, high = bends[:-1], bends[1:]
    with np.errstate(all="ignore"):
        share = np.where(low * high < 0, low / (low - high), 0.0)
    slopes = spline(np.concatenate([KNOTS, KNOTS[:-1] + share * np.diff(KNOTS)]), 1)
    if not slopes.min() > _FLATTEST * np.mean(slopes):
        return None
    return np.concatenate([values - KNOTS, bends])
