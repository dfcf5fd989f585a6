"""What Ops do to the elements of arrays, whatever these stand for.

An `Interpreter` goes through a graph with values of a domain: affine forms, scalar code, intervals,
places in memory, dependence. Where Ops take their elements from, how these are paired off, and what
a product of matrices is made of is the same in all of them; that is written here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import (
    Alloc,
    ARange,
    ExtractDiag,
    Join,
    MakeVector,
    ScalarFromTensor,
    Split,
    TensorFromScalar,
)
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    unflatten_index_variables,
)

from pymc_subsample.graph.nodes import is_product

# Elements that stay where they are, and such that are put in other places.
TRANSPARENT = (ScalarFromTensor, TensorFromScalar, CheckAndRaise, SpecifyShape)
REARRANGING = (
    Alloc, AdvancedSubtensor, DimShuffle, ExtractDiag, JoinDims, Reshape, Split, SplitDims,
    Subtensor,
)  # fmt: skip

type Move = Callable[[np.ndarray], np.ndarray]
type Merge = Callable[[Sequence[np.ndarray]], np.ndarray]


class NoForm(Exception):
    """A graph has no form in a domain."""


class Interpreter[Value]:
    """Values of the variables of a graph, from those of its inputs.

    A domain says what `_moved`, `_merged`, `_elementwise` and `_reduced` do to its values, what the
    value of numbers (`_data`) and the shape of a value are, and what an input is that must be a
    number (`_literal`). `NoForm` is raised where an Op, or such a number, is not known.
    """

    def __init__(self, known: Mapping[Variable, Value]):
        self.known = dict(known)

    def _data(self, array: np.ndarray) -> Value:
        """Return the value of an array of numbers."""
        raise NoForm

    def _shape(self, value: Value) -> tuple[int, ...]:
        """Return the shape of a value."""
        raise NoForm

    def _literal(self, var: Variable) -> Any:
        """Return the numbers that an input is."""
        raise NoForm

    def _moved(self, value: Value, function: Move) -> Value:
        """Take elements from where `function` takes those of any array."""
        return self._merged([value], lambda arrays: function(arrays[0]))

    def _merged(self, values: Sequence[Value], function: Merge) -> Value:
        """Put elements of several values where `function` puts those of any arrays."""
        raise NoForm

    def _elementwise(self, op: Op, values: Sequence[Value]) -> list[Value]:
        """Apply a scalar Op, with broadcasting."""
        raise NoForm

    def _reduced(self, op: Op, value: Value, axes: Sequence[int]) -> Value:
        """Join the elements along axes by a scalar Op of two of them."""
        raise NoForm

    def _picked(self, node: Apply) -> Value:
        """Take elements by indices that are no numbers."""
        raise NoForm

    def _leaves(self, outputs: Sequence[Variable]) -> Iterable[Variable]:
        """Variables of which `value` knows more than what they are made of."""
        return ()

    def value(self, var: Variable) -> Value:
        """Return the value of a variable whose inputs have been gone through."""
        if var not in self.known:
            if not isinstance(var, Constant):
                raise NoForm
            self.known[var] = self._data(np.asarray(var.data))
        return self.known[var]

    def evaluate(self, outputs: Sequence[Variable]) -> list[Value]:
        """Return the values of `outputs`."""
        for node in toposort(outputs, blockers=[*self.known, *self._leaves(outputs)]):
            if node.outputs[0] not in self.known:
                self.known.update(zip(node.outputs, self._results(node), strict=True))
        return [self.value(v) for v in outputs]

    def _results(self, node: Apply) -> list[Value]:
        """Return the values of a node's outputs."""
        op, inputs = node.op, node.inputs
        match op:
            case Elemwise():
                return self._elementwise(op.scalar_op, [self.value(i) for i in inputs])
            case CAReduce():
                x, dtype = self.value(inputs[0]), node.outputs[0].type.dtype
                if inputs[0].type.dtype != dtype:  # truths are counted, small integers overflow
                    [x] = self._elementwise(ps.Cast(ps.get_scalar_type(dtype)), [x])
                return [self._reduced(op.scalar_op, x, axes_of(op.axis, inputs[0].type.ndim))]
            case Join():
                parts = [self.value(i) for i in inputs]
                return [self._merged(parts, lambda arrays: np.concatenate(arrays, axis=op.axis))]
            case MakeVector():
                return [self._merged([self.value(i) for i in inputs], np.stack)]
            case IncSubtensor() | AdvancedIncSubtensor():
                return [self._increased(node)]
            case Shape():
                return [self._data(np.array(self._shape(self.value(inputs[0]))))]
            case Shape_i():
                return [self._data(np.array(self._shape(self.value(inputs[0]))[op.i]))]
            case ARange():
                return [self._data(np.arange(*map(self._literal, inputs)))]
        if isinstance(op, TRANSPARENT):
            return [self.value(inputs[0])]
        if is_product(node):
            return [self._product(*map(self.value, inputs))]
        if isinstance(op, REARRANGING):
            try:
                rest = [self._literal(i) for i in inputs[1:]]
            except NoForm:
                if not isinstance(op, AdvancedSubtensor):
                    raise
                return [self._picked(node)]

            def take(array: np.ndarray, k: int):
                return performed(node, array, *rest)[k]

            x = self.value(inputs[0])
            return [self._moved(x, partial(take, k=k)) for k in range(len(node.outputs))]
        raise NoForm

    def _product(self, a: Value, b: Value) -> Value:
        """Multiply vectors, matrices or stacks of them."""
        lengths, widths = self._shape(a), self._shape(b)
        left = self._moved(a, lambda x: x[None, None] if x.ndim == 1 else x[..., :, None, :])
        right = self._moved(
            b, lambda x: x[None, None] if x.ndim == 1 else np.swapaxes(x, -1, -2)[..., None, :, :]
        )
        [pairs] = self._elementwise(ps.mul, [left, right])
        result = self._reduced(ps.add, pairs, [len(self._shape(pairs)) - 1])
        dropped = tuple(0 if len(s) == 1 else slice(None) for s in (lengths, widths))
        return self._moved(result, lambda x: x[..., *dropped])

    def _increased(self, node: Apply) -> Value:
        """Put elements in places that are known, or add to what is there."""
        x, y = map(self.value, node.inputs[:2])
        index = [self._literal(i) for i in node.inputs[2:]]
        entries = tuple(unflatten_index_variables(index, node.op.idx_list))
        places = np.arange(np.prod(self._shape(x), dtype=int)).reshape(self._shape(x))[entries]
        if not node.op.set_instead_of_inc:
            if np.unique(places).size < places.size:
                raise NoForm
            [y] = self._elementwise(ps.add, [self._moved(x, lambda array: array[entries]), y])

        def put(arrays: Sequence[np.ndarray]):
            result = arrays[0].copy()
            result[entries] = arrays[1]
            return result

        return self._merged([x, y], put)


