r"""Posterior moments from the draws of a noisy log posterior, by exact importance weights.

The chain of a pseudo-marginal method samples :math:`p(\theta)\, p(u)\, |\hat L(\theta, u)|`, and u
does not depend on theta. With :math:`w = L(\theta) / |\hat L(\theta, u)|`,

.. math:: \frac{E[w \psi(\theta)]}{E[w]} = E[\psi(\theta) \mid \text{data}]

whatever the noise of the estimate and whatever its sign.
"""

from dataclasses import dataclass, replace

import numpy as np

from pymc_subsample.diagnostics import array_stats

# Spread of log weights below which smoothing them is rounding. A choice: a million roundings of
# doubles.
_EQUAL = 1e-9
# Pareto shape of weights from which on no feasible number of draws makes their means reliable.
# Vehtari et al. 2024, section 3.
MOST_K = 0.7


@dataclass(frozen=True)
class PosteriorMoments:
    """Means and standard deviations of p quantities; every attribute has shape (p,)."""

    # Moments.
    mean: np.ndarray
    sd: np.ndarray
    # Their Monte Carlo standard errors.
    mean_mcse: np.ndarray
    sd_mcse: np.ndarray
    # Of the difference from all draws' mean in standard deviations, and of all draws' sd over `sd`:
    # smaller than those above, since noise that both share cancels.
    bias_mcse: np.ndarray
    sd_error_mcse: np.ndarray


def by_weights(
    log_weights: np.ndarray, values: np.ndarray, at: np.ndarray, sign: np.ndarray | None
) -> tuple[PosteriorMoments, PosteriorMoments, float, float]:
    """Moments of the draws, corrected ones, k-hat and effective size of the weights.

    `log_weights`, shape (chain, k), are the log posterior less its estimate at the audited draws,
    which are those `at`, shape (k,), of all; `values`, shape (chain, draw, p), are of all draws.
    `sign`, shape (chain, draw), are those of the estimated likelihood, where it has any. The
    weights need them no more than the corrected moments do; the moments of the draws themselves do.
    """
    weights, k_hat = smooth(log_weights)
    raw = plain_moments(values, sign)
    found = weighted_moments(weights, values[:, at], values)
    if not k_hat < 1:  # the weights have no mean that draws would tell
        found = PosteriorMoments(found.mean, found.sd, *[np.full_like(found.mean, np.inf)] * 4)
    elif sign is not None:  # signed and unsigned draws share less noise than is known of
        scale = _positive(found.sd)
        bias_mcse = np.hypot(raw.mean_mcse, found.mean_mcse) / scale
        sd_error_mcse = np.hypot(raw.sd_mcse, found.sd_mcse) / scale
        found = replace(found, bias_mcse=bias_mcse, sd_error_mcse=sd_error_mcse)
    return raw, found, k_hat, effective_size(weights)


def mcse(x: np.ndarray) -> np.ndarray:
    """Monte Carlo standard error of the mean of draws, shape (chain, draw, p); shape (p,)."""
    error = np.asarray(array_stats.mcse(x, chain_axis=0, draw_axis=1))
    plain = x.std(axis=(0, 1), ddof=1) / np.sqrt(x.shape[0] * x.shape[1])
    return np.where(np.isfinite(error), error, plain)


