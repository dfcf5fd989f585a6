r"""Posterior moments and tests from gradients of the log posterior at a sampler's draws.

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
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import fdtrc, stdtrit

from pymc_subsample import array_stats
from pymc_subsample.blas import one_thread
from pymc_subsample.control_variates import Expansion
from pymc_subsample.control_variates.curvature import MAX_DENSE, covariance
from pymc_subsample.control_variates.quadratic import Quadratic
from pymc_subsample.control_variates.reference import reference_at, sums_at
from pymc_subsample.control_variates.search import has_precision
from pymc_subsample.diagnostics.weights import Moments

_BOOTSTRAPS = 2_000
# Effective draws of the slowest coordinate in a batch; batches per chain at most.
_BATCH, _MOST_BATCHES = 10.0, 10
# Below these there is no p-value: batches of all chains, effective draws of the slowest coordinate.
_FEWEST_BATCHES, _FEWEST_EFFECTIVE = 4, 50
# Variances of coordinates within this factor of their mean are pooled.
_ALIKE = 4.0
# A variance is not taken to be smaller than this share of the curvature's.
SMALLEST = 0.01
# Of the jackknife over audited draws.
BLOCKS = 20


@one_thread
def log_posteriors(expansion: Expansion, thetas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log posterior and gradient at points theta, (k, d): chunks of rows are read once for all."""
    points = [expansion.parameters(theta) for theta in thetas]
    level, slope = np.zeros((len(points), 1)), np.zeros((len(points), expansion.phi_size))
    for levels, slopes in expansion.over(_at_points, [phi for phi, _ in points]):
        level += levels
        slope += slopes
    prior = np.array([logprior for _, logprior in points])
    gradient = [expansion.pull_back(t, g) for t, g in zip(thetas, slope, strict=True)]
    return prior + level[:, 0], np.array(gradient).reshape(len(points), expansion.theta_size)


