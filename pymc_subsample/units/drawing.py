"""Draws of a unit's variables given what units share: proposals around its mode, accepted."""

import numpy as np
from scipy.special import gammaln

from pymc_subsample.units.functions import UnitFunctions
from pymc_subsample.units.modes import Modes
from pymc_subsample.units.quadrature import nodes

# Proposals are Student-t with so many degrees of freedom, whose tails are heavier than those of
# units given rows, and wider than a unit at the reference, since draws are away from it.
_DEGREES, _WIDER = 4.0, 1.2
# Nodes at which the largest ratio is looked for, and how much larger it may be between them: in
# steps of half a standard deviation a normal density differs by less.
_LOOKED, _BETWEEN = 25, 0.05
# Proposals at a time, and until a unit is given up.
_AT_A_TIME, _MOST = 8, 4_096


class Drawer:
    """Draws of units' variables, whose proposals stay where they are.

    A proposal is accepted with a probability of its density over the largest one, relative to what
    it was proposed with: draws are independent and exact if that bound holds. It is the largest at
    some nodes and among earlier proposals (Caffo, Booth and Davis, 2002), and `excess` is the share
    of probability by which proposals went beyond: what draws may be off by.
    """

    def __init__(self, functions: UnitFunctions, modes: Modes) -> None:
        self._functions, self._modes = functions, modes
        size = functions.graphs.size
        self._nodes = _WIDER * nodes(size, _LOOKED if size == 1 else 7)[0][:512]
        self._at_nodes = functions.repeated(len(self._nodes))
        self._several = functions.repeated(_AT_A_TIME)
        self.beyond, self.within = np.zeros(len(modes.m)), np.zeros(len(modes.m))

    @property
    def excess(self) -> np.ndarray:
        """Share of probability beyond the bound, by unit."""
        return self.beyond / np.maximum(self.within, 1e-300)

    @property
    def reach(self) -> float:
        """How far from modes the bound is looked for."""
        return float(np.max(np.abs(self._nodes)))

    def draw(self, theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return a draw for each unit, shape (units, size); NaN where none was accepted."""
        units, size = self._modes.m.shape
        log_ratios = self._log_ratios(self._at_nodes, theta, self._nodes[:, None, :])[0]
        bound = np.max(log_ratios, axis=0) + _BETWEEN
        result, left = np.full((units, size), np.nan), np.arange(units)
        functions, modes, several = self._functions, self._modes, self._several
        for _ in range(_MOST // _AT_A_TIME):
            nu = _student(rng, (_AT_A_TIME, len(left), size))
            ratios, u = self._log_ratios(several, theta, nu, modes)
            self.beyond[left] += np.maximum(np.exp(ratios - bound[left]) - 1.0, 0.0).sum(axis=0)
            self.within[left] += np.exp(np.minimum(ratios - bound[left], 0.0)).sum(axis=0)
            accepted = np.log(rng.random(ratios.shape)) < ratios - bound[left]
            some = accepted.any(axis=0)
            first = np.argmax(accepted, axis=0)
            result[left[some]] = u[first[some], np.flatnonzero(some)]
            bound[left] = np.maximum(bound[left], ratios.max(axis=0))
            left = left[~some]
            if not len(left):
                break
            modes = self._modes.of(left)
            functions = self._functions.of(self._functions.levels[left])
            several = functions.repeated(_AT_A_TIME)
        return result

    def _log_ratios(
        self,
        functions: UnitFunctions,
        theta: np.ndarray,
        nu: np.ndarray,
        modes: Modes | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities over those of proposals, (proposals, units), and the proposals."""
        modes = self._modes if modes is None else modes
        u = modes.m + np.einsum("gij,kgj->kgi", modes.S, np.broadcast_to(
            nu, (len(nu), *modes.m.shape)))  # fmt: skip
        found = functions.log_density(theta, u.reshape(-1, u.shape[-1])).reshape(u.shape[:2])
        found = np.where(np.isnan(found), -np.inf, found)
        return found - _log_student(nu), u


def _student(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    scale = np.sqrt(_DEGREES / rng.chisquare(_DEGREES, shape[:-1]))
    return _WIDER * rng.standard_normal(shape) * scale[..., None]


def _log_student(nu: np.ndarray) -> np.ndarray:
    size = nu.shape[-1]
    constant = gammaln((_DEGREES + size) / 2) - gammaln(_DEGREES / 2)
    constant -= 0.5 * size * np.log(_DEGREES * np.pi) + size * np.log(_WIDER)
    squared = (nu**2).sum(axis=-1) / _WIDER**2
    return constant - 0.5 * (_DEGREES + size) * np.log1p(squared / _DEGREES)
