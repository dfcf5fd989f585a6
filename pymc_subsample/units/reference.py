"""The reference at which units have their nodes, how many nodes, and how accurate these are."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import chdtri, logsumexp

from pymc_subsample.units.functions import UnitFunctions
from pymc_subsample.units.modes import Modes, find_modes
from pymc_subsample.units.quadrature import nodes

# Units among which the reference is looked for, fewer if they have more rows in all: it is off by
# few hundredths of the scale of units, which is what nodes notice.
_SEARCHED, _FEWEST, _ROWS = 2_000, 200, 50_000
# Of these, how many tell the error of nodes, at how many points.
_MEASURED, _POINTS = 300, 6
_ROUNDS, _STEPS, _HALVINGS = 30, 15, 6
# What a round of the search gains, as log density, once it has ended.
_GAIN = 1e-3
# Nodes per dimension that are tried, and what they may do to differences of the log posterior
# within the ellipsoid of 95%, or four standard deviations out: a tenth of a tenth.
_LADDER = (3, 5, 7, 9, 11, 15, 21, 31, 45, 63, 91)
# Beyond so many nodes in all none are added.
_MOST_NODES = 1_000
_ERROR = 0.01
_FAR = 4.0
# Of differences of gradients, which are sums over units; and what brings a point nearer.
_STEP, _NEARER = 1e-4, 0.8


@dataclass(frozen=True)
class Integral:
    """Nodes for the integrals of units, their number by what a larger one would change."""

    per_dimension: int
    error: float  # Of differences of the log posterior at far points.
    worst: int  # Level with the largest part of it.


@dataclass(frozen=True)
class Marginal:
    """Units of a model that are integrated out, with their nodes."""

    functions: UnitFunctions
    reference: np.ndarray  # Values of shared variables.
    modes: Modes
    integral: Integral


def integrals(
    functions: UnitFunctions, theta: np.ndarray, modes: Modes, per_dimension: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the log-likelihood of each unit, and the logarithms of what nodes add to it."""
    points, log_weights = nodes(functions.graphs.size, per_dimension)
    terms = [
        log_weight + functions.log_density(theta, modes.at(nu))
        for nu, log_weight in zip(points, log_weights, strict=True)
    ]
    terms = [np.where(np.isnan(term), -np.inf, term) for term in terms]
    return logsumexp(terms, axis=0) + modes.log_volume, terms


def log_posterior(
    functions: UnitFunctions, theta: np.ndarray, modes: Modes, per_dimension: int, scale: float
) -> tuple[float, np.ndarray]:
    """Return the log posterior, units counted `scale` times each, and its gradient."""
    value, slope = functions.rest(theta)
    logs, terms = integrals(functions, theta, modes, per_dimension)
    total = logsumexp(terms, axis=0)
    points, _ = nodes(functions.graphs.size, per_dimension)
    for nu, term in zip(points, terms, strict=True):
        weights = scale * np.exp(term - total)
        slope = slope + functions.slope(theta, modes.at(nu), weights)
    return value + scale * logs.sum(), slope


def find_reference(functions: UnitFunctions, rng: np.random.Generator) -> np.ndarray:
    """Return about the mode of the shared variables' posterior, given some of the units.

    Nodes are placed, theta moves by a few steps of a quasi-Newton method with nodes that stay, and
    what it has gained is judged with nodes that are placed anew.
    """
    some, scale = sampled(functions, _searched(functions), rng)
    few = _few(functions)
    theta = functions.ravel(functions.start)
    modes = find_modes(some, theta, start_of(some))
    value = log_posterior(some, theta, modes, few, scale)[0]
    for _ in range(_ROUNDS):
        if not len(theta):
            break
        found = _moved(some, theta, modes, few, scale)
        for _ in range(_HALVINGS):
            new = find_modes(some, found, modes.m)
            gained = log_posterior(some, found, new, few, scale)[0] - value
            if gained > 0:
                break
            found = (theta + found) / 2
        if not gained > 0:
            break
        theta, modes, value = found, new, value + gained
        if gained < _GAIN:
            break
    return theta


