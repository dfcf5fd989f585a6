"""Functions of the parameters as loops: elementwise graphs and their sums, without temporaries.

Priors, transforms and their gradients are mostly elementwise in each variable, joined by sums. A
call of PyTensor's own function for them costs more than their arithmetic, which shows where a
batch has a hundred rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pytensor.scalar as ps
from numba import types
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Sum
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import Subtensor, unflatten_index_variables

from pymc_subsample.compile import Compiled, compile_graph, compile_source
from pymc_subsample.control_variates.fusion import ScalarFunction, split
from pymc_subsample.control_variates.scalars import NotScalar, Scalars

_TRANSPARENT = (ScalarFromTensor, TensorFromScalar, CheckAndRaise)


def compile_loops(
    name: str,
    inputs: Sequence[Variable],
    outputs: Mapping[str, Variable],
    buffers: Sequence[str],
    signature: types.Type,
) -> Compiled:
    """Compile a graph of vectors as `compile_graph` does, by loops where it is elementwise."""
    try:
        code = _Code(inputs, outputs)
    except NotScalar:
        return compile_graph(name, inputs, outputs, buffers, signature)
    arguments = ", ".join([*code.names, *buffers])
    source = "\n".join([f"def {name}({arguments}):", *(f"    {line}" for line in code.lines)])
    return compile_source(name, source, code.functions, signature, "|".join(code.keys))


@dataclass
class _Loop:
    """One elementwise graph: inputs that run along with it, and those that don't."""

    shape: tuple[int, ...]
    running: dict[Variable, str] = field(default_factory=dict)
    fixed: dict[Variable, str] = field(default_factory=dict)


