r"""Hamiltonian dynamics on an estimated log posterior, the subsample held fixed.

Momenta and forces are in coordinates where the mass matrix is the identity:
:math:`\theta = F z`, where F is a factor of the inverse mass matrix. `trajectory` is one
leapfrog trajectory of given length with an acceptance test (Dang et al. 2019, Algorithm 1);
`tree` is the No-U-Turn sampler with multinomial weights [1]_, [2]_, built without recursion as
in [3]_.

References
----------
.. [1] M. D. Hoffman and A. Gelman (2014). The No-U-Turn sampler. Journal of Machine Learning
   Research 15, section 3.
.. [2] M. Betancourt (2017). A conceptual introduction to Hamiltonian Monte Carlo.
   arXiv:1701.02434, appendix A.
.. [3] D. Phan, N. Pradhan and M. Jankowiak (2019). Composable effects for flexible and
   accelerated probabilistic programming in NumPyro. arXiv:1912.11554, section 3.1.
"""

from collections import namedtuple

import numpy as np
from numba import types

from pymc_subsample.compiled.functions import INDEX, MATRIX, SCALAR, inner
from pymc_subsample.kernels.vectors import copy, is_finite, scale_back, scale_up

# Of the length of trajectories: those of one length may come back to where they began (Neal 2011).
# A choice: twice as large would double how much the costs of draws differ.
JITTER = 0.2
DIVERGENCE = 1000.0  # Of the energy, as in Stan and PyMC.
# Error of the energy up to which a trajectory is followed well: the next step of one that is not
# may end anywhere.
_FOLLOWED = 10.0

# How theta moves.
#
# active : array (a,); elements that do
# factor : array (a, a), (1, a) or (3, k); of the inverse mass matrix, as `expansion.factors`
# step_size, extent : in units of the mass matrix, and the path length or largest depth of a tree
Moves = namedtuple("Moves", "active factor step_size extent")
MOVES = types.NamedTuple([INDEX, MATRIX, SCALAR, SCALAR], Moves)


# A point of a trajectory; arrays are overwritten.
#
# position, gradient : arrays (d,); theta, and the gradient of the estimate there
# momentum, force : arrays (a,), where the mass matrix is the identity; the gradient there
# velocity : array (a,), scratch
Phase = namedtuple("Phase", "position gradient momentum force velocity")

# What a transition reports: where it ends, and how it got there.
#
# diverging, crossed : 1.0 where it was given up, and where a step led to a density of zero from a
#     point up to which the trajectory was followed well
# error, largest : of the energy where it ends, and the largest of any of its points
# place : leapfrog steps from where it began to where it ends, negative if they lead back
Transition = namedtuple(
    "Transition",
    "estimate probability moved diverging crossed energy error largest place n_steps depth",
)

# What is counted of several, by position, at the beginning of what a run of them reports.
COUNTED = (
    "acceptance_rate",
    "accepted",
    "energy",
    "energy_error",
    "max_energy_error",
    "index_in_trajectory",
    "diverging",
    "crossed",
    "n_steps",
    "tree_depth",
)
(RATE, ACCEPTED, ENERGY, ERROR, LARGEST, PLACE, DIVERGING, CROSSED, STEPS,
 DEPTH) = range(len(COUNTED))  # fmt: skip


@inner
def larger(one, other):
    """Return the one that is further from zero."""
    return other if abs(other) > abs(one) else one


@inner
def count(transition, info):
    """Add what a transition reports; its energies and place replace those of the one before."""
    info[RATE] += transition.probability
    info[ACCEPTED] += transition.moved
    info[ENERGY] = transition.energy
    info[ERROR] = transition.error
    info[LARGEST] = larger(info[LARGEST], transition.largest)
    info[PLACE] = transition.place
    info[DIVERGING] += transition.diverging
    info[CROSSED] += transition.crossed
    info[STEPS] += transition.n_steps
    info[DEPTH] += transition.depth


@inner
def average(info, n):
    """Make means over n transitions of what is one."""
    info[RATE] /= n
    info[ACCEPTED] /= n
    info[DEPTH] /= n


