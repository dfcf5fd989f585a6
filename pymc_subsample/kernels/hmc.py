r"""HMC with energy-conserving subsampling: the compiled transition.

One iteration (Dang et al. 2019, Algorithm 1) refreshes one block of the subsample u by a
pseudo-marginal step and then moves theta by Hamiltonian dynamics on

.. math:: \hat U(\theta) = -\log p(\theta) - \hat\ell_m(\theta) + \tfrac12 \hat\sigma^2_m(\theta)

with u held fixed in dynamics and acceptance alike.

The model enters through the functions of `kernels.model`.
"""

import numba
import numpy as np
from numba import types

from pymc_subsample.compile import FAST, MATRIX, SCALAR, VECTOR, function_at
from pymc_subsample.kernels.control import control_sum
from pymc_subsample.kernels.model import ANCHOR, BACKWARD, DIFFERENCE, FORWARD
from pymc_subsample.kernels.vectors import copy, is_finite, scale_back, scale_up

_FORWARD = types.FunctionType(FORWARD)
_BACKWARD = types.FunctionType(BACKWARD)
_DIFFERENCE = types.FunctionType(DIFFERENCE)
_ANCHOR = types.FunctionType(ANCHOR)

DIVERGENCE = 1000.0

# Of the model, in the order of their addresses.
FUNCTIONS = ("forward", "backward", "difference", "anchor")

# Results of a transition, by position.
INFO = (
    "acceptance_rate",
    "accepted",
    "energy",
    "energy_error",
    "diverging",
    "subset_accepted",
    "loglik_variance",
    "log_posterior",
    "n_steps",
)

_POTENTIAL = types.UniTuple(SCALAR, 2)


@numba.njit(fastmath=FAST)
def moments(d, weight):
    """Return w sum d and w^2 sum (d - mean)^2."""
    total = 0.0
    for i in range(d.shape[0]):
        total += d[i]
    mean = total / d.shape[0]
    second = 0.0
    for i in range(d.shape[0]):
        second += (d[i] - mean) ** 2
    return weight * total, weight * weight * second


@numba.njit(
    _POTENTIAL(
        _FORWARD, _BACKWARD, _DIFFERENCE, VECTOR, VECTOR, SCALAR, VECTOR, MATRIX,
        types.int64, MATRIX,
        SCALAR, SCALAR, VECTOR, VECTOR, VECTOR,
    ),
    cache=True,
)  # fmt: skip
def density(forward, backward, difference, theta, center, level, slope, curvature, order,
            rows, weight, correction, phi, d, grad):  # fmt: skip
    """Estimated log posterior at theta on the given rows.

    Returns
    -------
    logp : float
        log p(theta) + lhat - c/2 s2.
    variance : float
        s2, the estimated variance of lhat.

    `phi`, `d` and `grad` (of `logp`, in theta) are written.
    """
    logprior = np.empty(1)
    grad_phi = np.zeros(phi.shape[0])
    forward(theta, phi, logprior)
    difference(phi, rows, center, weight, correction, d, grad_phi)
    total, variance = moments(d, weight)
    control = control_sum(phi, center, level, slope, curvature, order, grad_phi)
    backward(theta, grad_phi, grad)
    return logprior[0] + control + total - 0.5 * correction * variance, variance


@numba.njit(fastmath=FAST)
def log_estimate(d, weight, correction):
    """Return w sum d - c/2 w^2 sum (d - mean)^2."""
    total, variance = moments(d, weight)
    return total - 0.5 * correction * variance


