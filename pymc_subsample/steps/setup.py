"""What a step prepares once: reference point, mass matrix, modes."""

import logging
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.special import chdtri

from pymc_subsample.blas import one_thread
from pymc_subsample.control_variates import Expansion
from pymc_subsample.control_variates.causes import distance_to_mode, is_far
from pymc_subsample.control_variates.curvature import MAX_DENSE, covariance_factor, rounded
from pymc_subsample.control_variates.factors import (
    deviations,
    is_sparse,
    scaled,
    sparse_factor,
    whiten,
)
from pymc_subsample.control_variates.hierarchy import MAX_OUTER, settle, split_hierarchy
from pymc_subsample.control_variates.kept import Archive
from pymc_subsample.control_variates.modes import ModeSearch, Starts, search_modes
from pymc_subsample.control_variates.quadratic import Posterior, Quadratic
from pymc_subsample.control_variates.reference import Reference, extended, refuse_undefined
from pymc_subsample.control_variates.residuals import Residuals, residuals_around
from pymc_subsample.control_variates.search import find_mode, has_precision, polish
from pymc_subsample.coordinates.fit import fitted, locate
from pymc_subsample.kernels.estimates import BLOCK_POISSON, PERTURBED
from pymc_subsample.likelihood import TallModelError
from pymc_subsample.progress import doing

_log = logging.getLogger("pymc.subsample")

_PILOT_POINTS = 4
# Posterior probability outside the ellipsoid of the block-Poisson estimate, were it normal.
_OUTSIDE = 1e-9
_FAR_POINTS = 4
_FAR = 4.0
# What rounding may change in the precision of the posterior along some direction, as a share, and
# from where columns are taken apart, if that is possible.
_ROUNDED, NEARLY = 0.1, 0.01
# Standard deviations per parameter between an earlier reference and a posterior that it serves.
_SERVES = 0.5
# By what share a posterior may be wider or narrower than the one around which residuals are known.
_ALIKE = 1.25
# Modes in which chains start: how many at most, and the share of the mass from which.
_MODES, _STARTED = 4, 0.01


@dataclass(frozen=True)
class Preparation:
    """Where chains start and what is known there, shared by all of them and never changed."""

    reference: Reference  # Expansion point and full-data sums.
    # Shape (a, a), (1, a) or (3, k): of the covariance of the sampled parameters, or its diagonal.
    factor: np.ndarray
    # Points around the reference by which a subsample is chosen, shape (k, d), (j, d).
    pilot: np.ndarray
    far: np.ndarray
    # What other modes were found; None where none were looked for.
    search: ModeSearch | None = None
    # The same at other modes, in which some of the chains start.
    others: tuple["Preparation", ...] = ()
    # At pilot and far points, where they are known from an earlier run.
    residuals: Residuals | None = None

    @property
    def at_modes(self) -> tuple["Preparation", ...]:
        """At each of the modes in which chains start."""
        return self, *self.others


@dataclass(frozen=True)
class Problem:
    """What a set-up is of."""

    expansion: Expansion  # Compiled model.
    starts: Starts  # Where the search for the reference starts, and those for other modes.
    # Integers: elements of theta that the step moves, and that are continuous: other steps may move
    # those, so the reference and the pilot take all of them into account.
    active: np.ndarray
    free: np.ndarray
    rng: np.random.Generator  # Draws subsets and pilot points.
    temperature: float = 1.0  # Divides the log-likelihood.
    kind: int = PERTURBED  # {PERTURBED, BLOCK_POISSON}: the estimate.
    given: np.ndarray | None = None  # A reference to be used as it is, shape (d,).
    archive: Archive | None = None  # Where sums are kept; None where they are not.
    # Whether the reference is that of an earlier run, for which another one nearby may stand.
    earlier: bool = False

    @property
    def posterior(self) -> Posterior:
        """Of all rows."""
        return Posterior(self.expansion, self.temperature)


@one_thread
def prepare(problem: Problem) -> Preparation:
    """Find the reference point, or take the one that was given, and what is known there."""
    expansion, search = problem.expansion, None
    if (earlier := _taken_over(problem)) is not None:
        return earlier
    found = None if problem.given is None else _at_given(problem, problem.given)
    if found is None:
        found, search = _automatic_reference(problem)
    refuse_undefined(expansion, found.reference)
    if problem.archive is not None:
        problem.archive.keep(expansion, found.reference)
    first = _prepared(problem, found, search)
    modes = zip(search.modes[1:_MODES], search.shares[1:_MODES], strict=True) if search else ()
    others = [
        _prepared(problem, fitted(Quadratic(expansion, mode)), search)
        for mode, share in modes
        if share >= _STARTED
    ]
    return replace(first, others=tuple(others))


