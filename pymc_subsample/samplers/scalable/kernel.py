r"""Scalable Metropolis-Hastings: proposals of a surrogate, decided by Poisson thinning of rows.

The surrogate posterior is the prior times :math:`\exp(\sum_i q_i / T)`, with control variates
:math:`q_i` of order 2 that are summed beforehand: it reads no rows, or a few, named beforehand, of
which it has the log-likelihood itself; those decide nothing. Its own transitions are reversible, so
that a proposal :math:`\theta'` is accepted by what the control variates leave,
:math:`\Delta_i = [d_i(\theta') - d_i(\theta)] / T` with :math:`d_i = l_i - q_i`, alone. Where
terms of order 3 are summed beforehand as well, their change is known, and d_i is what order 3
leaves. Bounds :math:`|\Delta_i| \le b_i` decide on it exactly by a few rows: rows are candidates of
a Poisson process with rates :math:`\kappa b_i`, and a candidate is read.

- Factorised: it rejects with probability :math:`\max(-\Delta_i, 0) / (\kappa b_i)`; what no
  candidate rejects is accepted, which has probability :math:`\prod_i \min(1, e^{\Delta_i})` [1]_.
- MH-SS: it is kept with probability :math:`r_i / (\kappa b_i)`, :math:`r_i = \kappa b_i -
  \max(\Delta_i, 0)`. In the other direction the rate of what is kept is :math:`r_i' = \kappa b_i -
  \max(-\Delta_i, 0)`; since :math:`\sum_i (r_i' - r_i) = \sum_i \Delta_i`, the proposal is accepted
  with probability :math:`\min(1, \prod_{kept} r_i' / r_i)` [2]_.

Rows are in strata s; see `strata`. Their bounds are
:math:`b_i = c_i [r_s(\theta)^p + r_s(\theta')^p] / T`, p = 3 or 4. A stratum with higher rates than
it has rows is read whole, which is exact too.

References
----------
.. [1] R. Cornish, P. Vanetti, A. Bouchard-Cote, G. Deligiannidis and A. Doucet (2019). Scalable
   Metropolis-Hastings for exact Bayesian inference with large datasets. ICML, section 3.
.. [2] E. Prado, C. Nemeth and C. Sherlock (2024). Metropolis-Hastings with scalable subsampling.
   arXiv:2407.19602, section 3. With kappa = 1 theirs, and of all rates below a bound the one
   that accepts most.
"""

from collections import namedtuple
from functools import cache

import numpy as np
from numba import types

from pymc_subsample.bounds.kernel import BOUNDS, cubic_sum, distances
from pymc_subsample.compiled.cache import kept
from pymc_subsample.compiled.functions import GENERATOR, MATRIX, SCALAR, generator_at, inner
from pymc_subsample.kernels.batches import CHUNK
from pymc_subsample.kernels.control import control_sum
from pymc_subsample.kernels.dynamics import (
    COUNTED,
    MOVES,
    Transition,
    average,
    count,
    draw_momentum,
    trajectory,
    tree,
)
from pymc_subsample.kernels.model import MODEL, SUMS, Surface, functions
from pymc_subsample.kernels.vectors import clear, copy, is_finite, scale_up

# Of the model, in the order of their addresses.
PARAMETER_FUNCTIONS = ("forward", "backward", "difference")
ROW_FUNCTIONS = ("anchor", "change", "gather")
_functions = functions((*PARAMETER_FUNCTIONS, *ROW_FUNCTIONS))

# Forms of acceptance: Cornish et al. 2019, and Prado et al. 2024.
FACTORISED, MH_SS = 0, 1

# How rows decide: `FACTORISED` or `MH_SS`, kappa and 1 / T.
RowDecision = namedtuple("RowDecision", "form intensity unit")
DECISION = types.NamedTuple([types.int64, SCALAR, SCALAR], RowDecision)

# Results of a run of transitions, by position: means over them, but for sums of counts and what is
# that of the last.
INFO = (
    *COUNTED,
    "rows_accepted",
    "log_surrogate",
    "decisions",
    "rows_drawn",
    "rows_passed",
    "tightness",
    "exceeded",
)
(_ACCEPTED, _SURROGATE, _DECISIONS, _DRAWN, _PASSED, _TIGHTNESS,
 _EXCEEDED) = range(len(COUNTED), len(INFO))  # fmt: skip

# Candidates evaluated at a time. A choice: most proposals have fewer, and those drawn in vain cost
# a random number each; all rows of a stratum are evaluated by `CHUNK`.
_CANDIDATES = 32
# What rounding may do to a row's remainder, over one. A choice: some million roundings of doubles,
# as terms that cancel may be large.
_ROUNDING = 1e-9

# `exact`, shape (width, e), are the rows that it reads, packed and anchored.
Surrogate = namedtuple("Surrogate", "forward backward difference sums exact unit")


