"""Numbers that are affine in phi, with data as coefficients, and arrays of such numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import mul
from typing import Any

import numpy as np
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op

from pymc_subsample.graph.interpreter import Elements, NoForm


class RowData:
    """One number per row, made of data alone: element `element` of `var`, row axis dropped."""

    var: Variable
    axis: int
    element: int

    def graph(self) -> Variable:
        """Return the column as a vector over rows."""
        rows_first = pt.moveaxis(self.var, self.axis, 0)
        if rows_first.type.ndim == 1:
            return rows_first
        return rows_first.reshape((rows_first.shape[0], -1))[:, self.element]

    def numbers(self) -> Variable:
        """Return the column in double precision, to compute with.

        Parameters are: a product of columns in their own type could overflow where PyMC's, which
        meets a parameter first, does not.
        """
        return self.graph().astype("float64")

    def times(self, other: "RowData | None") -> "RowData":
        """Return the product with another column (None: one)."""
        return self if other is None else ComputedColumn(lambda: self.numbers() * other.numbers())


@dataclass(frozen=True)
class DataColumn(RowData):
    """A column of a variable that there is."""

    var: Variable
    axis: int
    element: int


class ComputedColumn(RowData):
    """A vector over rows whose graph is made when it is first asked for.

    Of most it never is: the thousands of numbers that a row is made of are no predictors.
    """

    axis, element = 0, 0

    def __init__(self, make: Callable[[], Variable]) -> None:
        self._make = make

    @cached_property
    def var(self) -> Variable:
        """The graph."""
        return self._make()


@dataclass(frozen=True)
class Term:
    """scale * coefficient_i * phi[index + group_i]."""

    index: int
    scale: float = 1.0
    coefficient: RowData | None = None
    group: RowData | None = None


@dataclass(frozen=True)
class Affine:
    """Sum of terms, of scaled data columns and of a constant."""

    terms: tuple[Term, ...] = ()
    offsets: tuple[tuple[float, RowData], ...] = ()
    constant: float = 0.0

    @property
    def is_column(self) -> bool:
        """Whether the number is a column of data."""
        return not self.terms and not self.constant and [s for s, _ in self.offsets] == [1.0]

    def __add__(self, other: "Affine") -> "Affine":
        return Affine(
            self.terms + other.terms, self.offsets + other.offsets, self.constant + other.constant
        )

    def __neg__(self) -> "Affine":
        return self.scaled(-1.0)

    def __mul__(self, other: "Affine") -> "Affine":
        for a, b in ((self, other), (other, self)):
            if not a.terms and not a.offsets:
                return b.scaled(a.constant)
        for a, b in ((self, other), (other, self)):
            if not a.terms:
                scale, column = a.data()
                return b.mapped(column.times).scaled(scale)
        raise NoForm

    def scaled(self, factor: float) -> "Affine":
        """Return a multiple."""
        if factor == 1.0:
            return self
        return Affine(
            tuple(replace(t, scale=t.scale * factor) for t in self.terms),
            tuple((s * factor, c) for s, c in self.offsets),
            self.constant * factor,
        )

    def reciprocal(self) -> "Affine":
        """Return the reciprocal of data."""
        if self.terms:
            raise NoForm
        if not self.offsets and self.constant:
            return Affine(constant=1 / self.constant)
        scale, column = self.data()
        return Affine(offsets=((1 / scale, ComputedColumn(lambda: 1 / column.numbers())),))

    def where(self, condition: RowData, holds: bool) -> "Affine":
        """Return the same number in rows where the condition holds, or not, and zero elsewhere."""

        def chosen(c: RowData | None) -> RowData:
            def graph() -> Variable:
                number = pt.constant(1.0) if c is None else c.numbers()
                true = pt.neq(condition.graph(), 0)
                return pt.switch(true if holds else ~true, number, 0.0)

            return ComputedColumn(graph)

        return self.mapped(chosen)

    def data(self) -> tuple[float, RowData]:
        """Return a number without terms as a multiple of one column."""
        if len(self.offsets) == 1 and not self.constant:
            return self.offsets[0]
        return 1.0, ComputedColumn(
            lambda: sum((s * c.numbers() for s, c in self.offsets), self.constant)
        )

    def mapped(self, function: Callable[[RowData | None], RowData]) -> "Affine":
        """Apply a function that is linear in each row to every coefficient (None: one)."""
        offsets = [(s, function(c)) for s, c in self.offsets]
        if self.constant:
            offsets.append((self.constant, function(None)))
        terms = (replace(t, coefficient=function(t.coefficient)) for t in self.terms)
        return Affine(tuple(terms), tuple(offsets))


class Forms(Elements):
    """Arrays of affine forms: numbers, columns of data and parameters, and what is made of them."""

    def _number(self, x: Any) -> Affine:
        if not np.isfinite(x):
            raise NoForm
        return Affine(constant=float(x))

    def _apply(self, op: Op, elements: list[Affine]) -> list[Affine]:
        x, *others = elements
        match type(op).__name__:
            case "Mul":
                return [reduce(mul, elements)]
            case "Cast" if op.o_type.dtype.startswith("float"):
                return [x]
            case "Identity":
                return [x]
            case "Second":
                return others
            case "Neg":
                return [-x]
            case "Add":
                return [self._fold(op, elements)]
            case "Sub":
                return [x + -others[0]]
            case "TrueDiv":
                return [x * others[0].reciprocal()]
            case "Switch" if x.is_column:
                _, condition = x.data()
                return [others[0].where(condition, True) + others[1].where(condition, False)]
        raise NoForm

    def _fold(self, op: Op, elements: Sequence[Affine]) -> Affine:
        if not isinstance(op, ps.Add):
            raise NoForm
        return Affine(
            tuple(t for f in elements for t in f.terms),
            tuple(o for f in elements for o in f.offsets),
            sum(f.constant for f in elements),
        )

    def _index(self, element: Affine) -> RowData | int:
        if element.terms:
            raise NoForm
        return element.data()[1] if element.offsets else int(element.constant)

    def _literal(self, var: Variable) -> Any:
        if not isinstance(var, Constant):
            raise NoForm
        return var.data
