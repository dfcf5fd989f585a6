"""Rows of units that are on disk: read for some levels at a time."""

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_subsample.graph.concrete import on_disk
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.model.data_columns import column_graph
from pymc_subsample.model.levels import unconverted
from pymc_subsample.rows.columns import StoredColumn
from pymc_subsample.rows.runs import Runs
from pymc_subsample.units.alike import LOOKED, are_alike, first_of_alike

# Rows that are read, and evaluated, together. A choice: 2 MB for each column, which stay in memory
# meanwhile.
PIECE_ROWS = 2**18


class OfLevels:
    """What rows on disk have of their levels, as an array with rows first."""

    on_disk = True

    def __init__(self, values: np.ndarray, index: StoredColumn) -> None:
        self.values, self.index = values, index
        self.shape = (len(index), *values.shape[1:])
        self.ndim, self.dtype = values.ndim, values.dtype

    def __len__(self) -> int:
        return len(self.index)

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return int(np.prod(self.shape, dtype=int))

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return some rows."""
        return self.values[self.index[rows]]


class StoredRows:
    """Columns that rows of a term are read by, computed of those on disk.

    `columns` are those with their axes of rows, and `arrays` what is behind placeholders.
    """

    def __init__(
        self, columns: Sequence[Variable], axes: Sequence[int], arrays: dict[Variable, Any],
        runs: Runs,
    ) -> None:  # fmt: skip
        self.runs = runs
        self._axes, self._together = tuple(axes), False
        graph = column_graph(columns, axes, arrays)
        self._function = numpy_function(list(graph.columns), graph.outputs)
        self._raw = [arrays[old] for old in graph.columns.values()]
        # Types in which numbers that are read as they are stay the same.
        self.types = [_type(arrays.get(v), v) for v in columns]

    @cached_property
    def merged(self) -> "StoredRows":
        """The same for rows that differ within their level: those that are alike count together.

        Itself if few are.
        """
        ends = np.cumsum(self.runs.counts(levels := np.unique(self.runs.levels)))
        some = levels[: 1 + int(np.searchsorted(ends, LOOKED))]
        columns, _ = self._read(some)
        unit = np.repeat(np.arange(len(some)), self.runs.counts(some))
        if not are_alike(unit[:LOOKED], [x[:LOOKED] for x in self._rows_first(columns)]):
            return self
        new = copy(self)
        new._together = True
        return new

    def counts(self, levels: np.ndarray) -> np.ndarray:
        """Return how many rows some levels have that are not alike."""
        if not self._together:
            return self.runs.counts(levels)
        known, counts = self._counted
        place = np.minimum(np.searchsorted(known, levels), len(known) - 1)
        return np.where(known[place] == levels, counts[place], 0)

    @cached_property
    def _counted(self) -> tuple[np.ndarray, np.ndarray]:
        """All levels with rows, and how many of these are not alike: by a pass."""
        levels = np.unique(self.runs.levels)
        found = [np.bincount(self.read(x)[1], minlength=len(x)) for x in self.pieces(levels)]
        return levels, np.concatenate(found)

    def pieces(self, levels: np.ndarray) -> list[np.ndarray]:
        """Return levels whose rows are read together."""
        before = np.cumsum(self.runs.counts(levels)) // PIECE_ROWS
        return np.split(levels, np.flatnonzero(np.diff(before)) + 1)

    def read(
        self, levels: np.ndarray
    ) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
        """Return columns of the rows of some levels, one level after the other.

        And the place of each row's level among these, the row's number and how often it counts.
        """
        columns, rows = self._read(levels)
        unit = np.repeat(np.arange(len(levels)), self.runs.counts(levels))
        if not self._together:
            return columns, unit, rows, np.ones(len(rows), dtype=int)
        first, times = first_of_alike(unit, self._rows_first(columns))
        some = [np.take(x, first, axis=a) for x, a in zip(columns, self._axes, strict=True)]
        return some, unit[first], rows[first], times

    def _rows_first(self, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.moveaxis(x, a, 0) for x, a in zip(columns, self._axes, strict=True)]

    def _read(self, levels: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Return columns of all rows of some levels, and their numbers.

        What rows read of one folder is read in one piece.
        """
        rows = self.runs.rows(levels)
        stored = [c.index if isinstance(c, OfLevels) else c for c in self._raw]
        records = {id(c.store): c.store for c in stored}
        found = {key: store.take(rows) for key, store in records.items()}
        own = [c.of(found[id(c.store)]) for c in stored]
        values = [
            c.values[x] if isinstance(c, OfLevels) else x
            for c, x in zip(self._raw, own, strict=True)
        ]
        return self._function(*values), rows


def _type(array: Any, column: Variable) -> np.dtype:
    types = set(array.types) if isinstance(array, StoredColumn) else set()
    return types.pop() if len(types) == 1 else np.dtype(column.type.dtype)


def stored_index(entry: Variable, arrays: Mapping[Variable, Any]) -> StoredColumn | None:
    """Return the column on disk that an index is, None if it is none."""
    return array if isinstance(array := arrays.get(unconverted(entry)), StoredColumn) else None


def reads_disk(graph: Variable, arrays: Mapping[Variable, Any]) -> bool:
    """Whether a graph is computed of columns on disk."""
    return any(on_disk(arrays.get(v)) for v in ancestors([graph]))
