r"""Stochastic gradients of a log posterior: from a batch of rows, or from a chain over batches.

With residuals :math:`d_i = \ell_i - q_i` the gradient is that of

.. math:: \log p(\theta) + \sum_i q_i(\theta) + \frac nb \sum_{i \in B} d_i(\theta),

where q is a control variate of order 0 (none), 1 or 2.

An exponentially weighted gradient (Li et al. 2020, eqs. 4 and 5) is that of a batch drawn with
probability :math:`p_B \propto \exp(\frac12 |x + a_B|^2)`, :math:`a_B = -\sqrt h \hat g_B / \sigma`,
by a Metropolis chain of M steps that starts from a uniform batch. h is the step size,
:math:`\sigma` the amplitude of the dynamics' noise and x where they are expected to go.
"""

from collections import namedtuple

import numpy as np
from numba import types

from pymc_subsample.compiled.cache import kept
from pymc_subsample.compiled.functions import GENERATOR, INDEX, MATRIX, VECTOR, generator_at, inner
from pymc_subsample.kernels.batches import PERMUTATION, draw_batch, draw_stratified
from pymc_subsample.kernels.control import control_sum
from pymc_subsample.kernels.model import MODEL, SUMS, functions
from pymc_subsample.kernels.vectors import clear, copy, scale_back

# Of the model, in the order of their addresses.
FUNCTIONS = ("forward", "backward", "gradient", "gather", "anchor")
_functions = functions(FUNCTIONS)

# How batches are drawn.
UNIFORM, STRATIFIED = 0, 1

# Batches of rows, and the metric in which their gradients are.
#
# permutation : array (n,) of uint32; 0, 1, ..., n - 1, or the rows in the order of their strata
# sampling : `UNIFORM` or `STRATIFIED`
# size : rows of a batch
# active, factor : elements of theta that move, array (a,), and F, lower-triangular, array (a, a) or
#     (3, k), or its diagonal, (1, a)
Batches = namedtuple("Batches", "permutation sampling size active factor")
BATCHES = types.NamedTuple([PERMUTATION, types.int64, types.int64, INDEX, MATRIX], Batches)

# Where gradients come from: the model, its control variates, and how batches are drawn.
Source = namedtuple(
    "Source",
    "forward backward gradient gather anchor columns sums permutation sampling active factor",
)


@inner
def source_at(model, sums, batches):
    """Return a `Source` from the addresses of the model's functions."""
    forward, backward, gradient, gather, anchor = _functions(model.functions)
    return Source(
        forward, backward, gradient, gather, anchor, model.columns, sums, batches.permutation,
        batches.sampling, batches.active, batches.factor,
    )  # fmt: skip


@inner
def place(source, theta, phi, control):
    """Write phi at theta and the gradient in phi of the sum of the control variates."""
    source.forward(theta, phi, np.empty(1))
    clear(control)
    control_sum(phi, source.sums, 0.0, control)


@inner
def read_batch(source, rng, index, rows):
    """Draw a batch, and pack and anchor its rows."""
    if source.sampling == STRATIFIED:
        draw_stratified(rng, source.permutation, index)
    else:
        draw_batch(rng, source.permutation, index)
    source.gather(source.columns, index, rows)
    if source.sums.order > 0:
        source.anchor(source.sums.center, rows)


@inner
def batch_force(source, theta, phi, control, rows, force):
    """Write the gradient on a batch in coordinates where the metric is the identity."""
    weight = source.permutation.shape[0] / rows.shape[1]
    grad_phi, grad = np.zeros(phi.shape[0]), np.empty(theta.shape[0])
    source.gradient(phi, rows, source.sums.center, weight, grad_phi)
    for a in range(phi.shape[0]):
        grad_phi[a] += control[a]
    source.backward(theta, grad_phi, grad)
    scale_back(source.factor, grad, source.active, force)


@inner
def squared_noise(first, second, noise):
    """Estimate each element's variance from two independent gradients."""
    for a in range(noise.shape[0]):
        noise[a] = 0.5 * (first[a] - second[a]) ** 2


@inner
def batch_noise(source, rng, theta, phi, control, index, rows, force, other, noise):
    """Estimate each element's variance; return the gradients and the batches that it took.

    By the gradient on half the batch, or by that on another batch where halves differ in strata.
    """
    n, b = source.permutation.shape[0], rows.shape[1]
    half = b // 2
    if half == 0 or source.sampling == STRATIFIED:
        again = np.zeros(rows.shape)
        read_batch(source, rng, index, again)
        batch_force(source, theta, phi, control, again, other)
        squared_noise(force, other, noise)
        return 1.0, 1.0
    part = np.empty((rows.shape[0], half))
    for c in range(rows.shape[0]):
        for i in range(half):
            part[c, i] = rows[c, i]
    batch_force(source, theta, phi, control, part, other)
    # The other half's gradient is as far on the other side of the batch's.
    share = (1.0 / b - 1.0 / n) / (1.0 / half - 1.0 / b)
    for a in range(noise.shape[0]):
        noise[a] = share * (force[a] - other[a]) ** 2
    return half / b, 0.0


@inner
def weighted_force(source, rng, theta, phi, control, index, rows, x, scale, length, force, other,
                   noise):  # fmt: skip
    """Write the gradient of a batch from a chain of `length` steps; return how many it accepted.

    `scale` is sqrt(h) / sigma. `noise`, shape (a,), estimates the variance of a uniform batch.
    """
    read_batch(source, rng, index, rows)
    batch_force(source, theta, phi, control, rows, force)
    accepted = 0
    for m in range(length):
        read_batch(source, rng, index, rows)
        batch_force(source, theta, phi, control, rows, other)
        if m == 0:
            squared_noise(force, other, noise)
        log_ratio = 0.0
        for a in range(x.shape[0]):
            there, here = x[a] - scale * other[a], x[a] - scale * force[a]
            log_ratio += 0.5 * (there - here) * (there + here)
        if np.log(rng.random()) < log_ratio:
            copy(other, force)
            accepted += 1
    return accepted


@kept(types.void(GENERATOR, MODEL, SUMS, BATCHES, VECTOR, MATRIX))
def forces(generator, model, sums, batches, theta, out):
    """Write independent stochastic gradients at theta to the lines of `out`, shape (k, a)."""
    rng = generator_at(generator)
    source = source_at(model, sums, batches)
    phi, control = np.empty(sums.center.shape[0]), np.empty(sums.center.shape[0])
    index, rows = np.empty(batches.size, dtype=np.int64), np.zeros((model.width, batches.size))
    place(source, theta, phi, control)
    for k in range(out.shape[0]):
        read_batch(source, rng, index, rows)
        batch_force(source, theta, phi, control, rows, out[k])