@inner
def surrogate(surface, theta, grad):
    """Log density of the surrogate at theta; writes phi and the gradient in theta."""
    target, _, _, phi, _ = surface
    logprior = np.empty(1)
    grad_phi = np.zeros(phi.shape[0])
    target.forward(theta, phi, logprior)
    value = control_sum(phi, target.sums, target.sums.level, grad_phi)
    read = target.exact.shape[1]
    if read > 0:
        left = np.empty(read)
        target.difference(phi, target.exact, target.sums.center, target.unit, 0.0, left, grad_phi)
        for j in range(read):
            value += target.unit * left[j]
    target.backward(theta, grad_phi, grad)
    return logprior[0] + value, 0.0, 0.0


@inner
def walk(rng, density, surface, theta, grad, estimate, moves):
    """One step of a random walk; see `dynamics.trajectory`."""
    active, factor, step_size, _ = moves
    size = active.shape[0]
    z, move = np.empty(size), np.empty(size)
    position, gradient = np.empty(theta.shape[0]), np.empty(theta.shape[0])
    draw_momentum(rng, z)
    scale_up(factor, z, move)
    copy(theta, position)
    for a in range(size):
        position[active[a]] += step_size * move[a]
    new = density(surface, position, gradient)
    error = estimate[0] - new[0]
    probability = min(1.0, np.exp(-error)) if is_finite(error) else 0.0
    shown = error if is_finite(error) else np.inf
    if rng.random() < probability:
        copy(position, theta)
        copy(gradient, grad)
        return Transition(new, probability, 1.0, 0.0, 0.0, -new[0], shown, shown, 1.0, 1.0, 0.0)
    return Transition(
        estimate, probability, 0.0, 0.0, 0.0, -estimate[0], shown, shown, 0.0, 1.0, 0.0
    )


DYNAMICS = {"hmc": trajectory, "nuts": tree, "random-walk": walk}


# How rows are read.
ThinnedReader = namedtuple("ThinnedReader", "anchor change gather columns center width unit")


@inner
def read(reader, index, phi, new_phi, rows, found):
    """Write the Delta_i of rows `index`."""
    reader.gather(reader.columns, index, rows)
    reader.anchor(reader.center, rows)
    reader.change(phi, new_phi, reader.center, rows, found)
    for j in range(found.shape[0]):
        found[j] *= reader.unit


@inner
def read_all(reader, order, first, last, phi, new_phi):
    """Sum the Delta_i of rows `order[first:last]`."""
    total = 0.0
    rows, index = np.empty((reader.width, CHUNK)), np.empty(CHUNK, dtype=np.int64)
    found = np.empty(CHUNK)
    at = first
    while at < last:
        size = min(CHUNK, last - at)
        if size < CHUNK:
            rows, index = np.empty((reader.width, size)), np.empty(size, dtype=np.int64)
            found = np.empty(size)
        for j in range(size):
            index[j] = order[at + j]
        read(reader, index, phi, new_phi, rows, found)
        for j in range(size):
            total += found[j]
        at += size
    return total


@inner
def accept(rng, reader, bounds, rule, phi, new_phi, known, info):
    """Decide on a proposal of the surrogate; returns whether it is accepted.

    `known` is the part of the log-ratio that needs no rows.
    """
    strata, intensity = bounds.total.shape[0], rule.intensity
    near, far = np.empty(strata), np.empty(strata)
    distances(bounds.elements, bounds.metric, strata, phi, reader.center, near)
    distances(bounds.elements, bounds.metric, strata, new_phi, reader.center, far)
    # Rates up to and with each stratum, and b_i / c_i.
    until, reach = np.empty(strata), np.empty(strata)
    rate = 0.0
    always = bounds.always.shape[0]
    if always > 0:
        known += read_all(reader, bounds.always, 0, always, phi, new_phi)
        info[_DRAWN] += always
    for s in range(strata):
        within = 0
        while within < bounds.limits.shape[0]:
            if max(near[s], far[s]) <= bounds.limits[within]:
                break
            within += 1
        reach[s] = np.inf
        if within < bounds.limits.shape[0]:
            powers = near[s] ** 3 + far[s] ** 3
            if bounds.power == 4:
                powers = near[s] ** 4 + far[s] ** 4
            reach[s] = powers * rule.unit * bounds.beyond[s, within]
        first, last = bounds.start[s], bounds.start[s + 1]
        own = intensity * bounds.total[s] * reach[s]
        if last > first and not own < last - first:
            known += read_all(reader, bounds.order, first, last, phi,
                              new_phi)  # fmt: skip
            info[_PASSED] += last - first
        elif last > first:
            rate += own
        until[s] = rate
    log_ratio, s, time, done = known, 0, 0.0, False
    rows, index = np.empty((reader.width, _CANDIDATES)), np.empty(_CANDIDATES, dtype=np.int64)
    found, most = np.empty(_CANDIDATES), np.empty(_CANDIDATES)
    while not done:
        # Arrivals of the process, stratum after stratum; where one is says which row it is.
        size = 0
        while size < _CANDIDATES:
            time -= np.log1p(-rng.random())
            if not time < rate:
                done = True
                break
            while not time < until[s]:
                s += 1
            first, count = bounds.start[s], bounds.start[s + 1] - bounds.start[s]
            own = intensity * bounds.total[s] * reach[s]
            at = first + min(max(int((1.0 - (until[s] - time) / own) * count), 0), count - 1)
            if rng.random() >= bounds.threshold[at]:
                at = first + bounds.alias[at]
            index[size] = bounds.order[at]
            most[size] = bounds.bound[at] * reach[s]
            size += 1
        if size == 0:
            break
        if size < _CANDIDATES:
            rows, index = np.empty((reader.width, size)), index[:size].copy()
            found = np.empty(size)
        read(reader, index, phi, new_phi, rows, found)
        info[_DRAWN] += size
        for j in range(size):
            share = found[j] / most[j]
            if not abs(found[j]) <= most[j] * (1.0 + _ROUNDING) + _ROUNDING:
                info[_EXCEEDED] = index[j]
                return False
            info[_TIGHTNESS] = max(info[_TIGHTNESS], abs(share))
            gain, loss = min(max(share, 0.0), 1.0), min(max(-share, 0.0), 1.0)
            if rule.form == FACTORISED:
                if rng.random() * intensity < loss:
                    return False
            elif rng.random() * intensity < intensity - gain:
                log_ratio += np.log((intensity - loss) / (intensity - gain))
    return np.log(rng.random()) < log_ratio


