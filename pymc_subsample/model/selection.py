"""Quantities of all rows of which a likelihood reads some: ``eta[event]``, ``eta[:n_events]``.

Each of its rows is computed from the selected rows of the data alone.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)
from pytensor.tensor.type_other import NoneTypeT

from pymc_subsample.graph.concrete import depends_on, fold, on_disk, rebuild, tensor_input
from pymc_subsample.graph.nodes import index_entries
from pymc_subsample.graph.numpy_functions import evaluate
from pymc_subsample.model.batch import batch_graph
from pymc_subsample.model.data_columns import row_number_test
from pymc_subsample.model.errors import CoupledRows, TallModelError
from pymc_subsample.model.trace import RowTrace


def select_in_data(
    outputs: Sequence[Variable], arrays: dict[Variable, np.ndarray], values: Sequence[Variable]
) -> list[Variable]:
    """Move selections of rows from quantities that depend on parameters to the data behind them.

    `arrays`, the data of the placeholders, gains the selected rows of columns; `values` are the
    placeholders of the value variables.
    """
    selected: dict[tuple, Variable] = {}

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        puts = isinstance(node.op, AdvancedIncSubtensor | IncSubtensor)
        if puts and 0 in inputs[1].type.shape:  # nothing, as by a mask that is false
            return [inputs[0]]
        indexes = isinstance(node.op, AdvancedSubtensor | Subtensor)
        where = _selection(node, inputs, arrays, set(values)) if indexes else None
        if where is not None:
            dependent = depends_on([inputs[0]], values)
            with suppress(CoupledRows, TallModelError):
                return [_of_selected_rows(inputs[0], *where, dependent, arrays, selected)]
        picked = pairs(node, inputs, arrays, set(values)) if indexes and where is None else None
        if picked is not None:
            dependent = depends_on([inputs[0]], values)
            with suppress(CoupledRows, TallModelError):
                rows, *index = picked
                some = _of_selected_rows(inputs[0], 0, rows, dependent, arrays, selected)
                return [some[tuple(data_input(i, arrays) for i in index)]]
        return fold(node, inputs)

    return rebuild(outputs, {v: v for v in [*arrays, *values]}, hook)


def _selection(
    node: Apply,
    inputs: list[Variable],
    arrays: Mapping[Variable, np.ndarray],
    values: set[Variable],
) -> tuple[int, np.ndarray | slice] | None:
    """Return the axis and the rows that an index selects once each at most, or None."""
    x = inputs[0]
    if None in x.type.shape or values.isdisjoint(ancestors([x])) or x in values:
        return None
    entries = index_entries(node, inputs)
    chosen = [i for i, e in enumerate(entries) if e != slice(None)]
    if len(chosen) != 1:
        return None
    [axis] = chosen
    entry = entries[axis]
    length = x.type.shape[axis]
    if isinstance(entry, slice):
        ends = [_number(e) for e in (entry.start, entry.stop, entry.step)]
        return None if "unknown" in ends else (axis, slice(*ends))
    if isinstance(entry, int) or entry.type.ndim != 1:
        return None
    roots = [v for v in ancestors([entry]) if v.owner is None]
    if any(v not in arrays and not isinstance(v, Constant) for v in roots):
        return None
    stored = any(on_disk(arrays.get(v)) for v in roots)
    if stored and entry.type.shape != (None,):
        return None  # of columns on disk: a group's
    [rows] = evaluate([entry], arrays)
    rows = np.flatnonzero(rows) if rows.dtype == bool else rows
    if not len(rows) or rows.min() < -length or rows.max() >= length:
        return None
    # An index that repeats rows is a group's, for which the group's quantity is computed once.
    return (axis, rows) if len(np.unique(rows % length)) == len(rows) else None


def pairs(
    node: Apply,
    inputs: Sequence[Variable],
    arrays: Mapping[Variable, np.ndarray],
    values: set[Variable],
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return which rows and columns of a matrix are picked one by one, as by a mask of both.

    Rows, the numbers of what is picked, and columns; None if that is not known of data.
    """
    x, entries = inputs[0], index_entries(node, inputs)
    if x.type.ndim != 2 or None in x.type.shape or 1 in x.type.shape or x in values:
        return None
    index = [e for e in entries if e != slice(None)]
    if values.isdisjoint(ancestors([x])) or not all(isinstance(e, Variable) for e in index):
        return None
    roots = [v for v in ancestors(index) if v.owner is None]
    if any(on_disk(arrays.get(v)) or not (v in arrays or isinstance(v, Constant)) for v in roots):
        return None
    found = [np.asarray(i) for i in evaluate(index, arrays)]
    if len(found) == 1 and found[0].ndim == 2 and found[0].dtype == bool:
        found = list(np.nonzero(found[0]))
    if len(found) != 2 or any(i.ndim != 1 or i.dtype == bool for i in found):
        return None
    rows, columns = found
    if np.array_equal(rows, np.arange(x.type.shape[0])):
        return None  # an entry of each row, which rows have as they are
    inside = len(rows) == len(columns) > 0 and rows.min() >= 0 and rows.max() < x.type.shape[0]
    return (rows, np.arange(len(rows)), columns) if inside else None


def data_input(
    value: np.ndarray, arrays: dict[Variable, np.ndarray], name: str | None = None
) -> Variable:
    """Return a placeholder of known shape for data, which `arrays` gains."""
    new = tensor_input(name, value.dtype, value.shape)
    arrays[new] = value
    return new


def _number(end: Any) -> int | str | None:
    if end is None or isinstance(end, int):
        return end
    if isinstance(end, Constant):
        return None if isinstance(end.type, NoneTypeT) else int(end.data)
    return "unknown"


def _of_selected_rows(
    x: Variable,
    axis: int,
    rows: np.ndarray | slice,
    dependent: set[Variable],
    arrays: dict[Variable, np.ndarray],
    selected: dict[tuple, Variable],
) -> Variable:
    """Compute `x` from the selected rows of its columns; `CoupledRows` if that cannot be done."""
    trace = RowTrace(lambda v: v not in dependent, row_number_test(arrays))
    trace.follow(x, axis)
    columns = [v for v in trace.axes if v.owner is None or trace.stop(v)]
    if not columns or any(v in dependent for v in columns):
        raise CoupledRows(x.owner)

    def some(old: Variable, own: int) -> Variable:
        key = (old, own, str(rows) if isinstance(rows, slice) else rows.tobytes())
        if key not in selected:
            value = arrays[old] if old in arrays else evaluate([old], arrays)[0]
            selected[key] = data_input(value[(*[slice(None)] * own, rows)], arrays, old.name)
        return selected[key]

    return of_columns(x, axis, trace, dependent, arrays, some)


def of_columns(
    x: Variable,
    axis: int,
    trace: RowTrace,
    dependent: set[Variable],
    arrays: dict[Variable, np.ndarray],
    column: Callable[[Variable, int], Variable],
) -> Variable:
    """Compute `x`, whose rows on an axis are traced, of other columns than its own.

    ``column(old, axis)`` takes the place of one that has rows on an axis. Raises `CoupledRows` or
    `TallModelError` where rows depend on each other.
    """
    trace.refuse_reductions(dependent, x.type.shape[axis])
    graph = batch_graph([x], trace, dependent, arrays)
    known: dict[Variable, Variable] = dict(graph.parameters)
    for new, old in graph.columns.items():
        known[new] = column(old, trace.axes[old])
    return rebuild(graph.outputs, known, fold, remake=True)[0]
