"""Graphs evaluated by NumPy, Op by Op: nothing is compiled."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar.loop import ScalarLoop
from pytensor.tensor.elemwise import Elemwise

from pymc_subsample.compiled.functions import without_c
from pymc_subsample.compiled.scalar_loops import FastLoop
from pymc_subsample.graph.concrete import ReadsAllRows, apply_op, depends_on, on_disk, rebuild
from pymc_subsample.graph.nodes import elemwise_name

PYTHON_MODE = Mode(linker="py", optimizer=None)


def evaluate(
    outputs: Sequence[Variable], givens: Mapping[Variable, np.ndarray]
) -> list[np.ndarray]:
    """Evaluate without compiling or hashing large constants; `ReadsAllRows` of columns on disk."""
    inputs = [v for v in ancestors(outputs) if v in givens]
    stored = [v for v in inputs if on_disk(givens[v])]
    if stored:
        raise ReadsAllRows(outputs, stored)
    return numpy_function(inputs, outputs)(*(givens[v] for v in inputs))


def numpy_function(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> "NumpyFunction":
    """Return a function that calls NumPy Op by Op: nothing is compiled, warnings are silent."""
    return NumpyFunction(inputs, rebuild(outputs, {v: v for v in inputs}, _vectorised))


class NumpyFunction:
    """A function that several threads may call at once, and that can be pickled.

    PyTensor's own functions are for one thread: as many are made as threads call at once. An Op
    with a graph inside has one function for all of them: threads take turns where one is left.
    """

    def __init__(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        self._inputs, self._outputs = list(inputs), list(outputs)
        cores = (getattr(node.op, "core_op", node.op) for node in toposort(self._outputs))
        shared = any(isinstance(op, HasInnerGraph) for op in cores)
        self._turn = _inner if shared else nullcontext()
        self._free = [self._made()]

    def __reduce__(self) -> tuple:
        return NumpyFunction, (self._inputs, self._outputs)

    def __call__(self, *arguments: np.ndarray) -> list[np.ndarray]:
        """Evaluate."""
        try:
            function = self._free.pop()
        except IndexError:
            function = self._made()
        try:
            with np.errstate(all="ignore"), self._turn:
                return function(*arguments)
        finally:
            self._free.append(function)

    def _made(self) -> Callable:
        # Without C, with which PyTensor would link Ops inside of others.
        with _making, without_c():
            return pytensor.function(
                self._inputs, self._outputs, mode=PYTHON_MODE, on_unused_input="ignore"
            )


_making, _inner = threading.Lock(), threading.RLock()


# NumPy's limit is 32 with the result.
_OPERANDS = 30


def _vectorised(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
    """Replace scalar Ops that are loops in Python, or do not convert their inputs as code does.

    Composed Ops are replaced by the graph inside.
    """
    if isinstance(node.op, OpFromGraph):
        composed = apply_op(node.op, inputs)[0].owner
        return rebuild(inline_ofg_node(composed), {i: i for i in inputs}, _vectorised, remake=True)
    if not isinstance(node.op, Elemwise):
        return None
    if isinstance(node.op.scalar_op, ScalarLoop):
        return FastLoop(node.op.scalar_op).make_node(*inputs).outputs
    x, *rest = inputs
    match elemwise_name(node):
        case "Second":
            new = pt.switch(np.True_, rest[0], x)
        case "Clip":
            new = pt.minimum(pt.maximum(x, rest[0]), rest[1])
        case "Softplus":
            new = pt.maximum(x, 0) + pt.log1p(pt.exp(-abs(x)))
        case "Add" | "Mul" if len(inputs) > 2:  # two at a time, small integers overflow
            dtype = node.outputs[0].type.dtype
            parts = [i.astype(dtype) for i in inputs]
            while len(parts) > _OPERANDS:
                parts = [node.op(*parts[:_OPERANDS]), *parts[_OPERANDS:]]
            return [node.op(*parts)]
        case "Log1mexp":
            new = pt.switch(x < -np.log(2), pt.log1p(-pt.exp(x)), pt.log(-pt.expm1(x)))
        case _:
            return None
    return [new.astype(node.outputs[0].type.dtype)]


def freeze(
    outputs: Sequence[Variable], arrays: Mapping[Variable, np.ndarray]
) -> dict[Variable, Variable]:
    """Return constants for the largest parts of graphs that data alone make."""
    roots = [v for v in ancestors(outputs) if v.owner is None and not isinstance(v, Constant)]
    dependent = depends_on(outputs, [v for v in roots if v not in arrays])
    used = [i for n in toposort(outputs) if n.outputs[0] in dependent for i in n.inputs]
    fixed = [
        v
        for v in dict.fromkeys([*outputs, *used])
        if v not in dependent and any(a in arrays for a in ancestors([v]))
    ]
    values = evaluate(fixed, arrays)
    return {v: pt.constant(np.asarray(x, v.type.dtype)) for v, x in zip(fixed, values, strict=True)}


def frozen(
    outputs: Sequence[Variable],
    arrays: Mapping[Variable, np.ndarray],
    memo: Mapping[Variable, Variable] = MappingProxyType({}),
) -> list[Variable]:
    """Rebuild graphs with data in them, and with replacements."""
    return rebuild(outputs, {**memo, **freeze(outputs, arrays)})
