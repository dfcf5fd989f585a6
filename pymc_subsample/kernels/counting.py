"""Sums of weights by group."""

from pymc_subsample.compiled.cache import kept


@kept(nogil=True)
def count(index, value, weights, out):
    """Add value_i w_ai of each row i to out[a, index_i].

    `index` and `value` have shape (m,), `weights` (k, m), `out` (k, number of groups).
    """
    for a in range(weights.shape[0]):
        for i in range(weights.shape[1]):
            out[a, index[i]] += value[i] * weights[a, i]
