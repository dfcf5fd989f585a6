"""The posterior as a normal distribution around a reference: its shape, and points around there."""

from functools import cache

import numpy as np
from scipy.special import chdtri

from pymc_subsample.expansion.curvature import MAX_DENSE, covariance_factor
from pymc_subsample.expansion.factors import Kind, deviations, kind, scaled, sparse_factor, whiten
from pymc_subsample.expansion.quadratic import Quadratic
from pymc_subsample.kernels.estimates import BLOCK_POISSON

# Points, at each of which all rows are evaluated. A choice: each costs a pass, and rows that
# matter in one direction alone are also looked for at the far points and while tuning.
_PILOT_POINTS = 4
# Posterior probability outside the ellipsoid of the block-Poisson estimate, were it normal. A
# choice: a chain of a million draws would leave it once in a thousand runs.
_OUTSIDE = 1e-9
# Points with each direction far out, and how many standard deviations that is. Choices: few passes
# over all rows; a normal chain of ten thousand draws goes as far.
_FAR_POINTS = 4
_FAR = 4.0
# By what share a posterior may be wider or narrower than the one around which residuals are
# known. A choice: their variances then differ by less than those of different pilot points.
_ALIKE = 1.25


def shape(
    quadratic: Quadratic, active: np.ndarray, free: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Factors of the covariance of elements `active`, for the mass matrix, and of `free`.

    The second is full, or sparse, even where the mass matrix is diagonal, as long as there is a
    matrix of second derivatives: with a diagonal, points on the ellipsoid of a correlated posterior
    would lie far outside of it.
    """
    inner = np.searchsorted(free, active)
    if not quadratic.expansion.has_precision(len(free)):
        sd = quadratic.scales(free)
        return sd[None, inner], sd[None, :]
    matrix = quadratic.precision(free)
    spread = _factor(matrix)
    own = spread if len(free) == len(active) else _factor(matrix[np.ix_(inner, inner)])
    if len(active) > MAX_DENSE and kind(own) is not Kind.SPARSE:
        own = deviations(own, len(active))[None, :]
    return own, spread


def _factor(matrix: np.ndarray) -> np.ndarray:
    found = sparse_factor(matrix) if len(matrix) > MAX_DENSE else None
    return covariance_factor(matrix) if found is None else found


@cache
def radius(size: int, outside: float = _OUTSIDE) -> float:
    """Radius of the ball that a standard normal vector leaves with probability `outside`."""
    return float(np.sqrt(chdtri(size, outside)))


def on_ellipsoid(
    theta: np.ndarray,
    scale: np.ndarray,
    free: np.ndarray,
    rng: np.random.Generator,
    outside: float = 0.05,
) -> np.ndarray:
    """Points on the 95% ellipsoid of N(theta*, Sigma*), or another one.

    The residuals are evaluated on all rows there, so that rare outlying rows count too.
    """
    directions = rng.standard_normal((_PILOT_POINTS, len(free)))
    directions *= radius(len(free), outside) / np.linalg.norm(directions, axis=1, keepdims=True)
    thetas = np.tile(theta, (_PILOT_POINTS, 1))
    thetas[:, free] += scaled(scale, directions)
    return thetas


def far_points(
    kind: int, theta: np.ndarray, scale: np.ndarray, free: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Points where each direction of N(theta*, Sigma*) is four standard deviations out, in turn.

    A row of a small group has its own predictor a few standard deviations out there, which on an
    ellipsoid of many dimensions it hardly ever has. All directions at once would take every row
    further than the posterior does. The second half of the points are the first mirrored: rows may
    matter to one side alone. For the block-Poisson estimate points at the edge of the ellipsoid
    that it is confined to are among them.
    """
    size = len(free)
    points = min(_FAR_POINTS, size)
    z = np.zeros((points, size))
    z[rng.permutation(size) % points, np.arange(size)] = rng.choice([-_FAR, _FAR], size)
    thetas = np.tile(theta, (2 * points, 1))
    thetas[:, free] += scaled(scale, np.concatenate([z, -z]))
    if kind == BLOCK_POISSON:
        return np.concatenate([thetas, on_ellipsoid(theta, scale, free, rng, _OUTSIDE)])
    return thetas


def as_wide(spread: np.ndarray, moves: np.ndarray) -> bool:
    """Whether moves to `far_points` of an earlier run are far in a posterior of some spread.

    They are not where priors have changed: what the rows leave around there would say too little
    of a wider posterior, and too much of a narrower one.
    """
    z = np.array([whiten(spread, move) for move in moves[:_FAR_POINTS]])
    widths = np.abs(z).max(axis=0) / _FAR
    return bool(np.all((widths <= _ALIKE) & (widths >= 1 / _ALIKE)))
