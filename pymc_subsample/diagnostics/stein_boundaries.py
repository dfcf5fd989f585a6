r"""Edges at which a log density ends or jumps, and Stein's identities beside them.

The mean gradient of a log density is zero only if the density vanishes wherever it ends. Beside a
constraint that cuts it off, as of ``pm.Potential("c", switch(b[0] + b[1] > 1, 0, -inf))``, it does
not, nor at a jump. For the lines along a direction u, let :math:`d` be the distance from a point to
the nearest edge on one side and J what the log density jumps by there, minus infinity at an end.
With

.. math:: h = \prod_\pm 1 - (1 - d_\pm)_+ (1 - \min(1, e^{J_\pm})), \qquad
          E[h\, u^\top g + \partial_u h] = 0, \qquad
          E[x\,(h\, u^\top g + \partial_u h) + h\, \partial_u x] = 0

since h times the density is continuous, and zero where that ends: at an edge it is the smaller of
the two densities. h is 1 where no edge is near. Distances are found by halving, draw by draw and
direction by direction, so that edges may have any shape; two jumps less than one apart along a line
count as if they were one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pymc_subsample.compiled.process import one_thread
from pymc_subsample.expansion import Expansion

# Halvings that find an edge along a step of one standard deviation: to 1e-7 of it.
_HALVINGS = 23
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
# A jump of the log density that is looked at moves a mean by half of what is tolerable at most: by
# its size times the density there, which is 0.4 where a normal one is largest.
_JUMP = 0.125
# Share of what the gradient says along a piece that quadrature leaves where there is no jump. A
# choice: of smooth densities hardly anything is left, of jumps nearly all.
_RESOLVED = 0.25
# Lines along which edges are looked for, of ten evaluations of the prior each at least. A choice of
# time.
MOST_LINES = 200_000
# Axes along which ends are looked for beside each point: 400 evaluations of the prior. A choice of
# time.
_MOST_AXES = 100
# A density this much lower just inside, as a logarithm, has vanished before it ends: at the edge it
# moves a mean by a fiftieth of what one does that does not.
_VANISHED = 4.0

# Log density and gradient, shape (d,), at a point.
Density = Callable[[np.ndarray], tuple[float, np.ndarray]]


class ManyLinesError(Exception):
    """Edges are near, and lines from the points along all directions are too many to look for them.

    The message says how many they are.
    """


@dataclass(frozen=True)
class Edges:
    """Weights of Stein's identities at points, along directions u: each of shape (k, d)."""

    weight: np.ndarray  # h,
    slope: np.ndarray  # and its derivative along u.

    def like(self, shape: tuple[int, ...]) -> "Edges":
        """Return the same of points in another shape."""
        return Edges(self.weight.reshape(shape), self.slope.reshape(shape))


