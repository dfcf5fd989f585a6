"""Nodes that move with what units share: Newton's method from each unit's mode at the reference.

A unit that its rows tell far better than theta tells its mode, as one of a thousand rows, has moved
by many of its own standard deviations where theta has moved by a few. The integral is the same
wherever nodes are, so that its derivatives are those for nodes that stay.
"""

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from pymc_subsample.units.modes import Modes
from pymc_subsample.units.unit_densities import UnitFunctions


# Far from modes densities may overflow: such places are no nodes.
@np.errstate(all="ignore")
def moved(functions: UnitFunctions, theta: np.ndarray, modes: Modes, steps: int) -> Modes:
    """Return where nodes of units are at theta, from their modes at the reference."""
    for _ in range(steps):
        _, slope, curvature = functions.derivatives(theta, modes.m)
        m, S, _ = newton_step(modes, slope, curvature)
        modes = replace(modes, m=m, S=S)
    return modes


def newton_step(
    modes: Modes, slope: np.ndarray, curvature: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Take a step of `newton` of all units at once, from derivatives at their modes."""
    size, S = modes.m.shape[1], modes.S
    m, spread, shrunk = newton(
        np,
        list(modes.m.T),
        [[S[:, i, j] for j in range(size)] for i in range(size)],
        list(slope.T),
        [[curvature[:, i, j] for j in range(size)] for i in range(size)],
    )
    return np.stack(m, axis=1), np.moveaxis(np.array(spread), 2, 0), shrunk


def newton(
    xp: ModuleType,
    m: Sequence[Any],
    S: Sequence[Sequence[Any]],
    slope: Sequence[Any],
    curvature: Sequence[Sequence[Any]],
) -> tuple[list[Any], list[list[Any]], Any]:
    """Take a step from m, by elements of vectors and matrices that are arrays over units.

    The curvature is factored in the coordinates in which that at the reference, of which S is the
    spread, is one; a pivot that is not positive counts as one. Returns m, the spread T there, and
    by how much the logarithm of the volume has shrunk. `xp` is NumPy or `pytensor.tensor`.
    """
    all_of = range(len(m))
    half = [[sum(curvature[i][k] * S[k][j] for k in all_of) for j in all_of] for i in all_of]
    L: dict[tuple[int, int], Any] = {}
    T: list[list[Any]] = [[None] * len(m) for _ in all_of]
    for j in all_of:
        for i in range(j, len(m)):
            left = -sum(S[k][i] * half[k][j] for k in all_of)
            left = left - sum(L[i, k] * L[j, k] for k in range(j))
            if i == j:
                L[j, j] = xp.sqrt(xp.where(left > 0, left, 1.0))
            else:
                L[i, j] = left / L[j, j]
        for i in all_of:
            T[i][j] = (S[i][j] - sum(T[i][k] * L[j, k] for k in range(j))) / L[j, j]
    along = [sum(T[k][j] * slope[k] for k in all_of) for j in all_of]
    at = [m[i] + sum(T[i][j] * along[j] for j in all_of) for i in all_of]
    return at, T, sum(xp.log(L[j, j]) for j in all_of)
