r"""The minibatch Barker test (Seita et al. 2017, Algorithm 1).

The proposal is accepted when

.. math:: \hat\Delta + X_{nc} + X_{corr} > 0

where :math:`\hat\Delta` estimates the log-ratio with variance :math:`s^2 < \sigma^2`,
:math:`X_{nc} \sim N(0, \sigma^2 - s^2)` and :math:`X_{corr}` turns :math:`N(0, \sigma^2)` into a
standard logistic variable: the acceptance probability is then :math:`1 / (1 + e^{-\Delta})`. With
all rows seen this is exact.
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
    NORMAL,
    PROBABILITY,
    REJECT,
    SECOND,
    THIRD,
    UNIFORM,
    VARIANCE,
)

# Followed by the support and the cumulative probabilities of the correction.
SETTINGS = ("batch_size", "max_error", "sigma", "correction_error", "n_support")


@kept()
def skewness_error(third, n, b):
    """Leading error of the acceptance probability; see `pymc_subsample.correction.test_error`."""
    share = b / n
    return abs(third) / (b * b) * (1.0 - share) * (2.0 - share) / 48.0


@kept(DECIDE)
def decide(settings, evidence):
    """Decide, or ask for more rows while the estimate is too noisy or too skewed."""
    batch, max_error, sigma, floor = settings[0], settings[1], settings[2], settings[3]
    n, b = evidence[N_ROWS], evidence[COUNT]
    ratio = evidence[MEAN] + evidence[KNOWN]
    u = evidence[UNIFORM]
    evidence[PROBABILITY] = 1.0 / (1.0 + np.exp(-ratio))
    evidence[VARIANCE] = 0.0
    evidence[ERROR] = 0.0
    if b >= n:
        return ACCEPT if ratio > np.log((1.0 - u) / u) else REJECT
    second = evidence[SECOND] * b / (b - 1.0)
    variance = second / b * (1.0 - b / n)
    evidence[VARIANCE] = variance
    evidence[ERROR] = floor + skewness_error(evidence[THIRD], n, b)
    if not variance < sigma * sigma or not evidence[ERROR] <= max_error:
        needed = 0.8 * second / (sigma * sigma + second / n)
        if not needed < n:  # overflow
            return np.int64(n)
        return np.int64(min(n, max(b + batch, needed)))
    size = int(settings[4])
    support, cumulative = settings[5 : 5 + size], settings[5 + size : 5 + 2 * size]
    correction = support[min(np.searchsorted(cumulative, u), size - 1)]
    noise = np.sqrt(sigma * sigma - variance) * evidence[NORMAL]
    return ACCEPT if ratio + noise + correction > 0.0 else REJECT
