"""Row functions as scalar functions.

Where a row's log-likelihood is elementwise in a few numbers, its PyTensor graph is turned into one
scalar function, called once per row inside our own loop: no temporaries, and everything that
depends on shared parameters alone is computed once per batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytensor.scalar as ps
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.link.numba.dispatch.basic import numba_funcify_ensure_cache
from pytensor.scalar.basic import Composite
from pytensor.tensor.basic import Alloc, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import SpecifyShape

_TRANSPARENT = (DimShuffle, Alloc, ScalarFromTensor, TensorFromScalar, SpecifyShape)


class NotElementwise(Exception):
    """The graph is not elementwise in its inputs."""


@dataclass
class ScalarFunction:
    """``row(*varying, *hoisted) -> outputs`` and ``hoist(*shared) -> hoisted``.

    `used` and `used_shared` say which of the varying and shared inputs are arguments; `hoist` is
    None where nothing is computed from shared inputs alone.
    """

    row: Callable
    hoist: Callable | None
    used: list[int]
    used_shared: list[int]
    n_hoisted: int
    key: str | None


def fuse(
    outputs: Sequence[Variable], varying: Sequence[Variable], shared: Sequence[Variable]
) -> ScalarFunction:
    """Turn vector graphs over rows into scalar functions.

    Parameters
    ----------
    outputs : sequence of Variable
        One vector over rows each.
    varying : sequence of Variable
        Vector inputs over rows.
    shared : sequence of Variable
        Vector inputs that hold one value for all rows.

    Raises
    ------
    NotElementwise
        If some Op is not elementwise.
    """
    fgraph = FunctionGraph([*varying, *shared], list(outputs), clone=True)
    rewrite_graph(
        fgraph,
        include=("canonicalize", "stabilize", "specialize"),
        exclude=("fusion", "inplace", "BlasOpt"),
    )
    varying, shared = fgraph.inputs[: len(varying)], fgraph.inputs[len(varying) :]
    scalars: dict[Variable, Variable] = {v: ps.float64(v.name) for v in fgraph.inputs}
    row_dependent = {scalars[v] for v in varying}
    for node in toposort(fgraph.outputs):
        if isinstance(node.op, Elemwise):
            inputs = [_scalar(i, scalars) for i in node.inputs]
            results = _cheaper(node.op.scalar_op, inputs, scalars, row_dependent)
            scalars.update(zip(node.outputs, results, strict=True))
            if any(i in row_dependent for i in inputs):
                row_dependent.update(results)
        elif isinstance(node.op, _TRANSPARENT):
            scalars[node.outputs[0]] = _scalar(node.inputs[0], scalars)
        elif not _is_shape(node, fgraph.inputs):
            raise NotElementwise
    results = [ps.cast(_scalar(o, scalars), "float64") for o in fgraph.outputs]
    return _split(results, [scalars[v] for v in varying], [scalars[v] for v in shared])


def _is_shape(node, inputs) -> bool:
    """Whether a node computes a length, which a scalar function does not need."""
    return node.outputs[0].type.dtype.startswith("int") and node.outputs[0].type.ndim == 0


def _scalar(var: Variable, scalars: dict[Variable, Variable]) -> Variable:
    if var in scalars:
        return scalars[var]
    if isinstance(var, Constant) and getattr(var.data, "size", 1) == 1:
        value = var.data.item() if hasattr(var.data, "item") else var.data
        return ps.constant(value, dtype=var.type.dtype)
    raise NotElementwise


def _cheaper(op, inputs: list[Variable], scalars, row_dependent) -> list[Variable]:
    """Apply a scalar Op, or what computes the same at less cost per row.

    Logistic functions of one argument share one exponential; a division by what rows share
    becomes a product with a reciprocal that is computed once.
    """
    if isinstance(op, ps.TrueDiv) and inputs[1] not in row_dependent:
        return [ps.mul(inputs[0], ps.reciprocal(inputs[1]))]
    if isinstance(op, ps.Softplus | ps.Sigmoid):
        [x] = inputs
        key = ("exp", x)
        if key not in scalars:
            scalars[key] = ps.exp(ps.neg(ps.abs(x)))
        small = scalars[key]
        if isinstance(op, ps.Softplus):
            # small <= 1: log(1 + small) is exact to one unit of 1, and cheaper than log1p.
            return [ps.add(ps.switch(ps.gt(x, 0.0), x, 0.0), ps.log(ps.add(1.0, small)))]
        inverse = ps.reciprocal(ps.add(1.0, small))
        return [ps.switch(ps.gt(x, 0.0), inverse, ps.mul(small, inverse))]
    return op.make_node(*inputs).outputs


def _split(results, varying, shared) -> ScalarFunction:
    known = list(ancestors(results))
    row_dependent = set(varying)
    for node in toposort(results):
        if any(i in row_dependent for i in node.inputs):
            row_dependent.update(node.outputs)
    hoisted: dict[Variable, None] = {}
    for node in toposort(results):
        if node.outputs[0] in row_dependent:
            hoisted |= {
                i: None
                for i in node.inputs
                if i not in row_dependent and not isinstance(i, Constant)
            }
    hoisted |= {r: None for r in results if r not in row_dependent and not isinstance(r, Constant)}
    used = [i for i, v in enumerate(varying) if v in known]
    names = list(hoisted)
    row, row_key = _compiled([varying[i] for i in used] + names, results)
    if not names:
        return ScalarFunction(row, None, used, [], 0, row_key)
    above = set(ancestors(names))
    used_shared = [i for i, v in enumerate(shared) if v in above]
    hoist, hoist_key = _compiled([shared[i] for i in used_shared], names)
    key = None if row_key is None or hoist_key is None else row_key + hoist_key
    return ScalarFunction(row, hoist, used, used_shared, len(names), key)


def _compiled(inputs, outputs):
    fresh = [i.type() for i in inputs]
    outputs = [ps.identity(v) if v in inputs or isinstance(v, Constant) else v for v in outputs]
    fgraph = FunctionGraph(list(inputs), outputs, clone=True)
    composite = Composite(fgraph.inputs, fgraph.outputs)
    return numba_funcify_ensure_cache(composite, composite.make_node(*fresh))
