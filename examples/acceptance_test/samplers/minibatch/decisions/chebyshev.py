r"""A test by Chebyshev's inequality, whatever the distribution of the rows.

The mean of b of n rows misses that of all by :math:`|x|` or more with probability at most
:math:`s^2 / x^2`, s its standard error. The test decides once that is below delta at the distance
:math:`x = \bar y + \text{known} - \log u` from its threshold, and else doubles b.
"""

from collections import namedtuple

import numpy as np

from pymc_subsample.compiled.cache import kept
from pymc_subsample.kernels.vectors import named
from pymc_subsample.samplers.minibatch.decisions import ACCEPT, DECIDE, REJECT, Answer

# Numbers of the test.
Settings = namedtuple("Settings", "batch_size delta")
_settings = named(Settings)


@kept(DECIDE)
def decide(settings, evidence):
    """Decide whether the log-ratio exceeds log u, or ask for twice as many rows."""
    n, b = evidence.n_rows, evidence.n_seen
    ratio = evidence.mean + evidence.known
    distance = ratio - evidence.threshold
    variance = evidence.second / (b - 1.0) * (1.0 - (b - 1.0) / (n - 1.0)) if b < n else 0.0
    probability = np.exp(min(ratio, 0.0))
    error = min(1.0, variance / distance**2) if variance > 0.0 else 0.0
    decision = ACCEPT if distance > 0.0 else REJECT
    if b < n and not error < _settings(settings).delta:
        decision = min(n, 2.0 * b)
    return Answer(decision, probability, error, variance)
