"""A quasi-Newton method, for functions that may be infinite in places.

BFGS with the line search of Lewis and Overton [1]_, which needs values and slopes alone: steps are
halved until the function falls, and doubled while it falls as steeply.

References
----------
.. [1] A. S. Lewis and M. L. Overton (2013). Nonsmooth optimization via quasi-Newton methods.
   Mathematical Programming 141, section 3.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# A step should lower the function by this share of what the slope promises, and leave less than
# that share of the slope (Nocedal and Wright 2006, section 3.1).
_LESS, _FLATTER = 1e-4, 0.9
_TRIALS = 50  # Of a step: floating-point numbers halve as often.


@dataclass(frozen=True)
class Descent:
    """Where a search ended."""

    x: np.ndarray
    convex: bool  # Whether no step showed the function to bend down.
    evaluations: int


def descend(
    value: Callable[[np.ndarray], float],
    slope: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    *,
    most_steps: int,
    longest: float,
    tolerance: float,
) -> Descent:
    """Minimise a function whose second derivatives are about one.

    Steps are `longest` at first. Ends where the function is expected to fall by no more than half
    of `tolerance` squared, that many standard deviations from the minimum of a log density.
    """
    x, height, gradient = start, value(start), slope(start)
    inverse, convex, evaluations = np.eye(len(x)), True, 1
    for _ in range(most_steps):
        step = -inverse @ gradient
        step *= min(1.0, longest / max(np.linalg.norm(step), 1e-300))
        falls = gradient @ step
        if not -falls > tolerance**2:
            break
        share, low, high = 1.0, 0.0, np.inf
        best = x, height, gradient
        for _ in range(_TRIALS):
            at = x + share * step
            reached, evaluations = value(at), evaluations + 1
            if reached < height + _LESS * share * falls:
                best = at, reached, slope(at)
                convex = convex and bool(reached >= height + (1 + _LESS) * share * falls)
                if best[2] @ step >= _FLATTER * falls:
                    break
                low = share
            else:
                high = share
            share = (low + high) / 2 if np.isfinite(high) else 2 * low
        if best[0] is x:
            break
        moved, bent = best[0] - x, best[2] - gradient
        x, height, gradient = best
        if (curvature := moved @ bent) > 0:
            turn = np.eye(len(x)) - np.outer(moved, bent) / curvature
            inverse = turn @ inverse @ turn.T + np.outer(moved, moved) / curvature
    return Descent(x, convex, evaluations)
