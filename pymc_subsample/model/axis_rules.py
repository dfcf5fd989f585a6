"""Which axis of each input carries the rows of an output, Op by Op.

An Op for which one output row needs more than one input row couples the rows: it has no rule.
"""

from collections.abc import Callable, Sequence
from functools import singledispatch
from math import prod

import numpy as np
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.raise_op import CheckAndRaise
from pytensor.scan.op import Scan
from pytensor.tensor.basic import Alloc, ExtractDiag, Join, Split
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Argmax, Dot
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.special import LogAddExp, LogSoftmax, LogSumExp, Softmax, XLog1PY, XLogY
from pytensor.tensor.subtensor import IncSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_subsample.graph.nodes import index_entries
from pymc_subsample.model.errors import CoupledRows

Axis = int | None
IsRowNumber = Callable[[Variable, int, int | None], bool]


@singledispatch
def carried_axes(op: Op, node: Apply, axis: int) -> list[Axis]:
    """Return, per input, the axis that carries the rows of output axis `axis` (None: none does)."""
    raise CoupledRows(node)


def _aligned(node: Apply, axis: int) -> list[Axis]:
    """Align inputs with the output from the right, as broadcasting does."""
    ndim = node.outputs[0].type.ndim
    return [_own(i, axis - (ndim - i.type.ndim)) for i in node.inputs]


def _own(var: Variable, axis: int) -> Axis:
    """Return an axis unless the variable lacks it, or is broadcast along it."""
    return None if axis < 0 or var.type.broadcastable[axis] else axis


def _first_only(node: Apply, axis: Axis) -> list[Axis]:
    return [axis] + [None] * (len(node.inputs) - 1)


@carried_axes.register
def _(op: Elemwise | LogAddExp | XLogY | XLog1PY, node: Apply, axis: int) -> list[Axis]:
    return _aligned(node, axis)


@carried_axes.register
def _(op: Softmax | LogSoftmax, node: Apply, axis: int) -> list[Axis]:
    if op.axis is None or axis in np.atleast_1d(op.axis) % node.inputs[0].type.ndim:
        raise CoupledRows(node)
    return _first_only(node, axis)


@carried_axes.register
def _(op: CAReduce | Argmax | LogSumExp, node: Apply, axis: int) -> list[Axis]:
    ndim = node.inputs[0].type.ndim
    reduced = range(ndim) if op.axis is None else np.atleast_1d(op.axis) % ndim
    if node.outputs[0].type.ndim == ndim:
        raise CoupledRows(node)
    return _first_only(node, [i for i in range(ndim) if i not in reduced][axis])


@carried_axes.register
def _(op: DimShuffle, node: Apply, axis: int) -> list[Axis]:
    source = op.new_order[axis]
    return [None if source == "x" else source]


@carried_axes.register
def _(op: Dot, node: Apply, axis: int) -> list[Axis]:
    a, b = node.inputs
    from_a = a.type.ndim - 1
    return [axis, None] if axis < from_a else [None, axis - from_a + (b.type.ndim > 1)]


@carried_axes.register
def _(op: Alloc, node: Apply, axis: int) -> list[Axis]:
    return _first_only(node, _aligned(node, axis)[0])


@carried_axes.register
def _(op: SpecifyShape | CheckAndRaise | ViewOp, node: Apply, axis: int) -> list[Axis]:
    return _first_only(node, axis)


@carried_axes.register
def _(op: CumOp, node: Apply, axis: int) -> list[Axis]:
    if op.axis is None or op.axis == axis:
        raise CoupledRows(node)
    return [axis]


@carried_axes.register
def _(op: ExtractDiag, node: Apply, axis: int) -> list[Axis]:
    ndim = node.inputs[0].type.ndim
    left = [i for i in range(ndim) if i not in (op.axis1 % ndim, op.axis2 % ndim)]
    if axis >= len(left):
        raise CoupledRows(node)
    return [left[axis]]


@carried_axes.register
def _(op: Join, node: Apply, axis: int) -> list[Axis]:
    if op.axis % node.outputs[0].type.ndim == axis:
        raise CoupledRows(node)
    return [_own(i, axis) for i in node.inputs]


