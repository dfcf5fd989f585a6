r"""HMC with energy-conserving subsampling: the compiled transition.

One iteration (Dang et al. 2019, Algorithm 1) refreshes one group of the subsample u by a
pseudo-marginal step and then moves theta by Hamiltonian dynamics on

.. math:: \hat U(\theta) = -\log p(\theta) - \log |\hat L(\theta, u)|

with u held fixed in dynamics and acceptance alike.

The model enters through the functions of `kernels.model`.
"""

from functools import cache

import numpy as np
from numba import types

from pymc_subsample.cache import compile_kept
from pymc_subsample.compile import GENERATOR, INDEX, MATRIX, SCALAR, VECTOR, generator_at, inner
from pymc_subsample.kernels.estimates import DENSITY, PERTURBED, REFRESH, target_at
from pymc_subsample.kernels.model import MINIBATCH

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
    "rows_moved",
    "rows_refreshed",
    "sign",
    "tree_depth",
)
(RATE, ACCEPTED, ENERGY, ENERGY_ERROR, DIVERGING, SUBSET, VARIANCE, POSTERIOR, STEPS, MOVED,
 REFRESHED, SIGN, DEPTH) = range(len(INFO))  # fmt: skip


_SIGNATURE = types.void(
    GENERATOR, INDEX, VECTOR, INDEX, MATRIX, INDEX, types.int64, VECTOR, SCALAR, VECTOR, MATRIX,
    types.int64, INDEX, MATRIX, SCALAR, SCALAR, SCALAR, types.int64, VECTOR, SCALAR, SCALAR,
    SCALAR, types.int64[:, ::1], MATRIX, INDEX, MATRIX, SCALAR, VECTOR,
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

    def transitions(generator, functions, theta, index, rows, counts, group, center, level,
                    slope, curvature, order, active, factor, weight, setting, products, width,
                    origin, radius, step_size, extent, new_index, new_rows, new_counts, exact, unit,
                    info):  # fmt: skip
        """Run one transition per leading element of `new_rows`, in place.

        Parameters
        ----------
        generator : int
            Address of the source of momenta, path jitter and acceptance; see `generator_at`.
        functions : array (4,)
            Addresses of `estimates.FUNCTIONS`, or of `estimates.PRODUCT_FUNCTIONS`.
        theta : array (d,)
            Position; overwritten.
        index : array (m,) or (G x capacity,)
            Row numbers of the subsample, group by group.
        rows : array (C, m) or (G, C x capacity)
            Their packed, anchored rows; groups are overwritten when accepted.
        counts : array (G,)
            Factors per group, one in each for the perturbed estimate.
        group : int
            Which group of the subsample is refreshed first; the next transition takes the next one.
        center, level, slope, curvature : array (P,), float, array (P,), array (P, P)
            Reference point in phi and the full-data sums of l*, gradient and Hessian there.
        order : {0, 1, 2}
            Order of the control variates.
        active : array (a,)
            Elements of theta that move.
        factor : array (a, a), (1, a) or (3, k)
            Of the inverse mass matrix; see `control_variates.factors`.
        weight : float
            n / (m T), with m = 30 for the block-Poisson estimate.
        setting : float
            c, where 0 leaves the variance correction out; or the soft lower bound a.
        products : float
            lambda.
        width : int
            C.
        origin, radius : array (d,), float
            The block-Poisson estimate is confined to the ellipsoid of that radius around the
            origin, in units of the mass matrix.
        step_size, extent : float
            Of the leapfrog integrator, in units of the mass matrix, and the path length or the
            largest depth of a tree.
        new_index, new_rows, new_counts : array (k, B), array (k, C x B), array (k,)
            Proposed rows for k refreshes, packed but not anchored.
        exact, unit : array (C, e), float
            Packed, anchored rows that every perturbed estimate reads, and their weight 1 / T.
        info : array (len(INFO),)
            Means over the k transitions, or sums of counts; position-valued ones are those of the
            last.
        """
        rng = generator_at(generator)
        target = target_at(functions, center, level, slope, curvature, order, weight, setting,
                           products, width, origin, factor, active, radius, exact,
                           unit)  # fmt: skip
        size = index.shape[0] // counts.shape[0] if fixed else MINIBATCH
        k, n_groups = new_rows.shape[0], counts.shape[0]
        phi = np.empty(center.shape[0])
        d = np.empty(index.shape[0])
        grad = np.empty(theta.shape[0])
        for a in range(info.shape[0]):
            info[a] = 0.0

        # Other step methods may have moved parameters on which phi depends: start from theta anew.
        estimate = density(target, rows, counts, theta, phi, d, grad)
        info[MOVED] += size * total(counts) + exact.shape[1]
        for t in range(k):
            g = (group + t) % n_groups
            info[REFRESHED] += size * (counts[g] + 2 * new_counts[t])
            target.forward(theta, phi, np.empty(1))
            if refresh(rng, target, index, rows, counts, g, new_index[t], new_rows[t],
                       new_counts[t], phi, estimate):  # fmt: skip
                info[SUBSET] += 1.0
                estimate = density(target, rows, counts, theta, phi, d, grad)
                info[MOVED] += size * total(counts) + exact.shape[1]
            move = dynamics(rng, density, target, rows, counts, theta, grad, estimate, active,
                            factor, step_size, extent, phi, d)  # fmt: skip
            estimate, probability, moved, diverging, energy, error, n_steps, depth = move
            info[RATE] += probability
            info[ACCEPTED] += moved
            info[ENERGY] = energy
            info[ENERGY_ERROR] = error
            info[DIVERGING] += diverging
            info[STEPS] += n_steps
            info[MOVED] += n_steps * (size * total(counts) + exact.shape[1])
            info[DEPTH] += depth
        info[RATE] /= k
        info[ACCEPTED] /= k
        info[SUBSET] /= k
        info[DEPTH] /= k
        info[VARIANCE] = estimate[2]
        info[POSTERIOR] = estimate[0]
        info[SIGN] = 1.0 if fixed else estimate[1]

    name = f"{__name__} {density.__name__} {dynamics.__name__}"
    compiled = compile_kept(transitions, name, [_SIGNATURE], no_cfunc_wrapper=True)
    return compiled.get_overload(_SIGNATURE)
