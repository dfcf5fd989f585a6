r"""The Nose-Hoover thermostat of stochastic gradients, "thermostat".

.. math:: r' = r + h (\hat g(z) - \zeta r) + \sqrt{2 \gamma T h}\, \xi, \quad z' = z + h r', \quad
          \zeta' = \zeta + h (|r'|^2 / a - T)

The integrator state is :math:`\zeta`, in its first element.

References
----------
N. Ding, Y. Fang, R. Babbush, C. Chen, R. Skeel and H. Neven (2014). Bayesian sampling using
stochastic gradient thermostats. NeurIPS.
"""

import numpy as np

from pymc_subsample.compiled.functions import inlined
from pymc_subsample.samplers.gradients.integrators.integrator import shift
from pymc_subsample.samplers.gradients.integrators.shared import (
    map_of_momenta,
    stateless,
    with_momenta,
)


@inlined
def start(friction, state):
    """Begin with the friction that balances the noise of the dynamics alone."""
    stateless(friction, state)
    state[0] = friction


@inlined
def kick(rng, chain, h):
    """Kick, move, and follow the kinetic temperature."""
    momentum, state = chain.momentum, chain.state
    noise = np.sqrt(2.0 * chain.friction * chain.temperature * h)
    total = 0.0
    for a in range(momentum.shape[0]):
        push = h * (chain.force[a] - state[0] * momentum[a])
        momentum[a] += push + noise * rng.standard_normal()
        chain.change[a] = h * momentum[a]
        total += momentum[a] * momentum[a]
    state[0] += h * (total / momentum.shape[0] - chain.temperature)
    shift(chain)


def linear_map(h, friction, curvature):
    """Pull by the curvature at the old position, and move by the new momenta."""
    pull, keep = -h * curvature, 1 - friction * h
    return map_of_momenta(((1 + h * pull, h * keep), (pull, keep)), (h, 1), (h**2, h))


INTEGRATOR = with_momenta(
    name="thermostat",
    friction="adapted",
    start=start,
    kick=kick,
    expectation="its friction follows the noise of uniform batches",
    linear_map=linear_map,
)
