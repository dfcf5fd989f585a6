r"""What leaving out does, of all rows: by Taylor terms of order 2 around the posterior mean.

With l the log-likelihood of a row, or of a group of rows, expanded at the mean of the draws in
unconstrained space, where :math:`\Sigma` is their covariance,

.. math:: b = \operatorname{tr}(\nabla^2 l\, \Sigma), \qquad s = \nabla l'\, \Sigma\, \nabla l,

.. math:: -\log E[e^{-l}] \approx l + \tfrac12 \log(1 + b) - \frac{s}{2 (1 + b)}, \qquad
          \log E[e^{l}] \approx l - \tfrac12 \log(1 - b) + \frac{s}{2 (1 - b)}.

Of a normal posterior and a quadratic l of one linear predictor that is exact; to first order in b
and s it is the delta method of Magnusson et al. (2020). Derivatives are differences over one
standard deviation, so that the terms also see what lies beyond order 2.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pymc_subsample.comparison.groups import Groups
from pymc_subsample.control_variates import Expansion
from pymc_subsample.diagnostics.drift import Drift, directions, drift
from pymc_subsample.diagnostics.thinned import spread

# Up to so many parameters the pass goes in all directions of the posterior. Of more, in as many as
# read so many numbers of the rows, within bounds.
_ALL, _NUMBERS, _FEWEST, _MOST = 64, 1e10, 16, 1_000
# Slopes of groups along directions, in memory.
_SLOPES = 2**23
# The size of b from which it is taken to be no larger.
_MOST_BEND = 0.75


@dataclass(frozen=True)
class Approximation:
    """What is known of all rows, or groups, before any is left out; arrays of shape (n,).

    Attributes
    ----------
    level : ndarray
        Log-likelihood at the posterior mean.
    elpd : ndarray
        Log density when it is left out, by terms of order 2.
    p : ndarray
        By how much that is below the log of its mean likelihood.
    drift : Drift
        How far off the draws are, but for what order 2 leaves.
    """

    level: np.ndarray
    elpd: np.ndarray
    p: np.ndarray
    drift: Drift


def approximate(
    expansion: Expansion, thetas: np.ndarray, groups: Groups | None = None
) -> Approximation:
    """Pass over all rows at the mean of draws theta, shape (S, d), and two points per direction.

    Memory does not grow with the draws; rows take three numbers each.

    Raises
    ------
    ValueError
        If the log-likelihood of a row is not finite at the mean of the draws.
    """
    n = expansion.n_rows if groups is None else groups.n
    center = thetas.mean(axis=0)
    most = min(_NUMBERS / (2 * expansion.n_rows * expansion.width), _MOST)
    if groups is not None:
        most = min(most, _SLOPES / n)
    small = thetas.shape[1] <= _ALL
    steps, weight = directions(thetas, _ALL if small else max(_FEWEST, int(most)))
    points = [center, *(center + sign * step for step in steps for sign in (1.0, -1.0))]
    points = [expansion.parameters(point)[0] for point in points]
    found = np.zeros((3 if groups is None else 2 + len(steps), n))
    start, bad = 0, []
    slope = steps @ _prior_slope(expansion, thetas)
    for part, rising in expansion.over(_terms_at, points, weight, groups is not None):
        slope += rising
        here = slice(start, start + part.shape[1])
        start = here.stop
        bad += (here.start + np.flatnonzero(~np.isfinite(part[0]))).tolist()
        if groups is None:
            found[:, here] = part
        else:
            groups.add(found, part, here)
    if bad:
        raise ValueError(
            f"pms.loo: at the mean of the draws the log-likelihood is not finite in {len(bad):,} "
            f"rows, such as {expansion.store.named(bad[:5])}. Such rows are impossible for likely "
            "parameters, and their log predictive density is not defined."
        )
    if groups is not None:
        spread = weight * np.sum(found[2:] ** 2, axis=0)
        found = _left_out(found[0], found[1], spread)
    level, elpd, p = found
    return Approximation(level, elpd, p, drift(thetas, steps, weight, slope))


def _prior_slope(expansion: Expansion, thetas: np.ndarray) -> np.ndarray:
    """Mean gradient of the log prior over draws; that of the log posterior has mean zero."""
    none = np.zeros(expansion.phi_size)
    some = spread(len(thetas), 1, _MOST)
    return np.mean([expansion.pull_back(thetas[s], none) for s in some], axis=0)


def _terms_at(
    expansion: Expansion,
    batches: Iterable[np.ndarray],
    points: Sequence[np.ndarray],
    weight: float,
    apart: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return what `Approximation` holds of some rows, or l, b and the slopes along all directions.

    And the slopes' sums.

    Rows that are impossible at a point have the largest b, which calls for a look at them.
    """
    [rows] = batches
    m = rows.shape[1]
    level, forth, back = np.empty((3, m))
    bend, spread, slopes, rising = np.zeros(m), np.zeros(m), [], []
    expansion.loglik(points[0], rows, level)
    for there, here in zip(points[1::2], points[2::2], strict=True):
        expansion.loglik(there, rows, forth)
        expansion.loglik(here, rows, back)
        slope = 0.5 * (forth - back)
        bend += weight * (forth + back - 2 * level)
        spread += weight * slope**2
        rising.append(slope.sum())
        if apart:
            slopes.append(slope)
    known = np.isfinite(bend) & np.isfinite(spread)
    bend = np.where(known, bend, -_MOST_BEND)
    if apart:
        terms = np.array([level, bend, *(np.where(known, slope, 0.0) for slope in slopes)])
    else:
        terms = _left_out(level, bend, np.where(known, spread, 0.0))
    return terms, np.array(rising)


def _left_out(level: np.ndarray, bend: np.ndarray, spread: np.ndarray) -> np.ndarray:
    bend = np.clip(bend, -_MOST_BEND, _MOST_BEND)
    elpd = level + 0.5 * (np.log1p(bend) - spread / (1 + bend))
    lpd = level + 0.5 * (spread / (1 - bend) - np.log1p(-bend))
    return np.array([level, elpd, lpd - elpd])
