r"""Errors of the log-likelihood estimate at draws of a chain, from rows that are read once.

At all of the draws they are computed from a few rows, first random ones, then also those that
matter; at some of them, from all rows. With x the weighted residuals, centred over all rows, and m
rows drawn with replacement, the variance of the estimate is :math:`\sigma^2 = m E[x^2]`, and

.. math:: b = m \log \frac1n \sum_i e^{x_i - x_i^2 / 2} + \frac{\sigma^2 + \sigma^4}{2 m}.

The last term stands for the subsample's own mean in the estimated variance.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pymc_subsample.diagnostics.look import farthest, systematic
from pymc_subsample.diagnostics.perturbation import DrawErrors, EstimateErrors
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.rows.row_store import drawn_without

# Rows that are read at all draws, of the largest residuals, and as many others: as many as hold so
# many numbers, within limits. At some 500 draws the 5,000 of few numbers each take 0.05 s; as many
# units of ten rows, of which each is 7 nodes, took 13 s beside 1 s for the chain.
_NUMBERS, _FEWEST, _MOST = 100_000, 500, 5_000
# Draws besides the farthest at which all rows are read, where few rows leave doubts. A choice of
# time: a pass over all rows at some fifty points.
SAMPLED = 16
# Draws of which numbers of rows are held at a time. A choice: of memory and its cache.
_AT_ONCE = 8
# Of an estimate, beside which any noise counts. A choice: ten thousand roundings of doubles.
_NO_NOISE = 1e-12


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """How the log-likelihood is estimated."""

    expansion: Expansion
    reference: Reference
    subsample_size: int
    temperature: float
    always: np.ndarray  # Rows that every estimate reads, in order: they add no error.

    @property
    def n_drawn(self) -> int:
        """Number of rows that are drawn from."""
        return self.expansion.n_rows - len(self.always)

    @property
    def weight(self) -> float:
        """What a row of the subsample counts."""
        return self.n_drawn / (self.subsample_size * self.temperature)

    def residuals(self, index: np.ndarray, thetas: np.ndarray) -> np.ndarray:
        """Return weighted residuals of rows `index` at points theta, (k, d): shape (k, rows)."""
        rows, points = self.expansion.take(index), self.points(thetas)
        found = self.expansion.residuals(rows, self.reference.center, points)
        found *= self.weight
        return found

    def points(self, thetas: np.ndarray) -> np.ndarray:
        """Return phi at points theta, shape (k, P)."""
        return np.array([self.expansion.parameters(theta)[0] for theta in thetas])


@dataclass(frozen=True)
class RowsAtDraws:
    """Random rows, or all if they are few, read at all draws."""

    index: np.ndarray  # Shape (r,).
    residuals: np.ndarray  # Shape (k, r), weighted.


def few(expansion: Expansion) -> int:
    """Return how many rows are read at all draws."""
    return int(np.clip(_NUMBERS // expansion.width, _FEWEST, _MOST))


def read_few(by: Estimator, thetas: np.ndarray) -> RowsAtDraws:
    """Read some random rows at draws theta, shape (k, d), or all if they are few."""
    n, many = by.expansion.n_rows, few(by.expansion)
    if by.n_drawn > many:
        index = drawn_without(np.random.default_rng(0), n, by.always, many)
    else:
        index = np.setdiff1d(np.arange(n), by.always)
    return RowsAtDraws(index, by.residuals(index, thetas))


def errors_by_few(by: Estimator, rows: RowsAtDraws, shares: np.ndarray) -> DrawErrors:
    """Errors at draws, which stand for `shares` of all, by the few rows that were read there."""
    found = _errors_by_parts(by, [(rows.residuals, by.n_drawn / max(len(rows.index), 1))])
    none = np.zeros(0, dtype=np.int64)
    return DrawErrors(shares, found, none, found.at(none), np.zeros(0))


def errors_by_all(
    by: Estimator,
    rows: RowsAtDraws,
    thetas: np.ndarray,
    shares: np.ndarray,
    noise: np.ndarray,
    z: np.ndarray,
    sampled: int = SAMPLED,
) -> DrawErrors:
    """Errors at draws theta, shape (k, d): by all rows at a few, and by the rows that matter there.

    The few draws are the farthest in single standardised parameters z, shape (k, a), where rows may
    matter that do so nowhere else, and of the others `sampled`, systematically, with probabilities
    proportional to what a draw may add to the error of a second moment: its share and its noise,
    shape (k,), times its largest z^2. At all draws the rows of the largest residuals at the
    farthest and half of the others count one by one, and random ones stand for the rest.
    """
    known = noise[np.isfinite(noise)]
    noise = np.where(np.isfinite(noise), noise, known.max(initial=1.0))
    adds = shares * (noise + noise.mean() + _NO_NOISE) * (1 + np.max(z**2, axis=1, initial=0.0))
    far = farthest(z)
    others = np.delete(np.arange(len(adds)), far)
    which, times = systematic(adds[others], sampled)
    some = others[which]
    index = np.concatenate([far, some])
    stands = times * shares[some]
    stands *= (1 - shares[far].sum()) / max(stands.sum(), _NO_NOISE)
    chosen = np.concatenate([shares[far], stands])
    # Not all of them choose rows: where they did, what is left is less than elsewhere.
    whole, outlying = read_all(by, rows, thetas, index, len(far) + (len(some) + 1) // 2)
    if not np.all(np.isfinite(whole.bias)):
        alone = chosen / chosen.sum()
        return DrawErrors(alone, whole, np.arange(len(index)), whole, np.zeros(len(index)))
    both = np.isin(rows.index, outlying)
    each = (by.n_drawn - len(outlying)) / max(int(np.count_nonzero(~both)), 1)
    parts = [(by.residuals(outlying, thetas), 1.0), (rows.residuals, each)]
    parts.append((rows.residuals[:, both], -each))  # these are counted already
    return DrawErrors(shares, _errors_by_parts(by, parts), index, whole, chosen)


@np.errstate(all="ignore")  # where a result is not finite, the check that reads it says so
def read_all(
    by: Estimator, rows: RowsAtDraws, thetas: np.ndarray, index: np.ndarray, choosing: int
) -> tuple[EstimateErrors, np.ndarray]:
    """Read all rows at draws `index`, shape (j,), of those that the few rows were read at.

    Returns errors there, and as many rows as are few, in order, of the largest residuals at the
    first `choosing` of these draws.
    """
    at_few, most = rows.residuals[index], few(by.expansion)
    # A size that, as random rows say, twice as many exceed, or more.
    share = max(1 - 2 * most / by.n_drawn, 0.0)
    least = float(np.quantile(_largest(at_few[:choosing]), share, method="lower"))
    points, shift = by.points(thetas[index]), at_few.mean(axis=1)
    given = by.reference.center, points, by.weight, shift, choosing, least
    sums, start = np.zeros((5, len(index))), 0
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for part, n_rows, places, largest in by.expansion.over(_read, *given, without=by.always):
        sums += part
        found.append((start + places, largest))
        start += n_rows
    places, sizes = (np.concatenate(x) for x in zip(*found, strict=True))
    outlying = places[np.argsort(-sizes, kind="stable")[:most]]
    # Rows that are always read were left out of the numbers.
    outlying += np.searchsorted(by.always - np.arange(len(by.always)), outlying, side="right")
    return _errors(by, sums / start), np.sort(outlying)


def _largest(x: np.ndarray) -> np.ndarray:
    """Return the largest size of each row, (r,), at points of x, shape (k, r)."""
    return np.nan_to_num(np.abs(x).max(axis=0, initial=0.0), nan=np.inf, posinf=np.inf)


def _read(
    expansion: Expansion,
    batches: Iterable[np.ndarray],
    center: np.ndarray,
    points: np.ndarray,
    weight: float,
    shift: np.ndarray,
    choosing: int,
    least: float,
) -> tuple[np.ndarray, int, np.ndarray, np.ndarray]:
    """Sum over a batch what errors are made of, and find its rows of large residuals."""
    [rows] = batches
    sums, sizes = np.empty((5, len(points))), np.zeros(rows.shape[1])
    for first in range(0, len(points), _AT_ONCE):
        here = slice(first, first + _AT_ONCE)
        x = weight * expansion.residuals(rows, center, points[here])
        sizes = np.maximum(sizes, _largest(x[: max(choosing - first, 0)]))
        sums[:, here] = _tilted_sums(x - shift[here, None])
    places = np.flatnonzero(sizes > least)
    return sums, rows.shape[1], places, sizes[places]


@np.errstate(all="ignore")
def _errors_by_parts(by: Estimator, parts: list[tuple[np.ndarray, float]]) -> EstimateErrors:
    """Errors at points by weighted residuals, (k, r), of rows of which each stands for so many."""
    total = sum(each * x.shape[1] for x, each in parts)
    sums = np.zeros((5, len(parts[0][0])))
    for first in range(0, sums.shape[1], _AT_ONCE):
        here = slice(first, first + _AT_ONCE)
        mean = sum(each * x[here].sum(axis=1) for x, each in parts) / total
        sums[:, here] = sum(each * _tilted_sums(x[here] - mean[:, None]) for x, each in parts)
    return _errors(by, sums / total)


def _errors(by: Estimator, means: np.ndarray) -> EstimateErrors:
    """Errors by means over rows of what `_tilted_sums` adds up, shape (5, k)."""
    m = by.subsample_size
    first, second, zero, one, two = means
    variance = m * np.maximum(second - first**2, 0.0)
    # Move the centre to the mean of all rows: exactly but for O(first^3).
    centred = zero - 1.0 + first * one + 0.5 * first**2 * two
    bias = m * (np.log1p(centred) - first - 0.5 * first**2)
    return EstimateErrors(variance, bias + (variance + variance**2) / (2 * m))


def _tilted_sums(x: np.ndarray) -> np.ndarray:
    """Sum x, x^2, and t, x t and x^2 t with t = exp(x - x^2 / 2), over rows of x, shape (k, r)."""
    square = x * x
    tilted = np.exp(x - 0.5 * square)
    return np.array([
        x.sum(axis=1), square.sum(axis=1), tilted.sum(axis=1),
        np.einsum("kr,kr->k", x, tilted), np.einsum("kr,kr->k", square, tilted),
    ])  # fmt: skip
