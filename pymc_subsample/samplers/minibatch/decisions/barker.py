r"""The minibatch Barker test (Seita et al. 2017, Algorithm 1).

The proposal is accepted when

.. math:: \hat\Delta + X_{nc} + X_{corr} > 0

where :math:`\hat\Delta` estimates the log-ratio with variance :math:`s^2 < \sigma^2`,
:math:`X_{nc} \sim N(0, \sigma^2 - s^2)` and :math:`X_{corr}` turns :math:`N(0, \sigma^2)` into a
standard logistic variable: the acceptance probability is then :math:`1 / (1 + e^{-\Delta})`. With
all rows seen this is exact.
"""

from collections import namedtuple

import numpy as np

from pymc_subsample.compiled.cache import kept
from pymc_subsample.kernels.vectors import named
from pymc_subsample.samplers.minibatch.decisions import ACCEPT, DECIDE, REJECT, Answer

# Numbers of the test; support and cumulative probabilities of the correction follow them.
BarkerSettings = namedtuple(
    "BarkerSettings", "batch_size max_error sigma correction_error n_support"
)
_settings = named(BarkerSettings)


@kept()
def skewness_error(third, n, b):
    """Largest leading error of the acceptance probability; see `samplers.minibatch.correction`."""
    share = b / n
    return abs(third) / (b * b) * (1.0 - share) * (2.0 - share) / 48.0  # |kappa_3| / 24


@kept(DECIDE)
def decide(settings, evidence):
    """Decide, or ask for more rows while the estimate is too noisy or too skewed."""
    batch, max_error, sigma, correction_error, n_support = _settings(settings)
    n, b, u = evidence.n_rows, evidence.n_seen, evidence.uniform
    ratio = evidence.mean + evidence.known
    probability = 1.0 / (1.0 + np.exp(-ratio))
    if b >= n:
        decision = ACCEPT if ratio > np.log((1.0 - u) / u) else REJECT
        return Answer(decision, probability, 0.0, 0.0)
    second = evidence.second * b / (b - 1.0)
    variance = second / b * (1.0 - b / n)
    error = correction_error + skewness_error(evidence.third, n, b)
    if not variance < sigma * sigma or not error <= max_error:
        # A fifth less than this estimate asks for: it is noisy, and another look is cheap.
        needed = 0.8 * second / (sigma * sigma + second / n)
        wanted = min(n, max(b + batch, needed)) if needed < n else n  # overflow
        return Answer(wanted, probability, error, variance)
    size, end = int(n_support), settings.shape[0]
    support, cumulative = settings[end - 2 * size : end - size], settings[end - size :]
    correction = support[min(np.searchsorted(cumulative, u), size - 1)]
    noise = np.sqrt(sigma * sigma - variance) * evidence.normal
    decision = ACCEPT if ratio + noise + correction > 0.0 else REJECT
    return Answer(decision, probability, error, variance)
