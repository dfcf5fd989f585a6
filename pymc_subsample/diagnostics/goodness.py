"""Whether draws are from the posterior: p-values by Stein's identities; see `scores`."""

import numpy as np
from scipy.special import fdtrc

from pymc_subsample.diagnostics import array_stats
from pymc_subsample.diagnostics.stein_boundaries import Edges, operated

_BOOTSTRAPS = 2_000  # P-values down to 1 / 2,001.
# Effective draws of the slowest coordinate in a batch; batches per chain at most. A choice:
# batches of ten effective draws are independent to a tenth, and ten of them show a variance to a
# half.
_BATCH, _MOST_BATCHES = 10.0, 10
# Below these there is no p-value: batches of all chains, effective draws of the slowest coordinate.
# A choice: fewer batches give F a tail that rejects nothing; of fewer draws p-values of right
# chains were too small.
_FEWEST_BATCHES, _FEWEST_EFFECTIVE = 4, 50
# Variances of coordinates within this factor of their mean are pooled. A choice: a factor of two
# in standard deviations.
_ALIKE = 4.0


def moment_test(
    theta: np.ndarray,
    score: np.ndarray,
    every: np.ndarray,
    covariance: np.ndarray,
    edges: Edges | None = None,
) -> float:
    """P-value of all draws having the posterior's means and variances.

    In coordinates in which the posterior is about standard normal, mean and mean square of all
    draws, `every`, are compared with Stein's estimates from the audited ones, `theta`, which are
    evenly spread among them; both have shape (chain, draws, d). The variances of these differences
    are those between batches of successive draws, pooled over coordinates. The sum of squared
    differences over variances is referred to an F distribution whose degrees of freedom allow for
    the correlation of the coordinates and for unequal variances (Satterthwaite). NaN where the
    draws are too few: 50 effective ones, and 4 batches, are needed. Edges are those beside
    `theta`, along the columns of the covariance's Cholesky factor.
    """
    factor = np.linalg.cholesky(covariance)
    center = every.mean(axis=(0, 1))
    z, (score, inside) = _whiten(factor, theta - center), operated(score, factor, edges)
    r = z + score
    r_centred = r - r.mean(axis=(0, 1))
    whole = _whiten(factor, every - center)
    found = np.concatenate([whole, whole**2], axis=-1)
    mine = np.concatenate([z, z**2], axis=-1)
    implied = np.concatenate([r, inside + z * r_centred], axis=-1)
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
    theta: np.ndarray,
    score: np.ndarray,
    covariance: np.ndarray,
    rng: np.random.Generator,
    edges: Edges | None = None,
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
    whitened, inside = operated(score, factor, edges)
    starts = _batch_starts(np.concatenate([whitened, whitened**2], axis=-1), draws)
    if starts is None:
        return np.nan
    kernel = _stein_kernel(x, whitened.reshape(-1, d), inside.reshape(-1, d))
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
    p = np.clip(p, 1e-15, 1 - 1e-15)  # the tangent of doubles is finite there
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
    # divides nothing by zero
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


def _stein_kernel(x: np.ndarray, score: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Langevin Stein kernel of the inverse multiquadric at points, shape (k, d); (k, k).

    Along coordinate j it applies f -> s_j f + h_j df/dx_j at both points, with s the `score` and h
    `inside`, which are the gradient and 1 where no edge is near; see `edges`.
    """
    d = x.shape[1]
    square = np.sum(x**2, axis=1)
    base = d + np.maximum(square[:, None] + square[None] - 2 * x @ x.T, 0.0)
    weighted = inside * x
    # sum_j s_j(x) h_j(y) (x_j - y_j), and sum_j h_j(x) h_j(y) (x_j - y_j)^2
    pull = (score * x) @ inside.T - score @ weighted.T
    spread = (weighted * x) @ inside.T
    distance = spread + spread.T - 2 * weighted @ weighted.T
    return (
        (score @ score.T) * base**-0.5
        # Derivatives of the inverse multiquadric kernel, the root of base.
        + (pull + pull.T + inside @ inside.T) * base**-1.5
        - 3 * distance * base**-2.5
    )
