r"""Expectations from draws that carry signs, and their Monte Carlo errors.

A sampler of :math:`|\hat L|` records the sign s of its estimate with every draw. Then

.. math:: \hat I = \frac{\sum_j \psi_j s_j}{\sum_j s_j}

estimates the posterior expectation of psi [1]_ [2]_ (equation 5.3 of the latter). Being a ratio of
means, it has the Monte Carlo error of the mean of :math:`z_j = (\psi_j - \hat I) s_j / \bar s`
(the delta method), which is left to ArviZ, autocorrelation included. The effective sample size is
the number of independent draws from the posterior itself with the same error,
:math:`V / \text{error}^2` with V the posterior variance of psi: :math:`N \bar s^2` for N
independent draws whose signs don't depend on psi, as in the computing time (5.4) of [2]_.

Arrays of values and signs have shape (chains, draws); all chains are pooled.

References
----------
.. [1] A.-M. Lyne, M. Girolami, Y. Atchade, H. Strathmann and D. Simpson (2015). On Russian
   roulette estimates for Bayesian inference with doubly-intractable likelihoods. Statistical
   Science 30(4).
.. [2] K.-D. Dang, M. Quiroz, R. Kohn, M.-N. Tran and M. Villani (2019). Hamiltonian Monte Carlo
   with energy conserving subsampling. Journal of Machine Learning Research 20(100), section 5.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import isotonic_regression
from scipy.stats import beta, norm, rankdata

from pymc_subsample.diagnostics import array_stats

# Standard errors of the mean sign per mean sign. Below the first number the bias of a ratio of
# means is a negligible part of its error (W. G. Cochran, Sampling Techniques, 1977, section 6.8);
# above the second one the denominator may as well be zero.
DOUBTFUL = 0.1
HOPELESS = 1 / 3
# One standard deviation to either side, as ArviZ takes it for the error of a quantile.
_ONE_SD = norm.cdf([-1, 1])


def mean(values: np.ndarray, signs: np.ndarray) -> float:
    """Return the estimate of an expectation."""
    return float(np.sum(values * signs) / np.sum(signs))


def influence(values: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return the series whose mean has the Monte Carlo error of the estimate, same shape."""
    return (values - mean(values, signs)) * signs / signs.mean()


def variance(values: np.ndarray, signs: np.ndarray) -> float:
    """Return the estimate of a posterior variance; NaN where noise makes it negative."""
    estimate = mean((values - mean(values, signs)) ** 2, signs)
    return estimate if estimate >= 0 else np.nan


def mcse_mean(values: np.ndarray, signs: np.ndarray) -> float:
    """Return the Monte Carlo standard error of an expectation."""
    return float(array_stats.mcse(influence(values, signs), method="mean"))


def mcse_sd(values: np.ndarray, signs: np.ndarray) -> float:
    """Return the Monte Carlo standard error of a posterior standard deviation."""
    sd = np.sqrt(variance(values, signs))
    if not sd > 0:
        return 0.0 if sd == 0 else np.nan
    return mcse_mean((values - mean(values, signs)) ** 2, signs) / (2 * sd)


def ess_mean(values: np.ndarray, signs: np.ndarray) -> float:
    """Return the effective sample size of an expectation; a constant has the number of draws."""
    if np.ptp(values) == 0:
        return float(values.size)
    return variance(values, signs) / mcse_mean(values, signs) ** 2


def ess_sd(values: np.ndarray, signs: np.ndarray) -> float:
    """Return the effective sample size of a standard deviation."""
    return ess_mean((values - mean(values, signs)) ** 2, signs)


def ess_bulk(values: np.ndarray, signs: np.ndarray) -> float:
    """Return the effective sample size of the ranks among all draws, normalised as ArviZ does."""
    if not np.all(np.isfinite(values)):
        return np.nan
    ranks = rankdata(values).reshape(values.shape)
    return ess_mean(norm.ppf((ranks - 3 / 8) / (values.size + 1 / 4)), signs)  # Blom 1958


def ess_quantile(values: np.ndarray, signs: np.ndarray, prob: float) -> float:
    """Return the effective sample size of the probability of not exceeding a quantile."""
    below = values <= quantile(values, signs, prob)
    return ess_mean(below.astype(float), signs) if np.all(np.isfinite(values)) else np.nan


