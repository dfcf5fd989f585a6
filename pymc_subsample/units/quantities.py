"""Functions of a level's variables: these as the model has them, and deterministics."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_subsample.graph.concrete import depends_on, rebuild, tensor_input
from pymc_subsample.graph.numpy_functions import evaluate, numpy_function
from pymc_subsample.model.batch import batch_graph
from pymc_subsample.model.errors import CoupledRows
from pymc_subsample.model.trace import RowTrace
from pymc_subsample.units.discovery import gathers, level_axis
from pymc_subsample.units.graphs import UnitGraphs
from pymc_subsample.units.groupings import NotLocal
from pymc_subsample.units.places import row_number
from pymc_subsample.units.tables import Tables
from pymc_subsample.units.unit_arrays import by_level
from pymc_subsample.units.unit_densities import UnitFunctions


@dataclass(frozen=True)
class Quantity:
    """A function of a level's variables, for any number of levels."""

    name: str
    graph: Variable
    axis: int  # With the levels,
    shape: tuple[int, ...]  # and the lengths of the others.
    local: dict[Variable, str]
    columns: dict[Variable, tuple[np.ndarray, int]]
    dims: tuple[str | None, ...]
    # Level of each of its entries along the axis, -1 for none; None if they are those of levels.
    levels: np.ndarray | None = None
    # Of a variable of which levels have several elements: which of theirs each entry is.
    slots: np.ndarray | None = None

    @property
    def length(self) -> int:
        """Entries along the axis, where levels are not all of them."""
        assert self.levels is not None
        return len(self.levels)

    def at(
        self, functions: UnitFunctions, theta: np.ndarray, u: np.ndarray, levels: np.ndarray
    ) -> np.ndarray:
        """Return values for draws of theta and of levels' variables, (draws, levels, size).

        Or those of entries, and of the levels of these.
        """
        graphs = functions.graphs
        inputs = [*graphs.shared.values(), *self.columns, *self.local]
        function = numpy_function(inputs, [self.graph])
        columns = [np.take(x, levels, axis=axis) for x, axis in self.columns.values()]
        found = [
            function(
                *functions.split(x),
                *columns,
                *(self._read(graphs, name, row, levels) for name in self.local.values()),
            )[0]
            for x, row in zip(theta, u, strict=True)
        ]
        return np.moveaxis(np.array(found), 1 + self.axis, 1)

    def _read(
        self, graphs: UnitGraphs, name: str, u: np.ndarray, entries: np.ndarray
    ) -> np.ndarray:
        if self.slots is None or name != self.name:
            return by_level(graphs, name, u)
        kind = graphs.reading.values[name].type.dtype
        own = graphs.places[name].start + self.slots[entries]
        return u[np.arange(len(u)), own].astype(kind, copy=False)


def quantities_of(graphs: UnitGraphs) -> dict[str, Quantity]:
    """Return local variables, and deterministics that are functions of them level by level.

    Where rows lack levels, deterministics are functions of rows.
    """
    if graphs.grouping.partial:
        return _of_rows(graphs)
    return {name: _quantity(graphs, name, *found) for name, found in _traced(graphs).items()}


def axes_of_levels(graphs: UnitGraphs) -> dict[str, int]:
    """Return by name which axis of local variables, and of functions of them, has the levels."""
    if graphs.grouping.partial:
        return {name: quantity.axis for name, quantity in _of_rows(graphs).items()}
    return {name: axis for name, (_, axis, _) in _traced(graphs).items()}


def _traced(graphs: UnitGraphs) -> dict[str, tuple[Variable, int, RowTrace]]:
    """Return graphs of these, which axis of each has the levels, and their traces."""
    reading, grouping, local = graphs.reading, graphs.grouping, set(_local(graphs))
    candidates = {name: reading.constrained[name] for name in grouping.names} | reading.derived
    found = {}
    for name, graph in candidates.items():
        if local.isdisjoint(ancestors([graph])):
            continue
        for axis, length in enumerate(graph.type.shape):
            trace = _trace(graphs, graph, axis) if length == grouping.levels else None
            if trace is not None:
                found[name] = graph, axis, trace
                break
    return found


def _local(graphs: UnitGraphs) -> dict[Variable, str]:
    return {graphs.reading.values[name]: name for name in graphs.grouping.names}


