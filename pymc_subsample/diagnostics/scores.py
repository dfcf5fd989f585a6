r"""Posterior moments from gradients of the log posterior at a sampler's draws.

With :math:`g = \nabla \log \pi(\theta)` in unconstrained space, Stein's identities hold for draws
from the posterior, any fixed c and any fixed matrix :math:`\Sigma`:

.. math:: E[g] = 0, \qquad E[(\theta - c)\, g^\top] = -I .

With :math:`s = \Sigma g` these say that, element by element, s has mean 0 and
:math:`v = \Sigma_{jj} + (\theta_j - c_j) s_j` too, so that :math:`E[\theta + a s]` is the posterior
mean and :math:`E[(\theta - E \theta)^2 + b v]` its variance for any a and b. Where the posterior is
normal and :math:`\Sigma` its covariance, a = b = 1 leave no noise: both estimates are then exact
wherever the draws came from, which is what makes them tell where draws are off.

Elsewhere a = 1 goes too far. Draws that are off by a little :math:`\delta` have
:math:`E[g] = -E[g g^\top] \delta`, and :math:`\Sigma E[g g^\top]` is larger than 1 for all but
normal posteriors (the Cramer-Rao bound): large where the likelihood is a wall, as of a level whose
outcomes are all alike, at which a few draws have long gradients. What is left of :math:`\delta` is
smallest where :math:`a = 1 / (\Sigma E[g g^\top])`, and so is the noise. That is the coefficient of
a regression of :math:`-\theta` on s, since :math:`E[\theta s] = -\Sigma`: the draws tell it.

Where the density ends or jumps beside the draws, the identities are those of `edges`, along the
columns of a factor of the draws' own covariance.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pymc_subsample.diagnostics.beyond_draws import KNOWN
from pymc_subsample.diagnostics.goodness import combined, moment_test, shape_test
from pymc_subsample.diagnostics.stein_boundaries import Edges, operated
from pymc_subsample.diagnostics.weights import PosteriorMoments
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.curvature import MAX_DENSE, covariance
from pymc_subsample.expansion.quadratic import Quadratic
from pymc_subsample.expansion.reference import reference_at

# A variance is not taken to be smaller than this share of the curvature's. A choice: draws that
# are ten times narrower than their own curvature are no sample of it.
SMALLEST = 0.01
# Of the jackknife over audited draws. A choice: an error from 20 blocks is good to 16%; twice as
# many are of half as many draws, which are not independent.
BLOCKS = 20


def by_scores(
    expansion: Expansion,
    theta: np.ndarray,
    score: np.ndarray,
    every: np.ndarray,
    raw: PosteriorMoments,
    n_draws: int,
    read: Callable,
    rng: np.random.Generator,
    find_edges: Callable[[np.ndarray], Edges | None],
) -> tuple[PosteriorMoments, float, bool]:
    """Moments that Stein's identities give, p-value of the draws, and whether edges are near.

    The audited draws `theta`, shape (chain, k, d), are moved to the mean and the standard
    deviations that the identities give, element by element in unconstrained space; what that
    changes in a variable is added to its moments, `raw`, of so many draws. Errors are a jackknife's
    over blocks of draws; those of the moments hold also what is beyond first order. `every`, shape
    (chain, draw, d), are all draws, or many of them; ``read(theta)`` returns elements of the
    variables, shape (k, p), and ``find_edges(factor)`` edges beside the audited draws.

    Few draws whose spread happens to be small say that its error is small too: it is not taken to
    be smaller than that of as many independent ones of a normal distribution of the right spread.
    """
    size = theta.shape[-1]
    flat, flat_score = theta.reshape(-1, size), score.reshape(-1, size)
    guesses = _guesses(expansion, every)
    factor = np.linalg.cholesky(guesses[-1])
    edges = find_edges(factor)
    beside = None if edges is None else edges.like(theta.shape)
    test = moment_test(theta, score, every, guesses[-1], beside)
    shape = shape_test(theta, score, guesses[-1], rng, beside)
    if edges is None:
        guess = best_covariance(flat, flat_score, guesses)
        zero, own = flat_score @ guess, np.broadcast_to(np.diag(guess), flat.shape)
    else:
        along, inside = operated(flat_score, factor, edges)
        guess, zero, own = guesses[-1], along @ factor.T, inside @ (factor**2).T
    smallest = SMALLEST * np.diag(guess)

    center, sd = every.mean(axis=(0, 1)), every.std(axis=(0, 1), ddof=1)
    sd = np.where(sd > 0, sd, 1.0)
    before = read(flat)

    def corrected(to: TargetMoments) -> tuple[np.ndarray, np.ndarray]:
        """Moments of the draws moved to where they should be, less those where they are."""
        after = read(to.mean + (flat - center) / sd * to.sd)
        old_sd = before.std(axis=0)
        ratio = after.std(axis=0) / np.where(old_sd > 0, old_sd, 1.0)
        mean = raw.mean + after.mean(axis=0) - before.mean(axis=0)
        return mean, raw.sd * np.where(old_sd > 0, ratio, 1.0)

    everything = np.arange(len(flat))
    found, further = map(corrected, target(flat, zero, own, smallest))
    mean, target_sd = found
    blocks = [np.setdiff1d(everything, x) for x in np.array_split(everything, BLOCKS)]
    without = np.array([corrected(target(flat[x], zero[x], own[x], smallest)[0]) for x in blocks])
    spread_of = without - without.mean(axis=0)
    mean_mcse, sd_mcse = np.sqrt((1 - 1 / BLOCKS) * np.sum(spread_of**2, axis=0))
    scale = np.where(target_sd > 0, target_sd, 1.0)
    bias_mcse = np.hypot(mean_mcse, raw.mean_mcse) / scale
    sd_error_mcse = np.hypot(sd_mcse, np.maximum(raw.sd_mcse, scale / np.sqrt(2 * n_draws))) / scale
    mean_own_error = np.hypot(mean_mcse, further[0] - mean)
    sd_own_error = np.hypot(sd_mcse, further[1] - target_sd)
    moments = PosteriorMoments(
        mean, target_sd, mean_own_error, sd_own_error, bias_mcse, sd_error_mcse
    )
    return moments, combined(test, shape), edges is not None


def _guesses(expansion: Expansion, every: np.ndarray) -> list[np.ndarray]:
    """Covariances that the posterior may have: by the curvature at the mean; last, the draws' own.

    By the latter draws have the same spread in all directions, so that none outweighs others.
    """
    size = every.shape[-1]
    flat = every.reshape(-1, size)
    if size > MAX_DENSE:
        return [covariance_of(flat, np.inf)]
    reference = reference_at(expansion, flat.mean(axis=0))
    found = []
    if expansion.has_precision(size):
        matrix = Quadratic(expansion, reference).precision(np.arange(size))
        if np.all(np.isfinite(matrix)):
            found.append(covariance(matrix))
    return [*found, covariance_of(flat, KNOWN * size)]


def covariance_of(draws: np.ndarray, most: float) -> np.ndarray:
    """Covariance of draws, (k, d): diagonal of up to so many, 1 for elements that don't move."""
    variances = draws.var(axis=0, ddof=1)
    moved = variances > 0
    if len(draws) > most and np.all(moved):
        return np.cov(draws, rowvar=False).reshape(len(moved), len(moved))
    return np.diag(np.where(moved, variances, 1.0))


