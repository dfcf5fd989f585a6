"""From a free variable to the effect through which it meets the data: ``u = offset + factor * x``.

The graph is followed upwards as long as every Op is affine in the variable, one element or one
vector of a few components at a time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import mul

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable, equal_computations
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor

from pymc_subsample.graph.interpreter import performed
from pymc_subsample.graph.nodes import elemwise_name, is_product

# Beyond this many components, what is written out for each group takes too long to compile. A
# choice: six are an intercept and five slopes.
MAX_COMPONENTS = 6

_SAME = {"Identity", "Cast"}

# A component of a matrix that is zero for all parameters is None.
type Entry = Variable | None


def total(terms: Iterable[Entry]) -> Entry:
    """Add entries up."""
    found = [t for t in terms if t is not None]
    return None if not found else sum(found[1:], found[0])


def product(*factors: Entry) -> Entry:
    """Multiply entries."""
    return None if any(f is None for f in factors) else reduce(mul, factors)


def diagonal(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Return a diagonal matrix."""
    return [[x if a == b else None for b in range(len(entries))] for a, x in enumerate(entries)]


@dataclass
class Effect:
    """An affine function of a variable: of each element, or of units of k elements by a matrix."""

    # Integers, shape (J, k): which element of the variable, flat, is each component of each unit.
    order: np.ndarray
    factor: list[list[Entry]]  # What multiplies a unit; vectors over units, or scalars.
    offset: list[Variable]  # What is added.
    graph: Variable | None = None  # Where rows meet it, if all elements are there once, and
    # shape (size,), which element of that, flat, is each of the variable's.
    at: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))


def follow(x: Variable, graphs: Sequence[Variable], free: set[Variable]) -> Effect:
    """Follow variable `x`, of static shape, towards `graphs`, where parameters meet the data.

    `free` are all variables, `x` among them; see `across` for matrices.
    """
    clients: dict[Variable, list[Apply]] = {}
    for node in toposort(graphs):
        for i in dict.fromkeys(node.inputs):
            clients.setdefault(i, []).append(node)
    order = np.arange(int(np.prod(x.type.shape, dtype=int))).reshape(x.type.shape)
    current, factor, offset = x, pt.ones((1,) * x.type.ndim), pt.zeros((1,) * x.type.ndim)
    untouched, gathered, shape = True, False, x.type.shape
    while current not in graphs:  # where rows meet it as it is, whatever else is made of it
        node = _only(clients.get(current, ()))
        if node is None:
            break
        others = [i for i in node.inputs if i is not current]
        if any(x in ancestors([i]) for i in others) or node.inputs.count(current) != 1:
            break
        matrix = _matrix(node, current, order, free) if untouched else None
        if matrix is not None:
            return matrix
        if gathered:  # what all groups have in common is that of each
            if not all(all(i.type.broadcastable) for i in others):
                break
            others = [i.dimshuffle([]) for i in others]
        moved = _elementwise(node, current, others, factor, offset)
        if moved is not None and node.outputs[0].type.shape == current.type.shape:
            factor, offset = moved
            untouched &= elemwise_name(node) in _SAME
        elif isinstance(node.op, DimShuffle | Reshape | SpecifyShape | JoinDims | SplitDims):
            new = node.outputs[0].type.shape
            if gathered or None in new or np.prod(new) != order.size:
                break
            shape = new
            if isinstance(node.op, DimShuffle):
                [order] = performed(node, order)
                factor, offset = node.op(factor), node.op(offset)
            else:
                factor, offset = (
                    pt.broadcast_to(v, current.type.shape).reshape(shape) for v in (factor, offset)
                )
                order = order.reshape(shape)
        elif isinstance(node.op, AdvancedSubtensor) and node.inputs[0] is current:
            if any(free & set(ancestors([i])) for i in others):
                break
            gathered, untouched = True, False
        else:
            break
        current = node.outputs[0]
    graph, at = (current if current in graphs and not gathered else None), np.argsort(order.ravel())
    axis, start = across(x.type.shape), np.arange(order.size).reshape(x.type.shape)
    if axis is not None and (np.array_equal(order, start) or np.array_equal(order, start.T)):
        if order.shape != start.shape:
            factor, offset = factor.T, offset.T
        each = range(start.shape[axis])
        factors, offsets = ([line(v, axis, a) for a in each] for v in (factor, offset))
        return Effect(units_of(start.shape), diagonal(factors), offsets, graph, at)
    flat = order.ravel()
    factor, offset = (flattened(v, shape) for v in (factor, offset))
    if not np.array_equal(flat, np.arange(flat.size)):
        back = np.argsort(flat)
        factor, offset = (v[back] if v.type.ndim else v for v in (factor, offset))
    return Effect(np.arange(flat.size)[:, None], [[factor]], [offset], graph, at)


