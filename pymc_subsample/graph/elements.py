"""Elements that a graph computes, by how dear they are: its time, about, without compiling it."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import graph_inputs, toposort
from pytensor.scan.op import Scan
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.special import LogSoftmax, LogSumExp, Softmax

from pymc_subsample.graph.concrete import depends_on, root_array

# All of `pytensor.scalar.math`, gamma functions and their kin, besides.
_TRANSCENDENTAL = (
    ps.Exp, ps.Exp2, ps.Expm1, ps.Log, ps.Log2, ps.Log10, ps.Log1p, ps.Sin, ps.Cos, ps.Tan,
    ps.ArcSin, ps.ArcCos, ps.ArcTan, ps.Sinh, ps.Cosh, ps.Tanh,
)  # fmt: skip


def computed_elements(
    outputs: Sequence[Variable], sources: Sequence[Variable]
) -> tuple[float, float]:
    """Count elements that depend on `sources`: of transcendental functions, and all others.

    A dimension that types do not tell is as long as the longest array that the graph reads.
    """
    roots = (root_array(v) for v in graph_inputs(outputs))
    longest = max((max(np.shape(a), default=1) for a in roots if a is not None), default=1)
    return _counted(toposort(outputs), depends_on(outputs, sources), longest)


def _counted(nodes: Iterable[Apply], dependent: set[Variable], longest: int) -> tuple[float, float]:
    dear = others = 0.0
    for node in nodes:
        if dependent.isdisjoint(node.outputs):
            continue
        if isinstance(node.op, Scan):
            inner = node.op.fgraph
            steps = int(node.inputs[0].data) if isinstance(node.inputs[0], Constant) else 1
            of_inner = depends_on(inner.outputs, node.op.inner_inputs)
            a, b = _counted(inner.toposort(), of_inner, longest)
            dear, others = dear + steps * a, others + steps * b
            continue
        read = node.inputs if isinstance(node.op, CAReduce | LogSumExp) else node.outputs
        size = max(_size(v, longest) for v in read)
        if _is_dear(node, dependent):
            dear += size
        else:
            others += size
    return dear, others


def _is_dear(node: Apply, dependent: set[Variable]) -> bool:
    if not isinstance(node.op, Elemwise):
        return isinstance(node.op, LogSoftmax | LogSumExp | Softmax)
    function = node.op.scalar_op
    if isinstance(function, ps.Pow):  # but squares and the like
        return node.inputs[1] in dependent
    of_math = type(function).__module__ == "pytensor.scalar.math"
    return of_math or isinstance(function, _TRANSCENDENTAL)


def _size(v: Variable, longest: int) -> float:
    """Elements of a variable, of which one dimension at most is as long as data are."""
    shape = getattr(v.type, "shape", ())
    known = math.prod(n for n in shape if n is not None)
    return float(known * (longest if None in shape else 1))
