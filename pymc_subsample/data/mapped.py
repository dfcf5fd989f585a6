"""Rows of a model that are on disk: read in one piece each."""

from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from pymc_subsample.data.columns import Column
from pymc_subsample.data.store import Store
from pymc_subsample.rows import Joined, RowStore, glimpse, places


class Repeated:
    """The first row of a column, for n rows of a kind that has no such column."""

    def __init__(self, column: Column, n_rows: int) -> None:
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
        if len(self.names) == 1:
            return self._of_kind(0, index)
        if isinstance(index, slice):
            start, stop, step = index.indices(self.n_rows)
            kind = int(np.searchsorted(self.starts, start, "right")) - 1
            if step == 1 and kind < len(self.names) and stop <= self.starts[kind + 1]:
                first = self.starts[kind]
                return self._of_kind(kind, slice(start - first, stop - first))
            index = np.arange(start, stop, step)
        index = np.asarray(index)
        rows, order = places(index, self.starts)
        found = [
            self._of_kind(kind, some)
            for kind, some in enumerate(rows)
            if len(some) or not len(index)
        ]
        return [np.concatenate(parts).take(order, axis=0) for parts in zip(*found, strict=True)]

    def _of_kind(self, kind: int, index: np.ndarray | slice) -> list[np.ndarray]:
        records: dict[int, np.ndarray] = {}
        found = []
        for column in self.columns:
            part = column.parts[kind] if isinstance(column, Joined) else column
            if isinstance(part, Column):
                disk = part.store
                if id(disk) not in records:
                    if isinstance(index, slice):
                        records[id(disk)] = disk.records[index]
                    else:
                        records[id(disk)] = disk.take(index)
                found.append(part.of(records[id(disk)]))
            else:
                found.append(part[index])
        return found

    @property
    def _parts(self) -> list:
        return [p for c in self.columns for p in (c.parts if isinstance(c, Joined) else (c,))]

    @cached_property
    def _on_disk(self) -> list[Column]:
        return [part for part in self._parts if isinstance(part, Column)]

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
