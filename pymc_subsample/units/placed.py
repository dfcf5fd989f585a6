"""Arrays that are put together of others, as of what is known and what is missing of a column.

What rows read of ``set_subtensor(known[where], x)``, or of arrays that are joined, is an index of
the elements of x, and some rows read none.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.basic import AllocEmpty, Join, Nonzero
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)
from pytensor.tensor.type_other import NoneTypeT

from pymc_subsample.graph.concrete import depends_on, fold, on_disk, rebuild, tensor_input
from pymc_subsample.graph.nodes import elemwise_name, index_entries
from pymc_subsample.graph.numpy_functions import evaluate
from pymc_subsample.model.axis_rules import IsRowNumber
from pymc_subsample.model.batch import batch_graph
from pymc_subsample.model.data_columns import row_number_test
from pymc_subsample.model.errors import CoupledRows, TallModelError
from pymc_subsample.model.trace import RowTrace

# The name of an index of which -1 says that there is none, where negative numbers of a user's count
# from the end. Selections of its rows keep it.
PLACES = "places, -1 where there is none"


def row_number(arrays: Mapping[Variable, np.ndarray]) -> IsRowNumber:
    """Return a test of whether an index holds numbers of rows, and is no places."""
    test = row_number_test(arrays)
    return lambda index, axis, length: index.name != PLACES and test(index, axis, length)


def read_by_places(
    outputs: Sequence[Variable],
    arrays: dict[Variable, np.ndarray],
    values: Sequence[Variable],
    shortest: int,
) -> tuple[list[Variable], set[Variable]]:
    """Let rows read by an index what is put among others, in arrays of so many elements or more.

    ``set_subtensor(base[where], x)`` becomes ``switch(places >= 0, x[places], base)``. `arrays`,
    the data of the placeholders, gains the places. Returned are the graphs, and which of the values
    have elements that are put among others.
    """
    put: set[Variable] = set()

    def read(places: np.ndarray, y: Variable, base: Variable) -> Variable:
        while (chosen := _chosen(y, arrays)) is not None:
            y, rows = chosen
            places = np.where(places >= 0, rows[places], -1)
        put.update(_by_element(y, arrays, values))
        if (places < 0).all():
            return base
        found = y[placed(places, arrays)]
        if _is_put_together(y) and places.ndim == 1:
            with suppress(CoupledRows, TallModelError):
                found = at_rows(y, places, arrays, values)
        if (places >= 0).all():
            return found
        has = data_input(places >= 0, arrays)
        more = ["x"] * (base.type.ndim - places.ndim)
        return pt.switch(has.dimshuffle(*range(places.ndim), *more), found, base)

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if isinstance(node.op, AllocEmpty):
            return [pt.zeros(inputs, node.outputs[0].type.dtype)]
        if isinstance(node.op, Nonzero):  # of a mask, so that it is known how many there are
            where = [_known(out, arrays) for out in node.op.make_node(*inputs).outputs]
            return None if where[0] is None else [data_input(x, arrays) for x in where]
        if isinstance(node.op, AdvancedSubtensor | Subtensor):
            found = _picked(node, inputs, arrays, values)
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
            if node.op.axis % out.ndim or None in out.shape or np.prod(out.shape) < shortest:
                return None
            found = pt.zeros(out.shape, out.dtype)
            for part, end in zip(inputs, ends, strict=True):
                start = end - part.type.shape[0]
                rows = np.arange(ends[-1])
                places = np.where((rows >= start) & (rows < end), rows - start, -1)
                found = read(places, part.astype(out.dtype), found)
            return [found]
        x, y = inputs[:2]
        if None in x.type.shape or np.prod(x.type.shape) < shortest:
            return None
        known = _places(node, inputs, arrays)
        return None if known is None else [read(known, y.astype(out.dtype), x)]

    return rebuild(outputs, {v: v for v in [*arrays, *values]}, hook), put


def _by_element(
    y: Variable, arrays: Mapping[Variable, np.ndarray], values: Sequence[Variable]
) -> dict[Variable, int]:
    """Return the values of which an element of an array has one of its own, and on which axis."""
    dependent = depends_on([y], values)
    trace = RowTrace(lambda v: v not in dependent, row_number(arrays))
    with suppress(CoupledRows):
        trace.follow(y, 0)
    return {v: trace.axes[v] for v in values if v in trace.axes}


def _picked(
    node: Apply,
    inputs: Sequence[Variable],
    arrays: dict[Variable, np.ndarray],
    values: Sequence[Variable],
) -> Variable | None:
    """Let rows by a mask be numbers of rows, and pick rows of what is put together in its parts.

    None if an index does neither.
    """
    x, (entry, *others) = inputs[0], index_entries(node, inputs)
    if any(_is_number(e) for e in others) and getattr(entry, "ndim", 0) == 1:
        rows_of_all = x[entry]  # x[g, 0] is x[g][:, 0]
        found = _picked(rows_of_all.owner, rows_of_all.owner.inputs, arrays, values)
        return None if found is None else found[(slice(None), *others)]
    rows = _rows_of(node, inputs, arrays)
    if rows is None:
        return None
    if _is_put_together(x):
        with suppress(CoupledRows, TallModelError):
            return at_rows(x, rows, arrays, values)
    if not isinstance(entry, Variable) or entry.type.dtype != "bool":
        return None
    known = depends_on([x], values).isdisjoint([x])
    return x[data_input(rows, arrays) if known else placed(rows, arrays)]


def _is_put_together(x: Variable) -> bool:
    return any(v.name == PLACES for v in ancestors([x]))


def _chosen(
    x: Variable, arrays: Mapping[Variable, np.ndarray]
) -> tuple[Variable, np.ndarray] | None:
    """Return of what another array is rows, and which of its rows; None if it is none of these."""
    if not isinstance(x.owner_op, AdvancedSubtensor | Subtensor):
        return None
    rows = _rows_of(x.owner, x.owner.inputs, arrays)
    return None if rows is None else (x.owner.inputs[0], rows)


def _rows_of(
    node: Apply, inputs: Sequence[Variable], arrays: Mapping[Variable, np.ndarray]
) -> np.ndarray | None:
    """Return which rows an index picks along its first axis; None if that is not known, or not all.

    Numbers of rows are from 0 up.
    """
    x, (entry, *others) = inputs[0], index_entries(node, inputs)
    if x.type.shape[0] is None or any(not _is_all(e) for e in others) or _is_all(entry):
        return None
    if isinstance(entry, Variable) and (entry.type.ndim != 1 or entry.name == PLACES):
        return None
    known = _known(entry, arrays)
    rows = np.arange(x.type.shape[0])
    if known is None or not isinstance(known, slice | np.ndarray):
        return None
    with suppress(IndexError):  # beyond the last row: refused where rows are read
        return rows[known]
    return None


def _is_number(entry: slice | int | Variable) -> bool:
    return not isinstance(entry, slice) and getattr(entry, "ndim", 0) == 0


def _is_all(entry: object) -> bool:
    return isinstance(entry, slice) and entry == slice(None)


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

    Where a row is -1, it reads nothing by an index, and else is any other one. Raises `CoupledRows`
    or `TallModelError` where rows depend on each other.
    """
    dependent = depends_on([x], values)
    trace = RowTrace(lambda v: v not in dependent, row_number(arrays))
    trace.follow(x, 0)
    trace.refuse_reductions(dependent, x.type.shape[0])
    graph = batch_graph([x], trace, dependent, arrays)
    known: dict[Variable, Variable] = dict(graph.parameters)
    lengths: dict[Variable, set[int]] = {}
    for entry, length in _indices(x, dependent):
        lengths.setdefault(entry, set()).add(length)
    some = np.maximum(rows, 0)
    for new, old in graph.columns.items():
        axis = trace.axes[old]
        if old in dependent:
            known[new] = old[(slice(None),) * axis + (placed(rows, arrays),)]
            continue
        value = np.take(arrays[old] if old in arrays else evaluate([old], arrays)[0], some, axis)
        name = old.name
        if old in lengths and axis == 0:
            value = value.astype(np.int64)  # -1 is no number of some, nor a length of others
            if name != PLACES and (value < 0).any():  # which count from the end of one array
                if len(lengths[old]) > 1:
                    raise CoupledRows(None)
                value = np.where(value < 0, value + max(lengths[old]), value)
            value = np.where((rows >= 0).reshape(-1, *[1] * (value.ndim - 1)), value, -1)
            name = PLACES
        known[new] = data_input(value, arrays, name)
    [found] = rebuild(graph.outputs, known, fold, remake=True)
    return settled([found], arrays)[0]


