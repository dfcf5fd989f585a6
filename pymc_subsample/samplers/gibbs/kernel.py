r"""Gibbs sampling of binary variables on growing batches of rows: the compiled transition.

Variable i becomes 1 where

.. math:: \log \frac{u}{1 - u} < \log \frac{p(x_i = 1, x_{-i})}{p(x_i = 0, x_{-i})}
          + \frac{1}{n_i} \sum_{j \in N_i} n_i [f_j(x_i = 1) - f_j(x_i = 0)],

u ~ U(0, 1), with p the prior and :math:`N_i` the :math:`n_i` rows that touch it. The first term is
known, batches without replacement estimate the second, and a test of `samplers.minibatch.decisions`
decides.
"""

from collections import namedtuple

import numpy as np
from numba import types

from pymc_subsample.compiled.cache import kept
from pymc_subsample.compiled.functions import (
    GENERATOR,
    INDEX,
    MATRIX,
    VECTOR,
    function_at,
    generator_at,
    inner,
)
from pymc_subsample.kernels.batches import PERMUTATION
from pymc_subsample.kernels.model import MODEL, functions
from pymc_subsample.kernels.vectors import clear, copy, is_finite
from pymc_subsample.samplers.minibatch.acceptance import CRITERION, MEMBERS, Reader, accept, begun
from pymc_subsample.samplers.minibatch.decisions import ACCEPT, DECIDE

# Of the model, in the order of their addresses.
FUNCTIONS = ("forward", "anchor", "left", "gather")
_functions = functions(FUNCTIONS)

# Results of a run of sweeps, by position: means over all updates, but for the rows.
INFO = ("flips", "batch_size", "n_looks", "error", "rows_read", "rows_touching")
FLIPS, BATCH, LOOKS, ERROR, READ, TOUCHING = range(len(INFO))


# Elements of theta that are sampled, array (a,), each of them 0 or 1, and the rows that touch the
# i-th: `members[start[i]:start[i + 1]]`, arrays (a + 1,) and (.,), unless `all_rows`: then rows 0
# to N - 1 touch each. And whether a sweep visits them in random order.
TouchingArrays = namedtuple("TouchingArrays", "elements start members all_rows shuffled")
_TOUCHING = types.NamedTuple([INDEX, INDEX, MEMBERS, types.boolean, types.boolean], TouchingArrays)


@inner
def _draw(generator, row_generator, model, center, test, touching, permutation, theta, k, info):
    """Run k sweeps from theta, in place."""
    elements, start, members, all_rows, shuffled = touching
    rng, row_rng = generator_at(generator), generator_at(row_generator)
    forward, anchor, left, gather = _functions(model.functions)
    decide = function_at(test.decide, DECIDE)
    size = elements.shape[0]
    order = np.arange(size)
    new_theta = theta.copy()
    phi, new_phi = np.empty_like(center), np.empty_like(center)
    prior, new_prior = np.empty(1), np.empty(1)
    clear(info)
    forward(theta, phi, prior)
    for _ in range(k):
        if shuffled:
            for s in range(size):
                order[s] = s
            for s in range(size - 1):
                other = s + int(rng.random() * (size - s))
                order[s], order[other] = order[other], order[s]
        for s in range(size):
            i = order[s]
            at = elements[i]
            one = theta[at] > 0.5
            new_theta[at] = 0.0 if one else 1.0
            forward(new_theta, new_phi, new_prior)
            known = prior[0] - new_prior[0] if one else new_prior[0] - prior[0]
            uniform = rng.random()
            threshold = np.log(uniform / (1.0 - uniform))
            n = permutation.shape[0] if all_rows else start[i + 1] - start[i]
            own = members if all_rows else members[start[i] : start[i + 1]]
            if n == 0 or not is_finite(known):
                becomes = known > threshold
                if known != known:  # impossible either way
                    becomes = one
            else:
                below, above = phi, new_phi
                if one:
                    below, above = new_phi, phi
                reader = Reader(
                    anchor, left, gather, model.columns, model.width, center, 0, permutation[:n],
                    own, float(n),
                )  # fmt: skip
                unseen = begun(known, threshold, uniform, 0.0, np.nan, np.nan)
                evidence, answer = accept(
                    decide, test.settings, reader, row_rng, below, above, 0, unseen
                )
                becomes = answer.decision == ACCEPT
                info[BATCH] += evidence.n_seen
                info[LOOKS] += evidence.look
                info[ERROR] += answer.error
                info[READ] += evidence.n_seen
            info[TOUCHING] += n
            if becomes != one:
                theta[at] = new_theta[at]
                copy(new_phi, phi)
                prior[0] = new_prior[0]
                info[FLIPS] += 1.0
            else:
                new_theta[at] = theta[at]
    for field in range(READ):  # those before are means
        info[field] /= k * size


@kept(
    types.void(
        GENERATOR, GENERATOR, MODEL, VECTOR, CRITERION, _TOUCHING, PERMUTATION, MATRIX, types.int64,
        MATRIX,
    ),
)  # fmt: skip
def sweeps(generator, row_generator, model, center, test, touching, permutation, thetas, k, infos):
    """Make draws of k sweeps each.

    The generators are of thresholds and orders, and of the rows that are read: the former do not
    depend on how many rows were needed. `center`, of zeros, is not used without control variates;
    `permutation` is 0, 1, ..., up to the most rows that touch one variable. The first of `thetas`,
    (n, d), is where the chain is; draws are written over them, and `INFO` to `infos`.
    """
    for i in range(thetas.shape[0]):
        if i > 0:
            copy(thetas[i - 1], thetas[i])
        _draw(generator, row_generator, model, center, test, touching, permutation, thetas[i], k,
              infos[i])  # fmt: skip
