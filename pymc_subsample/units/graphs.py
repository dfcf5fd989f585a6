"""The log-likelihood of a row, and the prior of a level, as functions of the level's variables."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.xtensor.type import XTensorType

from pymc_subsample.graph.concrete import depends_on, fold, rebuild, tensor_input
from pymc_subsample.graph.numpy_functions import evaluate, frozen
from pymc_subsample.model import TallModelError
from pymc_subsample.model.batch import BatchGraph, batch_graph
from pymc_subsample.model.errors import CoupledRows
from pymc_subsample.model.parameter_checks import sort_checks
from pymc_subsample.model.simplify import simplified
from pymc_subsample.model.support import owner_of_check
from pymc_subsample.model.terms import RowTerm
from pymc_subsample.model.trace import RowTrace
from pymc_subsample.rows.columns import StoredColumn
from pymc_subsample.rows.runs import Runs
from pymc_subsample.units.alike import LOOKED, are_alike, first_of_alike
from pymc_subsample.units.discovery import gathers
from pymc_subsample.units.groupings import Grouping
from pymc_subsample.units.places import settled
from pymc_subsample.units.reading import Reading
from pymc_subsample.units.states import States, states_of
from pymc_subsample.units.stored_rows import StoredRows
from pymc_subsample.units.tables import Tables


@dataclass
class Column:
    """An input of a graph of rows, or of levels: its numbers, and the axis that they lie on."""

    array: np.ndarray
    axis: int


@dataclass
class RowGraph:
    """A vector, for any number of rows or levels, of shared and local variables and columns."""

    output: Variable
    columns: dict[Variable, Column]
    local: dict[Variable, str]  # Inputs that are local variables, by the names of these.
    index: np.ndarray  # Level of each row.
    times: np.ndarray  # How often each row counts.
    chosen: np.ndarray | None = None  # Which rows of a term these are, None for all.
    # Of rows on disk, what reads them; then columns have no arrays, and `index` is of runs.
    stored: StoredRows | None = None

    @cached_property
    def merged(self) -> "RowGraph":
        """The same for rows that differ within their level: those that are alike count together.

        Itself if few are.
        """
        if self.stored is not None:
            return replace(self, stored=self.stored.merged)
        if (n := len(self.index)) == 0:
            return self
        looked = min(n, LOOKED)
        columns = [np.moveaxis(c.array, c.axis, 0) for c in self.columns.values()]
        if not are_alike(self.index[:looked], [x[:looked] for x in columns]):
            return self
        rows, times = first_of_alike(self.index, columns)
        some = {
            v: Column(np.take(c.array, rows, axis=c.axis), c.axis) for v, c in self.columns.items()
        }
        chosen = None if self.chosen is None else self.chosen[rows]
        return replace(self, columns=some, index=self.index[rows], times=times, chosen=chosen)


@dataclass
class UnitGraphs:
    """The log density of a unit: its prior, and the rows of each term.

    All are over the variables that units share, `shared`, by their names, as the model has them.
    """

    reading: Reading
    grouping: Grouping
    shared: dict[str, Variable]
    prior: RowGraph
    rows: list[RowGraph]
    others: list[tuple[str, RowGraph]]  # Rows of these terms without a level.
    conditions: list[Variable]  # On global variables alone.
    shapes: dict[str, tuple[int, ...]]  # Of a level's elements.
    states: States | None  # Values that each element may have, None if none is discrete.
    active: np.ndarray | None  # Which elements levels have, (levels, size), None if all have all.

    @property
    def size(self) -> int:
        """Elements of all local variables of a level."""
        return sum(int(np.prod(s, dtype=int)) for s in self.shapes.values())

    @cached_property
    def discrete(self) -> np.ndarray:
        """Whether each element is."""
        states = self.states or [None] * self.size
        return np.array([values is not None for values in states], dtype=bool)

    @property
    def exact(self) -> bool:
        """Whether all elements are discrete: integrals are sums over their states."""
        return self.states is not None and bool(self.discrete.all())

    @cached_property
    def placed(self) -> np.ndarray | None:
        """Which elements of levels have nodes, as `active`: continuous ones, unless none is."""
        if self.states is None or self.exact:
            return self.active
        every = np.ones((self.grouping.levels, self.size), dtype=bool)
        return (every if self.active is None else self.active) & ~self.discrete

    @property
    def most(self) -> int:
        """Elements of the level that has nodes of the most."""
        return self.size if self.placed is None else int(self.placed.sum(axis=1).max())

    @cached_property
    def places(self) -> dict[str, slice]:
        """Where elements of each variable are among those of a level."""
        ends = np.cumsum([int(np.prod(s, dtype=int)) for s in self.shapes.values()])
        starts = [0, *ends[:-1]]
        return {n: slice(a, b) for n, a, b in zip(self.shapes, starts, ends, strict=True)}


def unit_graphs(reading: Reading, grouping: Grouping) -> UnitGraphs:
    """Take the graphs of a model apart by units."""
    shared = {
        name: tensor_input(name, graph.type.dtype, graph.type.shape)
        for name, graph in reading.constrained.items()
        if name not in grouping.names
    }
    place = {reading.constrained[name]: v for name, v in shared.items()}
    # Where a graph has a variable in another form than that of its own value, as with named
    # dimensions.
    place |= {
        reading.values[name]: _value_of(reading, name, v)
        for name, v in shared.items()
        if reading.values[name] not in place
    }
    tables = Tables(reading, grouping)
    read = [_read(reading, position, tables) for position in grouping.index]
    remaining = dict(reading.checks)
    rows, others = [], []
    for position, parts in zip(grouping.index, read, strict=True):
        term, checks = reading.terms[position], dict(remaining)
        for part in parts:
            left = remaining if part is parts[0] else dict(checks)
            graph = _row_graph(reading, term.name, part, tables, place, left)
            if part.levels is None:
                others.append((term.name, graph))
            else:
                rows.append(graph)
    prior, conditions = _prior(reading, tables, place, remaining)
    shapes = {
        name: (*(n for i, n in enumerate(v.type.shape) if i != grouping.own[name]),
               *grouping.elements_of(name).shape[1:])
        for name, v in tables.values.items()
    }  # fmt: skip
    conditions = frozen(rebuild(conditions, place), reading.arrays)
    graphs = [prior, *rows, *(graph for _, graph in others)]
    above = set(ancestors([*(graph.output for graph in graphs), *conditions]))
    if not above.isdisjoint(tables.values.values()):
        raise TallModelError(
            f"Rows without a level of {' and '.join(map(repr, tables.values))} read them all the "
            "same. Please report this model, and sample it with pm.NUTS."
        )
    for name in shared:
        if reading.values[name] in above:
            raise TallModelError(
                f"The transform of {name!r} is not found again in the log-likelihood. Give "
                f"{name!r} another one (default_transform=), or sample the model as it is."
            )
    sizes = [int(np.prod(s, dtype=int)) for s in shapes.values()]
    active = _active(grouping, shapes)
    states = states_of(reading, grouping.names, sizes, active)
    return UnitGraphs(
        reading, grouping, shared, prior, rows, others, conditions, shapes, states, active
    )


def _active(grouping: Grouping, shapes: Mapping[str, tuple[int, ...]]) -> np.ndarray | None:
    """Return which elements of all variables each level has; None if it has all."""
    if not grouping.elements:
        return None
    has = []
    for name, shape in shapes.items():
        own = grouping.elements_of(name).reshape(grouping.levels, -1) >= 0
        has.append(np.broadcast_to(own, (grouping.levels, int(np.prod(shape, dtype=int)))))
    return np.concatenate(has, axis=1)


@dataclass
class _SomeRows:
    """Some rows of a term: its graph as far as they read it, and what they read of tables."""

    graph: Variable
    axis: int
    chosen: np.ndarray | None  # Which rows these are, None for all,
    # and the level of each row of the term; None if they have none.
    levels: np.ndarray | StoredColumn | None
    trace: RowTrace
    nodes: dict[Apply, Variable]
    axes: Mapping[Variable, int]  # On which the rows of the term are, of what it is made of.


def _read(reading: Reading, position: int, tables: Tables) -> list[_SomeRows]:
    """Return the rows of a term that have levels, and those that have none."""
    grouping = tables.grouping
    term, axis, index = reading.terms[position], grouping.axes[position], grouping.index[position]
    found, whole_trace = [], reading.trace([term.graph])
    with suppress(CoupledRows):
        whole_trace.follow(term.graph, axis)
    for has in (True, False):
        chosen = np.flatnonzero((index >= 0) == has)
        if not len(chosen):
            continue
        whole = len(chosen) == len(index)
        [graph] = (
            settled([term.graph], reading.arrays, chosen, whole_trace.axes)
            if grouping.partial
            else [term.graph]
        )
        trace = reading.trace([graph], tables.values.values())
        trace.follow(graph, axis)
        nodes = gathers(trace, graph, list(tables.values.values()))
        for node, table in nodes.items():
            tables.add(trace, node, table)
        levels = np.maximum(index, 0) if has else None
        if grouping.runs is not None:
            levels = grouping.runs.column
        some = None if whole else chosen
        found.append(_SomeRows(graph, axis, some, levels, trace, nodes, whole_trace.axes))
    return found


def _prior(
    reading: Reading,
    tables: Tables,
    place: Mapping[Variable, Variable],
    remaining: dict[Variable, str],
) -> tuple[RowGraph, list[Variable]]:
    """Return the prior of each level, and the conditions that no rows and no levels have."""
    grouping = tables.grouping
    local, levels = tables.inputs(grouping.levels), np.arange(grouping.levels)
    guards, conditions = tables.conditions(remaining, levels, local)
    priors = tables.priors(levels, local)
    graphs = [*priors, *(graph for graph, _ in guards)]
    axes = [*(grouping.own[name] for name in local), *(axis for _, axis in guards)]
    dependent = depends_on(graphs, [*reading.values.values(), *local.values()])
    trace = reading.trace(graphs, local.values())
    for graph, axis in zip(graphs, axes, strict=True):
        trace.follow(graph, axis)
    batch = batch_graph(graphs, trace, dependent, reading.arrays)
    n, names = len(priors), {v: name for name, v in local.items()}
    others = [(i, axes[i]) for i in range(n, len(graphs))]
    graph = _finished(batch, trace, reading.arrays, axes[:n], others, names, place, levels, None)
    return graph, conditions


def _value_of(reading: Reading, name: str, variable: Variable) -> Variable:
    """Return the value of a variable as a function of it."""
    rv = reading.model[name]
    transform = reading.model.rvs_to_transforms[rv]
    match getattr(transform, "name", None):
        case "log":
            return pt.log(variable)
        case "logodds":
            return pt.log(variable) - pt.log1p(-variable)
    if transform is None or isinstance(rv.type, XTensorType):
        return reading.values[name]
    value = transform.forward(variable, *rv.owner.inputs)
    known = all(v is variable or isinstance(v, Constant) for v in ancestors([value]) if not v.owner)
    return value if known else reading.values[name]


def _row_graph(
    reading: Reading,
    name: str,
    part: _SomeRows,
    tables: Tables,
    place: Mapping[Variable, Variable],
    remaining: dict[Variable, str],
) -> RowGraph:
    """Return rows of a term over batches of them; conditions on its rows leave `remaining`."""
    axis, n_rows = part.axis, part.graph.type.shape[part.axis]
    memo: dict[Variable, Variable] = {}
    names: dict[Variable, str] = {}
    if part.levels is not None:
        local = tables.inputs(n_rows)
        names = {v: n for n, v in local.items()}
        memo = {v: local[n] for n, v in tables.values.items() if v in part.trace.axes}
        for node, table in part.nodes.items():
            memo[node.outputs[0]] = tables.picked(part.trace, node, table, part.levels, local)
    checks = list(remaining)
    if part.chosen is not None:
        checks = settled(checks, reading.arrays, part.chosen, part.axes)
    [graph, *conditions] = rebuild([part.graph, *checks], memo, fold)
    sources = [*reading.values.values(), *names]
    dependent = depends_on([graph, *conditions], sources)
    trace = reading.trace([graph, *conditions], names)
    trace.follow(graph, axis)
    own = [n for n, v in reading.values.items() if v in trace.axes and n not in tables.values]
    if own:
        both = [*tables.grouping.names, *own]
        raise TallModelError(
            f"Each row of {name!r} has an element of {own[0]!r} of its own, which would stay a "
            f"parameter. Name it too, integrate={both}, or sample the model as it is, with pm.NUTS."
        )
    trace.refuse_reductions(depends_on([graph], list(names)), n_rows)
    mine = {
        new: (old, said)
        for new, (old, said) in zip(conditions, list(remaining.items()), strict=True)
        if any(v in trace.axes or v in names for v in ancestors([new]))
    }
    kinds = {n_rows: [RowTerm(name, graph, axis, n_rows, True)]}
    said = {new: text for new, (_, text) in mine.items()}
    guards, scalars = (
        sort_checks(
            said, trace, dependent, reading.arrays, kinds, partial(owner_of_check, reading.model)
        )
        if said
        else ([], [])
    )
    for new, (old, text) in mine.items():
        del remaining[old]
        if new in scalars:
            remaining[new] = text
    batch = batch_graph([graph, *(g for g, _, _ in guards)], trace, dependent, reading.arrays)
    others = [(1 + i, guard) for i, (_, guard, _) in enumerate(guards)]
    index = np.zeros(n_rows, dtype=int) if part.levels is None else part.levels
    return _finished(
        batch, trace, reading.arrays, [axis], others, names, place, index, part.chosen,
        tables.grouping.runs,
    )  # fmt: skip


def _finished(
    batch: BatchGraph,
    trace: RowTrace,
    arrays: dict[Variable, np.ndarray],
    axes: Sequence[int],
    guards: Sequence[tuple[int, int]],
    names: Mapping[Variable, str],
    place: Mapping[Variable, Variable],
    index: np.ndarray | StoredColumn,
    chosen: np.ndarray | None,
    runs: Runs | None = None,
) -> RowGraph:
    """Add up what each row has, and put parameters back as functions of shared variables."""
    parts = [_vector(g, a, pt.sum) for g, a in zip(batch.outputs, axes, strict=False)]
    output = sum(parts[1:], parts[0])
    for at, axis in guards:
        output = pt.switch(_vector(batch.outputs[at], axis, pt.all), output, -np.inf)
    parameters = frozen(rebuild(list(batch.parameters.values()), dict(place)), arrays)
    output = simplified(output, batch)
    [output] = rebuild([output], dict(zip(batch.parameters, parameters, strict=True)))
    columns, local, above = {}, {}, set(ancestors([output]))
    read = {new: old for new, old in batch.columns.items() if new in above and old not in names}
    for new, old in batch.columns.items():
        if old in names:
            local[new] = names[old]
            continue
        if new not in above:
            continue
        if runs is not None:
            columns[new] = Column(np.empty(0), trace.axes[old])
            continue
        value = arrays[old] if old in arrays else evaluate([old], arrays)[0]
        if chosen is not None:
            value = np.take(value, chosen, axis=trace.axes[old])
        columns[new] = Column(value, trace.axes[old])
    local = {v: name for v, name in local.items() if v in above}
    if runs is not None:
        stored = StoredRows(list(read.values()), [c.axis for c in columns.values()], arrays, runs)
        times = np.ones(len(runs.levels), dtype=int)
        return RowGraph(output, columns, local, runs.levels, times, stored=stored)
    assert isinstance(index, np.ndarray)  # rows on disk have runs
    index = index if chosen is None else index[chosen]
    return RowGraph(output, columns, local, index, np.ones(len(index), dtype=int), chosen)


def _vector(graph: Variable, axis: int, reduce: Callable) -> Variable:
    others = tuple(i for i in range(graph.type.ndim) if i != axis)
    return reduce(graph, axis=others) if others else graph