@dataclass(frozen=True)
class TargetMoments:
    """Posterior means and standard deviations in unconstrained space, each of shape (d,)."""

    mean: np.ndarray
    sd: np.ndarray


def target(
    theta: np.ndarray, zero: np.ndarray, own: np.ndarray, smallest: np.ndarray
) -> tuple[TargetMoments, TargetMoments]:
    """Estimate the posterior's moments from draws, shape (k, d), that may not be from it.

    `zero` and `own` are those of `moment_series`, variances are `smallest`, (d,), at least. A poor
    guess of the covariance makes the result noisy but not wrong.

    Where the posterior is not normal, they are right to first order only, and an error of the mean
    passes for one of the standard deviation in part, or the reverse. The second target is the
    first with both moved by what the two corrections come to together, times the share of the
    noise that is left: none of it where the posterior is normal.
    """
    for_mean, for_variance = moment_series(theta, zero, own)
    away = theta - theta.mean(axis=0)
    mean, left_of_mean = _with_noise(for_mean, theta)
    variance, left = _with_noise(for_variance, away**2)
    sd = np.sqrt(np.maximum(variance, smallest))
    moved = np.abs(mean - theta.mean(axis=0)) + np.abs(sd - theta.std(axis=0))
    doubt = np.maximum(left, left_of_mean) * moved
    return TargetMoments(mean, sd), TargetMoments(mean + doubt, sd + doubt)


def moment_series(
    theta: np.ndarray, zero: np.ndarray, own: np.ndarray, regressed: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Series whose means estimate the posterior's means and variances, each of shape (k, d).

    `zero` has mean zero over the posterior, and `own` + theta `zero` too: gradients times a guess
    of the covariance, and its diagonal, unless edges are near. With the least noise that these
    leave, element by element; or with a = b = 1, of draws that are too few for a regression.
    """
    away = theta - theta.mean(axis=0)
    squares = own + away * (zero - zero.mean(axis=0))
    if not regressed:
        return theta + zero, away**2 + squares
    return _controlled(theta, zero), _controlled(away**2, squares)


def _with_noise(found: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean of series that `_controlled` made of x, (k, d), and the share of variance left."""
    spread = x.var(axis=0)
    left = found.var(axis=0) / np.where(spread > 0, spread, np.inf)
    return found.mean(axis=0), np.minimum(left, 1.0)


def _controlled(x: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """Add to series, shape (k, d), that multiple of others of mean 0 that leaves least noise.

    Where that is not positive, draws are far from anything that the identities hold for: then 1.
    """
    centred = zero - zero.mean(axis=0)
    noise = np.mean(centred**2, axis=0)
    shared = -np.mean((x - x.mean(axis=0)) * centred, axis=0)
    positive = (shared > 0) & (noise > 0)
    return x + np.where(positive, shared / np.where(positive, noise, 1.0), 1.0) * zero


def best_covariance(
    theta: np.ndarray, score: np.ndarray, candidates: list[np.ndarray]
) -> np.ndarray:
    """Of some guesses of the covariance, return that which leaves least noise in `target`."""
    spread = theta.var(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    noise = [np.mean(_controlled(theta, score @ c).var(axis=0) / spread) for c in candidates]
    return candidates[int(np.argmin(noise))]
