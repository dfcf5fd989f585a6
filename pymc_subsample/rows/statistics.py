"""Moments and extremes of columns, gathered block by block."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# Reductions over rows are done in so many rows at once. A choice: a multiple of what processors add
# at once.
_LANES = 64


@dataclass(frozen=True)
class ColumnStatistics:
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

    def __add__(self, other: "ColumnStatistics") -> "ColumnStatistics":
        """Return the statistics of both, one after the other (Chan, Golub and LeVeque 1979)."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        with np.errstate(invalid="ignore"):  # numbers may be infinite
            change = other.mean - self.mean
            mean = np.where(self.count, self.mean + change * share, other.mean)
            mean = np.where(other.count, mean, self.mean)
            between = np.where(self.count * other.count, change**2 * self.count * share, 0.0)
        return ColumnStatistics(
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


def statistics_from_json(entry: Mapping[str, Any], shape: tuple[int, ...]) -> ColumnStatistics:
    """Return statistics as a header describes them."""
    kinds = {"count": np.int64, "missing": np.int64}
    return ColumnStatistics(
        **{
            name: np.array(list(map(float, entry[name]))).astype(kinds.get(name, float))
            .reshape(shape)
            for name in ColumnStatistics.__dataclass_fields__
        }
    )  # fmt: skip


def statistics(x: np.ndarray) -> ColumnStatistics:
    """Return the statistics of a block of at least one row, shape (m, ...)."""
    low, high = _reduced(np.minimum, x), _reduced(np.maximum, x)
    count, deviations = np.full(x.shape[1:], len(x)), x.astype(float)
    holes = np.isnan(deviations) if np.isnan(low).any() else None
    if holes is not None:
        count -= holes.sum(axis=0)
        low = np.where(count, _reduced(np.fmin, x), np.inf)
        high = np.where(count, _reduced(np.fmax, x), -np.inf)
        deviations[holes] = 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        mean = _reduced(np.add, deviations) / np.maximum(count, 1)
        deviations -= mean
        if holes is not None:
            deviations[holes] = 0.0
        deviations *= deviations
        squares = _reduced(np.add, deviations)
    return ColumnStatistics(
        count, len(x) - count, mean, squares, low.astype(float), high.astype(float)
    )


def _reduced(function: np.ufunc, x: np.ndarray) -> np.ndarray:
    """Reduce the first axis, many numbers at a time where the others are short."""
    size = len(x) // _LANES
    if size < 2:
        return np.asarray(function.reduce(x, axis=0))
    whole = x[: size * _LANES].reshape(_LANES, size, *x.shape[1:])
    parts = function.reduce(whole, axis=0)
    return np.asarray(function.reduce(np.concatenate([parts, x[size * _LANES :]]), axis=0))