def _indices(x: Variable, dependent: set[Variable]) -> Iterator[tuple[Variable, int]]:
    """Yield by which vectors a graph picks of what depends on values, and among how many."""
    for node in toposort([x]):
        if isinstance(node.op, AdvancedSubtensor) and node.inputs[0] in dependent:
            for axis, entry in enumerate(index_entries(node)):
                length = node.inputs[0].type.shape[axis]
                if isinstance(entry, Variable) and entry not in dependent and length is not None:
                    yield entry, length


def settled(
    graphs: Sequence[Variable],
    arrays: Mapping[Variable, np.ndarray],
    rows: np.ndarray | None = None,
    axes: Mapping[Variable, int] = MappingProxyType({}),
) -> list[Variable]:
    """Leave out what no row reads, as of what is put together of several; or none of some rows.

    These rows are along known `axes` of variables.
    """

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if elemwise_name(node) != "Switch":
            return None
        condition, chosen, other = inputs
        roots = [v for v in ancestors([condition]) if v.owner is None]
        if not condition.type.ndim or any(
            v not in arrays and not isinstance(v, Constant) for v in roots
        ):
            return None
        if any(on_disk(arrays.get(v)) for v in roots):
            return None
        has = np.asarray(evaluate([condition], arrays)[0], dtype=bool)
        if rows is not None:
            axis = axes.get(node.outputs[0])
            if axis is None:
                return None
            has = has if has.shape[axis] == 1 else np.take(has, rows, axis)
        if has.any() and not has.all():
            return None
        branch = chosen if has.all() else other
        return [branch] if branch.type == node.outputs[0].type else None

    return rebuild(graphs, {}, hook)


