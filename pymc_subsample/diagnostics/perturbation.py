r"""How far a noisy log-likelihood estimate moves the posterior.

What a chain samples differs from the posterior by a factor :math:`e^{b(\theta)}`, where

.. math:: b(\theta) = \log E_u\, e^{\hat\ell - \hat\sigma^2 / 2} - \ell(\theta).

Rows are drawn independently, so b is a sum over rows: it needs no normality and no small variance.
`estimate_errors` computes it at chosen draws, most of them where the estimate is noisiest, and
reweighting those by :math:`e^{-b}` shows how far means and standard deviations are off.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from pymc_subsample.control_variates import Expansion
from pymc_subsample.control_variates.reference import Reference
from pymc_subsample.control_variates.residuals import residuals_at


@dataclass(frozen=True)
class EstimateErrors:
    """Errors of the log-likelihood estimate at some points."""

    variance: np.ndarray  # Variance of the estimate, shape (k,).
    bias: np.ndarray  # Shape (k,): b: log of the mean likelihood estimate minus the log-likelihood.


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


def perturbation(bias: np.ndarray, shares: np.ndarray, z: np.ndarray) -> Perturbation:
    """Estimate how far posterior means and standard deviations are off; infinite where b is.

    `bias`, b, and `shares`, of all draws that each stands for, have shape (k,); `z`, shape (k, a),
    are these draws, standardised.

    Each error is estimated from the same few draws. Even where b depends on no parameter in
    particular, the largest of many such estimates is far from zero. By how much the median of the
    largest of many squared normal numbers exceeds that of one, times the squared standard error, is
    taken off each squared estimate. Nothing is taken off a single parameter's.
    """
    if not np.all(np.isfinite(bias)):
        return Perturbation(np.inf, np.inf, np.inf, np.inf)
    weights = shares * np.exp(np.min(bias) - bias)
    weights = weights / weights.sum()
    powers = np.column_stack([z, z**2])
    move = weights - shares
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


@np.errstate(all="ignore")  # where a result is not finite, the check that reads it says so
def estimate_errors(
    expansion: Expansion,
    reference: Reference,
    thetas: np.ndarray,
    subsample_size: int,
    temperature: float,
    without: np.ndarray | tuple = (),
    sample: np.ndarray | None = None,
) -> EstimateErrors:
    r"""Variance and bias of the log-likelihood estimate at points theta, shape (k, d).

    With x = w d, centred over all rows, and m rows drawn with replacement,

    .. math:: b = m \log \frac1n \sum_i e^{x_i - x_i^2 / 2} + \frac{\sigma^2 + \sigma^4}{2 m}.

    The last term stands for the subsample's own mean in the estimated variance. Rows `without`, in
    order, are not drawn. `sample`, shape (width, rows), are packed random ones among the others;
    default: all of those, by a pass.
    """
    m = subsample_size
    weight = (expansion.n_rows - len(without)) / (m * temperature)
    points = np.array([expansion.parameters(theta)[0] for theta in thetas])

    def over(function: Callable, *arguments: Any) -> Iterator[Any]:
        if sample is not None:
            return iter([function(expansion, [sample], *arguments)])
        return expansion.over(function, *arguments, without=without)

    shift = next(over(_first_mean, reference.center, points, weight))
    sums, total = np.zeros((5, len(points))), 0
    for part, size in over(_tilted, reference.center, points, weight, shift):
        sums += part
        total += size
    first, second, zero, one, two = sums / total
    variance = m * np.maximum(second - first**2, 0.0)
    # Move the centre from the first batch's mean to that of all: exactly but for O(first^3).
    centred = zero + first * one + 0.5 * first**2 * two
    bias = m * (np.log1p(centred) - first - 0.5 * first**2)
    return EstimateErrors(variance, bias + (variance + variance**2) / (2 * m))


def _first_mean(
    expansion: Expansion,
    batches: Iterable[np.ndarray],
    center: np.ndarray,
    points: np.ndarray,
    weight: float,
) -> np.ndarray:
    [rows] = batches
    return weight * residuals_at(expansion, rows, center, points).mean(axis=1)


def _tilted(
    expansion: Expansion,
    batches: Iterable[np.ndarray],
    center: np.ndarray,
    points: np.ndarray,
    weight: float,
    shift: np.ndarray,
) -> tuple[np.ndarray, int]:
    """Return sums over a batch, shape (5, k), of which errors are made, and its number of rows."""
    [rows] = batches
    x = weight * residuals_at(expansion, rows, center, points) - shift[:, None]
    exponent = x - 0.5 * x * x
    tilted = np.exp(exponent)
    terms = (x, x * x, np.expm1(exponent), x * tilted, x * x * tilted)
    return np.array([term.sum(axis=1) for term in terms]), rows.shape[1]
