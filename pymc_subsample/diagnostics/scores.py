r"""Posterior moments and tests from gradients of the log posterior at a sampler's draws.

With :math:`g = \nabla \log \pi(\theta)` in unconstrained space, Stein's identities hold for draws
from the posterior, any fixed c and any fixed matrix :math:`\Sigma`:

.. math:: E[g] = 0, \qquad E[(\theta - c)\, g^\top] = -I .

They make :math:`r = \theta + \Sigma g` a draw whose mean is that of the posterior, and
:math:`\Sigma + E[(\theta - c)\, r^\top]`, with r centred, its covariance. Where the posterior is
normal and :math:`\Sigma` its covariance, r is the posterior mean at *every* point: both estimates
are then exact wherever the draws came from, which is what makes them tell where draws are off.
"""

from dataclasses import dataclass

import numpy as np
import scipy.stats
from arviz_stats.base import array_stats

from pymc_subsample.diagnostics.weights import mcse

_BOOTSTRAPS = 2_000
# A variance is not taken to be smaller than this share of the curvature's.
_SMALLEST = 0.01


@dataclass(frozen=True)
class Target:
    """Posterior means and standard deviations in unconstrained space, each of shape (d,)."""

    mean: np.ndarray
    sd: np.ndarray


def target(theta: np.ndarray, score: np.ndarray, covariance: np.ndarray) -> Target:
    """Estimate the posterior's moments from draws that may not be from it.

    Parameters
    ----------
    theta, score : ndarray, shape (k, d)
        Draws, and gradients of the log posterior there.
    covariance : ndarray, shape (d, d)
        Guess of the posterior covariance; a poor one makes the result noisy but not wrong.
    """
    r = theta + score @ covariance
    mean = r.mean(axis=0)
    guess = np.diag(covariance)
    variance = guess + ((theta - theta.mean(axis=0)) * (r - mean)).mean(axis=0)
    return Target(mean, np.sqrt(np.maximum(variance, _SMALLEST * guess)))


