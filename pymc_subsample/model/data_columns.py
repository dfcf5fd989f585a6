"""Data-only columns of a batch graph, as functions of raw columns, and where those are kept."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors

from pymc_subsample.graph.concrete import on_disk, tensor_input
from pymc_subsample.graph.numpy_functions import evaluate, numpy_function
from pymc_subsample.model.batch import PIECE, BatchGraph, batch_graph
from pymc_subsample.model.errors import CoupledRows
from pymc_subsample.model.powers import without_zeros
from pymc_subsample.model.row_kinds import chosen, joined, per_row, shared_columns
from pymc_subsample.model.simplify import labelled, row_axes, simplified
from pymc_subsample.model.terms import RowTerm
from pymc_subsample.model.trace import RowTrace
from pymc_subsample.rows.columns import StoredColumn
from pymc_subsample.rows.mapped import MappedRows
from pymc_subsample.rows.row_store import Joined, RowStore


def column_graph(
    columns: Sequence[Variable], axes: Sequence[int], arrays: dict[Variable, np.ndarray]
) -> BatchGraph:
    """Rebuild data-only columns over batches of the raw columns.

    A column that needs all rows at once (a cumulative sum, a rank) is evaluated here and becomes
    a raw column itself; `arrays` gains it.
    """
    raw: dict[Variable, Variable] = {}
    trace = RowTrace(lambda v: v in arrays, row_number_test(arrays))
    for var, axis in zip(columns, axes, strict=True):
        if not _follow(trace, var, axis, arrays):
            [value] = evaluate([var], arrays)
            raw[var] = tensor_input(var.name, value.dtype, value.shape)
            arrays[raw[var]] = value
            trace.follow(raw[var], axis)
    return batch_graph([raw.get(v, v) for v in columns], trace, set(), arrays)


def _follow(
    trace: RowTrace, var: Variable, axis: int, arrays: Mapping[Variable, np.ndarray]
) -> bool:
    """Trace a column; return whether each of its rows can be computed from that row alone."""
    alone = RowTrace(trace.stop, row_number_test(arrays))
    with suppress(CoupledRows):
        alone.follow(var, axis)
        roots = [v for v in alone.axes if v.owner is None]
        length = var.type.shape[axis]
        shapes = (getattr(v.type, "shape", ()) for v in alone.whole)
        reads_all = any(v in alone.axes for v in alone.whole) or any(length in s for s in shapes)
        if roots and not reads_all and all(v in arrays for v in roots):
            trace.follow(var, axis)
            return True
    return False


def row_number_test(
    arrays: Mapping[Variable, np.ndarray],
) -> Callable[[Variable, int, int | None], bool]:
    """Return a test of whether an index variable holds 0, 1, ..., n - 1 along an axis."""

    def test(index: Variable, axis: int, length: int | None) -> bool:
        if index.type.shape[axis] != length or None in index.type.shape:
            return False
        if any(s != 1 for i, s in enumerate(index.type.shape) if i != axis):
            return False
        roots = [v for v in ancestors([index]) if v.owner is None]
        data = [v for v in roots if not isinstance(v, Constant)]
        if any(v not in arrays or on_disk(arrays[v]) for v in data):
            return False  # columns on disk are data, not numbers of rows
        [value] = evaluate([index], arrays)
        return np.array_equal(value.ravel(), np.arange(value.size))

    return test


def stored(
    batch: BatchGraph,
    derived: dict[Variable, Variable],
    arrays: Mapping[Variable, np.ndarray | StoredColumn],
    axes: Mapping[Variable, int],
    kinds: Mapping[int, Sequence[RowTerm]],
    guards: Sequence[tuple[Variable, int, int]],
) -> tuple[
    BatchGraph, Variable, RowStore, list[Variable], list[int], dict[Variable, Variable],
    list[dict[int, Variable]],
]:  # fmt: skip
    """Leave raw columns where they are, in memory or on disk; those that kinds read alike are one.

    `arrays` and `axes` are their values and row axes; the rest is as `kinds.per_row` has it.
    Returns of an `Evaluation` the batch graph, stable and shared by kinds of rows, its
    log-likelihood as written, the rows, raw, raw_axes and derived; and, per raw column, what it was
    before those of several kinds were joined, by kind.
    """
    values = {
        v: x if isinstance(x, StoredColumn) else np.moveaxis(x, axes[v], 0)
        for v, x in arrays.items()
    }
    lengths = list(kinds)
    of_kind = {v: lengths.index(len(x)) for v, x in values.items()}
    written = per_row(batch.outputs, kinds, guards)
    any_row = partial(_any_row, arrays=values, axes=axes)
    rows, joins = [], dict[Variable, Variable]()
    for graph in written:
        of_powers = without_zeros(graph, batch, row_axes(graph, batch), derived, any_row)
        rows.append(simplified(of_powers, batch))
    if len(kinds) > 1:
        places = {v: (axes[v], _types(x)) for v, x in values.items()}
        rows, derived, joins = shared_columns(rows, derived, places, of_kind)
    branches = list(dict.fromkeys(rows))
    raw = [v for v in values if v not in joins]
    raw_axes = [axes[v] for v in raw]
    members = [{of_kind[w]: w for w in values if joins.get(w, w) is v} for v in raw]
    content = [joined({k: values[w] for k, w in own.items()}, lengths) for own in members]
    if len(branches) > 1:
        batch.kind, kind = (tensor_input("kind", "int8", (None,)) for _ in range(2))
        batch.columns[batch.kind], batch.axes[batch.kind] = batch.kind, 0
        batch.tests = [pt.eq(batch.kind, k) for k in range(1, len(branches))]
        derived[batch.kind] = kind
        numbers = [np.int8(branches.index(branch)) for branch in rows]
        content.append(Joined(list(map(np.broadcast_to, numbers, lengths))))
        raw.append(kind)
        raw_axes.append(0)
        members.append({})
    names = [_names(terms) for terms in kinds.values()]
    make = MappedRows if any(map(on_disk, values.values())) else RowStore
    store = make(content, sum(kinds), list(zip(names, lengths, strict=True)))
    graph = labelled(chosen(branches, batch.tests), batch)
    as_written = chosen([written[rows.index(branch)] for branch in branches], batch.tests)
    return graph, as_written, store, raw, raw_axes, derived, members


def _any_row(
    test: Variable,
    arrays: Mapping[Variable, np.ndarray | StoredColumn],
    axes: Mapping[Variable, int],
) -> bool:
    """Whether a function of raw columns, which are given rows first, is true of any row."""
    raw = [v for v in ancestors([test]) if v in arrays]
    if not raw:
        return False
    function = numpy_function(raw, [test])
    for start in range(0, len(arrays[raw[0]]), PIECE):
        rows = slice(start, start + PIECE)
        parts = [np.moveaxis(arrays[v][rows], 0, axes[v]) for v in raw]
        if np.any(function(*parts)[0]):
            return True
    return False


def _types(x: np.ndarray | StoredColumn) -> list[np.dtype]:
    """Types in which the numbers of a row are kept: compiled code reads all kinds alike."""
    return (
        x.types if isinstance(x, StoredColumn) else [x.dtype] * int(np.prod(x.shape[1:], dtype=int))
    )


def _names(terms: Sequence[RowTerm]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(r.name for r in terms))