def _moved(
    functions: UnitFunctions, theta: np.ndarray, modes: Modes, few: int, scale: float
) -> np.ndarray:
    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(all="ignore"):
            value, slope = log_posterior(functions, x, modes, few, scale)
        if not (np.isfinite(value) and np.isfinite(slope).all()):
            return 1e300, np.zeros_like(x)
        return -value, -slope

    return minimize(objective, theta, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}).x


def _searched(functions: UnitFunctions) -> int:
    return int(np.clip(_ROWS / functions.n_rows.mean(), _FEWEST, _SEARCHED))


def sampled(
    functions: UnitFunctions, most: int, rng: np.random.Generator
) -> tuple[UnitFunctions, float]:
    """Return functions of some units, and how many each stands for."""
    units = len(functions.levels)
    if units <= most:
        return functions, 1.0
    levels = np.sort(rng.choice(functions.levels, most, replace=False))
    return functions.of(levels), units / most


def start_of(functions: UnitFunctions) -> np.ndarray:
    """Return where modes are looked for first: zero, or where the model starts."""
    graphs = functions.graphs
    start = np.zeros((len(functions.levels), graphs.size))
    for name, place in graphs.places.items():
        value = graphs.reading.values[name]
        if name in graphs.reading.standard:
            continue
        point = np.moveaxis(functions.start[value.name], graphs.grouping.own[name], 0)
        start[:, place] = point[functions.levels].reshape(len(start), -1)
    return start


def choose_nodes(
    functions: UnitFunctions, theta: np.ndarray, modes: Modes, rng: np.random.Generator
) -> Integral:
    """Return the smallest number of nodes that is accurate, or the largest that is tried."""
    some, scale = sampled(functions, _searched(functions), rng)
    own = modes.of(np.searchsorted(functions.levels, some.levels))
    points = [theta, *_far_points(some, theta, own, scale, rng)]
    few, _ = sampled(some, _MEASURED, rng)
    own = modes.of(np.searchsorted(functions.levels, few.levels))
    scale = len(functions.levels) / len(few.levels)

    def differences(per_dimension: int) -> np.ndarray:
        found = np.array([integrals(few, x, own, per_dimension)[0] for x in points])
        return found[1:] - found[0]

    result = None
    for per_dimension in _LADDER:
        if result is not None and len(nodes(few.graphs.size, per_dimension)[0]) > _MOST_NODES:
            break
        each = differences(per_dimension) - differences(2 * per_dimension)
        error = scale * np.max(np.abs(each.sum(axis=1)), initial=0.0)
        result = Integral(
            per_dimension, float(error), int(few.levels[np.argmax(np.abs(each).max(axis=0))])
        )
        if error < _ERROR:
            break
    assert result is not None
    return result


def _far_points(
    functions: UnitFunctions,
    theta: np.ndarray,
    modes: Modes,
    scale: float,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Return random points at the edge of where draws are."""
    size, few = len(theta), _few(functions)

    def at(x: np.ndarray) -> tuple[float, np.ndarray]:
        return log_posterior(functions, x, modes, few, scale)

    hessian = np.array([
        (at(theta + _STEP * e)[1] - at(theta - _STEP * e)[1]) / (2 * _STEP) for e in np.eye(size)
    ]).reshape(size, size)  # fmt: skip
    level, axes = np.linalg.eigh(-(hessian + hessian.T) / 2)
    # A direction that neither rows nor the prior tell would be followed for ever.
    spread = axes / np.sqrt(np.maximum(level, 1.0 / _FAR**2))
    radius = max(_FAR, float(np.sqrt(chdtri(max(size, 1), 0.05))))
    directions = rng.standard_normal((_POINTS, size))
    directions /= np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-300)
    value, found = at(theta)[0], []
    for direction in directions:
        shift = radius * spread @ direction
        # Where the density falls faster than it began to, draws are not as far out.
        while value - at(theta + shift)[0] > radius**2 / 2 and np.any(np.abs(shift) > _STEP):
            shift *= _NEARER
        found.append(theta + shift)
    return found


def _few(functions: UnitFunctions) -> int:
    """Return nodes per dimension while the reference is looked for."""
    return 5 if functions.graphs.size == 1 else 3