def _prepared(problem: Problem, at: Quadratic, search: ModeSearch | None = None) -> Preparation:
    """Return what is known around a mode, with points at random."""
    free, rng = problem.free, problem.rng
    scale, spread = shape(at, problem.active, free)
    pilot = _ellipsoid(at.theta, spread, free, rng)
    far = far_points(problem.kind, at.theta, spread, free, rng)
    return Preparation(at.reference, scale, pilot, far, search)


def _at_given(problem: Problem, theta: np.ndarray) -> Quadratic | None:
    """Return the reference that was given; None of an earlier run that is far from the mode.

    In hierarchies rows see products of scales and effects, and know these far better than each
    factor: the product of a run's means may be many standard deviations away from the mean of the
    products. There the mode given the scales takes their place.
    """
    posterior, effects = problem.posterior, problem.expansion.effects
    found, moved = fitted(posterior.at(theta)), problem.free
    if effects is not None and problem.earlier:
        moved = np.setdiff1d(moved, effects.scales)

    def off(at: Quadratic) -> float:
        return distance_to_mode(at, shape(at, moved, moved)[1], moved)

    distance = off(found) if found.reference.is_finite else np.inf
    if effects is not None and problem.earlier and _SERVES < distance < np.inf:
        found = fitted(polish(posterior, found.theta, moved))
        distance = off(found)
    if not is_far(distance):
        return found
    if problem.earlier:
        _log.warning(
            "The earlier run that reference= names is about %.3g standard deviations per parameter "
            "from the mode of this model's posterior, as the curvature there has them, and the mode"
            " is searched anew: it is of another model, of other rows, or of Bambi's fit, which "
            "moves the intercept where its model centres predictors.",
            distance,
        )
        return None
    if found.reference.is_finite:
        _log.warning(
            "The given reference is about %.3g standard deviations per parameter from the mode of "
            "this model's posterior, as the curvature there has them. It is used as it is: control "
            "variates, metric and automatic step sizes are then made for there, not for where the "
            "draws go. Leave out reference=, or give the values of a mode.",
            distance,
        )
    return found


def _taken_over(problem: Problem) -> Preparation | None:
    """Complete what is kept of an earlier run by the rows that came since, where it serves."""
    expansion, given, free = problem.expansion, problem.given, problem.free
    if problem.archive is None or not problem.earlier or given is None:
        return None
    known = problem.archive.known(expansion)
    if known is None:
        return None
    at = fitted(Quadratic(expansion, known.reference))
    _, spread = shape(at, problem.active, free)
    shift = expansion.from_values(expansion.values(given), at.theta) - at.theta
    if not np.sqrt(np.mean(whiten(spread, shift[free]) ** 2)) <= _SERVES:
        return None
    at = fitted(Quadratic(expansion, extended(expansion, known.reference, known.n_rows)))
    scale, spread = shape(at, problem.active, free)
    if not distance_to_mode(at, spread, free) <= _SERVES:
        return None
    _log.info(
        "Sums of %s rows are those of an earlier run; %s were read",
        f"{known.n_rows:,}", f"{expansion.n_rows - known.n_rows:,}",
    )  # fmt: skip
    pilot, far = (
        np.array([expansion.from_values(x, at.theta) for x in points]).reshape(-1, len(at.theta))
        for points in (known.pilot, known.far)
    )
    if known.residuals is None or not _as_wide(spread, (far - at.theta)[:, free]):
        return _prepared(problem, at)
    residuals = residuals_around(expansion, at.reference, pilot, far, known.residuals)
    return Preparation(at.reference, scale, pilot, far, residuals=residuals)


def _as_wide(spread: np.ndarray, moves: np.ndarray) -> bool:
    """Whether moves to `far_points` of an earlier run are far in a posterior of some spread.

    They are not where priors have changed: what the rows leave around there would say too little
    of a wider posterior, and too much of a narrower one.
    """
    z = np.array([whiten(spread, move) for move in moves[:_FAR_POINTS]])
    widths = np.abs(z).max(axis=0) / _FAR
    return bool(np.all((widths <= _ALIKE) & (widths >= 1 / _ALIKE)))


def without_digits(
    problem: Problem,
    prepared: Preparation,
    share: float = _ROUNDED,
    among: np.ndarray | None = None,
) -> np.ndarray:
    """Return elements of theta along which sums over rows have too few digits for the posterior.

    Of all that are free, or among some, given the others. Not looked at beyond the size of dense
    matrices.
    """
    free = problem.free if among is None else among
    if len(free) > MAX_DENSE or not has_precision(problem.expansion, len(problem.free)):
        return free[:0]
    matrix = Quadratic(problem.expansion, prepared.reference).precision(free)
    return free[rounded(matrix, share)] if np.all(np.isfinite(matrix)) else free[:0]