_SIGNATURE = types.void(
    GENERATOR, MODEL, SUMS, MATRIX, BOUNDS, DECISION, MOVES, types.int64, types.int64, MATRIX,
    MATRIX,
)  # fmt: skip


@cache
def transitions(dynamics):
    """Compile the transitions of one dynamics of `DYNAMICS`, by name."""
    move = DYNAMICS[dynamics]

    @inner
    def draw(rng, target, reader, sums, bounds, rule, moves, steps, k, theta, info):
        """Run k transitions, in place."""
        size = theta.shape[0]
        phi, new_phi = np.empty(sums.center.shape[0]), np.empty(sums.center.shape[0])
        scratch, logprior = np.empty(sums.center.shape[0]), np.empty(1)
        rows, counts, d = np.empty((0, 0)), np.empty(0, dtype=np.int64), np.empty(0)
        grad, start, start_grad = np.empty(size), np.empty(size), np.empty(size)
        clear(info)
        info[_EXCEEDED] = -1.0
        estimate = surrogate(Surface(target, rows, counts, phi, d), theta, grad)
        surface = Surface(target, rows, counts, scratch, d)
        cubic = cubic_sum(bounds.elements, bounds.metric, bounds.cubes, phi, sums.center)
        for _ in range(k):
            copy(theta, start)
            copy(grad, start_grad)
            before, any_moved = estimate, False
            for _ in range(steps):
                found = move(rng, surrogate, surface, theta, grad, estimate, moves)
                estimate = found.estimate
                any_moved = any_moved or found.moved > 0.0
                count(found, info)
            if not any_moved:
                continue
            info[_DECISIONS] += 1.0
            target.forward(theta, new_phi, logprior)
            new_cubic = cubic_sum(bounds.elements, bounds.metric, bounds.cubes, new_phi,
                                  sums.center)  # fmt: skip
            known = rule.unit * (new_cubic - cubic)
            if accept(rng, reader, bounds, rule, phi, new_phi, known, info):
                info[_ACCEPTED] += 1.0
                copy(new_phi, phi)
                cubic = new_cubic
            else:
                copy(start, theta)
                copy(start_grad, grad)
                estimate = before
            if info[_EXCEEDED] >= 0.0:
                break
        average(info, k * steps)
        info[_ACCEPTED] /= max(info[_DECISIONS], 1.0)
        info[_SURROGATE] = estimate[0]

    def transitions(generator, model, sums, exact, bounds, rule, moves, steps, k, thetas, infos):
        """Make draws of k proposals, of so many steps of the surrogate, each.

        Rows `exact`, (width, e), which the surrogate reads, are packed and anchored, and have no
        bounds. The first of `thetas`, (n, d), is where the chain is; draws are written over them,
        and `INFO` to `infos`: to the last where a row exceeds its bound, which ends them.
        """
        rng = generator_at(generator)
        forward, backward, difference, anchor, change, gather = _functions(model.functions)
        target = Surrogate(forward, backward, difference, sums, exact, rule.unit)
        reader = ThinnedReader(
            anchor, change, gather, model.columns, sums.center, model.width, rule.unit
        )
        for i in range(thetas.shape[0]):
            if i > 0:
                copy(thetas[i - 1], thetas[i])
            draw(rng, target, reader, sums, bounds, rule, moves, steps, k, thetas[i], infos[i])
            if infos[i, _EXCEEDED] >= 0.0:
                infos[thetas.shape[0] - 1, _EXCEEDED] = infos[i, _EXCEEDED]
                break

    return kept(_SIGNATURE, no_cfunc_wrapper=True)(transitions).get_overload(_SIGNATURE)
