"""Linear predictors: where the log-likelihood of a row sees the parameters.

Most models touch their parameters only through a few numbers per row that are affine in phi,
eta_i = o_i + z_i' phi, and through a few scalars shared by all rows. The batch graph is evaluated
here on arrays of symbolic affine forms, with plain NumPy semantics and a row axis of length one;
the maximal affine variables are the predictors.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import Reshape

from pymc_subsample.graph.affine import Affine, DataColumn, Forms, RowData, Term
from pymc_subsample.graph.concrete import depends_on
from pymc_subsample.graph.interpreter import NoForm, array_of
from pymc_subsample.graph.nodes import elemwise_name
from pymc_subsample.model.batch import BatchGraph

# Beyond this many numbers per row, directional derivatives cost less than E x E Hessians.
MAX_PREDICTORS = 10
# Numbers that a row's code reads beside the predictors: a packed row has them all. Units of 1,186
# rows have 3,558, in loops that take no longer to compile; 160 kB a row are what this allows.
MAX_COLUMNS = 20_000


def are_few(predictors: int, columns: int = MAX_COLUMNS) -> bool:
    """Whether second derivatives in a row's predictors cost little beside the columns it reads."""
    return predictors <= MAX_PREDICTORS or predictors * (predictors + 1) // 2 <= columns


@dataclass(frozen=True)
class Predictor:
    """A maximal affine variable of the batch graph and its affine forms (one per element).

    `axis` carries the rows; a `shared` predictor has length one there and equals the same
    parameters in every row. Of a parameter that rows see through functions of it, it is None.
    """

    var: Variable
    axis: int | None
    shared: bool
    forms: np.ndarray


def find_predictors(
    graph: BatchGraph,
    offsets: Mapping[Variable, int],
    extremes: Callable[[Variable, int], np.ndarray],
) -> list[Predictor] | None:
    """Find the predictors of a batch log-likelihood, the first output of the graph.

    `offsets` are positions in phi of the first element of each parameter. ``extremes(var, axis)``
    returns smallest and largest values of each element of a data-only variable over all rows, shape
    (2, k). Returns None if the log-likelihood is not a function of affine predictors, data columns
    and elementwise-broadcast shared parameters alone.
    """
    algebra = Algebra(graph, offsets, extremes)
    found: dict[Variable, Predictor] = {}
    # (variable, row axis where a parameter shared by all rows is broadcast against them)
    pending: list[tuple[Variable, int | None]] = [(graph.outputs[0], None)]
    seen: set[tuple[Variable, int | None]] = set()
    while pending:
        var, broadcast_axis = pending.pop()
        if (var, broadcast_axis) in seen or var not in algebra.dependent:
            continue
        seen.add((var, broadcast_axis))
        shared = var not in graph.axes
        axis = broadcast_axis if shared else graph.axes[var]
        forms = algebra.forms(var)
        if forms is None:
            below = axis if isinstance(var.owner.op, Elemwise) else None
            pending += [(i, below) for i in var.owner.inputs]
        elif axis is None or found.get(var, Predictor(var, axis, shared, forms)).axis != axis:
            return None
        else:
            found[var] = Predictor(var, axis, shared, forms)
    return _independent(found, algebra)


def _independent(found: dict[Variable, Predictor], algebra: "Algebra") -> list[Predictor]:
    """Compute predictors from one another, or from an affine variable below them, if that is less.

    Examples are -eta and eta; y - mu and mu / sqrt(2); slices of one matrix; and eta, whose
    coefficients are the data's own columns, in place of y ? eta : -eta, whose are not. Not
    b log(x) in place of x > 0 ? b log(x) : 0, since infinite coefficients make derivatives NaN.
    """
    for var in list(found):
        if not algebra.parameters_of(var, found.keys() - {var}):
            del found[var]
    below = [v for v in ancestors(list(found)) if v not in found and algebra.is_row_predictor(v)]
    for var in below:
        known = [v for v in found if not algebra.parameters_of(v, {var})]
        forms, axis = algebra.forms(var), algebra.axes[var]
        if forms is None or not known or not are_few(forms.size):
            continue
        candidate = Predictor(var, axis, False, forms)
        cheaper = algebra.cost([candidate]) < algebra.cost([found[v] for v in known])
        if cheaper and algebra.is_finite(candidate):
            found = {v: p for v, p in found.items() if v not in known}
            found[var] = candidate
    return list(found.values())


