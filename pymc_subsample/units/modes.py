"""The mode of every unit and the spread around it, all units at once."""

from dataclasses import dataclass

import numpy as np

from pymc_subsample.units.unit_densities import UnitFunctions

# Newton's method takes less than ten; units whose steps are halved take more. A choice: thirty
# halvings make a step of a billionth.
_ITERATIONS = 60
_HALVINGS = 30
# What a step would gain, as log density, once the mode is found.
_GAIN = 1e-10
# Longer steps are cut, in units of the variables: of standardised ones, few standard deviations.
_LONGEST = 3.0
# A curvature below is none: a spread beyond ten would be that of no standardised variable.
_LEAST = 0.01


@dataclass(frozen=True)
class Modes:
    """Where nodes of units are: ``m + S @ nu``."""

    m: np.ndarray  # Shape (units, size).
    S: np.ndarray  # Shape (units, size, size).
    found: np.ndarray  # Whether each mode was found.

    @property
    def log_volume(self) -> np.ndarray:
        """Logarithm of the determinant of S."""
        return np.linalg.slogdet(self.S)[1]

    def of(self, units: np.ndarray) -> "Modes":
        """Return those of some units."""
        return Modes(self.m[units], self.S[units], self.found[units])

    def at(self, nu: np.ndarray) -> np.ndarray:
        """Return nodes of all units for one nu, of all or of each."""
        return self.m + (self.S @ nu if nu.ndim == 1 else np.einsum("gij,gj->gi", self.S, nu))


def standing(units: int, size: int) -> Modes:
    """Return modes around which nodes are where they are as numbers."""
    spread = np.broadcast_to(np.eye(size), (units, size, size))
    return Modes(np.zeros((units, size)), spread, np.ones(units, dtype=bool))


def find_all_modes(functions: UnitFunctions, theta: np.ndarray, start: np.ndarray) -> Modes:
    """Return modes of all units as `find_modes` does, some at a time if rows are on disk."""
    pieces = functions.pieces()
    if len(pieces) == 1:
        return find_modes(functions, theta, start)
    found = [find_modes(functions.of(functions.levels[p]), theta, start[p]) for p in pieces]
    return Modes(
        *(np.concatenate([getattr(x, name) for x in found]) for name in ("m", "S", "found"))
    )


# Steps to where the density overflows or has no value do not gain.
@np.errstate(all="ignore")
def find_modes(functions: UnitFunctions, theta: np.ndarray, start: np.ndarray) -> Modes:
    """Return modes by Newton's method, with steps that always gain; states alone have none.

    Negative curvatures count as positive ones; at the mode, those that are too small as
    `_LEAST`.
    """
    if functions.graphs.exact:
        return standing(*start.shape)
    u, everywhere = start.copy(), np.arange(len(start))
    left, own = everywhere, functions
    found = np.zeros(len(start), dtype=bool)
    for _ in range(_ITERATIONS):
        value, slope, curvature = own.derivatives(theta, u[left])
        step, gain = _step(slope, curvature)
        done = np.abs(gain) < _GAIN
        found[left[done]] = True
        if done.all():
            break
        left, value, step = left[~done], value[~done], step[~done]
        own = functions.among(left)
        u[left] = _improved(own, theta, u[left], value, step)
    curvature = functions.derivatives(theta, u)[2]
    return Modes(u, _spread(-_finite(curvature), functions.active), found)


def _spread(information: np.ndarray, active: np.ndarray | None) -> np.ndarray:
    """Return S with ``S S.T`` the inverse of the information of each unit.

    Of elements that units lack it is the identity.
    """
    if active is None:
        level, axes = np.linalg.eigh(information)
        return axes / np.sqrt(np.maximum(level, _LEAST))[:, None, :]
    S = np.broadcast_to(np.eye(information.shape[1]), information.shape).copy()
    patterns, which = np.unique(active, axis=0, return_inverse=True)
    for i, pattern in enumerate(patterns):
        own = np.ix_(np.flatnonzero(which.ravel() == i), *[np.flatnonzero(pattern)] * 2)
        S[own] = _spread(information[own], None)
    return S


def _finite(matrices: np.ndarray) -> np.ndarray:
    return np.nan_to_num(matrices, nan=0.0, posinf=0.0, neginf=0.0)


def _step(slope: np.ndarray, curvature: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return steps of at most `_LONGEST`, and what they would gain."""
    level, axes = np.linalg.eigh(-_finite(curvature))
    along = np.einsum("gij,gi->gj", axes, np.nan_to_num(slope))
    # Relative to the largest, so that no direction is left for rounding to choose.
    size = np.maximum(np.abs(level), 1e-8 * np.max(np.abs(level), axis=1, keepdims=True) + 1e-300)
    step = np.einsum("gij,gj->gi", axes, along / size)
    length = np.linalg.norm(step, axis=1)
    step *= np.minimum(1.0, _LONGEST / np.maximum(length, _LONGEST))[:, None]
    return step, np.einsum("gi,gi->g", np.nan_to_num(slope), step)


def _improved(
    functions: UnitFunctions,
    theta: np.ndarray,
    u: np.ndarray,
    value: np.ndarray,
    step: np.ndarray,
) -> np.ndarray:
    """Take steps, halved until the log density is no less."""
    u, left, own = u.copy(), np.arange(len(u)), functions
    for _ in range(_HALVINGS):
        new = u[left] + step[left]
        gained = own.log_density(theta, new) >= value[left]
        u[left[gained]] = new[gained]
        if gained.all():
            break
        left = left[~gained]
        step[left] /= 2
        own = functions.among(left)
    return u
