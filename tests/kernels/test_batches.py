"""Rows are drawn without replacement from a permutation that is left as it was found."""

import numpy as np

from pymc_subsample.kernels.batches import draw, restore


def test_permutation_is_restored():
    rng, n = np.random.default_rng(1), 7
    permutation = np.arange(n, dtype=np.uint32)
    for count in [*range(n + 1)] * 50:
        index = np.empty(count, dtype=np.int64)
        for start in range(0, count, 3):
            draw(rng, permutation, start, index[start : start + 3])
        assert len(set(index.tolist())) == count
        restore(permutation, count)
        np.testing.assert_array_equal(permutation, np.arange(n))
