"""What rows read of local variables: tables with an element for each level, at the row's level."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors

from pymc_subsample.graph.concrete import depends_on, fold, rebuild, tensor_input
from pymc_subsample.graph.nodes import index_entries
from pymc_subsample.graph.numpy_functions import evaluate
from pymc_subsample.model import TallModelError
from pymc_subsample.model.batch import BatchGraph, batch_graph
from pymc_subsample.model.parameter_checks import sort_checks
from pymc_subsample.model.support import owner_of_check
from pymc_subsample.model.terms import RowTerm
from pymc_subsample.model.trace import RowTrace
from pymc_subsample.rows.columns import StoredColumn
from pymc_subsample.units.discovery import gathers, level_axis
from pymc_subsample.units.groupings import Grouping
from pymc_subsample.units.places import row_number
from pymc_subsample.units.reading import Reading
from pymc_subsample.units.stored_rows import OfLevels

Local = Mapping[str, Variable]  # Inputs of rows, or levels, that are local variables, by name.


@dataclass
class _Space:
    """Variables whose levels have the same elements, and what is made of them level by level."""

    names: list[str]
    length: int
    trace: RowTrace
    graphs: list[Variable] = field(default_factory=list)
    batch: BatchGraph | None = None

    def follow(self, graph: Variable, axis: int) -> None:
        if graph not in self.graphs:
            self.trace.follow(graph, axis)
            self.graphs.append(graph)


class Tables:
    """Graphs of levels, at any levels.

    Levels of which some lack elements of a variable have the first in their place.
    """

    def __init__(self, reading: Reading, grouping: Grouping) -> None:
        self.reading, self.grouping = reading, grouping
        self.values = {name: reading.values[name] for name in grouping.names}
        self._dependent = depends_on(reading.graphs, list(reading.values.values()))
        self._own = depends_on(reading.graphs, list(self.values.values()))
        self._links: dict[Variable, tuple[RowTrace, Apply, Variable]] = {}
        self._spaces: list[_Space] = []
        for name in grouping.names:
            same = [s for s in self._spaces if not {name, *s.names} & grouping.elements.keys()]
            if same:
                same[0].names.append(name)
                continue
            length = self.values[name].type.shape[grouping.own[name]]
            self._spaces.append(_Space([name], length, self._trace()))
        self._priors = {name: self._linked(reading.priors[name], name) for name in self.values}
        for name, prior in self._priors.items():
            self._space(name).follow(prior, grouping.own[name])

    def _trace(self) -> RowTrace:
        return RowTrace(
            lambda v: v not in self._dependent,
            row_number(self.reading.arrays),
            lambda v: v in self._dependent and v not in self._own,
        )

    def _space(self, name: str) -> _Space:
        return next(s for s in self._spaces if name in s.names)

    def _linked(self, graph: Variable, name: str) -> Variable:
        """Put inputs in the place of what elements of a variable read of variables of others."""
        own = [self.values[n] for n in self._space(name).names]
        others = [v for v in self.values.values() if v not in own]
        if set(ancestors([graph])).isdisjoint(others):
            return graph
        trace = self.reading.trace([graph], self.values.values())
        trace.follow(graph, self.grouping.own[name])
        memo = {}
        for node, table in gathers(trace, graph, others).items():
            out = node.outputs[0]
            memo[out] = tensor_input(None, out.type.dtype, out.type.shape)
            self._links[memo[out]] = trace, node, table
            self.add(trace, node, table)
        links = list(memo.values())
        [new] = rebuild([graph], memo)
        self._dependent |= depends_on([new], [*self.reading.values.values(), *links])
        self._own |= depends_on([new], [*self.values.values(), *links])
        return new

    def add(self, trace: RowTrace, node: Apply, table: Variable) -> None:
        """Have the table that a node reads at any levels."""
        self._of(table).follow(table, level_axis(trace, node)[0])

    def _of(self, table: Variable) -> _Space:
        above = set(ancestors([table]))
        found = [s for s in self._spaces if not above.isdisjoint(self.values[n] for n in s.names)]
        if len(found) != 1:
            raise TallModelError(
                f"What rows read of {' and '.join(map(repr, self.values))} is a table of variables "
                "whose levels have different elements. Index each of them by itself."
            )
        return found[0]

    def inputs(self, n: int) -> dict[str, Variable]:
        """Return inputs of n rows, or levels, that are local variables."""
        found = {}
        for name, value in self.values.items():
            own = self.grouping.own[name]
            shape = [n if i == own else k for i, k in enumerate(value.type.shape)]
            shape += self.grouping.elements_of(name).shape[1:]
            found[name] = tensor_input(value.name, value.type.dtype, shape)
        return found

    def picked(
        self,
        trace: RowTrace,
        node: Apply,
        table: Variable,
        levels: np.ndarray | StoredColumn,
        local: Local,
    ) -> Variable:
        """Return what rows of some levels read of a table along the axis of levels."""
        [new] = self._at(self._of(table), [table], levels, local)
        axis, entry = level_axis(trace, node)
        if entry.type.ndim > 1:
            return pt.moveaxis(new, 0, trace.axes[entry])
        index = tuple(
            slice(None) if i == axis else int(e.data) if isinstance(e, Variable) else e
            for i, e in enumerate(index_entries(node))
        )
        new = new if all(e == slice(None) for e in index) else new[index]
        at = axis - sum(not isinstance(e, slice) for e in index[:axis])
        wanted = trace.axes[node.outputs[0]]
        return new if at == wanted else pt.moveaxis(new, at, wanted)

    def priors(self, levels: np.ndarray, local: Local) -> list[Variable]:
        """Return log densities of variables of some levels, along their own axis.

        Elements that a level lacks have that of a normal distribution, but for its constant.
        """
        found = []
        for name, prior in self._priors.items():
            [graph] = self._at(self._space(name), [prior], levels, local)
            if name in self.grouping.elements:
                x = local[name]
                nothing = -0.5 * x**2 if x.type.dtype.startswith("float") else pt.zeros_like(x)
                summed = tuple(range(graph.type.ndim, x.type.ndim))
                graph = self._where(
                    name, levels, graph, nothing.sum(axis=summed) if summed else nothing
                )
            found.append(graph)
        return found

    def conditions(
        self, remaining: dict[Variable, str], levels: np.ndarray, local: Local
    ) -> tuple[list[tuple[Variable, int]], list[Variable]]:
        """Return conditions on levels, with the axis of these, and conditions on none."""
        guards, reading = [], self.reading
        whose = partial(owner_of_check, reading.model)
        for space in self._spaces:
            name, own = space.names[0], self.grouping.own[space.names[0]]
            kinds = {space.length: [RowTerm(name, self._priors[name], own, space.length, True)]}
            last = space is self._spaces[-1]
            mine = {
                condition: said
                for condition, said in remaining.items()
                if last
                or any(space.trace.has_rows(v, space.length) for v in ancestors([condition]))
            }
            for condition in mine:
                del remaining[condition]
            mine = {self._linked(c, name): said for c, said in mine.items()}
            rows, scalars = sort_checks(
                mine, space.trace, self._dependent, reading.arrays, kinds, whose
            )
            for graph, axis, _ in rows:
                space.graphs.append(graph)
                space.batch = None
                [new] = self._at(space, [graph], levels, local)
                if name in self.grouping.elements:
                    new = self._where(name, levels, new, pt.ones_like(new), axis)
                guards.append((new, axis))
        return guards, scalars

    def _where(
        self,
        name: str,
        levels: np.ndarray,
        graph: Variable,
        otherwise: Variable,
        axis: int | None = None,
    ) -> Variable:
        """Return a graph for levels that have elements of a variable, and another for others."""
        has = self.grouping.elements[name][levels] >= 0
        column = tensor_input(None, has.dtype, has.shape)
        self.reading.arrays[column] = has
        own = self.grouping.own[name] if axis is None else axis
        order = ["x"] * own + list(range(has.ndim))
        order += ["x"] * (graph.type.ndim - len(order))
        return pt.switch(column.dimshuffle(order), graph, otherwise)

    def _at(
        self,
        space: _Space,
        graphs: Sequence[Variable],
        levels: np.ndarray | StoredColumn,
        local: Local,
    ) -> list[Variable]:
        """Return graphs of a space at some levels."""
        if space.batch is None:
            space.batch = batch_graph(
                space.graphs, space.trace, self._dependent, self.reading.arrays
            )
        wanted = [space.batch.outputs[space.graphs.index(graph)] for graph in graphs]
        known = {
            v: self.picked(*link, levels, local)
            for v, link in self._links.items()
            if v in set(space.batch.columns.values())
        }
        first = space.names[0]
        alone = {self.values[n]: local[n] for n in space.names}
        if isinstance(levels, StoredColumn):
            return self._instance(space, wanted, known | alone, levels)
        elements = np.maximum(self.grouping.elements_of(first)[levels], 0)
        if elements.ndim == 1:
            return self._instance(space, wanted, known | alone, elements)
        each = [
            self._instance(space, wanted, {**known, self.values[first]: local[first][:, c]}, index)
            for c, index in enumerate(elements.T)
        ]
        return [pt.stack(parts, axis=1) for parts in zip(*each, strict=True)]

    def _instance(
        self,
        space: _Space,
        wanted: Sequence[Variable],
        known: Mapping[Variable, Variable],
        index: np.ndarray | StoredColumn,
    ) -> list[Variable]:
        """Return outputs of the graph of levels, at an element for each row."""
        assert space.batch is not None
        arrays = self.reading.arrays
        memo: dict[Variable, Variable] = dict(space.batch.parameters)
        above = set(ancestors(wanted))
        for new, old in space.batch.columns.items():
            if old in known:
                memo[new] = known[old]
            elif new in above:
                value = arrays[old] if old in arrays else evaluate([old], arrays)[0]
                axis = space.trace.axes[old]
                stored = isinstance(index, StoredColumn)
                read: Any = (
                    OfLevels(np.moveaxis(value, axis, 0), index) if isinstance(index, StoredColumn)
                    else np.take(value, index, axis=axis)
                )  # fmt: skip
                column = tensor_input(old.name, read.dtype, read.shape)
                memo[new] = pt.moveaxis(column, 0, axis) if stored and axis else column
                arrays[column] = read
        return rebuild(wanted, memo, fold, remake=True)
