"""Arrays that are put together of others, as of what is known and what is missing of a column.

What rows read of ``set_subtensor(known[where], x)``, or of arrays that are joined, is an index of
the elements of x, and some rows read none.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import AllocEmpty, Join, Nonzero
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor
from pytensor.tensor.type_other import NoneTypeT

from pymc_subsample.graph.concrete import depends_on, fold, on_disk, rebuild, tensor_input
from pymc_subsample.graph.nodes import index_entries
from pymc_subsample.graph.numpy_functions import evaluate
from pymc_subsample.model.batch import batch_graph
from pymc_subsample.model.data_columns import row_number_test
from pymc_subsample.model.errors import CoupledRows, TallModelError
from pymc_subsample.model.trace import RowTrace

# The name of an index of which -1 says that there is none, where negative numbers of a user's count
# from the end. Selections of its rows keep it.
PLACES = "places, -1 where there is none"


def read_by_places(
    outputs: Sequence[Variable],
    arrays: dict[Variable, np.ndarray],
    values: Sequence[Variable],
    shortest: int,
) -> list[Variable]:
    """Let rows read by an index what is put among other values, in arrays of so many rows or more.

    ``set_subtensor(base[where], x)`` becomes ``switch(places >= 0, x[places], base)``. `arrays`,
    the data of the placeholders, gains the places.
    """

    def read(places: np.ndarray, x: Variable, base: Variable) -> Variable:
        index = placed(places, arrays)
        if (places >= 0).all():
            return x[index]
        more = ["x"] * (base.type.ndim - places.ndim)
        return pt.switch(pt.ge(index, 0).dimshuffle(*range(places.ndim), *more), x[index], base)

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if isinstance(node.op, Nonzero):  # of a mask, so that it is known how many there are
            where = [_known(out, arrays) for out in node.op.make_node(*inputs).outputs]
            return None if where[0] is None else [data_input(x, arrays) for x in where]
        if isinstance(node.op, AdvancedSubtensor):
            found = _unmasked(node, inputs, arrays, values)
            return fold(node, inputs) if found is None else [found]
        out = node.outputs[0].type
        puts = isinstance(node.op, Join | AdvancedIncSubtensor | IncSubtensor)
        if not puts or depends_on(inputs, values).isdisjoint(inputs) or not out.ndim:
            return fold(node, inputs)
        if isinstance(node.op, Join):
            lengths = [i.type.shape[0] for i in inputs]
            if None in lengths:
                return None
            ends = np.cumsum(lengths)
            if node.op.axis % out.ndim or None in out.shape or ends[-1] < shortest:
                return None
            found = pt.zeros(out.shape, out.dtype)
            for part, end in zip(inputs, ends, strict=True):
                start = end - part.type.shape[0]
                rows = np.arange(ends[-1])
                places = np.where((rows >= start) & (rows < end), rows - start, -1)
                found = read(places, part.astype(out.dtype), found)
            return [found]
        x, y = inputs[:2]
        if None in out.shape or x.type.shape[0] < shortest:
            return None
        known = _places(node, inputs, arrays)
        if known is None:
            return None
        base = pt.zeros(out.shape, out.dtype) if isinstance(x.owner_op, AllocEmpty) else x
        return [read(known, y.astype(out.dtype), base)]

    return rebuild(outputs, {v: v for v in [*arrays, *values]}, hook)


def _unmasked(
    node: Apply,
    inputs: Sequence[Variable],
    arrays: dict[Variable, np.ndarray],
    values: Sequence[Variable],
) -> Variable | None:
    """Let a mask of rows be numbers of rows; None if there is none."""
    x, entries = inputs[0], index_entries(node, inputs)
    mask = _known(entries[0], arrays) if isinstance(entries[0], Variable) else None
    others = [e for e in entries[1:] if not (isinstance(e, slice) and e == slice(None))]
    if others or mask is None or mask.dtype != bool or mask.ndim != 1:
        return None
    if depends_on([x], values).isdisjoint([x]):
        return None
    return x[placed(np.flatnonzero(mask), arrays)]


def placed(places: np.ndarray, arrays: dict[Variable, np.ndarray]) -> Variable:
    """Return an index by which rows read what is put among other values."""
    return data_input(places, arrays, PLACES)


def data_input(
    value: np.ndarray, arrays: dict[Variable, np.ndarray], name: str | None = None
) -> Variable:
    """Return a placeholder of known shape for data, which `arrays` gains."""
    new = tensor_input(name, value.dtype, value.shape)
    arrays[new] = value
    return new


def at_rows(
    x: Variable,
    rows: np.ndarray,
    arrays: dict[Variable, np.ndarray],
    values: Sequence[Variable],
) -> Variable:
    """Compute a graph at some of its rows, any of them several times, of columns at these rows.

    Where a row is -1, it has no places, and is any other one. Raises `CoupledRows` or
    `TallModelError` where rows depend on each other.
    """
    dependent = depends_on([x], values)
    trace = RowTrace(lambda v: v not in dependent, row_number_test(arrays))
    trace.follow(x, 0)
    trace.refuse_reductions(dependent, x.type.shape[0])
    graph = batch_graph([x], trace, dependent, arrays)
    known: dict[Variable, Variable] = dict(graph.parameters)
    some = np.maximum(rows, 0)
    for new, old in graph.columns.items():
        axis = trace.axes[old]
        if old in dependent:
            known[new] = old[(slice(None),) * axis + (placed(rows, arrays),)]
            continue
        value = np.take(arrays[old] if old in arrays else evaluate([old], arrays)[0], some, axis)
        if old.name == PLACES:
            value = np.where((rows >= 0).reshape(-1, *[1] * (value.ndim - 1)), value, -1)
        known[new] = data_input(value, arrays, old.name)
    return rebuild(graph.outputs, known, fold, remake=True)[0]


def read_through(
    graphs: Sequence[Variable], arrays: dict[Variable, np.ndarray], values: Sequence[Variable]
) -> list[Variable]:
    """Let rows read by places of their own what they read by those of what they read."""

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if not isinstance(node.op, AdvancedSubtensor) or len(inputs) != 2:
            return None
        table, index = inputs
        inner = index.name == PLACES and index in arrays and index.type.ndim == 1
        if not inner or not any(v.name == PLACES for v in ancestors([table])):
            return None
        with suppress(CoupledRows, TallModelError):
            return [at_rows(table, arrays[index], arrays, values)]
        return None

    return rebuild(graphs, {v: v for v in [*arrays, *values]}, hook)


def _places(
    node: Apply, inputs: Sequence[Variable], arrays: Mapping[Variable, np.ndarray]
) -> np.ndarray | None:
    """Return which element, or row, of what is set stands where; None if that is not known.

    None too where each row is set in itself, as by columns.
    """
    x, y = inputs[:2]
    index = [_known(entry, arrays) for entry in index_entries(node, inputs)]
    while index and isinstance(index[-1], slice) and index[-1] == slice(None):
        index.pop()
    known = node.op.set_instead_of_inc and all(entry is not None for entry in index)
    if not known or not index or None in (*x.type.shape, *y.type.shape):
        return None
    if isinstance(index[0], slice) and index[0] == slice(None):
        return None
    if y.type.ndim == x.type.ndim > 1 == len(index) and y.type.shape[1:] == x.type.shape[1:]:
        places = np.full(x.type.shape[0], -1)
        places[index[0]] = np.arange(y.type.shape[0])
        return places
    if y.type.ndim != 1:
        return None
    places = np.full(x.type.shape, -1)
    places[tuple(index)] = np.arange(y.type.shape[0])
    return places


def _known(entry: slice | int | Variable, arrays: Mapping[Variable, np.ndarray]) -> Any:
    """Return an entry of an index as NumPy takes it, None if it is not made of data."""
    if isinstance(entry, slice):
        ends = [entry.start, entry.stop, entry.step]
        found = [None if _is_none(e) else _known(e, arrays) for e in ends]
        unknown = any(x is None and not _is_none(e) for x, e in zip(found, ends, strict=True))
        return None if unknown else slice(*(None if x is None else int(x) for x in found))
    if not isinstance(entry, Variable):
        return entry
    roots = [v for v in ancestors([entry]) if v.owner is None]
    if any(v not in arrays and not isinstance(v, Constant) for v in roots):
        return None
    if any(on_disk(arrays.get(v)) for v in roots):
        return None
    return evaluate([entry], arrays)[0]


def _is_none(end: object) -> bool:
    return end is None or (isinstance(end, Variable) and isinstance(end.type, NoneTypeT))
