"""What an HMC-ECS step prepares once: reference point, mass matrix, subsample size, blocks."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

from pymc_subsample.control_variates import Expansion
from pymc_subsample.control_variates.reference import (
    Reference,
    covariance,
    factor,
    find_reference,
    precision,
    reference_at,
    residual_moments,
)
from pymc_subsample.estimators import Moments, choose_n_blocks, choose_subsample_size

_PILOT_POINTS = 4
_PILOT_RADIUS = 0.95


@dataclass(frozen=True)
class Preparation:
    """Result of the set-up, shared by all chains and never changed."""

    reference: Reference
    factor: np.ndarray
    moments: Moments
    subsample_size: int
    n_blocks: int


def prepare(
    expansion: Expansion,
    start: np.ndarray,
    active: np.ndarray,
    rng: np.random.Generator,
    *,
    reference: np.ndarray | None,
    subsample_size: int | None,
    n_blocks: int | None,
    temperature: float,
) -> Preparation:
    """Find the reference point and choose what was not given.

    The residuals are evaluated on all rows at four points on the 95% ellipsoid of the normal
    approximation around the reference, so that rare outlying rows count too.
    """
    if reference is None:
        found = find_reference(expansion, start, active, rng, temperature)
    else:
        found = reference_at(expansion, reference, temperature)
    scale = factor(covariance(precision(expansion, found, active)))
    moments = pilot_moments(expansion, found, scale, active, rng)
    m = subsample_size or choose_subsample_size(moments, temperature)
    variance = float(np.max(moments.variance(m, temperature)))
    if n_blocks is None:
        n_blocks = choose_n_blocks(m, variance)
        if subsample_size is None and m % 10:
            m += 10 - m % 10
            n_blocks = choose_n_blocks(m, variance)
    elif subsample_size is None:
        m = -(-m // n_blocks) * n_blocks
    return Preparation(found, scale, moments, m, n_blocks)


def pilot_moments(
    expansion: Expansion,
    reference: Reference,
    scale: np.ndarray,
    active: np.ndarray,
    rng: np.random.Generator,
) -> Moments:
    """Moments of the residuals on the 95% ellipsoid of N(theta*, Sigma*)."""
    directions = rng.standard_normal((_PILOT_POINTS, len(active)))
    directions *= np.sqrt(chi2.ppf(_PILOT_RADIUS, len(active))) / np.linalg.norm(
        directions, axis=1, keepdims=True
    )
    thetas = np.tile(reference.theta, (_PILOT_POINTS, 1))
    thetas[:, active] += scaled(scale, directions)
    return residual_moments(expansion, reference, thetas)


def scaled(scale: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Multiply standard normal vectors, shape (..., a), by a factor or a diagonal."""
    return z * scale[0] if len(scale) == 1 and z.shape[-1] > 1 else z @ scale.T
