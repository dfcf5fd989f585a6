r"""HMC with energy-conserving subsampling: the compiled transition.

One iteration (Dang et al. 2019, Algorithm 1) refreshes one group of the subsample u by a
pseudo-marginal step and then moves theta by Hamiltonian dynamics on

.. math:: \hat U(\theta) = -\log p(\theta) - \log |\hat L(\theta, u)|

with u held fixed in dynamics and acceptance alike.

The model enters through the functions of `kernels.model`.
"""

from collections import namedtuple
from functools import cache

import numpy as np
from numba import types

from pymc_subsample.compiled.cache import kept
from pymc_subsample.compiled.functions import GENERATOR, INDEX, MATRIX, generator_at, inner
from pymc_subsample.kernels.dynamics import COUNTED, MOVES, average, count
from pymc_subsample.kernels.estimates import DENSITY, ESTIMATE, PERTURBED, REFRESH, target_at
from pymc_subsample.kernels.model import MINIBATCH, MODEL, SUMS, Surface
from pymc_subsample.kernels.vectors import clear, copy

# Results of a transition, by position.
INFO = (
    *COUNTED,
    "subset_accepted",
    "loglik_variance",
    "log_posterior",
    "rows_moved",
    "rows_refreshed",
    "sign",
)
SUBSET, VARIANCE, POSTERIOR, MOVED, REFRESHED, SIGN = range(len(COUNTED), len(INFO))


# The subsample: row numbers, array (m,) or (G x capacity,), group by group; packed, anchored rows,
# array (C, m) or (G, C x capacity); factors per group, one in each for the perturbed estimate; and
# which group is refreshed first: the next transition takes the next one.
SubsampleArrays = namedtuple("SubsampleArrays", "index rows counts group")
# Numbers of proposed rows, and where among them those of each of k refreshes start, array (k + 1,).
Fresh = namedtuple("Fresh", "index start")

_SIGNATURE = types.void(
    GENERATOR, MODEL, SUMS, ESTIMATE, MOVES,
    types.NamedTuple([INDEX, MATRIX, INDEX, types.int64], SubsampleArrays),
    types.NamedTuple([INDEX, INDEX], Fresh), MATRIX, MATRIX,
)  # fmt: skip


@inner
def total(counts):
    """Sum of some numbers."""
    result = 0
    for g in range(counts.shape[0]):
        result += counts[g]
    return result


@cache
def transitions(estimator, dynamics):
    """Compile the transition of one estimate, `PERTURBED` or `BLOCK_POISSON`, and one dynamics.

    The latter is `dynamics.trajectory` or `dynamics.tree`. What runs is compiled, and no more.
    """
    density, refresh = DENSITY[estimator], REFRESH[estimator]
    fixed = estimator == PERTURBED

    @inner
    def draw(rng, target, given, moves, subsample, fresh, theta, info, phi, d, grad):
        """Run one transition per refresh of `fresh`, in place."""
        index, rows, counts, group = subsample
        size = index.shape[0] // counts.shape[0] if fixed else MINIBATCH
        k, n_groups, exact = fresh.start.shape[0] - 1, counts.shape[0], given.exact.shape[1]
        clear(info)

        # Other step methods may have moved parameters on which phi depends: start from theta anew.
        surface = Surface(target, rows, counts, phi, d)
        estimate = density(surface, theta, grad)
        info[MOVED] += size * total(counts) + exact
        for t in range(k):
            g = (group + t) % n_groups
            proposed = fresh.index[fresh.start[t] : fresh.start[t + 1]]
            info[REFRESHED] += size * counts[g] + 2 * proposed.shape[0]
            target.forward(theta, phi, np.empty(1))
            if refresh(rng, target, index, rows, counts, g, proposed, phi, estimate):
                info[SUBSET] += 1.0
                estimate = density(surface, theta, grad)
                info[MOVED] += size * total(counts) + exact
            move = dynamics(rng, density, surface, theta, grad, estimate, moves)
            estimate = move.estimate
            count(move, info)
            info[MOVED] += move.n_steps * (size * total(counts) + exact)
        average(info, k)
        info[SUBSET] /= k
        info[VARIANCE] = estimate[2]
        info[POSTERIOR] = estimate[0]
        info[SIGN] = 1.0 if fixed else estimate[1]

    def transitions(generator, model, sums, given, moves, subsample, fresh, thetas, infos):
        """Make draws of the same number of transitions each, one per refresh of `fresh`.

        Groups of the subsample are overwritten when accepted. The first of `thetas`, (n, d), is
        where the chain is; draws are written over them, and to `infos` means over a draw's
        transitions, sums of counts, and what belongs to a position of the last.
        """
        rng = generator_at(generator)
        target = target_at(model, sums, given, moves)
        index, rows, counts, group = subsample
        n, n_groups = thetas.shape[0], counts.shape[0]
        k = (fresh.start.shape[0] - 1) // n
        phi = np.empty(sums.center.shape[0])
        d = np.empty(index.shape[0])
        grad = np.empty(thetas.shape[1])
        for i in range(n):
            if i > 0:
                copy(thetas[i - 1], thetas[i])
            now = SubsampleArrays(index, rows, counts, (group + i * k) % n_groups)
            part = Fresh(fresh.index, fresh.start[i * k : (i + 1) * k + 1])
            draw(rng, target, given, moves, now, part, thetas[i], infos[i], phi, d, grad)

    return kept(_SIGNATURE, no_cfunc_wrapper=True)(transitions).get_overload(_SIGNATURE)
