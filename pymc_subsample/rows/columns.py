"""Columns of rows on disk, under the names of a model."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from pymc_subsample.rows.row_format import Field, listed, view
from pymc_subsample.rows.store import Store
from pymc_subsample.validation import LISTED


class StoredColumn:
    """Numbers that each row of a store has, read some rows at a time; nothing is copied before.

    Of one field, or of several of one number each, which become a matrix. `shape` is what one row
    has as the model sees it, `dtype` in which numbers are read; default: the type that holds all of
    them.
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

    def as_type(self, dtype: np.dtype) -> "StoredColumn":
        """Return the same numbers, read in another type."""
        return StoredColumn(self.store, self.fields, self.row_shape, np.dtype(dtype))

    @cached_property
    def _even(self) -> bool:
        return len(set(np.diff(self.offsets))) <= 1 and len(set(self.types)) == 1

    @property
    def is_view(self) -> bool:
        """Whether its numbers can be seen where they are: of one type, and evenly spaced."""
        return self._even and self.types[0] == self.dtype

    def of(self, records: np.ndarray) -> np.ndarray:
        """Return the numbers of some rows, shape (m, *row_shape); `records` are their bytes."""
        if self._even:
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
        if isinstance(index, np.ndarray) and index.dtype.kind in "iu" and np.all(index >= 0):
            return self.of(self.store.take(index))
        return self.of(self.store.records[index])

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
        if not isinstance(other, StoredColumn):
            return NotImplemented
        same = self.store.fingerprint == other.store.fingerprint
        return same and (self.offsets, self.types) == (other.offsets, other.types)

    __hash__ = None  # type: ignore[assignment]

    def glimpse(self) -> bytes:
        """Refuse rows that changed; return what identifies the column."""
        self.store.refuse_changes()
        said = f"{self.store.fingerprint}{self.offsets}{self.dtype.str}"
        return sha256(said.encode()).digest()


