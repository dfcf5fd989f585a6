"""Stable, shared forms of a batch log-likelihood."""

from collections.abc import Callable
from functools import reduce
from math import prod
from operator import mul

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import ARange
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Prod

from pymc_subsample.graph.concrete import depends_on, rebuild
from pymc_subsample.graph.nodes import elemwise_name, is_constant, is_product
from pymc_subsample.graph.small_matrices import substituted
from pymc_subsample.model.batch import BatchGraph
from pymc_subsample.model.logarithms import shifted
from pymc_subsample.model.predictors import MAX_PREDICTORS
from pymc_subsample.model.trace import RowTrace

# How far a guard may keep probabilities from 0 and 1.
_GUARD = 1e-6
_BESSEL: dict[str | None, float] = {"I0e": 0.0, "I1e": 1.0}
_COMPLEMENTS: dict[str | None, Callable[..., Variable]] = {
    "GammaInc": pt.gammaincc,
    "GammaIncC": pt.gammainc,
}
_GATHERED = {"Add", "Sub", "Mul", "TrueDiv"}


def simplified(rows: Variable, graph: BatchGraph) -> Variable:
    """Rewrite a batch log-likelihood over the inputs of `graph` into its stable, shared form.

    Ours and then PyTensor's canonical and stable forms come first; then both branches of a choice
    made by data (``y ? log p : log(1 - p)``) that apply one function are merged, so that the
    function is evaluated once per row.
    """
    rows = _multiplied(rows, graph)
    [rows] = rebuild([rows], {}, _converted, remake=True)
    [rows] = rebuild([rows], {}, _unguarded)
    [rows] = rebuild([rows], {}, _softened)
    [rows] = rebuild([rows], {}, _differentiable)
    [rows] = rebuild([rows], {}, substituted)
    rows = shifted(rows, list(graph.parameters), list(graph.columns))
    rows = rewrite_graph(rows, include=("canonicalize", "stabilize"), clone=False)
    [rows] = rebuild([rows], {}, _complemented)
    return _merge_branches(rows)


def labelled(rows: Variable, graph: BatchGraph) -> BatchGraph:
    """Return the batch graph of a log-likelihood over the parameters and columns of `graph`."""
    known = set(ancestors([rows]))
    parameters = {k: v for k, v in graph.parameters.items() if k in known}
    columns = {k: v for k, v in graph.columns.items() if k in known}
    axes = row_axes(rows, graph) | {v: graph.axes[v] for v in columns}
    return BatchGraph([rows], axes, parameters, columns, graph.kind, graph.tests)


def row_axes(rows: Variable, graph: BatchGraph) -> dict[Variable, int]:
    """Return row axes of what a log-likelihood is made of, down to what is data alone."""
    dependent = depends_on([rows], list(graph.parameters))
    trace = RowTrace(lambda v: v not in dependent, _counts_rows)
    trace.follow(rows, 0)
    return trace.axes


def _multiplied(rows: Variable, graph: BatchGraph) -> Variable:
    """Write products of what a row computes and a few numbers that rows share as sums.

    Such as those of a network's hidden units and their weights: a row sees numbers, not a matrix.
    Rows that each have a matrix see that of the product as it is.
    """
    dependent = depends_on([rows], list(graph.parameters))
    axes = row_axes(rows, graph)

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if not is_product(node) or not dependent.issuperset(node.inputs):
            return None
        shared = [v for v in node.inputs if v not in axes]
        if axes.get(node.outputs[0], -1) < node.outputs[0].type.ndim - 2:
            return None
        if len(shared) != 1 or None in shared[0].type.shape:
            return None
        if prod(shared[0].type.shape) > MAX_PREDICTORS:
            return None
        a, b = inputs
        return [(a[..., :, :, None] * b[..., None, :, :]).sum(axis=-2)]

    return rebuild([rows], {}, hook)[0]


