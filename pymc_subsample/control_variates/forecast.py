"""What decisions by thinned rows, and their surrogate, will be like: by all rows at some points."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import ndtr

from pymc_subsample.blas import one_thread
from pymc_subsample.control_variates.expansion import Expansion
from pymc_subsample.control_variates.reference import Reference
from pymc_subsample.control_variates.row_bounds import RowBounds

_TWENTYFOLD = math.log(20.0)
_ROUNDING, _TINY = 1e-9, 1e-300


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
    powers, wholes = [], []
    for pair in pairs:
        near, far = (bounds.distances(phi, reference.center) for phi in pair)
        within = np.searchsorted(table.limits, np.maximum(near, far))
        beyond = np.column_stack([table.beyond, np.full(len(near), np.inf)])
        raised = near**table.power + far**table.power
        powers.append(raised * beyond[np.arange(len(near)), within])
        rates = intensity / temperature * table.total * powers[-1]
        wholes.append(~(rates < np.diff(table.start)))
    lost, noise = np.zeros(len(pairs)), np.zeros(len(pairs))
    read = np.diff([bounds.known(phi, reference.center) for phi in points]) / temperature
    total = read.copy()
    excess, row, at = 0.0, -1, 0
    for rows in expansion.chunks():
        here = slice(at, at + rows.shape[1])
        expansion.anchor(reference.center, rows)
        change = np.empty(rows.shape[1])
        for j, ((phi, new_phi), raised, whole) in enumerate(
            zip(pairs, powers, wholes, strict=True)
        ):
            expansion.change(phi, new_phi, reference.center, rows, change)
            with np.errstate(over="ignore", invalid="ignore"):
                most = bound[here] * raised[stratum[here]]
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
