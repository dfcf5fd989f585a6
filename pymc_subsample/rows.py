"""Where the rows live."""

from collections.abc import Iterator, Sequence

import numpy as np


class RowStore:
    """Raw columns of n rows, in memory or memory-mapped.

    Parameters
    ----------
    columns : sequence of array_like
        Each has the rows on its first axis; views and memory maps are kept as they are.
    n_rows : int
        Number of rows.
    """

    def __init__(self, columns: Sequence[np.ndarray], n_rows: int):
        for column in columns:
            if len(column) != n_rows:
                raise ValueError(f"A column has {len(column)} rows, expected {n_rows}.")
        self.columns = tuple(columns)
        self.n_rows = n_rows

    def take(self, index: np.ndarray) -> list[np.ndarray]:
        """Return rows `index`, shape (m,), of every column, copied."""
        return [column[index] for column in self.columns]

    def chunks(self, size: int) -> Iterator[list[np.ndarray]]:
        """Yield views of consecutive rows, at most `size` at a time."""
        for start in range(0, self.n_rows, size):
            yield [column[start : start + size] for column in self.columns]
