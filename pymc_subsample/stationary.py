r"""Where Langevin dynamics on stochastic gradients end up: stationary variances, exact for normals.

Along a direction in which the posterior is normal with precision :math:`\kappa` and the gradient
has variance c, an integration step of `kernels.langevin` is a linear map M of position and
momentum plus independent noise of covariance Q; their covariance V solves
:math:`V = M V M^\top + Q`. Without noise in the gradient and at step size zero,
:math:`V_{zz} = T / \kappa` and :math:`V_{rr} = T`.
"""

import numpy as np
from scipy.optimize import brentq

from pymc_subsample.kernels.langevin import (
    BAOAB,
    EULER,
    OVERDAMPED,
    PRECONDITIONED,
    SYMPLECTIC,
    THERMOSTAT,
)

# Largest predicted error of a standard deviation that an automatic step size allows.
TOLERATED = 0.02
_STEPS = 0.5 * 1.1 ** -np.arange(300)
# Directions that a choice looks at: evenly spread ones by noise and by curvature.
_DIRECTIONS = 32


@np.errstate(all="ignore")
def variances(
    dynamics: int,
    step_size: float,
    friction: float,
    temperature: float,
    curvature: np.ndarray,
    noise: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    r"""Stationary variances of positions and momenta.

    Parameters
    ----------
    dynamics : int
        Of `kernels.langevin`.
    step_size : float
        h.
    friction, temperature : float
        :math:`\gamma` (for a thermostat the amplitude of its noise) and T.
    curvature, noise : ndarray, shape (a,)
        :math:`\kappa` and c of each direction.

    Returns
    -------
    position, momentum : ndarray, shape (a,)
        Infinite where a step size is too large to be stable; the momentum's are NaN for dynamics
        without any.
    """
    curvature, noise = np.broadcast_arrays(*map(np.atleast_1d, (curvature, noise)))
    h = np.float64(step_size)  # whose square may be infinite
    if dynamics in (OVERDAMPED, PRECONDITIONED):
        contraction = 1 - h * curvature
        variance = (2 * h * temperature + h**2 * noise) / (1 - contraction**2)
        stable = np.abs(contraction) < 1
        return np.where(stable, variance, np.inf), np.full(curvature.shape, np.nan)
    amplitude = 2 * friction * h * temperature
    if dynamics == BAOAB:
        amplitude = (1 - np.exp(-2 * friction * h)) * temperature

    def solved(damping: float) -> tuple[np.ndarray, np.ndarray]:
        return _solve(dynamics, h, damping, amplitude, curvature, noise)

    if dynamics != THERMOSTAT:
        return solved(friction)

    if not h:
        return solved(np.inf)

    def excess(damping: float) -> float:
        return float(np.mean(solved(damping)[1])) - temperature

    most = 1.9 / h
    damping = friction + h * float(np.mean(noise)) / (2 * temperature)
    low, high = (float(np.clip(damping * factor, 0.0, most)) for factor in (0.25, 4.0))
    if not np.inf > excess(low) > 0 > excess(high):
        return solved(np.inf)
    return solved(float(brentq(excess, low, high)))


@np.errstate(all="ignore")
def autocorrelation_time(
    dynamics: int, step_size: float, friction: float, curvature: np.ndarray
) -> float:
    """Integration steps per independent position, of the slowest direction."""
    curvature, step_size = np.atleast_1d(curvature), np.float64(step_size)
    if dynamics in (OVERDAMPED, PRECONDITIONED):
        rate = np.max(np.abs(1 - step_size * curvature))
    else:
        matrix = _step(dynamics, step_size, friction, curvature)[0]
        if not np.isfinite(matrix).all():
            return np.inf
        rate = np.max(np.abs(np.linalg.eigvals(matrix)))
    return float((1 + rate) / (1 - rate)) if rate < 1 else np.inf


def sd_error(variance: np.ndarray, temperature: float, curvature: np.ndarray) -> np.ndarray:
    """Relative error of standard deviations, shape (a,)."""
    return np.sqrt(variance * curvature / temperature) - 1


def choose_step_size(
    dynamics: int, friction: float, curvature: np.ndarray, noise: np.ndarray
) -> float:
    """Return the largest h with standard deviations off by at most 2%.

    h is at most half the reciprocal of the largest curvature, or of its root where there are
    momenta.
    """
    every = np.linspace(0, len(noise) - 1, _DIRECTIONS).astype(int)
    chosen = np.unique([np.argsort(noise)[every], np.argsort(curvature)[every]])
    curvature, noise = curvature[chosen], noise[chosen]
    power = 1.0 if dynamics in (OVERDAMPED, PRECONDITIONED) else 0.5
    steps = np.max(curvature) ** -power * _STEPS
    for h in steps:
        position, _ = variances(dynamics, h, friction, 1.0, curvature, noise)
        if np.max(np.abs(sd_error(position, 1.0, curvature))) <= TOLERATED:
            return float(h)
    return float(steps[-1])


def _step(dynamics: int, h: float, friction: float, curvature: np.ndarray):
    """M, shape (a, 2, 2), and where noise of dynamics and of gradients enters."""
    one, zero = np.ones_like(curvature), np.zeros_like(curvature)
    pull = -h * curvature
    keep = (1 - friction * h) * one
    if dynamics == EULER:
        return _matrix(one, h * one, pull, keep), (zero, one), (zero, h * one)
    if dynamics == SYMPLECTIC:
        return _matrix(one, h * one, pull, keep + h * pull), (zero, one), (zero, h * one)
    if dynamics == THERMOSTAT:
        matrix = _matrix(one + h * pull, h * keep, pull, keep)
        return matrix, (h * one, one), (h**2 * one, h * one)
    decay = np.exp(-friction * h) * one
    half = h / 2 * (1 + decay)
    # A full kick, half a move, friction, half a move, seen in the middle of the kick.
    matrix = _matrix(one + half * pull, half, decay * pull, decay)
    return matrix, (h / 2 * one, one), (h * half, h * decay)


def _solve(
    dynamics: int,
    h: float,
    friction: float,
    amplitude: float,
    curvature: np.ndarray,
    noise: np.ndarray,
):
    matrix, own, gradient = _step(dynamics, h, friction, curvature)
    covariance = amplitude * _outer(own) + noise[:, None, None] * _outer(gradient)
    if not np.isfinite(matrix).all():
        unstable = np.full(len(curvature), np.inf)
        return unstable, unstable
    stable = np.max(np.abs(np.linalg.eigvals(matrix)), axis=1) < 1
    size = len(curvature)
    left = np.eye(4) - np.einsum("aij,akl->aikjl", matrix, matrix).reshape(size, 4, 4)
    left[~stable] = np.eye(4)
    found = np.linalg.solve(left, covariance.reshape(size, 4, 1)).reshape(size, 2, 2)
    position, momentum = found[:, 0, 0], found[:, 1, 1]
    if dynamics == BAOAB:  # after half a kick
        momentum = momentum - h * curvature * found[:, 0, 1]
        momentum = momentum + (h / 2) ** 2 * (curvature**2 * position + noise)
    return np.where(stable, position, np.inf), np.where(stable, momentum, np.inf)


def _matrix(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray):
    return np.stack([np.stack([a, b], axis=-1), np.stack([c, d], axis=-1)], axis=-2)


def _outer(vector: tuple[np.ndarray, np.ndarray]):
    v = np.stack(vector, axis=-1)
    return v[:, :, None] * v[:, None, :]


def spectrum(precision: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return curvature and noise of the gradient along the posterior's principal directions.

    Parameters
    ----------
    precision, noise : ndarray, shape (a, a) or (a,)
        Of the posterior, and covariance of the gradient; vectors are diagonals.
    """
    if precision.ndim == 1 and noise.ndim == 1:
        return precision, noise
    if noise.ndim == 1:
        noise = np.diag(noise)
    if precision.ndim == 1 and np.ptp(precision) == 0:
        return precision, np.maximum(np.linalg.eigvalsh(noise), 0.0)
    if precision.ndim == 1:
        return precision, np.diag(noise)
    curvature, directions = np.linalg.eigh(precision)
    curvature = np.maximum(curvature, 1e-12 * curvature[-1])
    return curvature, np.einsum("ij,ik,kj->j", directions, noise, directions)


def rescaled(matrix: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return a matrix, shape (a, a), or its diagonal in coordinates stretched by `scale`, (a,)."""
    return matrix * scale**2 if matrix.ndim == 1 else matrix * scale * scale[:, None]
