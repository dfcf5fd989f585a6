"""Rows that read by places what is put among other values: -1 where there is none."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.subtensor import AdvancedSubtensor

from pymc_subsample.graph.concrete import depends_on, on_disk, rebuild
from pymc_subsample.graph.nodes import elemwise_name, index_entries
from pymc_subsample.graph.numpy_functions import evaluate
from pymc_subsample.model.axis_rules import IsRowNumber
from pymc_subsample.model.data_columns import row_number_test
from pymc_subsample.model.errors import CoupledRows, TallModelError
from pymc_subsample.model.selection import data_input, of_columns
from pymc_subsample.model.trace import RowTrace

# The name of an index of which -1 says that there is none, where negative numbers of a user's count
# from the end. Selections of its rows keep it.
PLACES = "places, -1 where there is none"


def row_number(arrays: Mapping[Variable, np.ndarray]) -> IsRowNumber:
    """Return a test of whether an index holds numbers of rows, and is no places."""
    test = row_number_test(arrays)
    return lambda index, axis, length: index.name != PLACES and test(index, axis, length)


def placed(places: np.ndarray, arrays: dict[Variable, np.ndarray]) -> Variable:
    """Return an index by which rows read what is put among other values."""
    return data_input(places, arrays, PLACES)


def by_element(
    y: Variable, arrays: Mapping[Variable, np.ndarray], values: Sequence[Variable]
) -> dict[Variable, int]:
    """Return the values of which an element of an array has one of its own, and on which axis."""
    dependent = depends_on([y], values)
    trace = RowTrace(lambda v: v not in dependent, row_number(arrays))
    with suppress(CoupledRows):
        trace.follow(y, 0)
    return {v: trace.axes[v] for v in values if v in trace.axes}


def at_rows(
    x: Variable,
    rows: np.ndarray,
    arrays: dict[Variable, np.ndarray],
    values: Sequence[Variable],
) -> Variable:
    """Compute a graph at some of its rows, any of them several times, of columns at these rows.

    Where a row is -1, it reads nothing by an index, and else is any other one. Of several rows side
    by side, `rows` of shape (n, k), what is computed of vectors alone is known. Raises
    `CoupledRows` or `TallModelError` where that is not so, or rows depend on each other.
    """
    dependent = depends_on([x], values)
    trace = RowTrace(lambda v: v not in dependent, row_number(arrays))
    trace.follow(x, 0)
    if rows.ndim > 1 and any(v.type.ndim > 1 for v in trace.axes):
        raise CoupledRows(x.owner)
    lengths: dict[Variable, set[int]] = {}
    for entry, length in _indices(x, dependent):
        lengths.setdefault(entry, set()).add(length)
    some = np.maximum(rows, 0)

    def column(old: Variable, axis: int) -> Variable:
        if old in dependent:
            return old[(slice(None),) * axis + (placed(rows, arrays),)]
        value = np.take(arrays[old] if old in arrays else evaluate([old], arrays)[0], some, axis)
        name = old.name
        if old in lengths and axis == 0:
            value = value.astype(np.int64)  # -1 is no number of some, nor a length of others
            if name != PLACES and (value < 0).any():  # which count from the end of one array
                if len(lengths[old]) > 1:
                    raise CoupledRows(None)
                value = np.where(value < 0, value + max(lengths[old]), value)
            value = np.where(
                rows.reshape(rows.shape + (1,) * (value.ndim - rows.ndim)) >= 0, value, -1
            )
            name = PLACES
        return data_input(value, arrays, name)

    return settled([of_columns(x, 0, trace, dependent, arrays, column)], arrays)[0]


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
            both |= by_element(x, arrays, values) if any(i.name == PLACES for i in index) else {}

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
