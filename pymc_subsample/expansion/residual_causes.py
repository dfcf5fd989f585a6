"""Why an expansion leaves too much: along which parameter, in which rows, and what they are like.

Along a parameter the others follow by their regression on it. Over all rows the residuals' root
mean square grows with the distance to a power: order + 1 where the log-likelihood is smooth, 1.5
where rows have a kink each, 0.5 where they have a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pymc_subsample.compiled.process import one_thread
from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.expansion.factors import Kind, deviations, kind
from pymc_subsample.expansion.quadratic import Quadratic
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.expansion.symmetric_modes import ThetaPart

# Directions and rows that a cause is looked for in, and rows that are named.
_MOST_DIRECTIONS, _MOST_ROWS, _SHOWN = 40, 20_000, 3
# In standard deviations; the power is that from the first to the second.
_DISTANCES = (0.25, 0.5)
# How far below the power of a smooth function that of another is.
_ROUGH = 0.75
# Standard deviations between the mode and a reference that is of no use. A choice: beyond the bulk.
_FAR = 3.0
# Share of the squares beyond which rows are named.
_MANY = 0.1


@dataclass(frozen=True)
class Cause:
    """Where residuals are largest."""

    parameter: str  # Value variable, with the place of its element.
    rows: str  # Those with the largest residuals there.
    share: float  # Of the sum of squares, that of these rows.
    power: float  # Of the distance, by which residuals grow.
    smooth: bool  # Whether that is a smooth function's.

    def __str__(self) -> str:
        few = self.share >= _MANY
        rows = f"{self.share:.0%} of it in rows {self.rows}" if few else "in many rows"
        where = (
            f"what its expansion leaves is largest along {self.parameter!r} ({rows}), and grows "
            f"like the distance to the power of {self.power:.1f}"
        )
        if self.smooth:
            return (
                f"{where}, as for a smooth function: the rows are too few for so wide a posterior"
            )
        return f"{where}: it is not smooth there, but has a kink (like Laplace's) or a step"


@one_thread
def find_cause(
    expansion: Expansion,
    reference: Reference,
    spread: np.ndarray,
    free: np.ndarray,
    blocks: Sequence[ThetaPart],
    rng: np.random.Generator,
) -> Cause | None:
    """Look along each of the parameters, on some rows; None where nothing can be told.

    `spread` is a factor of the covariance of `free`, the continuous elements of theta: 40 of them,
    drawn, if there are more. Where there are more than 20,000 rows, so many are drawn.
    """
    size, n = len(free), expansion.n_rows
    if not size:
        return None
    chosen = np.sort(rng.permutation(size)[:_MOST_DIRECTIONS])
    index = np.sort(rng.choice(n, _MOST_ROWS, replace=False)) if n > _MOST_ROWS else np.arange(n)
    rows = expansion.take(index)
    with np.errstate(all="ignore"):
        directions = [_along(spread, j, size) for j in chosen]
        shifts = [s * t * x for x in directions for t in _DISTANCES for s in (-1.0, 1.0)]
        thetas = np.tile(reference.theta, (len(shifts), 1))
        thetas[:, free] += shifts
        points = np.array([expansion.parameters(theta)[0] for theta in thetas])
        left = expansion.residuals(rows, reference.center, points)

    # Elements of psi stand component by component.
    order = None if expansion.coordinates is None else expansion.coordinates.order
    found, worst = None, 0.0
    for j, (near, far) in zip(chosen, left.reshape(len(chosen), 2, 2, -1), strict=True):
        with np.errstate(all="ignore"):
            before, after = (float(np.sqrt(np.mean(d**2))) for d in (near, far))
        if not (np.isfinite(after) and before > 0 and after > worst):
            continue
        worst = after
        squares = np.sum(far**2, axis=0)
        largest = np.argsort(-squares)[:_SHOWN]
        power = float(np.log2(after / before))
        found = Cause(
            _name(free[j] if order is None else order[free[j]], blocks),
            expansion.store.named(np.sort(index[largest]).tolist()),
            float(squares[largest].sum() / squares.sum()),
            power,
            power > expansion.order + 1 - _ROUGH,
        )
    return found


def distance_to_mode(quadratic: Quadratic, spread: np.ndarray, free: np.ndarray) -> float:
    """Length of Newton's step from the reference, in standard deviations per parameter."""
    slope = quadratic.gradient(quadratic.reference.theta)[free]
    if kind(spread) is not Kind.FULL:
        white = deviations(spread, len(free)) * slope
    else:
        white = spread.T @ slope
    return float(np.sqrt(np.mean(white**2))) if len(free) else 0.0


def is_far(distance: float) -> bool:
    """Whether a reference is so far from the mode that its expansion is of no use."""
    return not distance <= _FAR


def _along(spread: np.ndarray, j: int, size: int) -> np.ndarray:
    """One standard deviation of element j, with the others where they then are on average."""
    if kind(spread) is not Kind.FULL:
        direction = np.zeros(size)
        direction[j] = deviations(spread, size)[j]
        return direction
    return spread @ spread[j] / np.linalg.norm(spread[j])


def _name(place: int, blocks: Sequence[ThetaPart]) -> str:
    for block in blocks:
        if block.part.start <= place < block.part.stop:
            if not block.shape:
                return block.name
            at = np.unravel_index(place - block.part.start, block.shape)
            return f"{block.name}[{', '.join(map(str, at))}]"
    return str(place)
