r"""How far a noisy log-likelihood estimate moves the posterior.

What a chain samples differs from the posterior by a factor :math:`e^{b(\theta)}`, where

.. math:: b(\theta) = \log E_u\, e^{\hat\ell - \hat\sigma^2 / 2} - \ell(\theta).

Rows are drawn independently, so b is a sum over rows: it needs no normality and no small variance.
Reweighting some hundred draws by :math:`e^{-b}` shows how far means and standard deviations are
off. `estimate_errors` reads rows for it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

# Largest share of a variable's squares in one draw that says something of its standard deviation.
# A choice: above it that draw is the standard deviation.
_LARGEST_SHARE = 0.3


@dataclass(frozen=True)
class EstimateErrors:
    """Errors of the log-likelihood estimate at some points."""

    variance: np.ndarray  # Variance of the estimate, shape (k,).
    bias: np.ndarray  # Shape (k,): b: log of the mean likelihood estimate minus the log-likelihood.

    def at(self, index: np.ndarray) -> "EstimateErrors":
        """Return those at some of the points."""
        return EstimateErrors(self.variance[index], self.bias[index])


@dataclass(frozen=True)
class DrawErrors:
    """Errors of the estimate at draws of a chain, shape (k,), by a few rows.

    At some of the draws, `index`, of shape (j,), they are known by all rows too, and correct what
    few rows say: the difference estimator, here of an average over draws.
    """

    shares: np.ndarray  # Shape (k,): of all draws that each stands for.
    few: EstimateErrors
    index: np.ndarray
    whole: EstimateErrors
    chosen: np.ndarray  # Shape (j,): what each of these stands for.

    @np.errstate(all="ignore")  # of errors that are not finite
    def average(self, function: Callable[[EstimateErrors], np.ndarray]) -> float:
        """Return the average of a function of the errors over all draws."""
        correction = function(self.whole) - function(self.few.at(self.index))
        return float(self.shares @ function(self.few) + self.chosen @ correction)

    @np.errstate(all="ignore")
    def weights(self) -> np.ndarray:
        """Weights of the draws in the posterior, shape (k,): their shares times exp(-b).

        They are NaN where b is not finite by all rows.
        """
        if not np.all(np.isfinite(self.whole.bias)):
            return np.full(len(self.shares), np.nan)
        least = min(np.min(self.few.bias), np.min(self.whole.bias, initial=np.inf))
        weights = self.shares * np.exp(least - self.few.bias)
        correction = np.exp(least - self.whole.bias) - np.exp(least - self.few.bias[self.index])
        np.add.at(weights, self.index, self.chosen * correction)
        return weights


@dataclass(frozen=True)
class Perturbation:
    """How far a posterior is off: means in standard deviations, these relatively."""

    # Largest errors of a mean and of a standard deviation, less what the noise of a few draws makes
    # of the largest of many beyond that of one.
    shift: float
    stretch: float
    # Largest errors as estimated.
    seen_shift: float
    seen_stretch: float


def perturbation(weights: np.ndarray, shares: np.ndarray, z: np.ndarray) -> Perturbation:
    """Estimate how far posterior means and standard deviations are off; infinite if unknown.

    `weights`, of draws in the posterior, and `shares`, of all draws that each stands for, have
    shape (k,); `z`, shape (k, a), are these draws, standardised.

    Each error is estimated from the same few draws. Even where b depends on no parameter in
    particular, the largest of many such estimates is far from zero. By how much the median of the
    largest of many squared normal numbers exceeds that of one, times the squared standard error, is
    taken off each squared estimate. Nothing is taken off where z has one column.
    """
    if not (np.all(np.isfinite(weights)) and weights.sum() > 0):
        return Perturbation(np.inf, np.inf, np.inf, np.inf)
    powers = np.column_stack([z, z**2])
    move = weights / weights.sum() - shares
    shift, square = np.split(move @ powers, 2)
    errors = np.abs(shift), np.abs(square - shift**2) / 2
    # Standard errors if b did not depend on the parameter.
    spread = shares @ (powers - shares @ powers) ** 2
    noise = np.sqrt(np.sum(move**2) * spread)
    of_shift, of_square = np.split(noise, 2)
    # Medians of the largest of as many squared standard normal numbers, and of one.
    of_largest = ndtri((1 + 0.5 ** (1 / z.shape[1])) / 2) ** 2 - ndtri(0.75) ** 2
    known = [
        float(np.sqrt(np.max(np.maximum(error**2 - of_largest * own**2, 0.0))))
        for error, own in zip(errors, (of_shift, of_square / 2), strict=True)
    ]
    return Perturbation(*known, *(float(np.max(error)) for error in errors))


@np.errstate(all="ignore")  # what is not finite says nothing
def standardised(values: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return values at draws, shape (k, l), less their mean and over their standard deviation."""
    off = values - shares @ values
    off /= np.max(np.abs(off), axis=0, initial=np.finfo(float).tiny)
    z = off / np.sqrt(shares @ off**2)
    return np.where(np.isfinite(z), z, 0.0)


def with_known_sd(z: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return those columns of z, (k, l), of which no single draw makes much of the variance."""
    return z[:, np.max(shares[:, None] * z**2, axis=0, initial=0.0) <= _LARGEST_SHARE]
