r"""Overdamped Langevin dynamics by Euler and Maruyama, "overdamped".

.. math:: z' = z + h \hat g(z) + \sqrt{2hT}\, \xi

The integrator state is the last change of z, by which exponential weights expect the next one.

References
----------
M. Welling and Y. W. Teh (2011). Bayesian learning via stochastic gradient Langevin dynamics. ICML.
"""

import numpy as np

from pymc_subsample.compiled.functions import inlined
from pymc_subsample.samplers.gradients.integrators.integrator import LinearMap, shift
from pymc_subsample.samplers.gradients.integrators.shared import strongest, without_momenta


@inlined
def kick(rng, chain, h):
    """Move along the gradient."""
    noise = np.sqrt(2.0 * h * chain.temperature)
    for a in range(chain.change.shape[0]):
        chain.change[a] = h * chain.force[a] + noise * rng.standard_normal()
        chain.state[a] = chain.change[a]
    shift(chain)


@inlined
def drift_ratio(chain, h):
    """Largest drift in units of the noise."""
    return np.sqrt(0.5 * h / chain.temperature) * strongest(chain.force)


@inlined
def expectation(chain, h, stop, x):
    """Write the last change in units of the noise."""
    scale = 1.0 / np.sqrt(2.0 * h * chain.temperature)
    for a in range(x.shape[0]):
        x[a] = scale * chain.state[a]
    return np.sqrt(2.0 * chain.temperature)


def linear_map(h, friction, curvature):
    """Contract positions."""
    one = np.ones((len(curvature), 1))
    return LinearMap((1 - h * curvature)[:, None, None], one, h * one)


def noise_variance(h, friction, temperature):
    """Variance of the noise."""
    return 2 * h * temperature


INTEGRATOR = without_momenta(
    name="overdamped",
    kick=kick,
    drift_ratio=drift_ratio,
    expectation=expectation,
    linear_map=linear_map,
    noise_variance=noise_variance,
)
