r"""Langevin dynamics on stochastic gradients: the compiled integration steps.

Positions :math:`\theta = F z` and momenta r are in coordinates where the metric is the identity,
:math:`\hat g` is a stochastic gradient there (see `kernels.gradients`), h the step size,
:math:`\gamma` the friction, T the temperature and :math:`\xi \sim N(0, I)`:

``OVERDAMPED``
    :math:`z' = z + h \hat g(z) + \sqrt{2hT}\, \xi` [1]_
``PRECONDITIONED``
    the same with h replaced, element by element, by :math:`h / (\lambda + \sqrt v)`, where v is a
    moving average of :math:`(\hat g / n)^2` [2]_
``EULER``
    :math:`z' = z + h r, \quad r' = r + h (\hat g(z) - \gamma r) + \sqrt{2 \gamma T h}\, \xi` [3]_
``SYMPLECTIC``
    the same, with the gradient taken at z' [4]_
``THERMOSTAT``
    :math:`r' = r + h (\hat g(z) - \zeta r) + \sqrt{2 \gamma T h}\, \xi, \quad z' = z + h r', \quad
    \zeta' = \zeta + h (|r'|^2 / a - T)` [5]_
``BAOAB``
    half a kick, half a move, :math:`r' = c r + \sqrt{(1 - c^2) T}\, \xi` with
    :math:`c = e^{-\gamma h}`, half a move, half a kick [6]_

References
----------
.. [1] M. Welling and Y. W. Teh (2011). Bayesian learning via stochastic gradient Langevin
   dynamics. ICML.
.. [2] C. Li, C. Chen, D. Carlson and L. Carin (2016). Preconditioned stochastic gradient Langevin
   dynamics for deep neural networks. AAAI. The drift of the preconditioner itself is left out.
.. [3] R. Li, X. Wang, H. Zha and M. Tao (2020). Improving sampling accuracy of stochastic gradient
   MCMC methods via non-uniform subsampling of gradients. arXiv:2002.08949, eq. 3.
.. [4] T. Chen, E. Fox and C. Guestrin (2014). Stochastic gradient Hamiltonian Monte Carlo. ICML,
   eq. 13.
.. [5] N. Ding, Y. Fang, R. Babbush, C. Chen, R. Skeel and H. Neven (2014). Bayesian sampling using
   stochastic gradient thermostats. NeurIPS.
.. [6] B. Leimkuhler and C. Matthews (2013). Rational construction of stochastic numerical methods
   for molecular sampling. Applied Mathematics Research eXpress 2013(1).
"""

import numpy as np
from numba import types

from pymc_subsample.cache import kept
from pymc_subsample.compile import GENERATOR, INDEX, MATRIX, VECTOR, generator_at, inner
from pymc_subsample.kernels.batches import PERMUTATION
from pymc_subsample.kernels.gradients import (
    batch_force,
    batch_noise,
    place,
    read_batch,
    source_at,
    weighted_force,
)
from pymc_subsample.kernels.vectors import scale_up

OVERDAMPED, PRECONDITIONED, EULER, SYMPLECTIC, THERMOSTAT, BAOAB = range(6)
# Where exponential weights expect the dynamics to go: on as before, nowhere, by one, to a stop.
MOMENTUM, ZERO, ONE, STOP = range(4)
# Of positions, momenta and gradients: beyond it a chain starts again.
_BOUND = 1e100

# Numbers that a run of steps depends on.
SETTINGS = (
    "friction",
    "temperature",
    "averaging",
    "floor",
    "index_chain",
    "expected",
    "refresh",
    "done",
    "hold",
    "most",
)

# Results of a run of steps, by position: counts, but for the temperature, which is a mean.
# Divergences are steps whose force outweighs their noise, or that lead to no number.
INFO = ("divergences", "kinetic_temperature", "gradients", "batches", "indices_accepted")


@inner
def shift(active, factor, change, scratch, theta):
    """Move theta by a change of z."""
    scale_up(factor, change, scratch)
    for a in range(active.shape[0]):
        theta[active[a]] += scratch[a]


@inner
def bounded(x):
    """Whether all elements are numbers that can be squared; NaN is not."""
    found = True
    for a in range(x.shape[0]):
        found = found and -_BOUND < x[a] < _BOUND
    return found


@inner
def drift(rng, dynamics, h, friction, temperature, active, factor, force, momentum, change, scratch,
          theta):  # fmt: skip
    """Do what comes before the gradient of a step."""
    if dynamics == SYMPLECTIC:
        for a in range(change.shape[0]):
            change[a] = h * momentum[a]
        shift(active, factor, change, scratch, theta)
    elif dynamics == BAOAB:
        decay = np.exp(-friction * h)
        noise = np.sqrt((1.0 - decay * decay) * temperature)
        for a in range(change.shape[0]):
            half = momentum[a] + 0.5 * h * force[a]
            momentum[a] = decay * half + noise * rng.standard_normal()
            change[a] = 0.5 * h * (half + momentum[a])
        shift(active, factor, change, scratch, theta)


