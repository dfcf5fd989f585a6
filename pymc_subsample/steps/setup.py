"""What an HMC-ECS step prepares once: reference point, mass matrix, subsample size, blocks."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri

from pymc_subsample.blas import one_thread
from pymc_subsample.block_poisson import choose_products, log_variance
from pymc_subsample.control_variates import Expansion
from pymc_subsample.control_variates.curvature import covariance
from pymc_subsample.control_variates.hierarchy import (
    MAX_INNER,
    MAX_OUTER,
    place_outer,
    settle,
    split_hierarchy,
)
from pymc_subsample.control_variates.modes import EQUAL, MAX_PARAMETERS, other_mode
from pymc_subsample.control_variates.reference import (
    Reference,
    factor,
    log_posterior,
    precision,
    reference_at,
    residual_moments,
    scales,
)
from pymc_subsample.control_variates.search import find_reference, has_precision, polish
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

_log = logging.getLogger("pymc.subsample")

_PILOT_POINTS = 4
# Posterior probability outside the ellipsoid of the block-Poisson estimate, were it normal.
_OUTSIDE = 1e-9
_FAR_POINTS = 4
_FAR = 3.0


@dataclass(frozen=True)
class Preparation:
    """Result of the set-up, shared by all chains and never changed.

    Attributes
    ----------
    reference : Reference
        Expansion point and full-data sums.
    factor : ndarray, shape (a, a) or (1, a)
        Of the covariance of the sampled parameters, or its diagonal.
    moments : Moments
        Of the residuals on the 95% ellipsoid around the reference.
    subsample_size, n_blocks : int
        As given or chosen.
    other_mode : ndarray, shape (d,), or None
        Another mode of the posterior, about as high, where one was found.
    """

    reference: Reference
    factor: np.ndarray
    moments: Moments
    subsample_size: int
    n_blocks: int
    other_mode: np.ndarray | None


@one_thread
def prepare(
    expansion: Expansion,
    start: np.ndarray,
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
    start : ndarray, shape (d,)
        Where the search for the reference starts.
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
    other = None
    if reference is None:
        found, other = _automatic_reference(expansion, start, free, rng, temperature)
    else:
        found = reference_at(expansion, reference, temperature)
    scale, spread = _shape(expansion, found, active, free)
    pilot = _ellipsoid(found.theta, spread, free, rng)
    far = far_points(kind, found.theta, spread, free, rng)
    moments = residual_moments(expansion, found, pilot, far)
    if subsample_size is None:
        _refuse_useless(
            kind, moments, temperature, expansion, reference is not None, observed, len(free)
        )
    m, n_blocks = choose_subsample(kind, moments, temperature, subsample_size, n_blocks)
    return Preparation(found, scale, moments, m, n_blocks, other)


def _shape(expansion, reference, active, free) -> tuple[np.ndarray, np.ndarray]:
    """Factors of the covariance of elements `active`, for the mass matrix, and of `free`.

    The second is full even where the mass matrix is diagonal, as long as there is a matrix of
    second derivatives: with a diagonal, points on the ellipsoid of a correlated posterior would
    lie far outside of it.
    """
    inner = np.searchsorted(free, active)
    if not has_precision(expansion, len(free)):
        sd = scales(expansion, reference, free)
        return sd[None, inner], sd[None, :]
    matrix = precision(expansion, reference, free)
    everything = covariance(matrix)
    spread = np.linalg.cholesky(everything)
    if len(free) == len(active):
        return factor(everything), spread
    return factor(covariance(matrix[np.ix_(inner, inner)])), spread


def _automatic_reference(
    expansion, start, free, rng, temperature
) -> tuple[Reference, np.ndarray | None]:
    """Posterior mode; in hierarchical models given the marginal mode of the hyperparameters.

    The second result is another mode, about as high; where it is higher the two change places.
    """
    inner, outer = split_hierarchy(expansion, start, free)
    nested = 0 < len(outer) <= MAX_OUTER and len(inner) > 0
    if not nested:
        inner = free
    found = find_reference(expansion, start, inner, rng, temperature)
    other = None
    if 0 < len(inner) <= MAX_PARAMETERS:
        scale = np.sqrt(np.diag(covariance(precision(expansion, found, inner))))
        other = other_mode(expansion, found, start, inner, scale, rng, temperature)
    second = None if other is None else other.theta
    if other is not None:
        higher = log_posterior(expansion, other) - log_posterior(expansion, found)
        if higher > 0:
            found, second = other, found.theta if higher < EQUAL else None
    if nested:
        if len(inner) <= MAX_INNER:
            theta = settle(expansion, found, inner, outer)
        else:
            theta = place_outer(expansion, found, outer)
        found = polish(expansion, theta, inner, temperature)
    return found, second


def warn_of_modes(step: str, prepared: Preparation, read: Sequence[tuple[str, slice]]):
    """Say so where another mode is about as high; `read` are the variables and their places."""
    if prepared.other_mode is None:
        return
    here, there = prepared.reference.theta, prepared.other_mode
    names = [
        name for name, part in read if not np.allclose(here[part], there[part], rtol=0.1, atol=0.1)
    ]
    _log.warning(
        f"{step}: the posterior has at least two modes, about equally high, that differ in "
        f"{', '.join(names)}. All chains explore the same one. If the model is symmetric there, "
        "restrict it to one mode (a sign, an order); otherwise use another sampler."
    )


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


def _refuse_useless(
    kind: int,
    moments: Moments,
    temperature: float,
    expansion: Expansion,
    given_reference: bool,
    observed: Sequence[str],
    n_parameters: int,
):
    """Raise if control variates help so little that no subsample is large enough.

    A kink hides the curvature of the log-likelihood from its expansion, whose mass matrix is then
    as wide as the prior: that run would read all rows at each of very many steps, in vain.
    """
    n = moments.n_rows
    variance = float(np.max(moments.variance(n, temperature)))
    if variance <= VARIANCE_BOUND:
        if kind == BLOCK_POISSON and choose_products(moments, temperature) is None:
            raise TallModelError(_no_products(moments, temperature, observed))
        return
    causes = [f"control_variate_order={expansion.order} is too low"] if expansion.raisable else []
    if expansion.highest_order < 2:
        size = expansion.phi_size
        causes += [
            f"its {size:,} parameters, too many for control_variate_order=2, need more rows than "
            f"there are (about {size**2 // 2:,} where each is informed by all of them)"
        ]
    causes += ["the given reference is far from the posterior mode"] if given_reference else []
    causes += [
        "it is not smooth in the parameters (it has a step, or a kink like Laplace's)",
        f"there are too few rows ({n:,}) for its parameters ({n_parameters})",
    ]
    advice = ["use control_variate_order=2"] if expansion.raisable else []
    advice += ["leave reference=None"] if given_reference else []
    raise TallModelError(
        f"The log-likelihood of {', '.join(map(repr, observed))} cannot be expanded well enough to "
        f"subsample its rows: even {n:,} rows per draw, as many as there are, leave the estimate a "
        f"variance of {amount(variance)} (should be at most {VARIANCE_BOUND:g}). Either "
        f"{', or '.join(causes)}. "
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


@one_thread
def scaled(scale: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Multiply standard normal vectors, shape (..., a), by a factor or a diagonal."""
    return z * scale[0] if len(scale) == 1 and z.shape[-1] > 1 else z @ scale.T
