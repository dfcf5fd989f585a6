"""Functions of the parameters as loops: elementwise graphs, rearranged, and their sums.

Priors, transforms and their gradients are mostly elementwise in each variable, joined by sums,
choices of elements and products of small matrices. A call of PyTensor's own function for them costs
more than their arithmetic, which shows where a batch has a hundred rows, and takes many times as
long to compile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count

import numpy as np
import pytensor.scalar as ps
from numba import types
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import toposort
from pytensor.tensor.basic import (
    Alloc,
    AllocEmpty,
    ExtractDiag,
    Join,
    MakeVector,
    Split,
)
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import All, Any, Dot, Max, Min, Prod, Sum
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    unflatten_index_variables,
)

from pymc_subsample.compile import Compiled, compile_graph, compile_source
from pymc_subsample.control_variates.fusion import ScalarFunction, split
from pymc_subsample.control_variates.places import (
    TRANSPARENT,
    along,
    is_elementwise,
    lengths,
    literal,
    n_elements,
    performed,
    require_elementwise,
    spread,
)
from pymc_subsample.control_variates.scalars import NotScalar, Scalars

# Where a reduction begins, and how an element enters. NaN stays, as it does not with `max`.
_REDUCTIONS = {
    Sum: ("0.0", "{} += {}"),
    Prod: ("1.0", "{} *= {}"),
    Max: ("-np.inf", "{0} = np.maximum({0}, {1})"),
    Min: ("np.inf", "{0} = np.minimum({0}, {1})"),
    Any: ("0.0", "{0} = np.maximum({0}, {1})"),
    All: ("1.0", "{0} = np.minimum({0}, {1})"),
}
# Operations of a graph that is computed once, where several loops need it.
_MANY = 8
# Elements of an array of places, which becomes part of the code.
_MOST_KNOWN = 4_096


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


@dataclass
class _Place:
    """Where the elements of a variable are, in order: positions in an array of that name."""

    name: str
    index: np.ndarray


class _Code:
    """Lines that compute outputs from input vectors, and the functions that they call.

    Raises
    ------
    NotScalar
        If an output is not made of elementwise graphs, rearrangements of elements that are known
        beforehand, and sums.
    """

    def __init__(self, inputs: Sequence[Variable], outputs: Mapping[str, Variable]):
        fgraph = FunctionGraph(list(inputs), list(outputs.values()), clone=True)
        rewrite_graph(
            fgraph,
            include=("canonicalize", "stabilize", "specialize"),
            exclude=("fusion", "inplace", "BlasOpt"),
        )
        while symbolic := [n for n in fgraph.toposort() if isinstance(n.op, OpFromGraph)]:
            for node in symbolic:
                pairs = zip(node.outputs, inline_ofg_node(node), strict=True)
                fgraph.replace_all(pairs, import_missing=True)
        self.names = [f"x{k}" for k in range(len(inputs))]
        self._places = {
            v: _Place(name, np.arange(n_elements(v)))
            for v, name in zip(fgraph.inputs, self.names, strict=True)
        }
        self._clients = fgraph.clients
        self._scalars: dict[Variable, str] = {}
        self._weights: dict[Variable, int] = {}
        self._numbers = count()
        self.lines: list[str] = []
        self.functions: dict[str, object] = {"np": np}
        self.keys: list[str] = []
        for target, graph in zip(outputs, fgraph.outputs, strict=True):
            self._add(graph, f"{target} = {{}}".format)

    def _add(self, graph: Variable, assign: Callable[[str], str]):
        """Add the loop of one elementwise graph; `assign` makes a line of its value."""
        indexed = graph.type.ndim > 0
        while graph.owner is not None and isinstance(graph.owner.op, Reshape):
            graph = graph.owner.inputs[0]  # elements stay in their order
        loop = _Loop(lengths(graph))
        for node in toposort([graph], blockers=list(self._cuts(graph, loop))):
            require_elementwise(node, loop.shape)
        scalars = {v: ps.float64() for v in [*loop.running, *loop.fixed]}
        known = {
            v: _filled(ps.neq(s, 0.0) if v.type.dtype == "bool" else s, v.type.ndim)
            for v, s in scalars.items()
        }
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
        """Find where a graph reads what is there, and how each is written in a loop."""
        found, seen, pending = [], set(), [graph]

        def cut(var: Variable, index: np.ndarray, name: str):
            code, runs = self._element(name, index)
            (loop.running if runs else loop.fixed)[var] = code
            found.append(var)

        while pending:
            var = pending.pop()
            if var in seen or (isinstance(var, Constant) and not lengths(var)):
                continue
            seen.add(var)
            if var is not graph and self._is_shared(var):
                self._store(var)
            if (scalar := self._reduced(var)) is not None:
                loop.fixed[var] = scalar
                found.append(var)
            elif (place := self._place(var)) is not None:
                if lengths(var) not in ((), loop.shape):
                    raise NotScalar
                cut(var, place.index, place.name)
            elif var.owner is None:
                raise NotScalar
            else:
                for v in var.owner.inputs:
                    if lengths(v) in ((), loop.shape):
                        pending.append(v)
                    elif v not in seen:  # repeated along some axes
                        seen.add(v)
                        place = self._located(v)
                        cut(v, spread(place.index, v, var), place.name)
        return found

    def _reduced(self, var: Variable) -> str | None:
        """Return the name of a sum over everything, whose loop comes before the present one."""
        if var in self._scalars:
            return self._scalars[var]
        if var.owner is None or type(var.owner.op) not in _REDUCTIONS or lengths(var):
            return None
        name = f"s{next(self._numbers)}"
        start, line = _REDUCTIONS[type(var.owner.op)]
        self.lines.append(f"{name} = {start}")
        self._add(var.owner.inputs[0], lambda value: line.format(name, value))
        self._scalars[var] = name
        return name

    def _is_shared(self, var: Variable) -> bool:
        """Whether several loops may need what takes many operations."""
        return len(self._clients[var]) > 1 and self._weight(var) >= _MANY

    def _weight(self, var: Variable) -> int:
        """Operations of an elementwise graph, if all that is shared is computed anew."""
        if var not in self._weights:
            weight = 0
            if var.owner is not None and is_elementwise(var.owner):
                inputs = (v for v in var.owner.inputs if not self._is_shared(v))
                weight = isinstance(var.owner.op, Elemwise) + sum(map(self._weight, inputs))
            self._weights[var] = weight
        return self._weights[var]

    def _store(self, var: Variable):
        """Compute an elementwise graph beforehand."""
        if lengths(var):
            self._located(var)
        elif var not in self._scalars and self._place(var) is None:
            name = f"s{next(self._numbers)}"
            self._add(var, lambda value: f"{name} = {value}")
            self._scalars[var] = name

    def _element(self, name: str, index: np.ndarray) -> tuple[str, bool]:
        """Return the code of the running element of an array, and whether it runs at all."""
        first = index[0] if len(index) else 0
        if len(index) and np.all(index == first):
            return f"{name}[{first}]", False
        if np.array_equal(index, np.arange(first, first + len(index))):
            return f"{name}[{first} + i]", True
        return f"{name}[{self._known(index)}[i]]", True

    def _known(self, values: np.ndarray) -> str:
        """Name an array of the source's environment."""
        if values.size > _MOST_KNOWN:
            raise NotScalar
        key = f"{values.dtype} {values.tobytes().hex()}"
        name = f"k{sha256(key.encode()).hexdigest()[:16]}"
        if name not in self.functions:
            self.functions[name] = values
            self.keys.append(key)
        return name

    # Elements that are chosen, repeated, put in places and added up there.

    def _place(self, var: Variable) -> _Place | None:
        """Return where a variable is, after what puts it there; None if it is elementwise."""
        if var not in self._places:
            if isinstance(var, Constant):
                values = np.ascontiguousarray(var.data, dtype=float).ravel()
                self._places[var] = _Place(self._known(values), np.arange(values.size))
            elif var.owner is None or is_elementwise(var.owner):
                return None
            else:
                self._put(var.owner)
        return self._places.get(var)

    def _located(self, var: Variable) -> _Place:
        """Return where a variable is, stored first if it is elementwise."""
        place = self._place(var)
        if place is not None:
            return place
        if var.owner is None:
            raise NotScalar
        if isinstance(var.owner.op, (DimShuffle, *TRANSPARENT)):
            place = self._located(var.owner.inputs[0])
        else:
            place = self._new(var)
            at = "i" if var.type.ndim else "0"
            self._add(var, lambda value: f"{place.name}[{at}] = {value}")
        self._places[var] = place
        return place

    def _new(self, var: Variable) -> _Place:
        """Make room for a variable."""
        place = _Place(f"t{next(self._numbers)}", np.arange(n_elements(var)))
        self.lines.append(f"{place.name} = np.empty({n_elements(var)})")
        return place

    def _loop(self, size: int, line: str):
        self.lines += [f"for i in range({size}):", f"    {line}"]

    def _put(self, node: Apply):
        op, out = node.op, node.outputs[0]
        if isinstance(op, (Reshape, SpecifyShape)):
            self._places[out] = self._located(node.inputs[0])
        elif isinstance(op, AllocEmpty):
            self._places[out] = self._new(out)
        elif isinstance(op, (Subtensor, AdvancedSubtensor, DimShuffle, Alloc, Split, ExtractDiag)):
            place = self._located(node.inputs[0])
            positions = place.index.reshape(node.inputs[0].type.shape)
            for var, index in zip(node.outputs, performed(node, positions), strict=True):
                self._places[var] = _Place(place.name, index.ravel())
        elif isinstance(op, (Join, MakeVector)):
            self._join(node)
        elif isinstance(op, (IncSubtensor, AdvancedIncSubtensor)):
            self._increment(node)
        elif type(op) in _REDUCTIONS:
            [x] = node.inputs
            place = self._new(out)
            start, line = _REDUCTIONS[type(op)]
            axes = range(x.type.ndim) if op.axis is None else op.axis
            shape = [1 if a in axes else n for a, n in enumerate(x.type.shape)]
            where = np.broadcast_to(place.index.reshape(shape), x.type.shape).ravel()
            self._loop(len(place.index), f"{place.name}[i] = {start}")
            self._add_to(x, line.format(self._element(place.name, where)[0], "{}"))
            self._places[out] = place
        elif isinstance(op, CumOp) and op.mode == "add" and along(out, op.axis):
            place, total = self._new(out), f"s{next(self._numbers)}"
            code, _ = self._element(*self._at(node.inputs[0]))
            self.lines.append(f"{total} = 0.0")
            self._loop(len(place.index), f"{total} += {code}; {place.name}[i] = {total}")
            self._places[out] = place
        elif isinstance(op, Dot):
            self._multiply(node)
        else:
            raise NotScalar

    def _at(self, var: Variable) -> tuple[str, np.ndarray]:
        place = self._located(var)
        return place.name, place.index

    def _add_to(self, var: Variable, line: str):
        """Loop over the elements of a variable; `line` has a gap for each."""
        if self._place(var) is None and lengths(var):
            self._add(var, lambda value: line.format(value))
        else:
            self._loop(n_elements(var), line.format(self._element(*self._at(var))[0]))

    def _join(self, node: Apply):
        parts, [out] = node.inputs, node.outputs
        starts = np.cumsum([0, *map(n_elements, parts)])
        positions = [
            start + np.arange(n_elements(v)).reshape(v.type.shape)
            for v, start in zip(parts, starts[:-1], strict=True)
        ]
        order = performed(node, *positions)[0] if isinstance(node.op, Join) else np.array(positions)
        where = np.argsort(order.ravel())
        located = [self._at(v) for v in parts]
        place = self._new(out)
        for (name, index), start in zip(located, starts[:-1], strict=True):
            to, _ = self._element(place.name, where[start : start + len(index)])
            self._loop(len(index), f"{to} = {self._element(name, index)[0]}")
        self._places[out] = place

    def _increment(self, node: Apply):
        x, y = node.inputs[:2]
        if getattr(node.op, "ignore_duplicates", False):
            raise NotScalar
        entries = unflatten_index_variables(node.inputs[2:], node.op.idx_list)
        positions = np.arange(n_elements(x)).reshape(x.type.shape)
        where = positions[tuple(literal(e) for e in entries)]
        name, index = self._at(x)
        added, of_y = self._at(y)
        of_y = np.broadcast_to(of_y.reshape(y.type.shape), where.shape).ravel()
        place = self._new(node.outputs[0])
        self._loop(len(index), f"{place.name}[i] = {self._element(name, index)[0]}")
        if where.size:
            sign = "=" if node.op.set_instead_of_inc else "+="
            to, _ = self._element(place.name, where.ravel())
            self._loop(where.size, f"{to} {sign} {self._element(added, of_y)[0]}")
        self._places[node.outputs[0]] = place

    def _multiply(self, node: Apply):
        x, y = node.inputs
        (m, k), n = x.type.shape, y.type.shape[1]
        if None in (m, k, n) or m * k * n > _MOST_KNOWN:
            raise NotScalar
        left, right = self._located(x), self._located(y)
        place, shape = self._new(node.outputs[0]), (m, k, n)
        factors = [
            self._element(at.name, np.broadcast_to(at.index.reshape(form), shape).ravel())[0]
            for at, form in ((left, (m, k, 1)), (right, (1, k, n)))
        ]
        where = np.broadcast_to(place.index.reshape(m, 1, n), shape).ravel()
        self._loop(m * n, f"{place.name}[i] = 0.0")
        self._loop(m * k * n, f"{self._element(place.name, where)[0]} += {' * '.join(factors)}")
        self._places[node.outputs[0]] = place

    def _emit(
        self, loop: _Loop, function: ScalarFunction, assign: Callable[[str], str], indexed: bool
    ):
        k = next(self._numbers)
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
            self._loop(int(np.prod(loop.shape, dtype=int)), line)
        else:
            self.lines.append(line)


def _filled(scalar: Variable, ndim: int) -> np.ndarray:
    array = np.empty((1,) * ndim, dtype=object)
    array[...] = scalar
    return array


def _apply(op: Op, inputs: list[Variable]) -> list[Variable]:
    return op.make_node(*inputs).outputs
