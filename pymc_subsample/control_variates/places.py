"""What is known of a graph before it runs: lengths, and where Ops put the elements of an array."""

from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Shape

from pymc_subsample.control_variates.scalars import NotScalar

TRANSPARENT = (ScalarFromTensor, TensorFromScalar, CheckAndRaise)


def along(var: Variable, axis: int | None) -> bool:
    """Whether an axis has all the elements of a variable."""
    return axis is None or all(n == 1 for a, n in enumerate(var.type.shape) if a != axis)


def lengths(var: Variable) -> tuple[int, ...]:
    """Return the static lengths of a variable, those of one left out."""
    if None in var.type.shape:
        raise NotScalar
    return tuple(n for n in var.type.shape if n != 1)


def n_elements(var: Variable) -> int:
    """Return how many elements a variable has."""
    return int(np.prod(lengths(var), dtype=int))


def is_elementwise(node: Apply) -> bool:
    """Whether each element of the output is made of those in the same place."""
    if isinstance(node.op, DimShuffle):
        order = [a for a in node.op.new_order if a != "x"]
        return order == sorted(order)
    return isinstance(node.op, (Elemwise, *TRANSPARENT))


def require_elementwise(node: Apply, shape: tuple[int, ...]):
    """Refuse an Op that mixes elements."""
    if not is_elementwise(node) or any(lengths(v) not in ((), shape) for v in node.outputs):
        raise NotScalar


def spread(index: np.ndarray, var: Variable, like: Variable) -> np.ndarray:
    """Repeat the places of a variable's elements as broadcasting to the shape of another does."""
    if not isinstance(like.owner.op, Elemwise):
        raise NotScalar
    return np.broadcast_to(index.reshape(var.type.shape), like.type.shape).ravel()


def performed(node: Apply, *positions: np.ndarray) -> list[np.ndarray]:
    """Let an Op that rearranges elements rearrange their places; its other inputs are known."""
    known = [static(v) for v in node.inputs[len(positions) :]]
    results: list[list] = [[None] for _ in node.outputs]
    node.op.perform(node, [*positions, *known], results)
    return [np.asarray(r) for [r] in results]


def static(var: Variable) -> np.ndarray:
    """Return the value of what depends on constants and known lengths alone."""
    if isinstance(var, Constant):
        return var.data
    if var.owner is None:
        raise NotScalar
    if isinstance(var.owner.op, Shape) and None not in var.owner.inputs[0].type.shape:
        return np.array(var.owner.inputs[0].type.shape)
    if var.type.ndim > 1 or var.type.dtype != "int64":
        raise NotScalar
    return performed(var.owner)[var.owner.outputs.index(var)]


def literal(entry: Any):
    """Return an index, or a slice, that is known."""
    if isinstance(entry, slice):
        return slice(*map(literal, (entry.start, entry.stop, entry.step)))
    if entry is None or isinstance(entry, int):
        return entry
    if not isinstance(entry, Constant):
        raise NotScalar
    return entry.data
