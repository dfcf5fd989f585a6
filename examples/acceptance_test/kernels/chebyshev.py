r"""A test by Chebyshev's inequality, whatever the distribution of the rows.

The mean of b of n rows misses that of all by :math:`|x|` or more with probability at most
:math:`s^2 / x^2`, s its standard error. The test decides once that is below delta at the distance
:math:`x = \bar y + \text{known} - \log u` from its threshold, and else doubles b.
"""

import numpy as np

from pymc_subsample.cache import kept
from pymc_subsample.kernels.evidence import (
    ACCEPT,
    COUNT,
    DECIDE,
    ERROR,
    KNOWN,
    MEAN,
    N_ROWS,
    PROBABILITY,
    REJECT,
    SECOND,
    THRESHOLD,
    VARIANCE,
)  # fmt: skip

SETTINGS = ("batch_size", "delta")


@kept(DECIDE)
def decide(settings, evidence):
    """Decide whether the log-ratio exceeds log u, or ask for twice as many rows."""
    n, b = evidence[N_ROWS], evidence[COUNT]
    ratio = evidence[MEAN] + evidence[KNOWN]
    distance = ratio - evidence[THRESHOLD]
    variance = evidence[SECOND] / (b - 1.0) * (1.0 - (b - 1.0) / (n - 1.0)) if b < n else 0.0
    evidence[PROBABILITY] = np.exp(min(ratio, 0.0))
    evidence[VARIANCE] = variance
    evidence[ERROR] = min(1.0, variance / distance**2) if variance > 0.0 else 0.0
    if b < n and not evidence[ERROR] < settings[1]:
        return np.int64(min(n, 2.0 * b))
    return ACCEPT if distance > 0.0 else REJECT
