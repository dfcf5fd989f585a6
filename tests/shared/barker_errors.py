r"""The error of the Barker test on a batch, by moments of its rows, up to order 1 / b.

`samplers.minibatch.correction` derives the leading term. Rows are drawn with replacement, or
without it a `fraction` f of all; `skewness` g and excess `kurtosis` are those of the rows' terms, s
the standard deviation of the estimated log-ratio.
"""

import numpy as np
from scipy.special import expit


def third_cumulant(skewness, s, b, fraction=0.0):
    r"""Return :math:`k = 3\, cov(e, \hat s^2) / 2 - \kappa_3(e) / 2`.

    Without replacement :math:`\kappa_3(e) = (1 - f) (1 - 2 f) K_3 / b^2`,
    :math:`cov(e, \hat s^2) = (1 - f)^2 K_3 / b^2` and :math:`\hat s^2 = (1 - f) S^2 / b`.
    """
    return (2 - fraction) / (2 * np.sqrt(1 - fraction)) * skewness * s**3 / np.sqrt(b)


def fourth_coefficient(kurtosis, s, b, fraction=0.0):
    r"""Return :math:`c = \kappa_4(e) / 24 - \kappa(e, e, \hat s^2) / 4 + var(\hat s^2) / 8`."""
    f = fraction
    return s**4 / b * (0.25 - kurtosis * (2 - 6 * f + 3 * f**2) / (24 * (1 - f)))


def leading_error(delta, k):
    """Return -k / 3 F''' at log-ratios: P(accept) - F up to order 1 / sqrt(b)."""
    u = expit(delta) * expit(-np.asarray(delta))
    return -k / 3 * u * (1 - 6 * u)


def second_order_error(delta, k, c):
    """Return what `leading_error` leaves out up to order 1 / b: c F'''' + k^2 / 18 F''''''."""
    accept, reject = expit(delta), expit(-np.asarray(delta))
    u, w = accept * reject, reject - accept
    fourth, sixth = u * w * (1 - 12 * u), u * w * (1 - 60 * u + 360 * u**2)
    return c * fourth + k**2 / 18 * sixth


def worst_error(k):
    """Return the largest size of `leading_error`, at a log-ratio of zero."""
    return np.abs(k) / 24
