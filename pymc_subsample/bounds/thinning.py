r"""Time of draws by a count of what they read, and what is worth it.

A proposal that rows decide on by Poisson thinning is some moves of the surrogate, which take
gradients of it, and a decision, which reads rows. Times are nanoseconds, about, of one core.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

# A row or a gradient takes so long per element and besides; a stratum and a term of order 3. Only
# ratios count: they choose between numbers of moves.
_PER_ROW, _ROW, _GRADIENT, _STRATUM, _CUBE = 30.0, 500.0, 500.0, 10.0, 0.4
# A row that is read for a gradient. A choice: half of one that is drawn, as its place is known.
EXACT = 15.0
# A recorded draw, besides its proposals. Of Python, mostly.
DRAW = 100_000.0
# Gradients that a move of the surrogate takes, before a chain has shown them. A choice: draws of
# tuning correct it.
GRADIENTS = 8.0
# Leapfrog steps of a trajectory of a quarter period, over the fourth root of the parameters' number
# (Beskos et al. 2013), and correlations that a move leaves, by dynamics: of 2 to 100 parameters in
# 37 models steps were 1.4 to 3.6, 6 to 7 by NUTS (15 of 303 parameters), and effective draws per
# draw of HMC-ECS 0.45 to 0.97, by NUTS 0.9 to 2.1.
_STEPS = 1.15
CORRELATION = {"hmc": 0.15, "nuts": -0.2}
# Moves of the surrogate per proposal, at most. A choice: beyond it the rest of a draw takes no
# time beside them.
_MOST_MOVES = 16
_TINY = 1e-300  # What divides nothing by zero.


@dataclass(frozen=True)
class RowsRead:
    """What a decision reads."""

    rows: float  # Rows.
    # Strata of rows, and elements of phi that a row sees.
    strata: int
    seen: int
    cubes: int  # Terms of order 3 that are summed.

    @property
    def time(self) -> float:
        """Time of a decision."""
        measuring = 2 * self.strata * (self.seen**2 + _STRATUM)
        # A row is read as if it had ten numbers more: its data and what is cached of it.
        return self.rows * row_time(self.seen + 10) + measuring + _CUBE * self.cubes


def row_time(numbers: int) -> float:
    """Time to find a row of so many numbers, and to read it."""
    return _PER_ROW * numbers + _ROW


def steps(dynamics: str, parameters: int) -> float:
    """Gradients of a move, by the dynamics' name."""
    return _STEPS * parameters**0.25 if dynamics == "hmc" else GRADIENTS


def gradient_time(parameters: int, size: int, exact: int = 0) -> float:
    """Time of a gradient of the surrogate: of parameters, numbers phi, and rows that it reads."""
    return size**2 + _PER_ROW * parameters + _GRADIENT + EXACT * exact


def better_acceptance(factorised: float, together: float, reading: float, others: float) -> str:
    """Return by which form proposals are accepted sooner, from the shares that each accepts.

    `reading` and `others` are the times of rows and of the rest of a proposal.
    """
    # A row that rejects ends the reading.
    quick = factorised / (others + reading * (1 + factorised) / 2)
    return "factorised" if quick > together / (others + reading) else "mh-ss"


def most_effective_moves(accepted: float, left: float, move: float, others: float) -> int:
    """Return how many moves per proposal make most effective draws in the same time.

    Rows accept a share `accepted` of the proposals; a move leaves the correlation `left`; `move`
    and `others` are times of a move, and of the rest of a proposal.
    """
    k = np.arange(1, _MOST_MOVES + 1)
    return int(k[np.argmax(effective(accepted, left, k) / (others + k * move))])


def effective[Moves: (int, np.ndarray)](accepted: float, left: float, moves: Moves) -> Any:
    """Return effective draws per draw, of so many moves that are accepted together or not."""
    correlation = 1.0 - accepted * (1.0 - left**moves)
    return (1.0 - correlation) / (1.0 + correlation)


def lag_one(x: np.ndarray) -> float:
    """Return the correlation of successive draws, shape (m, d), in the slowest element.

    Less what chance makes of the largest of independent ones, but no less than the mean.
    """
    x = x - x.mean(axis=0)
    between = np.sum(x[1:] * x[:-1], axis=0) / np.maximum(np.sum(x**2, axis=0), _TINY)
    slowest = between.max() - 2.0 / np.sqrt(len(x))
    # a move of 1,000 is kept finite
    return float(np.clip(max(slowest, between.mean()), 0.0, 0.999))


def left_by_a_move(between: float, accepted: float, moves: int) -> float:
    """Return the correlation that one move leaves, from that between successive proposals."""
    moved = (between - 1.0 + accepted) / max(accepted, _TINY)
    return float(np.clip(moved, 0.0, 1.0) ** (1.0 / moves))