def _at_points(
    expansion: Expansion, batches: Iterable[np.ndarray], points: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    [rows] = batches
    found = [sums_at(expansion, [rows], phi, curved=False) for phi in points]
    return np.array([level for level, _, _ in found]), np.array([slope for _, slope, _ in found])


@one_thread
def estimated_scores(
    expansion: Expansion, thetas: np.ndarray, size: int, rng: np.random.Generator
) -> np.ndarray:
    r"""Two estimates of the gradient at each of some points theta, (k, d): shape (2, k, d).

    Each reads `size` / 2 rows of its own, drawn at random for every point,

    .. math:: \nabla \log p(\theta) + \sum_{i=1}^n g_i(\bar\theta)
        + \frac{n}{m} \sum_{i \in S} \bigl(g_i(\theta) - g_i(\bar\theta)\bigr)

    with the mean of the points as reference. They are unbiased, products of the two also of
    products of gradients, and their errors are noise to `moment_series`: near the mean a share
    d / m of the variance of gradients, more in directions that few rows see.
    """
    center, _ = expansion.parameters(thetas.mean(axis=0))
    whole = sum(slopes[0] for _, slopes in expansion.over(_at_points, [center]))
    m = size // 2
    rows = np.sort(rng.integers(expansion.n_rows, size=(len(thetas), 2, m)), axis=-1)

    def estimated(point: tuple[np.ndarray, np.ndarray]) -> list[np.ndarray]:
        theta, halves = point
        phi, _ = expansion.parameters(theta)
        found = []
        for index in halves:
            batches = expansion.batches(index)
            there, here = (sums_at(expansion, batches, x, curved=False)[1] for x in (phi, center))
            slope = whole + expansion.n_rows / m * (there - here)
            found.append(expansion.pull_back(theta, slope))
        return found

    found = list(expansion.passes.map(estimated, zip(thetas, rows, strict=True)))
    return np.swapaxes(np.array(found), 0, 1)


def least_curvature(z: np.ndarray, scores: np.ndarray, level: float) -> np.ndarray:
    r"""Lower bounds of the mean curvature along directions, shape (a,), each wrong at a `level`.

    From coordinates, (k, a), and two estimates of their gradients, (2, k, a):
    :math:`E[g^2] / -E[(z - E z) g]` is that of :math:`-\log \pi`, where z is from it, since
    :math:`E[g^2] = E[-g']`; where :math:`\pi` is normal, it is wherever z comes from, without
    noise. 0 where draws do not tell.
    """
    scores = scores - scores.mean(axis=1, keepdims=True)
    square, score = scores[0] * scores[1], scores.mean(axis=0)
    pull = -(z - z.mean(axis=0)) * (score - score.mean(axis=0))
    mean = pull.mean(axis=0)
    mean = np.where(mean > 0, mean, np.inf)
    found = square.mean(axis=0) / mean
    left = (square - found * pull).std(axis=0) / np.sqrt(len(z))
    return np.maximum(found + stdtrit(len(z) - 2, level) * left / mean, 0.0)


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
    guess = best_covariance(flat, flat_score, guesses)
    test = moment_test(theta, score, every, guesses[-1])
    shape = shape_test(theta, score, guesses[-1], rng)

    center, sd = every.mean(axis=(0, 1)), every.std(axis=(0, 1), ddof=1)
    sd = np.where(sd > 0, sd, 1.0)
    before = read(flat)

    def corrected(to: Target) -> tuple[np.ndarray, np.ndarray]:
        """Moments of the draws moved to where they should be, less those where they are."""
        after = read(to.mean + (flat - center) / sd * to.sd)
        old_sd = before.std(axis=0)
        ratio = after.std(axis=0) / np.where(old_sd > 0, old_sd, 1.0)
        mean = raw.mean + after.mean(axis=0) - before.mean(axis=0)
        return mean, raw.sd * np.where(old_sd > 0, ratio, 1.0)

    everything = np.arange(len(flat))
    found, further = map(corrected, target(flat, flat_score, guess))
    mean, target_sd = found
    blocks = [np.setdiff1d(everything, x) for x in np.array_split(everything, BLOCKS)]
    without = np.array([corrected(target(flat[x], flat_score[x], guess)[0]) for x in blocks])
    spread_of = without - without.mean(axis=0)
    mean_mcse, sd_mcse = np.sqrt((1 - 1 / BLOCKS) * np.sum(spread_of**2, axis=0))
    scale = np.where(target_sd > 0, target_sd, 1.0)
    bias_mcse = np.hypot(mean_mcse, raw.mean_mcse) / scale
    sd_error_mcse = np.hypot(sd_mcse, np.maximum(raw.sd_mcse, scale / np.sqrt(2 * n_draws))) / scale
    mean_own_error = np.hypot(mean_mcse, further[0] - mean)
    sd_own_error = np.hypot(sd_mcse, further[1] - target_sd)
    moments = Moments(mean, target_sd, mean_own_error, sd_own_error, bias_mcse, sd_error_mcse)
    return moments, combined(test, shape)


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
    if has_precision(expansion, size):
        matrix = Quadratic(expansion, reference).precision(np.arange(size))
        if np.all(np.isfinite(matrix)):
            found.append(covariance(matrix))
    return [*found, covariance_of(flat, 10 * size)]


def covariance_of(draws: np.ndarray, most: float) -> np.ndarray:
    """Covariance of draws, (k, d): diagonal of up to so many, 1 for elements that don't move."""
    variances = draws.var(axis=0, ddof=1)
    moved = variances > 0
    if len(draws) > most and np.all(moved):
        return np.cov(draws, rowvar=False).reshape(len(moved), len(moved))
    return np.diag(np.where(moved, variances, 1.0))


@dataclass(frozen=True)
class Target:
    """Posterior means and standard deviations in unconstrained space, each of shape (d,)."""

    mean: np.ndarray
    sd: np.ndarray


def target(theta: np.ndarray, score: np.ndarray, covariance: np.ndarray) -> tuple[Target, Target]:
    """Estimate the posterior's moments from draws, shape (k, d), that may not be from it.

    A poor guess of the covariance, shape (d, d), makes the result noisy but not wrong.

    Where the posterior is not normal, they are right to first order only, and an error of the mean
    passes for one of the standard deviation in part, or the reverse. The second target is the
    first with both moved by what the two corrections come to together, times the share of the
    noise that is left: none of it where the posterior is normal.
    """
    for_mean, for_variance = moment_series(theta, score, covariance)
    away = theta - theta.mean(axis=0)
    mean, left_of_mean = _with_noise(for_mean, theta)
    variance, left = _with_noise(for_variance, away**2)
    sd = np.sqrt(np.maximum(variance, SMALLEST * np.diag(covariance)))
    moved = np.abs(mean - theta.mean(axis=0)) + np.abs(sd - theta.std(axis=0))
    doubt = np.maximum(left, left_of_mean) * moved
    return Target(mean, sd), Target(mean + doubt, sd + doubt)


def moment_series(
    theta: np.ndarray, score: np.ndarray, covariance: np.ndarray, regressed: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Series whose means estimate the posterior's means and variances, each of shape (k, d).

    With the least noise that a guess of the covariance, shape (d, d), leaves, element by element;
    or with a = b = 1, of draws that are too few for a regression.
    """
    s, away = score @ covariance, theta - theta.mean(axis=0)
    zero = np.diag(covariance) + away * (s - s.mean(axis=0))
    if not regressed:
        return theta + s, away**2 + zero
    return _controlled(theta, s), _controlled(away**2, zero)


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


def moment_test(
    theta: np.ndarray, score: np.ndarray, every: np.ndarray, covariance: np.ndarray
) -> float:
    """P-value of all draws having the posterior's means and variances.

    In coordinates in which the posterior is about standard normal, mean and mean square of all
    draws, `every`, are compared with Stein's estimates from the audited ones, `theta`, which are
    evenly spread among them; both have shape (chain, draws, d). The variances of these differences
    are those between batches of successive draws, pooled over coordinates. The sum of squared
    differences over variances is referred to an F distribution whose degrees of freedom allow for
    the correlation of the coordinates and for unequal variances (Satterthwaite). NaN where the
    draws are too few: 50 effective ones, and 4 batches, are needed.
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
    starts = _batch_starts(found, mine.shape[1])
    if starts is None:
        return np.nan

    size, d = found.shape[-1], z.shape[-1]
    means = _batch_means(found, starts)
    differences = means - _batch_means(implied, starts)
    batches = len(differences)
    noise = differences.var(axis=0, ddof=1) / batches
    error = found.mean(axis=(0, 1)) - implied.mean(axis=(0, 1))
    # Squares about the draws' own mean are too small by its variance.
    error[d:] += np.mean(means[:, :d].var(axis=0, ddof=1)) / batches
    n, k = found.shape[0] * found.shape[1], mine.shape[0] * mine.shape[1]
    correlation, weight = _instantaneous(mine, implied, n, k)
    halves = slice(0, d), slice(d, size)
    share = np.concatenate([np.full(d, np.mean((noise / weight)[half])) for half in halves])
    # A spread of variances beyond what their own errors make.
    relative = [(noise / weight)[half] for half in halves]
    unequal = [np.mean((v / (np.mean(v) or 1.0)) ** 2) for v in relative]
    uneven = max(1.0, float(np.mean(unequal)) * (batches - 1) / (batches + 1))
    together = max(float(np.sum(correlation**2)) - size * (size - 1) / k, size) / size
    freedom = max(size / (together * uneven), 1.0)
    with np.errstate(all="ignore"):  # draws that never move
        statistic = np.mean(error**2 / (weight * share))
    return float(fdtrc(freedom, (batches - 1) * freedom / 2, statistic))


def shape_test(
    theta: np.ndarray, score: np.ndarray, covariance: np.ndarray, rng: np.random.Generator
) -> float:
    r"""P-value of the draws' kernel Stein discrepancy, by a wild bootstrap for dependent draws.

    The kernel is the inverse multiquadric :math:`(d + \|x - y\|^2)^{-1/2}` (Gorham and Mackey 2017)
    in coordinates in which the posterior is about standard normal. As in Chwialkowski, Strathmann
    and Gretton (2016) the bootstrap changes signs, here of whole batches of successive draws, long
    enough to be nearly independent of each other. Draws have shape (chain, draw, d); NaN where they
    are too few, as for `moment_test`.
    """
    factor = np.linalg.cholesky(covariance)
    chains, draws, d = theta.shape
    x = _whiten(factor, theta - theta.mean(axis=(0, 1))).reshape(-1, d)
    whitened = score @ factor
    starts = _batch_starts(np.concatenate([whitened, whitened**2], axis=-1), draws)
    if starts is None:
        return np.nan
    kernel = _stein_kernel(x, whitened.reshape(-1, d))
    first = (np.arange(chains)[:, None] * draws + (starts * draws).astype(int)).ravel()
    kernel = np.add.reduceat(np.add.reduceat(kernel, first, axis=0), first, axis=1)
    signs = rng.choice([-1.0, 1.0], (_BOOTSTRAPS, len(kernel)))
    bootstrapped = np.einsum("bi,bi->b", signs @ kernel, signs)
    # All signs alike give the statistic itself, but for rounding.
    reached = bootstrapped >= kernel.sum() * (1 - 1e-9)
    return float((1 + np.sum(reached)) / (1 + _BOOTSTRAPS))


def combined(*p_values: float) -> float:
    """One p-value from several, NaN left out, that may depend on each other (Liu and Xie 2020)."""
    p = np.array([p for p in p_values if not np.isnan(p)])
    if not len(p):
        return np.nan
    p = np.clip(p, 1e-15, 1 - 1e-15)
    above = np.where(p < 0.5, 1.0, -1.0) / np.tan(np.pi * np.minimum(p, 1 - p))
    return float(np.arctan2(1.0, np.mean(above)) / np.pi)


def _batch_starts(x: np.ndarray, most: int) -> np.ndarray | None:
    """Where nearly independent batches of series, shape (chain, draw, p), begin in a chain.

    As shares of its draws, at most so many; None for too few draws.
    """
    relative = np.asarray(
        array_stats.ess(x, chain_axis=0, draw_axis=1, method="mean", relative=True)
    )
    relative = relative[np.isfinite(relative)]
    slowest = float(np.clip(relative.min(), 1e-6, 1.0)) if len(relative) else 1.0
    chains, draws = x.shape[:2]
    per_chain = int(np.clip(draws * slowest / _BATCH, 1, min(most, _MOST_BATCHES)))
    if chains * draws * slowest < _FEWEST_EFFECTIVE or chains * per_chain < _FEWEST_BATCHES:
        return None
    return np.arange(per_chain) / per_chain


def _batch_means(x: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Means of batches, shape (batches of all chains, p), of series, shape (chain, draw, p)."""
    first = (starts * x.shape[1]).astype(int)
    sizes = np.diff(np.append(first, x.shape[1]))
    means = np.add.reduceat(x, first, axis=1) / sizes[:, None]
    return means.reshape(-1, x.shape[-1])


def _instantaneous(
    mine: np.ndarray, implied: np.ndarray, n: int, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Correlations of the differences as if draws were independent, and how they are weighed.

    Coordinates are alike but for noise, unless their variances are far above their mean. One far
    below may be that of a coordinate whose rare long gradients are not among the audited draws.
    """
    size = mine.shape[-1]
    both = np.concatenate([mine, implied], axis=-1).reshape(k, -1)
    cov = np.cov(both, rowvar=False)
    joint = cov[:size, :size] / n + cov[size:, size:] / k
    joint = joint - (cov[:size, size:] + cov[size:, :size]) / n
    variance = np.maximum(np.diag(joint), np.finfo(float).tiny)
    scale = np.sqrt(variance)
    ratios = [half / half.mean() for half in np.split(variance, 2)]
    ratio = np.concatenate(ratios)
    weight = np.where(ratio < _ALIKE, 1.0, ratio)
    return joint / np.outer(scale, scale), weight


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
