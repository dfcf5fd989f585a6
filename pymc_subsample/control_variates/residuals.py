"""What control variates leave of the log-likelihood, row by row, around the reference.

Few rows leave most of it where predictors have heavy tails or groups are small. Read at every
estimate, they add nothing to its variance; the others then take a smaller subsample.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pymc_subsample.blas import one_thread
from pymc_subsample.control_variates.expansion import Expansion
from pymc_subsample.control_variates.reference import Reference
from pymc_subsample.estimators import Moments, choose_subsample_size, moments_from_sums
from pymc_subsample.likelihood import TallModelError

_SHOWN = 10
# Rows whose residuals are kept one by one: at most this many, and this share of all.
_MOST_KEPT = 20_000
_SHARE_KEPT = 0.25
# Random rows that tell which ones may be among them.
_SAMPLE = 10_000
# Numbers of rows to read always that are tried, and the cost below which some are.
_CANDIDATES = 40
_WORTHWHILE = 0.8


@dataclass(frozen=True)
class Residuals:
    """Residuals of all rows at some points, those of the outlying rows one by one."""

    # Integers, shape (K,): the outlying rows, by their largest residual at the first half of the
    # points and at the outer ones, which decreases.
    index: np.ndarray
    # Their residuals at k points within the posterior and at j outer points, shape (k + j, K).
    outlying: np.ndarray
    sums: np.ndarray  # Sums over all other rows of the first four powers, shape (4, k).
    outer: np.ndarray  # Sums over all other rows at the outer points, shape (j,).
    largest: float  # Largest of the others at an outer point.
    n_rows: int

    def moments(self, always: int = 0) -> Moments:
        """Moments over all rows but the first `always` of the outlying ones."""
        return self._moments([always])[0]

    def _moments(self, always: Sequence[int]) -> list[Moments]:
        """Return those over all rows but the first so many, for several numbers that increase."""
        sums, outer, largest = self.sums, self.outer, self.largest
        found = []
        for first, last in reversed([*pairwise([*always, len(self.index)])]):
            powers, further, far = _summed(self.outlying[:, first:last], self.sums.shape[1])
            sums, outer, largest = sums + powers, outer + further, max(largest, far)
            lowest = float(np.min(outer, initial=np.inf))
            found.append(moments_from_sums(sums, self.n_rows - first, largest, lowest))
        return found[::-1]

    def choose_always(self, temperature: float = 1.0) -> np.ndarray:
        """Return the rows to read always, in order: those with which an estimate reads fewest."""
        most = len(self.index)
        sizes = np.unique(np.r_[0, np.geomspace(10, max(most, 10), _CANDIDATES).astype(int)])
        tried = sizes[sizes <= most].tolist()
        costs = {
            e: e + choose_subsample_size(moments, temperature)
            for e, moments in zip(tried, self._moments(tried), strict=True)
        }
        best = min(costs, key=lambda e: costs[e])
        if costs[best] > _WORTHWHILE * costs[0]:
            best = 0
        return np.sort(self.index[:best])


@one_thread
@np.errstate(over="ignore")  # powers of residuals far out; a variance that overflows is refused
def residuals_around(
    expansion: Expansion,
    reference: Reference,
    thetas: np.ndarray,
    far: np.ndarray | tuple = (),
    before: Residuals | None = None,
) -> Residuals:
    """Evaluate residuals over all rows at points theta, shape (k, d), in one pass.

    At the points `far`, shape (j, d), only the largest residual and their sum count. Those of the
    first rows may be known, at the same points, from `before`. Raises `TallModelError` if a
    residual is not finite at one of the points `thetas`.
    """
    points = np.array([expansion.parameters(theta)[0] for theta in [*thetas, *far]])
    most = int(min(_MOST_KEPT, _SHARE_KEPT * expansion.n_rows))
    center, inner = reference.center, len(thetas)
    least = _least_outlying(expansion, center, points, inner, most)
    kept = _Outlying(inner, len(far), most)
    bad: list[int] = []
    start = 0
    if before is not None:
        kept.begin(before)
        start = before.n_rows
    for part in expansion.over(_split_at, center, points, inner, least, begin=start):
        bad += (start + part.bad).tolist()
        if not bad:
            kept.add(start, part)
        start += part.n_rows
    if bad:
        raise _not_finite(expansion, bad)
    return kept.residuals(expansion.n_rows)


def residuals_at(
    expansion: Expansion, rows: np.ndarray, center: np.ndarray, points: np.ndarray
) -> np.ndarray:
    """Residuals of packed rows at points phi, shape (k, rows)."""
    expansion.anchor(center, rows)
    d, grad = np.empty((len(points), rows.shape[1])), np.zeros(expansion.phi_size)
    for out, phi in zip(d, points, strict=True):
        expansion.difference(phi, rows, center, 1.0, 0.0, out, grad)
    return d


def _score(d: np.ndarray, inner: int) -> np.ndarray:
    """How far out rows are, by their residuals, shape (k, rows), `inner` of them in the posterior.

    Not all points choose: where they did, what is left is less than elsewhere.
    """
    d = np.delete(d, np.s_[(inner + 1) // 2 : inner], axis=0)
    return np.abs(np.where(np.isfinite(d), d, np.inf)).max(axis=0, initial=0.0)


def _least_outlying(
    expansion: Expansion, center: np.ndarray, points: np.ndarray, inner: int, most: int
) -> float:
    """Return a score that, as random rows say, twice as many rows exceed as are kept, or more."""
    if not most:
        return np.inf
    n = expansion.n_rows
    index = np.random.default_rng(0).integers(0, n, _SAMPLE) if n > _SAMPLE else np.arange(n)
    score = _score(residuals_at(expansion, expansion.take(index), center, points), inner)
    return float(np.quantile(score, 1 - min(1.0, 2 * most / n), method="lower"))


@dataclass(frozen=True)
class _Part:
    """What is left of some successive rows: the outlying ones, sums over the others."""

    n_rows: int
    bad: np.ndarray
    index: np.ndarray
    outlying: np.ndarray
    sums: np.ndarray
    outer: np.ndarray
    largest: float


def _split_at(
    expansion: Expansion,
    batches: Iterable[np.ndarray],
    center: np.ndarray,
    points: np.ndarray,
    inner: int,
    least: float,
) -> _Part:
    [rows] = batches
    return _split(residuals_at(expansion, rows, center, points), inner, least)


def _split(d: np.ndarray, inner: int, least: float) -> _Part:
    """Split residuals, shape (k, rows), at a score."""
    bad = np.flatnonzero(~np.isfinite(d[:inner]).all(axis=0))[:_SHOWN]
    index = np.flatnonzero(_score(d, inner) > least)
    rest = np.delete(d, index, axis=1) if len(index) else d
    return _Part(d.shape[1], bad, index, d[:, index], *_summed(rest, inner))


def _summed(d: np.ndarray, inner: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Sum the first four powers of residuals; of those further out return sum and largest."""
    inside, outside = np.split(d, [inner])
    finite = np.where(np.isfinite(outside), outside, 0.0)
    return _powers(inside), finite.sum(axis=1), float(np.abs(finite).max(initial=0.0))


