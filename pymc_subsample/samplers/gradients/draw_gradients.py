"""Gradients of the log posterior at some of a chain's draws, and the curvature these have met."""

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from pymc_subsample.compiled.process import one_thread
from pymc_subsample.diagnostics.record import StepRecord
from pymc_subsample.diagnostics.scores import log_posteriors
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.reference import summed

# Rows that are read: all of them at each draw, or some at random, of all draws together. A choice
# of time.
_ROWS, _RANDOM_ROWS = 20_000_000, 4_000_000
# Random rows that are read at a time: parts are in the order of the rows. A choice of memory.
_PART = 2**16
# Draws to read them at: as many as are independent of each other, or a few of any. A choice:
# passes over the rows.
_FEWEST, _DEPENDENT, _MOST = 20, 32, 200
# From how many on regressions have errors that are known. A choice: t has its normal quantiles
# then, to 3%.
REGRESSED = 100


@dataclass(frozen=True)
class DrawnGradients:
    """Draws and gradients there, of elements that move."""

    theta: np.ndarray  # Shape (k, a).
    scores: np.ndarray  # Shape (2, k, a): two independent estimates, or the same twice.

    @property
    def score(self) -> np.ndarray:
        """Mean of the estimates, shape (k, a)."""
        return self.scores.mean(axis=0)

    @property
    def regressed(self) -> bool:
        """Whether there are enough draws for regressions."""
        return len(self.theta) >= REGRESSED


def evaluated(
    record: StepRecord, active: np.ndarray, expansion: Expansion
) -> DrawnGradients | None:
    """Evaluate gradients at draws of a chain; None of too few draws."""
    draws = np.array(record.thinned)
    if len(draws) < _FEWEST:
        return None
    _, sd_ess = record.effective(active)
    most = min(max(int(np.nanmin(sd_ess, initial=_MOST)), _DEPENDENT), len(draws))
    full = _ROWS // expansion.n_rows
    count = min(most, max(full, REGRESSED))
    chosen = draws[np.linspace(0, len(draws) - 1, count).astype(int)]
    if count <= full:
        scores = np.broadcast_to(log_posteriors(expansion, chosen)[1], (2, *chosen.shape))
    else:
        scores = estimated_scores(expansion, chosen, _RANDOM_ROWS // count)
    return DrawnGradients(chosen[:, active], scores[:, :, active])


@one_thread
def estimated_scores(
    expansion: Expansion, thetas: np.ndarray, size: int, seed: int = 0
) -> np.ndarray:
    r"""Two estimates of the gradient at each of some points theta, (k, d): shape (2, k, d).

    Each reads half of `size` rows of its own, drawn at random for every point. In phi, and without
    the prior,

    .. math:: \sum_{i=1}^n g_i(\bar\phi)
        + \frac{n}{m} \sum_{i \in S} \bigl(g_i(\phi) - g_i(\bar\phi)\bigr)

    with that of the mean of the points as reference. They are unbiased, products of the two also of
    products of gradients, and their errors are noise to `scores.moment_series`: near the mean a
    share d / m of the variance of gradients, more in directions that few rows see.
    """
    reference = summed(expansion, thetas.mean(axis=0), None, 1.0, curved=False)
    phis = [expansion.parameters(theta)[0] for theta in thetas]
    m, k = size // 2, len(thetas)
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.integers(expansion.n_rows, size=2 * k * m))
    owners = rng.permutation(np.repeat(np.arange(2 * k), m))

    def added(part: slice) -> np.ndarray:
        order = np.argsort(owners[part], kind="stable")
        batch = expansion.take(rows[part][order])
        ends = np.cumsum(np.bincount(owners[part], minlength=2 * k))
        found = np.zeros((2 * k, expansion.phi_size))
        for at, (first, last) in enumerate(zip(ends - np.diff(ends, prepend=0), ends, strict=True)):
            some = np.ascontiguousarray(batch[:, first:last])
            for phi, sign in ((phis[at % k], 1.0), (reference.center, -1.0)):
                found[at] += sign * expansion.totals([some], phi, curved=False)[1]
        return found

    parts = [slice(i, i + _PART) for i in range(0, len(rows), _PART)]
    # bytes of two results
    total = sum(expansion.workers.map(added, parts, 16 * k * expansion.phi_size))
    slopes = reference.slope + expansion.n_rows / m * total
    found = [expansion.pull_back(thetas[at % k], slope) for at, slope in enumerate(slopes)]
    return np.array(found).reshape(2, k, -1)


def least_curvature(z: np.ndarray, scores: np.ndarray, level: float) -> np.ndarray:
    r"""Lower bounds of the mean curvature along directions, shape (a,), each wrong at a `level`.

    From coordinates, (k, a), and two estimates of their gradients, (2, k, a), less their means:
    :math:`-E[g^2] / E[z g]` is that of :math:`-\log \pi`, where z is from it, since
    :math:`E[g^2] = E[-g']` and :math:`E[z g] = -1`; where :math:`\pi` is normal, it is wherever z
    comes from, without noise. 0 where draws do not tell.
    """
    scores = scores - scores.mean(axis=1, keepdims=True)
    square = scores[0] * scores[1]
    pull = -(z - z.mean(axis=0)) * scores.mean(axis=0)
    mean = pull.mean(axis=0)
    mean = np.where(mean > 0, mean, np.inf)
    found = square.mean(axis=0) / mean
    left = (square - found * pull).std(axis=0) / np.sqrt(len(z))
    return np.maximum(found + stdtrit(len(z) - 2, level) * left / mean, 0.0)


def least_mean_error(pilot: DrawnGradients, scores: np.ndarray, h: float, level: float) -> float:
    r"""Least error of a mean, in standard deviations, that the step size of overdamped steps makes.

    Without noise of gradients, such steps have to first order the invariant density

    .. math:: \pi_h \propto \pi \, \bigl(1 + \tfrac{h}{4} (2 \Delta \log \pi + |g|^2)\bigr)

    in their metric, in which `scores` are; by parts, the mean of :math:`\theta_j` is off by
    :math:`-h \, cov(\theta_j, |g|^2) / 4`. That is wrong at a `level` for each element.
    """
    scores = scores - scores.mean(axis=1, keepdims=True)
    square = np.sum(scores[0] * scores[1], axis=1)
    sd = pilot.theta.std(axis=0)
    z = (pilot.theta - pilot.theta.mean(axis=0)) / np.where(sd > 0, sd, np.inf)
    series = -h / 4 * z * (square - square.mean())[:, None]
    error = -stdtrit(len(z) - 1, level) * series.std(axis=0) / np.sqrt(len(z))
    return float(np.max(np.abs(series.mean(axis=0)) - error, initial=0.0))
