"""Packing rows out of memory inside compiled code.

A compiled transition that decides by itself how many rows it reads takes them from where they
are: `columns` holds addresses and strides of the raw columns, in bytes, and one function made
for their types packs any rows of them.
"""

from collections.abc import Sequence

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_subsample.compile import Compiled, compile_source, load, lower
from pymc_subsample.kernels.model import GATHER


class RawColumns:
    """Raw columns as compiled code reads them.

    Parameters
    ----------
    columns : sequence of ndarray
        Rows on the first axis, any strides. Types that compiled code cannot read (half
        precision, foreign byte order) are copied; all others are read in place.

    Raises
    ------
    TypeError
        If the rows are not arrays in memory or memory-mapped.
    """

    def __init__(self, columns: Sequence[np.ndarray]):
        for column in columns:
            if not isinstance(column, np.ndarray):
                raise TypeError(
                    f"This step reads rows in compiled code, from arrays in memory or memory maps; "
                    f"found a column of type {type(column).__name__}. Load it, or use HMCECS."
                )
        # Kept alive as long as their addresses.
        self.arrays = [_readable(column) for column in columns]

    def element(self, raw: int, element: int) -> tuple[int, int]:
        """Address of an element of row 0 and the bytes from row to row."""
        array = self.arrays[raw]
        where = np.unravel_index(element, array.shape[1:])
        offset = sum(i * s for i, s in zip(where, array.strides[1:], strict=True))
        return array.ctypes.data + int(offset), array.strides[0]

    def whole(self, raw: int) -> tuple[int, ...]:
        """Address of a column and its strides."""
        array = self.arrays[raw]
        return array.ctypes.data, *array.strides


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
    table: list[int] = []
    lines = ["def gather(columns, index, rows):", "    m = rows.shape[1]"]
    kinds: dict[np.dtype, list[tuple[int, int, int]]] = {}
    for position, source, element in direct:
        kinds.setdefault(columns.arrays[source].dtype, []).append((position, source, element))
    for dtype, members in kinds.items():
        # Addresses are read out of the inner loop: for all the compiler knows, rows change them.
        lines += [
            f"    for k in range({len(table)}, {len(table) + 3 * len(members)}, 3):",
            "        position, start, stride = columns[k], columns[k + 1], columns[k + 2]",
            "        for i in range(m):",
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
            lines += _batch(k, columns.arrays[k], raw_axes[k], len(table))
            table += columns.whole(k)
        environment["inner"], key = lower([raw[k] for k in used], graphs)
        results = ", ".join(f"r{j}" for j in range(len(derived)))
        lines.append(f"    {results}, = inner({', '.join(f'a{k}' for k in used)})")
        for j, (position, _) in enumerate(derived):
            lines += ["    for i in range(m):", f"        rows[{position}, i] = r{j}[i]"]
    gather = compile_source("gather", "\n".join(lines), environment, GATHER, key)
    return gather, np.array(table, dtype=np.int64)


def _batch(k: int, array: np.ndarray, axis: int, at: int) -> list[str]:
    """Code that copies a batch of a raw column, with the rows on their axis."""
    lengths = [str(s) for s in array.shape[1:]]
    inner = [f"e{j}" for j in range(len(lengths))]
    offsets = [f" + columns[{at + 2 + j}] * {e}" for j, e in enumerate(inner)]
    lengths.insert(axis, "m")
    place = inner.copy()
    place.insert(axis, "i")
    lines = [
        f"    a{k} = np.empty(({', '.join(lengths)},), dtype=np.{array.dtype})",
        "    for i in range(m):",
        f"        at = columns[{at}] + columns[{at + 1}] * index[i]",
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
