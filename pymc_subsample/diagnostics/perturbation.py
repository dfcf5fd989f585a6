r"""How far a noisy log-likelihood estimate moves the posterior.

What a chain samples differs from the posterior by a factor :math:`e^{b(\theta)}`, where

.. math:: b(\theta) = \log E_u\, e^{\hat\ell - \hat\sigma^2 / 2} - \ell(\theta).

Rows are drawn independently, so b is a sum over rows: it needs no normality and no small variance.
Reweighting some hundred draws by :math:`e^{-b}` shows how far means and standard deviations are
off. At all of them it is computed from a few rows, first random ones, then also those that matter;
at some of them, from all rows.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.expansion.residuals import residuals_around
from pymc_subsample.rows.row_store import drawn_without

# Rows that are read at all draws, of the largest residuals, and as many others: as many as hold so
# many numbers, within limits. At some 500 draws the 5,000 of few numbers each take 0.05 s; as many
# units of ten rows, of which each is 7 nodes, took 13 s beside 1 s for the chain.
_NUMBERS, _FEWEST, _MOST = 100_000, 500, 5_000
# Draws at which all rows are read: the farthest, so many or all, up to a number, that are farther
# in a parameter than so many standard deviations; and of the others a sample. A choice of time: a
# pass over all rows at some fifty points.
_FARTHEST, _MOST_FAR, _FAR = 8, 32, 4.0
SAMPLED = 16
# Draws at which rows in memory are, at a time. A choice: of memory, which numbers of all rows at
# so many draws take.
_AT_ONCE = 64
# Draws of which a chunk's residuals are held at a time. A choice: of memory.
_IN_A_CHUNK = 8
# Largest share of a variable's squares in one draw that says something of its standard deviation.
# A choice: above it that draw is the standard deviation.
_LARGEST_SHARE = 0.3
# Of an estimate, beside which any noise counts. A choice: ten thousand roundings of doubles.
_NO_NOISE = 1e-12


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


def few(expansion: Expansion) -> int:
    """Return how many rows are read at all draws."""
    return int(np.clip(_NUMBERS // expansion.width, _FEWEST, _MOST))


def errors_by_few(
    expansion: Expansion,
    reference: Reference,
    thetas: np.ndarray,
    shares: np.ndarray,
    subsample_size: int,
    temperature: float,
    without: np.ndarray,
) -> DrawErrors:
    """Errors at draws theta, shape (k, d), by some random rows, or by all if few."""
    parts = [_few_others(expansion, without, 0)]
    found = estimate_errors(
        expansion, reference, thetas, subsample_size, temperature, without, parts
    )
    none = np.zeros(0, dtype=np.int64)
    return DrawErrors(shares, found, none, found.at(none), np.zeros(0))


def errors_by_all(
    expansion: Expansion,
    reference: Reference,
    thetas: np.ndarray,
    shares: np.ndarray,
    noise: np.ndarray,
    z: np.ndarray,
    subsample_size: int,
    temperature: float,
    without: np.ndarray,
    sampled: int = SAMPLED,
) -> DrawErrors:
    """Errors at draws theta, shape (k, d): by all rows at a few, and by the rows that matter there.

    The few draws are the farthest in single standardised parameters z, shape (k, a), where rows may
    matter that do so nowhere else, and of the others `sampled`, systematically, with probabilities
    proportional to what a draw may add to the error of a second moment: its share and its noise,
    shape (k,), times its largest z^2. At all draws the rows of the largest residuals at the
    farthest and half of the others count one by one, and random ones stand for the rest.
    """
    of_estimate = (subsample_size, temperature, without)
    known = noise[np.isfinite(noise)]
    noise = np.where(np.isfinite(noise), noise, known.max(initial=1.0))
    adds = shares * (noise + noise.mean() + _NO_NOISE) * (1 + np.max(z**2, axis=1, initial=0.0))
    far = farthest(z)
    others = np.delete(np.arange(len(adds)), far)
    which, times = _systematic(adds[others], sampled)
    some = others[which]
    index = np.concatenate([far, some])
    stands = times * shares[some]
    stands *= (1 - shares[far].sum()) / max(stands.sum(), _NO_NOISE)
    chosen = np.concatenate([shares[far], stands])
    whole = estimate_errors(expansion, reference, thetas[index], *of_estimate)
    if not np.all(np.isfinite(whole.bias)):
        alone = chosen / chosen.sum()
        return DrawErrors(alone, whole, np.arange(len(index)), whole, np.zeros(len(index)))
    found = residuals_around(expansion, reference, thetas[some], far=thetas[far])
    outlying = np.setdiff1d(found.index[: few(expansion) + len(without)], without)
    apart = np.union1d(outlying, without)
    parts = [(expansion.take(outlying), 1.0), _few_others(expansion, apart, 1)]
    by_few = estimate_errors(expansion, reference, thetas, *of_estimate, parts)
    return DrawErrors(shares, by_few, index, whole, chosen)


def _few_others(expansion: Expansion, without: np.ndarray, seed: int) -> tuple[np.ndarray, float]:
    """Return some random rows, or all if few, and how many each of them stands for."""
    left, many = expansion.n_rows - len(without), few(expansion)
    if left > many:
        index = drawn_without(np.random.default_rng(seed), expansion.n_rows, without, many)
    else:
        index = np.setdiff1d(np.arange(expansion.n_rows), without)
    return expansion.take(index), left / max(len(index), 1)


def farthest(z: np.ndarray, most: int = _MOST_FAR) -> np.ndarray:
    """Return some draws, of z of shape (k, a), that are the farthest of all in a parameter."""
    ends = np.concatenate([z.argmax(axis=0), z.argmin(axis=0)])
    size = np.concatenate([z.max(axis=0), -z.min(axis=0)])
    order = np.argsort(-size, kind="stable")
    ordered = list(dict.fromkeys(ends[order]))
    beyond = len(set(ends[size > _FAR]))
    many = min(max(_FARTHEST, beyond), most)
    return np.sort(np.array(ordered[:many], dtype=np.int64))


def _systematic(adds: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Sample about k by probabilities proportional to `adds`: which, and how many each stands for.

    All of so few are taken, and stand for themselves.
    """
    if not k:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    if len(adds) <= k:
        return np.arange(len(adds)), np.ones(len(adds))
    chance = adds / adds.sum()
    places = np.searchsorted(np.cumsum(chance), (np.arange(k) + 0.5) / k)
    index, times = np.unique(np.minimum(places, len(chance) - 1), return_counts=True)
    return index, times / (k * chance[index])


