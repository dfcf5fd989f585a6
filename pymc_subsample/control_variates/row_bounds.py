r"""Bounds on what control variates of order 2 leave of each row, and tables to draw rows by them.

A row sees k elements of phi, the same ones as all rows of its stratum s, by E linear predictors.
With :math:`r_s = \|W_s (\phi - \phi^*)\|` in these elements, predictor e moves by
:math:`a_e r_s` at most, :math:`a_e = \|W_s^{-T} x_e\|`. With :math:`c_{efg}` the largest size of a
third derivative of the row's log-likelihood meanwhile, Taylor's theorem gives

.. math:: |l_i - q_i| \le c_i r_s^3, \qquad c_i = \frac{1}{3!} \sum_{efg} c_{efg} a_e a_f a_g.

Any :math:`W_s` will do; the inverse of the posterior covariance's Cholesky factor makes r_s about
:math:`\sqrt k`, and a_e a standard deviation. Derivatives are bounded everywhere, as those of
logistic rows, or while r_s is within a limit, by interval arithmetic.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import ndtr

from pymc_subsample.blas import one_thread
from pymc_subsample.control_variates.expansion import Expansion
from pymc_subsample.control_variates.reference import Reference
from pymc_subsample.control_variates.sums import LinearSums
from pymc_subsample.kernels.scalable import Bounds, alias_table, distances, reaches
from pymc_subsample.likelihood import TallModelError

BOUNDS = ("auto", "global", "local")

# Limits of r_s beyond its typical size, and everywhere, and by how much at most bounds are larger
# than within the first: sharper ones are made as large.
_BEYOND = (2.0, 5.0, 15.0)
_LARGER = (1.0, 3.0, 10.0, 30.0)
# Elements of all strata's metrics, and of phi that all rows see.
_MOST_METRICS, _MOST_COMMON = 4_000_000, 500
# Of a bound, over the mean of its stratum: below it, single precision would tell.
_LEAST = 1e-3
# What rounding to single precision may do to a bound.
_SINGLE = 1e-6
_TWENTYFOLD = math.log(20.0)
# Rows of which so many times all would be read always have no useful bounds.
_MOST_ALWAYS = 0.25
# Per decision: no sharper bounds are looked for.
_FEW_ROWS = 3.0
_RIDGE = 1e-10
_ROUNDING, _TINY, _SMALLEST = 1e-9, 1e-300, np.float32(1e-30)


@dataclass(frozen=True, repr=False)
class RowBounds:
    """Bounds of all rows at a reference.

    Attributes
    ----------
    table : Bounds
        As compiled transitions take them, at temperature 1; see `kernels.scalable`.
    kind : {"global", "local"}
        Whether they hold everywhere.
    drawn, passed : float
        Rows to be expected per decision: candidates and those that are read always, and those of
        strata that are read whole.
    """

    table: Bounds
    kind: str
    drawn: float
    passed: float

    def __repr__(self) -> str:
        return f"RowBounds(kind={self.kind!r}, drawn={self.drawn:.3g}, passed={self.passed:.3g})"

    @property
    def per_decision(self) -> float:
        """Rows to be expected per decision."""
        return self.drawn + self.passed

    def distances(self, phi: np.ndarray, center: np.ndarray) -> np.ndarray:
        """Return r_s of all strata, shape (S,)."""
        found = np.empty(len(self.table.total))
        distances(self.table.elements, self.table.metric, len(found), phi, center, found)
        return found


@one_thread
def bound_rows(
    expansion: Expansion,
    reference: Reference,
    points: np.ndarray,
    kind: str | float = "auto",
    *,
    temperature: float = 1.0,
    intensity: float = 1.0,
) -> RowBounds:
    """Bound all rows' remainders around a reference, in three passes over the rows.

    Parameters
    ----------
    expansion : Expansion
        Compiled model, with control variates of order 2.
    reference : Reference
        Where these are expanded.
    points : ndarray, shape (N, P)
        Values of phi that are spread as the posterior is.
    kind : {"auto", "global", "local"} or float
        Where bounds of third derivatives come from; a number bounds those of every row in its
        predictor.
    temperature, intensity : float
        Of the log-likelihood, and kappa; see `kernels.scalable`.

    Raises
    ------
    TallModelError
        If there are none; the message says why.
    """
    if kind == "auto" and expansion.slope() is not None:
        # Where these are sharp enough, intervals are not worth their time.
        scale = {"temperature": temperature, "intensity": intensity}
        found = bound_rows(expansion, reference, points, "global", **scale)
        if found.per_decision <= _FEW_ROWS:
            return found
    strata = _Strata(expansion, points)
    third = _Third(expansion, reference.center, kind, strata.size)
    sizes, sharpest = [], []
    for rows in expansion.chunks():
        expansion.anchor(reference.center, rows)
        stratum = strata.of(rows)
        moves = np.empty((expansion.n_predictors, rows.shape[1]))
        for e in range(expansion.n_predictors):
            reaches(strata.factor, stratum, strata.sums.local_design(rows, e), moves[e])
        sizes.append(stratum.astype(np.int32))
        with np.errstate(over="ignore"):
            sharpest.append(third.bounds(rows, moves).astype(np.float32))
    stratum, bounds = np.concatenate(sizes), np.concatenate(sharpest, axis=1)
    cube = np.mean(strata.distances(reference.center) ** 3, axis=0)
    rate = 2.0 * intensity / temperature * cube
    count = np.bincount(stratum, minlength=len(cube))
    for wider, larger in zip(bounds[1:], _LARGER[1:], strict=False):
        np.maximum(bounds[0], np.where(np.isfinite(wider), wider, 0.0) / larger, out=bounds[0])
    bound, finite = bounds[0], np.isfinite(bounds[0])
    if np.mean(~finite) > _MOST_ALWAYS:
        raise TallModelError(third.refusal())
    candidates = np.where(finite, np.minimum(bound * rate[stratum], 1.0), 1.0)
    # Strata that will be read whole need no rows that are read always.
    whole = np.bincount(stratum, candidates, len(cube)) >= 0.5 * count
    always = ~finite | ((candidates == 1.0) & ~whole[stratum])
    table = _table(strata, stratum, bound, always)
    beyond = np.ones((len(cube), len(bounds)))
    for j, wider in enumerate(bounds[1:], 1):
        with np.errstate(over="ignore", invalid="ignore"):
            ratio = np.where(always, 1.0, wider / np.maximum(bound, _SMALLEST))
        np.maximum.at(beyond[:, j], stratum, np.where(np.isnan(ratio), np.inf, ratio))
    beyond *= np.where(beyond > 1.0, 1.0 + _SINGLE, 1.0)
    table = table._replace(limits=third.limits, beyond=beyond)
    thinned, left = table.total * rate, np.diff(table.start)
    few = thinned < left
    drawn = np.where(few, thinned, 0.0).sum() + len(table.always)
    return RowBounds(table, third.kind, float(drawn), float(np.where(few, 0, left).sum()))


@dataclass(frozen=True)
class Forecast:
    """What decisions will be like, from all rows at some pairs of points.

    Attributes
    ----------
    excess : float
        Largest remainder over its bound.
    row : int
        Where that is.
    accepted : tuple of float
        Share of the proposals that the rows accept, by `kernels.scalable.FACTORISED` and `MH_SS`,
        and if all rows decided.
    """

    excess: float
    row: int
    accepted: tuple[float, float, float]


@one_thread
def forecast(
    expansion: Expansion,
    reference: Reference,
    bounds: RowBounds,
    points: np.ndarray,
    *,
    temperature: float = 1.0,
    intensity: float = 1.0,
) -> Forecast:
    """Compare all rows with their bounds between successive points phi, shape (K, P)."""
    table = bounds.table
    bound, stratum = np.full(expansion.n_rows, np.nan), np.zeros(expansion.n_rows, dtype=np.int64)
    bound[table.order] = table.bound
    stratum[table.order] = np.repeat(np.arange(len(table.total)), np.diff(table.start))
    pairs = list(pairwise(points))
    cubes, wholes = [], []
    for pair in pairs:
        near, far = (bounds.distances(phi, reference.center) for phi in pair)
        within = np.searchsorted(table.limits, np.maximum(near, far))
        beyond = np.column_stack([table.beyond, np.full(len(near), np.inf)])
        cubes.append((near**3 + far**3) * beyond[np.arange(len(near)), within])
        rates = intensity / temperature * table.total * cubes[-1]
        wholes.append(~(rates < np.diff(table.start)))
    lost, noise, read, total = (np.zeros(len(pairs)) for _ in range(4))
    excess, row, at = 0.0, -1, 0
    for rows in expansion.chunks():
        here = slice(at, at + rows.shape[1])
        expansion.anchor(reference.center, rows)
        change = np.empty(rows.shape[1])
        for j, ((phi, new_phi), cube, whole) in enumerate(zip(pairs, cubes, wholes, strict=True)):
            expansion.change(phi, new_phi, reference.center, rows, change)
            with np.errstate(over="ignore", invalid="ignore"):
                most = bound[here] * cube[stratum[here]]
                size = np.abs(change) / (most * (1.0 + _ROUNDING) + _ROUNDING)
            drawn = np.isfinite(most)
            size = np.where(drawn, np.where(np.isnan(change), np.inf, size), 0.0)
            worst = int(size.argmax())
            if size[worst] > excess:
                excess, row = float(size[worst]), at + worst
            total[j] += change.sum() / temperature
            # Others are read, and decide together.
            drawn &= ~whole[stratum[here]]
            read[j] += change[~drawn].sum() / temperature
            lost[j] += np.maximum(-change[drawn], 0.0).sum() / temperature
            noise[j] += np.sum(change[drawn] ** 2 / np.maximum(most[drawn], _TINY)) / temperature
        at += rows.shape[1]
    # From beyond a guard to beyond it.
    read, total = (np.where(np.isnan(x), -np.inf, x) for x in (read, total))
    known = np.exp(np.minimum(total, 0.0))
    # Of a normal log-ratio of variance v, with mean total - v / 2.
    mixed = [_normal_acceptance(t, v / intensity) for t, v in zip(total, noise, strict=True)]
    alone = np.exp(np.minimum(read, 0.0) - lost)
    accepted = np.mean(alone), np.mean(mixed), np.mean(known)
    return Forecast(excess, row, (float(accepted[0]), float(accepted[1]), float(accepted[2])))


@one_thread
def underrated(
    expansion: Expansion, reference: Reference, points: np.ndarray, temperature: float = 1.0
) -> float:
    """Share of points phi, shape (N, P), where the posterior is far above its surrogate.

    That is twenty times as large, relative to the surrogate, as at the median point. A chain of
    independent proposals rarely comes there, and then stays for long. One pass over the rows.
    """
    total = np.zeros(len(points))
    for rows in expansion.chunks():
        expansion.anchor(reference.center, rows)
        change = np.empty(rows.shape[1])
        for j, phi in enumerate(points):
            expansion.change(reference.center, phi, reference.center, rows, change)
            total[j] += change.sum() / temperature
    return float(np.mean(~(total - np.median(total) <= _TWENTYFOLD)))


def _normal_acceptance(mean: float, variance: float) -> float:
    """Return the expectation of min(1, e^x) for x ~ N(mean - variance / 2, variance)."""
    if not variance > _TINY:
        return float(np.exp(min(mean, 0.0)))
    sd = np.sqrt(variance)
    up = ndtr((mean - variance / 2) / sd)
    return float(up + np.exp(min(mean, 700.0)) * ndtr(-(mean + variance / 2) / sd))


class _Strata:
    """Rows that see the same elements of phi, and metrics in these elements."""

    def __init__(self, expansion: Expansion, points: np.ndarray):
        sums = expansion.sums
        assert isinstance(sums, LinearSums)
        self.sums, self._points = sums, points
        self.size = len(sums.common) + len(sums.slots)
        keys = [np.zeros((1, len(sums.slots)), dtype=np.int64)]
        if sums.slots:
            found = (np.unique(sums.levels(rows).T, axis=0) for rows in expansion.chunks())
            keys = [np.unique(np.concatenate(list(found)), axis=0)]
        [self._keys] = keys
        count = len(self._keys)
        codes = math.prod(len(np.unique(column)) for column in self._keys.T)
        crowded = count * self.size**2 > _MOST_METRICS or codes > np.iinfo(np.int64).max
        if crowded or len(sums.common) > _MOST_COMMON:
            raise TallModelError(
                f"ScalableMH keeps a metric for each set of parameters that rows see together: "
                f"{count:,} sets of {self.size} parameters in this model, more than it can look at "
                "in every draw. Use HMCECS."
            )
        common = np.tile(sums.common, (count, 1))
        self.elements = np.concatenate([common, self._keys[:, : len(sums.slots)]], axis=1)
        self.factor = np.array([self._factor(points[:, e]) for e in self.elements])
        self.metric = np.linalg.inv(self.factor) if self.size else self.factor
        # Inverses of triangular matrices are triangular but for rounding.
        self.metric = np.ascontiguousarray(np.tril(self.metric))
        self._codes = _Codes(self._keys)

    @staticmethod
    def _factor(points: np.ndarray) -> np.ndarray:
        cov = np.atleast_2d(np.cov(points.T))
        scale = np.sqrt(np.diag(cov))
        scale = np.where(scale > 0, scale, 1.0)
        corr = cov / np.outer(scale, scale) + _RIDGE * np.eye(len(scale))
        values, vectors = np.linalg.eigh(corr)
        root = vectors * np.sqrt(np.maximum(values, _RIDGE))
        # The triangular factor of root root'.
        upper = np.linalg.qr(root.T, mode="r")
        lower = upper.T * np.where(np.diag(upper) < 0, -1.0, 1.0)
        return np.ascontiguousarray(scale[:, None] * lower)

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the stratum of each packed row."""
        if not self.sums.slots:
            return np.zeros(rows.shape[1], dtype=np.int64)
        return self._codes(self.sums.levels(rows))

    def distances(self, center: np.ndarray) -> np.ndarray:
        """Return r_s at some of the points, shape (k, S)."""
        found = np.empty((min(len(self._points), 200), len(self.elements)))
        for point, out in zip(self._points, found, strict=False):
            distances(self.elements, self.metric, len(out), point, center, out)
        return found


