"""Log densities of all units at once, with derivatives, by NumPy: nothing is compiled."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from scipy.special import logsumexp

from pymc_subsample.graph.concrete import rebuild
from pymc_subsample.graph.numpy_functions import NumpyFunction, frozen, numpy_function
from pymc_subsample.units.graphs import RowGraph, UnitGraphs
from pymc_subsample.units.quadrature import nodes_of
from pymc_subsample.units.standardised import log_volume
from pymc_subsample.units.stored_rows import PIECE_ROWS
from pymc_subsample.units.unit_arrays import Part, among, by_level, part_of, sums


class UnitFunctions:
    """Functions of shared values, one vector theta, and of the variables of each unit.

    Rows of a unit that are alike are one that counts several times, unless they are `apart`.
    Units are those of `levels`, in this order; variables are of shape (units, size). Values are
    those that samplers move, or with `as_recorded` those of the variables themselves. Where units
    have continuous variables and discrete ones, densities are summed over the states of these,
    whose place among the variables is that of a normal one; `joint` ones are not. Rows are taken
    when they are asked for: those on disk are read then.
    """

    levels: np.ndarray
    _data: list[Part] | None
    _nodes: dict[int, tuple[np.ndarray, np.ndarray]]
    batches: dict[int, Any]  # Of nodes, see `units.node_batches`.

    def __init__(
        self, graphs: UnitGraphs, *, as_recorded: bool = False, apart: bool = False
    ) -> None:
        self.graphs = graphs
        reading = graphs.reading
        values = graphs.shared if as_recorded else reading.values
        self.values = {name: values[name] for name in graphs.shared}
        self.start = reading.model.initial_point()
        self.parts = [graphs.prior, *(rows if apart else rows.merged for rows in graphs.rows)]
        self.part_functions = [PartFunctions(part, graphs, self.values) for part in self.parts]
        ends = np.cumsum([int(np.prod(v.type.shape, dtype=int)) for v in self.values.values()])
        self._slices = [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        self.size = int(ends[-1]) if len(ends) else 0
        self._rest = None if as_recorded else self._rest_functions()
        self._place(np.unique(np.concatenate([rows.index for rows in graphs.rows])))

    def of(self, levels: np.ndarray) -> "UnitFunctions":
        """Return these functions of other units."""
        new = object.__new__(UnitFunctions)
        new.__dict__.update(self.__dict__)
        new._place(levels)
        return new

    def among(self, units: np.ndarray) -> "UnitFunctions":
        """Return these functions of some units, by position, any of them several times."""
        new = object.__new__(UnitFunctions)
        new.__dict__.update(self.__dict__)
        new.levels, new._nodes, new.batches = self.levels[units], {}, {}
        new.__dict__.pop("states", None)
        new._data = [
            among(part, data, units, len(self.levels))
            for part, data in zip(self.parts, self.data, strict=True)
        ]
        return new

    def _place(self, levels: np.ndarray) -> None:
        self.levels, self._nodes, self._data = levels, {}, None
        self.batches = {}
        self.__dict__.pop("states", None)

    @property
    def data(self) -> list[Part]:
        """Rows of all parts."""
        if self._data is None:
            position = self.position
            self._data = [part_of(part, self.levels, position) for part in self.parts]
        return self._data

    @property
    def stored(self) -> bool:
        """Whether rows are on disk."""
        return any(part.stored is not None for part in self.parts)

    def pieces(self) -> list[np.ndarray]:
        """Return positions of units that are evaluated together: all, or of rows on disk some."""
        if not self.stored:
            return [np.arange(len(self.levels))]
        before = np.cumsum(self.n_rows) // PIECE_ROWS
        return np.split(np.arange(len(self.levels)), np.flatnonzero(np.diff(before)) + 1)

    @property
    def active(self) -> np.ndarray | None:
        """Which elements have nodes in each unit, (units, size); None if all have in all."""
        return None if self.graphs.placed is None else self.graphs.placed[self.levels]

    def nodes(self, per_dimension: int) -> tuple[np.ndarray, np.ndarray]:
        """Return nodes of all units and the logarithms of their weights, as `nodes_of` does."""
        if per_dimension not in self._nodes:
            self._nodes[per_dimension] = nodes_of(self.graphs, per_dimension, self.active)
        return self._nodes[per_dimension]

    def joint_nodes(self, per_dimension: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the same of all elements, of discrete ones the states."""
        active = self.graphs.active
        return nodes_of(self.graphs, per_dimension, None if active is None else active[self.levels])

    @cached_property
    def states(self) -> tuple[np.ndarray, np.ndarray] | None:
        """States of discrete elements, (K, units, size), and 0, or -inf where a unit has less.

        None if densities are those of all elements.
        """
        graphs = self.graphs
        if graphs.states is None or graphs.exact:
            return None
        return self.all_states

    @property
    def all_states(self) -> tuple[np.ndarray, np.ndarray]:
        """The same, also where there are no other elements."""
        graphs, shape = self.graphs, (len(self.levels), self.graphs.size)
        has = np.ones(shape, dtype=bool) if graphs.active is None else graphs.active[self.levels]
        return nodes_of(graphs, 1, has & graphs.discrete)

    @property
    def position(self) -> np.ndarray:
        """Position of the unit of each level, -1 where it is none of these."""
        found = np.full(self.graphs.grouping.levels, -1)
        found[self.levels] = np.arange(len(self.levels))
        return found

    @property
    def n_rows(self) -> np.ndarray:
        """Rows of each unit, of all terms."""
        return np.sum([self.counts(k, often=True) for k in range(1, len(self.parts))], axis=0)

    def counts(self, part: int, *, often: bool = False) -> np.ndarray:
        """Return rows of each unit of a part; with `often` as often as they count."""
        if (stored := self.parts[part].stored) is not None:
            return stored.runs.counts(self.levels) if often else stored.counts(self.levels)
        data = self.data[part]
        weights = data.times if often else None
        return np.bincount(data.unit, weights=weights, minlength=len(self.levels)).astype(int)

    def ravel(self, point: dict[str, np.ndarray]) -> np.ndarray:
        """Return shared values as a vector."""
        parts = [np.ravel(point[v.name]) for v in self.values.values()]
        return np.concatenate([*parts, np.zeros(0)]).astype(float)

    def split(self, theta: np.ndarray) -> list[np.ndarray]:
        """Return shared values with their shapes."""
        return [
            theta[s].reshape(v.type.shape).astype(v.type.dtype)
            for s, v in zip(self._slices, self.values.values(), strict=True)
        ]

    def rest(self, theta: np.ndarray) -> float:
        """Return the log density of all that has no local variable."""
        assert self._rest is not None
        return float(self._rest(*self.split(theta))[0])

    def unshrunk(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the same, times the scale of each effect that stays, and its log's gradient.

        Where all effects are alike and their scale is zero, the density itself has a pole.
        """
        assert self._rest is not None
        _, value, *slopes = self._rest(*self.split(theta))
        return float(value), np.concatenate([*map(np.ravel, slopes), np.zeros(0)])

    def log_density(self, theta: np.ndarray, u: np.ndarray) -> np.ndarray:
        """Return the log density of each unit's variables and rows."""
        if self.states is None:
            return self.joint(theta, u)
        logs = [self.joint(theta, at) + log_w for at, log_w in self._in_states(u)]
        return logsumexp(logs, axis=0) + self._of_places(u)

    def joint(self, theta: np.ndarray, u: np.ndarray) -> np.ndarray:
        """Return the log density of each unit's variables, discrete ones too, and rows."""
        return self.log_density_and_rows(theta, u, 0)[0]

    def _in_states(self, u: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        assert self.states is not None
        for values, log_weights in zip(*self.states, strict=True):
            yield np.where(self.graphs.discrete, values, u), log_weights

    def _of_places(self, u: np.ndarray) -> np.ndarray:
        return -0.5 * (u[:, self.graphs.discrete] ** 2).sum(axis=1)

    def log_density_and_rows(
        self, theta: np.ndarray, u: np.ndarray, part: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the joint log density of each unit, and what each row of a part adds to it."""
        values, total, rows = self.split(theta), np.zeros(len(self.levels)), np.zeros(0)
        for k, (compiled, data) in enumerate(zip(self.part_functions, self.data, strict=True)):
            [found] = compiled.log_density(*values, *data.columns, *self._local(compiled, data, u))
            total = total + sums(found, data, len(self.levels))
            if k == part:
                rows = np.broadcast_to(found, data.unit.shape)
        return total, rows

    def derivatives(
        self, theta: np.ndarray, u: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return log densities, gradients (units, size) and Hessians in each unit's variables."""
        if self.states is None:
            return self._joint_derivatives(theta, u)
        each = [(*self._joint_derivatives(theta, at), log_w) for at, log_w in self._in_states(u)]
        logs = np.array([value + log_w for value, _, _, log_w in each])
        total = logsumexp(logs, axis=0)
        shares = np.exp(logs - total)[:, :, None]
        # What rows rule out has no derivatives.
        slopes = np.where(shares > 0, [slope for _, slope, _, _ in each], 0.0)
        slope = (shares * slopes).sum(axis=0)
        curvature = np.einsum("kgi,kgj->gij", shares * (slopes - slope), slopes - slope)
        for share, (_, _, own, _) in zip(shares[..., None], each, strict=True):
            curvature += np.where(share > 0, share * own, 0.0)
        places = np.flatnonzero(self.graphs.discrete)
        slope[:, places] = -u[:, places]
        curvature[:, places, places] = -1.0
        return total + self._of_places(u), slope, curvature

    def _joint_derivatives(
        self, theta: np.ndarray, u: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        values, units, size = self.split(theta), len(self.levels), self.graphs.size
        value, slope, curvature = (
            np.zeros(units),
            np.zeros((units, size)),
            np.zeros((units, size, size)),
        )
        for compiled, data in zip(self.part_functions, self.data, strict=True):
            found = compiled.derivatives(*values, *data.columns, *self._local(compiled, data, u))
            value += sums(found[0], data, units)
            if not compiled.elements:
                continue
            g, h = found[1:]
            for a, i in enumerate(compiled.elements):
                slope[:, i] += sums(g[:, a], data, units)
                for b, j in enumerate(compiled.elements):
                    curvature[:, i, j] += sums(h[:, a, b], data, units)
        return value, slope, curvature

    def slope(self, theta: np.ndarray, u: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the gradient in theta of the sum of units' log densities times weights."""
        if self.states is None:
            return self._joint_slope(theta, u, weights)
        each = list(self._in_states(u))
        logs = np.array([self.joint(theta, at) + log_w for at, log_w in each])
        shares = weights * np.exp(logs - logsumexp(logs, axis=0))
        slopes = [self._joint_slope(theta, at, w) for (at, _), w in zip(each, shares, strict=True)]
        return np.sum(slopes, axis=0)

    def _joint_slope(self, theta: np.ndarray, u: np.ndarray, weights: np.ndarray) -> np.ndarray:
        values, total = self.split(theta), np.zeros(self.size)
        for compiled, data in zip(self.part_functions, self.data, strict=True):
            each = weights[data.unit] * data.times
            local = self._local(compiled, data, u)
            found = compiled.slope(each, *values, *data.columns, *local)
            total += np.concatenate([*map(np.ravel, found), np.zeros(0)])
        return total

    def without_level(self, name: str, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which rows of a term have no unit, and their log-likelihoods."""
        chosen, each = [np.zeros(0, dtype=int)], [np.zeros(0)]
        for called, rows, compiled in self._without_level:
            if called == name and rows.chosen is not None:
                columns = [c.array for c in rows.columns.values()]
                [values] = compiled.log_density(*self.split(theta), *columns)
                chosen.append(rows.chosen)
                each.append(np.broadcast_to(values, rows.chosen.shape))
        return np.concatenate(chosen), np.concatenate(each)

    @cached_property
    def _without_level(self) -> list[tuple[str, RowGraph, "PartFunctions"]]:
        return [
            (name, rows, PartFunctions(rows, self.graphs, self.values))
            for name, rows in self.graphs.others
        ]

    def _local(self, compiled: "PartFunctions", data: Part, u: np.ndarray) -> list[np.ndarray]:
        return [by_level(self.graphs, name, u[data.unit]) for name in compiled.local]

    def _rest_functions(self) -> NumpyFunction:
        graphs, reading = self.graphs, self.graphs.reading
        terms = [t.graph for i, t in enumerate(reading.terms) if i not in graphs.grouping.index]
        priors = [reading.priors[name] for name in self.values]
        total = sum((g.sum() for g in [*priors, *terms, *self._others()]), pt.constant(0.0))
        effects = [n for n in self.values if n in reading.forms]
        scales = sum((log_volume(reading, n, self.values[n]) for n in effects), total)
        inputs, both = list(self.values.values()), [total, scales]
        both = frozen(both, reading.arrays)
        return numpy_function(inputs, [*both, *_gradients(both[1], inputs)])

    def _others(self) -> list[Variable]:
        """Return rows of units' terms that have no unit, over values."""
        constrained, shared = self.graphs.reading.constrained, self.graphs.shared
        memo = {v: constrained[name] for name, v in shared.items()}
        found = []
        for _, rows in self.graphs.others:
            data = {v: pt.constant(c.array) for v, c in rows.columns.items()}
            found += rebuild([rows.output], memo | data)
        return found


class PartFunctions:
    """Functions of the rows of one graph."""

    def __init__(self, part: RowGraph, graphs: UnitGraphs, values: dict[str, Variable]) -> None:
        constrained = graphs.reading.constrained
        memo = {v: constrained[name] for name, v in graphs.shared.items() if values[name] is not v}
        [output] = rebuild([part.output], memo)
        shared = list(values.values())
        self.local = list(part.local.values())
        local = list(part.local)
        self.elements = elements(graphs, continuous(graphs, self.local))
        inputs = [*shared, *part.columns, *local]
        self.log_density = numpy_function(inputs, [output])
        weights = pt.vector("weights")
        # Where the prior has no shared variables, its gradient is zero.
        slopes = _gradients((weights * output).sum(), shared)
        self.slope = numpy_function([weights, *inputs], slopes)
        self.inputs, self._graphs = inputs, graphs
        self.output, self._part = output, replace(part, output=output)

    def row_derivatives(self) -> tuple[list[Variable], list[list[Variable]]]:
        """Return graphs of derivatives in the elements of the row's local variables."""
        return row_derivatives(self._graphs, self._part)[1:]

    @cached_property
    def derivatives(self) -> NumpyFunction:
        """Log densities, and derivatives in the row's local variables: (n, a) and (n, a, a)."""
        if not self.elements:
            return numpy_function(self.inputs, [self.output])
        slopes, curvatures = self.row_derivatives()
        each = [pt.stack(row, axis=1) for row in curvatures]
        return numpy_function(
            self.inputs, [self.output, pt.stack(slopes, axis=1), pt.stack(each, axis=1)]
        )


def elements(graphs: UnitGraphs, names: Iterable[str]) -> list[int]:
    """Return where elements of some variables are among those of a level."""
    places = graphs.places
    return [i for n in names for i in range(places[n].start, places[n].stop)]


def continuous(graphs: UnitGraphs, names: Iterable[str]) -> list[str]:
    """Return those of some variables that are not discrete."""
    places, discrete = graphs.places, graphs.discrete
    return [n for n in names if not discrete[places[n]].any()]


def row_derivatives(
    graphs: UnitGraphs, part: RowGraph
) -> tuple[list[int], list[Variable], list[list[Variable]]]:
    """Return derivatives of rows in their own local variables, as vectors, and which these are.

    Rows are independent, so that the gradient of their sum has that of each.
    """
    names = continuous(graphs, part.local.values())
    local = [v for v, name in part.local.items() if name in names]
    slopes = _each(graphs, names, _gradients(part.output.sum(), local))
    curvatures = [_each(graphs, names, _gradients(slope.sum(), local)) for slope in slopes]
    return elements(graphs, names), slopes, curvatures


def _each(graphs: UnitGraphs, names: Sequence[str], slopes: Sequence[Variable]) -> list[Variable]:
    """Take gradients of some variables apart by elements of a level."""
    found = []
    for name, slope in zip(names, slopes, strict=True):
        rows_first = pt.moveaxis(slope, graphs.grouping.own[name], 0)
        found += [rows_first[(slice(None), *i)] for i in np.ndindex(graphs.shapes[name])]
    return found


def _gradients(total: Variable, inputs: Sequence[Variable]) -> list[Variable]:
    above = set(ancestors([total]))
    known = [v for v in inputs if v in above]
    slopes = iter(pt.grad(total, known, disconnected_inputs="ignore") if known else [])
    return [next(slopes) if v in above else pt.zeros_like(v) for v in inputs]
