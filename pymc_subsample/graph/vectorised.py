"""Graphs of rows over tables: other axes in front, as of units and of nodes."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import toposort
from pytensor.tensor.basic import Alloc, Join
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from pymc_subsample.graph.concrete import depends_on
from pymc_subsample.graph.nodes import index_entries

# What has as many rows as its inputs, be it one: of rows, none of these reads others.
_ALONG_ROWS = (Elemwise, DimShuffle, CAReduce, Subtensor, Dot)


def broadcasts(output: Variable, local: Sequence[Variable], columns: Sequence[Variable]) -> bool:
    """Whether what is the same in all rows of a unit may have one of them, in all of a graph.

    Such an index may have one where it picks from what is not of the unit.
    """
    own, rows = depends_on([output], list(local)), depends_on([output], [*local, *columns])
    return all(
        isinstance(node.op, _ALONG_ROWS)
        or (isinstance(node.op, AdvancedSubtensor) and node.inputs[0] not in own)
        for node in toposort([output])
        if node.outputs[0] in rows
    )


def vectorised(output: Variable, replaced: Mapping[Variable, Variable], front: int) -> Variable:
    """Put arrays with so many more axes in front in the place of inputs.

    PyTensor does so, but for loops over all that is in front: in their place, tables of which rows
    pick by an index of their own are indexed by the larger index, what is joined, or fills an
    array, is as large in front as it must be, and lengths stay numbers.
    """
    memo = dict(replaced)
    for node in toposort([output], blockers=list(memo)):
        if isinstance(node.op, AdvancedSubtensor):
            table, *index = vectorize_graph(list(node.inputs), memo)
            new = _indexed(node, table, index, front)
        elif isinstance(node.op, Join):
            new = _joined(node, vectorize_graph(list(node.inputs), memo), front)
        elif isinstance(node.op, Alloc):
            value, *shape = vectorize_graph(list(node.inputs), memo)
            new = _filled(node, value, shape, front)
        elif isinstance(node.op, Shape | Shape_i):
            new = _lengths(node, vectorize_graph(node.inputs[0], memo))
        else:
            continue
        if new is not None:
            memo[node.outputs[0]] = new
    return vectorize_graph(output, memo)


def _lengths(node: Apply, x: Variable) -> Variable | None:
    """Return lengths behind what is in front, which are the same for all of it."""
    lengths = x.type.shape[x.type.ndim - node.inputs[0].type.ndim :]
    if None in lengths:
        return None
    return pt.constant(np.array(lengths if isinstance(node.op, Shape) else lengths[node.op.i]))


def _filled(node: Apply, value: Variable, shape: Sequence[Variable], front: int) -> Variable | None:
    missing = node.outputs[0].type.ndim - node.inputs[0].type.ndim
    if value.type.ndim == node.inputs[0].type.ndim or None in value.type.shape[:front]:
        return None
    order = [*range(front), *["x"] * missing, *range(front, value.type.ndim)]
    return pt.alloc(value.dimshuffle(order), *value.type.shape[:front], *shape)


def _joined(node: Apply, parts: list[Variable], front: int) -> Variable | None:
    ndim = node.outputs[0].type.ndim
    fronts = [v.type.shape[:front] for v in parts if v.type.ndim > ndim]
    if not fronts or any(None in shape for shape in fronts):
        return None
    shape = np.broadcast_shapes(*fronts)
    alike = [
        v if v.type.ndim > ndim and v.type.shape[:front] == shape
        else v + pt.zeros((*shape, *[1] * ndim), dtype=v.type.dtype)
        for v in parts
    ]  # fmt: skip
    return pt.join(node.op.axis % ndim + front, *alike)


def _indexed(node: Apply, table: Variable, index: list[Variable], front: int) -> Variable | None:
    if all(new.type.ndim == old.type.ndim for new, old in zip(index, node.inputs[1:], strict=True)):
        return None
    entries = index_entries(node)
    arrays = [i for i, e in enumerate(entries) if isinstance(e, Variable)]
    first, last = arrays[0], arrays[-1]
    whole = all(e == slice(None) for i, e in enumerate(entries) if i not in arrays)
    if not whole or arrays != list(range(first, last + 1)):
        return None
    # What is in front stays in front of as many axes as the largest index has.
    core = max(e.type.ndim for e in node.inputs[1:])
    index = [
        new if new.type.ndim == old.type.ndim
        else new.dimshuffle(
            *range(front), *["x"] * (core - old.type.ndim), *range(front, new.type.ndim)
        )
        for new, old in zip(index, node.inputs[1:], strict=True)
    ]  # fmt: skip
    if table.type.ndim == node.inputs[0].type.ndim:
        new = AdvancedSubtensor(node.op.idx_list)(table, *index)
        return pt.moveaxis(new, range(first, first + front), range(front))
    if first:
        return None
    own = [
        pt.arange(table.type.shape[i]).dimshuffle(
            [0 if i == j else "x" for j in range(front + core)]
        )
        for i in range(front)
    ]
    return table[(*own, *index)]
