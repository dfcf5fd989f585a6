"""Numbers that are affine in phi, with data as coefficients, and arrays of such numbers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pytensor.graph.basic import Variable


class NotAffine(Exception):
    """The variable is not affine in phi with data-only coefficients."""


@dataclass(frozen=True)
class Column:
    """One number per row: element `element` (flat, row axis dropped) of a data-only variable."""

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

    def times(self, other: "Column | None") -> "Column":
        """Return the product with another column (None: one)."""
        return self if other is None else computed(self.numbers() * other.numbers())


def computed(graph: Variable) -> Column:
    """Return a vector over rows as a column."""
    return Column(graph, 0, 0)


@dataclass(frozen=True)
class Term:
    """scale * coefficient_i * phi[index + group_i]."""

    index: int
    scale: float = 1.0
    coefficient: Column | None = None
    group: Column | None = None


@dataclass(frozen=True)
class Affine:
    """Sum of terms, of scaled data columns and of a constant."""

    terms: tuple[Term, ...] = ()
    offsets: tuple[tuple[float, Column], ...] = ()
    constant: float = 0.0

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
        raise NotAffine

    def scaled(self, factor: float) -> "Affine":
        """Return a multiple."""
        return Affine(
            tuple(replace(t, scale=t.scale * factor) for t in self.terms),
            tuple((s * factor, c) for s, c in self.offsets),
            self.constant * factor,
        )

    def reciprocal(self) -> "Affine":
        """Return the reciprocal of data."""
        if self.terms:
            raise NotAffine
        if not self.offsets and self.constant:
            return Affine(constant=1 / self.constant)
        scale, column = self.data()
        return Affine(offsets=((1 / scale, computed(1 / column.numbers())),))

    def where(self, condition: Variable) -> "Affine":
        """Return the same number in rows where the condition holds and zero elsewhere."""
        one = pt.constant(1.0)
        return self.mapped(
            lambda c: computed(pt.switch(condition, one if c is None else c.numbers(), 0.0))
        )

    def data(self) -> tuple[float, Column]:
        """Return a number without terms as a multiple of one column."""
        if len(self.offsets) == 1 and not self.constant:
            return self.offsets[0]
        return 1.0, computed(sum((s * c.numbers() for s, c in self.offsets), self.constant))

    def mapped(self, function: Callable[[Column | None], Column]) -> "Affine":
        """Apply a function that is linear in each row to every coefficient (None: one)."""
        offsets = [(s, function(c)) for s, c in self.offsets]
        if self.constant:
            offsets.append((self.constant, function(None)))
        terms = (replace(t, coefficient=function(t.coefficient)) for t in self.terms)
        return Affine(tuple(terms), tuple(offsets))


def array_of(forms: Iterable[Affine], shape: Sequence[int]) -> np.ndarray:
    """Return an object array of a given shape."""
    flat = list(forms)
    array = np.empty(len(flat), dtype=object)
    array[:] = flat
    return array.reshape(tuple(shape))


def constants(data: ArrayLike) -> np.ndarray:
    """Return an array of numbers as affine forms."""
    data = np.asarray(data)
    if data.dtype.kind not in "biuf" or not np.all(np.isfinite(data)):
        raise NotAffine
    return array_of((Affine(constant=float(x)) for x in data.ravel()), data.shape)


def each(function: Callable[..., Affine], *arrays: np.ndarray) -> np.ndarray:
    """Apply a function elementwise, with broadcasting."""
    broadcast = np.broadcast_arrays(*arrays)
    elements = zip(*(a.flat for a in broadcast), strict=True)
    return array_of((function(*x) for x in elements), broadcast[0].shape)


def total(x: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """Sum over axes."""
    kept = [i for i in range(x.ndim) if i not in axes]
    shape = [x.shape[i] for i in kept]
    flat = x.transpose([*kept, *axes]).reshape(int(np.prod(shape, dtype=int)), -1)
    return array_of(map(_sum, flat), shape)


def _sum(forms: Iterable[Affine]) -> Affine:
    forms = list(forms)
    return Affine(
        tuple(t for f in forms for t in f.terms),
        tuple(o for f in forms for o in f.offsets),
        sum(f.constant for f in forms),
    )


def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply vectors and matrices."""
    if a.ndim > 2 or b.ndim > 2:
        raise NotAffine
    left = a if a.ndim == 2 else a[None, :]
    right = b if b.ndim == 2 else b[:, None]
    product = each(Affine.__mul__, left[:, None, :], right.T[None, :, :])
    shape = left.shape[:1] * (a.ndim - 1) + right.shape[1:] * (b.ndim - 1)
    return total(product, (2,)).reshape(shape)
