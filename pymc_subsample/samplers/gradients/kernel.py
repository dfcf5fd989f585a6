r"""Langevin dynamics on stochastic gradients: the compiled integration steps.

What a step does before and after its gradient is the `integrators`'.
"""

from collections import namedtuple
from functools import cache

import numpy as np
from numba import types

from pymc_subsample.compiled.cache import kept
from pymc_subsample.compiled.functions import GENERATOR, MATRIX, VECTOR, generator_at, inner
from pymc_subsample.kernels.model import MODEL, SUMS
from pymc_subsample.kernels.vectors import clear, copy, named
from pymc_subsample.samplers.gradients.gradient_estimates import BATCHES as DRAWN
from pymc_subsample.samplers.gradients.gradient_estimates import (
    batch_force,
    batch_noise,
    place,
    read_batch,
    source_at,
    weighted_force,
)
from pymc_subsample.samplers.gradients.integrators.integrator import Chain

# Where exponential weights expect the dynamics to go: on as before, nowhere, by one, to a stop.
MOMENTUM, ZERO, ONE, STOP = range(4)
# Of positions, momenta and gradients, whose squares are still finite doubles: beyond it a chain
# starts again.
_BOUND = 1e100

# Numbers that a run of steps depends on.
#
# friction, temperature, averaging, floor : as in `Chain`
# index_chain, expected : steps of the chain over batches, 0 for uniform batches, and its x
# resample : steps after which momenta are drawn anew, 0 for never
# done : steps that have been taken before
# hold : steps that a uniform batch serves
# most : the drift ratio beyond which a step diverges
DynamicsSettings = namedtuple(
    "DynamicsSettings",
    "friction temperature averaging floor index_chain expected resample done hold most",
)
_settings = named(DynamicsSettings)

# Results of a run of steps, by position: counts, but for the temperature, which is a mean.
# Divergences are steps whose force outweighs their noise, or that lead to no number.
INFO = ("divergences", "kinetic_temperature", "gradients", "batches", "indices_accepted")
DIVERGENCES, KINETIC, GRADIENTS, BATCHES, INDICES = range(len(INFO))

# A chain: position and where it starts again after it has diverged, arrays (d,), momenta, which
# overdamped dynamics do not use, and integrator state, arrays (a,); overwritten.
State = namedtuple("State", "theta origin momentum state")

_SIGNATURE = types.void(
    GENERATOR, GENERATOR, MODEL, SUMS, DRAWN,
    types.NamedTuple([VECTOR, VECTOR, VECTOR, VECTOR], State), VECTOR, MATRIX, MATRIX, MATRIX,
    MATRIX, MATRIX,
)  # fmt: skip


@inner
def bounded(x):
    """Whether all elements are numbers that can be squared; NaN is not."""
    found = True
    for a in range(x.shape[0]):
        found = found and -_BOUND < x[a] < _BOUND
    return found


@cache
def integrate(integrator):
    """Compile the steps of one `Integrator`. What runs is compiled, and no more."""
    start, drift, kick = integrator.start, integrator.drift, integrator.kick
    drift_ratio, expectation = integrator.drift_ratio, integrator.expectation
    weighted, reuses_gradient = integrator.weighted, integrator.reuses_gradient

    @inner
    def draw(generator, row_generator, model, sums, batches, at, done, step_sizes, settings, noise,
             squares, info):  # fmt: skip
        """Take one integration step per step size, in place, after `done` others."""
        theta, origin, momentum, state = at
        active, factor, batch = batches.active, batches.factor, batches.size
        n, size, p = batches.permutation.shape[0], active.shape[0], sums.center.shape[0]
        rng, row_rng = generator_at(generator), generator_at(row_generator)
        source = source_at(model, sums, batches)
        given = _settings(settings)
        friction, temperature = given.friction, given.temperature
        length, rule, refresh = int(given.index_chain), int(given.expected), int(given.resample)
        hold = int(given.hold)
        phi, control = np.empty(p), np.empty(p)
        index, rows = np.empty(batch, dtype=np.int64), np.zeros((model.width, batch))
        force, other, x, unused = np.empty(size), np.empty(size), np.empty(size), np.empty(size)
        chain = Chain(n, friction, temperature, given.averaging, given.floor, active, factor, theta,
                      momentum, state, force, np.empty(size), np.empty(size))  # fmt: skip
        clear(info)
        for a in range(size):
            noise[a] = squares[a] = 0.0
        measured = int(row_rng.random() * step_sizes.shape[0])
        if length == 0:
            read_batch(source, row_rng, index, rows)
            info[BATCHES] += 1.0
            if reuses_gradient:
                place(source, theta, phi, control)
                batch_force(source, theta, phi, control, rows, force)
                info[GRADIENTS] += 1.0
        for t in range(step_sizes.shape[0]):
            h = step_sizes[t]
            if refresh > 0 and (done + t) % refresh == 0:
                for a in range(size):
                    momentum[a] = np.sqrt(temperature) * rng.standard_normal()
            drift(rng, chain, h)
            place(source, theta, phi, control)
            if weighted and length > 0:
                amplitude = expectation(chain, h, rule == STOP, x)
                if h <= 0.0 or rule in (ZERO, ONE):
                    for a in range(size):
                        x[a] = 1.0 * (h > 0.0 and rule == ONE)
                info[INDICES] += weighted_force(
                    source, row_rng, theta, phi, control, index, rows, x, np.sqrt(h) / amplitude,
                    length, force, other, noise if t == measured else unused,
                )  # fmt: skip
                info[GRADIENTS] += length + 1.0
                info[BATCHES] += length + 1.0
            else:
                if t > 0 and t % hold == 0:
                    read_batch(source, row_rng, index, rows)
                    info[BATCHES] += 1.0
                batch_force(source, theta, phi, control, rows, force)
                info[GRADIENTS] += 1.0
                if t == measured:
                    gradients, batches = batch_noise(
                        source, row_rng, theta, phi, control, index, rows, force, other, noise
                    )
                    info[GRADIENTS] += gradients
                    info[BATCHES] += batches
            kick(rng, chain, h)
            fits = temperature <= 0.0 or drift_ratio(chain, h) <= given.most
            if not (fits and bounded(theta) and bounded(force) and bounded(momentum)):
                for a in range(size):
                    theta[active[a]] = origin[active[a]]
                    force[a] = momentum[a] = 0.0
                start(friction, state)
                info[DIVERGENCES] += 1.0
            for a in range(size):
                squares[a] += momentum[a] * momentum[a]
        steps = max(step_sizes.shape[0], 1)
        for a in range(size):
            squares[a] /= steps
            info[KINETIC] += squares[a] / size

    def integrate(generator, row_generator, model, sums, batches, at, settings, step_sizes, thetas,
                  noise, squares, infos):  # fmt: skip
        """Make draws of one integration step per step size, shape (n, k), each.

        The generators are of the dynamics, and of the rows. The chain goes on from `at`, whose
        position is overwritten. Written are the draws, `thetas`, (n, d), `INFO`, and, (n, a), an
        estimate of the variance of each element of a uniform batch's gradient at one of the steps,
        and the mean square of each momentum.
        """
        done, k = int(_settings(settings).done), step_sizes.shape[1]
        for i in range(thetas.shape[0]):
            draw(generator, row_generator, model, sums, batches, at, done + i * k, step_sizes[i],
                 settings, noise[i], squares[i], infos[i])  # fmt: skip
            copy(at.theta, thetas[i])

    return kept(_SIGNATURE, no_cfunc_wrapper=True)(integrate).get_overload(_SIGNATURE)
