"""The log-likelihood of a row, and the prior of a level, as functions of the level's variables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.xtensor.type import XTensorType

from pymc_subsample.graph.concrete import depends_on, fold, rebuild, tensor_input
from pymc_subsample.graph.nodes import index_entries
from pymc_subsample.graph.numpy_functions import evaluate, freeze
from pymc_subsample.model import TallModelError
from pymc_subsample.model.batch import BatchGraph, batch_graph
from pymc_subsample.model.data_columns import row_number_test
from pymc_subsample.model.parameter_checks import sort_checks
from pymc_subsample.model.simplify import simplified
from pymc_subsample.model.support import owner_of_check
from pymc_subsample.model.terms import RowTerm
from pymc_subsample.model.trace import RowTrace
from pymc_subsample.units.discovery import Grouping, gathers, level_axis
from pymc_subsample.units.reading import Reading
from pymc_subsample.units.states import states_of

# Of so many rows it is seen whether enough are alike: a tenth, which saves as much time.
_LOOKED, _SAVED = 20_000, 0.1


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

    @cached_property
    def merged(self) -> "RowGraph":
        """The same for rows that differ within their level: those that are alike count together.

        Itself if few are.
        """
        if (n := len(self.index)) == 0:
            return self
        looked = min(n, _LOOKED)
        if len(self._first(looked)[0]) > (1 - _SAVED) * looked:
            return self
        rows, times = self._first(n)
        columns = {
            v: Column(np.take(c.array, rows, axis=c.axis), c.axis) for v, c in self.columns.items()
        }
        return replace(self, columns=columns, index=self.index[rows], times=times)

    def _first(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the first of those that are alike, of n rows, and how many of each there are."""
        arrays = [np.moveaxis(c.array, c.axis, 0)[:n].reshape(n, -1) for c in self.columns.values()]
        numbers = np.hstack([
            np.ascontiguousarray(x).view(np.uint8).reshape(n, -1)
            for x in (self.index[:n, None], *arrays)
        ])  # fmt: skip
        keys = np.ascontiguousarray(numbers).view(f"V{numbers.shape[1]}").ravel()
        _, rows, times = np.unique(keys, return_index=True, return_counts=True)
        order = np.argsort(rows)
        return rows[order], times[order]


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
    conditions: list[Variable]  # On global variables alone.
    shapes: dict[str, tuple[int, ...]]  # Of a level's elements.
    states: np.ndarray | None  # All states of a level, if its variables are discrete.

    @property
    def size(self) -> int:
        """Elements of all local variables of a level."""
        return sum(int(np.prod(s, dtype=int)) for s in self.shapes.values())

    @property
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
    values = {name: reading.values[name] for name in grouping.names}
    read = []
    levels = reading.trace()
    for name in grouping.names:
        levels.follow(reading.priors[name], grouping.own[name])
    tables: list[Variable] = []
    for position in grouping.index:
        graph, axis = reading.terms[position].graph, grouping.axes[position]
        trace = reading.trace()
        trace.follow(graph, axis)
        nodes = gathers(trace, graph, list(values.values()))
        for node, table in nodes.items():
            levels.follow(table, level_axis(trace, node)[0])
        read.append((position, trace, nodes))
        tables += [table for table in nodes.values() if table not in tables]
    priors = [reading.priors[name] for name in grouping.names]
    dependent = depends_on(reading.graphs, list(reading.values.values()))
    by_level = batch_graph([*priors, *tables], levels, dependent, reading.arrays)
    remaining = dict(reading.checks)
    rows = []
    for position, trace, nodes in read:
        index = grouping.index[position]
        local = {v: _of_rows(v, grouping.own[name], len(index)) for name, v in values.items()}
        at_rows = _instance(by_level, levels, reading.arrays, local, index)
        memo: dict[Variable, Variable] = {v: new for v, new in local.items() if v in trace.axes}
        for node, table in nodes.items():
            new = at_rows[len(priors) + tables.index(table)]
            memo[node.outputs[0]] = _picked(trace, node, new)
        names = {local[v]: name for name, v in values.items()}
        rows.append(_row_graph(reading, position, grouping, memo, names, place, remaining))
    kinds = {grouping.levels: [RowTerm(grouping.names[0], priors[0], 0, grouping.levels, True)]}
    guards, conditions = sort_checks(
        remaining, levels, dependent, reading.arrays, kinds, partial(owner_of_check, reading.model)
    )
    if guards:
        graphs = [*priors, *(g for g, _, _ in guards)]
        by_level = batch_graph(graphs, levels, dependent, reading.arrays)
    prior = _finished(
        by_level,
        levels,
        reading.arrays,
        [grouping.own[name] for name in grouping.names],
        [(len(priors) + i, axis) for i, (_, axis, _) in enumerate(guards)],
        {v: name for name, v in values.items()},
        place,
        np.arange(grouping.levels),
    )
    shapes = {
        name: tuple(n for i, n in enumerate(v.type.shape) if i != grouping.own[name])
        for name, v in values.items()
    }
    conditions = _frozen(rebuild(conditions, place), reading.arrays)
    above = set(ancestors([prior.output, *(row.output for row in rows), *conditions]))
    for name in shared:
        if reading.values[name] in above:
            raise TallModelError(
                f"The transform of {name!r} is not found again in the log-likelihood. Give "
                f"{name!r} another one (default_transform=), or sample the model as it is."
            )
    sizes = [int(np.prod(s, dtype=int)) for s in shapes.values()]
    states = states_of(reading, grouping.names, sizes)
    return UnitGraphs(reading, grouping, shared, prior, rows, conditions, shapes, states)


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


