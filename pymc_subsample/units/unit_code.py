"""Log densities of units, with derivatives, as compiled code: for draws, which are many.

What rows read of data and of shared values alone is evaluated by NumPy, once for each theta. What
they do with local variables is code in a loop over the rows of each unit.
"""

from collections.abc import Sequence
from contextlib import suppress
from math import prod
from typing import Self

import numpy as np
import pytensor.scalar as ps
from numba import types
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.shape import Shape, Shape_i

from pymc_subsample.compiled.functions import (
    INDEX,
    MATRIX,
    VECTOR,
    Compiled,
    building_graphs,
    compile_source,
)
from pymc_subsample.expansion.fusion import ScalarFunction, fused, row_graph
from pymc_subsample.graph.concrete import depends_on
from pymc_subsample.graph.interpreter import NoForm, array_of
from pymc_subsample.graph.numpy_functions import NumpyFunction, numpy_function
from pymc_subsample.units.modes import Modes
from pymc_subsample.units.unit_densities import PartFunctions, UnitFunctions

# Beyond so many operations of a row, at 1.5 ms each, code takes longer to compile than draws of
# small panels take without.
_MOST_OPERATIONS = 300
# Of differences, in standard deviations of a unit: a choice, since they only place proposals. A
# curvature of one is then off by 1e-8 from rounding of a log density of 10,000.
_STEP = 0.01


