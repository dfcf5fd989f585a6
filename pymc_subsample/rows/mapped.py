"""Rows of a model that are on disk: read in one piece each."""

from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from pymc_subsample.rows.columns import StoredColumn
from pymc_subsample.rows.row_store import Joined, RowStore, glimpse, parts_of, places
from pymc_subsample.rows.store import Store


class RepeatedRow:
    """The first row of a column, for n rows of a kind that has no such column."""

    def __init__(self, column: StoredColumn, n_rows: int) -> None:
        self.column, self.dtype = column, column.dtype
        self.shape = (n_rows, *column.row_shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        """Return some rows."""
        return np.broadcast_to(self.column[0], self.shape)[index]


class MappedRows(RowStore):
    """Raw columns on disk, of some kinds of rows: what a row has in one folder is read at once."""

    # Other processes can map the same files.
    shared = True

    def take(self, index: np.ndarray | slice) -> list[np.ndarray]:
        """Return rows `index`, shape (m,), of every column."""
        if isinstance(index, slice):
            return super().take(index)
        index = np.asarray(index)
        if len(self.names) == 1:
            return self._of_kind(0, index)
        rows, order = places(index, self.starts)
        found = [
            self._of_kind(kind, some)
            for kind, some in enumerate(rows)
            if len(some) or not len(index)
        ]
        return [np.concatenate(parts).take(order, axis=0) for parts in zip(*found, strict=True)]

    def touch(self, index: np.ndarray) -> None:
        """Have rows in memory; see `Store.take`."""
        size = self.batch_size()
        for start in range(0, len(index), size):
            self.take(index[start : start + size])

    def _of_kind(self, kind: int, index: np.ndarray) -> list[np.ndarray]:
        parts = [c.parts[kind] if isinstance(c, Joined) else c for c in self.columns]
        stores = {id(part.store): part.store for part in parts if isinstance(part, StoredColumn)}
        records = {key: store.take(index) for key, store in stores.items()}
        return [
            part.of(records[id(part.store)]) if isinstance(part, StoredColumn) else part[index]
            for part in parts
        ]

    @property
    def _parts(self) -> list:
        return [part for column in self.columns for part in parts_of(column)]

    @cached_property
    def _on_disk(self) -> list[StoredColumn]:
        return [part for part in self._parts if isinstance(part, StoredColumn)]

    @cached_property
    def disk(self) -> Store | None:
        """The folder that all columns are in, row by row; None where there are several."""
        stores = {id(c.store): c.store for c in self._on_disk}
        return next(iter(stores.values())) if len(stores) == len(self.names) == 1 else None

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the data, as `Store.fingerprint` does."""
        said = [(c.offsets, [t.str for t in c.types], c.dtype.str) for c in self._on_disk]
        if self.disk is not None:
            return sha256(f"{self.disk.fingerprint}{said}".encode()).hexdigest()
        stores = [c.store.fingerprint for c in self._on_disk]
        held = [glimpse(part).hex() for part in self._parts if isinstance(part, np.ndarray)]
        return sha256(f"{self.starts}{stores}{said}{held}".encode()).hexdigest()
