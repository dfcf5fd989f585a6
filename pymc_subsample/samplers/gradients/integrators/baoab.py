r"""A splitting of underdamped Langevin dynamics, "baoab".

Half a kick, half a move, an exact step of the Ornstein-Uhlenbeck process,

.. math:: r' = c r + \sqrt{(1 - c^2) T}\, \xi, \quad c = e^{-\gamma h},

half a move, half a kick. Positions of a normal posterior have its variance at any step size.

References
----------
B. Leimkuhler and C. Matthews (2013). Rational construction of stochastic numerical methods for
molecular sampling. Applied Mathematics Research eXpress 2013(1).
"""

import numpy as np

from pymc_subsample.compiled.functions import inlined
from pymc_subsample.samplers.gradients.integrators.integrator import shift
from pymc_subsample.samplers.gradients.integrators.shared import map_of_momenta, with_momenta


@inlined
def drift(rng, chain, h):
    """Half a kick, half a move, friction, half a move."""
    momentum = chain.momentum
    decay = np.exp(-chain.friction * h)
    noise = np.sqrt((1.0 - decay * decay) * chain.temperature)
    for a in range(momentum.shape[0]):
        half = momentum[a] + 0.5 * h * chain.force[a]
        momentum[a] = decay * half + noise * rng.standard_normal()
        chain.change[a] = 0.5 * h * (half + momentum[a])
    shift(chain)


@inlined
def kick(rng, chain, h):
    """Half a kick."""
    for a in range(chain.momentum.shape[0]):
        chain.momentum[a] += 0.5 * h * chain.force[a]


def linear_map(h, friction, curvature):
    """Kick, half a move, friction, half a move: a step from the middle of one kick to the next."""
    pull, decay = -h * curvature, np.exp(-friction * h)
    half = h / 2 * (1 + decay)
    return map_of_momenta(
        ((1 + half * pull, half), (decay * pull, decay)), (h / 2, 1), (h * half, h * decay)
    )


def noise_variance(h, friction, temperature):
    """Variance of the Ornstein-Uhlenbeck step."""
    return (1 - np.exp(-2 * friction * h)) * temperature


def momentum_variance(h, friction, temperature, curvature, noise, covariance):
    """Variance after the half of the kick that is left."""
    position, momentum = covariance[:, 0, 0], covariance[:, 1, 1]
    momentum = momentum - h * curvature * covariance[:, 0, 1]
    return momentum + (h / 2) ** 2 * (curvature**2 * position + noise)


INTEGRATOR = with_momenta(
    name="baoab",
    friction="given",
    reuses_gradient=True,
    drift=drift,
    kick=kick,
    expectation="it adds its noise between two half kicks of the gradient",
    linear_map=linear_map,
    noise_variance=noise_variance,
    momentum_variance=momentum_variance,
)
