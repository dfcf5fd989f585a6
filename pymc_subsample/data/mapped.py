"""Rows of a model that are on disk: read in one piece each, and ahead where the disk is slow."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from pymc_subsample.data.ahead import Ahead
from pymc_subsample.data.columns import Column
from pymc_subsample.rows import RowStore

# How often rows must have come from the disk before they are read ahead.
_SLOW = 3


class MappedRows(RowStore):
    """Raw columns of one store: a row is read in one piece, whatever columns it has.

    Parameters
    ----------
    columns : sequence of Column
        Of one store, which becomes `disk`.
    kinds : sequence of (tuple of str, int)
        What the rows are rows of, and how many there are.
    """

    # Other processes can map the same file.
    shared = True
    columns: tuple[Column, ...]  # type: ignore[assignment]

    def __init__(
        self, columns: Sequence[Column], kinds: Sequence[tuple[tuple[str, ...], int]]
    ) -> None:
        self.disk = columns[0].store
        super().__init__(columns, self.disk.n_rows, kinds)  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in self.__dict__.items() if name != "ahead"}

    def take(self, index: np.ndarray | slice) -> list[np.ndarray]:
        """Return rows `index`, shape (m,), of every column."""
        records = self.disk.records[index] if isinstance(index, slice) else self._taken(index)
        return [column.of(records) for column in self.columns]

    def _taken(self, index: np.ndarray) -> np.ndarray:
        index = np.asarray(index)
        found = self.ahead.take(index)
        return self.disk.take(index) if found is None else found

    def expect(self, batches: Callable[[], Iterator[np.ndarray]]) -> None:
        """Read rows ahead where the disk is waited for; see `RowStore.expect`."""
        if self.ahead.idle and self.disk.waits >= _SLOW:
            self.ahead.expect(batches())

    @cached_property
    def ahead(self) -> Ahead:
        """Who reads rows before they are asked for."""
        return Ahead(self.disk)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the data, as `Store.fingerprint` does."""
        said = [(c.offsets, [t.str for t in c.types], c.dtype.str) for c in self.columns]
        return sha256(f"{self.disk.fingerprint}{said}".encode()).hexdigest()
