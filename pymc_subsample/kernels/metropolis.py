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
    Compiled,
    function_at,
    generator_at,
    inner,
    load,
)
from pymc_subsample.kernels.batches import PERMUTATION, draw, draw_batch, restore
from pymc_subsample.kernels.bounds import linear_bound, local_bound
from pymc_subsample.kernels.control import control_sum
from pymc_subsample.kernels.evidence import (
    ACCEPT,
    COUNT,
    DECIDE,
    ERROR,
    EVIDENCE,
    HIGH,
    KNOWN,
    LOOK,
    LOW,
    MEAN,
    N_ROWS,
    NORMAL,
    PROBABILITY,
    SECOND,
    THIRD,
    THRESHOLD,
    UNIFORM,
    VARIANCE,
)
from pymc_subsample.kernels.model import ANCHOR, BACKWARD, CHANGE, FORWARD, GATHER, GRADIENT
from pymc_subsample.kernels.vectors import copy, is_finite, scale_back, scale_up

_FORWARD = types.FunctionType(FORWARD)
_BACKWARD = types.FunctionType(BACKWARD)
_GRADIENT = types.FunctionType(GRADIENT)
_ANCHOR = types.FunctionType(ANCHOR)
_CHANGE = types.FunctionType(CHANGE)
_GATHER = types.FunctionType(GATHER)
_DECIDE = types.FunctionType(DECIDE)

# Of the model, in the order of their addresses; those of Langevin proposals come last.
FUNCTIONS = ("forward", "anchor", "change", "gather")
GRADIENTS = ("backward", "gradient")

RANDOM_WALK, LANGEVIN, GIVEN = 0, 1, 2
GIVEN_BOUND, LINEAR_BOUND, FULL_BOUND, LOCAL_BOUND = 0, 1, 2, 3

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

# Rows evaluated at a time.
_CHUNK = 256

MEMBERS = types.Array(types.int32, 1, "C")


@inner
def add(y, evidence):
    """Merge new numbers into count, mean and central moments (Chan et al. 1979; Pebay 2008)."""
    b = y.shape[0]
    mean = 0.0
    for i in range(b):
        mean += y[i]
    mean /= b
    second = 0.0
    third = 0.0
    for i in range(b):
        e = y[i] - mean
        second += e * e
        third += e * e * e
    a = evidence[COUNT]
    total = a + b
    shift = mean - evidence[MEAN]
    old_second, old_third = evidence[SECOND] * a, evidence[THIRD] * a
    evidence[MEAN] += shift * b / total if a > 0.0 else mean
    evidence[THIRD] = (
        old_third + third + shift**3 * a * b * (a - b) / (total * total)
        + 3.0 * shift * (a * second - b * old_second) / total
    ) / total  # fmt: skip
    evidence[SECOND] = (old_second + second + shift * shift * a * b / total) / total
    evidence[COUNT] = total


