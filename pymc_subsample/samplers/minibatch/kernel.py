r"""Metropolis-Hastings on growing batches of rows: the compiled transition.

A transition composes three independent parts: a *proposal*, an estimate of the log-ratio from
rows drawn without replacement, optionally with control variates, and an *acceptance test* (see
`evidence`) that asks for more rows until it can decide. The log-ratio of a proposal is

.. math:: \log\frac{p(\theta') q(\theta | \theta')}{p(\theta) q(\theta' | \theta)}
          + \frac1T \sum_i [q_i(\theta') - q_i(\theta)]
          + \frac1n \sum_i \frac nT [d_i(\theta') - d_i(\theta)]

with :math:`d_i = l_i - q_i`; the first two terms are known, the batch estimates the third. Some
rows may be read always: their part of the third is known too, and n counts the others.
"""

from collections import namedtuple

import numpy as np
from numba import types

from pymc_subsample.compiled.cache import kept
from pymc_subsample.compiled.functions import (
    GENERATOR,
    MATRIX,
    SCALAR,
    function_at,
    generator_at,
    inner,
)
from pymc_subsample.kernels import proposals
from pymc_subsample.kernels.batches import PERMUTATION, draw_batch
from pymc_subsample.kernels.control import control_sum
from pymc_subsample.kernels.model import MODEL, SUMS, change, functions
from pymc_subsample.kernels.proposals import PROPOSING
from pymc_subsample.kernels.vectors import clear, copy, is_finite
from pymc_subsample.samplers.minibatch.acceptance import CRITERION, MEMBERS, Reader, accept, begun
from pymc_subsample.samplers.minibatch.decisions import ACCEPT, DECIDE
from pymc_subsample.samplers.minibatch.largest_term import (
    BOUND,
    FULL_BOUND,
    LOCAL_BOUND,
    largest_term,
)

# Of the model, in the order of their addresses; those of Langevin proposals come last.
FUNCTIONS = ("forward", "anchor", "left", "gather")
GRADIENTS = ("backward", "gradient")
_functions = functions((*FUNCTIONS, *GRADIENTS))

# Results of a run of transitions, by position: means over them, but for the rows read.
INFO = (
    "accepted",
    "acceptance_rate",
    "batch_size",
    "n_looks",
    "error",
    "loglik_ratio_variance",
    "rows_tested",
    "rows_proposed",
)
ACCEPTED, RATE, BATCH, LOOKS, ERROR, VARIANCE, TESTED, PROPOSED = range(len(INFO))

# The rows: those that batches are of, as `acceptance.Reader` has them, and those read always.
#
# exact, unit : array (C, e); packed, anchored rows, and their weight 1 / T
Population = namedtuple("Population", "permutation members weight exact unit")
POPULATION = types.NamedTuple([PERMUTATION, MEMBERS, SCALAR, MATRIX, SCALAR], Population)


@inner
def control_change(phi, new_phi, sums, scratch):
    """Change of the sum of the control variates."""
    if sums.order == 0:
        return 0.0
    before = control_sum(phi, sums, 0.0, scratch)
    return control_sum(new_phi, sums, 0.0, scratch) - before


@inner
def posterior_gradient(backward, gradient, theta, phi, rows, sums, population, grad_phi, grad):
    """Gradient in theta of the log posterior estimated on anchored rows."""
    clear(grad_phi)
    gradient(phi, rows, sums.center, population.weight / rows.shape[1], grad_phi)
    if population.exact.shape[1] > 0:
        gradient(phi, population.exact, sums.center, population.unit, grad_phi)
    control_sum(phi, sums, 0.0, grad_phi)
    backward(theta, grad_phi, grad)


