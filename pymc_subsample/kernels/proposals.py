r"""Proposals of Metropolis-Hastings: random walks, Langevin moves, and moves that are given.

A random walk proposes :math:`\theta + h F z` with :math:`z \sim N(0, I)` and the factor F of a
covariance; Langevin :math:`\theta + \frac{h^2}{2} F F' g(\theta) + h F z` with a gradient g.
"""

from collections import namedtuple

import numpy as np
from numba import types

from pymc_subsample.compiled.functions import INDEX, MATRIX, SCALAR, VECTOR, inner
from pymc_subsample.kernels.vectors import copy, scale_back, scale_up

RANDOM_WALK, LANGEVIN, GIVEN = 0, 1, 2

# How moves are proposed.
#
# kind : `RANDOM_WALK`, `LANGEVIN` or `GIVEN`; given ones come one at a time
# active : array (a,); elements of theta that move
# factor : array (a, a), (1, a) or (3, k); F, see `expansion.factors`
# step_size : h
# batch : rows of a Langevin proposal's gradient, drawn for that purpose: their density given those
#     rows enters the log-ratio
# given, log_factor : array (d,), float; a given proposal and its log q(theta | theta') -
#     log q(theta' | theta)
Proposing = namedtuple("Proposing", "kind active factor step_size batch given log_factor")
PROPOSING = types.NamedTuple(
    [types.int64, INDEX, MATRIX, SCALAR, types.int64, VECTOR, SCALAR], Proposing
)

# The same and the proposal at hand: z and move in units of F, and arrays (a,) to write in.
ProposedMove = namedtuple(
    "ProposedMove", "kind active factor step_size batch given log_factor z move here there"
)


@inner
def proposal_of(proposing):
    """Return a `ProposedMove` with arrays to write in."""
    kind, active, factor, step_size, batch, given, factor_of_given = proposing
    size = active.shape[0]
    return ProposedMove(
        kind, active, factor, step_size, batch, given, factor_of_given,
        np.empty(size), np.empty(size), np.empty(size), np.empty(size),
    )  # fmt: skip


@inner
def draw_move(rng, proposal):
    """Draw z and begin the move with it."""
    if proposal.kind != GIVEN:
        for a in range(proposal.z.shape[0]):
            proposal.z[a] = rng.standard_normal()
            proposal.move[a] = proposal.step_size * proposal.z[a]


@inner
def add_drift(proposal, gradient):
    """Add the drift of Langevin to the move."""
    scale_back(proposal.factor, gradient, proposal.active, proposal.here)
    for a in range(proposal.move.shape[0]):
        proposal.move[a] += 0.5 * proposal.step_size * proposal.step_size * proposal.here[a]


@inner
def move(proposal, theta, new_theta):
    """Write where the move leads."""
    if proposal.kind == GIVEN:
        copy(proposal.given, new_theta)
        return
    copy(theta, new_theta)
    scale_up(proposal.factor, proposal.move, proposal.there)
    for a in range(proposal.there.shape[0]):
        new_theta[proposal.active[a]] += proposal.there[a]


@inner
def log_factor(proposal, new_gradient):
    """Log q(theta | theta') - log q(theta' | theta)."""
    if proposal.kind == GIVEN:
        return proposal.log_factor
    total = 0.0
    if proposal.kind == LANGEVIN:
        scale_back(proposal.factor, new_gradient, proposal.active, proposal.there)
        for a in range(proposal.z.shape[0]):
            z = proposal.z[a]
            back = z + 0.5 * proposal.step_size * (proposal.here[a] + proposal.there[a])
            total += 0.5 * (z * z - back * back)
    return total
