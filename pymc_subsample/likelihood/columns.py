"""Data-only columns of a batch graph, computed from batches of the raw columns."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors

from pymc_subsample.likelihood.batch import BatchGraph, batch_graph
from pymc_subsample.likelihood.errors import CoupledRows
from pymc_subsample.likelihood.trace import RowTrace
from pymc_subsample.symbolic.graph import evaluate, on_disk, tensor_input


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
    try:
        alone.follow(var, axis)
        roots = [v for v in alone.axes if v.owner is None]
        n_rows = var.type.shape[axis]
        reads_all = any(n_rows in getattr(v.type, "shape", ()) for v in alone.whole)
        if reads_all or not roots or any(v not in arrays for v in roots):
            return False
        trace.follow(var, axis)
    except CoupledRows:
        return False
    return True


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