@inner
def _draw(generator, row_generator, model, sums, test, bound, proposing, population, theta, k,
          info):  # fmt: skip
    """Run k transitions from theta, in place."""
    rng, row_rng = generator_at(generator), generator_at(row_generator)
    forward, anchor, left, gather, backward, gradient = _functions(model.functions)
    decide = function_at(test.decide, DECIDE)
    center, order, batch = sums.center, sums.order, proposing.batch
    permutation, members, weight, exact, unit = population
    reader = Reader(
        anchor, left, gather, model.columns, model.width, center, order, permutation, members,
        weight,
    )  # fmt: skip
    n, p, always = permutation.shape[0], center.shape[0], exact.shape[1]
    phi, new_phi, grad_phi = np.empty(p), np.empty(p), np.empty(p)
    prior, new_prior = np.empty(1), np.empty(1)
    new_theta, grad = np.empty(theta.shape[0]), np.empty(theta.shape[0])
    proposal = proposals.proposal_of(proposing)
    langevin = proposing.kind == proposals.LANGEVIN
    index = np.empty(batch if langevin else 0, dtype=np.int64)
    rows, read = np.zeros((model.width, index.shape[0])), np.empty(always)
    clear(info)
    forward(theta, phi, prior)
    for _ in range(k):
        proposals.draw_move(rng, proposal)
        if langevin:
            draw_batch(row_rng, permutation, index)
            if always > 0:
                for j in range(batch):
                    index[j] = members[index[j]]
            gather(model.columns, index, rows)
            if order > 0:
                anchor(center, rows)
            posterior_gradient(
                backward, gradient, theta, phi, rows, sums, population, grad_phi, grad
            )
            proposals.add_drift(proposal, grad)
            info[PROPOSED] += batch + always
        proposals.move(proposal, theta, new_theta)
        forward(new_theta, new_phi, new_prior)
        if langevin:
            posterior_gradient(
                backward, gradient, new_theta, new_phi, rows, sums, population, grad_phi, grad
            )
        known = proposals.log_factor(proposal, grad)
        known += new_prior[0] - prior[0]
        known += control_change(phi, new_phi, sums, grad_phi)
        if always > 0:
            change(left, phi, new_phi, center, exact, read)
            for j in range(always):
                known += unit * read[j]
            info[BATCH] += always
            info[TESTED] += always
        uniform, normal = rng.random(), rng.standard_normal()
        if not known > -np.inf:
            continue
        largest = largest_term(bound, phi, new_phi, center, order, weight)
        full = bound.kind in (FULL_BOUND, LOCAL_BOUND) and not is_finite(largest)
        start = begun(known, np.log(uniform), uniform, normal, -largest, largest)
        evidence, answer = accept(decide, test.settings, reader, row_rng, phi, new_phi, full, start)
        if answer.decision == ACCEPT:
            copy(new_theta, theta)
            copy(new_phi, phi)
            prior[0] = new_prior[0]
            info[ACCEPTED] += 1.0
        info[RATE] += answer.probability
        info[BATCH] += evidence.n_seen
        info[LOOKS] += evidence.look
        info[ERROR] += answer.error
        info[VARIANCE] += answer.variance
        info[TESTED] += evidence.n_seen + (n if full else 0)
    for field in range(TESTED):  # those before are means
        info[field] /= k


@kept(
    types.void(
        GENERATOR, GENERATOR, MODEL, SUMS, CRITERION, BOUND, PROPOSING, POPULATION, MATRIX,
        types.int64, MATRIX,
    ),
)  # fmt: skip
def transitions(generator, row_generator, model, sums, test, bound, proposing, population, thetas,
                k, infos):  # fmt: skip
    """Make draws of k transitions each.

    The generators are of proposals and decisions, and of the rows that are read: proposals and
    thresholds do not depend on how many rows were needed. The first of `thetas`, (n, d), is where
    the chain is; draws are written over them, and `INFO` to `infos`.
    """
    for i in range(thetas.shape[0]):
        if i > 0:
            copy(thetas[i - 1], thetas[i])
        _draw(generator, row_generator, model, sums, test, bound, proposing, population, thetas[i],
              k, infos[i])  # fmt: skip