@carried_axes.register
def _(op: Split, node: Apply, axis: int) -> list[Axis]:
    if op.axis % node.inputs[0].type.ndim == axis:
        raise CoupledRows(node)
    return _first_only(node, axis)


@carried_axes.register
def _(op: Reshape | JoinDims | SplitDims, node: Apply, axis: int) -> list[Axis]:
    """Rows survive where the lengths before them multiply to the same number."""
    before, after = node.inputs[0].type.shape, node.outputs[0].type.shape
    for own, length in enumerate(before):
        same_start = _same_size(before[:own], after[:axis])
        same_end = _same_size(before[own + 1 :], after[axis + 1 :])
        if same_start and length != 1 and (same_end or length == after[axis] is not None):
            return _first_only(node, own)
    raise CoupledRows(node)


def _same_size(a: Sequence[int | None], b: Sequence[int | None]) -> bool:
    known = [[n for n in lengths if n is not None] for lengths in (a, b)]
    return [*map(len, known)] == [len(a), len(b)] and prod(known[0]) == prod(known[1])


@carried_axes.register
def _(op: Subtensor, node: Apply, axis: int) -> list[Axis]:
    entries = index_entries(node)
    own = _slices(entries)[axis]
    if entries[own] != slice(None):
        source = node.inputs[0].owner
        raise CoupledRows(source if source and isinstance(source.op, Scan) else node)
    return _first_only(node, own)


def _slices(entries: Sequence) -> list[int]:
    """Return the axes that an index leaves."""
    return [i for i, entry in enumerate(entries) if isinstance(entry, slice)]


@carried_axes.register
def _(op: IncSubtensor, node: Apply, axis: int) -> list[Axis]:
    x, y, *index = node.inputs
    entries = index_entries(node)
    if entries[axis] != slice(None):
        raise CoupledRows(node)
    left = _slices(entries)
    from_y = _own(y, left.index(axis) - (len(left) - y.type.ndim))
    return [_own(x, axis), from_y] + [None] * len(index)


@carried_axes.register
def _(op: Blockwise, node: Apply, axis: int) -> list[Axis]:
    batch = op.batch_ndim(node)
    if axis < batch:
        return [
            _own(i, axis - (batch - (i.type.ndim - len(core))))
            for i, core in zip(node.inputs, op.inputs_sig, strict=True)
        ]
    [out_core] = op.outputs_sig
    letter = out_core[axis - batch]
    separable = isinstance(op.core_op, Dot) or type(op.core_op).__name__.startswith("Solve")
    owners = [core.count(letter) for core in op.inputs_sig]
    if not separable or sum(owners) != 1:
        raise CoupledRows(node)
    return [
        i.type.ndim - len(core) + core.index(letter) if count else None
        for i, core, count in zip(node.inputs, op.inputs_sig, owners, strict=True)
    ]


def indexed_axes(
    node: Apply, axis: int, is_row_number: IsRowNumber
) -> tuple[list[Axis], dict[int, int]]:
    """Return `carried_axes` of integer indexing, and which index inputs are just the row number."""
    x, entries = node.inputs[0], index_entries(node)
    arrays = [i for i, entry in enumerate(entries) if isinstance(entry, TensorVariable | Constant)]
    if any(entries[i].type.dtype == "bool" for i in arrays):
        raise CoupledRows(node)
    adjacent = arrays == list(range(arrays[0], arrays[-1] + 1))
    start = arrays[0] if adjacent else 0
    ndim = max(entries[i].type.ndim for i in arrays)
    result: list[Axis] = [None] * len(node.inputs)
    row_numbers: dict[int, int] = {}

    if start <= axis < start + ndim:
        for i in arrays:
            own = _own(entries[i], axis - start - (ndim - entries[i].type.ndim))
            if own is None:
                continue
            position = 1 + node.op.idx_list[i]
            if result[0] is None and is_row_number(entries[i], own, x.type.shape[i]):
                result[0] = i
                row_numbers[position] = own
            else:
                result[position] = own
    else:
        own = _slices(entries)[axis if axis < start else axis - ndim]
        if entries[own] != slice(None):
            raise CoupledRows(node)
        result[0] = own
    return result, row_numbers