@kept(
    types.int64(
        _DECIDE, _ANCHOR, _CHANGE, _GATHER, INDEX, types.npy_rng, PERMUTATION, MEMBERS, VECTOR,
        VECTOR, VECTOR, types.int64, types.int64, SCALAR, types.int64, VECTOR, VECTOR,
    ),
)  # fmt: skip
def accept(decide, anchor, change, gather, columns, rng, permutation, members, phi, new_phi,
           center, order, width, weight, full_bound, settings, evidence):  # fmt: skip
    """Read rows until the test decides; return its decision.

    Parameters
    ----------
    decide, anchor, change, gather
        The test and the model's functions.
    columns : array of int
        Addresses of the raw columns.
    rng : numpy.random.Generator
        Draws rows.
    permutation : array (n,) of uint32
        0, 1, ..., n - 1; left as it was found.
    members : array (n,) of int32 or empty
        Rows that the log-ratio sums over. Empty: rows 0 to n - 1.
    phi, new_phi, center : array (P,)
        Current and proposed parameters, and the reference.
    order, width : int
        Order of the control variates (0: none), and columns of a packed row.
    weight : float
        n / T.
    full_bound : int
        Whether the bounds of y come from a pass over all rows.
    settings, evidence
        Of the test. The known part, the random numbers and, unless `full_bound`, the bounds are
        given; the rest is written.
    """
    n = permutation.shape[0]
    index = np.empty(_CHUNK, dtype=np.int64)
    rows = np.empty((width, _CHUNK))
    y = np.empty(_CHUNK)
    evidence[N_ROWS] = n
    for field in (COUNT, LOOK, MEAN, SECOND, THIRD):
        evidence[field] = 0.0
    if full_bound:
        evidence[LOW], evidence[HIGH] = np.inf, -np.inf
        for start in range(0, n, _CHUNK):
            m = min(_CHUNK, n - start)
            if m < _CHUNK:
                index, y, rows = np.empty(m, dtype=np.int64), np.empty(m), np.empty((width, m))
            for j in range(m):
                index[j] = members[start + j] if members.shape[0] > 0 else start + j
            gather(columns, index, rows)
            if order > 0:
                anchor(center, rows)
            change(phi, new_phi, center, rows, y)
            for j in range(m):
                evidence[LOW] = min(evidence[LOW], weight * y[j])
                evidence[HIGH] = max(evidence[HIGH], weight * y[j])
    drawn = 0
    wanted = int(min(n, settings[0]))
    while True:
        count = int(evidence[COUNT])
        while count < wanted:
            m = min(_CHUNK, wanted - count)
            if m != index.shape[0]:
                index, y, rows = np.empty(m, dtype=np.int64), np.empty(m), np.empty((width, m))
            if drawn == 0 and wanted == n:
                for j in range(m):
                    index[j] = count + j
            else:
                draw(rng, permutation, count, index)
                drawn = count + m
            if members.shape[0] > 0:
                for j in range(m):
                    index[j] = members[index[j]]
            gather(columns, index, rows)
            if order > 0:
                anchor(center, rows)
            change(phi, new_phi, center, rows, y)
            for j in range(m):
                y[j] *= weight
            add(y, evidence)
            count += m
        evidence[LOOK] += 1.0
        if not is_finite(evidence[MEAN]):
            # A row that is impossible at the proposal, or was at the current point.
            evidence[PROBABILITY] = 1.0 if evidence[MEAN] > 0.0 else 0.0
            evidence[VARIANCE] = evidence[ERROR] = 0.0
            decision = ACCEPT if evidence[MEAN] > 0.0 else 0
            break
        decision = decide(settings, evidence)
        if decision <= 0:
            break
        wanted = int(decision)
    restore(permutation, drawn)
    return decision


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
        Of the proposals. Given ones come one at a time.
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
        h: a random walk proposes theta + h L z; Langevin theta + h^2 / 2 L L' g + h L z with g
        the gradient estimated on `batch` rows drawn for that purpose (their density given those
        rows enters the log-ratio).
    batch : int
        Rows of a Langevin proposal.
    given, given_factor : array (d,), float
        A given proposal and its log q(theta | theta') - log q(theta' | theta).
    center, slope, curvature, order
        Reference in phi and full-data sums of the control variates (tempered), of order 0 (none),
        1 or 2.
    width : int
        Columns of a packed row.
    weight : float
        n / T.
    bound : {GIVEN_BOUND, LINEAR_BOUND, FULL_BOUND, LOCAL_BOUND}
        Where bounds of y come from: `bound_slope` itself (infinite where the test needs none),
        `linear_bound` with `bound_slope` and `reach`, a pass over all rows, or `local_bound` with
        `reach` and a pass where that has none.
    settings : array
        Of the test.
    k : int
        Number of transitions.
    info : array (len(INFO),)
        Written.
    """
    rng, row_rng = generator_at(generator), generator_at(row_generator)
    forward = function_at(functions[0], _FORWARD)
    anchor = function_at(functions[1], _ANCHOR)
    change = function_at(functions[2], _CHANGE)
    gather = function_at(functions[3], _GATHER)
    backward = function_at(functions[4], _BACKWARD)
    gradient = function_at(functions[5], _GRADIENT)
    decide = function_at(test, _DECIDE)
    n, size, p = permutation.shape[0], active.shape[0], center.shape[0]
    evidence = np.empty(len(EVIDENCE))
    phi, new_phi, grad_phi = np.empty(p), np.empty(p), np.empty(p)
    prior, new_prior = np.empty(1), np.empty(1)
    new_theta, grad = np.empty(theta.shape[0]), np.empty(theta.shape[0])
    z, move, force = np.empty(size), np.empty(size), np.empty(size)
    langevin = kind == LANGEVIN
    every = np.empty(0, dtype=np.int32)
    index = np.empty(batch if langevin else 0, dtype=np.int64)
    rows = np.zeros((width, index.shape[0]))
    for field in range(info.shape[0]):
        info[field] = 0.0
    forward(theta, phi, prior)
    for _ in range(k):
        copy(theta, new_theta)
        evidence[KNOWN] = 0.0
        if kind == GIVEN:
            copy(given, new_theta)
            evidence[KNOWN] = given_factor
        else:
            for a in range(size):
                z[a] = rng.standard_normal()
                move[a] = step_size * z[a]
        if langevin:
            draw_batch(row_rng, permutation, index)
            gather(columns, index, rows)
            if order > 0:
                anchor(center, rows)
            posterior_gradient(
                backward, gradient, theta, phi, rows, center, slope, curvature, order,
                weight / batch, grad_phi, grad,
            )  # fmt: skip
            scale_back(factor, grad, active, force)
            for a in range(size):
                move[a] += 0.5 * step_size * step_size * force[a]
            info[7] += batch
        if kind != GIVEN:
            scale_up(factor, move, force)
            for a in range(size):
                new_theta[active[a]] += force[a]
        forward(new_theta, new_phi, new_prior)
        if langevin:
            scale_back(factor, grad, active, force)
            posterior_gradient(
                backward, gradient, new_theta, new_phi, rows, center, slope, curvature, order,
                weight / batch, grad_phi, grad,
            )  # fmt: skip
            scale_back(factor, grad, active, move)
            for a in range(size):
                back = z[a] + 0.5 * step_size * (force[a] + move[a])
                evidence[KNOWN] += 0.5 * (z[a] * z[a] - back * back)
        evidence[KNOWN] += new_prior[0] - prior[0]
        evidence[KNOWN] += control_change(phi, new_phi, center, slope, curvature, order, grad_phi)
        evidence[UNIFORM] = rng.random()
        evidence[THRESHOLD] = np.log(evidence[UNIFORM])
        evidence[NORMAL] = rng.standard_normal()
        if not evidence[KNOWN] > -np.inf:
            continue
        largest, full = bound_slope, bound == FULL_BOUND
        if bound == LINEAR_BOUND:
            largest = linear_bound(phi, new_phi, center, order, weight, bound_slope, reach)
        elif bound == LOCAL_BOUND:
            largest = local_bound(phi, new_phi, center, order, weight, reach)
            full = not is_finite(largest)
        evidence[LOW], evidence[HIGH] = -largest, largest
        decision = accept(decide, anchor, change, gather, columns, row_rng, permutation, every,
                          phi, new_phi, center, order, width, weight, full, settings,
                          evidence)  # fmt: skip
        if decision == ACCEPT:
            copy(new_theta, theta)
            copy(new_phi, phi)
            prior[0] = new_prior[0]
            info[0] += 1.0
        info[1] += evidence[PROBABILITY]
        info[2] += evidence[COUNT]
        info[3] += evidence[LOOK]
        info[4] += evidence[ERROR]
        info[5] += evidence[VARIANCE]
        info[6] += evidence[COUNT] + (n if full else 0)
    for field in range(6):
        info[field] /= k


@kept(ANCHOR)
def _leave(center, rows):
    """Anchor nothing."""


@kept(CHANGE)
def _read(phi, new_phi, center, rows, y):
    for i in range(y.shape[0]):
        y[i] = rows[0, i]


@kept(GATHER)
def _number(columns, index, rows):
    for i in range(index.shape[0]):
        rows[0, i] = load(columns[0] + 8 * index[i], np.float64)


# A model whose rows are the numbers y themselves, at the address `columns[0]`.
NUMBERS = (
    Compiled(_leave, ANCHOR, None),
    Compiled(_read, CHANGE, None),
    Compiled(_number, GATHER, None),
)


@kept(
    types.int64(
        INDEX, types.int64, INDEX, GENERATOR, PERMUTATION, SCALAR, SCALAR, SCALAR, VECTOR,
        VECTOR, VECTOR, VECTOR, types.int64,
    ),
)  # fmt: skip
def decisions(functions, test, columns, generator, permutation, known, low, high, settings,
              uniforms, thresholds, accepted, most_rows):  # fmt: skip
    """Let a test decide about one proposal again and again; return how often it did.

    Parameters
    ----------
    functions : array (3,) of int
        Addresses of `NUMBERS`.
    test : int
        Address of the test.
    columns : array (1,) of int
        Address of y, shape (n,).
    generator : int
        Address of what draws rows and normal numbers; see `generator_at`.
    permutation : array (n,) of uint32
        0, 1, ..., n - 1.
    known, low, high : float
        Known part of the log-ratio and bounds of y.
    settings : array
        Of the test.
    uniforms, thresholds : array (j,)
        Of each decision; see `kernels.evidence`.
    accepted : array (j,)
        Written: 1 where the proposal was accepted.
    most_rows : int
        Stop when so many rows have been read.
    """
    anchor = function_at(functions[0], _ANCHOR)
    change = function_at(functions[1], _CHANGE)
    gather = function_at(functions[2], _GATHER)
    decide = function_at(test, _DECIDE)
    rng = generator_at(generator)
    evidence = np.empty(len(EVIDENCE))
    nothing, every = np.empty(0), np.empty(0, dtype=np.int32)
    read = 0.0
    for j in range(uniforms.shape[0]):
        evidence[KNOWN], evidence[LOW], evidence[HIGH] = known, low, high
        evidence[UNIFORM] = uniforms[j]
        evidence[THRESHOLD] = thresholds[j]
        evidence[NORMAL] = rng.standard_normal()
        decision = accept(decide, anchor, change, gather, columns, rng, permutation, every,
                          nothing, nothing, nothing, 0, 1, 1.0, 0, settings, evidence)  # fmt: skip
        accepted[j] = 1.0 if decision == ACCEPT else 0.0
        read += evidence[COUNT]
        if read > most_rows:
            return j + 1
    return uniforms.shape[0]