@inner
def phase(n, size):
    """Make room for a point with `size` of n elements that move."""
    return Phase(np.empty(n), np.empty(n), np.empty(size), np.empty(size), np.empty(size))


@inner
def kinetic(momentum):
    """Half the squared length of a momentum."""
    total = 0.0
    for a in range(momentum.shape[0]):
        total += momentum[a] * momentum[a]
    return 0.5 * total


@inner
def draw_momentum(rng, momentum):
    """Fill with standard normal numbers."""
    for a in range(momentum.shape[0]):
        momentum[a] = rng.standard_normal()


@inner
def leapfrog(density, surface, at, moves, step_size):
    """One step, in place; returns the estimate at the new position.

    `at`, a `Phase`, has the force at its position before and after; what its `gradient` holds
    before is not used. Of `moves`, `active` and `factor` are. `step_size` is negative for a step
    back.
    """
    active, factor = moves.active, moves.factor
    position, gradient, momentum, force, velocity = at
    for a in range(momentum.shape[0]):
        momentum[a] += 0.5 * step_size * force[a]
    scale_up(factor, momentum, velocity)
    for a in range(momentum.shape[0]):
        position[active[a]] += step_size * velocity[a]
    estimate = density(surface, position, gradient)
    scale_back(factor, gradient, active, force)
    for a in range(momentum.shape[0]):
        momentum[a] += 0.5 * step_size * force[a]
    return estimate


@inner
def trajectory(rng, density, surface, theta, grad, estimate, moves):
    """Move theta and grad along one trajectory, in place, if accepted.

    Its length is drawn uniformly within a share `JITTER` of `moves.extent`. `density`,
    `estimates.perturbed` or `estimates.block_poisson`, returned `estimate` at theta.
    """
    active, factor, step_size, path_length = moves
    at = phase(theta.shape[0], active.shape[0])
    length = path_length * (1.0 - JITTER + 2.0 * JITTER * rng.random())
    n_steps = max(1, int(np.round(length / step_size)))
    draw_momentum(rng, at.momentum)
    energy = kinetic(at.momentum) - estimate[0]
    copy(theta, at.position)
    scale_back(factor, grad, active, at.force)
    new, taken, error, crossed, largest = estimate, 0, 0.0, 0.0, 0.0
    for _ in range(n_steps):
        new = leapfrog(density, surface, at, moves, step_size)
        taken += 1
        if not is_finite(new[0]) or new[0] < estimate[0] - DIVERGENCE:
            crossed = 1.0 * (new[0] == -np.inf and abs(error) < _FOLLOWED)
            break
        error = kinetic(at.momentum) - new[0] - energy
        largest = larger(largest, error)
    error = kinetic(at.momentum) - new[0] - energy
    diverging = not is_finite(error) or error > DIVERGENCE
    probability = 0.0 if diverging else min(1.0, np.exp(-error))
    shown = error if is_finite(error) else np.inf
    largest = larger(largest, shown)
    if rng.random() < probability:
        copy(at.position, theta)
        copy(at.gradient, grad)
        return Transition(
            new, probability, 1.0, 1.0 * diverging, 0.0, energy + error, shown, largest,
            1.0 * taken, 1.0 * taken, 0.0,
        )  # fmt: skip
    return Transition(
        estimate, probability, 0.0, 1.0 * diverging, crossed, energy, shown, largest, 0.0,
        1.0 * taken, 0.0,
    )  # fmt: skip


@inner
def turned(left, right, total):
    """Whether a part of a trajectory, given by its end momenta and their sum, has turned back."""
    along_left, along_right = 0.0, 0.0
    for a in range(left.shape[0]):
        middle = total[a] - 0.5 * (left[a] + right[a])
        along_left += left[a] * middle
        along_right += right[a] * middle
    return along_left <= 0.0 or along_right <= 0.0


@inner
def log_add(x, y):
    """Return log(e^x + e^y)."""
    if x < y:
        x, y = y, x
    return x if x == -np.inf else x + np.log1p(np.exp(y - x))


@inner
def bits(n):
    """Return the number of ones among the binary digits of n."""
    count = 0
    while n:
        count += n & 1
        n >>= 1
    return count


