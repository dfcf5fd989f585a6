"""Terms whose rows belong to sets, with the rows of a set side by side.

A choice among several products, say: ``u[chosen] - log(pt.zeros(n_choices)[choice].inc(exp(u)))``
couples the rows of a choice, and no others. Here, rows of a set lie along an axis of their own, in
tables of sets that are filled up to as many; what an index adds up is a sum along that axis, and
the rows of the term are sets.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor

from pymc_subsample.graph.concrete import depends_on, fold, rebuild, tensor_input
from pymc_subsample.graph.nodes import index_entries, is_constant
from pymc_subsample.graph.numpy_functions import evaluate
from pymc_subsample.graph.vectorised import vectorised
from pymc_subsample.model.batch import batch_graph
from pymc_subsample.model.data_columns import row_number_test
from pymc_subsample.model.errors import CoupledRows, TallModelError
from pymc_subsample.model.parameter_checks import sort_checks
from pymc_subsample.model.set_tables import SetLayout, SetTable, constant
from pymc_subsample.model.table_lengths import filled_up
from pymc_subsample.model.terms import RowTerm, TermPart
from pymc_subsample.model.trace import RowTrace

_CONDITION = CheckParameterValue("parameters of sets", can_be_replaced_by_ninf=True)


def adds(node: Apply | None) -> bool:
    """Whether a node adds to elements of an array by an index, several to one."""
    op = None if node is None else node.op
    if not isinstance(op, AdvancedIncSubtensor):
        return False
    return not (op.set_instead_of_inc or op.ignore_duplicates)


class SetTerm:
    """A term whose rows are told apart by sets.

    An axis is known by the set of each of its elements: that of rows, of sets, or of what an index
    picks. Where graphs go from one to another, they are cut: at sums over sets, at what rows read
    of their set, and at what is picked. Each piece has its elements along one axis alone.
    """

    def __init__(
        self,
        parts: Sequence[TermPart],
        checks: Mapping[Variable, str],
        values: list[Variable],
        arrays: dict[Variable, np.ndarray],
        whose: Callable[[str], str],
    ) -> None:
        self._values, self._arrays = values, arrays
        self._name = parts[0].name
        graphs = [part.graph for part in parts]
        self._dependent = depends_on([*graphs, *checks], values)
        nodes = [n for n in toposort(graphs) if adds(n) and n.outputs[0] in self._dependent]
        if not nodes:
            raise CoupledRows(None)
        (self._set, self._sets), *others = [self._added(node) for node in nodes]
        if any(sets != self._sets or not np.array_equal(own, self._set) for own, sets in others):
            raise CoupledRows(nodes[-1])
        alone = [g for g in graphs if not g.type.ndim or self._of_parameters(g)]
        self._others = [g.sum() for g in alone]
        parts = self._parts = [part for part in parts if part.graph not in alone]
        graphs = [part.graph for part in parts]
        self._first = np.zeros(len(self._set), dtype=bool)
        self._seen: dict[tuple[Variable, int], np.ndarray] = {}
        self._cut: dict[Variable, bool] = {}
        self._axes = [self._axis(graph) for graph in graphs]
        # Conditions on elements of an axis, and on parameters alone.
        trace, kinds = self._trace(), dict[int, list[RowTerm]]()
        for part, axis in zip(parts, self._axes, strict=True):
            trace.follow(part.graph, axis)
        for n in (len(self._set), self._sets):
            kinds[n] = [RowTerm(part.name, part.graph, 0, n, True) for part in parts]
        self._guards, self._conditions = sort_checks(
            checks, trace, self._dependent, arrays, kinds, whose
        )
        for guard, axis, _ in self._guards:
            self._of(guard, axis)

    def potentials(self, name: str, apart: bool) -> dict[str, Variable]:
        """Return log-likelihoods of sets, as functions of the same values, by their names.

        Those of sets of about as many rows are `apart`, or all are together, in order.
        """
        counts = np.bincount(self._set, minlength=self._sets)
        lengths = filled_up(counts[:, None]).ravel() if apart else np.full(self._sets, counts.max())
        found = {}
        # Sets without rows say nothing, unless they have numbers of their own.
        graphs = [*zip((p.graph for p in self._parts), self._axes, strict=True),
                  *((guard, axis) for guard, axis, _ in self._guards)]  # fmt: skip
        of_rows = all(self._is_of_rows(self._of(graph, axis)) for graph, axis in graphs)
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
        named = {f"{name} (sets of up to {n} rows)": x for n, x in found.items()}
        if self._others:
            named[f"{name} (no sets)"] = sum(self._others[1:], self._others[0])
        return {name: next(iter(named.values()))} if one else named

    def _of_parameters(self, graph: Variable) -> bool:
        """Whether a part has neither rows nor sets, and reads no data."""
        lengths = {len(self._set), self._sets}
        return lengths.isdisjoint(graph.type.shape) and set(self._arrays).isdisjoint(
            ancestors([graph])
        )

    def _axis(self, graph: Variable) -> int:
        """Return the axis of a part that has rows or sets."""
        lengths = {len(self._set), self._sets}
        axes = sorted(range(graph.type.ndim), key=lambda a: graph.type.shape[a] not in lengths)
        if not axes:
            raise CoupledRows(graph.owner)
        self._of(graph, axes[0])
        return axes[0]

    # Where graphs are cut

    def _index(self, node: Apply) -> tuple[int, np.ndarray] | None:
        """Return the axis and the elements that a node picks, or adds to, by one index of data."""
        entries = index_entries(node)
        [axis, *more] = [i for i, e in enumerate(entries) if e != slice(None)]
        entry = entries[axis]
        if more or not isinstance(entry, Variable) or entry.type.ndim != 1:
            return None
        if entry in self._dependent:
            return None
        [index] = evaluate([entry], self._arrays)
        index = np.flatnonzero(index) if index.dtype == bool else index
        length = node.inputs[0].type.shape[axis]
        if length is None or not len(index):
            return None
        if index.min() < 0:
            if not adds(node):
                return None
            raise TallModelError(
                f"{self._name!r} adds up by an index that goes down to {index.min():,}, where it "
                f"counts from the end: -1 is the last of {length:,} sets. So pandas codes what is "
                "missing. Leave these rows out, or give them a set of their own."
            )
        if index.max() >= length:
            raise TallModelError(
                f"{self._name!r} adds up, or picks, by an index that goes to {index.max():,}, from "
                f"an array of {length:,}: its last element is {length - 1:,}. Number sets and rows "
                "from 0, without gaps, as pd.factorize does."
            )
        return axis, index

    def _picked(self, node: Apply) -> tuple[int, np.ndarray]:
        where = self._index(node)
        if where is None:
            raise CoupledRows(node)
        return where

    def _added(self, node: Apply) -> tuple[np.ndarray, int]:
        """Return of which set the rows are that a node adds up, and the number of sets."""
        axis, index = self._picked(node)
        if axis or node.inputs[1].type.ndim != node.inputs[0].type.ndim:
            raise CoupledRows(node)
        return index, node.inputs[0].type.shape[0]

    def _trace(self) -> RowTrace:
        return RowTrace(
            lambda v: v not in self._dependent or self._is_cut(v), row_number_test(self._arrays)
        )

    def _is_cut(self, v: Variable) -> bool:
        if v not in self._cut:
            node = v.owner
            self._cut[v] = node is not None and (
                adds(node) or (isinstance(node.op, AdvancedSubtensor) and self._picks(node))
            )
        return self._cut[v]

    def _picks(self, node: Apply) -> bool:
        """Whether a node picks elements of what depends on rows, and not parameters of groups."""
        where = self._index(node)
        if where is None or node.inputs[0] not in self._dependent:
            return False
        trace = self._trace()
        with suppress(CoupledRows):
            trace.follow(node.inputs[0], where[0])
            return not any(v in trace.axes for v in self._values)
        return False

    def _of(self, v: Variable, axis: int, likely: np.ndarray | None = None) -> np.ndarray:
        """Return of which set the elements of an axis are.

        Where that does not follow from what they are made of, as many as rows are these, and as
        many as sets are sets; `likely` decides where there are as many sets as rows.
        """
        if (v, axis) in self._seen:
            return self._seen[v, axis]
        trace = self._trace()
        trace.follow(v, axis)
        found = [
            self._of_cut(x.owner)
            for x in trace.axes
            if x.owner is not None and x in self._dependent and self._is_cut(x)
        ]
        if not found:
            n, sets = v.type.shape[axis], np.arange(self._sets)
            fitting = [own for own in (self._set, sets) if len(own) == n]
            if not fitting:
                raise CoupledRows(v.owner)
            found = [own for own in fitting if own is likely] or fitting[-1:]
        if any(not np.array_equal(own, found[0]) for own in found):
            raise CoupledRows(v.owner)
        self._seen[v, axis] = found[0]
        return found[0]

    def _of_cut(self, node: Apply) -> np.ndarray:
        if adds(node):
            x, y = node.inputs[:2]
            if not (
                self._is_of_rows(self._of(y, 0, self._set)) and self._is_of_sets(self._of(x, 0))
            ):
                raise CoupledRows(node)
            return np.arange(self._sets)
        axis, index = self._picked(node)
        # What rows pick by their set is of sets.
        own = self._of(node.inputs[0], axis, None if self._is_of_rows(index) else self._set)
        if self._is_of_rows(own) and len(np.unique(own[index])) == len(index):
            self._first[index] = True
        return own[index]

    def _is_of_rows(self, own: np.ndarray) -> bool:
        return np.array_equal(own, self._set)

    def _is_of_sets(self, own: np.ndarray) -> bool:
        return np.array_equal(own, np.arange(self._sets))

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
        own = self._of(graph, axis)
        found = self._piece(graph, axis, table)
        if not self._is_of_sets(own):
            found = self._layout(own, table).of(found, 1 + axis, nothing)
        others = tuple(range(1, found.type.ndim))
        return reduce(found, axis=others) if others else found

    def _layout(self, own: np.ndarray, table: SetTable) -> SetLayout:
        """Return where elements of an axis stand, those that are picked first."""
        key = own.tobytes()
        if key not in table.layouts:
            rows = self._is_of_rows(own)
            order = np.lexsort((~self._first, own)) if rows else np.argsort(own, kind="stable")
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
        own = self._of(v, axis)
        trace = self._trace()
        trace.follow(v, axis)
        memo: dict[Variable, Variable] = {}
        made: dict[Variable, Variable] = {}
        for x, at_axis in trace.axes.items():
            if x.owner is None or x not in self._dependent:
                continue
            part = None
            if self._is_cut(x):
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
        sets = self._is_of_sets(own)
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
            total = self._piece(y, 0, table)
            if not self._is_of_sets(self._set):
                total = self._layout(self._set, table).of(total, 1, 0.0).sum(axis=1)
            return total if is_constant(x, 0.0) else total + self._piece(x, 0, table)
        at, index = self._picked(node)
        before = self._of(node.inputs[0], at)
        found = self._piece(node.inputs[0], at, table)
        if self._is_of_sets(before):
            return found if self._is_of_sets(own) else pt.expand_dims(found, 1 + axis)
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
        return found[:, 0] if self._is_of_sets(own) else pt.moveaxis(found, 1, 1 + axis)

    def _of_their_set(
        self, node: Apply, axis: int, own: np.ndarray, table: SetTable
    ) -> Variable | None:
        """Return what all rows of a set pick of parameters, once for each set; None if they differ.

        So that effects of persons are indexed by the person of each choice.
        """
        where = None if self._is_of_sets(own) else self._index(node)
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
