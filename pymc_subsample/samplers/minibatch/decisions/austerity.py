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

from collections import namedtuple

import numpy as np

from pymc_subsample.compiled.cache import kept
from pymc_subsample.compiled.functions import external
from pymc_subsample.kernels.vectors import named
from pymc_subsample.samplers.minibatch.decisions import ACCEPT, DECIDE, REJECT, Answer

_student_cdf = external("stdtr", 2)

# Rows of the first batch, where it is left open: as Korattikara et al. 2014 have them.
BATCH = 500

# Numbers of the test.
AusteritySettings = namedtuple("AusteritySettings", "batch_size epsilon")
_settings = named(AusteritySettings)


@kept(DECIDE)
def decide(settings, evidence):
    """Decide whether the log-ratio exceeds the threshold, or ask for `batch_size` more rows."""
    batch, epsilon = _settings(settings)
    n, b = evidence.n_rows, evidence.n_seen
    ratio = evidence.mean + evidence.known
    probability, error, variance = np.exp(min(ratio, 0.0)), 0.0, 0.0
    if b < n:
        if epsilon == 0.0:
            return Answer(n, probability, error, variance)
        variance = evidence.second / (b - 1.0) * (1.0 - (b - 1.0) / (n - 1.0))
        distance = ratio - evidence.threshold
        if variance > 0.0:
            error = 1.0 - _student_cdf(b - 1.0, abs(distance) / np.sqrt(variance), 0)
        if not error < epsilon:
            return Answer(min(n, b + batch), probability, error, variance)
    decision = ACCEPT if ratio > evidence.threshold else REJECT
    return Answer(decision, probability, error, variance)
