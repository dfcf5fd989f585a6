"""Parts that several integrators share, and integrators in which they need not be named."""

from functools import partial

import numpy as np

from pymc_subsample.compiled.functions import inlined
from pymc_subsample.kernels.vectors import clear
from pymc_subsample.samplers.gradients.integrators.integrator import Integrator, LinearMap


@inlined
def nothing(rng, chain, h):
    """Do nothing before the gradient."""


@inlined
def stateless(friction, state):
    """Write zeros."""
    clear(state)


@inlined
def strongest(force):
    """Largest element of a force, by size."""
    largest = 0.0
    for a in range(force.shape[0]):
        largest = max(largest, abs(force[a]))
    return largest


@inlined
def kick_ratio(chain, h):
    """Largest kick in units of momenta."""
    return h / np.sqrt(chain.temperature) * strongest(chain.force)


@inlined
def expected_momentum(chain, h, stop, x):
    """Write where the noise of a kick goes if momenta stay as they are, or if they stop."""
    scale = np.sqrt(chain.friction * h / (2.0 * chain.temperature))
    if stop:
        noise = np.sqrt(2.0 * chain.friction * chain.temperature * h)
        scale = (chain.friction * h - 1.0) / noise
    for a in range(x.shape[0]):
        x[a] = scale * chain.momentum[a]
    return np.sqrt(2.0 * chain.temperature) * np.sqrt(chain.friction)


def map_of_momenta(matrix, own, gradient):
    """Make a `LinearMap` of its elements, which are numbers or of shape (a,)."""
    (a, b), (c, d) = matrix
    a, b, c, d, *vectors = np.broadcast_arrays(a, b, c, d, *own, *gradient)
    rows = np.stack([np.stack([a, b], axis=-1), np.stack([c, d], axis=-1)], axis=-2)
    return LinearMap(rows, np.stack(vectors[:2], axis=-1), np.stack(vectors[2:], axis=-1))


def friction_noise(h, friction, temperature):
    """Variance of the noise that friction brings in one step of Euler and Maruyama."""
    return 2 * friction * h * temperature


def as_mapped(h, friction, temperature, curvature, noise, covariance):
    """Variance of momenta where the map ends with the step."""
    return covariance[:, 1, 1]


# Unless another part is given, that of Euler and Maruyama.
_plain = partial(
    Integrator, reuses_gradient=False, options=(), start=stateless, drift=nothing, own_metric=None
)
with_momenta = partial(
    _plain, drift_ratio=kick_ratio, noise_variance=friction_noise, momentum_variance=as_mapped
)
without_momenta = partial(_plain, friction=None, momentum_variance=None)