def ess_tail(values: np.ndarray, signs: np.ndarray, prob: float) -> float:
    """Return the smaller one of the effective sample sizes of two opposite quantiles."""
    return min(ess_quantile(values, signs, prob), ess_quantile(values, signs, 1 - prob))


def r_hat(values: np.ndarray, signs: np.ndarray) -> float:
    """Return the largest R-hat of the draws, their signs and the influence series."""
    of_draws = float(array_stats.rhat(values))
    if not np.isfinite(of_draws):
        return of_draws
    return float(np.max([of_draws, *map(array_stats.rhat, (signs, influence(values, signs)))]))


def distribution(values: np.ndarray, signs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values in order, and the distribution function there.

    Negative signs let the estimate fall in places and leave [0, 1]. What is returned is the
    nondecreasing function nearest to it in least squares over the draws, clipped: its largest
    distance from the posterior's own distribution function is no larger than the estimate's.
    """
    x, place = np.unique(values.ravel(), return_inverse=True)
    raw = np.cumsum(np.bincount(place, weights=signs.ravel())) / signs.sum()
    nearest = isotonic_regression(raw, weights=np.bincount(place).astype(float)).x
    return x, np.clip(nearest, 0.0, 1.0)


def quantile(values: np.ndarray, signs: np.ndarray, prob: ArrayLike) -> np.ndarray:
    """Return the smallest draws at which the distribution function reaches some probabilities.

    These are strictly between 0 and 1. The result has the shape of `prob`; NaN if any draw is.
    """
    if np.any(np.isnan(values)):
        return np.full(np.shape(prob), np.nan)
    x, reached = distribution(values, signs)
    return x[np.minimum(np.searchsorted(reached, prob), len(x) - 1)]


def mcse_quantile(values: np.ndarray, signs: np.ndarray, prob: float) -> float:
    """Return the Monte Carlo standard error of a quantile.

    As ArviZ has it: half the distance between the quantiles at one standard deviation of the
    probability that is reached.
    """
    ess = ess_quantile(values, signs, prob)
    if not np.isfinite(ess):
        return np.nan
    near = beta.ppf(_ONE_SD, ess * prob + 1, ess * (1 - prob) + 1)
    low, high = quantile(values, signs, near)
    return float(high - low) / 2


def hdi(values: np.ndarray, signs: np.ndarray, prob: float) -> np.ndarray:
    """Return the shortest interval between two draws that holds a probability, shape (2,)."""
    if np.any(np.isnan(values)):
        return np.full(2, np.nan)
    x, reached = distribution(values, signs)
    # but for rounding
    last = np.searchsorted(reached, np.concatenate([[0.0], reached[:-1]]) + prob - 1e-12)
    holds = last < len(x)
    first, last = np.flatnonzero(holds), last[holds]
    shortest = np.argmin(x[last] - x[first])
    return np.array([x[first[shortest]], x[last[shortest]]])


def min_ss(values: np.ndarray, signs: np.ndarray) -> float:
    """Return the draws needed for the error of an expectation to be near normal, as ArviZ does."""
    return float(array_stats.pareto_min_ss(influence(values, signs)))


def statistic(
    name: str, values: np.ndarray, signs: np.ndarray, prob: float, tail: float
) -> float | np.ndarray:
    """Return a statistic by its name in ArviZ's summaries; of intervals both ends.

    `prob` is the probability of an interval, `tail` the quantile that `ess_tail` is about, along
    with the opposite one.
    """
    of = {
        "sd": lambda: np.sqrt(variance(values, signs)),
        "eti": lambda: quantile(values, signs, [(1 - prob) / 2, (1 + prob) / 2]),
        "hdi": lambda: hdi(values, signs, prob),
        "ess_tail": lambda: ess_tail(values, signs, tail),
        "median": lambda: quantile(values, signs, 0.5),
        "mad": lambda: quantile(abs(values - quantile(values, signs, 0.5)), signs, 0.5),
        "ess_median": lambda: ess_quantile(values, signs, 0.5),
        "mcse_median": lambda: mcse_quantile(values, signs, 0.5),
    }
    return of[name]() if name in of else _NAMED[name](values, signs)


_NAMED = {f.__name__: f for f in (mean, ess_bulk, ess_mean, min_ss, mcse_mean, mcse_sd, r_hat)}
