"""What an HMC-ECS step prepares once: reference point, mass matrix, subsample size, blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import chdtri

from pymc_subsample.blas import one_thread
from pymc_subsample.block_poisson import choose_products, log_variance
from pymc_subsample.control_variates import Expansion
from pymc_subsample.control_variates.causes import distance_to_mode, find_cause, is_far
from pymc_subsample.control_variates.curvature import MAX_DENSE, covariance_factor
from pymc_subsample.control_variates.factors import (
    deviations,
    is_sparse,
    scaled,
    sparse_factor,
)
from pymc_subsample.control_variates.hierarchy import (
    MAX_INNER,
    MAX_OUTER,
    place_outer,
    settle,
    split_hierarchy,
)
from pymc_subsample.control_variates.modes import ModeSearch, Starts, search_modes
from pymc_subsample.control_variates.reference import (
    Reference,
    precision,
    reference_at,
    scales,
)
from pymc_subsample.control_variates.residuals import Residuals, residuals_around
from pymc_subsample.control_variates.search import find_reference, has_precision, polish
from pymc_subsample.coordinates.fit import fitted, locate
from pymc_subsample.diagnostics.checks import amount, sentence
from pymc_subsample.estimators import (
    VARIANCE_BOUND,
    Moments,
    choose_n_blocks,
    choose_subsample_size,
)
from pymc_subsample.kernels.estimates import BLOCK_POISSON, PERTURBED
from pymc_subsample.kernels.model import MINIBATCH
from pymc_subsample.likelihood import TallModelError
from pymc_subsample.progress import doing

_PILOT_POINTS = 4
# Posterior probability outside the ellipsoid of the block-Poisson estimate, were it normal.
_OUTSIDE = 1e-9
_FAR_POINTS = 4
_FAR = 3.0
# Share of the rows read by an estimate, those that are read always among them.
_MOST = 0.5
# Modes in which chains start.
_MODES = 4


@dataclass(frozen=True)
class Preparation:
    """Result of the set-up, shared by all chains and never changed.

    Attributes
    ----------
    reference : Reference
        Expansion point and full-data sums.
    factor : ndarray, shape (a, a), (1, a) or (3, k)
        Of the covariance of the sampled parameters, or its diagonal.
    always : ndarray of int, shape (e,)
        Rows that every estimate reads, in order.
    moments : Moments
        Of the other rows' residuals on the 95% ellipsoid around the reference.
    subsample_size, n_blocks : int
        As given or chosen.
    search : ModeSearch or None
        What other modes were found; None where none were looked for.
    others : tuple of Preparation
        The same at other modes, in which some of the chains start.
    """

    reference: Reference
    factor: np.ndarray
    always: np.ndarray
    moments: Moments
    subsample_size: int
    n_blocks: int
    search: ModeSearch | None = None
    others: tuple["Preparation", ...] = ()

    @property
    def at_modes(self) -> tuple["Preparation", ...]:
        """At each of the modes in which chains start."""
        return self, *self.others


@one_thread
def prepare(
    expansion: Expansion,
    starts: Starts,
    active: np.ndarray,
    free: np.ndarray,
    rng: np.random.Generator,
    *,
    reference: np.ndarray | None,
    subsample_size: int | None,
    n_blocks: int | None,
    temperature: float,
    kind: int = PERTURBED,
    observed: Sequence[str] = (),
) -> Preparation:
    """Find the reference point and choose what was not given.

    Parameters
    ----------
    expansion : Expansion
        Compiled model.
    starts : Starts
        Where the search for the reference starts, and those for other modes.
    active, free : ndarray of int
        Elements of theta that the step moves, and that are continuous: other steps may move
        those, so the reference and the pilot take all of them into account.
    rng : numpy.random.Generator
        Draws subsets and pilot points.
    reference, subsample_size, n_blocks
        As given, or None. A given reference is used as it is.
    temperature : float
        Divides the log-likelihood.
    kind : {PERTURBED, BLOCK_POISSON}
        The estimate.
    observed : sequence of str
        Names of the subsampled variables, for messages.

    Raises
    ------
    TallModelError
        If the subsample size is left open and as many rows as the data have are too few.
    """
    search = None
    if reference is None:
        found, search = _automatic_reference(expansion, starts, free, rng, temperature)
    else:
        found = reference_at(expansion, reference, temperature)
        if expansion.coordinates is not None:
            found = fitted(expansion, found)

    @doing("choosing the subsample")
    def prepared(at: Reference) -> Preparation:
        scale, spread = _shape(expansion, at, active, free)
        pilot = _ellipsoid(at.theta, spread, free, rng)
        far = far_points(kind, at.theta, spread, free, rng)
        residuals = residuals_around(expansion, at, pilot, far)
        always, moments = choose_always(kind, residuals, temperature, subsample_size)
        m, blocks = choose_subsample(kind, moments, temperature, subsample_size, n_blocks)
        if subsample_size is None:
            # Where most rows would be read, or the reference may be far off, what counts is whether
            # all of them are enough.
            given = reference is not None
            most = len(always) + m > _MOST * residuals.n_rows
            judged = residuals.moments() if most or given else moments
            if not np.max(judged.variance(judged.n_rows, temperature)) <= VARIANCE_BOUND:
                causes = _causes(expansion, at, spread, free, starts.blocks, given, rng)
                raise TallModelError(
                    _useless(judged, temperature, expansion, observed, causes, given)
                )
            if kind == BLOCK_POISSON and choose_products(judged, temperature) is None:
                raise TallModelError(_no_products(judged, temperature, observed))
        return Preparation(at, scale, always, moments, m, blocks, search)

    first = prepared(found)
    others = []
    for mode in search.modes[1:_MODES] if search else ():
        at = mode if expansion.coordinates is None else fitted(expansion, mode)
        try:
            others.append(prepared(at))
        except TallModelError:  # some likely parameters there make the data impossible
            continue
    return replace(first, others=tuple(others))


def _shape(expansion, reference, active, free) -> tuple[np.ndarray, np.ndarray]:
    """Factors of the covariance of elements `active`, for the mass matrix, and of `free`.

    The second is full, or sparse, even where the mass matrix is diagonal, as long as there is a
    matrix of second derivatives: with a diagonal, points on the ellipsoid of a correlated posterior
    would lie far outside of it.
    """
    inner = np.searchsorted(free, active)
    if not has_precision(expansion, len(free)):
        sd = scales(expansion, reference, free)
        return sd[None, inner], sd[None, :]
    matrix = precision(expansion, reference, free)
    spread = _factor(matrix)
    own = spread if len(free) == len(active) else _factor(matrix[np.ix_(inner, inner)])
    if len(active) > MAX_DENSE and not is_sparse(own):
        own = deviations(own, len(active))[None, :]
    return own, spread


def _factor(matrix: np.ndarray) -> np.ndarray:
    found = sparse_factor(matrix) if len(matrix) > MAX_DENSE else None
    return covariance_factor(matrix) if found is None else found


def _automatic_reference(
    expansion, starts, free, rng, temperature
) -> tuple[Reference, ModeSearch | None]:
    """Posterior mode; in hierarchical models given the marginal mode of the hyperparameters."""
    start = expansion.from_values(starts.initial)
    inner, outer = split_hierarchy(expansion, _off(expansion, start, free), free)
    nested = 0 < len(outer) <= MAX_OUTER and len(inner) > 0
    if not nested:
        inner = free

    def settled(found: Reference) -> Reference:
        if len(inner) <= MAX_INNER:
            theta = settle(expansion, found, inner, outer)
        else:
            theta = place_outer(expansion, found, outer)
        return polish(expansion, theta, inner, temperature)

    with doing("searching the posterior mode"):
        if expansion.coordinates is None:
            found = find_reference(expansion, start, inner, rng, temperature)
        else:
            found = locate(expansion, start, inner, rng, temperature)
        found = settled(found) if nested else found
    with doing("searching other modes"):
        search = search_modes(
            expansion, found, inner, free, starts, rng, temperature, settled if nested else None
        )
    return (found if search is None else search.modes[0]), search


def _off(expansion, start, free) -> np.ndarray:
    """Return the start, a little moved where it may hide what the parameters do."""
    if expansion.coordinates is None:
        return start
    moved = start.copy()
    moved[free] += 0.1 * np.random.default_rng(0).standard_normal(len(free))
    return moved


def choose_always(
    kind: int, residuals: Residuals, temperature: float, m: int | None
) -> tuple[np.ndarray, Moments]:
    """Choose the rows to read always, where the subsample is the perturbed estimate's own choice.

    Returns their numbers, in order, and the moments of the others.
    """
    always = np.zeros(0, dtype=np.int64)
    if kind == PERTURBED and m is None:
        always = residuals.choose_always(temperature)
    return always, residuals.moments(len(always))


def choose_subsample(
    kind: int, moments: Moments, temperature: float, m: int | None, n_blocks: int | None
) -> tuple[int, int]:
    """Choose the size of the subsample and its number of blocks, where they are None."""
    unit = n_blocks or 10
    if kind == BLOCK_POISSON:
        # Counted in minibatches, of which a few need no more blocks than there are.
        size, most = MINIBATCH, max(moments.n_rows // MINIBATCH, 1)
        chosen = m // MINIBATCH if m else choose_products(moments, temperature) or most
        unit = unit if n_blocks or chosen >= unit else 1
    else:
        chosen, size, most = m or choose_subsample_size(moments, temperature), 1, moments.n_rows
    if m is None:
        chosen = max(unit, min(-(-chosen // unit) * unit, most // unit * unit))
    if n_blocks is None:
        variance = predicted_variance(kind, moments, size * chosen, temperature)
        n_blocks = choose_n_blocks(chosen, variance)
    return size * chosen, n_blocks


def predicted_variance(kind: int, moments: Moments, m: int, temperature: float) -> float:
    """Variance of the logarithm of an estimate from m rows, at the worst of the points."""
    if kind == PERTURBED:
        return float(np.max(moments.variance(m, temperature)))
    sd = float(np.sqrt(np.max(moments.variance(MINIBATCH, temperature))))
    return log_variance(m / MINIBATCH, sd) if np.isfinite(sd) else np.inf


def _causes(expansion, at, spread, free, blocks, given: bool, rng) -> list[str]:
    """Say why the expansion leaves too much, as was measured."""
    causes = [f"control_variate_order={expansion.order} is too low"] if expansion.raisable else []
    if expansion.highest_order < 2:
        size = expansion.phi_size
        causes += [
            f"its {size:,} parameters, too many for control_variate_order=2, need more rows than "
            f"there are (about {size**2 // 2:,} where each is informed by all of them)"
        ]
    away = distance_to_mode(expansion, at, spread, free) if given else 0.0
    if is_far(away):
        causes += [
            f"the given reference is far from the posterior mode, by about {amount(away)} standard "
            "deviations in each parameter as the curvature there has them"
        ]
    found = None if causes else find_cause(expansion, at, spread, free, blocks, rng)
    return causes if found is None else [str(found)]


def _useless(
    moments: Moments,
    temperature: float,
    expansion: Expansion,
    observed: Sequence[str],
    causes: list[str],
    given: bool,
) -> str:
    """Say that control variates help so little that no subsample is large enough.

    A kink hides the curvature of the log-likelihood from its expansion, whose mass matrix is then
    as wide as the prior: that run would read all rows at each of very many steps, in vain.
    """
    n = moments.n_rows
    variance = float(np.max(moments.variance(n, temperature)))
    advice = ["use control_variate_order=2"] if expansion.raisable else []
    advice += ["leave reference=None"] if given else []
    why = f" Measured: {'; '.join(causes)}." if causes else ""
    return (
        f"The log-likelihood of {', '.join(map(repr, observed))} cannot be expanded well enough to "
        f"subsample its rows: even {n:,} rows per draw, as many as there are, leave the estimate a "
        f"variance of {amount(variance)} (should be at most {VARIANCE_BOUND:g}).{why} "
        + sentence([*advice, "sample this model with pm.NUTS or nutpie"])
    )


def _no_products(moments: Moments, temperature: float, observed: Sequence[str]) -> str:
    """Say that there are too few rows for the block-Poisson estimate, but not for the other."""
    n = moments.n_rows
    variance = predicted_variance(
        BLOCK_POISSON, moments, max(n // MINIBATCH, 1) * MINIBATCH, temperature
    )
    return (
        f"No subsample of the {n:,} rows of {', '.join(map(repr, observed))} is large enough for "
        "the block-Poisson estimate: even with as many as there are, its logarithm has a variance "
        f"of {amount(variance)} (should be at most {VARIANCE_BOUND:g}), or a single row or a point "
        'at the edge of what is sampled may turn its sign. Use estimator="perturbed", or sample '
        "this model with pm.NUTS or nutpie."
    )


def radius(size: int, outside: float = _OUTSIDE) -> float:
    """Radius of the ball that a standard normal vector leaves with probability `outside`."""
    return float(np.sqrt(chdtri(size, outside)))


def _ellipsoid(theta, scale, free, rng, outside=0.05) -> np.ndarray:
    """Points on the 95% ellipsoid of N(theta*, Sigma*), or another one.

    The residuals are evaluated on all rows there, so that rare outlying rows count too.
    """
    directions = rng.standard_normal((_PILOT_POINTS, len(free)))
    directions *= radius(len(free), outside) / np.linalg.norm(directions, axis=1, keepdims=True)
    thetas = np.tile(theta, (_PILOT_POINTS, 1))
    thetas[:, free] += scaled(scale, directions)
    return thetas


def far_points(kind, theta, scale, free, rng) -> np.ndarray:
    """Points where each direction of N(theta*, Sigma*) is three standard deviations out, in turn.

    A row of a small group has its own predictor a few standard deviations out there, which on an
    ellipsoid of many dimensions it hardly ever has. All directions at once would take every row
    further than the posterior does. For the block-Poisson estimate points at the edge of the
    ellipsoid that it is confined to are among them.
    """
    size = len(free)
    points = min(_FAR_POINTS, size)
    z = np.zeros((points, size))
    z[rng.permutation(size) % points, np.arange(size)] = rng.choice([-_FAR, _FAR], size)
    thetas = np.tile(theta, (points, 1))
    thetas[:, free] += scaled(scale, z)
    if kind == BLOCK_POISSON:
        return np.concatenate([thetas, _ellipsoid(theta, scale, free, rng, _OUTSIDE)])
    return thetas