def smooth(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Pareto-smooth importance weights (Vehtari et al. 2024), shape (chain, draw).

    `log_weights` are up to a constant, -inf for none. Returns weights of mean 1 and the shape of
    their upper tail, k-hat: minus infinity where all are equal, infinity where a few are all there
    is.
    """
    shifted = log_weights - np.max(log_weights)
    if np.std(shifted) < _EQUAL:
        return np.ones_like(shifted), -np.inf
    shifted = np.maximum(shifted, -700.0)  # whose exponential is no zero
    relative = np.asarray(array_stats.ess(np.exp(shifted), method="mean", relative=True))
    # A choice: chains that are worth less than a twentieth of their draws are refused elsewhere.
    r_eff = float(np.clip(relative, 0.05, 1.0)) if np.isfinite(relative) else 1.0
    # ArviZ takes log-likelihoods to leave out: minus the log weights.
    smoothed, k_hat = array_stats.psislw(-shifted, r_eff=r_eff, axis=(0, 1))
    weights = np.exp(smoothed - np.max(smoothed))
    return weights / weights.mean(), float(k_hat) if np.isfinite(k_hat) else np.inf


def good_k(draws: int) -> float:
    r"""Largest Pareto shape at which weighted means of so many draws are reliable.

    .. math:: \min(1 - 1 / \log_{10} S,\ 0.7)

    Of a larger one below 0.7 more draws would be enough (Vehtari et al. 2024, section 3.2.4).
    """
    return float(min(1 - 1 / np.log10(max(draws, 10)), MOST_K))  # where the first is 0


def effective_size(weights: np.ndarray) -> float:
    """Return how many equal weights would say as much."""
    return float(weights.sum() ** 2 / np.sum(weights**2))


def plain_moments(x: np.ndarray, sign: np.ndarray | None = None) -> PosteriorMoments:
    """Moments of all draws, shape (chain, draw, p), weighed by their signs if there are any."""
    weights = np.ones(x.shape[:2]) if sign is None else sign / sign.mean()
    w = weights[..., None]
    mean = (w * x).mean(axis=(0, 1))
    square = (x - mean) ** 2
    variance = (w * square).mean(axis=(0, 1))
    sd = np.sqrt(np.maximum(variance, 0.0))
    mean_mcse = mcse(w * (x - mean))
    sd_mcse = mcse(w * (square - variance)) / _positive(2 * sd)
    return PosteriorMoments(mean, sd, mean_mcse, sd_mcse, mean_mcse, sd_mcse)


def weighted_moments(
    weights: np.ndarray, audited: np.ndarray, every: np.ndarray
) -> PosteriorMoments:
    """Posterior moments from weighted draws and the moments of all draws, shape (chain, draws, p).

    All draws serve as a control variate: where the weights, of mean 1, are nearly equal, the result
    has the small Monte Carlo error of all of them rather than that of the few that were weighed.
    """
    mean, mean_mcse, shift_mcse = _weighted_mean(weights, audited, every)
    square = _weighted_mean(weights, (audited - mean) ** 2, (every - mean) ** 2)
    variance, variance_mcse, change_mcse = square
    alone = (weights[..., None] * (audited - mean) ** 2).mean(axis=(0, 1))
    variance = np.where(variance > 0, variance, alone)
    sd = np.sqrt(variance)
    scale = _positive(sd)
    sd_mcse = variance_mcse / (2 * scale)
    return PosteriorMoments(
        mean, sd, mean_mcse, sd_mcse, shift_mcse / scale, change_mcse / (2 * scale**2)
    )


def _weighted_mean(
    weights: np.ndarray, x: np.ndarray, every: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean under the weights, its error, and the error of its distance from all draws' mean."""
    w = weights[..., None]
    plain = x.mean(axis=(0, 1))
    weighted = (w * x).mean(axis=(0, 1))
    influence, centred = w * (x - weighted), x - plain
    share = (influence * centred).sum(axis=(0, 1)) / _positive((centred**2).sum(axis=(0, 1)))
    value = weighted + share * (every.mean(axis=(0, 1)) - plain)
    own, common = mcse(influence - share * centred), mcse(every)
    return value, np.hypot(own, share * common), np.hypot(own, (1 - share) * common)


def unknown_moments(like: PosteriorMoments) -> PosteriorMoments:
    """Return moments of as many quantities, none of which is known."""
    nothing, unsure = np.full_like(like.mean, np.nan), np.full_like(like.mean, np.inf)
    return PosteriorMoments(nothing, nothing, unsure, unsure, unsure, unsure)


def _positive(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, 1.0)
