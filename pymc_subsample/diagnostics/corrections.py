"""What a posterior should have been: moments corrected by weights or by scores."""

from collections.abc import Callable

import numpy as np

from pymc_subsample.control_variates import Expansion
from pymc_subsample.control_variates.curvature import MAX_DENSE, covariance
from pymc_subsample.control_variates.quadratic import Quadratic
from pymc_subsample.control_variates.reference import reference_at
from pymc_subsample.control_variates.search import has_precision
from pymc_subsample.diagnostics import scores
from pymc_subsample.diagnostics.weights import (
    Moments,
    effective_size,
    plain_moments,
    smooth,
    weighted_moments,
)

# Of the jackknife over audited draws.
BLOCKS = 20


def by_weights(
    log_weights: np.ndarray, values: np.ndarray, at: np.ndarray, sign: np.ndarray | None
) -> tuple[Moments, Moments, float, float]:
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
        unknown = np.full_like(found.mean, np.inf)
        found = Moments(found.mean, found.sd, *[unknown] * 4)
    elif sign is not None:  # signed and unsigned draws share less noise than is known of
        scale = np.where(found.sd > 0, found.sd, 1.0)
        found = Moments(
            found.mean,
            found.sd,
            found.mean_mcse,
            found.sd_mcse,
            np.hypot(raw.mean_mcse, found.mean_mcse) / scale,
            np.hypot(raw.sd_mcse, found.sd_mcse) / scale,
        )
    return raw, found, k_hat, effective_size(weights)


def by_scores(
    expansion: Expansion,
    theta: np.ndarray,
    score: np.ndarray,
    every: np.ndarray,
    raw: Moments,
    n_draws: int,
    read: Callable,
    rng: np.random.Generator,
) -> tuple[Moments, float]:
    """Moments that Stein's identities give, and the p-value of the draws.

    The audited draws `theta`, shape (chain, k, d), are moved to the mean and the standard
    deviations that the identities give, element by element in unconstrained space; what that
    changes in a variable is added to its moments, `raw`, of so many draws. Errors are a jackknife's
    over blocks of draws; those of the moments hold also what is beyond first order. `every`, shape
    (chain, draw, d), are all draws, or many of them; ``read(theta)`` returns elements of the
    variables, shape (k, p).

    Few draws whose spread happens to be small say that its error is small too: it is not taken to
    be smaller than that of as many independent ones of a normal distribution of the right spread.
    """
    size = theta.shape[-1]
    flat, flat_score = theta.reshape(-1, size), score.reshape(-1, size)
    guesses = _guesses(expansion, every)
    guess = scores.best_covariance(flat, flat_score, guesses)
    test = scores.moment_test(theta, score, every, guesses[-1])
    shape = scores.shape_test(theta, score, guesses[-1], rng)

    center, sd = every.mean(axis=(0, 1)), every.std(axis=(0, 1), ddof=1)
    sd = np.where(sd > 0, sd, 1.0)
    before = read(flat)

    def corrected(to: scores.Target) -> tuple[np.ndarray, np.ndarray]:
        """Moments of the draws moved to where they should be, less those where they are."""
        after = read(to.mean + (flat - center) / sd * to.sd)
        old_sd = before.std(axis=0)
        ratio = after.std(axis=0) / np.where(old_sd > 0, old_sd, 1.0)
        mean = raw.mean + after.mean(axis=0) - before.mean(axis=0)
        return mean, raw.sd * np.where(old_sd > 0, ratio, 1.0)

    everything = np.arange(len(flat))
    found, further = map(corrected, scores.target(flat, flat_score, guess))
    mean, target_sd = found
    blocks = [np.setdiff1d(everything, x) for x in np.array_split(everything, BLOCKS)]
    without = np.array([corrected(scores.target(flat[x], flat_score[x], guess)[0]) for x in blocks])
    spread_of = without - without.mean(axis=0)
    mean_mcse, sd_mcse = np.sqrt((1 - 1 / BLOCKS) * np.sum(spread_of**2, axis=0))
    scale = np.where(target_sd > 0, target_sd, 1.0)
    bias_mcse = np.hypot(mean_mcse, raw.mean_mcse) / scale
    sd_error_mcse = np.hypot(sd_mcse, np.maximum(raw.sd_mcse, scale / np.sqrt(2 * n_draws))) / scale
    mean_own_error = np.hypot(mean_mcse, further[0] - mean)
    sd_own_error = np.hypot(sd_mcse, further[1] - target_sd)
    moments = Moments(mean, target_sd, mean_own_error, sd_own_error, bias_mcse, sd_error_mcse)
    return moments, scores.combined(test, shape)


def _guesses(expansion: Expansion, every: np.ndarray) -> list[np.ndarray]:
    """Covariances that the posterior may have: by the curvature at the mean; last, the draws' own.

    By the latter draws have the same spread in all directions, so that none outweighs others.
    """
    size = every.shape[-1]
    flat = every.reshape(-1, size)
    variances = flat.var(axis=0, ddof=1)
    own = np.diag(np.where(variances > 0, variances, 1.0))
    if size > MAX_DENSE:
        return [own]
    reference = reference_at(expansion, flat.mean(axis=0))
    found = []
    if has_precision(expansion, size):
        matrix = Quadratic(expansion, reference).precision(np.arange(size))
        if np.all(np.isfinite(matrix)):
            found.append(covariance(matrix))
    if len(flat) > 10 * size and np.all(variances > 0):
        own = np.cov(flat, rowvar=False).reshape(size, size)
    return [*found, own]