def _converted(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
    """Convert columns of narrow types where they meet numbers of wider ones.

    PyTensor's rewrites gather the factors of products and the terms of sums without regard to
    their types: ``b / x / y`` becomes ``b / (x * y)``, which overflows where x and y are uint8.
    """
    if elemwise_name(node) not in _GATHERED:
        return None
    dtype = node.outputs[0].type.dtype
    narrow = [i.type.dtype != dtype and not all(i.type.broadcastable) for i in inputs]
    if not dtype.startswith("float") or not any(narrow):
        return None
    return node.op.make_node(
        *(i.astype(dtype) if change else i for i, change in zip(inputs, narrow, strict=True))
    ).outputs


def _unguarded(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
    """Take what keeps a probability from 0 or 1 away, where it is so by rounding alone.

    As Bambi does, ``p == 1 ? 1 - eps : p``. Stable forms of ``log(1 - p)`` need no such thing.
    """
    if elemwise_name(node) != "Switch" or elemwise_name(inputs[0].owner) != "EQ":
        return None
    condition, instead, p = inputs
    left, right = condition.owner.inputs
    guarded = left is p and any(
        is_constant(right, end) and is_constant(instead, end, _GUARD) for end in (0, 1)
    )
    if guarded and elemwise_name(p.owner) == "Sigmoid" and p.type == node.outputs[0].type:
        return [p]
    return None


def _softened(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
    """Write log1p(-sigmoid(x)), as PyMC 6.3 does for Bernoulli rows, in its stable form."""
    if elemwise_name(node) != "Log1p" or elemwise_name(inputs[0].owner) != "Neg":
        return None
    [p] = inputs[0].owner.inputs
    return [-pt.softplus(*p.owner.inputs)] if elemwise_name(p.owner) == "Sigmoid" else None


def _differentiable(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
    """Write what has no second derivative in PyTensor or PyMC as what has.

    The product along an axis of known length as factors, and the Bessel functions of
    `pm.VonMises` as one of any order.
    """
    name = elemwise_name(node)
    if name in _BESSEL:
        return [pt.ive(_BESSEL[name], *inputs)]
    if not isinstance(node.op, Prod):
        return None
    [x], dtype = inputs, node.outputs[0].type.dtype
    axes = range(x.type.ndim) if node.op.axis is None else sorted(node.op.axis)
    if any(x.type.shape[axis] is None for axis in axes):
        return None
    x = x.astype(dtype)
    for axis in reversed(axes):
        factors = [x.take(k, axis=axis) for k in range(x.type.shape[axis])]
        x = reduce(mul, factors) if factors else pt.ones_like(x.sum(axis=axis))
    return [x]


def _complemented(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
    """Write log(1 - P) as log(Q) where PyTensor has Q = 1 - P, which keeps its digits near zero."""
    [x, *_] = inputs
    if elemwise_name(node) != "Log1mexp" or elemwise_name(x.owner) != "Log":
        return None
    [p] = x.owner.inputs
    complement = _COMPLEMENTS.get(elemwise_name(p.owner))
    return None if complement is None else [pt.log(complement(*p.owner.inputs))]


def _counts_rows(index: Variable, axis: int, length: int | None) -> bool:
    """Whether an index is the row number of a batch: the one `ARange` of unknown length in it."""
    while index.owner is not None and isinstance(index.owner.op, DimShuffle):
        index = index.owner.inputs[0]
    if index.owner is None or not isinstance(index.owner.op, ARange):
        return False
    start, stop, step = index.owner.inputs
    return is_constant(start, 0) and is_constant(step, 1) and not isinstance(stop, Constant)


def _merge_branches(rows: Variable) -> Variable:
    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if elemwise_name(node) != "Switch":
            return None
        condition, a, b = inputs
        functions = []
        while (
            elemwise_name(a.owner) == elemwise_name(b.owner) is not None
            and len(a.owner.inputs) == len(b.owner.inputs) == 1
        ):
            functions.append(a.owner.op)
            a, b = a.owner.inputs[0], b.owner.inputs[0]
        if not functions:
            return None
        merged = pt.switch(condition, a, b)
        for function in reversed(functions):
            merged = function(merged)
        return [merged]

    return rebuild([rows], {}, hook)[0]
