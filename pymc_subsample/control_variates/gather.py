"""Packing rows out of memory inside compiled code.

A compiled transition that decides by itself how many rows it reads takes them from where they
are: `columns` holds addresses and strides of the raw columns, in bytes, and one function made
for their types packs any rows of them.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_subsample.compile import Compiled, compile_source, load, lower
from pymc_subsample.kernels.model import GATHER
from pymc_subsample.rows import Joined


class RawColumns:
    """Raw columns as compiled code reads them.

    Parameters
    ----------
    columns : sequence of ndarray or Joined
        Rows on the first axis, any strides. Types that compiled code cannot read (half
        precision, foreign byte order) are copied; all others are read in place.
    starts : sequence of int
        First row of every kind.

    Raises
    ------
    TypeError
        If the rows are not arrays in memory or memory-mapped.
    """

    def __init__(
        self, columns: Sequence[np.ndarray | Joined], starts: Sequence[int] = (0,)
    ) -> None:
        # Kept alive as long as their addresses: the arrays that each column is joined of.
        self.arrays: list[list[np.ndarray]] = []
        for column in columns:
            parts = column.parts if isinstance(column, Joined) else (column,)
            for part in parts:
                if not isinstance(part, np.ndarray):
                    raise TypeError(
                        f"This step reads rows in compiled code, from arrays in memory or memory "
                        f"maps; found a column of type {type(part).__name__}. Load it, or use "
                        "HMCECS."
                    )
            self.arrays.append([_readable(part) for part in parts])
        self.starts = starts

    def dtype(self, raw: int) -> np.dtype:
        """Type of a column."""
        return self.arrays[raw][0].dtype

    def element(self, raw: int, element: int) -> list[int]:
        """Per kind of rows, where row 0 would have an element and the bytes from row to row."""
        return [x for address, stride, _ in self._places(raw, element) for x in (address, stride)]

    def whole(self, raw: int) -> list[int]:
        """Per kind of rows, where row 0 would be and the strides."""
        return [x for place in self._places(raw, 0) for x in (*place[:2], *place[2])]

    def _places(self, raw: int, element: int) -> Iterator[tuple[int, int, list[int]]]:
        for array, start in zip(self.arrays[raw], self.starts, strict=True):
            where = np.unravel_index(element, array.shape[1:])
            first, *strides = array.strides
            offset = sum(int(i) * s for i, s in zip(where, strides, strict=True))
            yield array.ctypes.data + offset - start * first, first, strides


def compile_gather(
    columns: RawColumns,
    direct: Sequence[tuple[int, int, int]],
    derived: Sequence[tuple[int, Variable]],
    raw: Sequence[Variable],
    raw_axes: Sequence[int],
) -> tuple[Compiled, np.ndarray]:
    """Compile ``gather(columns, index, rows)``; returns it and the table `columns`.

    Parameters
    ----------
    columns : RawColumns
        The data.
    direct : sequence of (position, raw column, element)
        Packed columns that are elements of raw ones.
    derived : sequence of (position, Variable)
        Packed columns computed from batches of the raw ones.
    raw, raw_axes
        Inputs of `derived` and their row axes.
    """
    n_kinds = len(columns.starts)
    several = n_kinds > 1
    table: list[int] = list(columns.starts[1:])
    lines = ["def gather(columns, index, rows):", "    m = rows.shape[1]"]
    if several:
        lines += [
            "    kind = np.zeros(m, dtype=np.int64)",
            f"    for k in range({n_kinds - 1}):",
            "        for i in range(m):",
            "            kind[i] += index[i] >= columns[k]",
        ]
    kinds: dict[np.dtype, list[tuple[int, int, int]]] = {}
    for position, source, element in direct:
        kinds.setdefault(columns.dtype(source), []).append((position, source, element))
    for dtype, members in kinds.items():
        # Addresses are read out of the inner loop: for all the compiler knows, rows change them.
        width = 1 + 2 * n_kinds
        lines += [
            f"    for k in range({len(table)}, {len(table) + width * len(members)}, {width}):",
            "        position, start, stride = columns[k], columns[k + 1], columns[k + 2]",
            "        for i in range(m):",
            *(["            at = k + 1 + 2 * kind[i]"] if several else []),
            *(["            start, stride = columns[at], columns[at + 1]"] if several else []),
            f"            rows[position, i] = load(start + stride * index[i], np.{dtype})",
        ]
        for position, source, element in members:
            table += position, *columns.element(source, element)
    environment: dict = {"np": np, "load": load}
    key: str | None = "gather"
    if derived:
        graphs = [graph.astype("float64") for _, graph in derived]
        known = set(ancestors(graphs))
        used = [k for k, v in enumerate(raw) if v in known]
        for k in used:
            lines += _batch(k, columns.arrays[k][0], raw_axes[k], len(table), several)
            table += columns.whole(k)
        environment["inner"], key = lower([raw[k] for k in used], graphs)
        results = ", ".join(f"r{j}" for j in range(len(derived)))
        lines.append(f"    {results}, = inner({', '.join(f'a{k}' for k in used)})")
        for j, (position, _) in enumerate(derived):
            lines += ["    for i in range(m):", f"        rows[{position}, i] = r{j}[i]"]
    gather = compile_source("gather", "\n".join(lines), environment, GATHER, key)
    return gather, np.array(table, dtype=np.int64)


def _batch(k: int, array: np.ndarray, axis: int, at: int, several: bool) -> list[str]:
    """Code that copies a batch of a raw column, with the rows on their axis."""
    lengths = [str(s) for s in array.shape[1:]]
    inner = [f"e{j}" for j in range(len(lengths))]
    offsets = [f" + columns[first + {2 + j}] * {e}" for j, e in enumerate(inner)]
    lengths.insert(axis, "m")
    place = inner.copy()
    place.insert(axis, "i")
    lines = [
        f"    a{k} = np.empty(({', '.join(lengths)},), dtype=np.{array.dtype})",
        "    for i in range(m):",
        f"        first = {at}" + f" + {1 + array.ndim} * kind[i]" * several,
        "        at = columns[first] + columns[first + 1] * index[i]",
    ]
    for j, e in enumerate(inner):
        lines.append(f"{'    ' * (j + 2)}for {e} in range({array.shape[1 + j]}):")
    deepest = "    " * (len(inner) + 2)
    lines.append(
        f"{deepest}a{k}[{', '.join(place)}] = load(at{''.join(offsets)}, np.{array.dtype})"
    )
    return lines


def _readable(column: np.ndarray) -> np.ndarray:
    array = np.asarray(column)
    if array.dtype == bool:
        return array.view(np.uint8)
    if not array.dtype.isnative or array.dtype == np.float16 or array.dtype.kind not in "iuf":
        return array.astype(np.float64)
    return array