@one_thread
@doing("looking for impossible rows")
def possible(problem: Problem, prepared: Preparation) -> Preparation:
    """Leave out modes around which rows are impossible, by a pass over all rows at each.

    A batch may miss such rows for as long as a chain runs, and be wrong where they cut the
    posterior off. Around the first mode they raise `TallModelError`, which names them.
    """
    others = []
    if prepared.residuals is None:
        residuals_around(problem.expansion, prepared.reference, prepared.pilot)
    for other in prepared.others:
        try:
            residuals_around(problem.expansion, other.reference, other.pilot)
        except TallModelError:
            continue
        others.append(other)
    return replace(prepared, others=tuple(others))


def shape(
    quadratic: Quadratic, active: np.ndarray, free: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Factors of the covariance of elements `active`, for the mass matrix, and of `free`.

    The second is full, or sparse, even where the mass matrix is diagonal, as long as there is a
    matrix of second derivatives: with a diagonal, points on the ellipsoid of a correlated posterior
    would lie far outside of it.
    """
    inner = np.searchsorted(free, active)
    if not has_precision(quadratic.expansion, len(free)):
        sd = quadratic.scales(free)
        return sd[None, inner], sd[None, :]
    matrix = quadratic.precision(free)
    spread = _factor(matrix)
    own = spread if len(free) == len(active) else _factor(matrix[np.ix_(inner, inner)])
    if len(active) > MAX_DENSE and not is_sparse(own):
        own = deviations(own, len(active))[None, :]
    return own, spread


def _factor(matrix: np.ndarray) -> np.ndarray:
    found = sparse_factor(matrix) if len(matrix) > MAX_DENSE else None
    return covariance_factor(matrix) if found is None else found


def _automatic_reference(problem: Problem) -> tuple[Quadratic, ModeSearch | None]:
    """Posterior mode; in hierarchical models given the marginal mode of the hyperparameters."""
    expansion, starts, posterior = problem.expansion, problem.starts, problem.posterior
    free, rng = problem.free, problem.rng
    start = expansion.from_values(starts.initial)
    inner, outer = split_hierarchy(expansion, _off(expansion, start, free), free)
    nested = 0 < len(outer) <= MAX_OUTER and len(inner) > 0
    if not nested:
        inner = free

    def settled(at: Quadratic) -> Quadratic:
        return polish(posterior, settle(at, inner, outer), inner)

    with doing("searching the posterior mode"):
        search = find_mode if expansion.effects is None else locate
        found = search(posterior, start, inner, rng)
        found = settled(found) if nested else found
    with doing("searching other modes"):
        modes = search_modes(
            posterior, found, inner, free, starts, rng, settled if nested else None
        )
    return (found if modes is None else Quadratic(expansion, modes.modes[0])), modes


def _off(expansion: Expansion, start: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Return the start, a little moved where it may hide what the parameters do."""
    if expansion.effects is None:
        return start
    moved = start.copy()
    moved[free] += 0.1 * np.random.default_rng(0).standard_normal(len(free))
    return moved


@cache
def radius(size: int, outside: float = _OUTSIDE) -> float:
    """Radius of the ball that a standard normal vector leaves with probability `outside`."""
    return float(np.sqrt(chdtri(size, outside)))


def _ellipsoid(
    theta: np.ndarray,
    scale: np.ndarray,
    free: np.ndarray,
    rng: np.random.Generator,
    outside: float = 0.05,
) -> np.ndarray:
    """Points on the 95% ellipsoid of N(theta*, Sigma*), or another one.

    The residuals are evaluated on all rows there, so that rare outlying rows count too.
    """
    directions = rng.standard_normal((_PILOT_POINTS, len(free)))
    directions *= radius(len(free), outside) / np.linalg.norm(directions, axis=1, keepdims=True)
    thetas = np.tile(theta, (_PILOT_POINTS, 1))
    thetas[:, free] += scaled(scale, directions)
    return thetas


def far_points(
    kind: int, theta: np.ndarray, scale: np.ndarray, free: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Points where each direction of N(theta*, Sigma*) is four standard deviations out, in turn.

    A row of a small group has its own predictor a few standard deviations out there, which on an
    ellipsoid of many dimensions it hardly ever has. All directions at once would take every row
    further than the posterior does. The second half of the points are the first mirrored: rows may
    matter to one side alone. For the block-Poisson estimate points at the edge of the ellipsoid
    that it is confined to are among them.
    """
    size = len(free)
    points = min(_FAR_POINTS, size)
    z = np.zeros((points, size))
    z[rng.permutation(size) % points, np.arange(size)] = rng.choice([-_FAR, _FAR], size)
    thetas = np.tile(theta, (2 * points, 1))
    thetas[:, free] += scaled(scale, np.concatenate([z, -z]))
    if kind == BLOCK_POISSON:
        return np.concatenate([thetas, _ellipsoid(theta, scale, free, rng, _OUTSIDE)])
    return thetas
