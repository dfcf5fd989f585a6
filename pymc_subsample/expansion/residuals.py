"""What control variates leave of the log-likelihood, row by row, around the reference.

Few rows leave most of it where predictors have heavy tails or groups are small. Read at every
estimate, they add nothing to its variance; the others then take a smaller subsample.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pymc_subsample.compiled.process import one_thread
from pymc_subsample.expansion.estimators import (
    ResidualMoments,
    choose_subsample_size,
    moments_from_sums,
)
from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.model import TallModelError

_SHOWN = 10  # Rows that a message names.
# Rows whose residuals are kept one by one: at most this many, and this share of all. Choices: more
# would be most of what a draw reads.
_MOST_OUTLYING = 20_000
_SHARE_OUTLYING = 0.25
# Random rows that tell which ones may be among them.
_SAMPLE = 10_000
# Numbers of rows to read always that are tried, and the cost below which some are. Choices: a fifth
# covers what predictions of cost are off by.
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

    def moments(self, always: int = 0) -> ResidualMoments:
        """Moments over all rows but the first `always` of the outlying ones."""
        return self._moments([always])[0]

    def _moments(self, always: Sequence[int]) -> list[ResidualMoments]:
        """Return those over all rows but the first so many, for several numbers that increase."""
        sums, outer, largest = self.sums, self.outer, self.largest
        found = []
        for first, last in reversed([*pairwise([*always, len(self.index)])]):
            powers, further, far = _summed(self.outlying[:, first:last], self.sums.shape[1])
            sums, outer, largest = sums + powers, outer + further, max(largest, far)
            lowest = float(np.min(outer, initial=np.inf))
            found.append(moments_from_sums(sums, self.n_rows - first, largest, lowest))
        return found[::-1]

    def followed(self, part: "Residuals", most: int) -> "Residuals":
        """Add the rows that follow; outlying ones are kept until they are twice too many."""
        both = Residuals(
            np.concatenate([self.index, self.n_rows + part.index]),
            np.concatenate([self.outlying, part.outlying], axis=1),
            self.sums + part.sums,
            self.outer + part.outer,
            max(self.largest, part.largest),
            self.n_rows + part.n_rows,
        )
        return both.ranked(most) if len(both.index) > 2 * most else both

    def ranked(self, most: int) -> "Residuals":
        """Order outlying rows, and add those beyond so many to the others."""
        inner = self.sums.shape[1]
        order = np.argsort(-_score(self.outlying, inner), kind="stable")
        keep, rest = order[:most], order[most:]
        sums, outer, largest = _summed(self.outlying[:, rest], inner)
        return Residuals(
            self.index[keep], self.outlying[:, keep], self.sums + sums, self.outer + outer,
            max(self.largest, largest), self.n_rows,
        )  # fmt: skip

    def choose_always(self, temperature: float = 1.0) -> np.ndarray:
        """Return the rows to read always, in order: those with which an estimate reads fewest."""
        most = len(self.index)
        sizes = np.r_[0, np.geomspace(10, max(most, 10), _CANDIDATES).astype(int)]
        tried = np.unique(np.minimum(sizes, most)).tolist()
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
    most = int(min(_MOST_OUTLYING, _SHARE_OUTLYING * expansion.n_rows))
    center, inner = reference.center, len(thetas)
    some = expansion.residuals(expansion.take(_sample(expansion.n_rows)), center, points)
    least = _least_outlying(some, inner, 2 * most / expansion.n_rows)
    gathered = _split(np.zeros((len(points), 0)), inner, least) if before is None else before
    bad: list[int] = []
    start = gathered.n_rows
    for part, wrong in expansion.over(_split_at, center, points, inner, least, begin=start):
        bad += (start + wrong).tolist()
        start += part.n_rows
        if not bad:
            gathered = gathered.followed(part, most)
    if bad:
        raise _not_finite(expansion, bad)
    return gathered.ranked(most)


def _score(d: np.ndarray, inner: int) -> np.ndarray:
    """How far out rows are, by their residuals, shape (k, rows), `inner` of them in the posterior.

    Not all points choose: where they did, what is left is less than elsewhere.
    """
    d = np.delete(d, np.s_[(inner + 1) // 2 : inner], axis=0)
    return np.abs(np.where(np.isfinite(d), d, np.inf)).max(axis=0, initial=0.0)


def _sample(n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, n, _SAMPLE) if n > _SAMPLE else np.arange(n)


def _least_outlying(d: np.ndarray, inner: int, share: float) -> float:
    """Return a score that, as random rows say, a share of the rows exceed, or more."""
    if not share:
        return np.inf
    return float(np.quantile(_score(d, inner), 1 - min(1.0, share), method="lower"))


def _split_at(
    expansion: Expansion,
    batches: Iterable[np.ndarray],
    center: np.ndarray,
    points: np.ndarray,
    inner: int,
    least: float,
) -> tuple[Residuals, np.ndarray]:
    """Evaluate some successive rows; also return which are not finite."""
    [rows] = batches
    d = expansion.residuals(rows, center, points)
    bad = np.flatnonzero(~np.isfinite(d[:inner]).all(axis=0))[:_SHOWN]
    return _split(d, inner, least), bad


def _split(d: np.ndarray, inner: int, least: float) -> Residuals:
    """Split residuals, shape (k, rows), at a score."""
    index = np.flatnonzero(_score(d, inner) > least)
    rest = np.delete(d, index, axis=1) if len(index) else d
    return Residuals(index, d[:, index], *_summed(rest, inner), d.shape[1])


def _summed(d: np.ndarray, inner: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Sum the first four powers of residuals; of those further out return sum and largest."""
    inside, outside = np.split(d, [inner])
    power, sums = np.ones_like(inside), []
    for _ in range(4):
        power *= inside
        sums.append(power.sum(axis=1))
    finite = np.where(np.isfinite(outside), outside, 0.0)
    return np.array(sums), finite.sum(axis=1), float(np.abs(finite).max(initial=0.0))


def _not_finite(expansion: Expansion, rows: list[int]) -> TallModelError:
    shown = expansion.store.named(rows[:_SHOWN])
    return TallModelError(
        f"The log-likelihood of {', '.join(map(repr, expansion.likelihood))} is not finite within "
        f"the spread of the posterior, in rows {shown}{' and maybe more' * (len(rows) >= _SHOWN)}: "
        "some likely parameters make these data impossible, and control variates need a smooth "
        "log-likelihood. Use a link that keeps parameters in range for every row (exp or softplus "
        "for a rate or a scale, sigmoid for a probability), or sample this model with pm.sample()."
    )