class Algebra(Forms):
    """Evaluates variables of a batch graph as arrays of affine forms."""

    def __init__(
        self,
        graph: BatchGraph,
        offsets: Mapping[Variable, int],
        extremes: Callable[[Variable, int], np.ndarray],
    ):
        self.dependent = depends_on(graph.outputs, list(offsets))
        self.axes = graph.axes
        self._columns = graph.columns
        self._offsets = offsets
        self._extremes = cache(extremes)
        super().__init__({v: _terms(v.type.shape, start) for v, start in offsets.items()})
        with suppress(NoForm):
            self.evaluate(graph.outputs)

    def forms(self, var: Variable) -> np.ndarray | None:
        """Return the affine forms of `var`, row axis kept with length one, or None."""
        try:
            return self.value(var)
        except NoForm:
            return None

    def is_row_predictor(self, var: Variable) -> bool:
        """Whether `var` carries rows and is affine in parameters."""
        return var in self.dependent and var in self.axes and self.forms(var) is not None

    def cost(self, predictors: list[Predictor]) -> tuple[int, int]:
        """Return the numbers per row of predictors, and of coefficients that must be computed."""
        terms = [t for p in predictors for form in p.forms.flat for t in form.terms]
        computed_columns = {
            t.coefficient
            for t in terms
            if t.coefficient is not None
            and not (isinstance(t.coefficient, DataColumn) and t.coefficient.var in self._columns)
        }
        return sum(p.forms.size for p in predictors), len(computed_columns)

    def is_finite(self, predictor: Predictor) -> bool:
        """Whether all coefficients and offsets of a predictor are finite in every row."""
        forms = list(predictor.forms.flat)
        columns = [t.coefficient for form in forms for t in form.terms if t.coefficient is not None]
        columns += [c for form in forms for _, c in form.offsets]
        return all(
            np.isfinite(self._extremes(c.var, c.axis)[:, c.element]).all()
            for c in dict.fromkeys(columns)
        )

    def _smallest(self, column: RowData) -> float:
        smallest, _ = self._extremes(column.var, column.axis)
        return smallest[column.element]

    def parameters_of(self, var: Variable, given: set[Variable]) -> set[Variable]:
        """Return the parameters that `var` needs beside `given` variables."""
        return (set(ancestors([var], blockers=list(given))) - given) & self._offsets.keys()

    def _leaves(self, outputs: Sequence[Variable]) -> list[Variable]:
        return [v for v in ancestors(outputs) if v in self.axes and v not in self.dependent]

    def value(self, var: Variable) -> np.ndarray:
        """Return the affine forms of a variable, or raise `NoForm`."""
        axis = self.axes.get(var)
        if var not in self.known and axis is not None and var not in self.dependent:
            shape = _one_row(var.type.shape, axis)
            source = self._unconverted(var)
            columns = (DataColumn(source, axis, i) for i in range(int(np.prod(shape, dtype=int))))
            self.known[var] = array_of((Affine(offsets=((1.0, c),)) for c in columns), shape)
        found = super().value(var)
        if found is None:
            raise NoForm
        return found

    def _results(self, node: Apply) -> list[Any]:
        """Return forms; None for what is not affine."""
        [out, *_] = node.outputs
        try:
            if isinstance(node.op, Alloc | Reshape):
                x, shape = self.value(node.inputs[0]), _one_row(out.type.shape, self.axes.get(out))
                return [
                    x.reshape(shape) if isinstance(node.op, Reshape) else np.broadcast_to(x, shape)
                ]
            return super()._results(node)
        except NoForm:
            return [None] * len(node.outputs)

    def _unconverted(self, var: Variable) -> Variable:
        """Return the column of the graph behind a conversion to double precision."""
        if elemwise_name(var.owner) == "Cast" and var.type.dtype == "float64":
            [source] = var.owner.inputs
            if source in self._columns:
                return source
        return var

    def _picked(self, node: Apply) -> np.ndarray:
        """Elements of a parameter array picked by integer columns: ``a[group]``, ``a[g, h]``."""
        x, *index = node.inputs
        if x in self.axes or any(self.value(i).size != 1 for i in index):
            raise NoForm
        return super()._picked(node)

    def _pick(self, table: np.ndarray, index: Sequence[RowData | int]) -> Affine:
        """Return the form of ``table[i, j, ...]`` where its entries are evenly spaced in phi."""
        if not all(form == Affine((Term(t.index),)) for form in table.flat for t in form.terms[:1]):
            raise NoForm
        if not all(form.terms for form in table.flat):
            raise NoForm
        position = array_of((form.terms[0].index for form in table.flat), table.shape).astype(int)
        start = int(position.flat[0])
        parts = []
        for axis, column in enumerate(index):
            count = table.shape[axis]
            steps = np.unique(np.diff(position, axis=axis)) if count > 1 else np.array([0])
            if len(steps) != 1:
                raise NoForm
            step = int(steps[0])
            if isinstance(column, int):
                start += step * (column % count)
                continue
            if self._smallest(column) < 0:  # counts from the end
                column = DataColumn(column.graph().astype("int64") % count, 0, 0)
            if step < 0:
                start, step = start + step * (count - 1), -step
                column = DataColumn(count - 1 - column.graph().astype("int64"), 0, 0)
            parts.append((step, column))
        match parts:
            case []:
                return Affine((Term(start),))
            case [(1, column)]:
                return Affine((Term(start, group=column),))
        group = sum(step * column.graph().astype("int64") for step, column in parts)
        return Affine((Term(start, group=DataColumn(group, 0, 0)),))


def _terms(shape: Sequence[int], start: int) -> np.ndarray:
    size = int(np.prod(shape, dtype=int))
    return array_of((Affine((Term(start + i),)) for i in range(size)), shape)


def _one_row(shape: Sequence[int | None], axis: int | None) -> list[int]:
    result = [1 if i == axis else length for i, length in enumerate(shape)]
    known = [length for length in result if length is not None]
    if len(known) < len(result):
        raise NoForm
    return known