@np.errstate(all="ignore")  # where a result is not finite, the check that reads it says so
def estimate_errors(
    expansion: Expansion,
    reference: Reference,
    thetas: np.ndarray,
    subsample_size: int,
    temperature: float,
    without: np.ndarray | tuple = (),
    parts: list[tuple[np.ndarray, float]] | None = None,
) -> EstimateErrors:
    r"""Variance and bias of the log-likelihood estimate at points theta, shape (k, d).

    With x = w d, centred over all rows, and m rows drawn with replacement,

    .. math:: b = m \log \frac1n \sum_i e^{x_i - x_i^2 / 2} + \frac{\sigma^2 + \sigma^4}{2 m}.

    The last term stands for the subsample's own mean in the estimated variance. Rows `without`, in
    order, are not drawn. `parts` are packed rows among the others, of which each stands for so
    many; default: all of those, by a pass.
    """
    m = subsample_size
    weight = (expansion.n_rows - len(without)) / (m * temperature)
    points = np.array([expansion.parameters(theta)[0] for theta in thetas])

    sums, total = np.zeros((5, len(points))), 0.0
    if parts is None:
        shift = next(expansion.over(_first_mean, reference.center, points, weight, without=without))
        over = expansion.over(_tilted, reference.center, points, weight, shift, without=without)
        for part, size in over:
            sums += part
            total += size
    else:
        total = sum(each * rows.shape[1] for rows, each in parts)
        for here in np.array_split(np.arange(len(points)), -(-len(points) // _AT_ONCE)):
            found = [
                (weight * expansion.residuals(rows, reference.center, points[here]), each)
                for rows, each in parts
            ]
            mean = sum(each * x.sum(axis=1) for x, each in found) / total
            sums[:, here] = sum(each * _tilted_sums(x - mean[:, None]) for x, each in found)
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
    return weight * expansion.residuals(rows, center, points).mean(axis=1)


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
    found = []
    for here in np.array_split(np.arange(len(points)), -(-len(points) // _IN_A_CHUNK)):
        x = weight * expansion.residuals(rows, center, points[here]) - shift[here, None]
        found.append(_tilted_sums(x))
    return np.hstack(found), rows.shape[1]


def _tilted_sums(x: np.ndarray) -> np.ndarray:
    exponent = x - 0.5 * x * x
    tilted = np.exp(exponent)
    terms = (x, x * x, np.expm1(exponent), x * tilted, x * x * tilted)
    return np.array([term.sum(axis=1) for term in terms])
