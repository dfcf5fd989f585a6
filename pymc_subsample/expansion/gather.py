"""Packing rows out of memory inside compiled code.

A compiled transition that decides by itself how many rows it reads takes them from where they
are: `columns` holds addresses and strides of the raw columns, in bytes, and one function made
for their types packs any rows of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numba import types
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_subsample.compiled.functions import (
    INDEX,
    MATRIX,
    Compiled,
    Named,
    by_name,
    compile_source,
    load,
    lower,
)
from pymc_subsample.kernels.model import GATHER
from pymc_subsample.rows.columns import StoredColumn
from pymc_subsample.rows.mapped import RepeatedRow
from pymc_subsample.rows.row_store import Joined, parts_of


@dataclass(frozen=True)
class ColumnPlace:
    """Where rows of one kind have a column."""

    # Of the first row, and bytes from row to row.
    address: int
    stride: int
    offsets: list[int]  # Bytes from there to each number of a row, in order.
    types: list[np.dtype]  # Of each number.
    shape: tuple[int, ...]  # What one row has.
    dtype: np.dtype  # In which numbers are wanted.
    owner: object  # Keeps them alive.


def _place(column: np.ndarray | StoredColumn | RepeatedRow) -> ColumnPlace:
    if isinstance(column, RepeatedRow):
        return replace(_place(column.column), stride=0)
    if isinstance(column, StoredColumn):
        records = column.store.scattered
        first, types = records.ctypes.data, [_loaded(t) for t in column.types]
        shape, dtype = column.row_shape, _loaded(column.dtype)
        return ColumnPlace(first, records.strides[0], column.offsets, types, shape, dtype, records)
    if not isinstance(column, np.ndarray):
        raise TypeError(
            "This step reads rows in compiled code, from arrays in memory or memory maps; found a "
            f"column of type {type(column).__name__}. Load it."
        )
    array = _readable(column)
    shape = array.shape[1:]
    offsets = np.zeros(shape, dtype=np.int64)
    for axis, (length, step) in enumerate(zip(shape, array.strides[1:], strict=True)):
        along = [1] * len(shape)
        along[axis] = length
        offsets += (step * np.arange(length)).reshape(along)
    types = [array.dtype] * offsets.size
    return ColumnPlace(
        array.ctypes.data, array.strides[0], offsets.ravel().tolist(), types, shape, array.dtype,
        array,
    )  # fmt: skip


class RawColumns:
    """Raw columns as compiled code reads them, and the first row of every kind.

    Rows are on the first axis, with any strides. Types that compiled code cannot read (half
    precision, foreign byte order) are copied; all others are read in place.

    Raises
    ------
    TypeError
        If the rows are not arrays in memory or memory-mapped.
    """

    def __init__(
        self, columns: Sequence[np.ndarray | Joined | StoredColumn], starts: Sequence[int] = (0,)
    ) -> None:
        self.places = [[_place(part) for part in parts_of(column)] for column in columns]
        self.starts = starts

    def type(self, raw: int, element: int) -> np.dtype:
        """Type of a number of a column."""
        return self.places[raw][0].types[element]

    def element(self, raw: int, element: int) -> list[int]:
        """Per kind of rows, where row 0 would have an element and the bytes from row to row."""
        return [x for p, first in self._rows(raw) for x in (first + p.offsets[element], p.stride)]

    def whole(self, raw: int) -> list[int]:
        """Per kind of rows, where row 0 would be, the stride and the offsets of the numbers."""
        return [x for p, first in self._rows(raw) for x in (first, p.stride, *p.offsets)]

    def _rows(self, raw: int) -> Iterator[tuple[ColumnPlace, int]]:
        for place, start in zip(self.places[raw], self.starts, strict=True):
            yield place, place.address - start * place.stride


def compile_gather(
    columns: RawColumns,
    direct: Sequence[tuple[int, int, int]],
    derived: Sequence[tuple[Variable, Sequence[int], Sequence[int]]],
    raw: Sequence[Variable],
    raw_axes: Sequence[int],
) -> tuple[Compiled, np.ndarray]:
    """Compile ``gather(columns, index, rows)``; returns it and the table `columns`.

    Packed columns `direct` are elements of raw ones: (position, raw column, element). Columns
    `derived`, (graph, positions, elements of a row), are computed from batches of the inputs `raw`.
    """
    n_kinds = len(columns.starts)
    several = n_kinds > 1
    lines = ["def gather(columns, index, rows):", "    m = rows.shape[1]"]
    if several:
        lines += [
            "    kind = np.zeros(m, dtype=np.int64)",
            f"    for k in range({n_kinds - 1}):",
            "        for i in range(m):",
            "            kind[i] += index[i] >= columns[k]",
        ]
    else:
        lines.append("    kind = index")  # which nobody reads
    kinds: dict[np.dtype, list[tuple[int, int, int]]] = {}
    for position, source, element in sorted(direct, key=lambda x: str(columns.type(*x[1:]))):
        kinds.setdefault(columns.type(source, element), []).append((position, source, element))
    # Where those of each type begin and end is in the table too: equal types have one function.
    at = n_kinds - 1
    ends = np.cumsum([at + 2 * len(kinds), *((1 + 2 * n_kinds) * len(x) for x in kinds.values())])
    table = [*columns.starts[1:], *(int(x) for pair in pairwise(ends) for x in pair)]
    environment: dict = {"np": np, "load": load}
    for k, (dtype, members) in enumerate(kinds.items()):
        environment[f"pack_{dtype}"] = _pack(dtype)
        where = at + 2 * k
        lines.append(
            f"    pack_{dtype}(columns, columns[{where}], columns[{where + 1}], {n_kinds}, kind, "
            "index, rows)"
        )
        for position, source, element in members:
            table += position, *columns.element(source, element)
    key: str | None = "gather"
    if derived:
        graphs = [graph.astype("float64") for graph, *_ in derived]
        known = set(ancestors(graphs))
        used = [k for k, v in enumerate(raw) if v in known]
        for k in used:
            lines += _batch(k, columns.places[k][0], raw_axes[k], len(table), several)
            table += columns.whole(k)
        outputs = [
            _flat(graph, elements) for graph, (_, _, elements) in zip(graphs, derived, strict=True)
        ]
        environment["inner"], key = lower([raw[k] for k in used], outputs)
        results = ", ".join(f"r{j}" for j in range(len(derived)))
        lines.append(f"    {results}, = inner({', '.join(f'a{k}' for k in used)})")
        for j, (graph, positions, _) in enumerate(derived):
            if graph.type.ndim == 1:
                lines += [
                    "    for i in range(m):", f"        rows[{positions[0]}, i] = r{j}[i]",
                ]  # fmt: skip
                continue
            for first, last in _consecutive(positions):
                start = positions[first]
                lines += [
                    f"    for n in range({last - first}):",
                    "        for i in range(m):",
                    f"            rows[{start} + n, i] = r{j}[i, {first} + n]",
                ]
    gather = compile_source("gather", "\n".join(lines), environment, GATHER, key)
    return gather, np.array(table, dtype=np.int64)


# Packs columns of one type, of which the table has each one's position and, by kind of row, where
# row 0 would be and the bytes from row to row.
_PACK = """
def {name}(columns, begin, end, n_kinds, kind, index, rows):
    for k in range(begin, end, 1 + 2 * n_kinds):
        position = columns[k]
        if n_kinds == 1:
            # Read out of the inner loop: for all the compiler knows, rows change them.
            start, stride = columns[k + 1], columns[k + 2]
            for i in range(rows.shape[1]):
                rows[position, i] = load(start + stride * index[i], np.{dtype})
        else:
            for i in range(rows.shape[1]):
                at = k + 1 + 2 * kind[i]
                rows[position, i] = load(columns[at] + columns[at + 1] * index[i], np.{dtype})
