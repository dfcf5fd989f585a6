r"""The sequential t-test of austerity MH (Korattikara et al. 2014, Algorithm 1).

With :math:`\bar y` the mean of b of n rows drawn without replacement and :math:`s_y` their
standard deviation,

.. math:: t = \frac{\bar y + \text{known} - \tau}{s}, \qquad
          s = \frac{s_y}{\sqrt b} \sqrt{1 - \frac{b - 1}{n - 1}},

with the threshold :math:`\tau = \log u` for Metropolis-Hastings and
:math:`\tau = \log\frac{u}{1 - u}` for Gibbs sampling. The sign of t decides once
:math:`1 - F_{b-1}(|t|) < \epsilon`, F being Student's distribution function; else b grows. With
all rows seen the decision is the exact one.
"""

import numpy as np

from pymc_subsample.cache import kept
from pymc_subsample.compile import external
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
)

SETTINGS = ("batch_size", "epsilon")

_student_cdf = external("stdtr", 2)


@kept(DECIDE)
def decide(settings, evidence):
    """Decide whether the log-ratio exceeds the threshold, or ask for `batch_size` more rows."""
    batch, epsilon = settings[0], settings[1]
    n, b = evidence[N_ROWS], evidence[COUNT]
    ratio = evidence[MEAN] + evidence[KNOWN]
    evidence[PROBABILITY] = np.exp(min(ratio, 0.0))
    evidence[VARIANCE] = 0.0
    evidence[ERROR] = 0.0
    if b < n:
        if epsilon == 0.0:
            return np.int64(n)
        variance = evidence[SECOND] / (b - 1.0) * (1.0 - (b - 1.0) / (n - 1.0))
        distance = ratio - evidence[THRESHOLD]
        t = abs(distance) / np.sqrt(variance) if variance > 0.0 else np.inf
        evidence[VARIANCE] = variance
        evidence[ERROR] = 1.0 - _student_cdf(b - 1.0, t, 0) if variance > 0.0 else 0.0
        if not evidence[ERROR] < epsilon:
            return np.int64(min(n, b + batch))
    return ACCEPT if ratio > evidence[THRESHOLD] else REJECT
