"""Linear predictors: where the log-likelihood of a row sees the parameters.

Most models touch their parameters only through a few numbers per row that are affine in phi,
eta_i = o_i + z_i' phi, and through a few scalars shared by all rows. The batch graph is evaluated
here on arrays of symbolic affine forms, with plain NumPy semantics and a row axis of length one;
the maximal affine variables are the predictors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Alloc, Join
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor, unflatten_index_variables

from pymc_subsample.likelihood.batch import BatchGraph
from pymc_subsample.likelihood.graph import elemwise_name


@dataclass(frozen=True)
class Column:
    """One number per row: element `element` (flat, row axis dropped) of a data-only variable."""

    var: Variable
    axis: int
    element: int

    def graph(self) -> Variable:
        """Return the column as a vector over rows."""
        return pt.moveaxis(self.var, self.axis, 0).reshape((self.var.shape[self.axis], -1))[
            :, self.element
        ]

    def times(self, other: "Column | None") -> "Column":
        """Return the product with another column."""
        return self if other is None else Column(self.graph() * other.graph(), 0, 0)


@dataclass(frozen=True)
class Term:
    """scale * coefficient_i * phi[index + group_i]."""

    index: int
    scale: float = 1.0
    coefficient: Column | None = None
    group: Column | None = None


class NotAffine(Exception):
    """The variable is not affine in phi with data-only coefficients."""


@dataclass(frozen=True)
class Affine:
    """Sum of terms, of data columns and of a constant."""

    terms: tuple[Term, ...] = ()
    offsets: tuple[tuple[float, Column], ...] = ()
    constant: float = 0.0

    def __add__(self, other: "Affine") -> "Affine":
        return Affine(
            self.terms + other.terms, self.offsets + other.offsets, self.constant + other.constant
        )

    def scaled(self, factor: float) -> "Affine":
        return Affine(
            tuple(replace(t, scale=t.scale * factor) for t in self.terms),
            tuple((s * factor, c) for s, c in self.offsets),
            self.constant * factor,
        )

    def __mul__(self, other: "Affine") -> "Affine":
        for a, b in ((self, other), (other, self)):
            if not a.terms and not a.offsets:
                return b.scaled(a.constant)
        for a, b in ((self, other), (other, self)):
            if not a.terms and len(a.offsets) == 1 and not a.constant:
                [(scale, column)] = a.offsets
                terms = tuple(
                    replace(t, coefficient=column.times(t.coefficient), scale=t.scale * scale)
                    for t in b.terms
                )
                offsets = tuple((s * scale, column.times(c)) for s, c in b.offsets)
                if b.constant:
                    offsets += ((b.constant * scale, column),)
                return Affine(terms, offsets)
        raise NotAffine

    def reciprocal(self) -> "Affine":
        if self.terms or self.offsets or not self.constant:
            raise NotAffine
        return Affine(constant=1 / self.constant)


@dataclass(frozen=True)
class Predictor:
    """A maximal affine variable of the batch graph and its affine forms (one per element).

    `axis` carries the rows; a `shared` predictor has length one there and equals the same
    parameters in every row.
    """

    var: Variable
    axis: int
    shared: bool
    forms: np.ndarray


class AffineAlgebra:
    """Evaluates variables of a batch graph as arrays of `Affine` forms."""

    def __init__(
        self,
        graph: BatchGraph,
        offsets: Mapping[Variable, int],
        minimum: Callable[[Column], float],
    ):
        self.axes = graph.axes
        self.minimum = minimum
        self.columns = graph.columns
        self.offsets = offsets
        self._known: dict[Variable, np.ndarray | None] = {}

    def forms(self, var: Variable) -> np.ndarray | None:
        """Return the affine forms of `var`, row axis kept with length one, or None."""
        if var not in self._known:
            try:
                self._known[var] = self._evaluate(var)
            except NotAffine:
                self._known[var] = None
        return self._known[var]

    def _evaluate(self, var: Variable) -> np.ndarray:
        if isinstance(var, Constant):
            return _constants(var.data)
        if var in self.offsets:
            start = self.offsets[var]
            size = int(np.prod(var.type.shape, dtype=int))
            return _objects([Affine((Term(start + i),)) for i in range(size)], var.type.shape)
        if var in self.columns:
            axis = self.axes[var]
            shape = [1 if i == axis else s for i, s in enumerate(var.type.shape)]
            size = int(np.prod(shape, dtype=int))
            return _objects(
                [Affine(offsets=((1.0, Column(var, axis, i)),)) for i in range(size)], shape
            )
        if var.owner is None:
            raise NotAffine
        return self._apply(var.owner)

    def _inputs(self, variables) -> list[np.ndarray]:
        forms = [self.forms(v) for v in variables]
        if any(f is None for f in forms):
            raise NotAffine
        return forms  # type: ignore[return-value]

    def _apply(self, node) -> np.ndarray:
        op = node.op
        if isinstance(op, Elemwise):
            return self._elemwise(node)
        if isinstance(op, DimShuffle):
            [x] = self._inputs(node.inputs)
            kept = [i for i in op.new_order if i != "x"]
            x = x.transpose([*kept, *(i for i in range(x.ndim) if i not in kept)])
            return x.reshape([x.shape[kept.index(i)] if i != "x" else 1 for i in op.new_order])
        if isinstance(op, Sum):
            [x] = self._inputs(node.inputs)
            axes = tuple(range(x.ndim)) if op.axis is None else op.axis
            return _sum(x, axes)
        if isinstance(op, Dot) or (isinstance(op, Blockwise) and isinstance(op.core_op, Dot)):
            a, b = self._inputs(node.inputs)
            if a.ndim > 2 or b.ndim > 2:
                raise NotAffine
            return _dot(a, b)
        if isinstance(op, Alloc):
            [x] = self._inputs(node.inputs[:1])
            axis = self.axes.get(node.outputs[0])
            shape = [1 if i == axis else s for i, s in enumerate(node.outputs[0].type.shape)]
            if None in shape:
                raise NotAffine
            return np.broadcast_to(x, shape)
        if isinstance(op, Reshape):
            [x] = self._inputs(node.inputs[:1])
            axis = self.axes.get(node.outputs[0])
            return x.reshape(
                [1 if i == axis else s for i, s in enumerate(node.outputs[0].type.shape)]
            )
        if isinstance(op, Join):
            return np.concatenate(self._inputs(node.inputs), axis=op.axis)
        if isinstance(op, Subtensor):
            [x] = self._inputs(node.inputs[:1])
            return np.asarray(x[self._basic_index(node)], dtype=object)
        if isinstance(op, AdvancedSubtensor):
            return self._gather(node)
        raise NotAffine

    def _elemwise(self, node) -> np.ndarray:
        name = elemwise_name(node)
        args = self._inputs(node.inputs)
        if name in {"Identity", "Cast"}:
            if node.outputs[0].type.dtype.startswith(("int", "uint", "bool")):
                raise NotAffine
            return args[0]
        if name == "Second":
            return np.broadcast_to(args[1], np.broadcast_shapes(args[0].shape, args[1].shape))
        if name == "Neg":
            return _each(lambda a: a.scaled(-1.0), args[0])
        if name == "Add":
            return _reduce(Affine.__add__, args)
        if name == "Sub":
            return _reduce(Affine.__add__, [args[0], _each(lambda a: a.scaled(-1.0), args[1])])
        if name == "Mul":
            return _reduce(Affine.__mul__, args)
        if name == "TrueDiv":
            return _reduce(Affine.__mul__, [args[0], _each(Affine.reciprocal, args[1])])
        raise NotAffine

    @staticmethod
    def _basic_index(node):
        def literal(entry):
            if isinstance(entry, slice):
                return slice(*(None if e is None else literal(e) for e in
                               (entry.start, entry.stop, entry.step)))  # fmt: skip
            if not isinstance(entry, Constant):
                raise NotAffine
            return int(entry.data)

        entries = unflatten_index_variables(node.inputs[1:], node.op.idx_list)
        return tuple(literal(e) for e in entries)

    def _gather(self, node) -> np.ndarray:
        """Elements of a parameter array picked by integer columns: ``a[group]``, ``a[g, h]``."""
        x, *index = node.inputs
        entries = unflatten_index_variables(index, node.op.idx_list)
        entries = [*entries, *[slice(None)] * (x.type.ndim - len(entries))]
        where = [i for i, e in enumerate(entries) if not isinstance(e, slice)]
        if x in self.axes or any(e != slice(None) for e in entries if isinstance(e, slice)):
            raise NotAffine
        if where != list(range(where[0], where[-1] + 1)):
            raise NotAffine
        [table] = self._inputs([x])
        table = np.moveaxis(table, where, range(table.ndim - len(where), table.ndim))
        columns = [self._index_column(entries[i]) for i in where]
        kept = table.shape[: table.ndim - len(where)]
        picked = np.empty(kept, dtype=object)
        for i in np.ndindex(kept):
            picked[i] = self._strided(table[i], columns)
        rows = max(entries[i].type.ndim for i in where)
        return picked.reshape(kept[: where[0]] + (1,) * rows + kept[where[0] :])

    def _index_column(self, entry: Variable) -> Column | int:
        [form] = self._inputs([entry])
        if form.size != 1:
            raise NotAffine
        form = form.item()
        if not form.terms and not form.offsets:
            return int(form.constant)
        if form.terms or form.constant or len(form.offsets) != 1 or form.offsets[0][0] != 1.0:
            raise NotAffine
        return form.offsets[0][1]

    def _strided(self, table: np.ndarray, columns: list) -> Affine:
        """Return the form of ``table[i, j, ...]`` where its entries are evenly spaced in phi."""
        position = np.empty(table.shape, dtype=int)
        for where in np.ndindex(table.shape):
            form = table[where]
            if len(form.terms) != 1 or form != Affine((Term(form.terms[0].index),)):
                raise NotAffine
            position[where] = form.terms[0].index
        start = int(position.flat[0])
        parts = []
        for axis, column in enumerate(columns):
            count = table.shape[axis]
            steps = np.unique(np.diff(position, axis=axis)) if count > 1 else np.array([0])
            if len(steps) != 1:
                raise NotAffine
            step = int(steps[0])
            if isinstance(column, int):
                start += step * (column % count)
            else:
                parts.append((column, step, count))
        if not parts:
            return Affine((Term(start),))
        if len(parts) == 1 and parts[0][1] == 1 and self.minimum(parts[0][0]) >= 0:
            return Affine((Term(start, group=parts[0][0]),))
        group = sum(step * (column.graph() % count) for column, step, count in parts)
        return Affine((Term(start, group=Column(group, 0, 0)),))


def _objects(elements: list[Affine], shape) -> np.ndarray:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(tuple(shape))


def _constants(data) -> np.ndarray:
    data = np.asarray(data)
    if data.dtype.kind not in "biuf" or not np.all(np.isfinite(data)):
        raise NotAffine
    return _objects([Affine(constant=float(x)) for x in data.ravel()], data.shape)


def _each(function, array: np.ndarray) -> np.ndarray:
    return _objects([function(a) for a in array.ravel()], array.shape)


def _reduce(function, arrays: list[np.ndarray]) -> np.ndarray:
    result = arrays[0]
    for array in arrays[1:]:
        a, b = np.broadcast_arrays(result, array)
        result = _objects([function(x, y) for x, y in zip(a.flat, b.flat, strict=True)], a.shape)
    return result


def _total(forms) -> Affine:
    forms = list(forms)
    return Affine(
        tuple(t for f in forms for t in f.terms),
        tuple(o for f in forms for o in f.offsets),
        sum(f.constant for f in forms),
    )


def _sum(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    kept = [i for i in range(x.ndim) if i not in axes]
    shape = [x.shape[i] for i in kept]
    flat = x.transpose([*kept, *axes]).reshape(int(np.prod(shape, dtype=int)), -1)
    return _objects([_total(row) for row in flat], shape)


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    left = a if a.ndim == 2 else a[None, :]
    right = b if b.ndim == 2 else b[:, None]
    forms = [
        _total(x * y for x, y in zip(row, column, strict=True))
        for row in left
        for column in right.T
    ]
    shape = ([left.shape[0]] if a.ndim == 2 else []) + ([right.shape[1]] if b.ndim == 2 else [])
    return _objects(forms, shape)


def find_predictors(
    graph: BatchGraph, offsets: Mapping[Variable, int], minimum: Callable[[Column], float]
) -> list[Predictor] | None:
    """Find the predictors of a batch log-likelihood.

    Parameters
    ----------
    graph : BatchGraph
        The first output is the log-likelihood, shape (m,).
    offsets : mapping of Variable to int
        Position in phi of the first element of each parameter.
    minimum : callable
        Smallest value of a column of the graph over all rows (negative indices count from the
        end).

    Returns
    -------
    list of Predictor or None
        None if the log-likelihood is not a function of affine predictors, data columns and
        elementwise-broadcast shared parameters alone.
    """
    algebra = AffineAlgebra(graph, offsets, minimum)
    found: dict[Variable, Predictor] = {}
    # (variable, row axis where a parameter shared by all rows is broadcast against them)
    pending: list[tuple[Variable, int | None]] = [(graph.outputs[0], None)]
    seen: set[tuple[Variable, int | None]] = set()
    while pending:
        var, broadcast_axis = pending.pop()
        if (var, broadcast_axis) in seen:
            continue
        seen.add((var, broadcast_axis))
        shared = var not in graph.axes
        axis = broadcast_axis if shared else graph.axes[var]
        forms = algebra.forms(var)
        if forms is not None:
            if any(form.terms for form in forms.flat):
                if axis is None or found.get(var, Predictor(var, axis, shared, forms)).axis != axis:
                    return None
                found[var] = Predictor(var, axis, shared, forms)
        elif var.owner is not None:
            below = axis if isinstance(var.owner.op, Elemwise) else None
            pending += [(i, below) for i in var.owner.inputs]
        elif var not in graph.columns and not isinstance(var, Constant):
            return None
    # -eta is computed from eta: keep what cannot be computed from the others.
    for var in list(found):
        others = [v for v in found if v is not var]
        above = set(ancestors([var], blockers=others)) - set(others)
        if not above & offsets.keys():
            del found[var]
    return list(found.values())
