"""Batches of rows, drawn without replacement."""

from numba import types

from pymc_subsample.compiled.functions import inner

# Rows read and evaluated at a time. A choice: of 16 numbers each they take 32 KB, which is the
# nearest cache of most processors; twice as many only cost more where a test needs fewer.
CHUNK = 256

PERMUTATION = types.Array(types.uint32, 1, "C")


@inner
def draw(rng, permutation, start, index):
    """Draw rows without replacement: elements `start` onwards of a random permutation."""
    n = permutation.shape[0]
    for j in range(index.shape[0]):
        at = start + j
        other = at + int(rng.random() * (n - at))
        row = permutation[other]
        permutation[other] = permutation[at]
        permutation[at] = row
        index[j] = row


@inner
def restore(permutation, count):
    """Undo `count` draws: a row that is not in its place has been drawn."""
    for j in range(count):
        row = permutation[j]
        if row >= count:
            permutation[row] = row
    for j in range(count):
        permutation[j] = j


@inner
def draw_batch(rng, permutation, index):
    """Draw a batch uniformly; `permutation` is 0, 1, ..., n - 1 and left so."""
    draw(rng, permutation, 0, index)
    restore(permutation, index.shape[0])


@inner
def draw_stratified(rng, order, index):
    """Draw one row from each of b strata: equal parts of the rows in some order.

    A row belongs to two strata where a border cuts it, and to a batch with probability b / n in
    any case.
    """
    n, b = order.shape[0], index.shape[0]
    for s in range(b):
        index[s] = order[min(int((s + rng.random()) * n / b), n - 1)]
