"""Two runs of one model: what both cost, and by how much they differ."""

from time import process_time

import numpy as np
from arviz_stats.base import array_stats

# Of differences between two runs, standard errors beyond which one is no noise: of a thousand
# comparisons, in every seventeenth table.
ERRORS = 4.0


def elements(run, name, most=None):
    """Draws of some elements of a variable, (elements, chain, draw)."""
    values = run.posterior[name].transpose("chain", "draw", ...).to_numpy()
    values = values.reshape(*values.shape[:2], -1)
    found = np.arange(values.shape[2])
    if most is not None and len(found) > most:
        found = np.random.default_rng(0).choice(found, most, replace=False)
    return [x for x in np.moveaxis(values[:, :, found], 2, 0) if np.ptp(x) > 0]


def beyond(one, other):
    """Return by how much means and sds differ beyond Monte Carlo error: in sds, and as shares."""
    sd = other.std()
    squares = [(x - x.mean()) ** 2 for x in (one, other)]
    ess = [float(array_stats.ess(x)) for x in (one, other)]
    of_squares = [float(array_stats.ess(x)) for x in squares]
    noise = np.hypot(*(x.std() / sd / np.sqrt(n) for x, n in zip((one, other), ess, strict=True)))
    mean = abs(one.mean() - other.mean()) / sd
    spread = np.hypot(*(
        x.std() / x.mean() / 2 / np.sqrt(n) for x, n in zip(squares, of_squares, strict=True)
    ))  # fmt: skip
    return max(mean - ERRORS * noise, 0.0), max(abs(one.std() / sd - 1) - ERRORS * spread, 0.0)


def largest(one, other, names, most=None):
    """Return the largest such differences of any element of some variables."""
    pairs = (
        pair
        for name in names
        for pair in zip(*(elements(run, name, most) for run in (one, other)), strict=True)
    )
    return np.max([beyond(*pair) for pair in pairs], axis=0)


def smallest_ess(run, names):
    return min(float(array_stats.ess(x)) for name in names for x in elements(run, name))


def timed(sample):
    began = process_time()
    return sample(), process_time() - began
