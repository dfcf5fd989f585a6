"""Packing raw columns into the rows that compiled functions read."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pymc_subsample.compiled.functions import Compiled
from pymc_subsample.expansion.gather import RawColumns, compile_gather
from pymc_subsample.graph.affine import DataColumn, RowData
from pymc_subsample.graph.concrete import rebuild
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.model import TallModel


class Packer:
    """Packs columns (one float64 per row): elements of raw columns, or computed by one function."""

    def __init__(self, model: TallModel) -> None:
        self._model = model
        self._axes = model.raw_axes
        self._position: dict[RowData, int] = {}
        self._direct: list[tuple[int, int, int]] = []
        # Of a variable with rows along an axis: where elements of it go, and which.
        self._wholes: dict[tuple[Variable, int], tuple[list[int], list[int]]] = {}
        self._function: Callable | None = None
        self._copies: list[list[int]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle what `pack` needs, once it has been called."""
        return {
            "_copies": self._copies,
            "_wholes": dict(enumerate(self._wholes.values())),
            "_function": self._function,
            "_axes": self._axes,
        }

    def __len__(self) -> int:
        return len(self._position)

    def request(self, column: RowData) -> int:
        """Return the position of a column, adding it if it is new."""
        if column not in self._position:
            position = len(self._position)
            self._position[column] = position
            source = self._model.derived.get(column.var)
            if source in self._model.raw:
                raw = self._model.raw.index(source)
                self._direct.append((position, raw, column.element))
            else:
                key = column.var, column.axis
                places, elements = self._wholes.setdefault(key, ([], []))
                places.append(position)
                elements.append(column.element)
        return self._position[column]

    def request_all(self, var: Variable) -> tuple[int, ...]:
        """Return the positions of every element of a data-only variable of the batch graph."""
        axis = self._model.batch.axes[var]
        size = int(np.prod([s for i, s in enumerate(var.type.shape) if i != axis], dtype=int))
        return tuple(self.request(DataColumn(var, axis, i)) for i in range(size))

    def read(
        self,
        var: Variable,
        column: Callable[[int], Variable],
        block: Callable[[slice], Variable] | None = None,
    ) -> Variable:
        """Return `var` rebuilt from packed columns, with its own dtype and shape.

        ``column(position)`` gives the vector over rows at a position, ``block(positions)`` the
        matrix, shape (k, m), of consecutive ones, which compiles sooner than k vectors.
        """
        places = self.request_all(var)
        axis = self._model.batch.axes[var]
        lengths = [s for i, s in enumerate(var.type.shape) if i != axis]
        if all(s == 1 for s in lengths):
            value = pt.expand_dims(
                column(places[0]), [i for i in range(var.type.ndim) if i != axis]
            )
        else:
            first, last = places[0], places[-1]
            if block is not None and places == tuple(range(first, last + 1)):
                stacked = block(slice(first, last + 1)).T
            else:
                stacked = pt.stack([column(p) for p in places], axis=1)
            value = pt.moveaxis(stacked.reshape((stacked.shape[0], *lengths)), 0, axis)
        return value.astype(var.type.dtype)

    def pack(self, columns: Sequence[np.ndarray], out: np.ndarray) -> np.ndarray:
        """Write a batch of raw columns, rows first, into `out`, shape (>= len(self), m)."""
        if not out.shape[1]:
            return out
        if self._copies is None:
            self._copies = self._runs()
        for start, raw, element, length in self._copies:
            source = columns[raw].reshape(out.shape[1], -1)
            out[start : start + length] = source[:, element : element + length].T
        if self._wholes:
            # The order in which Ops add elements up depends on how these lie in memory, and what
            # Dask sends may lie where PyTensor takes no array.
            arrays = [
                np.moveaxis(np.require(a, requirements=["C", "A"]), 0, axis)
                for a, axis in zip(columns, self._axes, strict=True)
            ]
            values = self._compute(arrays)
            for (places, elements), value in zip(self._wholes.values(), values, strict=True):
                out[places] = value.reshape(len(value), -1).T[elements]
        return out

    def _runs(self) -> list[list[int]]:
        runs: list[list[int]] = []
        for position, raw, element in self._direct:
            if runs:
                start, last_raw, first, length = runs[-1]
                follows = position == start + length and element == first + length
                if raw == last_raw and follows:
                    runs[-1][3] += 1
                    continue
            runs.append([position, raw, element, 1])
        return runs

    def _compute(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self._function is None:
            self._function = numpy_function(self._model.raw, self._graphs())
        compute: Callable = self._function
        return compute(*arrays)

    def _graphs(self) -> list[Variable]:
        """Return what is computed of raw columns, with the rows in front."""
        graphs = [pt.moveaxis(g, axis, 0) for g, axis in self._wholes]
        return rebuild(graphs, dict(self._model.derived))

    def compile_gather(self) -> Compiled:
        """Compile the packing of rows out of memory; see `kernels.model`."""
        self._memory = RawColumns(self._model.rows.columns, self._model.rows.starts[:-1])
        derived = [
            (graph, *where)
            for graph, where in zip(self._graphs(), self._wholes.values(), strict=True)
        ]
        gather, self.table = compile_gather(
            self._memory, self._direct, derived, self._model.raw, self._model.raw_axes
        )
        return gather
