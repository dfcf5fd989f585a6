r"""Underdamped Langevin dynamics, the gradient taken where a step moves to, "symplectic".

.. math:: z' = z + h r, \quad r' = r + h (\hat g(z') - \gamma r) + \sqrt{2 \gamma T h}\, \xi

References
----------
T. Chen, E. Fox and C. Guestrin (2014). Stochastic gradient Hamiltonian Monte Carlo. ICML, eq. 13.
"""

import numpy as np

from pymc_subsample.compiled.functions import inlined
from pymc_subsample.samplers.gradients.integrators.integrator import shift
from pymc_subsample.samplers.gradients.integrators.shared import (
    expected_momentum,
    map_of_momenta,
    with_momenta,
)


@inlined
def drift(rng, chain, h):
    """Move."""
    for a in range(chain.change.shape[0]):
        chain.change[a] = h * chain.momentum[a]
    shift(chain)


@inlined
def kick(rng, chain, h):
    """Kick."""
    momentum = chain.momentum
    noise = np.sqrt(2.0 * chain.friction * chain.temperature * h)
    for a in range(momentum.shape[0]):
        push = h * (chain.force[a] - chain.friction * momentum[a])
        momentum[a] += push + noise * rng.standard_normal()


def linear_map(h, friction, curvature):
    """Pull by the curvature at the new position."""
    pull = -h * curvature
    return map_of_momenta(((1, h), (pull, 1 - friction * h + h * pull)), (0, 1), (0, h))


INTEGRATOR = with_momenta(
    name="symplectic",
    friction="given",
    drift=drift,
    kick=kick,
    expectation=expected_momentum,
    linear_map=linear_map,
)
