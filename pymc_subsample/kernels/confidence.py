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

import numpy as np

from pymc_subsample.cache import kept
from pymc_subsample.kernels.evidence import (
    ACCEPT,
    COUNT,
    DECIDE,
    ERROR,
    HIGH,
    KNOWN,
    LOOK,
    LOW,
    MEAN,
    N_ROWS,
    PROBABILITY,
    REJECT,
    SECOND,
    THRESHOLD,
    VARIANCE,
)

SETTINGS = ("batch_size", "delta", "p", "gamma", "inequality")
INEQUALITIES = ("bernstein-serfling", "bernstein", "hoeffding-serfling")

_KAPPA = 7 / 3 + 3 / np.sqrt(2)


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
    delta, p, gamma, inequality = settings[1], settings[2], settings[3], int(settings[4])
    n, b, look = evidence[N_ROWS], evidence[COUNT], evidence[LOOK]
    ratio = evidence[MEAN] + evidence[KNOWN]
    distance = ratio - evidence[THRESHOLD]
    evidence[PROBABILITY] = np.exp(min(ratio, 0.0))
    evidence[VARIANCE] = 0.0
    evidence[ERROR] = 0.0
    if b < n:
        level = (p - 1.0) / (p * look**p) * delta
        spread, scale = evidence[HIGH] - evidence[LOW], np.sqrt(evidence[SECOND])
        evidence[VARIANCE] = evidence[SECOND] / (b - 1.0) * (1.0 - (b - 1.0) / (n - 1.0))
        evidence[ERROR] = delta
        if not abs(distance) > radius(inequality, n, b, spread, scale, level):
            return np.int64(min(n, np.ceil(gamma * b)))
    return ACCEPT if distance > 0.0 else REJECT
