"""How many nodes integrals take, whether these move, and what integrals are off by.

That is what twice as many nodes change that are placed anew, around the units' modes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.special import chdtri

from pymc_subsample.model import TallModelError
from pymc_subsample.units.modes import Modes, find_modes
from pymc_subsample.units.moving import moved
from pymc_subsample.units.quadrature import nodes
from pymc_subsample.units.reference import (
    few_nodes,
    integrals,
    log_posterior,
    sampled,
    searched,
    spread_of,
)
from pymc_subsample.units.unit_densities import UnitFunctions

# Units that tell the error of nodes, and at how many points.
_MEASURED, _POINTS = 300, 6
# Nodes per dimension that are tried, and what they may do to differences of the log posterior
# within the ellipsoid of 95%, or four standard deviations out: a tenth of what is tolerable.
_LADDER = (3, 5, 7, 9, 11, 15, 21, 31, 45, 63, 91)
MOST = _LADDER[-1]
# Differences of the log density by a tenth are seen in the posterior.
TOLERABLE = 0.1
_ERROR = TOLERABLE / 10
# Beyond so many nodes in all none are added.
_MOST_NODES = 1_000
# Newton's steps by which nodes may move with theta: one is exact in linear mixed models, and each
# squares what is left of the distance. They are taken if they cost less than this share of nodes
# that stay, since their derivatives have to be compiled too.
_STEPS_TRIED, _WORTH = (0, 1, 2, 3), 0.5
_FAR = 4.0  # Standard deviations, as in the line on nodes above.
# Of differences of gradients, which are sums over units; and what brings a point nearer.
_STEP, _NEARER, _NEARER_TIMES = 1e-4, 0.8, 60


@dataclass(frozen=True)
class Integral:
    """Nodes for the integrals of units."""

    per_dimension: int
    steps: int  # Newton's, by which nodes move with the shared variables.
    error: float  # Of differences of the log posterior at far points.
    worst: int  # Level with the largest part of it.


@dataclass(frozen=True)
class Marginal:
    """Units of a model that are integrated out, with their nodes."""

    functions: UnitFunctions
    reference: np.ndarray  # Values of shared variables.
    modes: Modes  # At the reference.
    integral: Integral

    def at(self, units: np.ndarray) -> "Marginal":
        """Return these integrals for some units, by position."""
        functions = self.functions.of(self.functions.levels[units])
        return replace(self, functions=functions, modes=self.modes.of(units))

    def modes_at(
        self, functions: UnitFunctions, theta: np.ndarray, units: np.ndarray | None = None
    ) -> Modes:
        """Return where nodes are at theta, of some units, those of `functions`."""
        own = self.modes if units is None else self.modes.of(units)
        return moved(functions, theta, own, self.integral.steps)


@np.errstate(all="ignore")
def choose_nodes(
    functions: UnitFunctions,
    theta: np.ndarray,
    modes: Modes,
    rng: np.random.Generator,
    per_dimension: int | None = None,
) -> Integral:
    """Return the cheapest nodes that are accurate, or the most accurate that are tried.

    Given `per_dimension`, of so many. Sums over states are exact.
    """
    if functions.graphs.exact:
        return Integral(1, 0, 0.0, -1)
    some, counted = sampled(functions, searched(functions), rng)
    own = modes.of(np.searchsorted(functions.levels, some.levels))
    points = [theta, *_far_points(some, theta, own, counted, rng)]
    few, counted = sampled(functions, _MEASURED, rng, modes)
    own = modes.of(np.searchsorted(functions.levels, few.levels))

    placed = [find_modes(few, x, own.m) for x in points]

    def differences(modes: list[Modes], n: int) -> np.ndarray:
        found = [integrals(few, x, m, n)[0] for x, m in zip(points, modes, strict=True)]
        return np.array(found[1:]) - found[0]

    exact = cache(lambda n: differences(placed, 2 * n))
    result, least, before = None, np.inf, np.inf
    for steps in _STEPS_TRIED:
        reached = np.inf
        at = [moved(few, x, own, steps) for x in points]
        for n in _LADDER if per_dimension is None else (per_dimension,):
            cost = _cost(few.graphs.most, n, steps)
            many = n > _LADDER[0] and len(nodes(few.graphs.most, n)[0]) > _MOST_NODES
            if (many and per_dimension is None) or cost >= least:
                break
            each = differences(at, n) - exact(n)
            each = np.where(np.isnan(each), np.inf, each)
            error = float(np.max(np.abs(each @ counted), initial=0.0))
            worst = int(few.levels[np.argmax(np.abs(each).max(axis=0))])
            reached = min(reached, error)
            # Where nodes that move are inaccurate, their derivatives are not those of their sum.
            serves = steps == 0 or error <= TOLERABLE
            if result is None or (serves and error < max(_ERROR, result.error)):
                result = Integral(n, steps, error, worst)
            if error < _ERROR:
                least = _WORTH * cost
                break
        # Where levels have different numbers of variables, derivatives of each kind are compiled;
        # nodes that are summed over states stay.
        apart = few.graphs.active is not None and error < _ERROR
        if apart or few.graphs.states is not None or (steps and not reached < before):
            break
        before = reached
    assert result is not None
    return result


def _cost(size: int, per_dimension: int, steps: int) -> int:
    """Return how often rows are evaluated: at nodes, and for derivatives at modes."""
    return len(nodes(size, per_dimension)[0]) + steps * (size + size * (size + 1) // 2)


def _far_points(
    functions: UnitFunctions,
    theta: np.ndarray,
    modes: Modes,
    counted: np.ndarray,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Return random points at the edge of where draws are."""
    size, few = len(theta), few_nodes(functions)

    def at(x: np.ndarray) -> tuple[float, np.ndarray]:
        return log_posterior(functions, x, find_modes(functions, x, modes.m), few, counted)

    factor = spread_of(functions, theta, modes, few, counted, rng)
    hessian = _hessian(functions, lambda x: at(x)[1], theta, factor)
    level, axes = np.linalg.eigh(-(hessian + hessian.T) / 2)
    # A direction that neither rows nor the prior tell would be followed for ever.
    spread = factor @ axes / np.sqrt(np.maximum(level, 1.0 / _FAR**2))
    radius = max(_FAR, float(np.sqrt(chdtri(max(size, 1), 0.05))))
    directions = rng.standard_normal((_POINTS, size))
    directions /= np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-300)
    value, found = at(theta)[0], []
    for direction in directions:
        shift = radius * spread @ direction
        # Where the density falls faster than it began to, draws are not as far out.
        for _ in range(_NEARER_TIMES):
            if value - at(theta + shift)[0] <= radius**2 / 2:
                break
            shift *= _NEARER
        found.append(theta + shift)
    return found


