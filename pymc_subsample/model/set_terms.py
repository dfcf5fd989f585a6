"""Terms whose rows belong to sets, with the rows of a set side by side.

A choice among several products, say: ``u[chosen] - log(pt.zeros(n_choices)[choice].inc(exp(u)))``
couples the rows of a choice, and no others. Here, rows of a set lie along an axis of their own, in
tables of sets that are filled up to as many; what an index adds up is a sum along that axis, and
the rows of the term are sets.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.subtensor import AdvancedSubtensor

from pymc_subsample.graph.concrete import depends_on, fold, rebuild, tensor_input
from pymc_subsample.graph.nodes import is_constant
from pymc_subsample.graph.numpy_functions import evaluate
from pymc_subsample.graph.vectorised import vectorised
from pymc_subsample.model.batch import batch_graph
from pymc_subsample.model.data_columns import row_number_test
from pymc_subsample.model.errors import CoupledRows
from pymc_subsample.model.parameter_checks import sort_checks
from pymc_subsample.model.set_axes import SetAxes, adds
from pymc_subsample.model.set_tables import SetLayout, SetTable, constant
from pymc_subsample.model.table_lengths import filled_up
from pymc_subsample.model.terms import RowTerm, TermPart
from pymc_subsample.model.trace import RowTrace

_CONDITION = CheckParameterValue("parameters of sets", can_be_replaced_by_ninf=True)


class SetTerm:
    """A term whose rows are told apart by sets."""

    def __init__(
        self,
        parts: Sequence[TermPart],
        checks: Mapping[Variable, str],
        values: list[Variable],
        arrays: dict[Variable, np.ndarray],
        whose: Callable[[str], str],
    ) -> None:
        self._values, self._arrays = values, arrays
        graphs = [part.graph for part in parts]
        self._own = SetAxes(parts[0].name, graphs, list(checks), values, arrays)
        alone = [g for g in graphs if not g.type.ndim or self._of_parameters(g)]
        self._others = [g.sum() for g in alone]
        parts = self._parts = [part for part in parts if part.graph not in alone]
        graphs = [part.graph for part in parts]
        self._axes = [self._axis(graph) for graph in graphs]
        # Conditions on elements of an axis, and on parameters alone.
        trace, kinds = self._own.trace(), dict[int, list[RowTerm]]()
        for part, axis in zip(parts, self._axes, strict=True):
            trace.follow(part.graph, axis)
        for n in map(len, self._own.kinds):
            kinds[n] = [RowTerm(part.name, part.graph, 0, n, True) for part in parts]
        self._guards, self._conditions = sort_checks(
            checks, trace, self._own.dependent, arrays, kinds, whose
        )
        for guard, axis, _ in self._guards:
            self._own.of(guard, axis)

    def potentials(self, name: str, apart: bool) -> dict[str, Variable]:
        """Return log-likelihoods of sets, as functions of the same values, by their names.

        Those of sets of about as many rows are `apart`, or all are together, in order.
        """
        counts = np.bincount(self._own.set, minlength=self._own.sets)
        lengths = (
            filled_up(counts[:, None]).ravel() if apart else np.full(self._own.sets, counts.max())
        )
        found = {}
        # Sets without rows say nothing, unless they have numbers of their own.
        graphs = [*zip((p.graph for p in self._parts), self._axes, strict=True),
                  *((guard, axis) for guard, axis, _ in self._guards)]  # fmt: skip
        of_rows = all(self._own.is_of_rows(self._own.of(graph, axis)) for graph, axis in graphs)
        told = (counts > 0) | (not (apart and of_rows))
        for length in np.unique(lengths[told]):
            table = SetTable(np.flatnonzero(told & (lengths == length)))
            sums = [
                self._reduced(pt.sum, part.graph, axis, table, 0.0)
                for part, axis in zip(self._parts, self._axes, strict=True)
            ]
            total = sum(sums[1:], sums[0])
            for guard, axis, _ in self._guards:
                total = pt.switch(
                    self._reduced(pt.all, guard, axis, table, np.True_), total, -np.inf
                )
            if self._conditions:
                total = _CONDITION(total, pt.all(pt.stack(self._conditions)))
            found[length] = total
        one = len(found) == 1 and not self._others
        named = {
            f"{name} (sets of {'one row' if n == 1 else f'up to {n} rows'})": x
            for n, x in found.items()
        }
        if self._others:
            named[f"{name} (no sets)"] = sum(self._others[1:], self._others[0])
        return {name: next(iter(named.values()))} if one else named

    def _of_parameters(self, graph: Variable) -> bool:
        """Whether a part has neither rows nor sets, and reads no data."""
        lengths = set(map(len, self._own.kinds))
        return lengths.isdisjoint(graph.type.shape) and set(self._arrays).isdisjoint(
            ancestors([graph])
        )

    def _axis(self, graph: Variable) -> int:
        """Return the axis of a part that has rows or sets."""
        lengths = set(map(len, self._own.kinds))
        axes = sorted(range(graph.type.ndim), key=lambda a: graph.type.shape[a] not in lengths)
        if not axes:
            raise CoupledRows(graph.owner)
        self._own.of(graph, axes[0])
        return axes[0]

    # Pieces, side by side

    def _reduced(
        self,
        reduce: Callable,
        graph: Variable,
        axis: int,
        table: SetTable,
        nothing: float | np.bool,
    ) -> Variable:
        """Reduce what each set of a table has of a graph, of which an element may be `nothing`."""
        own = self._own.of(graph, axis)
        found = self._piece(graph, axis, table)
        if not self._own.is_of_sets(own):
            found = self._layout(own, table).of(found, 1 + axis, nothing)
        others = tuple(range(1, found.type.ndim))
        return reduce(found, axis=others) if others else found

    def _layout(self, own: np.ndarray, table: SetTable) -> SetLayout:
        """Return where elements of an axis stand, those that are picked first."""
        key = own.tobytes()
        if key not in table.layouts:
            rows = self._own.is_of_rows(own)
            order = np.lexsort((~self._own.first, own)) if rows else np.argsort(own, kind="stable")
            starts = np.searchsorted(own[order], table.sets)
            counts = np.searchsorted(own[order], table.sets, side="right") - starts
            places = np.arange(max(int(counts.max()), 1))
            at = starts[:, None] + np.clip(np.minimum(places, counts[:, None] - 1), 0, None)
            table.layouts[key] = SetLayout(
                order[np.minimum(at, len(own) - 1)], places < counts[:, None]
            )
        return table.layouts[key]

    def _piece(self, v: Variable, axis: int, table: SetTable) -> Variable:
        """Return what depends on elements of an axis for the sets of a table, which come first.

        That axis remains, with the places of a set, unless it is the axis of sets.
        """
        if (v, axis) not in table.pieces:
            table.pieces[v, axis] = self._made(v, axis, table)
        return table.pieces[v, axis]

    def _made(self, v: Variable, axis: int, table: SetTable) -> Variable:
        own = self._own.of(v, axis)
        trace = self._own.trace()
        trace.follow(v, axis)
        memo: dict[Variable, Variable] = {}
        made: dict[Variable, Variable] = {}
        for x, at_axis in trace.axes.items():
            if x.owner is None or x not in self._own.dependent:
                continue
            part = None
            if self._own.is_cut(x):
                part = self._at_cut(x.owner, at_axis, own, table)
            elif isinstance(x.owner.op, AdvancedSubtensor):
                part = self._of_their_set(x.owner, at_axis, own, table)
            if part is not None:
                memo[x] = tensor_input(x.name, x.type.dtype, x.type.shape)
                made[memo[x]] = part
        if v in memo:
            return made[memo[v]]
        [graph] = rebuild([v], dict(memo), fold)
        dependent = depends_on([graph], [*self._values, *made])
        inner = RowTrace(lambda x: x not in dependent, row_number_test(self._arrays))
        inner.follow(graph, axis)
        inner.refuse_reductions(dependent, len(own))
        sets = self._own.is_of_sets(own)
        at = table.sets if sets else self._layout(own, table).at
        if not any(inner.stop(x) or x.owner is None for x in inner.axes):
            return pt.moveaxis(self._taken(graph, at, axis), axis, 0)
        batch = batch_graph([graph], inner, dependent, self._arrays)
        known: dict[Variable, Variable] = dict(batch.parameters)
        placed: dict[Variable, Variable] = {}
        for new, old in batch.columns.items():
            axis_of = inner.axes[old]
            shape = [at.shape[-1] if i == axis_of else n for i, n in enumerate(new.type.shape)]
            core = known[new] = tensor_input(new.name, new.type.dtype, shape)
            if old in made:
                placed[core] = pt.moveaxis(made[old], 0, axis_of) if sets else made[old]
                continue
            if old in self._values:
                value = self._taken(old, at, axis_of)
                placed[core] = value if sets else pt.moveaxis(value, axis_of, 0)
                continue
            value = self._arrays[old] if old in self._arrays else evaluate([old], self._arrays)[0]
            value = np.take(value, at, axis=axis_of)
            value = value if sets else np.ascontiguousarray(np.moveaxis(value, axis_of, 0))
            placed[core] = self._column(value, old.name)
        [found] = rebuild(batch.outputs, known, fold, remake=True)
        if sets:
            return pt.moveaxis(rebuild([found], placed, remake=True)[0], axis, 0)
        return vectorised(found, placed, 1)

    def _at_cut(self, node: Apply, axis: int, own: np.ndarray, table: SetTable) -> Variable:
        """Return what is computed where a graph is cut, for elements of another axis."""
        if adds(node):
            x, y = node.inputs[:2]
            total, (before, after) = self._piece(y, 0, table), self._own.ends(node)
            if not self._own.is_of_sets(before):
                layout = self._layout(before, table)
                total = layout.of(total, 1, 0.0)
                if not self._own.is_of_sets(after):  # nests of a set, side by side
                    [nest, _] = self._own.added(node)
                    places = self._layout(after, table).at[:, None]
                    equal = nest[layout.at][..., None] == places
                    more = tuple(range(3, total.type.ndim + 1))
                    within = constant("nests", np.expand_dims(equal, more))
                    total = pt.switch(within, pt.expand_dims(total, 2), 0.0)
                total = total.sum(axis=1)
            return total if is_constant(x, 0.0) else total + self._piece(x, 0, table)
        at, index = self._own.picked(node)
        before = self._own.of(node.inputs[0], at)
        found = self._piece(node.inputs[0], at, table)
        if self._own.is_of_sets(before):
            return found if self._own.is_of_sets(own) else pt.expand_dims(found, 1 + axis)
        found = pt.moveaxis(found, 1 + at, 1)
        # Where in its set each element stands, and that of those that are picked.
        standing = np.zeros(len(before), dtype=np.int64)
        layout = self._layout(before, table)
        standing[layout.at[layout.counts]] = np.nonzero(layout.counts)[1]
        picked = standing[index[self._layout(own, table).at]]
        if not picked.any() and picked.shape[1] == 1:
            found = found[:, :1]
        else:
            sets = np.arange(len(picked))[:, None]
            found = found[sets, constant("places", picked)]
        return found[:, 0] if self._own.is_of_sets(own) else pt.moveaxis(found, 1, 1 + axis)

    def _of_their_set(
        self, node: Apply, axis: int, own: np.ndarray, table: SetTable
    ) -> Variable | None:
        """Return what all rows of a set pick of parameters, once for each set; None if they differ.

        So that effects of persons are indexed by the person of each choice.
        """
        where = None if self._own.is_of_sets(own) else self._own.index(node)
        if where is None or len(where[1]) != len(own):
            return None
        each = where[1][self._layout(own, table).at]
        if (each != each[:, :1]).any():
            return None
        index = self._column(each[:, 0], "index")
        picked = node.inputs[0][(*[slice(None)] * where[0], index)]
        return pt.expand_dims(pt.moveaxis(picked, axis, 0), 1 + axis)

    def _taken(self, v: Variable, at: np.ndarray, axis: int) -> Variable:
        """Return elements of parameters, or what is the same for all."""
        return v[(*[slice(None)] * axis, self._column(at, "index"))]

    def _column(self, value: np.ndarray, name: str | None) -> Variable:
        column = tensor_input(name or "column", value.dtype, value.shape)
        self._arrays[column] = value
        return column