def performed(node: Apply, *inputs: Any) -> list[np.ndarray]:
    """Let an Op that rearranges elements do so with other ones."""
    results: list[list] = [[None] for _ in node.outputs]
    node.op.perform(node, list(inputs), results)
    return [np.asarray(r) for [r] in results]


def axes_of(axis: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Return axes as positions from the first."""
    return tuple(range(ndim)) if axis is None else tuple(np.atleast_1d(axis) % ndim)


def indexed_axes(entries: Sequence) -> list[int]:
    """Axes that arrays index; they must be side by side and the others whole."""
    where = [a for a, e in enumerate(entries) if not isinstance(e, slice)]
    whole = all(e == slice(None) for e in entries if isinstance(e, slice))
    if not whole or where != list(range(where[0], where[-1] + 1)):
        raise NoForm
    return where


class Elements(Interpreter[np.ndarray]):
    """Arrays of objects, of which a domain says what a number and what a scalar Op are.

    The row axis has length one: an array stands for one row, or for all of them alike.
    """

    def _number(self, x: Any) -> Any:
        """Return a number as an element."""
        raise NoForm

    def _apply(self, op: Op, elements: list) -> list:
        """Return the outputs of a scalar Op."""
        raise NoForm

    def _integer(self, element: Any) -> int:
        """Return the whole number that an element is."""
        raise NoForm

    def _literal(self, var: Variable) -> Any:
        array = self.value(var)
        numbers = np.array([self._integer(x) for x in array.flat], dtype=var.type.dtype)
        return numbers.reshape(array.shape) if array.ndim else numbers.item()

    def _index(self, element: Any) -> Any:
        """Return an element as an index."""
        return element

    def _pick(self, table: np.ndarray, index: Sequence) -> Any:
        """Take an element by an index per axis."""
        raise NoForm

    def _fold(self, op: Op, elements: Sequence) -> Any:
        """Join elements by a scalar Op; none of them are its identity."""
        if not elements:
            if op.identity is None:
                raise NoForm
            return self._number(np.float64(op.identity))
        first, *others = elements
        for other in others:
            [first] = self._apply(op, [first, other])
        return first

    def _data(self, array: np.ndarray) -> np.ndarray:
        if array.dtype.kind not in "biuf":
            raise NoForm
        return array_of(map(self._number, array.flat), array.shape)

    def _shape(self, value: np.ndarray) -> tuple[int, ...]:
        return value.shape

    def _merged(self, values: Sequence[np.ndarray], function: Merge) -> np.ndarray:
        every = np.concatenate([v.ravel() for v in values])
        starts = np.cumsum([0, *(v.size for v in values)])
        places = function(
            [np.arange(v.size).reshape(v.shape) + s for v, s in zip(values, starts, strict=False)]
        )
        return every[places.ravel()].reshape(places.shape)

    def _elementwise(self, op: Op, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        broadcast = np.broadcast_arrays(*values)
        elements = zip(*(v.flat for v in broadcast), strict=True)
        results = [self._apply(op, list(x)) for x in elements]
        return [array_of((r[k] for r in results), broadcast[0].shape) for k in range(op.nout)]

    def _reduced(self, op: Op, value: np.ndarray, axes: Sequence[int]) -> np.ndarray:
        return self._joined_along(value, axes, lambda x: self._fold(op, list(x)))

    def _joined_along(
        self, value: np.ndarray, axes: Sequence[int], function: Callable[[np.ndarray], Any]
    ) -> np.ndarray:
        others = [a for a in range(value.ndim) if a not in axes]
        shape = [value.shape[a] for a in others]
        flat = value.transpose([*others, *axes]).reshape(int(np.prod(shape, dtype=int)), -1)
        return array_of(map(function, flat), shape)

    def _picked(self, node: Apply) -> np.ndarray:
        x, *index = node.inputs
        entries = unflatten_index_variables(index, node.op.idx_list)
        where = indexed_axes(entries)
        table = np.moveaxis(self.value(x), where, range(len(where)))
        index = np.broadcast_arrays(*(self.value(entries[a]) for a in where))
        ndim, rest = index[0].ndim, table.shape[len(where) :]
        result = np.empty(index[0].shape + rest, dtype=object)
        for place in np.ndindex(index[0].shape):
            at = [self._index(i[place]) for i in index]
            for other in np.ndindex(rest):
                result[place + other] = self._pick(table[(..., *other)], at)
        return np.moveaxis(result, range(ndim), range(where[0], where[0] + ndim))


def array_of(elements: Iterable, shape: Sequence[int]) -> np.ndarray:
    """Return an object array of a given shape."""
    flat = list(elements)
    array = np.empty(len(flat), dtype=object)
    array[:] = flat
    return array.reshape(tuple(shape))