def _powers(d: np.ndarray) -> np.ndarray:
    """Sum the first four powers of residuals over rows, shape (4, k)."""
    power, sums = np.ones_like(d), []
    for _ in range(4):
        power *= d
        sums.append(power.sum(axis=1))
    return np.array(sums)


class _Outlying:
    """Keeps the rows of the largest residuals, and adds the others up."""

    def __init__(self, points: int, far: int, size: int) -> None:
        self._points, self._size = points, size
        self._sums, self._outer = np.zeros((4, points)), np.zeros(far)
        self._largest = 0.0
        self._index = np.zeros(0, dtype=np.int64)
        self._kept = np.zeros((points + far, 0))

    def begin(self, before: Residuals) -> None:
        """Start with what is known of the rows before."""
        self._drop(before.sums, before.outer, before.largest)
        self._index, self._kept = before.index, before.outlying

    def add(self, start: int, part: _Part) -> None:
        """Add what is left of the rows from `start` on."""
        self._drop(part.sums, part.outer, part.largest)
        self._index = np.concatenate([self._index, start + part.index])
        self._kept = np.concatenate([self._kept, part.outlying], axis=1)
        if len(self._index) > 2 * self._size:
            self._shrink()

    def residuals(self, n_rows: int) -> Residuals:
        self._shrink()
        order = np.argsort(-_score(self._kept, self._points), kind="stable")
        return Residuals(
            self._index[order], self._kept[:, order], self._sums, self._outer, self._largest, n_rows
        )

    def _shrink(self) -> None:
        score = _score(self._kept, self._points)
        if len(score) <= self._size:
            return
        order = np.argsort(-score, kind="stable")
        keep, rest = order[: self._size], order[self._size :]
        self._drop(*_summed(self._kept[:, rest], self._points))
        self._index, self._kept = self._index[keep], self._kept[:, keep]

    def _drop(self, sums: np.ndarray, outer: np.ndarray, largest: float) -> None:
        self._sums += sums
        self._outer += outer
        self._largest = max(self._largest, largest)


def _not_finite(expansion: Expansion, rows: list[int]) -> TallModelError:
    shown = expansion.store.named(rows[:_SHOWN])
    return TallModelError(
        f"The log-likelihood of {', '.join(map(repr, expansion.observed))} is not finite within "
        f"the spread of the posterior, in rows {shown}{' and maybe more' * (len(rows) >= _SHOWN)}: "
        "some likely parameters make these data impossible, and control variates need a smooth "
        "log-likelihood. Use a link that keeps parameters in range for every row (exp or softplus "
        "for a rate or a scale, sigmoid for a probability), or sample this model with pm.NUTS."
    )
