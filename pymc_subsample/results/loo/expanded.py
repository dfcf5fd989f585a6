r"""What leaving out does, of all rows: by Taylor terms of order 2 around the posterior mean.

With l the log-likelihood of a row, or of a group of rows, as a function of the parameters phi that
rows see, expanded at the mean of their draws, and :math:`\Sigma` the covariance of these,

.. math:: b = \operatorname{tr}(\nabla^2 l\, \Sigma), \qquad s = \nabla l'\, \Sigma\, \nabla l,

.. math:: -\log E[e^{-l}] \approx l + \tfrac12 \log(1 + b) - \frac{s}{2 (1 + b)}, \qquad
          \log E[e^{l}] \approx l - \tfrac12 \log(1 - b) + \frac{s}{2 (1 - b)}.

Of a normal posterior and a quadratic l of one linear predictor that is exact; to first order in b
and s it is the delta method of Magnusson et al. (2020). Derivatives are differences over one
standard deviation, so that the terms also see what lies beyond order 2. In the model's own
parameters, a hierarchy's scale and its effects in units of it lie on a bent ridge, and their mean
beside it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pymc_subsample.diagnostics.drift import directions
from pymc_subsample.expansion import Expansion
from pymc_subsample.results.loo.arguments import Groups

# Up to so many parameters the pass goes in all directions of the posterior. Of more, in as many
# as read so many numbers of the rows, within bounds. A choice of time.
_ALL, _NUMBERS, _FEWEST, _MOST = 64, 1e10, 16, 1_000
# Slopes of groups along directions, in memory. A choice: 64 MB.
_SLOPES = 2**23
# The size of b from which it is taken to be no larger. A choice: at 1 the approximation has no
# finite value.
_MOST_BEND = 0.75


@dataclass(frozen=True)
class Approximation:
    """What is known of all rows, or groups, before any is left out; arrays of shape (n,)."""

    level: np.ndarray  # Log-likelihood at the posterior mean.
    elpd: np.ndarray  # Log density when it is left out, by terms of order 2.
    p: np.ndarray  # By how much that is below the log of its mean likelihood.


def approximate(
    expansion: Expansion, phis: np.ndarray, groups: Groups | None = None
) -> Approximation:
    """Pass over all rows at the mean of draws phi, shape (S, P), and two points per direction.

    Memory does not grow with the draws; rows take three numbers each. Raises `ValueError` if the
    log-likelihood of a row is not finite at the mean of the draws.
    """
    n = expansion.n_rows if groups is None else groups.n
    center = phis.mean(axis=0)
    most = min(_NUMBERS / (2 * expansion.n_rows * expansion.width), _MOST)
    if groups is not None:
        most = min(most, _SLOPES / n)
    small = phis.shape[1] <= _ALL
    steps, weight = directions(phis, _ALL if small else max(_FEWEST, int(most)))
    points = [center, *(center + sign * step for step in steps for sign in (1.0, -1.0))]
    found = np.zeros((3 if groups is None else 2 + len(steps), n))
    start, bad = 0, []
    for part in expansion.over(_terms_at, points, weight, groups is not None):
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
    return Approximation(*found)


def _terms_at(
    expansion: Expansion,
    batches: Iterable[np.ndarray],
    points: Sequence[np.ndarray],
    weight: float,
    apart: bool,
) -> np.ndarray:
    """Return what `Approximation` holds of some rows, or l, b and the slopes along all directions.

    Rows that are impossible at a point have the largest b, which calls for a look at them.
    """
    [rows] = batches
    m = rows.shape[1]
    level, forth, back = np.empty((3, m))
    bend, spread, slopes = np.zeros(m), np.zeros(m), []
    expansion.loglik(points[0], rows, level)
    for there, here in zip(points[1::2], points[2::2], strict=True):
        expansion.loglik(there, rows, forth)
        expansion.loglik(here, rows, back)
        slope = 0.5 * (forth - back)
        bend += weight * (forth + back - 2 * level)
        spread += weight * slope**2
        if apart:
            slopes.append(slope)
    known = np.isfinite(bend) & np.isfinite(spread)
    bend = np.where(known, bend, -_MOST_BEND)
    if apart:
        return np.array([level, bend, *(np.where(known, slope, 0.0) for slope in slopes)])
    return _left_out(level, bend, np.where(known, spread, 0.0))


def _left_out(level: np.ndarray, bend: np.ndarray, spread: np.ndarray) -> np.ndarray:
    bend = np.clip(bend, -_MOST_BEND, _MOST_BEND)
    elpd = level + 0.5 * (np.log1p(bend) - spread / (1 + bend))
    lpd = level + 0.5 * (spread / (1 - bend) - np.log1p(-bend))
    return np.array([level, elpd, lpd - elpd])