class _Codes:
    """Numbers rows by their combination of levels."""

    def __init__(self, keys: np.ndarray):
        self._levels = [np.unique(column) for column in keys.T]
        self._known = self._code(keys.T)
        self._order = np.argsort(self._known)

    def __call__(self, levels: np.ndarray) -> np.ndarray:
        place = np.searchsorted(self._known, self._code(levels), sorter=self._order)
        return self._order[place]

    def _code(self, levels: np.ndarray) -> np.ndarray:
        code = np.zeros(levels.shape[1], dtype=np.int64)
        for known, column in zip(self._levels, levels, strict=True):
            code = code * len(known) + np.searchsorted(known, column)
        return code


class _Third:
    """Sizes of the rows' third derivatives while their predictors move."""

    def __init__(self, expansion: Expansion, center: np.ndarray, kind: str | float, size: int):
        self._observed = ", ".join(map(repr, expansion.observed))
        self._slope = None
        if not isinstance(kind, str):
            self._slope, self.kind = float(kind), "global"
        elif kind != "local":
            self._slope = expansion.slope()
        if kind == "global" and self._slope is None:
            raise TallModelError(
                f'bound="global" needs rows of {self._observed} with one linear predictor each and '
                "a third derivative that is bounded everywhere (logistic regression, for "
                'instance); this model has not. Use bound="auto".'
            )
        near = expansion.remainder(center) if isinstance(kind, str) and kind != "global" else None
        self._near: Callable[[np.ndarray, np.ndarray, float], np.ndarray] | None = near
        if self._slope is None and near is None:
            raise TallModelError(self.refusal())
        self.kind = "local" if self._slope is None else "global"
        limits = [] if near is None else [math.sqrt(size) + more for more in _BEYOND]
        self.limits = np.array(limits + ([] if self._slope is None else [np.inf]))

    def refusal(self) -> str:
        """Say that rows have no bounds."""
        return (
            f"ScalableMH needs bounds on the third derivatives of the log-likelihood of "
            f"{self._observed} in at most ten linear predictors per row, and found none near the "
            "posterior mode. Use HMCECS."
        )

    def bounds(self, rows: np.ndarray, moves: np.ndarray) -> np.ndarray:
        """Return c_i for each of the limits, shape (L, m), of anchored rows."""
        found = []
        everywhere = np.full(rows.shape[1], np.inf)
        if self._slope is not None:
            everywhere = self._slope / 6.0 * moves[0] ** 3
        for limit in self.limits:
            near = everywhere
            if np.isfinite(limit):
                assert self._near is not None
                near = np.minimum(self._near(rows, moves, limit), everywhere)
            found.append(near)
        return np.array(found)


