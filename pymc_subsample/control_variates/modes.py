"""Whether the posterior has another mode as high as the one that was found.

Chains start around one reference point, so their agreement cannot show a second mode.
"""

import numpy as np

from pymc_subsample.control_variates.expansion import Expansion
from pymc_subsample.control_variates.reference import Reference, log_posterior
from pymc_subsample.control_variates.search import mode_of_rows, polish

# Beyond, the search takes too long.
MAX_PARAMETERS = 200

_STARTS = 4
_ROWS = 1000
# A mode counts as another one beyond this many standard deviations per parameter, and as high as
# the first within this difference of log posteriors.
_APART = 5.0
EQUAL = 5.0


def other_mode(
    expansion: Expansion,
    reference: Reference,
    start: np.ndarray,
    active: np.ndarray,
    scale: np.ndarray,
    rng: np.random.Generator,
    temperature: float = 1.0,
) -> Reference | None:
    """Search from jittered starts for another mode at least about as high as the reference.

    Parameters
    ----------
    expansion, reference
        Compiled model and the mode that is known.
    start : ndarray, shape (d,)
        Starts are uniform within 2 of it.
    active : ndarray, shape (a,)
        Elements of theta that may move.
    scale : ndarray, shape (a,)
        Their posterior standard deviations at the reference.
    rng : numpy.random.Generator
        Draws starts and rows.
    temperature : float, default 1
        Divides the log-likelihood.
    """
    if not 0 < len(active) <= MAX_PARAMETERS:
        return None
    n = expansion.n_rows
    size = min(n, max(_ROWS, 20 * len(active)))
    rows = expansion.batches(rng.integers(0, n, size))
    weight = n / (size * temperature)
    known, height = mode_of_rows(expansion, reference.theta, active, rows, weight)
    for _ in range(_STARTS):
        theta = reference.theta.copy()
        theta[active] = start[active] + rng.uniform(-2, 2, len(active))
        found, value = mode_of_rows(expansion, theta, active, rows, weight)
        # One observation's worth of evidence on these rows says nothing about all of them.
        if size * (value - height) < -1.0 or not _apart(found, known, active, scale):
            continue
        candidate = polish(expansion, found, active, temperature)
        higher = log_posterior(expansion, candidate) - log_posterior(expansion, reference)
        if higher > -EQUAL and _apart(candidate.theta, reference.theta, active, scale):
            return candidate
    return None


def _apart(theta, other, active, scale) -> bool:
    return bool(np.sqrt(np.mean(((theta - other)[active] / scale) ** 2)) > _APART)
