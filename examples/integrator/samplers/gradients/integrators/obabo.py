r"""A splitting of underdamped Langevin dynamics around the leapfrog step, "obabo".

.. math:: r \leftarrow c r + \sqrt{(1 - c^2) T}\, \xi, \quad c = e^{-\gamma h / 2},

half a kick, a move, half a kick, and the first line again. Momenta of a normal posterior have the
temperature at any step size; positions have the variance :math:`T / (\kappa - h^2 \kappa^2 / 4)`.

References
----------
G. Bussi and M. Parrinello (2007). Accurate sampling using Langevin dynamics. Physical Review E 75.
"""

import numpy as np

from pymc_subsample.samplers.gradients.integrators.integrator import inlined, shift
from pymc_subsample.samplers.gradients.integrators.shared import map_of_momenta, with_momenta


@inlined
def drift(rng, chain, h):
    """Friction, half a kick, a move."""
    momentum, decay = chain.momentum, np.exp(-0.5 * chain.friction * h)
    noise = np.sqrt((1.0 - decay * decay) * chain.temperature)
    for a in range(momentum.shape[0]):
        momentum[a] = decay * momentum[a] + noise * rng.standard_normal()
        momentum[a] += 0.5 * h * chain.force[a]
        chain.change[a] = h * momentum[a]
    shift(chain)


@inlined
def kick(rng, chain, h):
    """Half a kick, friction."""
    momentum, decay = chain.momentum, np.exp(-0.5 * chain.friction * h)
    noise = np.sqrt((1.0 - decay * decay) * chain.temperature)
    for a in range(momentum.shape[0]):
        half = momentum[a] + 0.5 * h * chain.force[a]
        momentum[a] = decay * half + noise * rng.standard_normal()


def linear_map(h, friction, curvature):
    """Step from before one kick to before the next: half a kick, friction, half a kick, a move."""
    decay = np.exp(-friction * h)
    half = h / 2 * (1 + decay)
    matrix = (1 - h * half * curvature, h * decay), (-half * curvature, decay)
    return map_of_momenta(matrix, own=(h, 1), gradient=(h * half, half))


def noise_variance(h, friction, temperature):
    """Variance that two half steps of friction bring."""
    return (1 - np.exp(-2 * friction * h)) * temperature


def momentum_variance(h, friction, temperature, curvature, noise, covariance):
    """Variance after the half a kick and the friction that are left of a step."""
    decay, position = np.exp(-friction * h), covariance[:, 0, 0]
    kicked = covariance[:, 1, 1] - h * curvature * covariance[:, 0, 1]
    kicked = kicked + (h / 2) ** 2 * (curvature**2 * position + noise)
    return decay * kicked + (1 - decay) * temperature


INTEGRATOR = with_momenta(
    name="obabo",
    friction="given",
    reuses_gradient=True,
    drift=drift,
    kick=kick,
    expectation="it kicks momenta twice per gradient",
    linear_map=linear_map,
    noise_variance=noise_variance,
    momentum_variance=momentum_variance,
)
