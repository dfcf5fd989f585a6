"""Which rows touch which elements of theta, read off the graph of the log-likelihood.

For every variable of the graph, and every element of it, the elements of theta it can depend on
are its *sources*. Gathers by data columns (``x[index]``), elementwise Ops, sums and products with
data pass sources on exactly; at any other Op everything may depend on everything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor.basic import Alloc, Join, MakeVector
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.special import (
    LogAddExp,
    LogSoftmax,
    LogSumExp,
    Softmax,
    XLog1PY,
    XLogY,
)
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor, unflatten_index_variables

from pymc_subsample.likelihood.errors import op_name
from pymc_subsample.likelihood.tall_model import TallModel
from pymc_subsample.symbolic.graph import depends_on, elemwise_name, numpy_function

# Numbers held at a time, and sources per element beyond which duplicates are looked for.
_NUMBERS = 2**22
_MANY = 32
# Rows and flips of the numerical check.
_CHECKED, _FLIPS = 500, 8

# Finite for finite inputs, overflow apart: zero times any of these is zero.
_FINITE = {
    "Abs", "Add", "And", "Cast", "Clip", "Cos", "EQ", "Exp", "GE", "GT", "Identity", "Invert",
    "LE", "LT", "Maximum", "Minimum", "Mul", "NEQ", "Neg", "OR", "Second", "Sigmoid", "Sign",
    "Sin", "Softplus", "Sqr", "Sub", "Switch", "Tanh", "XOR",
}  # fmt: skip
_ELEMENTWISE = (Elemwise, LogAddExp, XLogY, XLog1PY)
_REDUCTIONS = (CAReduce, LogSumExp)
_ALONG = (Softmax, LogSoftmax)
_REARRANGED = (Alloc, DimShuffle, JoinDims, Reshape, SplitDims, Subtensor)


@dataclass(frozen=True)
class Touching:
    """Rows that touch each of some elements of theta, in compressed form.

    Attributes
    ----------
    start : ndarray of int64, shape (a + 1,)
        Rows of element i are ``rows[start[i]:start[i + 1]]``, sorted.
    rows : ndarray of int32
        The rows; empty if `unknown`.
    unknown : str or None
        Name of the Op through which rows cannot be told apart: all rows may touch all elements.
    """

    start: np.ndarray
    rows: np.ndarray
    unknown: str | None = None


class _Unknown(Exception):
    """Sources are lost at an Op."""


def touching_rows(model: TallModel, elements: np.ndarray) -> Touching:
    """Find the rows whose log-likelihood can depend on each of `elements`, shape (a,).

    A row with a zero coefficient for an element does not touch it; apart from that only the
    graph counts, not its values.
    """
    sources = _Sources(model, elements)
    size = len(elements)
    step = max(256, _NUMBERS // max(sources.per_row, 1))
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    if model.n_rows > np.iinfo(np.int32).max:
        return Touching(np.zeros(size + 1, dtype=np.int64), np.zeros(0, np.int32), "too many rows")
    for first in range(0, model.n_rows, step):
        rows = slice(first, min(first + step, model.n_rows))
        try:
            found = sources.of(rows)
        except _Unknown as error:
            start = np.zeros(size + 1, dtype=np.int64)
            return Touching(start, np.zeros(0, dtype=np.int32), str(error))
        places = np.arange(rows.start, rows.stop)
        keys = [s[s >= 0].astype(np.int64) + size * places[s >= 0] for s in found]
        unique = np.unique(np.concatenate([*keys, np.zeros(0, dtype=np.int64)]))
        pairs.append(((unique % size).astype(np.int32), (unique // size).astype(np.int32)))
    element = np.concatenate([e for e, _ in pairs])
    row = np.concatenate([r for _, r in pairs])
    start = np.concatenate([[0], np.cumsum(np.bincount(element, minlength=size))])
    return Touching(start.astype(np.int64), row[np.argsort(element, kind="stable")])


@dataclass(frozen=True)
class _Value:
    """What is known of a variable: its value if data alone make it, and its sources.

    Every array of `sources` has the variable's shape and holds positions in `elements`, or -1.
    """

    shape: tuple[int, ...]
    data: np.ndarray | None = None
    sources: tuple[np.ndarray, ...] = ()
    finite: bool = False

    def mapped(self, function: Callable[[np.ndarray], np.ndarray]) -> "_Value":
        """Apply a function that moves elements about."""
        shape = function(np.broadcast_to(np.int8(0), self.shape)).shape
        data = None if self.data is None else function(self.data)
        return replace(self, shape=shape, data=data, sources=tuple(map(function, self.sources)))


# What is no array: a missing index, say.
_NOTHING = _Value(())


class _Sources:
    """Evaluates the sources of the rows, batch by batch."""

    def __init__(self, model: TallModel, elements: np.ndarray):
        self._model = model
        self._graph = model.row_graph()
        dependent = depends_on([self._graph], [model.theta])
        self._nodes: list[Apply] = [n for n in toposort([self._graph]) if n.outputs[0] in dependent]
        given = dict.fromkeys(i for n in self._nodes for i in n.inputs if i not in dependent)
        self._constants = {
            v: _data(v.data) for v in given if isinstance(v, Constant) and hasattr(v.type, "dtype")
        }
        self._given = [v for v in given if not isinstance(v, Constant)]
        self._read = numpy_function(model.raw, self._given)
        positions = np.full(model.size, -1, dtype=np.int32)
        positions[elements] = np.arange(len(elements))
        self._theta = _Value(positions.shape, sources=(positions,), finite=True)
        lengths = [int(np.prod([s or 1 for s in v.type.shape])) for v in self._given]
        self.per_row = sum(lengths) + max(
            int(np.prod([s or 1 for s in n.inputs[0].type.shape])) for n in self._nodes
        )

    def of(self, rows: slice) -> tuple[np.ndarray, ...]:
        """Return the sources of some rows, each of shape (m,)."""
        self._m = rows.stop - rows.start
        known: dict[Variable, _Value] = {self._model.theta: self._theta, **self._constants}
        values = self._read(*self._model._raw_batch(rows))
        known |= {v: _data(x) for v, x in zip(self._given, values, strict=True)}
        for node in self._nodes:
            inputs = [known.get(i, _NOTHING) for i in node.inputs]
            if not any(i.sources for i in inputs):
                known |= {out: self._opaque(node, inputs, out) for out in node.outputs}
            elif len(node.outputs) > 1:
                raise _Unknown(op_name(node.op))
            else:
                known[node.outputs[0]] = self._apply(node, inputs)
        return known[self._graph].sources

    def _apply(self, node: Apply, inputs: list[_Value]) -> _Value:
        op = node.op
        if isinstance(op, _ELEMENTWISE):
            value = _elementwise(elemwise_name(node) or "", inputs)
        elif isinstance(op, SpecifyShape):
            value = inputs[0]
        elif isinstance(op, _REARRANGED):
            value = self._rearranged(node, inputs)
        elif isinstance(op, AdvancedSubtensor):
            value = self._gathered(node, inputs)
        elif isinstance(op, Dot) or (isinstance(op, Blockwise) and isinstance(op.core_op, Dot)):
            value = _product(*inputs)
        elif isinstance(op, Join):
            value = _stacked(inputs, lambda parts: np.concatenate(parts, axis=op.axis))
        elif isinstance(op, MakeVector):
            value = _stacked(inputs, np.stack)
        elif isinstance(op, _REDUCTIONS):
            value = _reduced(inputs[0], op.axis)
            value = replace(value, finite=value.finite and type(op).__name__ in ("Sum", "Prod"))
        elif isinstance(op, _ALONG):
            axes = _axes(op.axis, len(inputs[0].shape))
            kept = _reduced(inputs[0], op.axis).mapped(lambda x: np.expand_dims(x, axes))
            value = replace(_broadcast(kept, inputs[0].shape), finite=False)
        else:
            raise _Unknown(op_name(op))
        return _fewer(value) if len(value.sources) > _MANY else value

    def _opaque(self, node: Apply, inputs: list[_Value], output: Variable) -> _Value:
        """Describe a variable that has no sources: only its shape matters."""
        shape = tuple(self._m if s is None else s for s in output.type.shape)
        return _Value(shape, finite=_finite(elemwise_name(node) or "", inputs))

    def _rearranged(self, node: Apply, inputs: Sequence[_Value]) -> _Value:
        first, *rest = inputs
        data = [i.data for i in rest if i.data is not None]
        if len(data) < len(rest):
            raise _Unknown(op_name(node.op))
        return first.mapped(lambda x: _perform(node, x, data))

    def _gathered(self, node: Apply, inputs: Sequence[_Value]) -> _Value:
        """Elements of an array: of theta's by data, or of data by theta's."""
        table, *index = inputs
        if all(i.data is not None for i in index):
            return replace(self._rearranged(node, inputs), finite=table.finite)
        entries = unflatten_index_variables(index, node.op.idx_list)
        arrays = [k for k, e in enumerate(entries) if not isinstance(e, slice)]
        if table.sources or any(i is _NOTHING for i in index):
            raise _Unknown(op_name(node.op))
        adjacent = arrays == list(range(arrays[0], arrays[-1] + 1))
        before = arrays[0] if adjacent else 0
        picked = _elementwise("", [entries[k] for k in arrays])
        after = len(table.shape) - len(arrays) - before
        shape = tuple(self._m if s is None else s for s in node.outputs[0].type.shape)
        value = picked.mapped(lambda x: x.reshape((1,) * before + x.shape + (1,) * after))
        return replace(_broadcast(value, shape), finite=_is_finite(table))


def _data(array: ArrayLike) -> _Value:
    array = np.asarray(array)
    return _Value(array.shape, data=array)


def _is_finite(value: _Value) -> bool:
    if value.data is None:
        return value.finite
    return value.data.dtype.kind in "biu" or bool(np.isfinite(value.data).all())


def _finite(name: str, inputs: Sequence[_Value]) -> bool:
    return name in _FINITE and all(map(_is_finite, inputs))


def _perform(node: Apply, x: np.ndarray, rest: list[np.ndarray]) -> np.ndarray:
    storage: list[list] = [[None]]
    node.op.perform(node, [x, *rest], storage)
    return storage[0][0]


def _broadcast(value: _Value, shape: tuple[int, ...]) -> _Value:
    if value.shape == shape:
        return value
    return value.mapped(lambda x: np.broadcast_to(x, shape))


def _union(sources: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    return tuple({id(s): s for s in sources}.values())


def _elementwise(name: str, inputs: Sequence[_Value]) -> _Value:
    shape = np.broadcast_shapes(*(i.shape for i in inputs))
    finite = _finite(name, inputs)
    values = [_broadcast(i, shape) for i in inputs]
    condition = values[0].data
    if name == "Switch" and condition is not None:
        chosen = [
            _where(condition != 0, values[1].sources),
            _where(condition == 0, values[2].sources),
        ]
        return _Value(shape, sources=_union(sum(chosen, ())), finite=finite)
    if name == "Second":
        values = values[1:]
    sources = _union([s for v in values for s in v.sources])
    if name == "Mul" and finite:
        factors = [v.data for v in values if v.data is not None]
        nonzero = [f != 0 for f in factors]
        if nonzero and not all(f.all() for f in nonzero):
            sources = _where(reduce(np.logical_and, nonzero), sources)
    return _Value(shape, sources=sources, finite=finite)


def _where(condition: np.ndarray, sources: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    return tuple(np.where(condition, s, np.int32(-1)) for s in sources)


def _axes(axis: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    return tuple(range(ndim)) if axis is None else tuple(np.atleast_1d(axis) % ndim)


def _reduced(value: _Value, axis: int | tuple[int, ...] | None) -> _Value:
    """Every element depends on all that it was made of."""
    axes = _axes(axis, len(value.shape))
    kept = [i for i in range(len(value.shape)) if i not in axes]
    shape = tuple(value.shape[i] for i in kept)
    parts = [s.transpose([*axes, *kept]).reshape(-1, *shape) for s in value.sources]
    sources = [part for s in parts for part in s if (part >= 0).any()]
    return _Value(shape, sources=tuple(sources), finite=value.finite)


def _product(a: _Value, b: _Value) -> _Value:
    """Multiply vectors, matrices or stacks of them."""
    left = a if len(a.shape) > 1 else a.mapped(lambda x: x[None, :])
    right = b if len(b.shape) > 1 else b.mapped(lambda x: x[:, None])
    left = left.mapped(lambda x: x[..., :, None, :])
    right = right.mapped(lambda x: np.swapaxes(x, -1, -2)[..., None, :, :])
    value = _reduced(_elementwise("Mul", [left, right]), -1)
    if len(a.shape) == 1:
        value = value.mapped(lambda x: x[..., 0, :])
    return value.mapped(lambda x: x[..., 0]) if len(b.shape) == 1 else value


def _stacked(inputs: Sequence[_Value], join: Callable) -> _Value:
    shape = join([np.broadcast_to(np.int8(0), i.shape) for i in inputs]).shape
    width = max(len(i.sources) for i in inputs)
    none = [np.full(i.shape, -1, dtype=np.int32) for i in inputs]
    sources = tuple(
        join([i.sources[k] if k < len(i.sources) else n for i, n in zip(inputs, none, strict=True)])
        for k in range(width)
    )
    return _Value(shape, sources=sources, finite=all(map(_is_finite, inputs)))


def _fewer(value: _Value) -> _Value:
    """Name every source of an element once."""
    stacked = np.sort(np.stack(value.sources), axis=0)
    stacked[1:][stacked[1:] == stacked[:-1]] = -1
    stacked = np.sort(stacked, axis=0)
    return replace(value, sources=tuple(s for s in stacked if (s >= 0).any()))


def check_touching(model: TallModel, elements: np.ndarray, touching: Touching) -> int | None:
    """Flip elements at random states; return one that changes a row it should not, or None."""
    if touching.unknown is not None or not len(elements):
        return None
    rng = np.random.default_rng(0)
    index = rng.integers(0, model.n_rows, _CHECKED)
    for i in rng.integers(0, len(elements), _FLIPS):
        theta = model.ravel(model.initial_point)
        theta[elements] = rng.random(len(elements)) < 0.5
        before = model.row_loglik(theta, index)
        theta[elements[i]] = 1 - theta[elements[i]]
        after = model.row_loglik(theta, index)
        apart = ~np.isin(index, touching.rows[touching.start[i] : touching.start[i + 1]])
        same = (before == after) | (np.isnan(before) & np.isnan(after))
        if np.any(apart & ~same):
            return int(elements[i])
    return None