@inner
def tree(rng, density, surface, theta, grad, estimate, moves):
    """Move theta and grad to a point of a trajectory that doubles until it turns back.

    Parameters are those of `trajectory`; `moves.extent` is the number of doublings at most. Within
    a subtree points are drawn by their weight; the last doubling's are preferred.
    """
    active, factor, step_size, max_depth = moves
    size, depth_limit = active.shape[0], int(max_depth)
    # Both ends of the trajectory: 0 is the left one.
    ends = np.empty((2, theta.shape[0]))
    end_momentum, end_force = np.empty((2, size)), np.empty((2, size))
    end_change, end_place = np.zeros(2), np.zeros(2)  # Of the energy; steps from the start.
    at = phase(theta.shape[0], size)
    position, gradient, momentum, force, _ = at
    chosen, chosen_grad = np.empty(theta.shape[0]), np.empty(theta.shape[0])
    total, part, of_part = np.empty(size), np.empty(size), np.empty(size)
    # Momenta and sums at the leaves that later ones are compared with.
    leaf_momenta, leaf_sums = np.empty((depth_limit, size)), np.empty((depth_limit, size))

    draw_momentum(rng, momentum)
    energy = kinetic(momentum) - estimate[0]
    scale_back(factor, grad, active, force)
    for side in range(2):
        copy(theta, ends[side])
        copy(momentum, end_momentum[side])
        copy(force, end_force[side])
    copy(momentum, total)
    state, moved, error = estimate, 0.0, 0.0
    log_weight, acceptance, taken, depth, largest, place = 0.0, 0.0, 0, 0, 0.0, 0.0
    diverging, crossed = False, 0.0
    while depth < depth_limit:
        side = 1 if rng.random() < 0.5 else 0
        h = step_size if side else -step_size
        copy(ends[side], position)
        copy(end_momentum[side], momentum)
        copy(end_force[side], force)
        for a in range(size):
            part[a] = 0.0
        before = end_change[side]
        part_weight, candidate, candidate_error, turning = -np.inf, estimate, 0.0, False
        candidate_leaf = 0
        for leaf in range(1 << depth):
            new = leapfrog(density, surface, at, moves, h)
            taken += 1
            change = energy - (kinetic(momentum) - new[0])
            if not is_finite(change):
                change = -np.inf
            acceptance += min(1.0, np.exp(change))
            largest = larger(largest, -change)
            if change < -DIVERGENCE:
                diverging = True
                crossed = 1.0 * (new[0] == -np.inf and abs(before) < _FOLLOWED)
                break
            before = change
            part_weight = log_add(part_weight, change)
            if np.log(rng.random()) < change - part_weight:
                copy(position, chosen)
                copy(gradient, chosen_grad)
                candidate, candidate_error, candidate_leaf = new, -change, leaf
            for a in range(size):
                part[a] += momentum[a]
            last = bits(leaf >> 1)
            if leaf & 1 == 0:
                copy(momentum, leaf_momenta[last])
                copy(part, leaf_sums[last])
            else:
                k, odd = last, leaf
                while odd & 1:
                    for a in range(size):
                        of_part[a] = part[a] - leaf_sums[k, a] + leaf_momenta[k, a]
                    if turned(leaf_momenta[k], momentum, of_part):
                        turning = True
                    k -= 1
                    odd >>= 1
                if turning:
                    break
        if diverging or turning:
            break
        depth += 1
        direction = 1.0 if side else -1.0
        if np.log(rng.random()) < part_weight - log_weight:
            place = end_place[side] + direction * (candidate_leaf + 1)
            copy(chosen, theta)
            copy(chosen_grad, grad)
            state, error, moved = candidate, candidate_error, 1.0
        log_weight = log_add(log_weight, part_weight)
        copy(position, ends[side])
        copy(momentum, end_momentum[side])
        copy(force, end_force[side])
        end_change[side] = before
        end_place[side] += direction * (1 << (depth - 1))
        for a in range(size):
            total[a] += part[a]
        if turned(end_momentum[0], end_momentum[1], total):
            break
    return Transition(
        state, acceptance / taken, moved, 1.0 * diverging, crossed, energy + error, error, largest,
        place, 1.0 * taken, 1.0 * depth,
    )  # fmt: skip