@inner
def kick(rng, dynamics, h, friction, temperature, averaging, floor, n, active, factor, force,
         momentum, memory, change, scratch, theta):  # fmt: skip
    """Do what comes after the gradient of a step."""
    size = change.shape[0]
    if dynamics == BAOAB:
        for a in range(size):
            momentum[a] += 0.5 * h * force[a]
        return
    if dynamics == OVERDAMPED:
        noise = np.sqrt(2.0 * h * temperature)
        for a in range(size):
            change[a] = h * force[a] + noise * rng.standard_normal()
            memory[a] = change[a]
    elif dynamics == PRECONDITIONED:
        for a in range(size):
            square = (force[a] / n) ** 2
            old = memory[a] if memory[a] >= 0.0 else square
            memory[a] = averaging * old + (1.0 - averaging) * square
            g = h / (floor + np.sqrt(memory[a]))
            change[a] = g * force[a] + np.sqrt(2.0 * g * temperature) * rng.standard_normal()
    else:
        noise = np.sqrt(2.0 * friction * temperature * h)
        damping = memory[0] if dynamics == THERMOSTAT else friction
        total = 0.0
        for a in range(size):
            old = momentum[a]
            momentum[a] += h * (force[a] - damping * old) + noise * rng.standard_normal()
            change[a] = h * (momentum[a] if dynamics == THERMOSTAT else old)
            total += momentum[a] * momentum[a]
        if dynamics == THERMOSTAT:
            memory[0] += h * (total / size - temperature)
        if dynamics == SYMPLECTIC:
            return
    shift(active, factor, change, scratch, theta)


@inner
def strength(dynamics, h, temperature, floor, force, memory):
    """Largest drift of a step in one direction, in units of its noise; of a kick, of momenta."""
    largest = 0.0
    if temperature <= 0.0:
        return largest
    for a in range(force.shape[0]):
        ratio = h / np.sqrt(temperature)
        if dynamics == OVERDAMPED:
            ratio = np.sqrt(0.5 * h / temperature)
        elif dynamics == PRECONDITIONED:
            ratio = np.sqrt(0.5 * h / (floor + np.sqrt(memory[a])) / temperature)
        largest = max(largest, ratio * abs(force[a]))
    return largest


@inner
def expectation(dynamics, rule, h, friction, temperature, momentum, memory, x):
    """Write the x of exponential weights; zeros where there is no step to weigh for."""
    if h <= 0.0:
        for a in range(x.shape[0]):
            x[a] = 0.0
        return
    if dynamics == OVERDAMPED:
        scale, value = 1.0 / np.sqrt(2.0 * h * temperature), memory
    else:
        scale, value = np.sqrt(friction * h / (2.0 * temperature)), momentum
        if rule == STOP:
            scale = (friction * h - 1.0) / np.sqrt(2.0 * friction * temperature * h)
    for a in range(x.shape[0]):
        x[a] = scale * value[a] if rule in (MOMENTUM, STOP) else 1.0 * (rule == ONE)