def picks(graph: Variable) -> bool:
    """Whether a graph reads elements of arrays by an index."""
    return any(isinstance(v.owner_op, AdvancedSubtensor) for v in ancestors([graph]))


def read_through(
    graphs: Sequence[Variable], arrays: dict[Variable, np.ndarray], values: Sequence[Variable]
) -> list[Variable]:
    """Let rows read by places of their own what they read by those of what they read."""

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if not isinstance(node.op, AdvancedSubtensor) or len(inputs) != 2:
            return None
        table, index = inputs
        inner = index.name == PLACES and index in arrays and index.type.ndim == 1
        if not inner or not picks(table):
            return None
        with suppress(CoupledRows, TallModelError):
            return [at_rows(table, arrays[index], arrays, values)]
        return None

    found = rebuild(graphs, {v: v for v in [*arrays, *values]}, hook)
    return [_own_by_places(graph, arrays, values) for graph in found]


def _own_by_places(
    graph: Variable, arrays: dict[Variable, np.ndarray], values: Sequence[Variable]
) -> Variable:
    """Let rows read by places the elements that are their own, of values read by places too."""
    is_own = row_number(arrays)
    both: dict[Variable, int] = {}
    for v in ancestors([graph]):
        if isinstance(v.owner_op, AdvancedSubtensor):
            x, *index = v.owner.inputs
            both |= _by_element(x, arrays, values) if any(i.name == PLACES for i in index) else {}

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if not isinstance(node.op, AdvancedSubtensor):
            return None
        x, *index = node.inputs
        return None if len(index) == 1 and is_own(index[0], 0, x.type.shape[0]) else node.outputs

    own = {
        v: v[(slice(None),) * axis + (placed(np.arange(v.type.shape[axis]), arrays),)]
        for v, axis in both.items()
    }
    return rebuild([graph], own, hook)[0] if own else graph


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
