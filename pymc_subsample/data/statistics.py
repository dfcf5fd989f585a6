"""Moments and extremes of columns, gathered block by block."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# Reductions over rows are done in so many rows at once.
_LANES = 64


@dataclass(frozen=True)
class Statistics:
    """What is known of a column: arrays of the shape that one row has of it."""

    count: np.ndarray  # How many numbers are not missing.
    missing: np.ndarray  # How many are NaN.
    # Mean, and sum of squared deviations from it, in double precision.
    mean: np.ndarray
    squares: np.ndarray
    # Smallest and largest number; inf and -inf where there is none.
    low: np.ndarray
    high: np.ndarray

    @property
    def std(self) -> np.ndarray:
        """Standard deviation: the root of the mean square, NaN without a number."""
        with np.errstate(invalid="ignore"):
            return np.sqrt(self.squares / np.where(self.count, self.count, np.nan))

    def __add__(self, other: "Statistics") -> "Statistics":
        """Return the statistics of both, one after the other (Chan, Golub and LeVeque 1979)."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        with np.errstate(invalid="ignore"):  # numbers may be infinite
            change = other.mean - self.mean
            mean = np.where(self.count, self.mean + change * share, other.mean)
            mean = np.where(other.count, mean, self.mean)
            between = np.where(self.count * other.count, change**2 * self.count * share, 0.0)
        return Statistics(
            count,
            self.missing + other.missing,
            mean,
            self.squares + other.squares + between,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )

    def as_json(self) -> dict[str, Any]:
        """Return lists; numbers that JSON has no word for are text."""
        return {
            name: [x if np.isfinite(x) else str(x) for x in np.ravel(value).tolist()]
            for name, value in vars(self).items()
        }


def statistics_from_json(entry: Mapping[str, Any], shape: tuple[int, ...]) -> Statistics:
    """Return statistics as a header describes them."""
    kinds = {"count": np.int64, "missing": np.int64}
    return Statistics(
        **{
            name: np.array(list(map(float, entry[name]))).astype(kinds.get(name, float))
            .reshape(shape)
            for name in Statistics.__dataclass_fields__
        }
    )  # fmt: skip


def statistics(x: np.ndarray) -> Statistics:
    """Return the statistics of a block of at least one row, shape (m, ...)."""
    low, high = _reduced(np.minimum, x), _reduced(np.maximum, x)
    if x.dtype.kind == "f" and np.isnan(low).any():
        return _of_those_known(x)
    count = np.full(x.shape[1:], len(x))
    deviations = x.astype(float)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = _reduced(np.add, deviations) / len(x)
        deviations -= mean
        deviations *= deviations
        squares = _reduced(np.add, deviations)
    return Statistics(
        count, np.zeros_like(count), mean, squares, low.astype(float), high.astype(float)
    )


def _reduced(function: np.ufunc, x: np.ndarray) -> np.ndarray:
    """Reduce the first axis, many numbers at a time where the others are short."""
    size = len(x) // _LANES
    if size < 2:
        return np.asarray(function.reduce(x, axis=0))
    whole = x[: size * _LANES].reshape(_LANES, size, *x.shape[1:])
    parts = function.reduce(whole, axis=0)
    return np.asarray(function.reduce(np.concatenate([parts, x[size * _LANES :]]), axis=0))


def _of_those_known(x: np.ndarray) -> Statistics:
    known = ~np.isnan(x)
    count = known.sum(axis=0)
    filled = np.where(known, x, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = filled.sum(axis=0, dtype=float) / np.maximum(count, 1)
        squares = np.where(known, (filled - mean) ** 2, 0.0).sum(axis=0)
    low = np.where(known, x, np.inf).min(axis=0).astype(float)
    high = np.where(known, x, -np.inf).max(axis=0).astype(float)
    return Statistics(count, len(x) - count, mean, squares, low, high)
