r"""Underdamped Langevin dynamics by Euler and Maruyama, "euler".

.. math:: z' = z + h r, \quad r' = r + h (\hat g(z) - \gamma r) + \sqrt{2 \gamma T h}\, \xi

References
----------
R. Li, X. Wang, H. Zha and M. Tao (2020). Improving sampling accuracy of stochastic gradient MCMC
methods via non-uniform subsampling of gradients. arXiv:2002.08949, eq. 3.
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
def kick(rng, chain, h):
    """Kick, and move by the momenta of before."""
    momentum = chain.momentum
    noise = np.sqrt(2.0 * chain.friction * chain.temperature * h)
    for a in range(momentum.shape[0]):
        old = momentum[a]
        push = h * (chain.force[a] - chain.friction * old)
        momentum[a] += push + noise * rng.standard_normal()
        chain.change[a] = h * old
    shift(chain)


def linear_map(h, friction, curvature):
    """Pull by the curvature at the old position."""
    return map_of_momenta(((1, h), (-h * curvature, 1 - friction * h)), (0, 1), (0, h))


INTEGRATOR = with_momenta(
    name="euler", friction="given", kick=kick, expectation=expected_momentum, linear_map=linear_map
)