def operated(
    score: np.ndarray, factor: np.ndarray, edges: Edges | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return what has mean zero along each column u of a factor, and its weight h, (..., d)."""
    along = score @ factor
    if edges is None:
        return along, np.ones_like(along)
    return edges.weight * along + edges.slope, edges.weight


@one_thread
def edges_near(
    density: Density, points: np.ndarray, factor: np.ndarray, rng: np.random.Generator
) -> Edges | None:
    """Look for edges within a standard deviation of points, (k, d), along columns of a factor.

    None where random steps of that size from each of the points meet no edge. Raises
    `ManyLinesError` where they do, and these are more lines than `MOST_LINES`.
    """
    steps = rng.standard_normal((2, *points.shape)) @ factor.T
    pairs = ((x, step) for way in steps for x, step in zip(points, way, strict=True))
    if not any(_edge(density, x, step)[0] < 1 for x, step in pairs):
        return None
    if (lines := 2 * points.size) > MOST_LINES:
        raise ManyLinesError(f"{lines:,}")
    (ahead, fewer), (behind, less) = (
        np.array([[_edge(density, x, sign * u) for u in factor.T] for x in points]).transpose(
            2, 0, 1
        )
        for sign in (1.0, -1.0)
    )
    lost = [1 - np.minimum(1.0, np.exp(jump)) for jump in (fewer, less)]
    right, left = (1 - (1 - d) * x for d, x in zip((ahead, behind), lost, strict=True))
    # Where there is no edge, nothing is lost.
    return Edges(right * left, lost[1] * right - lost[0] * left)


def _edge(density: Density, start: np.ndarray, step: np.ndarray) -> tuple[float, float]:
    """Return the share of a step at which the density ends or jumps first, 1 if not, and by what.

    By minus infinity where it ends, by 0 where it does neither.
    """

    def crosses(low: float, high: float) -> bool:
        half = 0.5 * (high - low)
        at = [low, *(low + half * (1 + _NODES)), high]
        found = [density(start + t * step) for t in at]
        values = np.array([value for value, _ in found])
        if not np.all(np.isfinite(values)):
            return True
        slopes = np.array([gradient @ step for _, gradient in found[1:-1]])
        size = half * float(_WEIGHTS @ np.abs(slopes))
        missing = abs(values[-1] - values[0] - half * float(_WEIGHTS @ slopes))
        return not missing <= max(_JUMP, _RESOLVED * size)

    def inside(t: float) -> bool:
        return bool(np.isfinite(density(start + t * step)[0]))

    low, high = 0.0, 1.0
    if not crosses(low, high):
        return 1.0, 0.0
    if inside(low) and not inside(high):
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if inside(middle) else (low, middle)
        if not crosses(0.0, low):
            return low, -np.inf
        low, high = 0.0, low  # something is nearer
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if crosses(low, middle):
            high = middle
        elif crosses(middle, high):
            low = middle
        else:  # steep, and no jump
            return 1.0, 0.0
    beyond, here = (density(start + t * step)[0] for t in (high, low))
    return low, beyond - here if np.isfinite(beyond) else -np.inf


def ends_in_sight(
    log_densities: Callable[[np.ndarray], np.ndarray],
    points: np.ndarray,
    heights: np.ndarray,
    factor: np.ndarray,
    rng: np.random.Generator,
) -> float:
    """Share of random steps from points, (k, d), that meet an end at which a density is not nil.

    `log_densities`, of (k, d), are those of `heights`, (k,), at the points.
    """
    steps = rng.standard_normal(points.shape) @ factor.T
    out = ~np.isfinite(log_densities(points + steps))
    if not out.any():
        return 0.0
    start, way = points[out], steps[out]
    low, high = np.zeros(len(way)), np.ones(len(way))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        inside = np.isfinite(log_densities(start + middle[:, None] * way))
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    ended = log_densities(start + low[:, None] * way) > heights[out] - _VANISHED
    return float(np.sum(ended) / len(points))


def prior_of(expansion: Expansion) -> Density:
    """Return the log density of what needs no rows, priors and potentials, with its gradient."""
    nothing = np.zeros(expansion.phi_size)

    def density(theta: np.ndarray) -> tuple[float, np.ndarray]:
        return expansion.parameters(theta)[1], expansion.pull_back(theta, nothing)

    return density


def jumps_near(density: Density, draws: np.ndarray, active: np.ndarray) -> float:
    """Return the largest finite jump within a standard deviation of some draws, (k, d); 0 if none.

    Along random steps of elements `active`.
    """
    rng, steps = np.random.default_rng(0), np.zeros_like(draws)
    steps[:, active] = draws[:, active].std(axis=0) * rng.standard_normal((len(draws), len(active)))
    jumps = [_edge(density, x, step)[1] for x, step in zip(draws, steps, strict=True)]
    return max((abs(jump) for jump in jumps if np.isfinite(jump)), default=0.0)


def ends_near(
    log_density: Callable[[np.ndarray], float],
    points: np.ndarray,
    draws: np.ndarray,
    active: np.ndarray,
    reach: float = 1.0,
) -> np.ndarray:
    """Whether a density ends within so many standard deviations of draws beside points, (k, d).

    At an edge at which it has not vanished. Looked for along the axes of elements `active`, either
    way, and along random steps: of many elements along the axes of some.
    """
    rng, sd = np.random.default_rng(0), reach * draws[:, active].std(axis=0)
    axes = np.arange(len(active))
    if len(axes) > _MOST_AXES:
        axes = rng.choice(len(axes), _MOST_AXES, replace=False)
    forth = np.zeros((len(axes), len(active)))
    forth[np.arange(len(axes)), axes] = sd[axes]
    steps = sd * rng.standard_normal((2 * len(axes), len(active)))
    ways = np.zeros((4 * len(axes), points.shape[1]))
    ways[:, active] = np.concatenate([forth, -forth, steps])

    def ends(start: np.ndarray, way: np.ndarray) -> bool:
        if np.isfinite(log_density(start + way)):
            return False
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            inside = np.isfinite(log_density(start + middle * way))
            low, high = (middle, high) if inside else (low, middle)
        return bool(log_density(start + low * way) > log_density(start) - _VANISHED)

    return np.array([any(ends(x, way) for way in ways) for x in points], dtype=bool)