class Columns:
    """Columns of a store by name, and what is known of them without reading rows."""

    _store: Store
    # Names, where others were chosen, of a column or of those that make a matrix.
    selection: Mapping[str, list[str] | str] | None
    # Whether a model was compared with all rows, and they with the model.
    checked = False
    # Whether a model was written on a sample that cannot have brought anything else into it.
    complete = False

    def _set(self, store: Store, selection: Mapping[str, list[str] | str] | None) -> None:
        self._store = store
        self.selection = selection
        self.__dict__.pop("_columns", None)

    @classmethod
    def _of(
        cls,
        store: Store,
        selection: Mapping[str, list[str] | str] | None = None,
        checked: bool = False,
    ) -> Self:
        rows = cls.__new__(cls)
        rows._set(store, selection)
        rows.checked = checked
        return rows

    @property
    def path(self) -> Path:
        """The folder."""
        return self._store.path

    @property
    def fingerprint(self) -> str:
        """Identifies all rows and their types."""
        return self._store.fingerprint

    @cached_property
    def _columns(self) -> dict[str, StoredColumn]:
        fields = self._store.fields
        if self.selection is None:
            return {name: StoredColumn(self._store, [f], f.shape) for name, f in fields.items()}
        columns = {}
        for name, chosen in self.selection.items():
            if isinstance(chosen, str):
                columns[name] = StoredColumn(self._store, [fields[chosen]], fields[chosen].shape)
            else:
                columns[name] = StoredColumn(
                    self._store, [fields[c] for c in chosen], (len(chosen),)
                )
        return columns

    @property
    def names(self) -> tuple[str, ...]:
        """Columns, or what `select` calls them."""
        return tuple(self._columns)

    @property
    def shape(self) -> dict[str, tuple[int, ...]]:
        """Shapes by name, rows first."""
        return {name: column.shape for name, column in self._columns.items()}

    @property
    def dtype(self) -> dict[str, np.dtype]:
        """Types by name."""
        return {name: column.dtype for name, column in self._columns.items()}

    @property
    def coords(self) -> Mapping[str, list]:
        """Levels of categorical columns by name."""
        found = {}
        for name, column in self._columns.items():
            levels = column.fields[0].levels
            if levels is not None and not column.row_shape:
                found[name] = list(levels)
        return MappingProxyType(found)

    def __len__(self) -> int:
        return self._store.n_rows

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def column(self, name: str) -> StoredColumn:
        """Return a column, to be read some rows at a time: ``column[:100]``.

        Parameters
        ----------
        name : str
            One of `names`.
        """
        if not isinstance(name, str):
            raise TypeError(
                f"Rows have columns by name, got {name!r}. Some rows of all columns are "
                f"rows.sample(10), and of one column rows[{self.names[0]!r}][:10]."
            )
        if name not in self._columns:
            raise KeyError(f"These rows have no column {name!r}; they have {listed(self.names)}.")
        return self._columns[name]

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a column, shape (n, ...), as it is on disk: nothing is read before it is used.

        A matrix of columns of different types, or not side by side, has no such view: read it by
        `column`.
        """
        column = self.column(name)
        if not column.is_view:
            raise TypeError(
                f"{name!r} is made of columns that are apart on disk, so that all of it would be "
                f"copied. Read some rows of it, rows.column({name!r})[:1000], or its columns one "
                "by one."
            )
        return column[:]

    def select(self, **names: str | Sequence[str]) -> Self:
        """Return the same rows under other names: those of a model's `pm.Data`.

        Parameters
        ----------
        **names : str or sequence of str
            By the new name, a column, or columns of one number per row that become a matrix, shape
            (n, k).

        Returns
        -------
        Rows
            A view: nothing is copied.

        Raises
        ------
        KeyError
            If there is no such column.
        """
        if self.selection is not None:
            raise ValueError("These rows were selected already; select from all of them.")
        if not names:
            raise ValueError('select needs names: rows.select(X=["distance", "wind"], y="late").')
        chosen: dict[str, list[str] | str] = {}
        for name, wanted in names.items():
            several = wanted if isinstance(wanted, str) else list(wanted)
            columns = [several] if isinstance(several, str) else several
            if not columns:
                raise ValueError(f"{name} names no column.")
            for column in columns:
                shape = self.column(column).row_shape
                if shape and not isinstance(several, str):
                    raise ValueError(
                        f"{name}: a list makes a matrix of columns of one number per row, and "
                        f"{column!r} has shape {('n', *shape)}. Select it alone: "
                        f'{name}="{column}".'
                    )
            chosen[name] = several
        return self._of(self._store, chosen)

    def mean(self, name: str) -> Any:
        """Return the mean of a column over all rows, without those that are missing.

        Parameters
        ----------
        name : str
            One of `names`.

        Returns
        -------
        float or ndarray
            Of the shape that one row has. Known since the rows were written.
        """
        return self._statistic(name, "mean")

    def std(self, name: str) -> Any:
        """Return the standard deviation of a column over all rows, as `numpy.std`; see `mean`."""
        return self._statistic(name, "std")

    def min(self, name: str) -> Any:
        """Return the smallest number of a column; see `mean`."""
        return self._statistic(name, "low")

    def max(self, name: str) -> Any:
        """Return the largest number of a column; see `mean`."""
        return self._statistic(name, "high")

    def missing(self, name: str) -> Any:
        """Return how many numbers of a column are NaN; see `mean`."""
        return self._statistic(name, "missing")

    def _statistic(self, name: str, which: str) -> Any:
        found = self.column(name).statistic(which)
        return found if found.ndim else found.item()

    def __repr__(self) -> str:
        by = self._store.by
        order = "" if by is None else f", sorted by {by!r}"
        lines = [f"Rows: {len(self):,} rows of {self._store.row_bytes} bytes at {self.path}{order}"]
        for name, column in list(self._columns.items())[:LISTED]:
            fields = ", ".join(f.name for f in column.fields)
            of = f" of {fields}" if (name,) != tuple(f.name for f in column.fields) else ""
            levels = column.fields[0].levels
            kind = f", {len(levels):,} levels" if levels is not None else ""
            shape = " x ".join(map(str, column.row_shape))
            missing = int(column.statistic("missing").sum())
            holes = f", {missing:,} missing" if missing else ""
            lines.append(f"  {name}: {column.dtype}{f' x {shape}' * bool(shape)}{of}{kind}{holes}")
        hidden = len(self._columns) - LISTED
        return "\n".join(lines + [f"  and {hidden} more"] * (hidden > 0))
