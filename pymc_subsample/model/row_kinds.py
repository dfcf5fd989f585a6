"""Rows of several kinds in one batch: events and censored rows, two data sets.

The rows of all kinds are numbered one after the other. A row carries the number of its kind, which
chooses its log-likelihood. Raw columns of two kinds that the log-likelihoods read in the same way
become one, so that two data sets with one likelihood cost no more than one; of any other column the
rows of other kinds repeat a row that has it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors

from pymc_subsample.graph.concrete import merged, rebuild
from pymc_subsample.model.terms import RowTerm
from pymc_subsample.rows.columns import StoredColumn
from pymc_subsample.rows.mapped import RepeatedRow
from pymc_subsample.rows.row_store import Joined


def per_row(
    graphs: Sequence[Variable],
    kinds: Mapping[int, Sequence[RowTerm]],
    guards: Sequence[tuple[Variable, int, int]],
) -> list[Variable]:
    """Add each row's log-likelihoods, for every kind; -inf where a condition on it fails.

    `graphs` has the terms of all kinds and then the conditions.
    """
    remaining = iter(graphs)
    rows = {}
    for n_rows, terms in kinds.items():
        first, *others = [_vector(next(remaining), r.axis, pt.sum) for r in terms]
        rows[n_rows] = sum(others, first)
    for graph, (_, axis, n_rows) in zip(remaining, guards, strict=True):
        rows[n_rows] = pt.switch(_vector(graph, axis, pt.all), rows[n_rows], -np.inf)
    return list(rows.values())


def _vector(graph: Variable, axis: int, reduce: Callable) -> Variable:
    others = tuple(i for i in range(graph.type.ndim) if i != axis)
    return reduce(graph, axis=others) if others else graph


def chosen(rows: Sequence[Variable], tests: Sequence[Variable]) -> Variable:
    """Choose each row's log-likelihood: the first, unless it is of one of the other kinds."""
    result = rows[0]
    for test, other in zip(tests, rows[1:], strict=True):
        result = pt.switch(test, other, result)
    return result


def shared_columns(
    outputs: Sequence[Variable],
    derived: Mapping[Variable, Variable],
    places: Mapping[Variable, Any],
    of_kind: Mapping[Variable, int],
) -> tuple[list[Variable], dict[Variable, Variable], dict[Variable, Variable]]:
    """Let raw columns that the outputs read in the same way be one.

    There is an output, the log-likelihood, for each kind of row; `places` say how each
    raw column lies, which must be alike, `of_kind` which rows it has, and `derived` what the
    outputs read of them. Returns the outputs, in which what has become equal is one variable; what
    they read; and the joins: column -> the one it joins.
    """
    joins: dict[Variable, Variable] = {}
    own = {v: {kind} for v, kind in of_kind.items()}

    def pair() -> tuple[Variable, Variable] | None:
        uses = _uses(rebuild(outputs, _columns(derived, joins)), list(own))
        for a, b in ((a, b) for j, b in enumerate(own) for a in list(own)[:j]):
            same = a.type == b.type and places[a] == places[b] and uses[a] == uses[b]
            if same and uses[a] and own[a].isdisjoint(own[b]):
                return a, b
        return None

    while found := pair():
        a, b = found
        own[a] |= own.pop(b)
        joins = {v: a if w is b else w for v, w in joins.items()} | {b: a}
    columns = _columns(derived, joins)
    first: dict[Variable, Variable] = {}
    same = zip(columns, merged(list(columns.values()), clone=True).outputs, strict=True)
    memo = {column: first.setdefault(graph, column) for column, graph in same}
    return merged(rebuild(outputs, memo)).outputs, columns, joins


def _columns(
    derived: Mapping[Variable, Variable], joins: Mapping[Variable, Variable]
) -> dict[Variable, Variable]:
    graphs = rebuild(list(derived.values()), dict(joins))
    return dict(zip(derived, graphs, strict=True))


def _uses(outputs: Sequence[Variable], raw: Sequence[Variable]) -> dict[Variable, set]:
    """Return by which Ops, on which side and with what else each raw column is read."""
    roots = [v for v in ancestors(outputs) if v.owner is None and not isinstance(v, Constant)]
    fgraph = merged(outputs, roots, clone=True)
    new = dict(zip(roots, fgraph.inputs, strict=True))
    uses: dict[Variable, set] = {}
    for node in fgraph.toposort():
        for position, i in enumerate(node.inputs):
            others = (*node.inputs[:position], None, *node.inputs[position + 1 :])
            uses.setdefault(i, set()).add((node.op, others))
    return {v: uses.get(new.get(v), set()) for v in raw}


def joined(
    parts: Mapping[int, np.ndarray | StoredColumn], lengths: Sequence[int]
) -> np.ndarray | StoredColumn | Joined:
    """Join the parts of a column, by kind; kinds without it repeat a row that has it."""
    if len(lengths) == 1:
        return parts[0]
    known = next(iter(parts.values()))

    def repeated(n_rows: int) -> np.ndarray | RepeatedRow:
        if isinstance(known, StoredColumn):
            return RepeatedRow(known, n_rows)
        return np.broadcast_to(known[0], (n_rows, *np.shape(known[0])))

    return Joined([parts[k] if k in parts else repeated(n) for k, n in enumerate(lengths)])
