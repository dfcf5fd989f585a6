"""Integrals of units by quadrature, and the reference at which units have their nodes."""

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

from pymc_subsample.units.modes import Modes, find_modes
from pymc_subsample.units.node_batches import batches
from pymc_subsample.units.states import is_discrete
from pymc_subsample.units.unit_arrays import levels_of
from pymc_subsample.units.unit_densities import UnitFunctions

# Units among which the reference is looked for, fewer if they have more rows in all: it is off by
# few hundredths of the scale of units, which is what nodes notice.
_SEARCHED, _FEWEST, _ROWS = 2_000, 200, 50_000
# Units that are always among them, since none of the others is as they are.
_OUTSTANDING = 10
# Rounds of the search, Newton's steps in each, and how often these are halved. Choices: it takes
# fewer where it ends.
_ROUNDS, _STEPS, _HALVINGS = 30, 15, 6
# What a round of the search gains, as log density, once it has ended.
_GAIN = 1e-3
# Of random signs, over parameters: an information matrix is known to a factor of (1 + 1 / 2)^2 by
# four times as many, in all directions. Of more parameters, only their scales are measured.
_SIGNS, _MOST, _OF_SCALES = 4, 50, 16
# Eigenvalues of a matrix with a unit diagonal that rounding does not tell from zero.
_ROUNDING = 1e-12


# Where densities overflow or have no value, nodes have no weight.
@np.errstate(all="ignore")
def integrals(
    functions: UnitFunctions, theta: np.ndarray, modes: Modes, per_dimension: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-likelihood of each unit, and the logarithms of what nodes add to it.

    These are of shape (K, units), -inf where a unit has fewer nodes.
    """
    terms = np.full((len(functions.nodes(per_dimension)[0]), len(functions.levels)), -np.inf)
    for some in batches(functions, per_dimension):
        found = some.log_weights + some.functions.log_density(theta, some.at(modes))
        terms[some.node, some.unit] = np.where(np.isnan(found), -np.inf, found)
    return logsumexp(terms, axis=0) + modes.log_volume, terms


@np.errstate(all="ignore")
def log_posterior(
    functions: UnitFunctions,
    theta: np.ndarray,
    modes: Modes,
    per_dimension: int,
    counted: np.ndarray,
) -> tuple[float, np.ndarray]:
    """Return the log posterior, in which each unit is `counted` so many times, and its gradient.

    Of effects that stay in the model, it is the one of what they are over their scale.
    """
    value, slope = functions.unshrunk(theta)
    logs, terms = integrals(functions, theta, modes, per_dimension)
    weights = counted * np.exp(terms - logsumexp(terms, axis=0))
    for some in batches(functions, per_dimension):
        own = weights[some.node, some.unit]
        slope = slope + some.functions.slope(theta, some.at(modes), own)
    return value + float(counted @ logs), slope


def find_reference(functions: UnitFunctions, rng: np.random.Generator) -> np.ndarray:
    """Return about the mode of the shared variables' posterior, given some of the units.

    By a quasi-Newton method, with nodes that are placed anew at every point: the integrals over
    units that are known far better than theta moves would end where nodes that stay do.
    """
    some, counted = sampled(functions, searched(functions), rng)
    few = few_nodes(functions)
    theta = functions.ravel(functions.start)
    modes = find_modes(some, theta, start_of(some))
    value = log_posterior(some, theta, modes, few, counted)[0]
    for _ in range(_ROUNDS):
        if not len(theta):
            break
        factor = spread_of(some, theta, modes, few, counted, rng)
        found = _moved(some, theta, modes, few, counted, factor)
        for _ in range(_HALVINGS):
            new = find_modes(some, found, modes.m)
            gained = log_posterior(some, found, new, few, counted)[0] - value
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
    functions: UnitFunctions,
    theta: np.ndarray,
    modes: Modes,
    few: int,
    counted: np.ndarray,
    factor: np.ndarray,
) -> np.ndarray:
    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(all="ignore"):
            at = theta + factor @ x
            there = find_modes(functions, at, modes.m)
            value, slope = log_posterior(functions, at, there, few, counted)
        if not (np.isfinite(value) and np.isfinite(slope).all()):
            return 1e300, np.zeros_like(x)
        return -value, -slope @ factor

    start = np.zeros_like(theta)
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
    return theta + factor @ found.x


def spread_of(
    functions: UnitFunctions,
    theta: np.ndarray,
    modes: Modes,
    per_dimension: int,
    counted: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return a factor of about the covariance of theta, whatever the units of columns.

    Its inverse is the sum over units of the squares of their gradients, of which gradients with
    random signs of the units are draws, and one, for directions that units do not tell.
    """
    size = len(theta)
    draws = _SIGNS * size if size <= _MOST else _OF_SCALES
    slopes = np.zeros((draws, size))
    with np.errstate(all="ignore"):
        _, terms = integrals(functions, theta, modes, per_dimension)
        shares = np.exp(terms - logsumexp(terms, axis=0))
        signs = rng.choice((-1.0, 1.0), (draws, len(counted))) * np.sqrt(counted)
        for some in batches(functions, per_dimension):
            u, own = some.at(modes), shares[some.node, some.unit]
            slopes = slopes + np.array(
                [some.functions.slope(theta, u, own * s[some.unit]) for s in signs]
            )
    slopes = np.nan_to_num(slopes, nan=0.0, posinf=0.0, neginf=0.0)
    information = slopes.T @ slopes / draws + np.eye(size)
    scale = np.sqrt(np.diag(information))
    if size > _MOST:
        return np.diag(1 / scale)
    level, axes = np.linalg.eigh(information / np.outer(scale, scale))
    return axes / np.sqrt(np.maximum(level, _ROUNDING)) / scale[:, None]


def searched(functions: UnitFunctions) -> int:
    """Return among how many units the reference is looked for."""
    return int(np.clip(_ROWS / functions.n_rows.mean(), _FEWEST, _SEARCHED))


def sampled(
    functions: UnitFunctions, most: int, rng: np.random.Generator, modes: Modes | None = None
) -> tuple[UnitFunctions, np.ndarray]:
    """Return functions of some units, and for how many each of them counts.

    Those with the most rows are always among them, and given `modes` also those with the farthest
    modes and with the smallest spread.
    """
    units, n = len(functions.levels), _OUTSTANDING
    if units <= most:
        return functions, np.ones(units)
    marks = [functions.n_rows.astype(float)]
    if modes is not None:
        marks += [np.linalg.norm(modes.m, axis=1), -modes.log_volume]
    outstanding = np.unique(np.concatenate([np.argpartition(mark, -n)[-n:] for mark in marks]))
    others = np.setdiff1d(np.arange(units), outstanding)
    chosen = rng.choice(others, max(most - len(outstanding), n), replace=False)
    counted = np.ones(units)
    counted[chosen] = len(others) / len(chosen)
    some = np.sort(np.concatenate([outstanding, chosen]))
    return functions.of(functions.levels[some]), counted[some]


def start_of(functions: UnitFunctions) -> np.ndarray:
    """Return where modes are looked for first: zero, or where the model starts."""
    graphs = functions.graphs
    start = np.zeros((len(functions.levels), graphs.size))
    for name, place in graphs.places.items():
        value = graphs.reading.values[name]
        if name in graphs.reading.standard or is_discrete(value):
            continue
        start[:, place] = levels_of(graphs, name, functions.start[value.name])[functions.levels]
    return start


def few_nodes(functions: UnitFunctions) -> int:
    """Return nodes per dimension while the reference is looked for."""
    return 5 if functions.graphs.most == 1 else 3