def best_covariance(
    theta: np.ndarray, score: np.ndarray, candidates: list[np.ndarray]
) -> np.ndarray:
    """Of some guesses of the covariance, return that which leaves least noise in `target`."""
    spread = theta.var(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    noise = [np.mean((theta + score @ c).var(axis=0) / spread) for c in candidates]
    return candidates[int(np.argmin(noise))]


def moment_test(
    theta: np.ndarray, score: np.ndarray, every: np.ndarray, covariance: np.ndarray
) -> float:
    """P-value of all draws having the posterior's means and variances.

    In coordinates in which the posterior is about standard normal, mean and mean square of all
    draws are compared with Stein's estimates from the audited ones. The sum of the squared
    z-scores is referred to a scaled chi-square of the same mean and variance (Satterthwaite), by
    the correlation of the scores.

    Parameters
    ----------
    theta, score : ndarray, shape (chain, draw, d)
        Audited draws and gradients.
    every : ndarray, shape (chain, all draws, d)
        All draws, the audited ones among them.
    covariance : ndarray, shape (d, d)
        Guess of the posterior covariance.
    """
    factor = np.linalg.cholesky(covariance)
    center = every.mean(axis=(0, 1))
    z, score = _whiten(factor, theta - center), score @ factor
    r = z + score
    r_centred = r - r.mean(axis=(0, 1))
    whole = _whiten(factor, every - center)
    found = np.concatenate([whole, whole**2], axis=-1)
    mine = np.concatenate([z, z**2], axis=-1)
    implied = np.concatenate([r, 1 + z * r_centred], axis=-1)

    n, k = found.shape[0] * found.shape[1], mine.shape[0] * mine.shape[1]
    error = found.mean(axis=(0, 1)) - implied.mean(axis=(0, 1))
    size = found.shape[-1]
    both = np.concatenate([mine, implied], axis=-1).reshape(k, -1)
    cov = np.cov(both, rowvar=False)
    spread = found.var(axis=(0, 1), ddof=1)
    cross, rest = np.diag(cov[:size, size:]), np.diag(cov[size:, size:])
    share, implied_share = _pooled_share(found, spread), _pooled_share(implied, rest)
    variance = (spread - 2 * cross) * share + rest * implied_share
    variance = np.maximum(variance, 1e-3 * spread * share)
    statistic = float(np.sum(error**2 / variance))

    joint = cov[:size, :size] / n + cov[size:, size:] / k
    joint = joint - (cov[:size, size:] + cov[size:, :size]) / n
    scale = np.sqrt(np.maximum(np.diag(joint), np.finfo(float).tiny))
    squares = np.sum((joint / np.outer(scale, scale)) ** 2) - size * (size - 1) / k
    ratio = max(float(squares), size) / size
    return float(scipy.stats.chi2.sf(statistic / ratio, size / ratio))


def shape_test(
    theta: np.ndarray, score: np.ndarray, covariance: np.ndarray, rng: np.random.Generator
) -> float:
    r"""P-value of the draws' kernel Stein discrepancy, by a wild bootstrap for dependent draws.

    The kernel is the inverse multiquadric :math:`(d + \|x - y\|^2)^{-1/2}` (Gorham and Mackey
    2017) in coordinates in which the posterior is about standard normal; signs of the bootstrap
    follow Chwialkowski, Strathmann and Gretton (2016), with a memory that fits the draws'.

    Parameters
    ----------
    theta, score : ndarray, shape (chain, draw, d)
        Draws, and gradients of the log posterior there.
    covariance : ndarray, shape (d, d)
        Guess of the posterior covariance.
    rng : numpy.random.Generator
        Draws the signs.
    """
    factor = np.linalg.cholesky(covariance)
    chains, draws, d = theta.shape
    x = _whiten(factor, theta - theta.mean(axis=(0, 1))).reshape(-1, d)
    whitened = score @ factor
    kernel = _stein_kernel(x, whitened.reshape(-1, d))
    share = np.asarray(
        array_stats.ess(whitened, chain_axis=0, draw_axis=1, method="mean", relative=True)
    )
    inflation = max(1.0, 1 / float(np.nanmedian(np.clip(share, 0.01, 1.0))))
    memory = ((inflation - 1) / (inflation + 1)) ** 0.125
    flips = np.where(rng.random((_BOOTSTRAPS, chains, draws)) < (1 - memory) / 2, -1.0, 1.0)
    flips[..., 0] = rng.choice([-1.0, 1.0], size=(_BOOTSTRAPS, chains))
    signs = np.cumprod(flips, axis=-1).reshape(_BOOTSTRAPS, -1)
    bootstrapped = np.einsum("bi,bi->b", signs @ kernel, signs)
    return float((1 + np.sum(bootstrapped >= kernel.sum())) / (1 + _BOOTSTRAPS))


def combined(*p_values: float) -> float:
    """One p-value from several that may depend on each other (Cauchy; Liu and Xie 2020)."""
    p = np.clip(p_values, 1e-15, 1 - 1e-15)
    return float(scipy.stats.cauchy.sf(np.mean(scipy.stats.cauchy.isf(p))))


def _pooled_share(x: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Squared Monte Carlo error over variance, pooled over means and over mean squares."""
    errors = np.split(mcse(x) ** 2, 2)
    parts = np.split(variance, 2)
    pooled = [e.sum() / v.sum() if v.sum() > 0 else 0.0 for e, v in zip(errors, parts, strict=True)]
    return np.repeat(pooled, len(parts[0]))


def _whiten(factor: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Solve with a factor, shape (d, d), along the last axis."""
    return np.linalg.solve(factor, x[..., None])[..., 0]


def _stein_kernel(x: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Langevin Stein kernel of the inverse multiquadric at points, shape (k, d); (k, k)."""
    d = x.shape[1]
    square = np.sum(x**2, axis=1)
    distance = np.maximum(square[:, None] + square[None] - 2 * x @ x.T, 0.0)
    base = d + distance
    across = score @ x.T
    own = np.diag(across)
    # (g_x - g_y)' (x - y)
    pull = own[:, None] + own[None] - across - across.T
    return (score @ score.T) * base**-0.5 + (pull + d) * base**-1.5 - 3 * distance * base**-2.5