def _trace(graphs: UnitGraphs, graph: Variable, axis: int) -> RowTrace | None:
    """Follow levels along an axis of a graph; None if they are not kept apart."""
    trace = graphs.reading.trace([graph])
    try:
        trace.follow(graph, axis)
    except CoupledRows:
        return None
    above, own = set(ancestors([graph])), graphs.grouping.own
    read = {v: name for v, name in _local(graphs).items() if v in above}
    return None if any(trace.axes.get(v) != own[name] for v, name in read.items()) else trace


def _of_rows(graphs: UnitGraphs) -> dict[str, Quantity]:
    """Return local variables, and functions of rows, of which some read levels."""
    reading, grouping = graphs.reading, graphs.grouping
    found = {name: _of_entries(graphs, name, reading.constrained[name], grouping.own[name])
             for name in grouping.names}  # fmt: skip
    local = set(_local(graphs))
    for name, graph in reading.derived.items():
        axes = sorted(range(graph.type.ndim), key=lambda a: -(graph.type.shape[a] or 0))
        if local.isdisjoint(ancestors([graph])):
            continue
        for axis in axes:
            with suppress(CoupledRows, NotLocal):
                found[name] = _of_entries(graphs, name, graph, axis)
                break
    return found


def _of_entries(graphs: UnitGraphs, name: str, graph: Variable, axis: int) -> Quantity:
    """Follow entries along an axis of a graph; raise an error if they are not kept apart."""
    reading, grouping, values = graphs.reading, graphs.grouping, _local(graphs)
    trace = reading.trace([graph])
    trace.follow(graph, axis)
    nodes = gathers(trace, graph, list(values))
    levels = np.full(graph.type.shape[axis], -1)
    for v in values.keys() & trace.axes.keys():
        levels = np.maximum(levels, grouping.above[values[v]])
    for node, table in nodes.items():
        [own] = {values[v] for v in ancestors([table]) if v in values}
        [places] = evaluate([level_axis(trace, node)[1]], reading.arrays)
        index = np.where(places >= 0, grouping.above[own][places], -1)
        levels = np.maximum(levels, index.reshape(len(levels), -1).max(axis=1))
    tables = Tables(reading, grouping)
    for node, table in nodes.items():
        tables.add(trace, node, table)
    local, slots = tables.inputs(len(levels)), None
    elements = grouping.elements.get(name)
    if elements is not None and elements.ndim > 1:
        local[name] = tensor_input(name, reading.values[name].type.dtype, (len(levels),))
        slots = np.zeros(len(levels), dtype=int)
        slots[elements[elements >= 0]] = np.nonzero(elements >= 0)[1]
    some = np.maximum(levels, 0)
    memo = {v: local[n] for v, n in values.items() if v in trace.axes}
    memo |= {node.outputs[0]: tables.picked(trace, node, table, some, local)
             for node, table in nodes.items()}  # fmt: skip
    [graph] = rebuild([graph], memo)
    names = {v: n for n, v in local.items()}
    dependent = depends_on([graph], [*reading.values.values(), *names])
    trace = RowTrace(lambda v: v not in dependent, row_number(reading.arrays))
    trace.follow(graph, axis)
    found = _quantity(graphs, name, graph, axis, trace, names)
    # Values may be more than the model has.
    n = reading.standard[name][0].type.shape[axis] if name in reading.standard else len(levels)
    return replace(found, levels=levels[:n], slots=slots)


def _quantity(
    graphs: UnitGraphs,
    name: str,
    graph: Variable,
    axis: int,
    trace: RowTrace,
    values: Mapping[Variable, str] | None = None,
) -> Quantity:
    reading, values = graphs.reading, _local(graphs) if values is None else values
    dependent = depends_on([graph], [*reading.values.values(), *values])
    batch = batch_graph([graph], trace, dependent, reading.arrays)
    place = {reading.constrained[n]: v for n, v in graphs.shared.items()}
    parameters = rebuild(list(batch.parameters.values()), place)
    above = set(ancestors(parameters))
    data = {v: pt.constant(x) for v, x in reading.arrays.items() if v in above}
    parameters = rebuild(parameters, data)
    [output] = rebuild(batch.outputs, dict(zip(batch.parameters, parameters, strict=True)))
    local = {new: values[old] for new, old in batch.columns.items() if old in values}
    columns = {
        new: (reading.arrays[old] if old in reading.arrays else evaluate([old], reading.arrays)[0],
              trace.axes[old])
        for new, old in batch.columns.items() if old not in values
    }  # fmt: skip
    shape = tuple(n for i, n in enumerate(graph.type.shape) if i != axis)
    dims = reading.model.named_vars_to_dims.get(name, (None,) * graph.type.ndim)
    return Quantity(name, output, axis, shape, local, columns, tuple(dims))
