r"""Metropolis-Hastings with delayed acceptance (Christen and Fox 2005): the compiled transition.

A move is accepted with probability

.. math:: \min\Bigl(1, \frac{s(\theta')}{s(\theta)}\Bigr)
          \min\bigl(1, e^{(D(\theta') - D(\theta)) / T}\bigr),

where s is the posterior with control variates in place of the rows, and D the sum over all rows of
what these leave, which is not evaluated where the first factor rejects.
"""

import numpy as np
from numba import types

from pymc_subsample.compiled.cache import kept
from pymc_subsample.compiled.functions import GENERATOR, MATRIX, SCALAR, generator_at
from pymc_subsample.kernels.control import control_sum
from pymc_subsample.kernels.model import ALONE, MODEL, SUMS, functions
from pymc_subsample.kernels.proposals import PROPOSING, draw_move, move, proposal_of
from pymc_subsample.kernels.vectors import clear, copy

FUNCTIONS = ("forward", "residual")  # Of the model, in the order of their addresses.
_functions = functions(FUNCTIONS)
INFO = ("accepted", "acceptance_rate", "rows_read")  # Results of a draw, by position.


@kept(types.void(GENERATOR, MODEL, SUMS, PROPOSING, MATRIX, SCALAR, MATRIX, types.int64, MATRIX))
def transitions(generator, model, sums, proposing, rows, weight, thetas, k, infos):
    """Make draws of k transitions each, over `thetas`, from its first; `rows` are all, anchored."""
    rng, proposal = generator_at(generator), proposal_of(proposing)
    forward, residual = _functions(model.functions)
    phi, slope, prior = np.empty_like(sums.center), np.empty_like(sums.center), np.empty(1)
    d, new_theta = np.empty(rows.shape[1]), np.empty(thetas.shape[1])
    for i in range(thetas.shape[0]):
        copy(thetas[max(i - 1, 0)], thetas[i])
        clear(infos[i])
        known = left = -np.inf
        for t in range(k + 1):  # the first is where the chain is
            copy(thetas[i], new_theta)
            if t > 0:
                draw_move(rng, proposal)
                move(proposal, thetas[i], new_theta)
            forward(new_theta, phi, prior)
            clear(slope)
            new_known = prior[0] + control_sum(phi, sums, 0.0, slope)
            if t > 0 and not np.log(rng.random()) < new_known - known:
                continue
            residual(phi, rows, sums.center, ALONE, 1.0, 0.0, d, slope)
            infos[i, 2] += d.shape[0]
            new_left = weight * d.sum()
            if t == 0 or np.log(rng.random()) < new_left - left:
                copy(new_theta, thetas[i])
                known, left = new_known, new_left
                infos[i, 0] += (t > 0) / k
        infos[i, 1] = infos[i, 0]