class _Code:
    """Lines that compute outputs from input vectors, and the functions that they call.

    Raises
    ------
    NotScalar
        If an output is not made of elementwise graphs of slices of the inputs, and their sums.
    """

    def __init__(self, inputs: Sequence[Variable], outputs: Mapping[str, Variable]):
        fgraph = FunctionGraph(list(inputs), list(outputs.values()), clone=True)
        rewrite_graph(
            fgraph,
            include=("canonicalize", "stabilize", "specialize"),
            exclude=("fusion", "inplace", "BlasOpt"),
        )
        self.names = [f"x{k}" for k in range(len(inputs))]
        self._inputs = dict(zip(fgraph.inputs, self.names, strict=True))
        self._sums: dict[Variable, str] = {}
        self._sum_names = (f"s{k}" for k in count())
        self.lines: list[str] = []
        self.functions: dict[str, object] = {}
        self.keys: list[str] = []
        for target, graph in zip(outputs, fgraph.outputs, strict=True):
            self._add(graph, lambda value, target=target: f"{target} = {value}")

    def _add(self, graph: Variable, assign):
        """Add the loop of one elementwise graph; `assign` makes a line of its value."""
        indexed = graph.type.ndim > 0
        while graph.owner is not None and isinstance(graph.owner.op, Reshape):
            graph = graph.owner.inputs[0]  # elements stay in their order
        loop = _Loop(_lengths(graph))
        for node in toposort([graph], blockers=list(self._cuts(graph, loop))):
            _require_elementwise(node, loop.shape)
        scalars = {v: ps.float64() for v in [*loop.running, *loop.fixed]}
        known = {v: _filled(s, v.type.ndim) for v, s in scalars.items()}
        [result] = Scalars(known, _apply).evaluate([graph])
        if result.size != 1:
            raise NotScalar
        function = split(
            [ps.cast(result.item(), "float64")],
            [scalars[v] for v in loop.running],
            [scalars[v] for v in loop.fixed],
        )
        if function.key is None:
            raise NotScalar
        self._emit(loop, function, assign, indexed)

    def _cuts(self, graph: Variable, loop: _Loop) -> list[Variable]:
        """Find where a graph reads the inputs or sums, and how each is written in a loop."""
        found, seen, pending = [], set(), [graph]
        while pending:
            var = pending.pop()
            if var in seen or isinstance(var, Constant):
                continue
            seen.add(var)
            place = self._sum(var) or self._part(var)
            if place is None:
                if var.owner is None:
                    raise NotScalar
                pending += var.owner.inputs
                continue
            found.append(var)
            shape = _lengths(var)
            if shape not in ((), loop.shape):
                raise NotScalar
            if shape:
                loop.running[var] = place.format(" + i")
            else:
                loop.fixed[var] = place.format("")
        return found

    def _sum(self, var: Variable) -> str | None:
        """Return the name of a sum over everything, whose loop comes before the present one."""
        if var in self._sums:
            return self._sums[var]
        if var.owner is None or not isinstance(var.owner.op, Sum) or _lengths(var):
            return None
        name = next(self._sum_names)  # a sum inside this one takes another
        before, self.lines = self.lines, [f"{name} = 0.0"]
        self._add(var.owner.inputs[0], lambda value: f"{name} += {value}")
        self.lines = [*before, *self.lines]
        self._sums[var] = name
        return name

    def _part(self, var: Variable) -> str | None:
        """Return the code of a slice of an input, maybe reshaped, open for the running index."""
        if var in self._inputs:
            return f"{self._inputs[var]}[0{{}}]"
        node = var.owner
        if node is None:
            return None
        if isinstance(node.op, Reshape):
            return self._part(node.inputs[0])
        if not isinstance(node.op, Subtensor) or node.inputs[0] not in self._inputs:
            return None
        [entry] = unflatten_index_variables(node.inputs[1:], node.op.idx_list)
        name, [length] = self._inputs[node.inputs[0]], node.inputs[0].type.shape
        if not isinstance(entry, slice):
            return f"{name}[{_constant(entry) % length}{{}}]"
        start, stop, step = slice(*map(_constant, _ends(entry))).indices(length)
        if step != 1 or var.type.shape != (stop - start,):
            raise NotScalar
        return f"{name}[{start}{{}}]"

    def _emit(self, loop: _Loop, function: ScalarFunction, assign, indexed: bool):
        k = len(self.keys)
        self.functions[f"row{k}"] = function.row
        self.keys.append(function.key or "")
        hoisted = [f"h{k}_{j}" for j in range(function.n_hoisted)]
        if function.hoist is not None:
            self.functions[f"hoist{k}"] = function.hoist
            fixed = [list(loop.fixed.values())[j] for j in function.used_shared]
            self.lines.append(f"{', '.join(hoisted)} = hoist{k}({', '.join(fixed)})")
        running = [list(loop.running.values())[j] for j in function.used]
        line = assign(f"row{k}({', '.join([*running, *hoisted])})")
        if indexed:
            size = int(np.prod(loop.shape, dtype=int))
            self.lines += [f"for i in range({size}):", f"    {line}"]
        else:
            self.lines.append(line)


def _lengths(var: Variable) -> tuple[int, ...]:
    """Return the static lengths of a variable, those of one left out."""
    if None in var.type.shape:
        raise NotScalar
    return tuple(n for n in var.type.shape if n != 1)


def _require_elementwise(node, shape: tuple[int, ...]):
    """Refuse an Op that mixes elements."""
    elementwise = isinstance(node.op, (Elemwise, *_TRANSPARENT))
    if isinstance(node.op, DimShuffle):
        order = [a for a in node.op.new_order if a != "x"]
        elementwise = order == sorted(order)
    if not elementwise or any(_lengths(v) not in ((), shape) for v in node.outputs):
        raise NotScalar


def _filled(scalar: Variable, ndim: int) -> np.ndarray:
    array = np.empty((1,) * ndim, dtype=object)
    array[...] = scalar
    return array


def _apply(op, inputs: list[Variable]) -> list[Variable]:
    return op.make_node(*inputs).outputs


def _ends(entry: slice):
    return entry.start, entry.stop, entry.step


def _constant(value):
    if value is None or isinstance(value, int):
        return value
    if not isinstance(value, Constant):
        raise NotScalar
    return int(value.data)
