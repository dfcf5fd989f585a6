"""Which elements of an input each element of a graph depends on: its *sources*.

Gathers by data columns (``x[index]``), elementwise Ops, sums and products with data pass sources on
exactly; at any other Op everything may depend on everything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import zip_longest
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.special import LogSumExp
from pytensor.tensor.subtensor import unflatten_index_variables

from pymc_subsample.graph.concrete import ALONG_AXES, ELEMENTWISE
from pymc_subsample.graph.interpreter import Interpreter, Merge, Move, NoForm, axes_of
from pymc_subsample.graph.nodes import elemwise_name

# Sources per element beyond which duplicates are looked for.
_MANY = 32

# Finite for finite inputs, overflow apart: zero times any of these is zero.
_FINITE = {
    "Abs", "Add", "And", "Cast", "Clip", "Cos", "EQ", "Exp", "GE", "GT", "Identity", "Invert",
    "LE", "LT", "Maximum", "Minimum", "Mul", "NEQ", "Neg", "OR", "Second", "Sigmoid", "Sign",
    "Sin", "Softplus", "Sqr", "Sub", "Switch", "Tanh", "XOR",
}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """What is known of a variable: its value if data alone make it, and its sources.

    Every array of `sources` has the variable's shape and holds positions, or -1.
    """

    shape: tuple[int, ...]
    data: np.ndarray | None = None
    sources: tuple[np.ndarray, ...] = ()
    finite: bool = False

    @property
    def is_finite(self) -> bool:
        """Whether all elements are sure to be finite."""
        if self.data is None:
            return self.finite
        return self.data.dtype.kind in "biu" or bool(np.isfinite(self.data).all())

    def moved(self, function: Move) -> "Value":
        """Apply a function that moves elements about."""
        shape = np.shape(function(np.broadcast_to(np.int8(0), self.shape)))
        data = None if self.data is None else function(self.data)
        return replace(self, shape=shape, data=data, sources=tuple(map(function, self.sources)))

    def broadcast(self, shape: tuple[int, ...]) -> "Value":
        """Repeat elements up to a shape."""
        return self if self.shape == shape else self.moved(lambda x: np.broadcast_to(x, shape))

    def fewer(self) -> "Value":
        """Name every source of an element once, where there are many."""
        if len(self.sources) <= _MANY:
            return self
        stacked = np.sort(np.stack(self.sources), axis=0)
        stacked[1:][stacked[1:] == stacked[:-1]] = -1
        stacked = np.sort(stacked, axis=0)
        return replace(self, sources=tuple(s for s in stacked if (s >= 0).any()))


class Sources(Interpreter[Value]):
    """Sources of the variables of a graph; where they are lost, `NoForm` says at which Op.

    `positions` are names of the elements of the input that are told apart, or -1; `data` are values
    of what does not depend on it, `n_rows` is the length of axes that are not known otherwise.
    """

    def __init__(
        self,
        positions: Mapping[Variable, np.ndarray],
        data: Mapping[Variable, np.ndarray],
        n_rows: int,
    ):
        known = {v: Value(p.shape, sources=(p,), finite=True) for v, p in positions.items()}
        super().__init__(known | {v: self._data(np.asarray(x)) for v, x in data.items()})
        self._n_rows = n_rows

    def _results(self, node: Apply) -> list[Value]:
        op = node.op
        known = [self.known[i] for i in node.inputs if i in self.known]
        if not any(value.sources for value in known):
            return [self._opaque(node, out) for out in node.outputs]
        try:
            if isinstance(op, ELEMENTWISE):
                found = self._elementwise(op, [self.value(i) for i in node.inputs])
            elif isinstance(op, ALONG_AXES):
                x = self.value(node.inputs[0])
                axes = axes_of(op.axis, len(x.shape))
                value = self._reduced(op, x, axes)
                if not isinstance(op, LogSumExp):
                    value = value.moved(lambda s: np.expand_dims(s, axes)).broadcast(x.shape)
                found = [value]
            else:
                found = super()._results(node)
        except NoForm:
            raise NoForm(op) from None
        return [value.fewer() for value in found]

    def _opaque(self, node: Apply, output: Variable) -> Value:
        """Describe a variable that has no sources: only its shape matters."""
        shape = tuple(self._n_rows if s is None else s for s in output.type.shape)
        name = elemwise_name(node)
        return Value(
            shape, finite=name in _FINITE and all(self.value(i).is_finite for i in node.inputs)
        )

    def _data(self, array: np.ndarray) -> Value:
        return Value(array.shape, data=array)

    def _shape(self, value: Value) -> tuple[int, ...]:
        return value.shape

    def _literal(self, var: Variable) -> Any:
        data = self.value(var).data
        if data is None:
            raise NoForm
        return data

    def _moved(self, value: Value, function: Move) -> Value:
        return value.moved(function)

    def _merged(self, values: Sequence[Value], function: Merge) -> Value:
        shape = function([np.broadcast_to(np.int8(0), v.shape) for v in values]).shape
        none = [np.full(v.shape, -1, dtype=np.int32) for v in values]
        sources = tuple(
            function([n if s is None else s for s, n in zip(some, none, strict=True)])
            for some in zip_longest(*(v.sources for v in values))
        )
        return Value(shape, sources=sources, finite=all(v.is_finite for v in values))

    def _elementwise(self, op: Op, values: Sequence[Value]) -> list[Value]:
        name = type(op).__name__
        shape = np.broadcast_shapes(*(v.shape for v in values))
        finite = name in _FINITE and all(v.is_finite for v in values)
        values = [v.broadcast(shape) for v in values]
        condition = values[0].data
        from_which = values[1:] if name == "Second" else values
        sources = tuple({id(s): s for v in from_which for s in v.sources}.values())
        if name == "Switch" and condition is not None:
            sources = _where(condition != 0, values[1].sources)
            sources += _where(condition == 0, values[2].sources)
        if name == "Mul" and finite:
            nonzero = [v.data != 0 for v in values if v.data is not None]
            if nonzero and not all(f.all() for f in nonzero):
                sources = _where(reduce(np.logical_and, nonzero), sources)
        return [Value(shape, sources=sources, finite=finite)] * getattr(op, "nout", 1)

    def _reduced(self, op: Op, value: Value, axes: Sequence[int]) -> Value:
        """Every element depends on all that it was made of."""
        others = [i for i in range(len(value.shape)) if i not in axes]
        shape = tuple(value.shape[i] for i in others)
        parts = [s.transpose([*axes, *others]).reshape(-1, *shape) for s in value.sources]
        sources = tuple(part for s in parts for part in s if (part >= 0).any())
        finite = value.finite and isinstance(op, ps.Add | ps.Mul)
        return Value(shape, sources=sources, finite=finite)

    def _picked(self, node: Apply) -> Value:
        """Elements of data by indices that have sources."""
        table, *index = node.inputs
        entries = unflatten_index_variables(index, node.op.idx_list)
        arrays = [k for k, e in enumerate(entries) if not isinstance(e, slice)]
        if self.value(table).sources:
            raise NoForm
        adjacent = arrays == list(range(arrays[0], arrays[-1] + 1))
        before = arrays[0] if adjacent else 0
        [picked] = self._elementwise(node.op, [self.value(entries[k]) for k in arrays])
        after = len(self.value(table).shape) - len(arrays) - before
        shape = tuple(self._n_rows if s is None else s for s in node.outputs[0].type.shape)
        value = picked.moved(lambda x: x.reshape((1,) * before + x.shape + (1,) * after))
        return replace(value.broadcast(shape), finite=self.value(table).is_finite)


def _where(condition: np.ndarray, sources: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    return tuple(np.where(condition, s, np.int32(-1)) for s in sources)
