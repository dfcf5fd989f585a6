"""Functions of a level's variables: these as the model has them, and deterministics."""

from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_subsample.graph.concrete import depends_on, rebuild
from pymc_subsample.graph.numpy_functions import evaluate, numpy_function
from pymc_subsample.model.batch import batch_graph
from pymc_subsample.model.errors import CoupledRows
from pymc_subsample.model.trace import RowTrace
from pymc_subsample.units.graphs import UnitGraphs
from pymc_subsample.units.unit_densities import UnitFunctions, by_level


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

    def at(
        self, functions: UnitFunctions, theta: np.ndarray, u: np.ndarray, levels: np.ndarray
    ) -> np.ndarray:
        """Return values for draws of theta and of levels' variables, (draws, levels, size)."""
        graphs = functions.graphs
        inputs = [*graphs.shared.values(), *self.columns, *self.local]
        function = numpy_function(inputs, [self.graph])
        columns = [np.take(x, levels, axis=axis) for x, axis in self.columns.values()]
        found = [
            function(
                *functions.split(x),
                *columns,
                *(by_level(graphs, name, row) for name in self.local.values()),
            )[0]
            for x, row in zip(theta, u, strict=True)
        ]
        return np.moveaxis(np.array(found), 1 + self.axis, 1)


def quantities_of(graphs: UnitGraphs) -> dict[str, Quantity]:
    """Return local variables, and deterministics that are functions of them level by level."""
    return {name: _quantity(graphs, name, *found) for name, found in _traced(graphs).items()}


def axes_of_levels(graphs: UnitGraphs) -> dict[str, int]:
    """Return by name which axis of local variables, and of functions of them, has the levels."""
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


def _quantity(
    graphs: UnitGraphs, name: str, graph: Variable, axis: int, trace: RowTrace
) -> Quantity:
    reading, values = graphs.reading, _local(graphs)
    dependent = depends_on([graph], list(reading.values.values()))
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