class Densities:
    """Log densities of units at one theta at a time, by NumPy."""

    def __init__(self, functions: UnitFunctions) -> None:
        self.functions = functions

    def at(self, theta: np.ndarray) -> Self:
        """Return these at a theta, and no longer at the one before."""
        self._theta = theta
        return self

    def log_density(self, units: np.ndarray, u: np.ndarray) -> np.ndarray:
        """Return those of some units, by position, any of them several times, at u, (n, size)."""
        everyone = np.array_equal(units, np.arange(len(self.functions.levels)))
        some = self.functions if everyone else self.functions.among(units)
        return some.log_density(self._theta, u)

    def derivatives(self, modes: Modes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what `UnitFunctions.derivatives` does, of all units at their modes.

        In one dimension by differences: densities at three places take less time.
        """
        units, size = modes.m.shape
        if size > 1:
            return self.functions.derivatives(self._theta, modes.m)
        step = _STEP * modes.S[:, 0, 0]
        near = np.concatenate([modes.m + k * step[:, None] for k in (-1, 0, 1)])
        before, value, after = self.log_density(np.tile(np.arange(units), 3), near).reshape(3, -1)
        slope, curvature = (after - before) / (2 * step), (after - 2 * value + before) / step**2
        # None beside a bound of what is possible.
        slope, curvature = (np.where(np.isfinite(x), x, 0.0) for x in (slope, curvature))
        return value, slope[:, None], curvature[:, None, None]


class UnitCode:
    """Functions ``(units, u, shared, out, starts, times, numbers, ...)``, the last three by part.

    They add what the rows of units have to ``out``, one with log densities and one with their
    derivatives too. Raises `NoForm` if a row's graph has no scalar form, or is long.
    """

    def __init__(self, functions: UnitFunctions) -> None:
        size = functions.graphs.size
        with building_graphs():
            self.parts = [PartCode(functions, part) for part in functions.part_functions]
        values = [(part.value, [[0]]) for part in self.parts]
        every = [(part.every, part.places(size)) for part in self.parts]
        self.density = self._compiled("density", values)
        self.derivatives = self._compiled("derivatives", every)

    def _compiled(
        self, name: str, rows: Sequence[tuple[ScalarFunction, Sequence[Sequence[int]]]]
    ) -> Compiled:
        """Compile a function of rows' functions, and the places of each of their outputs."""
        environment: dict[str, object] = {}
        arguments, lines, first = ["units", "u", "shared", "out"], [], 0
        for p, (part, (row, places)) in enumerate(zip(self.parts, rows, strict=True)):
            arguments += [f"starts{p}", f"times{p}", f"numbers{p}"]
            environment[f"row{p}"] = row.row
            hoisted = [f"h{p}_{k}" for k in range(row.n_hoisted)]
            if row.hoist is not None:
                environment[f"hoist{p}"] = row.hoist
                given = ", ".join(f"shared[{first + k}]" for k in row.used_shared)
                lines.append(f"    {', '.join(hoisted)} = hoist{p}({given})")
            first += part.n_shared
            given = ", ".join([*(part.codes[k].format(p) for k in row.used), *hoisted])
            outputs = range(len(places))
            lines += [
                "    for k in range(units.shape[0]):",
                f"        {' = '.join(f's{o}' for o in outputs)} = 0.0",
                f"        for i in range(starts{p}[units[k]], starts{p}[units[k] + 1]):",
                f"            {', '.join(f'y{o}' for o in outputs)} = row{p}({given})",
                *(f"            s{o} += times{p}[i] * y{o}" for o in outputs),
                *(f"        out[k, {c}] += s{o}" for o in outputs for c in places[o]),
            ]
        source = "\n".join([f"def {name}({', '.join(arguments)}):", *lines])
        signature = types.void(
            INDEX, MATRIX, VECTOR, MATRIX, *[INDEX, VECTOR, MATRIX] * len(self.parts)
        )
        keys = [row.key for row, _ in rows]
        key = None if None in keys else "|".join(map(str, keys))
        return compile_source(name, source, environment, signature, key)


class PartCode:
    """A row of one graph as scalar functions, and what NumPy evaluates for them.

    Of what these read, some is `fixed`, of data alone, and some `moving`, with theta; each has rows
    of a matrix in which columns are rows of data, or is shared by all of them.
    """

    def __init__(self, functions: UnitFunctions, part: PartFunctions) -> None:
        graphs, self._elements = functions.graphs, part.elements
        slopes, curvatures = part.row_derivatives()
        upper = [x for a, row in enumerate(curvatures) for x in row[a:]]
        fgraph = row_graph(part.inputs, [part.output, *slopes, *upper])
        n_theta, n_given = len(functions.values), len(part.inputs) - len(part.local)
        theta, given, local = (
            fgraph.inputs[:n_theta], fgraph.inputs[:n_given], fgraph.inputs[n_given:]
        )  # fmt: skip
        known: dict[Variable, np.ndarray] = {}
        varying, shared = list[Variable](), list[Variable]()
        self.codes: list[str] = []  # Of what varies, where it stands.
        for v, name in zip(local, part.local, strict=True):
            place = graphs.places[name]
            own = [ps.float64() for _ in range(place.start, place.stop)]
            known[v] = _row_of(own, graphs.shapes[name], graphs.grouping.own[name])
            varying += own
            self.codes += [f"u[k, {e}]" for e in range(place.start, place.stop)]
        self.width = 0
        fixed, moving = dict[Variable, MatrixRows](), dict[Variable, MatrixRows]()
        for v in _read_with(fgraph.outputs, local):
            axes = [a for a, n in enumerate(v.type.shape) if n is None]
            if len(axes) > 1:
                raise NoForm
            shape = [n for n in v.type.shape if n is not None]
            own = [ps.float64() for _ in range(prod(shape))]
            values = [ps.neq(x, 0.0) for x in own] if v.type.dtype == "bool" else own
            if not axes:
                known[v], moving[v] = array_of(values, shape), None
                shared += own
                continue
            known[v] = _row_of(values, shape, axes[0])
            rows = range(self.width, self.width + len(own))
            still = set(theta).isdisjoint(ancestors([v]))
            (fixed if still else moving)[v] = axes[0], slice(rows.start, rows.stop)
            varying += own
            self.codes += [f"numbers{{0}}[{row}, i]" for row in rows]
            self.width = rows.stop
        self.n_shared = len(shared)
        self.value = fused(fgraph.outputs[:1], known, varying, shared)
        self.every = fused(fgraph.outputs, known, varying, shared)
        if self.every.n_operations > _MOST_OPERATIONS:
            raise NoForm
        self.fixed = numpy_function(given[n_theta:], list(fixed)), list(fixed.values())
        self.moving = numpy_function(given, list(moving)), list(moving.values())

    def places(self, size: int) -> list[list[int]]:
        """Return where outputs go in a value, a gradient and a matrix of all elements."""
        own = self._elements
        pairs = [(i, j) for a, i in enumerate(own) for j in own[a:]]
        both = [{size * i + j, size * j + i} for i, j in pairs]
        return [[0], *([1 + i] for i in own), *([1 + size + k for k in sorted(x)] for x in both)]


# An axis of rows, and rows of the matrix; None if it is shared.
type MatrixRows = tuple[int, slice] | None


def _row_of(elements: Sequence[Variable], shape: Sequence[int], axis: int) -> np.ndarray:
    """Return elements as an array of one row, along an axis."""
    return np.moveaxis(array_of(elements, (1, *shape)), 0, axis)


def _read_with(outputs: Sequence[Variable], local: Sequence[Variable]) -> list[Variable]:
    """Return what does not depend on local variables, and is read with them.

    Lengths are none of it: in code they are those of one row.
    """
    nodes = list(toposort(outputs))
    lengths = [v for n in nodes if isinstance(n.op, Shape | Shape_i) for v in n.outputs]
    inside = depends_on(outputs, [*local, *lengths])
    read = [i for n in nodes if n.outputs[0] in inside for i in n.inputs]
    both = dict.fromkeys([*read, *outputs])
    return [v for v in both if v not in inside and not isinstance(v, Constant)]


class CompiledDensities(Densities):
    """Log densities of units at one theta at a time, by compiled code."""

    def __init__(self, functions: UnitFunctions, code: UnitCode) -> None:
        super().__init__(functions)
        self._code, self._arguments = code, list[np.ndarray]()
        ends = np.arange(len(functions.levels) + 1)
        for part, data in zip(code.parts, functions.data, strict=True):
            numbers = np.empty((part.width, len(data.unit)))
            _fill(numbers, part.fixed, data.columns)
            times = data.times.astype(float)
            self._arguments += [np.searchsorted(data.unit, ends), times, numbers]

    def at(self, theta: np.ndarray) -> Self:
        """Return these at a theta, and no longer at the one before."""
        values, shared = self.functions.split(theta), [np.zeros(0)]
        parts = zip(self._code.parts, self.functions.data, self._arguments[2::3], strict=True)
        for part, data, numbers in parts:
            shared += _fill(numbers, part.moving, [*values, *data.columns])
        self._shared = np.concatenate(shared)
        return self

    def log_density(self, units: np.ndarray, u: np.ndarray) -> np.ndarray:
        """Return those of some units, by position, any of them several times, at u, (n, size)."""
        return self._sums(self._code.density, units, u, 1)[:, 0]

    def derivatives(self, modes: Modes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what `UnitFunctions.derivatives` does, of all units at their modes."""
        units, size = modes.m.shape
        found = self._sums(self._code.derivatives, np.arange(units), modes.m, 1 + size + size**2)
        return found[:, 0], found[:, 1 : 1 + size], found[:, 1 + size :].reshape(-1, size, size)

    def _sums(self, function: Compiled, units: np.ndarray, u: np.ndarray, n: int) -> np.ndarray:
        out = np.zeros((len(units), n))
        function(units, np.ascontiguousarray(u), self._shared, out, *self._arguments)
        return out


def _fill(
    numbers: np.ndarray,
    evaluated: tuple[NumpyFunction, Sequence[MatrixRows]],
    inputs: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """Put what rows read in its place; return what they share."""
    function, places = evaluated
    shared = []
    for place, value in zip(places, function(*inputs) if places else [], strict=True):
        if place is None:
            shared.append(np.ravel(value).astype(float))
        else:
            axis, rows = place
            numbers[rows] = np.moveaxis(value, axis, -1).reshape(rows.stop - rows.start, -1)
    return shared


def code_of(functions: UnitFunctions) -> UnitCode | None:
    """Return the code of units; None if there is none, as for sums over states."""
    if functions.graphs.states is not None:
        return None
    with suppress(NoForm):
        return UnitCode(functions)
    return None


def densities(functions: UnitFunctions, code: UnitCode | None) -> Densities:
    """Return log densities of units, by their code if there is any."""
    return Densities(functions) if code is None else CompiledDensities(functions, code)
