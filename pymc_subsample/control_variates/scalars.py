"""One row of a batch graph as a graph of scalars.

Every variable becomes an array of PyTensor scalars whose row axis has length one, and every Op is
applied with NumPy's semantics: sums become additions, a softmax over classes becomes a few
exponentials, a choice by an integer column becomes a chain of switches.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import (
    Alloc,
    ARange,
    Join,
    MakeVector,
    ScalarFromTensor,
    Split,
    TensorFromScalar,
)
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    unflatten_index_variables,
)

_TRANSPARENT = (ScalarFromTensor, TensorFromScalar, SpecifyShape)
# 750 scalars take 7 s to compile, and the time grows faster than their number.
_MOST_SCALARS = 1_500

ApplyScalarOp = Callable[[object, list[Variable]], list[Variable]]


class NotScalar(Exception):
    """Some Op of the graph has no form for one row."""


class Scalars:
    """Arrays of scalars that stand for the variables of a graph, for one row.

    Parameters
    ----------
    known : dict of Variable to ndarray of object
        Arrays of the inputs.
    apply : callable
        ``apply(scalar_op, inputs)`` returns the outputs of a scalar Op.
    """

    def __init__(self, known: dict[Variable, np.ndarray], apply: ApplyScalarOp):
        self._arrays = dict(known)
        self._apply = apply
        self._count = 0

    def evaluate(self, outputs: Sequence[Variable]) -> list[np.ndarray]:
        """Return the arrays of `outputs`."""
        for node in toposort(outputs, blockers=list(self._arrays)):
            if node.outputs[0] not in self._arrays:
                results = self._node(node)
                self._count += sum(r.size for r in results)
                if self._count > _MOST_SCALARS:
                    raise NotScalar
                self._arrays.update(zip(node.outputs, results, strict=True))
        return [self._array(v) for v in outputs]

    def _array(self, var: Variable) -> np.ndarray:
        if var not in self._arrays:
            if not isinstance(var, Constant):
                raise NotScalar
            data = np.asarray(var.data)
            if data.size > _MOST_SCALARS or data.dtype.kind not in "biuf":
                raise NotScalar
            dtype = var.type.dtype
            self._arrays[var] = _array([ps.constant(x, dtype=dtype) for x in data.flat], data.shape)
        return self._arrays[var]

    def _node(self, node: Apply) -> list[np.ndarray]:
        op = node.op
        if isinstance(op, OpFromGraph):
            return self.evaluate(inline_ofg_node(node))
        if isinstance(op, CheckAndRaise):
            return [self._array(node.inputs[0])]
        if isinstance(op, AdvancedSubtensor):
            return [self._pick(node)]
        if isinstance(op, AdvancedIncSubtensor):
            return [self._put(node)]
        if isinstance(op, IncSubtensor):
            return [self._increment(node)]
        if isinstance(op, Shape):
            shape = self._array(node.inputs[0]).shape
            return [_integers(list(shape), (len(shape),))]
        if isinstance(op, Shape_i):
            return [_integers([self._array(node.inputs[0]).shape[op.i]], ())]
        if isinstance(op, Alloc):
            lengths = [_literal(self._array(i).item()) for i in node.inputs[1:]]
            return [np.broadcast_to(self._array(node.inputs[0]), lengths)]
        if isinstance(op, Reshape):
            x, new_shape = (self._array(i) for i in node.inputs)
            return [x.reshape([_literal(s) for s in new_shape])]
        if isinstance(op, ARange):
            start, stop, step = (_literal(self._array(i).item()) for i in node.inputs)
            values = list(range(start, stop, step))
            return [_integers(values, (len(values),))]
        arrays = [self._array(i) for i in node.inputs]
        if isinstance(op, Elemwise):
            return self._elemwise(op.scalar_op, arrays, len(node.outputs))
        if isinstance(op, DimShuffle):
            return [_dimshuffle(arrays[0], op.new_order)]
        if isinstance(op, _TRANSPARENT):
            return [arrays[0]]
        if isinstance(op, Join):
            return [np.concatenate(arrays, axis=op.axis)]
        if isinstance(op, Split):
            lengths = [_literal(n) for n in arrays[1]]
            return np.split(arrays[0], np.cumsum(lengths)[:-1], axis=op.axis)
        if isinstance(op, MakeVector):
            return [_array([a.item() for a in arrays], (len(arrays),))]
        if isinstance(op, CAReduce):
            return [self._reduce(op, arrays[0])]
        if isinstance(op, Dot) or (isinstance(op, Blockwise) and isinstance(op.core_op, Dot)):
            return [self._dot(*arrays)]
        if isinstance(op, Subtensor):
            entries = unflatten_index_variables(node.inputs[1:], op.idx_list)
            return [np.asarray(arrays[0][self._basic(entries)], dtype=object)]
        raise NotScalar

    def _elemwise(self, op: Op, arrays: Sequence[np.ndarray], n_outputs: int) -> list[np.ndarray]:
        broadcast = np.broadcast_arrays(*arrays)
        results = [
            self._apply(op, list(inputs))
            for inputs in zip(*(a.flat for a in broadcast), strict=True)
        ]
        return [_array([r[k] for r in results], broadcast[0].shape) for k in range(n_outputs)]

    def _reduce(self, op: CAReduce, x: np.ndarray) -> np.ndarray:
        axes = range(x.ndim) if op.axis is None else [a % x.ndim for a in op.axis]
        kept = [a for a in range(x.ndim) if a not in axes]
        shape = [x.shape[a] for a in kept]
        flat = x.transpose([*kept, *axes]).reshape(int(np.prod(shape, dtype=int)), -1)
        return _array([self._fold(op.scalar_op, list(row)) for row in flat], shape)

    def _fold(self, op: Op, elements: list[Variable]) -> Variable:
        return reduce(lambda a, b: self._apply(op, [a, b])[0], elements)

    def _dot(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.ndim > 2 or b.ndim > 2:
            raise NotScalar
        left, right = np.atleast_2d(a), b.reshape(len(b), -1)
        elements = [
            self._fold(
                ps.add, [self._apply(ps.mul, [x, y])[0] for x, y in zip(row, column, strict=True)]
            )
            for row in left
            for column in right.T
        ]
        return _array(elements, a.shape[:-1] + b.shape[1:])

    def _basic(self, entries: Sequence) -> tuple:
        def literal(entry: Any):
            if isinstance(entry, slice):
                parts = (entry.start, entry.stop, entry.step)
                return slice(*(None if p is None else literal(p) for p in parts))
            if isinstance(entry, Constant):
                return int(entry.data)
            return _literal(self._array(entry).item())

        return tuple(literal(e) for e in entries)

    def _increment(self, node: Apply) -> np.ndarray:
        x, y = (self._array(i) for i in node.inputs[:2])
        where = self._basic(unflatten_index_variables(node.inputs[2:], node.op.idx_list))
        result = x.copy()
        if node.op.set_instead_of_inc:
            result[where] = y if y.ndim else y.item()
            return result
        selected = np.asarray(result[where], dtype=object)
        [total] = self._elemwise(ps.add, [selected, y], 1)
        result[where] = total if total.ndim else total.item()
        return result

    def _choices(self, node: Apply, first_index: int):
        """Per output position the scalar index of each indexed axis."""
        entries = unflatten_index_variables(node.inputs[first_index:], node.op.idx_list)
        indexed = [a for a, e in enumerate(entries) if not isinstance(e, slice)]
        full = all(e == slice(None) for e in entries if isinstance(e, slice))
        if not full or indexed != list(range(indexed[0], indexed[-1] + 1)):
            raise NotScalar
        return indexed, np.broadcast_arrays(*(self._array(entries[a]) for a in indexed))

    def _pick(self, node: Apply) -> np.ndarray:
        x = self._array(node.inputs[0])
        indexed, index = self._choices(node, 1)
        first, kept = indexed[0], [a for a in range(x.ndim) if a not in indexed]
        table = x.transpose([*indexed, *kept])
        rest = table.shape[len(indexed) :]
        result = np.empty(index[0].shape + rest, dtype=object)
        for position in np.ndindex(index[0].shape):
            for other in np.ndindex(rest):
                result[position + other] = self._lookup(
                    table[(..., *other)], [i[position] for i in index]
                )
        order = [*range(index[0].ndim, index[0].ndim + first), *range(index[0].ndim)]
        order += range(index[0].ndim + first, result.ndim)
        return result.transpose(order)

    def _lookup(self, table: np.ndarray, index: list[Variable]) -> Variable:
        for i in index[:-1]:
            if not isinstance(i, Constant):
                raise NotScalar
            table = table[_literal(i)]
        last = index[-1]
        if isinstance(last, Constant):
            return table[_literal(last)]
        chosen = table[-1]
        for k, value in enumerate(table[:-1]):
            chosen = ps.switch(self._is(last, k, len(table)), value, chosen)
        return chosen

    @staticmethod
    def _is(index: Variable, k: int, length: int) -> Variable:
        return ps.or_(ps.eq(index, k), ps.eq(index, k - length))

    def _put(self, node: Apply) -> np.ndarray:
        x, y = (self._array(i) for i in node.inputs[:2])
        indexed, index = self._choices(node, 2)
        if len(indexed) != x.ndim or index[0].size != 1:
            raise NotScalar
        *fixed, last = [i.item() for i in index]
        if not all(isinstance(i, Constant) for i in fixed) or y.size != 1:
            raise NotScalar
        where = tuple(_literal(i) for i in fixed)
        result, value = x.copy(), y.item()
        for k in range(x.shape[-1]):
            old = result[(*where, k)]
            new = value if node.op.set_instead_of_inc else self._apply(ps.add, [old, value])[0]
            if isinstance(last, Constant):
                new = new if _literal(last) % x.shape[-1] == k else old
            else:
                new = ps.switch(self._is(last, k, x.shape[-1]), new, old)
            result[(*where, k)] = new
        return result


def _array(elements: list, shape: Sequence[int]) -> np.ndarray:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(tuple(shape))


def _integers(values: list[int], shape: Sequence[int]) -> np.ndarray:
    return _array([ps.constant(v, dtype="int64") for v in values], shape)


def _literal(scalar: Variable) -> int:
    if not isinstance(scalar, Constant):
        raise NotScalar
    return int(scalar.data)


def _dimshuffle(x: np.ndarray, order: Sequence[int | str]) -> np.ndarray:
    kept = [i for i in order if not isinstance(i, str)]
    x = x.transpose([*kept, *(i for i in range(x.ndim) if i not in kept)])
    return x.reshape([1 if isinstance(i, str) else x.shape[kept.index(i)] for i in order])
