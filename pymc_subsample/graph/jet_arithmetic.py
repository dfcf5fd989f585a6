"""Power series of intervals: what jets are made of."""

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt

from pymc_subsample.graph.intervals import WORK, Enclosure, applied

ZERO = Enclosure(0.0, 0.0)


class Slope(NamedTuple):
    r"""What holds a coefficient of order 1 along a direction u, of length one at most.

    It is :math:`g'u`, give or take the rest. Sums of these know what cancels, and that no direction
    has several inputs move as far as each of them may.
    """

    gradient: np.ndarray  # (rows, k), or (1, 1) of zeros.
    rest: np.ndarray  # (rows,)

    @property
    def size(self) -> np.ndarray:
        """Largest size of the coefficient."""
        return np.sqrt(np.einsum("ik,ik->i", self.gradient, self.gradient)) + self.rest

    def times(self, factor: Enclosure) -> "Slope":
        """Return what a factor that varies makes of it."""
        middle, half = (factor.low + factor.high) / 2, (factor.high - factor.low) / 2
        known = np.isfinite(middle) & np.isfinite(half)
        middle, half = np.where(known, middle, 0.0), np.where(known, half, np.inf)
        gradient = np.reshape(middle, (-1, 1)) * self.gradient
        WORK.elements += gradient.size
        rest = _finite(half, self.size) + _finite(np.abs(middle), self.rest)
        return Slope(gradient, np.atleast_1d(rest))

    def plus(self, *others: "Slope") -> "Slope":
        """Add slopes."""
        gradient, rest = self
        for other in others:
            gradient, rest = gradient + other.gradient, rest + other.rest
            WORK.elements += gradient.size
        return Slope(gradient, rest)

    def where(self, here: np.ndarray, other: "Slope", there: np.ndarray) -> "Slope":
        """Return this slope, or another, or what holds either."""
        gradient = np.where(here[..., None], self.gradient, other.gradient)
        gradient = np.where((here | there)[..., None], gradient, 0.0)
        rest = np.where(here, self.rest, other.rest)
        WORK.elements += gradient.size
        return Slope(gradient, np.where(here | there, rest, np.maximum(self.size, other.size)))


LEVEL = Slope(np.zeros((1, 1)), np.zeros(1))


def _finite(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Multiply sizes, where zero times what is not bounded is zero."""
    return np.where((x == 0) | (y == 0), 0.0, x * y)


class Jet:
    """Intervals of the coefficients, from order 0 up; None is zero.

    `center` holds the value where nothing has moved, `slope` the coefficient of order 1 by
    direction. If it is known to be a sum of exponentials, `terms` are their logarithms.
    """

    terms: Sequence["Jet"] = ()

    def __init__(
        self,
        value: Enclosure,
        *others: Enclosure | None,
        center: Enclosure | None = None,
        slope: Slope | None = None,
    ):
        self.value, self.others = value, others
        self.center = value if center is None else center
        self._slope = slope

    @property
    def at(self) -> tuple[Enclosure | None, ...]:
        """All coefficients."""
        return self.value, *self.others

    @property
    def fixed(self) -> bool:
        """Whether it doesn't change along any direction."""
        return all(c is None for c in self.others)

    @property
    def slope(self) -> Slope:
        """The coefficient of order 1 by direction: its interval may be all that is known."""
        if self._slope is not None:
            return self._slope
        one = self.others[0]
        return LEVEL if one is None else Slope(LEVEL.gradient, np.atleast_1d(one.size))

    def narrowed(self, center: Enclosure, limit: float) -> "Jet":
        """Return the jet whose value is that at the center where nothing has moved.

        It moves along directions by `limit` at most, and so by the mean value theorem.
        """
        one, *more = self.others
        if one is None:
            return Jet(self.value, *self.others, center=center).of_terms(self.terms)
        size = self.slope.size
        one = Enclosure(np.maximum(one.low, -size), np.minimum(one.high, size))
        far = limit * one.size
        value = Enclosure(
            np.fmax(self.value.low, center.low - far), np.fmin(self.value.high, center.high + far)
        )
        narrow = Jet(value, one, *more, center=center, slope=self._slope)
        return narrow.of_terms(self.terms)

    def of_terms(self, terms: Iterable["Jet"] | None) -> "Jet":
        """Return the jet, of which it is known that it is a sum of such exponentials, if any."""
        self.terms = () if terms is None else list(terms)
        return self


def added(*terms: Enclosure | None) -> Enclosure | None:
    """Add coefficients."""
    left = [t for t in terms if t is not None]
    if len(left) < 2:
        return left[0] if left else None
    return Enclosure(sum(t.low for t in left), sum(t.high for t in left))


def product(*factors: Enclosure | None) -> Enclosure | None:
    """Multiply coefficients."""
    known = [f for f in factors if f is not None]
    if len(known) < len(factors):
        return None
    # The square of what is the same is not negative, as `applied` knows.
    return reduce(lambda x, y: applied(pt.mul.scalar_op, [x, y])[0], known)


def times(number: float, x: Enclosure | None) -> Enclosure | None:
    """Multiply a coefficient by a number."""
    return product(Enclosure(number, number), x)


def hull(*parts: Enclosure | None) -> Enclosure | None:
    """Return what holds any of some coefficients."""
    if all(p is None for p in parts):
        return None
    full = [ZERO if p is None else p for p in parts]
    low, high = np.broadcast_arrays(*(p.low for p in full)), [p.high for p in full]
    return Enclosure(np.minimum.reduce(low), np.maximum.reduce(np.broadcast_arrays(*high)))


def power_of(slope: Enclosure | None, x: Enclosure | None, power: int) -> Enclosure | None:
    """Return a slope times a power of what may be zero."""
    if x is None:
        return None
    [raised] = applied(pt.pow.scalar_op, [x, Enclosure(float(power), float(power))])
    return product(slope, raised)
