"""As how many rows those of a unit are laid out, where units have different numbers of them."""

from collections.abc import Iterator

import numpy as np

# What a table more costs, as a share of all rows: its graph is compiled on its own.
_TABLE = 0.25
# Sizes beyond are considered in steps of a quarter at most.
_EXACT, _FINER = 8, 1.25


def filled_up(counts: np.ndarray) -> np.ndarray:
    """Return as how many rows of each term those of each unit are laid out, (units, terms).

    Units whose rows of all terms are filled up to as many make one table. Tables are joined as long
    as that costs less than a table more, and where they have equally many units: rows of terms of
    one length would be taken for the same rows.
    """
    lengths = np.column_stack([_filled(own) for own in counts.T])
    table = _TABLE * counts.sum()
    while True:
        kinds, kind, counts = np.unique(lengths, axis=0, return_inverse=True, return_counts=True)
        joined = np.maximum(kinds[:, None], kinds[None]).sum(axis=2)
        cost = (counts[:, None] + counts) * joined
        own = counts * kinds.sum(axis=1)
        more = cost - own[:, None] - own - table
        more[counts[:, None] == counts] = -np.inf
        more[np.tril_indices(len(kinds))] = np.inf
        one, other = np.unravel_index(np.argmin(more), more.shape)
        if not more[one, other] < 0:
            return lengths
        lengths[np.isin(kind.ravel(), (one, other))] = np.maximum(kinds[one], kinds[other])


def _filled(counts: np.ndarray) -> np.ndarray:
    """Return for each unit as how many rows its own are laid out: the best few sizes."""
    sizes = np.array(list(_sizes(counts)))
    place = np.searchsorted(sizes, counts)
    units = np.bincount(place, minlength=len(sizes)).cumsum()
    table = _TABLE * counts.sum()
    # The least that units of the first j sizes cost, and the size before the last of their tables.
    least, before = [0.0], [0]
    for j, size in enumerate(sizes, 1):
        below = np.concatenate([[0], units])[:j]
        costs = np.array(least) + (units[j - 1] - below) * size + table
        before.append(int(np.argmin(costs)))
        least.append(float(costs[before[-1]]))
    chosen, j = [], len(sizes)
    while j:
        chosen.append(sizes[j - 1])
        j = before[j]
    ends = np.array(chosen[::-1])
    return np.where(counts == 0, 0, ends[np.searchsorted(ends, counts)])


def _sizes(counts: np.ndarray) -> Iterator[int]:
    """Yield sizes that tables may have: those of units, of large ones some."""
    found = np.unique(counts[counts > 0])
    last = 0.0
    for size, following in zip(found, [*found[1:], np.inf], strict=True):
        if size <= _EXACT or following > last * _FINER or following == np.inf:
            last = float(size)
            yield int(size)
