"""Columns of rows on disk, under the names of a model."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256

import numpy as np

from pymc_subsample.data.ahead import Ahead
from pymc_subsample.data.layout import Field, view
from pymc_subsample.data.store import Store
from pymc_subsample.rows import RowStore

# How often rows must have come from the disk before they are read ahead.
_SLOW = 3


class Column:
    """Numbers that each row of a store has, read some rows at a time; nothing is copied before.

    Parameters
    ----------
    store : Store
        The rows.
    fields : sequence of Field
        One field; or several of one number each, which become a matrix.
    shape : tuple of int
        What one row has, as the model sees it.
    dtype : numpy.dtype, optional
        In which numbers are read. Default: that of the fields, or the type that holds all of
        theirs.
    """

    on_disk = True

    def __init__(
        self,
        store: Store,
        fields: Sequence[Field],
        shape: tuple[int, ...],
        dtype: np.dtype | None = None,
    ) -> None:
        self.store, self.fields = store, tuple(fields)
        self.row_shape = tuple(shape)
        self.shape = (store.n_rows, *self.row_shape)
        self.ndim = len(self.shape)
        self.dtype = np.result_type(*(f.dtype for f in fields)) if dtype is None else dtype
        parts = [
            (f.offset + f.dtype.itemsize * k, f.dtype) for f in self.fields for k in range(f.size)
        ]
        # Of each number of a row, in order: bytes from the row's start, and its type.
        self.offsets = [offset for offset, _ in parts]
        self.types = [dtype for _, dtype in parts]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return int(np.prod(self.shape, dtype=int))

    def as_type(self, dtype: np.dtype) -> "Column":
        """Return the same numbers, read in another type."""
        return Column(self.store, self.fields, self.row_shape, np.dtype(dtype))

    @property
    def is_view(self) -> bool:
        """Whether its numbers can be seen where they are: of one type, and evenly spaced."""
        steps = set(np.diff(self.offsets).tolist())
        return len(steps) <= 1 and set(self.types) == {self.dtype}

    def of(self, records: np.ndarray) -> np.ndarray:
        """Return the numbers of some rows, shape (m, *row_shape); `records` are their bytes."""
        steps = set(np.diff(self.offsets).tolist())
        if len(steps) <= 1 and len(set(self.types)) == 1:
            numbers = view(records, self.offsets, self.types[0], self.row_shape)
            return numbers.astype(self.dtype, copy=False)
        result = np.empty((len(records), len(self.offsets)), self.dtype)
        for k, (offset, dtype) in enumerate(zip(self.offsets, self.types, strict=True)):
            result[:, k] = view(records, [offset], dtype, ())
        return result.reshape(len(records), *self.row_shape)

    def __getitem__(self, index: int | slice | np.ndarray) -> np.ndarray:
        """Return some rows."""
        if isinstance(index, int | np.integer):
            return self[np.array([index])][0]
        rows = self.store.records[index] if isinstance(index, slice) else self.store.take(index)
        return self.of(rows)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError(
            "A column is read some rows at a time: column[:1000], or column[:] for all."
        )

    def statistic(self, name: str) -> np.ndarray:
        """Return one of `Statistics` of every number of a row, shape `row_shape`."""
        parts = [np.ravel(getattr(self.store.statistics(f.name), name)) for f in self.fields]
        return np.concatenate(parts).reshape(self.row_shape)

    def __eq__(self, other: object) -> bool:
        """Whether two columns have the same numbers, being the same."""
        if not isinstance(other, Column):
            return NotImplemented
        same = self.store.fingerprint == other.store.fingerprint
        return same and (self.offsets, self.types) == (other.offsets, other.types)

    __hash__ = None  # type: ignore[assignment]

    def glimpse(self) -> bytes:
        """Refuse rows that changed; return what identifies the column."""
        self.store.refuse_changes()
        said = f"{self.store.fingerprint}{self.offsets}{self.dtype.str}"
        return sha256(said.encode()).digest()


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
