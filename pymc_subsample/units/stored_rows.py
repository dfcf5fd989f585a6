"""Rows of units that are on disk: read for some levels at a time."""

from collections.abc import Mapping, Sequence
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
        graph = column_graph(columns, axes, arrays)
        self._function = numpy_function(list(graph.columns), graph.outputs)
        self._raw = [arrays[old] for old in graph.columns.values()]
        # Types in which numbers that are read as they are stay the same.
        self.types = [_type(arrays.get(v), v) for v in columns]

    def read(self, levels: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Return columns of the rows of some levels, one level after the other, and their numbers.

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