def _of_rows(value: Variable, axis: int, n_rows: int) -> Variable:
    shape = [n_rows if i == axis else n for i, n in enumerate(value.type.shape)]
    return tensor_input(value.name, value.type.dtype, shape)


def _instance(
    batch: BatchGraph,
    trace: RowTrace,
    arrays: dict[Variable, np.ndarray],
    local: Mapping[Variable, Variable],
    index: np.ndarray,
) -> list[Variable]:
    """Return the outputs of a graph of levels at the level of each row; `arrays` gains columns."""
    memo: dict[Variable, Variable] = dict(batch.parameters)
    for new, old in batch.columns.items():
        if old in local:
            memo[new] = local[old]
            continue
        value = arrays[old] if old in arrays else evaluate([old], arrays)[0]
        value = np.take(value, index, axis=trace.axes[old])
        memo[new] = tensor_input(old.name, value.dtype, value.shape)
        arrays[memo[new]] = value
    return rebuild(batch.outputs, memo, fold, remake=True)


def _picked(trace: RowTrace, node: Apply, table: Variable) -> Variable:
    """Return what rows read of a table that has their own level along the axis of levels."""
    axis, _ = level_axis(trace, node)
    entries = index_entries(node)
    index = tuple(
        slice(None) if i == axis else int(e.data) if isinstance(e, Variable) else e
        for i, e in enumerate(entries)
    )
    new = table if all(e == slice(None) for e in index) else table[index]
    at = axis - sum(not isinstance(e, slice) for e in index[:axis])
    wanted = trace.axes[node.outputs[0]]
    return new if at == wanted else pt.moveaxis(new, at, wanted)


def _row_graph(
    reading: Reading,
    position: int,
    grouping: Grouping,
    memo: Mapping[Variable, Variable],
    names: Mapping[Variable, str],
    place: Mapping[Variable, Variable],
    remaining: dict[Variable, str],
) -> RowGraph:
    """Return a term over batches of rows; conditions on its rows leave `remaining`."""
    term, axis, index = reading.terms[position], grouping.axes[position], grouping.index[position]
    [graph, *conditions] = rebuild([term.graph, *remaining], dict(memo), fold)
    sources = [*reading.values.values(), *names]
    dependent = depends_on([graph, *conditions], sources)
    trace = RowTrace(lambda v: v not in dependent, row_number_test(reading.arrays))
    trace.follow(graph, axis)
    trace.refuse_reductions(depends_on([graph], list(names)), len(index))
    mine = {
        new: (old, said)
        for new, (old, said) in zip(conditions, list(remaining.items()), strict=True)
        if any(v in trace.axes or v in names for v in ancestors([new]))
    }
    kinds = {len(index): [RowTerm(term.name, graph, axis, len(index), True)]}
    checks = {new: said for new, (_, said) in mine.items()}
    guards, scalars = (
        sort_checks(
            checks, trace, dependent, reading.arrays, kinds, partial(owner_of_check, reading.model)
        )
        if checks
        else ([], [])
    )
    for new, (old, said) in mine.items():
        del remaining[old]
        if new in scalars:
            remaining[new] = said
    batch = batch_graph([graph, *(g for g, _, _ in guards)], trace, dependent, reading.arrays)
    others = [(1 + i, guard) for i, (_, guard, _) in enumerate(guards)]
    return _finished(batch, trace, reading.arrays, [axis], others, names, place, index)


def _finished(
    batch: BatchGraph,
    trace: RowTrace,
    arrays: Mapping[Variable, np.ndarray],
    axes: Sequence[int],
    guards: Sequence[tuple[int, int]],
    names: Mapping[Variable, str],
    place: Mapping[Variable, Variable],
    index: np.ndarray,
) -> RowGraph:
    """Add up what each row has, and put parameters back as functions of shared variables."""
    parts = [_vector(g, a, pt.sum) for g, a in zip(batch.outputs, axes, strict=False)]
    output = sum(parts[1:], parts[0])
    for at, axis in guards:
        output = pt.switch(_vector(batch.outputs[at], axis, pt.all), output, -np.inf)
    parameters = _frozen(rebuild(list(batch.parameters.values()), dict(place)), arrays)
    output = simplified(output, batch)
    [output] = rebuild([output], dict(zip(batch.parameters, parameters, strict=True)))
    columns, local = {}, {}
    for new, old in batch.columns.items():
        if old in names:
            local[new] = names[old]
            continue
        value = arrays[old] if old in arrays else evaluate([old], arrays)[0]
        columns[new] = Column(value, trace.axes[old])
    above = set(ancestors([output]))
    columns = {v: c for v, c in columns.items() if v in above}
    local = {v: name for v, name in local.items() if v in above}
    return RowGraph(output, columns, local, index, np.ones(len(index), dtype=int))


def _frozen(graphs: Sequence[Variable], arrays: Mapping[Variable, np.ndarray]) -> list[Variable]:
    """Put data back into graphs of shared variables."""
    dependent = depends_on(graphs, [v for v in _roots(graphs) if v not in arrays])
    return rebuild(graphs, freeze(graphs, dependent, arrays))


def _roots(graphs: Sequence[Variable]) -> list[Variable]:
    return [v for v in ancestors(graphs) if v.owner is None and not isinstance(v, Constant)]


def _vector(graph: Variable, axis: int, reduce: Callable) -> Variable:
    others = tuple(i for i in range(graph.type.ndim) if i != axis)
    return reduce(graph, axis=others) if others else graph
