r"""Metropolis-Hastings on growing batches of rows: the compiled transition.

A transition composes three independent parts: a *proposal*, an estimate of the log-ratio from
rows drawn without replacement, optionally with control variates, and an *acceptance test* (see
`kernels.evidence`) that asks for more rows until it can decide. The log-ratio of a proposal is

.. math:: \log\frac{p(\theta') q(\theta | \theta')}{p(\theta) q(\theta' | \theta)}
          + \frac1T \sum_i [q_i(\theta') - q_i(\theta)]
          + \frac1n \sum_i \frac nT [d_i(\theta') - d_i(\theta)]

with :math:`d_i = l_i - q_i`; the first two terms are known, the batch estimates the third.
"""

import numpy as np
from numba import types

from pymc_subsample.cache import kept
from pymc_subsample.compile import (
    GENERATOR,
    INDEX,
    MATRIX,
    SCALAR,
    VECTOR,
    function_at,
    generator_at,
    inner,
)
from pymc_subsample.kernels import proposals
from pymc_subsample.kernels.acceptance import accept
from pymc_subsample.kernels.batches import PERMUTATION, draw_batch
from pymc_subsample.kernels.bounds import FULL_BOUND, LOCAL_BOUND, largest_term
from pymc_subsample.kernels.control import control_sum
from pymc_subsample.kernels.evidence import ACCEPT, DECIDE
from pymc_subsample.kernels.model import ANCHOR, BACKWARD, CHANGE, FORWARD, GATHER, GRADIENT
from pymc_subsample.kernels.vectors import copy, is_finite

# Of the model, in the order of their addresses; those of Langevin proposals come last.
FUNCTIONS = ("forward", "anchor", "change", "gather")
GRADIENTS = ("backward", "gradient")

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


@inner
def control_change(phi, new_phi, center, slope, curvature, order, scratch):
    """Change of the sum of the control variates."""
    if order == 0:
        return 0.0
    before = control_sum(phi, center, 0.0, slope, curvature, order, scratch)
    return control_sum(new_phi, center, 0.0, slope, curvature, order, scratch) - before


@inner
def posterior_gradient(backward, gradient, theta, phi, rows, center, slope, curvature, order,
                       weight, grad_phi, grad):  # fmt: skip
    """Gradient in theta of the log posterior estimated on anchored rows."""
    for a in range(grad_phi.shape[0]):
        grad_phi[a] = 0.0
    gradient(phi, rows, center, weight, grad_phi)
    control_sum(phi, center, 0.0, slope, curvature, order, grad_phi)
    backward(theta, grad_phi, grad)


@kept(
    types.void(
        GENERATOR, GENERATOR, INDEX, types.int64, types.int64, INDEX,
        PERMUTATION, VECTOR, INDEX, MATRIX, SCALAR, types.int64, VECTOR, SCALAR,
        VECTOR, VECTOR, MATRIX, types.int64, types.int64, SCALAR,
        types.int64, SCALAR, MATRIX, VECTOR, types.int64, VECTOR,
    ),
)  # fmt: skip
def transitions(generator, row_generator, functions, test, kind, columns,
                permutation, theta, active, factor, step_size, batch, given, given_factor,
                center, slope, curvature, order, width, weight,
                bound, bound_slope, reach, settings, k, info):  # fmt: skip
    """Run k transitions from theta, in place.

    Parameters
    ----------
    generator, row_generator : int
        Addresses of the generators of proposals and decisions, and of the rows that are read:
        proposals and thresholds do not depend on how many rows were needed. See `generator_at`.
    functions : array (6,) of int
        Addresses of `FUNCTIONS` and, for Langevin proposals, `GRADIENTS` (zeros otherwise).
    test : int
        Address of the acceptance test's ``decide``.
    kind : {RANDOM_WALK, LANGEVIN, GIVEN}
        Of the proposals; see `kernels.proposals`. Given ones come one at a time.
    columns : array of int
        Addresses of the raw columns.
    permutation : array (n,) of uint32
        0, 1, ..., n - 1.
    theta : array (d,)
        Position; overwritten.
    active : array (a,) of int
        Elements of theta that move.
    factor : array (a, a), (1, a) or (3, k)
        Factor of the proposal's covariance; see `control_variates.factors`.
    step_size : float
        h.
    batch : int
        Rows of a Langevin proposal's gradient, drawn for that purpose: their density given those
        rows enters the log-ratio.
    given, given_factor : array (d,), float
        A given proposal and its log q(theta | theta') - log q(theta' | theta).
    center, slope, curvature, order
        Reference in phi and full-data sums of the control variates (tempered), of order 0 (none),
        1 or 2.
    width : int
        Columns of a packed row.
    weight : float
        n / T.
    bound, bound_slope, reach
        Where bounds of y come from; see `kernels.bounds.largest_term`.
    settings : array
        Of the test.
    k : int
        Number of transitions.
    info : array (len(INFO),)
        Written.
    """
    rng, row_rng = generator_at(generator), generator_at(row_generator)
    forward = function_at(functions[0], FORWARD)
    anchor = function_at(functions[1], ANCHOR)
    change = function_at(functions[2], CHANGE)
    gather = function_at(functions[3], GATHER)
    backward = function_at(functions[4], BACKWARD)
    gradient = function_at(functions[5], GRADIENT)
    decide = function_at(test, DECIDE)
    n, p = permutation.shape[0], center.shape[0]
    phi, new_phi, grad_phi = np.empty(p), np.empty(p), np.empty(p)
    prior, new_prior = np.empty(1), np.empty(1)
    new_theta, grad = np.empty(theta.shape[0]), np.empty(theta.shape[0])
    proposal = proposals.proposal_of(kind, active, factor, step_size, given, given_factor)
    langevin = kind == proposals.LANGEVIN
    every = np.empty(0, dtype=np.int32)
    index = np.empty(batch if langevin else 0, dtype=np.int64)
    rows = np.zeros((width, index.shape[0]))
    for field in range(info.shape[0]):
        info[field] = 0.0
    forward(theta, phi, prior)
    for _ in range(k):
        proposals.draw_move(rng, proposal)
        if langevin:
            draw_batch(row_rng, permutation, index)
            gather(columns, index, rows)
            if order > 0:
                anchor(center, rows)
            posterior_gradient(
                backward, gradient, theta, phi, rows, center, slope, curvature, order,
                weight / batch, grad_phi, grad,
            )  # fmt: skip
            proposals.add_drift(proposal, grad)
            info[PROPOSED] += batch
        proposals.move(proposal, theta, new_theta)
        forward(new_theta, new_phi, new_prior)
        if langevin:
            posterior_gradient(
                backward, gradient, new_theta, new_phi, rows, center, slope, curvature, order,
                weight / batch, grad_phi, grad,
            )  # fmt: skip
        known = proposals.log_factor(proposal, grad)
        known += new_prior[0] - prior[0]
        known += control_change(phi, new_phi, center, slope, curvature, order, grad_phi)
        uniform, normal = rng.random(), rng.standard_normal()
        if not known > -np.inf:
            continue
        largest = largest_term(bound, phi, new_phi, center, order, weight, bound_slope, reach)
        full = bound in (FULL_BOUND, LOCAL_BOUND) and not is_finite(largest)
        evidence, answer = accept(
            decide, anchor, change, gather, columns, row_rng, permutation, every, phi, new_phi,
            center, order, width, weight, full, settings, known, np.log(uniform), uniform, normal,
            -largest, largest,
        )  # fmt: skip
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
    for field in range(6):
        info[field] /= k
