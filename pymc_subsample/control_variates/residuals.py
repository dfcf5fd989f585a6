"""What control variates leave of the log-likelihood, row by row, around the reference.

Few rows leave most of it where predictors have heavy tails or groups are small. Read at every
estimate, they add nothing to its variance; the others then take a smaller subsample.
"""

from dataclasses import dataclass

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
# Numbers of rows to read always that are tried, and the cost below which some are.
_CANDIDATES = 40
_WORTHWHILE = 0.8


@dataclass(frozen=True)
class Residuals:
    """Residuals of all rows at some points, those of the outlying rows one by one.

    Attributes
    ----------
    index : ndarray of int, shape (K,)
        The outlying rows, by their largest residual at the first half of the points and at the
        outer ones, which decreases.
    outlying : ndarray, shape (k + j, K)
        Their residuals at k points within the posterior and at j outer points.
    sums : ndarray, shape (4, k)
        Sums over all other rows of the first four powers.
    outer : ndarray, shape (j,)
        Sums over all other rows at the outer points.
    largest : float
        Largest of the others at an outer point.
    n_rows : int
        Number of rows.
    """

    index: np.ndarray
    outlying: np.ndarray
    sums: np.ndarray
    outer: np.ndarray
    largest: float
    n_rows: int

    def moments(self, always: int = 0) -> Moments:
        """Moments over all rows but the first `always` of the outlying ones."""
        points = self.sums.shape[1]
        left, outer = np.split(self.outlying[:, always:], [points])
        sums = self.sums + [np.sum(left**power, axis=1) for power in (1, 2, 3, 4)]
        finite = np.where(np.isfinite(outer), outer, 0.0)
        largest = max(self.largest, float(np.abs(finite).max(initial=0.0)))
        lowest = float(np.min(self.outer + finite.sum(axis=1), initial=np.inf))
        return moments_from_sums(sums, self.n_rows - always, largest, lowest)

    def choose_always(self, temperature: float = 1.0) -> np.ndarray:
        """Return the rows to read always, in order: those that make an estimate cheapest.

        The cost of an estimate is the number of rows that it reads.
        """
        most = len(self.index)
        sizes = np.unique(np.r_[0, np.geomspace(10, max(most, 10), _CANDIDATES).astype(int)])
        costs = {
            int(e): e + choose_subsample_size(self.moments(int(e)), temperature)
            for e in sizes[sizes <= most]
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
) -> Residuals:
    """Evaluate residuals over all rows at points theta, shape (k, d), in one pass.

    At the points `far`, shape (j, d), only the largest residual and their sum count.

    Raises
    ------
    TallModelError
        If a residual is not finite at one of the points `thetas`.
    """
    points = [expansion.parameters(theta)[0] for theta in [*thetas, *far]]
    kept = _Outlying(len(thetas), len(far), int(min(_MOST_KEPT, _SHARE_KEPT * expansion.n_rows)))
    grad = np.zeros(expansion.phi_size)
    bad: list[int] = []
    start = 0
    for rows in expansion.chunks():
        expansion.anchor(reference.center, rows)
        d = np.empty((len(points), rows.shape[1]))
        for out, phi in zip(d, points, strict=True):
            expansion.difference(phi, rows, reference.center, 1.0, 0.0, out, grad)
        finite = np.isfinite(d[: len(thetas)]).all(axis=0)
        if not finite.all():
            bad += (start + np.flatnonzero(~finite)[:_SHOWN]).tolist()
        elif not bad:
            kept.add(start, d)
        start += d.shape[1]
    if bad:
        raise _not_finite(expansion, sorted(bad))
    return kept.residuals(expansion.n_rows)


class _Outlying:
    """Keeps the rows of the largest residuals, and adds the others up."""

    def __init__(self, points: int, far: int, size: int) -> None:
        self._points, self._size = points, size
        self._sums, self._outer = np.zeros((4, points)), np.zeros(far)
        self._largest, self._least = 0.0, 0.0
        self._index = np.zeros(0, dtype=np.int64)
        self._kept = np.zeros((points + far, 0))

    def add(self, start: int, d: np.ndarray) -> None:
        """Add the residuals of successive rows, shape (points, rows)."""
        outlying = self._score(d) > self._least if self._size else np.zeros(d.shape[1], dtype=bool)
        self._drop(d[:, ~outlying] if outlying.any() else d)
        self._index = np.concatenate([self._index, start + np.flatnonzero(outlying)])
        self._kept = np.concatenate([self._kept, d[:, outlying]], axis=1)
        if len(self._index) > 2 * self._size:
            self._shrink()

    def residuals(self, n_rows: int) -> Residuals:
        self._shrink()
        order = np.argsort(-self._score(self._kept), kind="stable")
        return Residuals(
            self._index[order], self._kept[:, order], self._sums, self._outer, self._largest, n_rows
        )

    def _score(self, d: np.ndarray) -> np.ndarray:
        # Not all points choose: where they did, what is left is less than elsewhere.
        d = np.delete(d, np.s_[(self._points + 1) // 2 : self._points], axis=0)
        return np.abs(np.where(np.isfinite(d), d, np.inf)).max(axis=0, initial=0.0)

    def _shrink(self) -> None:
        score = self._score(self._kept)
        if len(score) <= self._size:
            return
        order = np.argsort(-score, kind="stable")
        keep, rest = order[: self._size], order[self._size :]
        self._drop(self._kept[:, rest])
        self._least = float(score[keep].min(initial=np.inf))
        self._index, self._kept = self._index[keep], self._kept[:, keep]

    def _drop(self, d: np.ndarray) -> None:
        inner, outer = np.split(d, [self._points])
        power = np.ones_like(inner)
        for total in self._sums:
            power *= inner
            total += power.sum(axis=1)
        finite = np.where(np.isfinite(outer), outer, 0.0)
        self._largest = max(self._largest, float(np.abs(finite).max(initial=0.0)))
        self._outer += finite.sum(axis=1)


def _not_finite(expansion: Expansion, rows: list[int]) -> TallModelError:
    shown = expansion.store.named(rows[:_SHOWN])
    return TallModelError(
        f"The log-likelihood of {', '.join(map(repr, expansion.observed))} is not finite within "
        f"the spread of the posterior, in rows {shown}{' and maybe more' * (len(rows) >= _SHOWN)}: "
        "some likely parameters make these data impossible, and control variates need a smooth "
        "log-likelihood. Use a link that keeps parameters in range for every row (exp or softplus "
        "for a rate or a scale, sigmoid for a probability), or sample this model with pm.NUTS."
    )