@kept(
    types.void(
        GENERATOR, GENERATOR, types.int64, types.int64, INDEX, INDEX, PERMUTATION, VECTOR,
        VECTOR, INDEX, MATRIX, VECTOR, VECTOR, VECTOR, VECTOR, VECTOR, VECTOR, MATRIX, types.int64,
        types.int64, types.int64, VECTOR, VECTOR, VECTOR,
    ),
)  # fmt: skip
def integrate(generator, row_generator, dynamics, sampling, functions, columns, permutation, theta,
              origin, active, factor, momentum, memory, step_sizes, settings, center, slope,
              curvature, order, width, batch, noise, squares, info):  # fmt: skip
    """Take one integration step per step size from theta, in place.

    Parameters
    ----------
    generator, row_generator : int
        Addresses of the generators of the dynamics, and of the rows; see `generator_at`.
    dynamics : {OVERDAMPED, PRECONDITIONED, EULER, SYMPLECTIC, THERMOSTAT, BAOAB}
    sampling : {UNIFORM, STRATIFIED}
        How batches are drawn.
    functions : array (5,) of int
        Addresses of `kernels.gradients.FUNCTIONS`.
    columns : array of int
        Addresses of the raw columns.
    permutation : array (n,) of uint32
        Rows in the order of their strata; 0, 1, ..., n - 1 where there are none.
    theta, origin : array (d,)
        Position; overwritten. Where a chain starts again after it has diverged.
    active : array (a,)
        Elements of theta that move.
    factor : array (a, a), (1, a) or (3, k)
        F, lower-triangular, or its diagonal.
    momentum : array (a,)
        r; overwritten, not used by overdamped dynamics.
    memory : array (a,)
        Overwritten: the last change of z (overdamped), v, negative at first (preconditioned), or
        zeta in the first element (thermostat).
    step_sizes : array (k,)
        h of each step.
    settings : array (len(SETTINGS),)
        Friction, temperature; averaging and floor of the preconditioner; steps of the chain over
        batches, 0 for uniform batches, and its x; steps after which momenta are drawn anew, 0 for
        never; steps that have been taken before; steps that a uniform batch serves; the `strength`
        beyond which a step diverges.
    center, slope, curvature, order
        Reference in phi and full-data sums of the control variates, of order 0 (none), 1 or 2.
    width, batch : int
        Columns of a packed row, and rows of a batch.
    noise, squares : array (a,)
        Written: an estimate of the variance of each element of a uniform batch's gradient at one
        of the steps, and the mean square of each momentum.
    info : array (len(INFO),)
        Written.
    """
    n, size, p = permutation.shape[0], active.shape[0], center.shape[0]
    rng, row_rng = generator_at(generator), generator_at(row_generator)
    source = source_at(functions, columns, permutation, sampling, active, factor, center, slope,
                       curvature, order, width)  # fmt: skip
    friction, temperature, averaging, floor = settings[0], settings[1], settings[2], settings[3]
    length, rule = int(settings[4]), int(settings[5])
    refresh, done, hold, most = int(settings[6]), int(settings[7]), int(settings[8]), settings[9]
    phi, control = np.empty(p), np.empty(p)
    index, rows = np.empty(batch, dtype=np.int64), np.zeros((width, batch))
    force, other, x = np.empty(size), np.empty(size), np.empty(size)
    change, scratch, unused = np.empty(size), np.empty(size), np.empty(size)
    for a in range(info.shape[0]):
        info[a] = 0.0
    for a in range(size):
        noise[a] = squares[a] = 0.0
    measured = int(row_rng.random() * step_sizes.shape[0])
    if length == 0:
        read_batch(source, row_rng, index, rows)
        info[3] += 1.0
        if dynamics == BAOAB:
            place(source, theta, phi, control)
            batch_force(source, theta, phi, control, rows, force)
            info[2] += 1.0
    for t in range(step_sizes.shape[0]):
        h = step_sizes[t]
        if refresh > 0 and (done + t) % refresh == 0:
            for a in range(size):
                momentum[a] = np.sqrt(temperature) * rng.standard_normal()
        drift(rng, dynamics, h, friction, temperature, active, factor, force, momentum, change,
              scratch, theta)  # fmt: skip
        place(source, theta, phi, control)
        if length > 0:
            expectation(dynamics, rule, h, friction, temperature, momentum, memory, x)
            amplitude = np.sqrt(2.0 * temperature)
            if dynamics != OVERDAMPED:
                amplitude *= np.sqrt(friction)
            info[4] += weighted_force(
                source, row_rng, theta, phi, control, index, rows, x, np.sqrt(h) / amplitude,
                length, force, other, noise if t == measured else unused,
            )  # fmt: skip
            info[2] += length + 1.0
            info[3] += length + 1.0
        else:
            if t > 0 and t % hold == 0:
                read_batch(source, row_rng, index, rows)
                info[3] += 1.0
            batch_force(source, theta, phi, control, rows, force)
            info[2] += 1.0
            if t == measured:
                gradients, batches = batch_noise(
                    source, row_rng, theta, phi, control, index, rows, force, other, noise
                )
                info[2] += gradients
                info[3] += batches
        kick(rng, dynamics, h, friction, temperature, averaging, floor, n, active, factor, force,
             momentum, memory, change, scratch, theta)  # fmt: skip
        fits = strength(dynamics, h, temperature, floor, force, memory) <= most
        if not (fits and bounded(theta) and bounded(force) and bounded(momentum)):
            for a in range(size):
                theta[active[a]] = origin[active[a]]
                force[a] = momentum[a] = 0.0
                memory[a] = -1.0 if dynamics == PRECONDITIONED else 0.0
            if dynamics == THERMOSTAT:
                memory[0] = friction
            info[0] += 1.0
        for a in range(size):
            squares[a] += momentum[a] * momentum[a]
    steps = max(step_sizes.shape[0], 1)
    for a in range(size):
        squares[a] /= steps
        info[1] += squares[a] / size
