r"""Estimates of a posterior density from a subsample, and the refresh of the subsample.

With residuals :math:`d_i = \ell_i - q_i` and :math:`w = n / (m T)`, either of

.. math:: \log \hat L = \sum_i q_i / T + \hat\ell_d - \tfrac c2 \hat\sigma^2, \quad
          \hat\ell_d = w \sum_u d_u, \quad \hat\sigma^2 = w^2 \sum_u (d_u - \bar d)^2
          \qquad \text{(perturbed)}

.. math:: \hat L = e^{\sum_i q_i / T + a + \lambda} \prod_b \frac{\hat d_b - a}{\lambda}, \quad
          \hat d_b = w \sum_{u \in b} d_u \qquad \text{(block-Poisson)}

The first may read some rows always: then n counts the others, and d of the former adds as it is.
(Dang et al. 2019, eqs. 4.1 to 4.5 and 5.1; :math:`\xi_l` multiplied out). The factors b have 30
rows each and come in G groups of :math:`K_g \sim \mathrm{Pois}(\kappa)`, :math:`\lambda = G
\kappa`. The second estimate is unbiased and may be negative; its absolute value is sampled.
"""

from collections import namedtuple

import numpy as np
from numba import types

from pymc_subsample.compiled.functions import FAST, MATRIX, SCALAR, VECTOR, inner
from pymc_subsample.kernels.control import control_sum
from pymc_subsample.kernels.model import ALONE, BLOCK_POISSON, MINIBATCH, PERTURBED, functions
from pymc_subsample.kernels.vectors import clear, copy, squared_length

# What an estimate is.
#
# weight : n / (m T), with m = 30 for the block-Poisson estimate
# setting : c, where 0 leaves the variance correction out; or the soft lower bound a
# products : lambda
# origin, radius : the block-Poisson estimate is confined to the ellipsoid of that radius around the
#     origin, array (d,), in units of the mass matrix
# exact, unit : array (C, e); packed, anchored rows that every perturbed estimate reads, and their
#     weight 1 / T
SubsampleEstimate = namedtuple(
    "SubsampleEstimate", "weight setting products origin radius exact unit"
)
ESTIMATE = types.NamedTuple(
    [SCALAR, SCALAR, SCALAR, VECTOR, SCALAR, MATRIX, SCALAR], SubsampleEstimate
)

# Everything but the subsample that an estimate at theta depends on.
Target = namedtuple(
    "Target", "forward backward residual anchor gather columns sums given moves width"
)
FUNCTIONS = ("forward", "backward", "residual", "anchor", "gather")
_functions = functions(FUNCTIONS)


@inner
def target_at(model, sums, given, moves):
    """Return a `Target` from the addresses of the model's functions."""
    forward, backward, residual, anchor, gather = _functions(model.functions)
    return Target(
        forward, backward, residual, anchor, gather, model.columns, sums, given, moves, model.width
    )


@inner
def read(target, index):
    """Return rows by their numbers, packed and anchored."""
    rows = np.empty((target.width, index.shape[0]))
    if index.shape[0] > 0:
        target.gather(target.columns, index, rows)
        target.anchor(target.sums.center, rows)
    return rows


@inner(fastmath=FAST)
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


@inner(fastmath=FAST)
def log_products(d, weight, bound, products):
    """Sum of log|(d_b - a) / lambda| over minibatches, its sign, sum of d_b and of squares."""
    log_total, sign, first, second = 0.0, 1.0, 0.0, 0.0
    for start in range(0, d.shape[0], MINIBATCH):
        total = 0.0
        for i in range(start, start + MINIBATCH):
            total += d[i]
        total *= weight
        factor = (total - bound) / products
        if factor < 0:
            sign = -sign
        log_total += np.log(abs(factor))
        first += total
        second += total * total
    return log_total, sign, first, second


@inner
def outside(given, moves, theta):
    """Whether theta lies outside the ellipsoid of the block-Poisson estimate.

    Far from the reference |Lhat| grows as a power of the residuals, however small the
    likelihood; only its sign would average that out.
    """
    rest = np.empty(moves.active.shape[0])
    for a in range(rest.shape[0]):
        rest[a] = theta[moves.active[a]] - given.origin[moves.active[a]]
    return not squared_length(moves.factor, rest) <= given.radius * given.radius


@inner
def group(target, rows, counts, g):
    """Rows of a group of factors, shape (width, 30 K_g), without a copy."""
    size = counts[g] * MINIBATCH
    return rows[g, : target.width * size].reshape((target.width, size))


