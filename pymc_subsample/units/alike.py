"""Rows of a level that are alike, which count together."""

from collections.abc import Sequence

import numpy as np

# Of so many rows it is seen whether enough are alike: a tenth, which saves as much time.
LOOKED, _SAVED = 20_000, 0.1


def first_of_alike(
    level: np.ndarray, columns: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first of the rows of a level that are alike, and how many of each there are.

    Columns have rows first.
    """
    n = len(level)
    numbers = np.hstack([
        np.ascontiguousarray(x.reshape(n, -1)).view(np.uint8).reshape(n, -1)
        for x in (level[:, None], *columns)
    ])  # fmt: skip
    keys = np.ascontiguousarray(numbers).view(f"V{numbers.shape[1]}").ravel()
    _, rows, times = np.unique(keys, return_index=True, return_counts=True)
    order = np.argsort(rows)
    return rows[order], times[order]


def are_alike(level: np.ndarray, columns: Sequence[np.ndarray]) -> bool:
    """Whether enough of some rows are alike for it to be worth counting them together."""
    return len(first_of_alike(level, columns)[0]) <= (1 - _SAVED) * len(level)