def _hessian(
    functions: UnitFunctions,
    gradient: Callable[[np.ndarray], np.ndarray],
    at: np.ndarray,
    factor: np.ndarray,
) -> np.ndarray:
    """Differentiate a gradient along `factor`; refuse a point beside which it is not finite."""
    lines = [
        (gradient(at + _STEP * e) - gradient(at - _STEP * e)) @ factor / (2 * _STEP)
        for e in factor.T
    ]
    hessian = np.array(lines).reshape(len(at), len(at))
    if not np.all(np.isfinite(hessian)):
        names = " and ".join(map(repr, functions.graphs.grouping.names))
        point = dict(zip(functions.values, functions.split(at), strict=True))
        raise TallModelError(
            f"The log posterior without {names} has no finite gradient beside the point from "
            f"which integrals are measured, {point}. Give integrate=False, or initial values at "
            "which the model is finite."
        )
    return hessian


def error_at(
    marginal: Marginal, functions: UnitFunctions, points: np.ndarray, rng: np.random.Generator
) -> float:
    """Return what integrals are off by in differences of the log posterior between points.

    `functions` take points as they are given, for any units.
    """
    if functions.graphs.exact:
        return 0.0
    own = functions.of(marginal.functions.levels)
    few, counted = sampled(own, _MEASURED, rng, marginal.modes)
    units, n = np.searchsorted(own.levels, few.levels), marginal.integral.per_dimension
    off = []
    for theta in points:
        modes = marginal.modes_at(few, theta, units)
        anew = find_modes(few, theta, modes.m)
        once, exact = integrals(few, theta, modes, n)[0], integrals(few, theta, anew, 2 * n)[0]
        off.append(float(counted @ (once - exact)))
    return float(np.max(np.abs(np.array(off) - np.median(off)), initial=0.0))
