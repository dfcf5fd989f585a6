"""Graphs of small arrays as statements about their elements; see `schedule`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import prod
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.tensor.basic import AllocEmpty
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import MulWithoutZeros
from pytensor.tensor.subtensor import unflatten_index_variables

from pymc_subsample.expansion.schedule import (
    MOST_KNOWN,
    STORE,
    Place,
    Run,
    Statement,
    known,
)
from pymc_subsample.graph.interpreter import (
    Interpreter,
    Merge,
    Move,
    NoForm,
    indexed_axes,
)

# Where a reduction begins, and how an element enters. NaN stays, as it does not with `max`.
_REDUCTIONS = {
    ps.Add: ("0.0", "{target} += {0}"),
    ps.Mul: ("1.0", "{target} *= {0}"),
    MulWithoutZeros: (
        "0.0",
        "if {0} != 0.0:\n    {target} = {0} if {target} == 0.0 else {target} * {0}",
    ),
    ps.ScalarMaximum: ("-np.inf", "{target} = np.maximum({target}, {0})"),
    ps.ScalarMinimum: ("np.inf", "{target} = np.minimum({target}, {0})"),
    ps.OR: ("0.0", "{target} = np.maximum({target}, {0})"),
    ps.AND: ("1.0", "{target} = np.minimum({target}, {0})"),
}
_EXTREMES = (ps.ScalarMaximum, ps.ScalarMinimum)
# Operations of a graph that is computed once, where several nodes need it: where these are in one
# loop it is in no memory.
_MANY = 3


class Statements(Interpreter[Run]):
    """Statements that compute the outputs of a graph; see `schedule`."""

    def __init__(
        self,
        fgraph: FunctionGraph,
        given: Mapping[Variable, Run],
        varying: Iterable[str] = (),
    ) -> None:
        super().__init__(given)
        self.statements: list[Statement] = []
        self.constants: dict[str, np.ndarray] = {}
        self._clients = fgraph.clients
        self._varying = set(varying)
        self._names = count()
        self.evaluate(fgraph.outputs)

    def store(self, run: Run, target: Place, varies: bool = False) -> None:
        """Compute elements of an array."""
        self._add(STORE, target, run, varies=varies)

    def _add(
        self, line: str, target: Place, *values: Run, varies: bool = False, **how: Any
    ) -> None:
        varies |= any(map(self._varies, values))
        varies |= any(name in self._varying for name in (target.name, *how.get("reads", ())))
        if varies:
            self._varying.add(target.name)
        values = tuple(
            self._stored(v) if varies and v.operations and not self._varies(v) else v
            for v in values
        )
        self.statements.append(Statement(target, line, values, varies, **how))

    def _varies(self, run: Run) -> bool:
        return any(p.name in self._varying for p in run.places.values())

    # The domain

    def _results(self, node: Apply) -> list[Run]:
        op, [out, *_] = node.op, node.outputs
        if isinstance(op, AllocEmpty) and None not in out.type.shape:
            return [self._moved(Run((), ps.constant(0.0)), lambda x: np.full(out.type.shape, x))]
        if isinstance(op, CumOp):
            return [self._accumulated(op, self.value(node.inputs[0]))]
        return [
            self._stored(run) if run.operations >= self._most(v) else run
            for v, run in zip(node.outputs, super()._results(node), strict=True)
        ]

    def _most(self, var: Variable) -> float:
        """Return the operations from which on a variable is computed once, where several need it.

        What is compared with the largest of its elements must be the same number to the last bit,
        which it is not in two loops, of which one may round a product that the other does not.
        """
        clients = [getattr(node.op, "scalar_op", None) for node, _ in self._clients[var]]
        if len(clients) == 1:
            return np.inf
        return 1 if any(isinstance(op, _EXTREMES) for op in clients) else _MANY

    def _data(self, array: np.ndarray) -> Run:
        if array.size and np.all(array == array.flat[0]):
            return Run(array.shape, ps.constant(array.flat[0].item(), dtype=array.dtype.name))
        values = np.ascontiguousarray(array, dtype=float).ravel()
        name = f"{known(values)[0]}[{{}}]"
        self.constants[name] = values
        return in_memory(name, array.shape, array.dtype.name)

    def _shape(self, run: Run) -> tuple[int, ...]:
        return run.shape

    def _literal(self, var: Variable) -> np.ndarray | np.generic:
        run = self.value(var)
        numbers = self._numbers(run)
        if numbers is None:
            raise NoForm
        numbers = numbers.astype(var.type.dtype)
        return numbers.reshape(run.shape) if run.shape else numbers[0]

    def _numbers(self, run: Run) -> np.ndarray | None:
        """Return elements that are known."""
        if isinstance(run.graph, Constant):
            return np.full(run.size, run.graph.data)
        if run.operations or run.place.name not in self.constants:
            return None
        return self.constants[run.place.name][run.place.index]

    def _moved(self, run: Run, function: Move) -> Run:
        moved = run.moved(function)
        if run.operations and run.size < moved.size:
            return self._stored(run).moved(function)
        return moved

    def _merged(self, runs: Sequence[Run], function: Merge) -> Run:
        starts = np.cumsum([0, *(run.size for run in runs)])
        order = function(
            [s + np.arange(r.size).reshape(r.shape) for r, s in zip(runs, starts, strict=False)]
        )
        numbers = [self._numbers(r) for r in runs]
        dtype = ps.upcast(*(r.graph.type.dtype for r in runs))
        if all(n is not None for n in numbers):
            every = np.concatenate([n for n in numbers if n is not None])
            return self._data(every[order].astype(dtype))
        together = _side_by_side(runs)
        if together is not None:
            return together.moved(lambda x: x[order.ravel()].reshape(order.shape))
        where = np.argsort(order.ravel(), kind="stable")
        result = self._new(order.shape, dtype)
        place = result.place
        if any(map(self._varies, runs)):
            self._varying.add(place.name)
        for run, start in zip(runs, starts, strict=False):
            if run.size:
                self.store(run, Place(place.name, where[start : start + run.size]))
        return result

    def _elementwise(self, op: Op, runs: Sequence[Run]) -> list[Run]:
        shape = np.broadcast_shapes(*(run.shape for run in runs))
        places: dict[Variable, Place] = {}
        graphs = []
        varies = any(map(self._varies, runs))
        for run in runs:
            if varies and run.operations and not self._varies(run):
                run = self._stored(run)
            if run.shape != shape:
                run = self._moved(run, lambda x: np.broadcast_to(x, shape))
            run = run.apart(places)
            places |= run.places
            graphs.append(run.graph)
        made = op.make_node(*graphs).outputs
        if op.nout == 1 and all(isinstance(g, Constant) for g in graphs):
            value = op.impl(*(g.data for g in graphs))
            return [Run(shape, ps.constant(value, dtype=made[0].type.dtype))]
        operations = 1 + sum(run.operations for run in runs)
        return [Run(shape, out, places, operations) for out in made]

    def _reduced(self, op: Op, run: Run, axes: Sequence[int]) -> Run:
        shape = tuple(n for a, n in enumerate(run.shape) if a not in axes)
        if prod(shape) == run.size:
            return run.moved(lambda x: x.reshape(shape))
        if type(op) not in _REDUCTIONS:
            raise NoForm
        if not run.size and op.identity is not None:
            return Run(shape, ps.constant(op.identity, dtype=run.graph.type.dtype))
        start, line = _REDUCTIONS[type(op)]
        result = self._new(shape, run.graph.type.dtype)
        place = result.place
        repeated = np.arange(result.size).reshape(
            [1 if a in axes else n for a, n in enumerate(run.shape)]
        )
        if place.index is not None:
            place = Place(place.name, np.broadcast_to(repeated, run.shape).ravel())
        self._add(line, place, run, start=start)
        return result

    def _accumulated(self, op: CumOp, run: Run) -> Run:
        length = run.size if op.axis is None else run.shape[op.axis]
        if op.mode != "add" or run.size != length:
            raise NoForm
        # NumPy's type: that of the graph would be too small for sums of small integers.
        dtype = np.cumsum(np.empty(0, run.graph.type.dtype)).dtype.name
        result, total = self._new((length,), dtype), self._new(())
        place, sum_of = result.place, total.place
        zero = Run((), ps.constant(0.0))
        self.store(zero, sum_of, varies=self._varies(run))
        line = f"{sum_of.name} += {{0}}\n{{target}} = {sum_of.name}"
        self._add(line, place, run, reads=(sum_of.name,))
        return result if op.axis is None else result.moved(lambda x: x.reshape(run.shape))

    def _product(self, a: Run, b: Run) -> Run:
        if a.size * (b.shape[-1] if len(b.shape) > 1 else 1) > MOST_KNOWN:
            raise NoForm
        return super()._product(*(self._stored(x) if x.operations else x for x in (a, b)))

    def _increased(self, node: Apply) -> Run:
        x, y = map(self.value, node.inputs[:2])
        if getattr(node.op, "ignore_duplicates", False):
            raise NoForm
        try:
            index = [self._literal(i) for i in node.inputs[2:]]
        except NoForm:
            return self._put(node, x, y)
        entries = tuple(unflatten_index_variables(index, node.op.idx_list))
        where = np.asarray(np.arange(x.size).reshape(x.shape)[entries])
        y = self._moved(y, lambda array: np.broadcast_to(array, where.shape))
        result = self._stored(x, varies=self._varies(y))
        place = result.place
        if place.index is not None:
            place = Place(place.name, where.ravel())
        sign = "=" if node.op.set_instead_of_inc else "+="
        self._add(f"{{target}} {sign} {{0}}", place, y, follows=True)
        return result

    # Positions that are not known beforehand

    def _picked(self, node: Apply) -> Run:
        table, *index = node.inputs
        at, n_rest, where = self._positions(self.value(table), index, node.op.idx_list)
        stored = self._in_order(self.value(table))
        result = self._new(at.shape, stored.graph.type.dtype)
        place, source = result.place, stored.place
        element = source.name.format("int({0})")
        line = f"{{target}} = {element} if {{0}} >= 0.0 else np.nan"
        self._add(line, place, at, reads=(source.name,))
        ndim = len(at.shape) - n_rest
        return result.moved(lambda x: np.moveaxis(x, range(ndim), range(where, where + ndim)))

    def _put(self, node: Apply, x: Run, y: Run) -> Run:
        at, n_rest, where = self._positions(x, node.inputs[2:], node.op.idx_list)
        ndim = len(at.shape) - n_rest
        at = at.moved(lambda i: np.moveaxis(i, range(ndim), range(where, where + ndim)))
        y = self._moved(y, lambda array: np.broadcast_to(array, at.shape))
        result = self._stored(x, array=True, varies=self._varies(y) or self._varies(at))
        place = result.place
        sign = "=" if node.op.set_instead_of_inc else "+="
        line = f"if {{0}} >= 0.0:\n    {place.name.format('int({0})')} {sign} {{1}}"
        self._add(line, Place(place.name, None), at, y, follows=True)
        return result

    def _positions(
        self, table: Run, index: Sequence[Variable], listed: Sequence
    ) -> tuple[Run, int, int]:
        """Return positions in a table, -1 where there is none.

        Their axes are those of the index, then those of the table that are kept; how many of these
        there are, and which axis of the table comes first.
        """
        entries = unflatten_index_variables(list(index), listed)
        where = indexed_axes(entries)
        rest = [n for a, n in enumerate(table.shape) if a not in where]
        order = np.arange(table.size).reshape(table.shape)
        starts = np.moveaxis(order, where, range(len(where)))[(0,) * len(where)]
        runs = [self.value(entries[a]) for a in where]
        shape = np.broadcast_shapes(*(r.shape for r in runs))
        total, valid = self._data(starts.astype(float)), self._data(np.array(True))
        for a, run in zip(where, runs, strict=True):
            run = self._moved(run, lambda x: np.broadcast_to(x, shape))
            run = run.moved(lambda x: x.reshape(shape + (1,) * len(rest)))
            length, stride = table.shape[a], prod(table.shape[a + 1 :])
            [run] = self._elementwise(ps.Cast(ps.float64), [run])
            numbers = {n: self._data(np.array(float(n))) for n in (0, length, stride)}
            [negative] = self._elementwise(ps.lt, [run, numbers[0]])
            [wrapped] = self._elementwise(ps.add, [run, numbers[length]])
            [run] = self._elementwise(ps.switch, [negative, wrapped, run])
            for op, bound in ((ps.ge, 0), (ps.lt, length)):
                [inside] = self._elementwise(op, [run, numbers[bound]])
                [valid] = self._elementwise(ps.and_, [valid, inside])
            [part] = self._elementwise(ps.mul, [run, numbers[stride]])
            [total] = self._elementwise(ps.add, [total, part])
        nowhere = self._data(np.array(-1.0))
        [total] = self._elementwise(ps.switch, [valid, total, nowhere])
        return total, len(rest), where[0]

    # Memory

    def _new(self, shape: tuple[int, ...], dtype: str = "float64", array: bool = False) -> Run:
        """Make room for numbers; one of them is a variable, unless it is to be an `array`."""
        name = f"t{next(self._names)}_"
        variable = prod(shape) == 1 and not array
        return in_memory(name if variable else f"{name}[{{}}]", shape, dtype)

    def _stored(self, run: Run, array: bool = False, varies: bool = False) -> Run:
        """Compute elements beforehand."""
        result = self._new(run.shape, run.graph.type.dtype, array)
        self.store(run, result.place, varies)
        return result

    def _in_order(self, run: Run) -> Run:
        """Return elements in an array of their own, unless they are in one from its beginning."""
        if not run.operations and len(run.places) == 1:
            index = run.place.index
            if index is not None and np.array_equal(index, np.arange(run.size)):
                return run
        return self._stored(run, array=True)


def in_memory(name: str, shape: Sequence[int | None], dtype: str) -> Run:
    """Return numbers that are in memory in their order: an array, if its name has a gap."""
    shape = lengths(shape)
    place = Place(name, np.arange(prod(shape)) if "{" in name else None)
    return Run(shape, *number(place, dtype))


def number(place: Place, dtype: str) -> tuple[Variable, dict[Variable, Place]]:
    """Return a number in memory as a scalar of a type, and where it is."""
    x = ps.float64()
    match dtype:
        case "bool":
            graph = ps.neq(x, 0.0)
        case _ if dtype.startswith("float"):
            graph = x
        case _:
            graph = ps.cast(x, dtype)
    return graph, {x: place}


def lengths(shape: Sequence[int | None]) -> tuple[int, ...]:
    """Return lengths of axes, which must be known."""
    found = tuple(n for n in shape if n is not None)
    if len(found) < len(shape):
        raise NoForm
    return found


def _side_by_side(runs: Sequence[Run]) -> Run | None:
    """Return runs that are in one array, unchanged, as one."""
    if any(r.operations or list(r.places) != [r.graph] for r in runs):
        return None
    first, *others = (r.place for r in runs)
    if any(p.index is None or p.name != first.name for p in (first, *others)):
        return None
    index = np.concatenate([p.index for p in (first, *others)])
    return replace(runs[0], shape=index.shape, places={runs[0].graph: Place(first.name, index)})
