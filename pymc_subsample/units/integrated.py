"""A model without its local variables: the log-likelihoods of units in their place."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import Variable
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.xtensor.type import XTensorType

from pymc_subsample.graph.concrete import rebuild
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.graph.vectorised import broadcasts, vectorised
from pymc_subsample.model import TallModelError
from pymc_subsample.units.accuracy import Marginal
from pymc_subsample.units.graphs import RowGraph, UnitGraphs
from pymc_subsample.units.layout import (
    Table,
    mode_numbers,
    placed_first,
    row_numbers,
    state_numbers,
    tables,
)
from pymc_subsample.units.moving import newton
from pymc_subsample.units.quadrature import nodes, of_fewer
from pymc_subsample.units.reading import Reading
from pymc_subsample.units.unit_densities import UnitFunctions, row_derivatives
from pymc_subsample.units.unread import without_variables
from pymc_subsample.units.verification import check_rest, check_table

# Axes of a table in front of those of rows: units and nodes.
_FRONT = 2
# Units of each table that are evaluated in another way.
_CHECKED = 20
# The log-likelihood of a state that a unit's rows rule out: its exponential is zero beside that of
# any other state of at most 20,000 rows, and sums with it keep seven digits.
_RULED_OUT = -1e9
_CONDITION = CheckParameterValue("parameters of units", can_be_replaced_by_ninf=True)


class Storing(Protocol):
    """What keeps tables on disk."""

    def added(self, marginal: Marginal, table: Table, label: str) -> Variable:
        """Write the units of a table; return their log-likelihoods, over a sample of them."""


def without(reading: Reading, names: Sequence[str], functions: UnitFunctions) -> pm.Model:
    """Return the model without local variables and what depends on them."""
    integrated = {reading.terms[i].name for i in functions.graphs.grouping.index}
    new = without_variables(reading.model, [*names, *integrated])
    local = {reading.values[name] for name in names}
    read = [t.name for t in reading.terms if not local.isdisjoint(ancestors([t.graph]))]
    if lost := {*read, *functions.values} - integrated - new.named_vars.keys():
        raise TallModelError(
            f"The log density of {' and '.join(map(repr, sorted(lost)))} would be lost where "
            f"{' and '.join(map(repr, names))} are integrated out. Please report this model, and "
            "give integrate=False."
        )
    return new


def start_at(model: pm.Model, functions: UnitFunctions, theta: np.ndarray) -> None:
    """Let the model start at the reference."""
    reading = functions.graphs.reading
    values = dict(zip(functions.values, functions.split(theta), strict=True))
    inputs = [reading.values[name] for name in values]
    outputs = [reading.constrained[name] for name in values]
    found = numpy_function(inputs, outputs)(*values.values())
    for name, value in zip(values, found, strict=True):
        model.set_initval(model[name], value)


def add_units(new: pm.Model, marginal: Marginal, stored: Storing | None = None) -> None:
    """Add a potential with the log-likelihood of units for each table; some tables are `stored`."""
    graphs = marginal.functions.graphs
    shared = {v: _tensor(new[name]) for name, v in graphs.shared.items()}
    name = " ".join(graphs.grouping.names)
    kept = {v.name for v in [*new.observed_RVs, *new.potentials]}  # Potentials below take names.
    units: list[str] = []
    for table in tables(marginal.functions, marginal.integral.per_dimension):
        few = table.of(_CHECKED)
        own = marginal.at(few.units)
        few = replace(few, units=np.arange(len(few.units)))
        check_table(own, log_likelihood(own, few, "checked"))
        label = f"{name}: units of {' and '.join(map(str, table.lengths))} rows"
        if graphs.active is not None:
            label += f" and {table.elements + table.discrete} variables"
            if graphs.states is not None and not graphs.exact:
                label += f", {table.discrete} of them discrete"
        if stored is None:
            term = log_likelihood(marginal, table, label)
        else:
            term = stored.added(marginal, table, label)
        if graphs.conditions:
            term = _CONDITION(term, pt.all(pt.stack(graphs.conditions)))
        units.append(label)
        pm.Potential(label, rebuild([term], dict(shared))[0])
    for k, (called, rows) in enumerate(graphs.others):
        columns = {
            v: pytensor.shared(c.array, name=f"{called}, {v.name}", shape=c.array.shape)
            for v, c in rows.columns.items()
        }
        label = called if called not in new.named_vars else f"{called}: other rows {k}"
        pm.Potential(label, rebuild([rows.output], {**columns, **shared})[0])
    # What is dropped with a local variable that it does not read: a part of a potential, or a row
    # of what is known of a column that has missing values elsewhere.
    for i, part in enumerate(graphs.reading.terms):
        if part.name not in kept and i not in graphs.grouping.index:
            memo: dict[Variable, Variable] = {
                graphs.reading.constrained[n]: shared[v] for n, v in graphs.shared.items()
            }
            memo |= {v: pt.constant(x) for v, x in graphs.reading.arrays.items()}
            pm.Potential(f"{part.name}: part {i}", rebuild([part.graph], memo)[0])
    check_rest(new, marginal, units)


def _tensor(variable: Variable) -> Variable:
    return variable.values if isinstance(variable.type, XTensorType) else variable


@dataclass(frozen=True)
class _Rows:
    """Rows of a graph as a table has them: (units, 1, length) in front of other axes."""

    part: RowGraph
    columns: dict[Variable, Variable]
    length: int
    counts: Variable | None  # Which of them count, or how often, if not each does once.

    def summed(self, graph: Variable, local: Mapping[Variable, Variable]) -> Variable:
        """Add up a function of a row over the rows of each unit, (units, nodes)."""
        found = vectorised(graph, {**self.columns, **local}, _FRONT)
        if self.counts is not None:
            often = self.counts.type.dtype != "bool"
            found = pt.switch(self.counts, found * self.counts if often else found, 0.0)
        return found.sum(axis=2)


def log_likelihood(
    marginal: Marginal, table: Table, name: str, data: Callable | None = None
) -> Variable:
    """Return the log-likelihood of each unit of a table.

    ``data(what, numbers)`` makes a variable of what a table holds. Default: a shared one.
    """
    data = partial(_data, name) if data is None else data
    rows = list(_rows(marginal.functions, table, data))
    each = [_at(marginal, rows, *group) for group in _nodes(marginal, table, rows, data)]
    total = pt.concatenate(each, axis=1) if len(each) > 1 else each[0]
    return pt.logsumexp(total, axis=1)


def _nodes(
    marginal: Marginal, table: Table, parts: Sequence[_Rows], data: Callable
) -> Iterator[tuple[list[Variable], Variable]]:
    """Yield elements of local variables at nodes, and logarithms of their weights, in groups.

    A group is evaluated at once, as (units, nodes). Each state is one of its own: what it makes
    constant, as a probability of zero, has no derivative.
    """
    graphs = marginal.functions.graphs
    zero = pt.zeros((1, 1))
    u, log_weights = (
        ([zero] * graphs.size, zero) if graphs.exact else _continuous(marginal, table, parts, data)
    )
    if graphs.states is None:
        yield u, log_weights
        return
    states = state_numbers(marginal.functions, table)
    for k, (state, (what, log_weight)) in enumerate(states):
        each = list(u)
        for place in graphs.places.values():
            if graphs.discrete[place].any():
                each[place] = _same_or(data, f"state{k}", state, range(place.start, place.stop))
        yield each, log_weights + data(what, log_weight)


def _continuous(
    marginal: Marginal, table: Table, parts: Sequence[_Rows], data: Callable
) -> tuple[list[Variable], Variable]:
    """Return elements of continuous variables at nodes, zero for others, and log weights."""
    graphs, size = marginal.functions.graphs, table.elements
    per_dimension = marginal.integral.per_dimension
    own, many = placed_first(marginal.functions, table)
    points, _ = nodes(size, per_dimension)
    fewer, which = np.unique(many, return_inverse=True)
    weights = np.array([of_fewer(size, per_dimension, int(k)) for k in fewer])
    log_weights = pt.constant(weights) if len(fewer) == 1 else data("weights", weights[which])
    m, S, volume = _placed(marginal, table, parts, own, data)
    u = [sum((S[i][j] * points[None, :, j] for j in range(size)), m[i]) for i in range(size)]
    return _spread(u, own, graphs.size, data), volume + log_weights


def _same_or(
    data: Callable, what: str, values: np.ndarray, elements: Iterable[int]
) -> list[Variable]:
    """Return elements of units, (units, 1) each, or (1, 1) if no unit has other ones."""
    each = [(i, np.ascontiguousarray(values[:, [i]])) for i in elements]
    if all((own == own[0]).all() for _, own in each):
        return [pt.constant(own[:1]) for _, own in each]
    return [data(f"{what}_{i}", own) for i, own in each]


def _spread(
    found: Sequence[Variable], own: np.ndarray, size: int, data: Callable
) -> list[Variable]:
    """Return all elements of units, zero but for their own, of which these are the values."""
    if not found:
        return [pt.zeros((1, 1))] * size
    if (own == own[0]).all():
        place = {int(i): x for i, x in zip(own[0], found, strict=True)}
        return [place.get(i, pt.zeros_like(found[0])) for i in range(size)]
    which = [data(f"element{k}", own[:, [k]]) for k in range(len(found))]
    return [
        sum((pt.switch(pt.eq(at, i), x, 0.0) for at, x in zip(which, found, strict=True)), 0.0)
        for i in range(size)
    ]


def _at(
    marginal: Marginal, parts: Sequence[_Rows], u: Sequence[Variable], log_weights: Variable
) -> Variable:
    """Return what nodes add to the likelihood of units, as logarithms (units, nodes)."""
    graphs, total = marginal.functions.graphs, log_weights
    for rows in parts:
        part = rows.part
        alike = broadcasts(part.output, list(part.local), list(part.columns))
        local = _local(graphs, part, u, 1 if alike else rows.length)
        found = rows.summed(part.output, local)
        if graphs.states is not None:
            found = _of_a_state(found, graphs)
        total = total + found
    return total


def _of_a_state(found: Variable, graphs: UnitGraphs) -> Variable:
    """Put what a state makes constant together; data that rule it out become a finite number."""
    found = rewrite_graph(found, clone=False)
    known = set(graphs.shared.values()).isdisjoint(ancestors([found]))
    return pt.maximum(found, _RULED_OUT) if known else found


def _data(name: str, what: str, value: np.ndarray) -> Variable:
    return pytensor.shared(value, name=f"{name}, {what}", shape=value.shape)


def _rows(functions: UnitFunctions, table: Table, data: Callable) -> Iterator[_Rows]:
    numbers = {what: data(what, x) for what, x in row_numbers(functions, table)}
    for t, (part, length) in enumerate(zip(functions.parts, (1, *table.lengths), strict=True)):
        if not length:
            continue
        columns = {
            v: numbers[f"{t}_{c}"].astype(v.type.dtype)[:, None] for c, v in enumerate(part.columns)
        }
        counts = numbers.get(f"{t}_rows")
        yield _Rows(part, columns, length, None if counts is None else counts[:, None, :])


def _placed(
    marginal: Marginal, table: Table, parts: Sequence[_Rows], own: np.ndarray, data: Callable
) -> tuple[list[Variable], list[list[Variable]], Variable]:
    """Return where nodes of each unit are, as (units, 1): places, spreads and log volume.

    Of the elements that are its `own`, (units, k). Nodes that move have no derivatives: integrals
    are the same wherever they are.
    """
    graphs = marginal.functions.graphs
    every = range(own.shape[1])
    numbers = {what: data(what, x)[:, None] for what, x in mode_numbers(marginal, table, own)}
    m = [numbers[f"mode{i}"] for i in every]
    S = [[numbers[f"spread{i}_{j}"] for j in every] for i in every]
    volume = numbers["volume"]
    if not marginal.integral.steps:
        return m, S, volume
    T, shrunk = S, pt.zeros_like(volume)
    derivatives = [row_derivatives(graphs, rows.part) for rows in parts]
    for _ in range(marginal.integral.steps):
        zero = pt.zeros_like(volume)
        slope = [zero for _ in range(graphs.size)]
        curvature = [[zero for _ in range(graphs.size)] for _ in range(graphs.size)]
        at = _spread(m, own, graphs.size, data)
        for rows, (elements, slopes, curvatures) in zip(parts, derivatives, strict=True):
            local = _local(graphs, rows.part, at, rows.length)
            for a, i in enumerate(elements):
                slope[i] = slope[i] + rows.summed(slopes[a], local)
                for b, j in enumerate(elements):
                    curvature[i][j] = curvature[i][j] + rows.summed(curvatures[a][b], local)
        slope = _gathered(slope, own, data)
        half = [_gathered(row, own, data) for row in curvature]
        columns = [_gathered(column, own, data) for column in zip(*half, strict=True)]
        curvature = [list(row) for row in zip(*columns, strict=True)]
        m, T, shrunk = newton(pt, m, S, slope, curvature)
    m = [disconnected_grad(x) for x in m]
    T = [[disconnected_grad(x) for x in row] for row in T]
    return m, T, volume - disconnected_grad(shrunk)


def _gathered(found: Sequence[Variable], own: np.ndarray, data: Callable) -> list[Variable]:
    """Return of each unit what belongs to its own elements."""
    if (own == own[0]).all():
        return [found[i] for i in own[0]]
    which = [data(f"own{k}", own[:, [k]]) for k in range(own.shape[1])]
    return [
        sum((pt.switch(pt.eq(at, i), x, 0.0) for i, x in enumerate(found)), 0.0) for at in which
    ]


def _local(
    graphs: UnitGraphs, part: RowGraph, u: Sequence[Variable], length: int
) -> dict[Variable, Variable]:
    """Return local variables at the nodes of units, with an axis for rows along which it is alike.

    That has one entry, or as many as rows.
    """
    return {v: _at_nodes(graphs, name, u, length) for v, name in part.local.items()}


def _at_nodes(graphs: UnitGraphs, name: str, u: Sequence[Variable], length: int) -> Variable:
    place, shape = graphs.places[name], graphs.shapes[name]
    parts, kind = u[place], graphs.reading.values[name].type.dtype
    axis = 2 + graphs.grouping.own[name]
    joined = pt.stack(parts, axis=2).reshape((*parts[0].shape, *shape)) if shape else parts[0]
    found = pt.expand_dims(joined, axis).astype(kind)
    if length == 1:
        return found
    times = [length if i == axis else 1 for i in range(found.type.ndim)]
    return found * np.ones(times, dtype=kind)