def _table(strata: _Strata, stratum: np.ndarray, bound: np.ndarray, always: np.ndarray) -> Bounds:
    """Sort rows by strata, and make the alias tables of those that are drawn."""
    drawn = np.flatnonzero(~always)
    drawn = drawn[np.argsort(stratum[drawn], kind="stable")]
    count = len(strata.elements)
    start = np.concatenate([[0], np.cumsum(np.bincount(stratum[drawn], minlength=count))])
    threshold = np.empty(len(drawn), dtype=np.float32)
    alias = np.empty(len(drawn), dtype=np.int32)
    sizes, total = np.empty(len(drawn), dtype=np.float32), np.zeros(count)
    for s in range(count):
        part = slice(start[s], start[s + 1])
        own = bound[drawn[part]].astype(float)
        if not len(own):
            continue
        least = max(_LEAST * own.mean(), _TINY)
        own = np.maximum(own, least)
        alias_table(own / own.mean(), threshold[part], alias[part])
        # The tables' own probabilities are what bounds are proportional to.
        share = threshold[part].astype(float)
        np.add.at(share, alias[part], 1.0 - threshold[part])
        share /= len(own)
        total[s] = (1.0 + _SINGLE) * np.max(own / share)
        sizes[part] = total[s] * share
    return Bounds(
        np.ascontiguousarray(strata.elements), strata.metric, np.zeros(0), np.ones((count, 0)),
        total, start.astype(np.int64), drawn.astype(np.int32), sizes, threshold, alias,
        np.flatnonzero(always).astype(np.int32),
    )  # fmt: skip