@inner
def perturbed(surface, theta, grad):
    """Return the perturbed estimate at theta: its log posterior, `carried` and variance.

    `rows`, packed and anchored, are those of the subsample, array (C, m), or, for `block_poisson`,
    of each group of factors one after the other, (G, capacity); `counts`, (G,), are factors per
    group. Written are `phi`, residuals `d`, (m,), of the last group for `block_poisson`, and the
    gradient in theta. `carried` is w sum d, or the sign of Lhat: what `refresh_perturbed` updates.
    """
    target, rows, _, phi, d = surface
    logprior = np.empty(1)
    grad_phi = np.zeros(phi.shape[0])
    target.forward(theta, phi, logprior)
    target.residual(
        phi, rows, target.sums.center, PERTURBED, target.given.weight, target.given.setting, d,
        grad_phi,
    )  # fmt: skip
    total, variance = moments(d, target.given.weight)
    known = 0.0
    if target.given.exact.shape[1] > 0:
        read = np.empty(target.given.exact.shape[1])
        target.residual(
            phi, target.given.exact, target.sums.center, PERTURBED, target.given.unit, 0.0, read,
            grad_phi,
        )  # fmt: skip
        known, _ = moments(read, target.given.unit)
    control = control_sum(phi, target.sums, target.sums.level, grad_phi)
    target.backward(theta, grad_phi, grad)
    value = logprior[0] + control + known + total - 0.5 * target.given.setting * variance
    return value, total, variance


@inner
def block_poisson(surface, theta, grad):
    """Return the block-Poisson estimate; see `perturbed`."""
    target, rows, counts, phi, d = surface
    if outside(target.given, target.moves, theta):
        clear(grad)
        return -np.inf, 1.0, 0.0
    logprior = np.empty(1)
    grad_phi, group_grad = np.zeros(phi.shape[0]), np.empty(phi.shape[0])
    target.forward(theta, phi, logprior)
    value, sign = target.given.setting + target.given.products, 1.0
    n, first, second = 0, 0.0, 0.0
    for g in range(counts.shape[0]):
        if counts[g] == 0:
            continue
        part = d[: counts[g] * MINIBATCH]
        clear(group_grad)
        target.residual(
            phi, group(target, rows, counts, g), target.sums.center, BLOCK_POISSON,
            target.given.weight, target.given.setting, part, group_grad,
        )  # fmt: skip
        logs, factor, one, two = log_products(
            part, target.given.weight, target.given.setting, target.given.products
        )
        for a in range(phi.shape[0]):
            grad_phi[a] += group_grad[a]
        value += logs
        sign *= factor
        first += one
        second += two
        n += counts[g]
    variance = 0.0
    if n > 1:
        variance = (second - first * first / n) / (n - 1) / target.given.products
    control = control_sum(phi, target.sums, target.sums.level, grad_phi)
    target.backward(theta, grad_phi, grad)
    return logprior[0] + control + value, sign, variance


@inner(fastmath=FAST)
def refresh_perturbed(rng, target, index, rows, counts, g, new_index, phi, estimate):
    """Propose rows `new_index`, (B,), for group g, in place (eq. 3.5); whether accepted.

    `index`, (m,) or (G x capacity,), are row numbers of the subsample, group by group. `estimate`
    is that of the current subsample.
    """
    scratch = np.zeros(phi.shape[0])
    b, subsample_size = new_index.shape[0], index.shape[0]
    old = np.empty((target.width, b))
    for c in range(target.width):
        for i in range(b):
            old[c, i] = rows[c, g * b + i]
    fresh = read(target, new_index)
    d_old, d_new = np.empty(b), np.empty(b)
    w, setting = target.given.weight, target.given.setting
    target.residual(phi, old, target.sums.center, ALONE, w, setting, d_old, scratch)
    target.residual(phi, fresh, target.sums.center, ALONE, w, setting, d_new, scratch)
    mean = estimate[1] / (w * subsample_size)
    shift, second = 0.0, 0.0
    for i in range(b):
        shift += d_new[i] - d_old[i]
        second += (d_new[i] - mean) ** 2 - (d_old[i] - mean) ** 2
    second -= shift * shift / subsample_size
    if not np.log(rng.random()) < w * shift - 0.5 * setting * w * w * second:
        return False
    for i in range(b):
        index[g * b + i] = new_index[i]
    for c in range(target.width):
        for i in range(b):
            rows[c, g * b + i] = fresh[c, i]
    return True


@inner(fastmath=FAST)
def refresh_block_poisson(rng, target, index, rows, counts, g, new_index, phi, estimate):
    """Propose new factors for group g; see `refresh_perturbed`."""
    scratch = np.zeros(phi.shape[0])
    b = new_index.shape[0]
    old, fresh = group(target, rows, counts, g), read(target, new_index)
    d_old, d_new = np.empty(old.shape[1]), np.empty(b)
    w, setting = target.given.weight, target.given.setting
    if d_old.shape[0] > 0:
        target.residual(phi, old, target.sums.center, ALONE, w, setting, d_old, scratch)
    if b > 0:
        target.residual(phi, fresh, target.sums.center, ALONE, w, setting, d_new, scratch)
    log_ratio = (
        log_products(d_new, w, setting, target.given.products)[0]
        - log_products(d_old, w, setting, target.given.products)[0]
    )
    if not np.log(rng.random()) < log_ratio:
        return False
    start = g * (index.shape[0] // counts.shape[0])
    for i in range(b):
        index[start + i] = new_index[i]
    counts[g] = b // MINIBATCH
    copy(fresh.ravel(), rows[g])
    return True


DENSITY = {PERTURBED: perturbed, BLOCK_POISSON: block_poisson}
REFRESH = {PERTURBED: refresh_perturbed, BLOCK_POISSON: refresh_block_poisson}