def across(shape: Sequence[int]) -> int | None:
    """Return the axis of a matrix along which the components of a unit lie, if it has units."""
    if len(shape) != 2 or shape[0] == shape[1] or not 1 < min(shape) <= MAX_COMPONENTS:
        return None
    return int(shape[1] > shape[0]) ^ 1


def units_of(shape: Sequence[int]) -> np.ndarray:
    """Return which element of an array, flat, is each component of each unit."""
    axis, order = across(shape), np.arange(int(np.prod(shape, dtype=int))).reshape(shape)
    return order.reshape(-1, 1) if axis is None else order if axis == 1 else order.T


def line(var: Variable, axis: int, a: int) -> Variable:
    """Return component `a` of each unit of what broadcasts to a matrix, or that of all."""
    var = pt.shape_padleft(var, 2 - var.type.ndim)
    at = 0 if var.type.shape[axis] == 1 else a
    found = var[:, at] if axis == 1 else var[at]
    return found[0] if found.type.shape == (1,) else found


def _only(nodes: Sequence[Apply]) -> Apply | None:
    """Return the one node that uses a variable; nodes that compute the same count once."""
    if not nodes:
        return None
    first, *others = nodes
    same = all(equal_computations(n.outputs[:1], first.outputs[:1]) for n in others)
    return first if same else None


def flattened(var: Variable, shape: Sequence[int]) -> Variable:
    """Return a variable that broadcasts to `shape` as a vector, or as a scalar if it is one."""
    if all(var.type.broadcastable):
        return var.dimshuffle([])
    if var.type.shape != tuple(shape):
        var = pt.broadcast_to(var, tuple(shape))
    return var if var.type.ndim == 1 else var.ravel()


def _elementwise(
    node: Apply, current: Variable, others: Sequence[Variable], factor: Variable, offset: Variable
) -> tuple[Variable, Variable] | None:
    """Apply one affine elementwise Op to factor and offset."""
    name = elemwise_name(node)
    first = node.inputs[0] is current
    if name in _SAME:
        return factor, offset
    if name == "Neg":
        return -factor, -offset
    if name == "Add":
        return factor, sum(others, offset)
    if name == "Sub":
        [other] = others
        return (factor, offset - other) if first else (-factor, other - offset)
    if name == "Mul":
        for other in others:
            factor, offset = factor * other, offset * other
        return factor, offset
    if name == "TrueDiv" and first:
        [other] = others
        return factor / other, offset / other
    return None


def _matrix(
    node: Apply, current: Variable, order: np.ndarray, free: set[Variable]
) -> Effect | None:
    """Return the effect of a product with a small matrix of parameters."""
    if not is_product(node) or current.type.ndim != 2 or order.ndim != 2:
        return None
    left, right = node.inputs
    matrix = left if right is current else right
    by_unit = order.T if right is current else order
    k = by_unit.shape[1]
    if matrix.type.shape != (k, k) or k > MAX_COMPONENTS:
        return None
    if not free & set(ancestors([matrix])):
        return None
    matrix = matrix if right is current else matrix.T
    entries = [[matrix[a, b] for b in range(k)] for a in range(k)]
    return Effect(by_unit, entries, [pt.zeros(()) for _ in range(k)])
