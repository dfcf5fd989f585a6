r"""Overdamped dynamics in a metric learnt from the gradients, "preconditioned".

.. math:: z' = z + G \hat g(z) + \sqrt{2 G T}\, \xi, \quad G = \frac{h}{\lambda + \sqrt v}, \quad
          v' = \alpha v + (1 - \alpha) (\hat g / n)^2

element by element. The drift of G itself is left out. The integrator state is v, negative at first.

References
----------
C. Li, C. Chen, D. Carlson and L. Carin (2016). Preconditioned stochastic gradient Langevin dynamics
for deep neural networks. AAAI.
"""

import numpy as np

from pymc_subsample.compiled.functions import inlined
from pymc_subsample.samplers.gradients.integrators.integrator import shift
from pymc_subsample.samplers.gradients.integrators.overdamped import linear_map, noise_variance
from pymc_subsample.samplers.gradients.integrators.shared import without_momenta


@inlined
def start(friction, state):
    """Know nothing of the gradients."""
    for a in range(state.shape[0]):
        state[a] = -1.0


@inlined
def kick(rng, chain, h):
    """Move along the gradient, and learn from it."""
    state, averaging = chain.state, chain.averaging
    for a in range(state.shape[0]):
        square = (chain.force[a] / chain.n) ** 2
        old = state[a] if state[a] >= 0.0 else square
        state[a] = averaging * old + (1.0 - averaging) * square
        g = h / (chain.floor + np.sqrt(state[a]))
        noise = np.sqrt(2.0 * g * chain.temperature) * rng.standard_normal()
        chain.change[a] = g * chain.force[a] + noise
    shift(chain)


@inlined
def drift_ratio(chain, h):
    """Largest drift in units of the noise."""
    largest = 0.0
    for a in range(chain.force.shape[0]):
        g = 0.5 * h / (chain.floor + np.sqrt(chain.state[a]))
        largest = max(largest, np.sqrt(g / chain.temperature) * abs(chain.force[a]))
    return largest


def own_metric(floor, n, square):
    """Root of G / h."""
    return 1 / np.sqrt(floor + np.sqrt(square) / n)


INTEGRATOR = without_momenta(
    name="preconditioned",
    options=("averaging", "floor"),
    start=start,
    kick=kick,
    drift_ratio=drift_ratio,
    expectation="the size of its noise differs from element to element",
    linear_map=linear_map,
    noise_variance=noise_variance,
    own_metric=own_metric,
)
