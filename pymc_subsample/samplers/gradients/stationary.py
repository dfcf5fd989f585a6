r"""Where Langevin dynamics on stochastic gradients end up: stationary variances, exact for normals.

Along a direction in which the posterior is normal with precision :math:`\kappa` and the gradient
has variance c, a step of an `Integrator` is a linear map M of position and momentum, if there is
any, plus independent noise of covariance Q; their covariance V solves :math:`V = M V M^\top + Q`.
Without noise in the gradient and at step size zero, :math:`V_{zz} = T / \kappa` and
:math:`V_{rr} = T`.
"""

import numpy as np
from scipy.optimize import brentq

from pymc_subsample.samplers.gradients.integrators.integrator import Integrator, LinearMap

# Largest predicted error of a standard deviation that an automatic step size allows. A choice,
# under half of what checks tolerate (`STRETCH_BOUND`): the prediction is for normals.
TOLERATED = 0.02
_STEPS = 0.5 * 1.1 ** -np.arange(300)  # Tried, of what is stable; a choice: 10% apart.
# Directions that a choice looks at: evenly spread ones by noise and by curvature. A choice: the
# extremes and what lies between.
_DIRECTIONS = 32


@np.errstate(all="ignore")
def variances(
    integrator: Integrator,
    step_size: float,
    friction: float,
    temperature: float,
    curvature: np.ndarray,
    noise: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    r"""Stationary variances of positions and momenta, shape (a,), of directions of a posterior.

    `curvature` and `noise`, shape (a,), are :math:`\kappa` and c of each direction; `friction` is
    :math:`\gamma`, where it is adapted that of the noise alone. Infinite where a step size is too
    large to be stable; the momentum's are NaN where there are none.
    """
    curvature, noise = np.broadcast_arrays(*map(np.atleast_1d, (curvature, noise)))
    h = np.float64(step_size)  # whose square may be infinite

    def solved(damping: float) -> tuple[np.ndarray, np.ndarray]:
        step = integrator.linear_map(h, damping, curvature)
        covariance = integrator.noise_variance(h, friction, temperature) * _outer(step.own)
        covariance = covariance + noise[:, None, None] * _outer(step.gradient)
        found, stable = _stationary(step, covariance)
        position, momentum = found[:, 0, 0], np.full(curvature.shape, np.nan)
        if integrator.momentum_variance is not None:
            momentum = integrator.momentum_variance(
                h, damping, temperature, curvature, noise, found
            )
            momentum = np.where(stable, momentum, np.inf)
        return np.where(stable, position, np.inf), momentum

    if integrator.friction != "adapted":
        return solved(friction)

    if not h:
        return solved(np.inf)

    def excess(damping: float) -> float:
        return float(np.mean(solved(damping)[1])) - temperature

    most = 1.9 / h  # beyond 2 / h velocities grow
    damping = friction + h * float(np.mean(noise)) / (2 * temperature)
    # A choice: within a factor of four of what the noise alone would have.
    low, high = (float(np.clip(damping * factor, 0.0, most)) for factor in (0.25, 4.0))
    if not np.inf > excess(low) > 0 > excess(high):
        return solved(np.inf)
    return solved(float(brentq(excess, low, high)))


@np.errstate(all="ignore")
def autocorrelation_time(
    integrator: Integrator, step_size: float, friction: float, curvature: np.ndarray
) -> float:
    """Integration steps per independent position, of the slowest direction."""
    curvature, step_size = np.atleast_1d(curvature), np.float64(step_size)
    rate = np.max(_rates(integrator.linear_map(step_size, friction, curvature)))
    return float((1 + rate) / (1 - rate)) if rate < 1 else np.inf


def sd_error(variance: np.ndarray, temperature: float, curvature: np.ndarray) -> np.ndarray:
    """Relative error of standard deviations, shape (a,)."""
    return np.sqrt(variance * curvature / temperature) - 1


def choose_step_size(
    integrator: Integrator, friction: float, curvature: np.ndarray, noise: np.ndarray
) -> float:
    """Return the largest h with standard deviations off by at most 2%.

    h is at most half the reciprocal of the largest curvature, or of its root where there are
    momenta.
    """
    every = np.linspace(0, len(noise) - 1, _DIRECTIONS).astype(int)
    chosen = np.unique([np.argsort(noise)[every], np.argsort(curvature)[every]])
    curvature, noise = curvature[chosen], noise[chosen]
    power = 0.5 if integrator.has_momenta else 1.0
    steps = np.max(curvature) ** -power * _STEPS
    for h in steps:
        position, _ = variances(integrator, h, friction, 1.0, curvature, noise)
        if np.max(np.abs(sd_error(position, 1.0, curvature))) <= TOLERATED:
            return float(h)
    return float(steps[-1])


def _rates(step: LinearMap) -> np.ndarray:
    """Largest absolute eigenvalue of each matrix, shape (a,)."""
    if step.matrix.shape[1] == 1:
        return np.abs(step.matrix[:, 0, 0])
    if not np.isfinite(step.matrix).all():
        return np.full(len(step.matrix), np.inf)
    return np.max(np.abs(np.linalg.eigvals(step.matrix)), axis=1)


def _stationary(step: LinearMap, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Solve V = M V M' + Q: V, shape (a, k, k), and where there is one, shape (a,)."""
    matrix, stable = step.matrix, _rates(step) < 1
    size, k = matrix.shape[:2]
    if k == 1:
        return covariance / (1 - matrix**2), stable
    left = np.eye(k**2) - np.einsum("aij,akl->aikjl", matrix, matrix).reshape(size, k**2, k**2)
    left[~stable] = np.eye(k**2)
    solution = np.linalg.solve(left, covariance.reshape(size, k**2, 1))
    return solution.reshape(size, k, k), stable


def _outer(vector: np.ndarray) -> np.ndarray:
    return vector[:, :, None] * vector[:, None, :]


def spectrum(
    precision: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return curvature and noise of the gradient along the posterior's principal directions.

    Both precision and noise are matrices, shape (a, a), or diagonals, (a,). And the directions,
    columns of an (a, a) matrix; None where they are those of the elements.
    """
    if precision.ndim == 1 and noise.ndim == 1:
        return precision, noise, None
    if noise.ndim == 1:
        noise = np.diag(noise)
    if precision.ndim == 1 and np.ptp(precision) == 0:
        return precision, np.maximum(np.linalg.eigvalsh(noise), 0.0), None
    if precision.ndim == 1:
        return precision, np.diag(noise), None
    curvature, directions = np.linalg.eigh(precision)
    curvature = np.maximum(curvature, 1e-12 * curvature[-1])  # ten thousand times rounding
    return curvature, np.einsum("ij,ik,kj->j", directions, noise, directions), directions


def rescaled(matrix: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return a matrix, shape (a, a), or its diagonal in coordinates stretched by `scale`, (a,)."""
    return matrix * scale**2 if matrix.ndim == 1 else matrix * scale * scale[:, None]
