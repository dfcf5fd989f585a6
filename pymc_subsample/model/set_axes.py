"""Which set elements of arrays belong to, by the indices that add up and pick them.

An axis is known by the set of each of its elements: that of rows, of sets, of nests within sets, or
of what an index picks. Where graphs go from one to another, they are cut: at sums over sets, at
what rows read of their set, and at what is picked. Each piece has its elements along one axis.
"""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor

from pymc_subsample.graph.concrete import depends_on
from pymc_subsample.graph.nodes import index_entries
from pymc_subsample.graph.numpy_functions import evaluate
from pymc_subsample.model.data_columns import row_number_test
from pymc_subsample.model.errors import CoupledRows, TallModelError
from pymc_subsample.model.trace import RowTrace


def adds(node: Apply | None) -> bool:
    """Whether a node adds to elements of an array by an index, several to one."""
    op = None if node is None else node.op
    if not isinstance(op, AdvancedIncSubtensor):
        return False
    return not (op.set_instead_of_inc or op.ignore_duplicates)


class SetAxes:
    """Of the graphs of a term: the set of each row, and of elements of any axis."""

    def __init__(
        self,
        name: str,
        graphs: Sequence[Variable],
        checks: Sequence[Variable],
        values: Sequence[Variable],
        arrays: dict[Variable, np.ndarray],
    ) -> None:
        self._values, self._arrays, self._name = values, arrays, name
        self.dependent = depends_on([*graphs, *checks], values)
        nodes = [n for n in toposort(graphs) if adds(n) and n.outputs[0] in self.dependent]
        if not nodes:
            raise CoupledRows(None)
        self._set_kinds(nodes)
        self.first = np.zeros(len(self.set), dtype=bool)
        self._seen: dict[tuple[Variable, int], np.ndarray] = {}
        self._cut: dict[Variable, bool] = {}

    def _set_kinds(self, nodes: Sequence[Apply]) -> None:
        """Find sets, the fewest that are added up, and of which of them rows and nests are."""
        added = [self.added(node) for node in nodes]
        (self.set, self.sets), *others = added
        if all(n == self.sets and np.array_equal(index, self.set) for index, n in others):
            self.kinds = [self.set, np.arange(self.sets)]
            return
        self.sets = min(n for _, n in added)
        known = {self.sets: np.arange(self.sets)}  # By the length of an axis.
        for index, n in added * len(added):
            if n in known:
                known.setdefault(len(index), known[n][index])
            elif len(index) in known:
                known[n] = np.zeros(n, dtype=np.int64)
                known[n][index] = known[len(index)]
        for node, (index, n) in zip(nodes, added, strict=True):
            if n not in known or not np.array_equal(known[n][index], known[len(index)]):
                raise CoupledRows(node, "sets of one index are not within those of another")
        self.kinds = [known[n] for n in sorted(known, reverse=True)]
        self.set = self.kinds[0]

    def ends(self, node: Apply) -> tuple[np.ndarray, np.ndarray]:
        """Return of which sets the elements are that a node adds up, and their sums."""
        if len(self.kinds) == 2:
            return self.kinds[0], self.kinds[1]
        index, n = self.added(node)
        [before, after] = [next(k for k in self.kinds if len(k) == x) for x in (len(index), n)]
        return before, after

    def index(self, node: Apply) -> tuple[int, np.ndarray] | None:
        """Return the axis and the elements that a node picks, or adds to, by one index of data."""
        entries = index_entries(node)
        [axis, *more] = [i for i, e in enumerate(entries) if e != slice(None)]
        entry = entries[axis]
        if more or not isinstance(entry, Variable) or entry.type.ndim != 1:
            return None
        if entry in self.dependent:
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
                f"counts from the end: -1 is the last of {length:,} sets. pandas codes missing "
                "values as -1. Leave these rows out, or give them a set of their own."
            )
        if index.max() >= length:
            raise TallModelError(
                f"{self._name!r} adds up, or picks, by an index that goes to {index.max():,}, from "
                f"an array of {length:,}: its last element is {length - 1:,}. Number sets and rows "
                "from 0, without gaps, as pd.factorize does."
            )
        return axis, index

    def picked(self, node: Apply) -> tuple[int, np.ndarray]:
        """Return the same as `index`; raise `CoupledRows` if there is none."""
        where = self.index(node)
        if where is None:
            raise CoupledRows(node)
        return where

    def added(self, node: Apply) -> tuple[np.ndarray, int]:
        """Return of which set the rows are that a node adds up, and the number of sets."""
        axis, index = self.picked(node)
        if axis or node.inputs[1].type.ndim != node.inputs[0].type.ndim:
            raise CoupledRows(node)
        return index, node.inputs[0].type.shape[0]

    def trace(self) -> RowTrace:
        """Return an empty trace, which ends where graphs are cut."""
        return RowTrace(
            lambda v: v not in self.dependent or self.is_cut(v), row_number_test(self._arrays)
        )

    def is_cut(self, v: Variable) -> bool:
        """Whether elements of a variable are sums over sets, or picked of such."""
        if v not in self._cut:
            node = v.owner
            self._cut[v] = node is not None and (
                adds(node) or (isinstance(node.op, AdvancedSubtensor) and self._picks(node))
            )
        return self._cut[v]

    def _picks(self, node: Apply) -> bool:
        """Whether a node picks elements of what depends on rows, and not parameters of groups."""
        where = self.index(node)
        if where is None or node.inputs[0] not in self.dependent:
            return False
        trace = self.trace()
        with suppress(CoupledRows):
            trace.follow(node.inputs[0], where[0])
            return not any(v in trace.axes for v in self._values)
        return False

    def of(self, v: Variable, axis: int, likely: np.ndarray | None = None) -> np.ndarray:
        """Return of which set the elements of an axis are.

        Where that does not follow from what they are made of, as many as rows are these, and as
        many as sets are sets; `likely` decides where there are as many sets as rows.
        """
        if (v, axis) in self._seen:
            return self._seen[v, axis]
        trace = self.trace()
        trace.follow(v, axis)
        found = [
            self._of_cut(x.owner)
            for x in trace.axes
            if x.owner is not None and x in self.dependent and self.is_cut(x)
        ]
        if not found:
            fitting = [own for own in self.kinds if len(own) == v.type.shape[axis]]
            if not fitting:
                raise CoupledRows(v.owner)
            found = [own for own in fitting if own is likely] or fitting[-1:]
        for own in found:
            if not np.array_equal(own, found[0]):
                raise CoupledRows(v.owner, _apart(own, found[0]))
        self._seen[v, axis] = found[0]
        return found[0]

    def _of_cut(self, node: Apply) -> np.ndarray:
        if adds(node):
            x, y = node.inputs[:2]
            before, after = self.ends(node)
            for found, own in ((self.of(y, 0, before), before), (self.of(x, 0), after)):
                if not np.array_equal(found, own):
                    raise CoupledRows(node, _apart(found, own))
            return after
        axis, index = self.picked(node)
        # What rows pick by their set is of sets.
        own = self.of(node.inputs[0], axis, None if self.is_of_rows(index) else self.set)
        if self.is_of_rows(own) and len(np.unique(own[index])) == len(index):
            self.first[index] = True
        return own[index]

    def is_of_rows(self, own: np.ndarray) -> bool:
        """Whether an axis is that of rows."""
        return np.array_equal(own, self.set)

    def is_of_sets(self, own: np.ndarray) -> bool:
        """Whether an axis is that of sets, in order."""
        return np.array_equal(own, np.arange(self.sets))


def _apart(a: np.ndarray, b: np.ndarray) -> str:
    """Say where elements that are read together are of different sets."""
    if len(a) != len(b):
        return f"{len(a):,} elements are read together with {len(b):,}"
    first = int(np.flatnonzero(a != b)[0])
    return (
        f"element {first:,} is of set {a[first]:,} by one index, and of set {b[first]:,} by another"
    )
