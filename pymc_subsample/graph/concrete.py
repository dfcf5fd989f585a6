"""From the graphs PyMC gives to graphs whose roots are placeholders of known shape.

A row column inside a graph is a constant of n rows or a shared variable. Constants of that size
are hashed at every compile, and shared variables have no static shape, so the first thing done to
a model's graph is to replace every array root by a placeholder input of static shape.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph, SymbolicOp
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import NullTypeGradError
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import MergeOptimizer
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.graph.utils import MethodNotDefined
from pytensor.raise_op import Assert
from pytensor.tensor import special
from pytensor.tensor.basic import Alloc
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.linalg import Cholesky
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import Subtensor, unflatten_index_variables
from pytensor.tensor.type import TensorType
from pytensor.xtensor.basic import TensorFromXTensor, XTensorFromTensor
from pytensor.xtensor.type import XTensorType

from pymc_subsample.graph.named_dims import without_names
from pymc_subsample.graph.nodes import given_factor

# Shape vectors and index tuples must stay constants for static shapes to be inferred; what is
# computed of such constants is one too, up to so many elements. Choices: arrays have few axes.
_SMALL = 4
_FOLD = 64

# Composed Ops that are kept; any other is replaced by the graph inside.
ELEMENTWISE = (special.LogAddExp, special.XLogY, special.XLog1PY)
ALONG_AXES = (special.LogSumExp, special.Softmax, special.LogSoftmax)


@dataclass(frozen=True)
class ConcreteGraph:
    """Graphs over placeholders."""

    outputs: list[Variable]  # One per graph given, every root array replaced.
    # The array behind each data placeholder (not copied), or the column on disk.
    arrays: dict[Variable, Any]
    values: list[Variable]  # Placeholders of the value variables, in the order given.
    roots: dict[Variable, Variable]  # What each data placeholder stands for.


# What PyTensor raises where an Op has no gradient.
UNDIFFERENTIABLE = (NullTypeGradError, MethodNotDefined, NotImplementedError)


def rebuild(
    outputs: Sequence[Variable],
    memo: dict[Variable, Variable],
    hook: Callable[[Apply, list[Variable]], Sequence[Variable] | None] = lambda node, inputs: None,
    *,
    remake: bool = False,
) -> list[Variable]:
    """Rebuild graphs from their roots up, inferring static shapes anew.

    `memo` holds replacements, and is updated: nothing above a replaced variable is visited.
    ``hook(node, new_inputs)`` returns the node's new outputs, or None to apply the same Op;
    `remake` applies every Op anew, also where its inputs have not changed.
    """
    for node in toposort(outputs, blockers=list(memo)):
        if all(out in memo for out in node.outputs):
            continue
        inputs = [memo.get(i, i) for i in node.inputs]
        new = hook(node, inputs)
        if new is None:
            changed = any(a is not b for a, b in zip(inputs, node.inputs, strict=True))
            new = apply_op(node.op, inputs) if changed or remake else node.outputs
            for old, made in zip(node.outputs, new, strict=True):
                made.tag.trace = getattr(old.tag, "trace", [])  # where it was written
        memo.update(zip(node.outputs, new, strict=True))
    return [memo.get(v, v) for v in outputs]


def merged(
    outputs: Sequence[Variable], inputs: Sequence[Variable] | None = None, *, clone: bool = False
) -> FunctionGraph:
    """Let all that is computed in the same way be one variable."""
    fgraph = FunctionGraph(inputs, list(outputs), clone=clone)
    MergeOptimizer().rewrite(fgraph)
    return fgraph


def apply_op(op: Op, inputs: Sequence[Variable]) -> list[Variable]:
    """Apply `op` to inputs whose static shapes may differ from those it was made for."""
    if isinstance(op, SymbolicOp):  # builds its inner graph for given types; a call builds it anew
        return op(*inputs, return_list=True)
    if isinstance(op, Alloc):
        return [_alloc(op, inputs[0], [_length(i) for i in inputs[1:]])]
    return op.make_node(*inputs).outputs


def _alloc(op: Alloc, value: Variable, lengths: Sequence[Variable]) -> Variable:
    """Fill an array whose lengths are constants, or unknown.

    PyTensor would rewrite all that a length of rows is the length of, 0.2 s for each of hundreds.
    """
    shape = [int(s.data) if isinstance(s, Constant) else None for s in lengths]
    front = len(shape) - value.type.ndim
    for axis, known in enumerate(value.type.shape, front):
        if known in (None, 1):
            continue
        if shape[axis] not in (None, known):
            return op(value, *lengths)  # which says that they don't fit together
        shape[axis] = known
    output = TensorType(value.type.dtype, shape=tuple(shape))()
    return Apply(op, [value, *lengths], [output]).outputs[0]


def _length(var: Variable) -> Variable:
    """Return a length as a constant, if the type of what has it says so."""
    inner = var
    while isinstance(inner.owner_op, Assert):
        inner = inner.owner.inputs[0]
    known = None if inner.owner is None else fold(inner.owner, inner.owner.inputs)
    return var if known is None or not isinstance(known[0], Constant) else known[0]


def concretize(
    outputs: Sequence[Variable],
    value_vars: Sequence[Variable],
    point: Mapping[str, np.ndarray],
    stored: Mapping[Variable, Any] = MappingProxyType({}),
) -> ConcreteGraph:
    """Replace array roots, some by columns on disk, and value variables by static placeholders."""
    outputs = rebuild(without_names(outputs, value_vars), {}, _not_factorised_again)
    arrays: dict[Variable, Any] = {}
    roots: dict[Variable, Variable] = {}
    memo: dict[Variable, Variable] = {}
    for value_var in value_vars:
        shape = np.shape(point[value_var.name])
        memo[value_var] = tensor_input(value_var.name, value_var.type.dtype, shape)
    for root in ancestors(outputs):
        if root.owner is not None or root in memo:
            continue
        data = stored.get(root)
        data = root_array(root) if data is None else data
        if data is None:
            continue
        if stays_constant(data):
            if isinstance(root, SharedVariable):
                memo[root] = pt.constant(data)
        else:
            memo[root] = tensor_input(root.name, data.dtype, data.shape)
            arrays[memo[root]], roots[memo[root]] = data, root

    values = [memo[v] for v in value_vars]
    return ConcreteGraph(rebuild(outputs, memo, fold), arrays, values, roots)


def _not_factorised_again(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
    """Read the factor of a covariance that was given by its factor, as PyTensor does.

    Before the graph is rebuilt, which loses what PyMC says of it. PyTensor evaluates covariances of
    constants first, so that those have the factor that they have.
    """
    op = node.op.core_op if isinstance(node.op, Blockwise) else node.op
    factor = given_factor(node.inputs[0]) if isinstance(op, Cholesky) and op.lower else None
    if factor is None or all(isinstance(v, Constant) for v in ancestors([factor]) if not v.owner):
        return None
    [out] = node.outputs
    return [pt.atleast_Nd(factor, n=out.type.ndim).astype(out.type.dtype)]


def stays_constant(data: np.ndarray) -> bool:
    """Whether this is a number, or may be a shape or an index, and no column."""
    return data.ndim == 0 or (data.ndim == 1 and data.size <= _SMALL and data.dtype.kind in "iu")


def root_array(root: Variable) -> np.ndarray | None:
    """Return the array behind a constant or shared variable, not copied."""
    if isinstance(root, SharedVariable):
        value = root.get_value(borrow=True)
    elif isinstance(root, Constant):
        value = root.data
    else:
        return None
    value = getattr(value, "values", value)  # labelled arrays
    return value if isinstance(value, np.ndarray) else None


def fold(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
    """Fold static shapes, drop what changes nothing, inline composed Ops.

    Such as conversions of roots with named dimensions, and reductions over no axes.
    """
    if isinstance(node.op, TensorFromXTensor):
        [x] = inputs
        if not isinstance(x.type, XTensorType):
            return [x]
        if isinstance(x, Constant):
            return [pt.constant(root_array(x))]
        if x.owner is not None and isinstance(x.owner.op, XTensorFromTensor):
            return x.owner.inputs
    if isinstance(node.op, CAReduce | special.LogSumExp) and node.op.axis == ():
        return [inputs[0].astype(node.outputs[0].type.dtype)]
    if isinstance(node.op, Subtensor) and isinstance(inputs[0].owner_op, Shape):
        [entry] = unflatten_index_variables(inputs[1:], node.op.idx_list)
        lengths = inputs[0].owner.inputs[0].type.shape
        if isinstance(entry, Constant) and lengths[int(entry.data)] is not None:
            return [pt.constant(np.array(lengths[int(entry.data)], dtype="int64"))]
    if isinstance(node.op, Shape) and None not in inputs[0].type.shape:
        return [pt.constant(np.array(inputs[0].type.shape, dtype="int64"))]
    if isinstance(node.op, Shape_i) and inputs[0].type.shape[node.op.i] is not None:
        return [pt.constant(np.array(inputs[0].type.shape[node.op.i], dtype="int64"))]
    if all(isinstance(i, Constant) and np.size(i.data) <= _FOLD for i in inputs):
        return _folded(node, inputs)
    if isinstance(node.op, OpFromGraph) and not isinstance(node.op, ELEMENTWISE + ALONG_AXES):
        composed = node.op.make_node(*inputs)
        known = {i: i for i in inputs}
        return rebuild(inline_ofg_node(composed), known, fold, remake=True)
    return None


def _folded(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
    """Evaluate a node of small integers, so that lengths and indices are known."""
    new = node.op.make_node(*inputs)
    for output in new.outputs:
        shape = getattr(output.type, "shape", None)
        if shape is None or None in shape or np.prod(shape) > _FOLD:
            return new.outputs
        if np.dtype(output.type.dtype).kind not in "iu":
            return new.outputs
    storage: list[list] = [[None] for _ in new.outputs]
    new.op.perform(new, [i.data for i in inputs], storage)
    return [o.type.make_constant(v) for o, [v] in zip(new.outputs, storage, strict=True)]


def tensor_input(name: str | None, dtype: str | np.dtype, shape: Sequence[int | None]) -> Variable:
    """Return a new graph input (unlike `pt.tensor`, any name will do)."""
    return TensorType(dtype, shape=tuple(shape))(name)


def on_disk(value: Any) -> bool:
    """Whether this stands for an array that is on disk, and is never read as a whole."""
    return getattr(value, "on_disk", False)


class ReadsAllRows(Exception):
    """A graph of columns that are on disk, which would have to be evaluated as a whole.

    It has `outputs`, what was to be evaluated, and `columns`, placeholders of those that it reads.
    """

    def __init__(self, outputs: Sequence[Variable], columns: Sequence[Variable]) -> None:
        self.columns = list(columns)
        self.outputs = [v for v in outputs if not set(ancestors([v])).isdisjoint(columns)]
        super().__init__(", ".join(str(c) for c in columns))


def depends_on(outputs: Sequence[Variable], sources: Sequence[Variable]) -> set[Variable]:
    """Return the variables above `outputs` whose value, not only shape, depends on `sources`."""
    dependent = set(sources)
    for node in toposort(outputs):
        if isinstance(node.op, Shape | Shape_i):
            continue
        if any(i in dependent for i in node.inputs):
            dependent.update(node.outputs)
    return dependent


def stable(output: Variable) -> Variable:
    """Return a graph in the form in which PyTensor evaluates it without losing digits."""
    return rewrite_graph(output, include=("canonicalize", "stabilize"), clone=True)


def specialised(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> FunctionGraph:
    """Copy graphs and rewrite them as for compilation, without joining Ops or memory.

    The graphs of Ops that are made of graphs take their place.
    """
    fgraph = FunctionGraph(list(inputs), list(outputs), clone=True)
    rewrite_graph(
        fgraph,
        include=("canonicalize", "stabilize", "specialize"),
        exclude=("fusion", "inplace", "BlasOpt"),
    )
    while symbolic := [n for n in fgraph.toposort() if isinstance(n.op, OpFromGraph)]:
        for node in symbolic:
            pairs = zip(node.outputs, inline_ofg_node(node), strict=True)
            fgraph.replace_all(pairs, import_missing=True)
    MergeOptimizer().rewrite(fgraph)
    return fgraph
