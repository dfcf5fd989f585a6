"""Functions of the parameters as loops: elementwise graphs, rearranged, and their sums.

Priors, transforms and their gradients are mostly elementwise in each variable, joined by sums,
choices of elements and products of small matrices. A call of PyTensor's own function for them costs
more than their arithmetic, which shows where a batch has a hundred rows, and takes many times as
long to compile.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import count

import numpy as np
import pytensor.scalar as ps
from numba import types
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.tensor.basic import AllocEmpty
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.shape import Shape
from pytensor.tensor.subtensor import unflatten_index_variables

from pymc_subsample.compiled.functions import Compiled, compile_graph, compile_source
from pymc_subsample.expansion.fusion import split
from pymc_subsample.graph.concrete import rebuild, specialised
from pymc_subsample.graph.interpreter import Interpreter, Merge, Move, NoForm, performed

# Where a reduction begins, and how an element enters. NaN stays, as it does not with `max`.
_REDUCTIONS = {
    ps.Add: ("0.0", "{} += {}"),
    ps.Mul: ("1.0", "{} *= {}"),
    ps.ScalarMaximum: ("-np.inf", "{0} = np.maximum({0}, {1})"),
    ps.ScalarMinimum: ("np.inf", "{0} = np.minimum({0}, {1})"),
    ps.OR: ("0.0", "{0} = np.maximum({0}, {1})"),
    ps.AND: ("1.0", "{0} = np.minimum({0}, {1})"),
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
    except NoForm:
        return compile_graph(name, inputs, outputs, buffers, signature)
    arguments = ", ".join([*code.names, *buffers])
    source = "\n".join([f"def {name}({arguments}):", *(f"    {line}" for line in code.lines)])
    return compile_source(name, source, code.functions, signature, "|".join(code.keys))


@dataclass(frozen=True)
class _Place:
    """Where numbers are, in order: positions in an array of that name, or a variable (None)."""

    name: str
    index: np.ndarray | None

    def moved(self, shape: tuple[int, ...], function: Move) -> "_Place":
        """Return where elements are that `function` takes from an array of that shape."""
        if self.index is None:
            return self
        return _Place(self.name, np.asarray(function(self.index.reshape(shape))).ravel())


@dataclass(frozen=True)
class _Run:
    """Elements that are one scalar graph of numbers in memory, with the places of each in turn."""

    shape: tuple[int, ...]
    graph: Variable
    places: dict[Variable, _Place] = field(default_factory=dict)
    operations: int = 0

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=int))

    def moved(self, function: Move) -> "_Run":
        """Take elements from elsewhere."""
        shape = np.shape(function(np.broadcast_to(np.int8(0), self.shape)))
        places = {v: p.moved(self.shape, function) for v, p in self.places.items()}
        return replace(self, shape=shape, places=places)

    def apart(self, places: Mapping[Variable, _Place]) -> "_Run":
        """Rename the numbers that are elsewhere by the same name."""
        new = {v: v.type() for v, p in self.places.items() if places.get(v, p) is not p}
        if not new:
            return self
        [graph] = rebuild([self.graph], dict(new))
        return replace(self, graph=graph, places={new.get(v, v): p for v, p in self.places.items()})


class _Code(Interpreter[_Run]):
    """Lines that compute outputs from input vectors, and the functions that they call.

    Raises `NoForm` unless outputs are made of elementwise graphs, rearrangements of elements that
    are known beforehand, and sums.
    """

    def __init__(self, inputs: Sequence[Variable], outputs: Mapping[str, Variable]):
        fgraph = specialised(inputs, list(outputs.values()))
        self.names = [f"x{k}" for k in range(len(inputs))]
        self._clients = fgraph.clients
        self._numbers = count()
        self.lines: list[str] = []
        self.functions: dict[str, object] = {"np": np}
        self.keys: list[str] = []
        super().__init__(
            {
                v: _in_memory(name, v.type.shape, v.type.dtype == "bool")
                for v, name in zip(fgraph.inputs, self.names, strict=True)
            }
        )
        for target, run in zip(outputs, self.evaluate(fgraph.outputs), strict=True):
            self._add(run, f"{target} = {{}}")

    def _results(self, node: Apply) -> list[_Run]:
        op, [out, *_] = node.op, node.outputs
        if isinstance(op, AllocEmpty) and None not in out.type.shape:
            return [self._moved(_Run((), ps.constant(0.0)), lambda x: np.full(out.type.shape, x))]
        if isinstance(op, CumOp):
            return [self._accumulated(op, self.value(node.inputs[0]))]
        return [
            self._stored(run) if run.operations >= _MANY and len(self._clients[v]) > 1 else run
            for v, run in zip(node.outputs, super()._results(node), strict=True)
        ]

    def _data(self, array: np.ndarray) -> _Run:
        if array.size == 1:
            return _Run(array.shape, ps.constant(array.item(), dtype=array.dtype.name))
        values = np.ascontiguousarray(array, dtype=float).ravel()
        return _in_memory(self._known(values), array.shape, array.dtype == bool)

    def _shape(self, run: _Run) -> tuple[int, ...]:
        return run.shape

    def _literal(self, var: Variable):
        return _static(var)

    def _moved(self, run: _Run, function: Move) -> _Run:
        moved = run.moved(function)
        if run.operations and 1 < run.size < moved.size:
            return self._stored(run).moved(function)
        return moved

    def _merged(self, runs: Sequence[_Run], function: Merge) -> _Run:
        starts = np.cumsum([0, *(run.size for run in runs)])
        order = function(
            [s + np.arange(r.size).reshape(r.shape) for r, s in zip(runs, starts, strict=False)]
        )
        where, result = np.argsort(order.ravel()), self._new(order.shape)
        for run, start in zip(runs, starts, strict=False):
            self._add(run, f"{self._at(result, where[start : start + run.size])} = {{}}")
        return result

    def _elementwise(self, op: Op, runs: Sequence[_Run]) -> list[_Run]:
        shape = np.broadcast_shapes(*(run.shape for run in runs))
        places: dict[Variable, _Place] = {}
        graphs = []
        for run in runs:
            if run.shape != shape:
                run = self._moved(run, lambda x: np.broadcast_to(x, shape))
            run = run.apart(places)
            places |= run.places
            graphs.append(run.graph)
        operations = 1 + sum(run.operations for run in runs)
        return [_Run(shape, out, places, operations) for out in op.make_node(*graphs).outputs]

    def _reduced(self, op: Op, run: _Run, axes: Sequence[int]) -> _Run:
        if type(op) not in _REDUCTIONS:
            raise NoForm
        start, line = _REDUCTIONS[type(op)]
        shape = tuple(n for a, n in enumerate(run.shape) if a not in axes)
        result = self._new(shape, run.graph.type.dtype == "bool")
        repeated = np.arange(result.size).reshape(
            [1 if a in axes else n for a, n in enumerate(run.shape)]
        )
        where = np.broadcast_to(repeated, run.shape).ravel()
        self._add(_Run(shape, ps.constant(0.0)), f"{self._at(result)} = {start}")
        self._add(run, line.format(self._at(result, where), "{}"))
        return result

    def _accumulated(self, op: CumOp, run: _Run) -> _Run:
        length = run.size if op.axis is None else run.shape[op.axis]
        if op.mode != "add" or run.size != length:
            raise NoForm
        result, total = self._new((length,)), self._new(())
        self.lines.append(f"{self._at(total)} = 0.0")
        self._add(run, f"{self._at(total)} += {{}}; {self._at(result)} = {self._at(total)}")
        return result if op.axis is None else result.moved(lambda x: x.reshape(run.shape))

    def _product(self, a: _Run, b: _Run) -> _Run:
        if a.size * (b.shape[-1] if len(b.shape) > 1 else 1) > _MOST_KNOWN:
            raise NoForm
        return super()._product(*(self._stored(x) if x.operations else x for x in (a, b)))

    def _increased(self, node: Apply) -> _Run:
        x, y = map(self.value, node.inputs[:2])
        if getattr(node.op, "ignore_duplicates", False):
            raise NoForm
        index = [self._literal(i) for i in node.inputs[2:]]
        entries = tuple(unflatten_index_variables(index, node.op.idx_list))
        where = np.asarray(np.arange(x.size).reshape(x.shape)[entries])
        result = self._new(x.shape)
        self._add(x, f"{self._at(result)} = {{}}")
        sign = "=" if node.op.set_instead_of_inc else "+="
        y = self._moved(y, lambda array: np.broadcast_to(array, where.shape))
        self._add(y, f"{self._at(result, where.ravel())} {sign} {{}}")
        return result

    # Memory, and code that reads and writes there.

    def _new(self, shape: tuple[int, ...], boolean: bool = False) -> _Run:
        """Make room for numbers; one of them is a variable."""
        name, size = f"t{next(self._numbers)}", int(np.prod(shape, dtype=int))
        if size == 1:
            return _in_memory(name, shape, boolean, variable=True)
        self.lines.append(f"{name} = np.empty({size})")
        return _in_memory(name, shape, boolean)

    def _stored(self, run: _Run) -> _Run:
        """Compute elements beforehand."""
        result = self._new(run.shape, run.graph.type.dtype == "bool")
        self._add(run, f"{self._at(result)} = {{}}")
        return result

    def _at(self, run: _Run, where: np.ndarray | None = None) -> str:
        """Return the code of an element of what is in memory: the running one, or one of these."""
        [place] = run.places.values()
        if where is not None and place.index is not None:
            place = _Place(place.name, where)
        return self._element(place)[0]

    def _element(self, place: _Place) -> tuple[str, bool]:
        """Return the code of the running element, and whether it runs at all."""
        name, index = place.name, place.index
        if index is None:
            return name, False
        first = index[0] if len(index) else 0
        if len(index) and np.all(index == first):
            return f"{name}[{first}]", False
        if np.array_equal(index, np.arange(first, first + len(index))):
            return f"{name}[{first} + i]", True
        return f"{name}[{self._known(index)}[i]]", True

    def _known(self, values: np.ndarray) -> str:
        """Name an array of the source's environment."""
        if values.size > _MOST_KNOWN:
            raise NoForm
        key = f"{values.dtype} {values.tobytes().hex()}"
        name = f"k{sha256(key.encode()).hexdigest()[:16]}"
        if name not in self.functions:
            self.functions[name] = values
            self.keys.append(key)
        return name

    def _add(self, run: _Run, line: str):
        """Add a loop over elements; `line` has a gap for each."""
        running: dict[str, Variable] = {}
        fixed: dict[str, Variable] = {}
        memo: dict[Variable, Variable] = {}
        for v, place in run.places.items():
            code, runs = self._element(place)
            memo[v] = (running if runs else fixed).setdefault(code, v)
        if "{}" in line:
            line = line.format(self._value(run, running, fixed, memo))
        looped = run.size != 1 or "i]" in line
        self.lines += [f"for i in range({run.size}):", f"    {line}"] if looped else [line]

    def _value(
        self,
        run: _Run,
        running: dict[str, Variable],
        fixed: dict[str, Variable],
        memo: dict[Variable, Variable],
    ) -> str:
        """Return the code of the running element, with what does not run computed before."""
        if run.graph in memo:
            [code] = [*running, *fixed]
            return code
        [graph] = rebuild([run.graph], memo)
        function = split([ps.cast(graph, "float64")], list(running.values()), list(fixed.values()))
        if function.key is None:
            raise NoForm
        k = next(self._numbers)
        self.functions[f"row{k}"] = function.row
        self.keys.append(function.key)
        hoisted = [f"h{k}_{j}" for j in range(function.n_hoisted)]
        if function.hoist is not None:
            self.functions[f"hoist{k}"] = function.hoist
            arguments = ", ".join(list(fixed)[j] for j in function.used_shared)
            self.lines.append(f"{', '.join(hoisted)} = hoist{k}({arguments})")
        return f"row{k}({', '.join([*(list(running)[j] for j in function.used), *hoisted])})"


def _in_memory(
    name: str, shape: tuple[int | None, ...], boolean: bool = False, variable: bool = False
) -> _Run:
    """Return numbers that are in memory in their order."""
    known = tuple(n for n in shape if n is not None)
    if len(known) < len(shape):
        raise NoForm
    number = ps.float64()
    index = None if variable else np.arange(np.prod(known, dtype=int))
    graph = ps.neq(number, 0.0) if boolean else number
    return _Run(known, graph, {number: _Place(name, index)})


def _static(var: Variable) -> np.ndarray:
    """Return the value of what depends on constants and known lengths alone."""
    if isinstance(var, Constant):
        return var.data
    if var.owner is None:
        raise NoForm
    if isinstance(var.owner.op, Shape) and None not in var.owner.inputs[0].type.shape:
        return np.array(var.owner.inputs[0].type.shape)
    if var.type.ndim > 1 or var.type.dtype != "int64":
        raise NoForm
    inputs = map(_static, var.owner.inputs)
    return performed(var.owner, *inputs)[var.owner.outputs.index(var)]