"""
_PACKING = types.void(INDEX, *[types.int64] * 3, INDEX, INDEX, MATRIX)


def _pack(dtype: np.dtype) -> Named:
    name = f"pack_{dtype}"
    source = _PACK.format(name=name, dtype=dtype)
    made = compile_source(name, source, {"np": np, "load": load}, _PACKING, "pack")
    return by_name(name, made.function, _PACKING)


def _flat(graph: Variable, elements: Sequence[int]) -> Variable:
    """Return elements of rows, (m, k); (m,) as it is, which compiles sooner.

    A graph for each of hundreds of elements would compile for minutes.
    """
    if graph.type.ndim == 1:
        return graph
    return graph.reshape((graph.shape[0], -1))[:, list(elements)]


def _consecutive(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Return where runs of consecutive numbers begin and end."""
    ends = [k for k in range(1, len(positions)) if positions[k] != positions[k - 1] + 1]
    return list(pairwise([0, *ends, len(positions)]))


def _batch(k: int, column: ColumnPlace, axis: int, at: int, several: bool) -> list[str]:
    """Code that copies a batch of a raw column, with the rows on their axis."""
    size, types = len(column.offsets), list(dict.fromkeys(column.types))
    lines = [
        f"    b{k} = np.empty((m, {size}), dtype=np.{column.dtype})",
        "    for i in range(m):",
        f"        first = {at}" + f" + {2 + size} * kind[i]" * several,
        "        at = columns[first] + columns[first + 1] * index[i]",
        f"        for n in range({size}):",
    ]
    for dtype in types:
        members = [j for j, t in enumerate(column.types) if t == dtype]
        chosen = f"if n in ({', '.join(map(str, members))},): " if len(types) > 1 else ""
        lines.append(
            f"            {chosen}b{k}[i, n] = load(at + columns[first + 2 + n], np.{dtype})"
        )
    batch = f"b{k}.reshape(({', '.join(['m', *map(str, column.shape)])},))"
    if axis:
        order = [*range(1, axis + 1), 0, *range(axis + 1, len(column.shape) + 1)]
        batch = f"np.ascontiguousarray({batch}.transpose(({', '.join(map(str, order))})))"
    return [*lines, f"    a{k} = {batch}"]


def _loaded(dtype: np.dtype) -> np.dtype:
    """Type in which compiled code reads numbers."""
    return np.dtype(np.uint8) if dtype.kind == "b" else dtype


def _readable(column: np.ndarray) -> np.ndarray:
    array = np.asarray(column)
    if array.dtype == bool:
        return array.view(np.uint8)
    if not array.dtype.isnative or array.dtype == np.float16 or array.dtype.kind not in "iuf":
        return array.astype(np.float64)
    return array
