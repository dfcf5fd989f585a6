r"""The block-Poisson estimator: how noisy it is, how often negative, and how many factors it takes.

.. math:: \hat L = e^{\sum_i q_i + a + \lambda} \prod_{b=1}^{K} \frac{\hat d_b - a}{\lambda},
          \qquad K \sim \mathrm{Pois}(\lambda)

with minibatch estimates :math:`\hat d_b` of d, the sum of the residuals (Dang et al. 2019, eq.
5.1, where :math:`K = \sum_l \mathcal X_l`), is unbiased for the likelihood whatever a. With the
soft lower bound :math:`a = d - \lambda` a factor is :math:`A \sim N(1, s^2)`, :math:`s =
\mathrm{sd}(\hat d_b) / \lambda`, so that log|L| is a sum of a Poisson number of terms log|A| and
the number of negative factors is Poisson:

.. math:: \mathrm{Var} \log |\hat L| = \lambda (\nu^2 + \eta^2), \qquad
          \tau = \Pr(\hat L \ge 0) = \tfrac12 \left(1 + e^{-2 \lambda \Phi(-1 / s)}\right)

where :math:`\eta` and :math:`\nu^2` are mean and variance of log|A|, half a noncentral chi-square's
logarithm (Quiroz et al. 2018, section 4 and its supplement).
"""

import numpy as np
from scipy.special import digamma, gammaln, ndtr, polygamma

from pymc_subsample.expansion.estimators import SMALLEST_SUBSAMPLE, VARIANCE_BOUND, ResidualMoments
from pymc_subsample.kernels.model import MINIBATCH

# Below this spread the moments of log|A| are their leading terms to single precision.
_SMALL = 1e-3
# Standard deviations of a Poisson variable beyond which terms are below rounding (e^-72), and
# numbers of rows that are tried: some 5% apart. A choice: the cost is flat around its least.
_WIDTH = 12.0
_CANDIDATES = 200
# Blocks in which the factors are refreshed, for the inefficiency that a refresh costs.
_BLOCKS = 10


def log_factor_moments(s: float) -> tuple[float, float]:
    r"""Mean and variance of log|A|, A ~ N(1, s^2).

    :math:`A^2 / s^2` is chi-square with 1 + 2 J degrees of freedom, J ~ Pois(1 / (2 s^2)), and the
    logarithm of a chi-square has mean :math:`\log 2 + \psi(k / 2)` and variance
    :math:`\psi'(k / 2)`.
    """
    if s < _SMALL:
        return -0.5 * s * s, s * s
    mean = 0.5 / s**2
    width = _WIDTH * np.sqrt(mean) + _WIDTH**2
    j = np.arange(max(0.0, np.floor(mean - width)), np.ceil(mean + width) + 1)
    weights = np.exp(j * np.log(mean) - mean - gammaln(j + 1))
    weights /= weights.sum()
    inner = digamma(0.5 + j)
    center = weights @ inner
    spread = weights @ (polygamma(1, 0.5 + j) + (inner - center) ** 2)
    return float(0.5 * (np.log(2 * s**2) + center)), float(0.25 * spread)


def log_variance(products: float, sd: float) -> float:
    r"""Variance of :math:`\log |\hat L|`.

    `products` is :math:`\lambda`, the expected number of factors, `sd` the standard deviation of a
    minibatch estimate :math:`\hat d_b`.
    """
    mean, variance = log_factor_moments(sd / products)
    return products * (variance + mean**2)


def probability_positive(products: float, sd: float) -> float:
    r"""Probability :math:`\tau` that the estimate is not negative; parameters as `log_variance`."""
    if sd == 0:
        return 1.0
    return float(0.5 * (1 + np.exp(-2 * products * ndtr(-products / sd))))


def inefficiency(variance: float) -> float:
    r"""Draws that are worth one, where a log-likelihood of that variance is drawn at each proposal.

    .. math:: \int \frac{1 + p(w)}{1 - p(w)} \varphi(w)\, dw, \qquad
              p(w) = \Phi(w + \sigma) - e^{-w \sigma - \sigma^2 / 2} \Phi(w)

    for a proposal that is otherwise perfect (Pitt et al. 2012, section 3.4).
    """
    w = np.linspace(-8, 8, 401)
    sigma = np.sqrt(variance)
    rejected = ndtr(w + sigma) - np.exp(-w * sigma - 0.5 * variance) * ndtr(w)
    density = np.exp(-0.5 * w**2)
    return float(np.sum((1 + rejected) / (1 - rejected) * density) / density.sum())


def computational_time(products: float, sd: float) -> float:
    r"""Cost of an effective draw in minibatches: :math:`\lambda\, \mathrm{IF} / (2 \tau - 1)^2`.

    Equation 5.4 of Dang et al. (2019), where one of `_BLOCKS` groups of factors is refreshed at a
    time, so that the variance that counts is as small a part.
    """
    sign = 2 * probability_positive(products, sd) - 1
    return products * inefficiency(log_variance(products, sd) / _BLOCKS) / sign**2


def choose_products(moments: ResidualMoments, temperature: float = 1.0) -> int | None:
    r"""Return the :math:`\lambda` of least computational time.

    Among those that keep the variance of :math:`\log |\hat L|` at or below 1 at every point, take
    at least 100 rows, and let neither a single row, four standard deviations out, nor the sum of
    the residuals, at the edge of the ellipsoid that is sampled, bring a factor to zero, beyond
    which :math:`|\hat L|` may grow. None where n rows are too few for that.
    """
    n = moments.n_rows
    largest = n // MINIBATCH
    sd = float(np.sqrt(np.max(moments.variance(MINIBATCH, temperature))))
    alone = n * moments.largest / MINIBATCH
    fall = float(np.mean(moments.total)) - moments.lowest
    least = max(SMALLEST_SUBSAMPLE / MINIBATCH, alone / temperature, fall / temperature)
    if not max(least, sd) < largest:
        return None
    candidates = np.unique(np.geomspace(max(least, 1), largest, _CANDIDATES).astype(int) + 1)
    candidates = candidates[candidates <= largest]
    quiet = [x for x in candidates if log_variance(x, sd) <= VARIANCE_BOUND]
    if not quiet:
        return None
    return int(min(quiet, key=lambda products: computational_time(products, sd)))
