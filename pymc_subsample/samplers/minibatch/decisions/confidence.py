r"""The confidence sampler's test (Bardenet, Doucet and Holmes 2014, Figure 3).

At look k with b rows seen, drawn without replacement, a concentration inequality says that
:math:`\bar y` lies no more than c beyond :math:`E y`, on the side that would mislead the test,
with probability :math:`1 - \delta_k`, :math:`\delta_k = \frac{p - 1}{p k^p} \delta`. The test
decides once :math:`|\bar y + \text{known} - \log u| > c`, and else multiplies b by gamma; its
decision is wrong with probability at most delta. With R the range of y, :math:`\hat\sigma` its
empirical standard deviation and :math:`\rho` about 1 - b/n:

- Hoeffding-Serfling: :math:`c = R \sqrt{(1 - (b-1)/n) \log(2/\delta_k) / (2b)}`;
- empirical Bernstein:
  :math:`c = \hat\sigma \sqrt{2 \log(3/\delta_k) / b} + 3 R \log(3/\delta_k) / b`;
- empirical Bernstein-Serfling (Bardenet and Maillard 2015, Theorem 3):
  :math:`c = \hat\sigma \sqrt{2 \rho \log(5/\delta_k) / b} + \kappa R \log(5/\delta_k) / b`,
  :math:`\kappa = 7/3 + 3/\sqrt 2`.
"""

from collections import namedtuple

import numpy as np

from pymc_subsample.compiled.cache import kept
from pymc_subsample.kernels.vectors import named
from pymc_subsample.samplers.minibatch.decisions import ACCEPT, DECIDE, REJECT, Answer

INEQUALITIES = ("bernstein-serfling", "bernstein", "hoeffding-serfling")

_KAPPA = 7 / 3 + 3 / np.sqrt(2)  # Bardenet and Maillard 2015, Theorem 3.

# Numbers of the test; `inequality` is the position of its name above.
ConfidenceSettings = namedtuple("ConfidenceSettings", "batch_size delta p gamma inequality")
_settings = named(ConfidenceSettings)


@kept()
def radius(inequality, n, b, spread, scale, level):
    """Half-width c of a confidence interval at level 1 - `level` for the mean of n numbers.

    `spread` is their range, `scale` the standard deviation of the b that were drawn.
    """
    if inequality == 2:
        return spread * np.sqrt((1.0 - (b - 1.0) / n) * np.log(2.0 / level) / (2.0 * b))
    if inequality == 1:
        log = np.log(3.0 / level)
        return scale * np.sqrt(2.0 * log / b) + 3.0 * spread * log / b
    log = np.log(5.0 / level)
    rho = 1.0 - (b - 1.0) / n if b <= n / 2 else (1.0 - b / n) * (1.0 + 1.0 / b)
    return scale * np.sqrt(2.0 * rho * log / b) + _KAPPA * spread * log / b


@kept(DECIDE)
def decide(settings, evidence):
    """Decide whether the log-ratio exceeds log u, or ask for gamma times as many rows."""
    _, delta, p, gamma, inequality = _settings(settings)
    n, b = evidence.n_rows, evidence.n_seen
    ratio = evidence.mean + evidence.known
    distance = ratio - evidence.threshold
    probability, error, variance = np.exp(min(ratio, 0.0)), 0.0, 0.0
    if b < n:
        level = (p - 1.0) / (p * evidence.look**p) * delta
        spread, scale = evidence.high - evidence.low, np.sqrt(evidence.second)
        error = delta
        variance = evidence.second / (b - 1.0) * (1.0 - (b - 1.0) / (n - 1.0))
        if not abs(distance) > radius(int(inequality), n, b, spread, scale, level):
            return Answer(min(n, np.ceil(gamma * b)), probability, error, variance)
    return Answer(ACCEPT if distance > 0.0 else REJECT, probability, error, variance)
