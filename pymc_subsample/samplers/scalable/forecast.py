"""What decisions by thinned rows, and their surrogate, will be like: by all rows at some points.

And which rows the surrogate should therefore read itself: those whose expansions leave most of the
posterior.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import ndtr

from pymc_subsample.bounds.remainders import RowBounds
from pymc_subsample.compiled.process import one_thread
from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.expansion.reference import Reference

_TWENTYFOLD = math.log(20.0)  # As the rule `UNDERRATED` says.
_ROUNDING, _TINY = 1e-9, 1e-300  # Of bounds that are met exactly, and what divides nothing by zero.
# Rows that a surrogate reads at most, and how many numbers of them are tried. A choice of time;
# each number that is tried is a sixth larger than the one before.
_MOST, _TRIED = 4096, 40
# By how much effective proposals must become faster. A choice: a forecast may be off by some tens
# of percent.
_WORTHWHILE = 1.5
# What a remainder counts for that is not finite. A choice: no proposal passes it.
_IMPOSSIBLE = 1e6


@dataclass(frozen=True)
class Forecast:
    """What decisions will be like, from all rows at some pairs of points."""

    excess: float  # Largest remainder over its bound.
    row: int  # Where that is.
    # Share of the proposals accepted by the rows, by `kernel.FACTORISED` and `MH_SS`, and
    # if all rows decided.
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
    """Compare all rows with their bounds between successive draws phi of the surrogate, (K, P)."""
    table = bounds.table
    bound, stratum = np.full(expansion.n_rows, np.nan), np.zeros(expansion.n_rows, dtype=np.int64)
    bound[table.order] = table.bound
    stratum[table.order] = np.repeat(np.arange(len(table.total)), np.diff(table.start))
    pairs = list(pairwise(points))
    powers, wholes = [], []
    for pair in pairs:
        near, far = (bounds.distances(phi, reference.center) for phi in pair)
        within = np.searchsorted(table.limits, np.maximum(near, far))
        beyond = np.column_stack([table.beyond, np.full(len(near), np.inf)])
        raised = near**table.power + far**table.power
        powers.append(raised * beyond[np.arange(len(near)), within])
        with np.errstate(invalid="ignore"):  # zero times infinity: all rows are read
            rates = intensity / temperature * table.total * powers[-1]
        wholes.append(~(rates < np.diff(table.start)))
    weights = np.array([bounds.known(phi, reference.center) for phi in points]) / temperature
    read = np.diff(weights)
    # What rows that are drawn lose and gain.
    parts, noise = np.zeros((2, len(pairs))), np.zeros(len(pairs))
    excess, row, at = 0.0, -1, 0
    for left in expansion.over(remainders, reference.center, points):
        here = slice(at, at + left.shape[1])
        first, last = np.searchsorted(bounds.exact, [here.start, here.stop])
        left[:, bounds.exact[first:last] - at] = 0.0
        weights += left.sum(axis=1) / temperature
        for j, (raised, whole) in enumerate(zip(powers, wholes, strict=True)):
            with np.errstate(over="ignore", invalid="ignore"):
                change = left[j + 1] - left[j]
                most = bound[here] * raised[stratum[here]]
                size = np.abs(change) / (most * (1.0 + _ROUNDING) + _ROUNDING)
            drawn = np.isfinite(most)
            size = np.where(drawn, np.where(np.isnan(change), np.inf, size), 0.0)
            worst = int(size.argmax())
            if size[worst] > excess:
                excess, row = float(size[worst]), at + worst
            # Others are read, and decide together.
            drawn &= ~whole[stratum[here]]
            read[j] += change[~drawn].sum() / temperature
            changed = change[drawn] / temperature
            parts[:, j] += np.maximum(-changed, 0.0).sum(), np.maximum(changed, 0.0).sum()
            noise[j] += temperature * np.sum(changed**2 / np.maximum(most[drawn], _TINY))
        at += left.shape[1]
    return Forecast(excess, row, _accepted(weights, read, parts, noise / intensity))


def remainders(
    expansion: Expansion, batches: Iterable[np.ndarray], center: np.ndarray, points: np.ndarray
) -> np.ndarray:
    """Return what control variates leave of rows at points phi, shape (K, m)."""
    [rows] = batches
    expansion.anchor(center, rows)
    found = np.empty((len(points), rows.shape[1]))
    for phi, out in zip(points, found, strict=True):
        expansion.change(center, phi, center, rows, out)
    return found


def _sums(
    expansion: Expansion, batches: Iterable[np.ndarray], center: np.ndarray, points: np.ndarray
) -> np.ndarray:
    return remainders(expansion, batches, center, points).sum(axis=1)


def _accepted(
    weights: np.ndarray, read: np.ndarray, parts: np.ndarray, noise: np.ndarray
) -> tuple[float, float, float]:
    """Return the shares of proposals that are accepted, by each form and if all rows decided.

    `weights`, shape (K,), are log-ratios of the posterior and its surrogate at points of the
    surrogate. A chain starts from points of the posterior: each counts by its ratio, in both
    directions between successive ones. `read`, shape (K - 1,), is the log-ratio of rows that are
    read in any case, `parts`, (2, K - 1), what others lose and gain, `noise` the variance of the
    log-ratio by them.
    """
    weights = np.where(np.isnan(weights), -np.inf, weights)
    starts = np.concatenate([weights[:-1], weights[1:]])
    ends = np.concatenate([weights[1:], weights[:-1]])
    highest = starts.max()
    if not np.isfinite(highest):
        return 0.0, 0.0, 0.0
    share = np.exp(starts - highest)
    possible = share > 0
    share = share[possible] / share.sum()
    with np.errstate(invalid="ignore"):
        total = (ends - starts)[possible]
    known = np.concatenate([read, -read])[possible]
    known = np.where(np.isnan(known), -np.inf, known)
    lost = np.concatenate([parts[0], parts[1]])[possible]
    variance = np.concatenate([noise, noise])[possible]
    alone = np.exp(np.minimum(known, 0.0) - lost)
    # Of a normal log-ratio of variance v, with mean total - v / 2.
    mixed = np.array([_normal_acceptance(t, v) for t, v in zip(total, variance, strict=True)])
    return tuple(float(share @ x) for x in (alone, mixed, np.exp(np.minimum(total, 0.0))))  # type: ignore[return-value]


@one_thread
def underrated(
    expansion: Expansion,
    reference: Reference,
    bounds: RowBounds,
    points: np.ndarray,
    temperature: float = 1.0,
) -> float:
    """Share of points phi, shape (N, P), where the posterior is far above its surrogate.

    That is twenty times as large, relative to the surrogate, as at the median point. A chain of
    independent proposals rarely comes there, and then stays for long. One pass over the rows.
    """
    total = np.array([bounds.known(phi, reference.center) for phi in points]) / temperature
    for left in expansion.over(_sums, reference.center, points, without=bounds.exact):
        total += left / temperature
    return float(np.mean(~(total - np.median(total) <= _TWENTYFOLD)))


@one_thread
def exact_rows(
    expansion: Expansion,
    reference: Reference,
    points: np.ndarray,
    *,
    temperature: float,
    gradients: float,
    row: float,
    others: float,
) -> np.ndarray:
    """Choose rows that the surrogate reads, by what they cost and how near they bring it.

    Rows of small groups decide against most proposals together, and against those that would bring
    a chain back from where the surrogate has little mass: there, a log-likelihood of few rows is no
    parabola. Two passes over the rows.

    `points`, values of phi, shape (K, P), are spread as the posterior is. There are `gradients` of
    the surrogate per proposal; `row` is the time that a row adds to one, `others` that of the rest
    of a proposal. Returns rows in order; none where none are worth their time.
    """
    scores, total = [], np.zeros(len(points))
    for left in expansion.over(remainders, reference.center, points):
        varying = _varying(left)
        scores.append(np.linalg.norm(varying, axis=0).astype("f4"))
        total += varying.sum(axis=1)
    score = np.concatenate(scores)
    most = min(_MOST, len(score))
    index = np.argpartition(-score, most - 1)[:most]
    index = index[np.argsort(-score[index], kind="stable")]
    rows = expansion.take(index)
    varying = _varying(remainders(expansion, [rows], reference.center, points))
    left = total[:, None] - np.column_stack([np.zeros(len(points)), np.cumsum(varying, axis=1)])
    tried = np.unique(np.r_[0, np.geomspace(8, most, _TRIED).astype(int)])  # fewer are no gain
    tried = tried[tried <= most]
    # Of normal log-ratios between posterior and surrogate, the share of draws that are effective.
    effective = np.exp(-left[:, tried].var(axis=0) / temperature**2)
    rate = effective / (others + gradients * row * tried)
    best = int(np.argmax(rate))
    return np.sort(index[: tried[best] if rate[best] > _WORTHWHILE * rate[0] else 0])


def _varying(left: np.ndarray) -> np.ndarray:
    left = np.nan_to_num(left, nan=-_IMPOSSIBLE, neginf=-_IMPOSSIBLE, posinf=_IMPOSSIBLE)
    return left - left.mean(axis=0)


def _normal_acceptance(mean: float, variance: float) -> float:
    """Return the expectation of min(1, e^x) for x ~ N(mean - variance / 2, variance)."""
    if not variance > _TINY:
        return float(np.exp(min(mean, 0.0)))
    sd = np.sqrt(variance)
    up = ndtr((mean - variance / 2) / sd)
    # which overflows beyond
    return float(up + np.exp(min(mean, 700.0)) * ndtr(-(mean + variance / 2) / sd))