@numba.njit(
    types.void(
        types.npy_rng, types.int64[::1], VECTOR, types.int64[::1], MATRIX, types.int64, VECTOR,
        SCALAR, VECTOR, MATRIX,
        types.int64, types.int64[::1], MATRIX, SCALAR, SCALAR, SCALAR, SCALAR,
        types.int64[:, ::1], types.Array(types.float64, 3, "C"), VECTOR,
    ),
    cache=True,
    fastmath=FAST,
)  # fmt: skip
def transitions(rng, functions, theta, index, rows, block, center, level, slope, curvature,
                order, active, factor, weight, correction, step_size, path_length,
                new_index, new_rows, info):  # fmt: skip
    """Run one transition per leading element of `new_rows`, in place.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of momenta, path jitter and acceptance.
    functions : array (4,)
        Addresses of `FUNCTIONS`.
    theta : array (d,)
        Position; overwritten.
    index, rows : array (m,), array (C, m)
        Subsample and its packed, anchored rows; blocks are overwritten when accepted.
    block : int
        Which block of the subsample is refreshed first; the next transition takes the next one.
    center, level, slope, curvature : array (P,), float, array (P,), array (P, P)
        Reference point in phi and the full-data sums of l*, gradient and Hessian there.
    order : {0, 1, 2}
        Order of the control variates.
    active : array (a,)
        Elements of theta that move.
    factor : array (a, a) or (1, a)
        Lower-triangular factor of the inverse mass matrix, or its diagonal.
    weight, correction : float
        n / (m T), and 1 (0 leaves the variance correction out).
    step_size, path_length : float
        Of the leapfrog integrator, in units of the mass matrix. Each transition's length is
        drawn uniformly within 20% of `path_length`.
    new_index, new_rows : array (k, b), array (k, C, b)
        Proposed rows for k block refreshes, packed but not anchored.
    info : array (len(INFO),)
        Means over the k transitions; position-valued ones are those of the last.
    """
    forward = function_at(functions[0], _FORWARD)
    backward = function_at(functions[1], _BACKWARD)
    difference = function_at(functions[2], _DIFFERENCE)
    anchor = function_at(functions[3], _ANCHOR)
    size, m, b = active.shape[0], rows.shape[1], new_rows.shape[2]
    k = new_rows.shape[0]
    n_blocks = m // b
    phi = np.empty(center.shape[0])
    d = np.empty(m)
    grad = np.empty(theta.shape[0])
    for a in range(info.shape[0]):
        info[a] = 0.0
    position = np.empty(theta.shape[0])
    gradient = np.empty(theta.shape[0])
    momentum = np.empty(size)
    velocity = np.empty(size)
    force = np.empty(size)
    trial_phi = np.empty(center.shape[0])
    trial_d = np.empty(m)
    scratch = np.empty(center.shape[0])
    new_d = np.empty(b)
    old_d = np.empty(b)

    # Other step methods may have moved parameters on which phi depends: start from theta anew.
    logp, variance = density(forward, backward, difference, theta, center, level, slope,
                             curvature, order, rows, weight, correction, phi, d,
                             grad)  # fmt: skip
    for t in range(k):
        # Pseudo-marginal refresh of one block (eq. 3.5).
        at = ((block + t) % n_blocks) * b
        fresh = new_rows[t]
        anchor(center, fresh)
        difference(phi, fresh, center, weight, correction, new_d, scratch)
        before = log_estimate(d, weight, correction)
        for i in range(b):
            old_d[i] = d[at + i]
            d[at + i] = new_d[i]
        log_ratio = log_estimate(d, weight, correction) - before
        if np.log(rng.random()) < log_ratio:
            for i in range(b):
                index[at + i] = new_index[t, i]
                for c in range(rows.shape[0]):
                    rows[c, at + i] = fresh[c, i]
            info[5] += 1.0
            logp, variance = density(forward, backward, difference, theta, center, level,
                                     slope, curvature, order, rows, weight,
                                     correction, phi, d, grad)  # fmt: skip
        else:
            for i in range(b):
                d[at + i] = old_d[i]

        # Hamiltonian move on this subsample (eq. 3.7), in coordinates where the mass is one.
        length = path_length * (0.8 + 0.4 * rng.random())
        n_steps = max(1, int(np.round(length / step_size)))
        kinetic = 0.0
        for a in range(size):
            momentum[a] = rng.standard_normal()
            kinetic += 0.5 * momentum[a] * momentum[a]
        energy = kinetic - logp
        copy(theta, position)
        copy(grad, gradient)
        new_logp, new_variance = logp, variance
        scale_back(factor, gradient, active, force)
        taken = 0
        for _ in range(n_steps):
            for a in range(size):
                momentum[a] += 0.5 * step_size * force[a]
            scale_up(factor, momentum, velocity)
            for a in range(size):
                position[active[a]] += step_size * velocity[a]
            new_logp, new_variance = density(
                forward, backward, difference, position, center, level, slope, curvature,
                order, rows, weight, correction, trial_phi, trial_d, gradient)  # fmt: skip
            scale_back(factor, gradient, active, force)
            for a in range(size):
                momentum[a] += 0.5 * step_size * force[a]
            taken += 1
            if not is_finite(new_logp) or new_logp < logp - DIVERGENCE:
                break
        kinetic = 0.0
        for a in range(size):
            kinetic += 0.5 * momentum[a] * momentum[a]
        error = kinetic - new_logp - energy
        diverging = not is_finite(error) or error > DIVERGENCE
        probability = 0.0 if diverging else min(1.0, np.exp(-error))
        info[0] += probability
        info[4] += 1.0 if diverging else 0.0
        info[8] += taken
        info[3] = error if is_finite(error) else np.inf
        info[2] = energy
        if rng.random() < probability:
            copy(position, theta)
            copy(gradient, grad)
            copy(trial_phi, phi)
            copy(trial_d, d)
            logp, variance = new_logp, new_variance
            info[1] += 1.0
            info[2] = energy + error
    info[0] /= k
    info[1] /= k
    info[5] /= k
    info[6] = variance
    info[7] = logp
