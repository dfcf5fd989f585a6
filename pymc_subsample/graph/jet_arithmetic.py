"""Power series of intervals: what jets are made of."""

from functools import reduce

import numpy as np
import pytensor.tensor as pt

from pymc_subsample.graph.intervals import Enclosure, applied

ZERO = Enclosure(0.0, 0.0)


class Jet:
    """Intervals of the coefficients, from order 0 up; None is zero."""

    def __init__(self, value: Enclosure, *others: Enclosure | None):
        self.value, self.others = value, others

    @property
    def at(self) -> tuple[Enclosure | None, ...]:
        """All coefficients."""
        return self.value, *self.others

    @property
    def fixed(self) -> bool:
        """Whether it doesn't change along any direction."""
        return all(c is None for c in self.others)


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
