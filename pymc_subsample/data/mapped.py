"""Rows of a model that are on disk: read in one piece each."""

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256

import numpy as np

from pymc_subsample.data.columns import Column
from pymc_subsample.rows import RowStore


class MappedRows(RowStore):
    """Raw columns of one store, of some kinds of rows: a row is read in one piece."""

    # Other processes can map the same file.
    shared = True
    columns: tuple[Column, ...]  # type: ignore[assignment]

    def __init__(
        self, columns: Sequence[Column], kinds: Sequence[tuple[tuple[str, ...], int]]
    ) -> None:
        self.disk = columns[0].store
        super().__init__(columns, self.disk.n_rows, kinds)  # type: ignore[arg-type]

    def take(self, index: np.ndarray | slice) -> list[np.ndarray]:
        """Return rows `index`, shape (m,), of every column."""
        records = self.disk.records[index] if isinstance(index, slice) else self.disk.take(index)
        return [column.of(records) for column in self.columns]

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the data, as `Store.fingerprint` does."""
        said = [(c.offsets, [t.str for t in c.types], c.dtype.str) for c in self.columns]
        return sha256(f"{self.disk.fingerprint}{said}".encode()).hexdigest()
