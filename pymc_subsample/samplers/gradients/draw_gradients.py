"""A look at draws of a chain of integration steps, and the curvature that gradients there met."""

import numpy as np
from scipy.special import stdtrit

from pymc_subsample.compiled.process import one_thread
from pymc_subsample.diagnostics.look import Look, evenly_spread, far_out, look_at, sums_at
from pymc_subsample.diagnostics.record import StepRecord
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.reference import summed
from pymc_subsample.kernels.control import control_sum

# Rows that are read: all of them at each usual draw, or some at random, of all these together, by
# the order of the control variates. A choice of time: constant ones leave far more to read.
_ROWS, _RANDOM_ROWS = 20_000_000, (4_000_000, 4_000_000, 1_000_000)
# Numbers of random rows that are read at a time: parts are in the order of the rows. A choice of
# memory: 32 MB.
_PART = 2**22
# Draws to read them at: as many as are independent of each other, or a few of any. A choice:
# passes over the rows.
_FEWEST, _DEPENDENT, _MOST = 20, 32, 200
# From how many on regressions have errors that are known. A choice: t has its normal quantiles
# then, to 3%.
REGRESSED = 100


def looked(record: StepRecord, active: np.ndarray, expansion: Expansion) -> Look | None:
    """Look at draws of a chain; None of too few draws."""
    draws = np.array(record.thinned)
    if len(draws) < _FEWEST:
        return None
    _, sd_ess = record.effective(active)
    most = min(max(int(np.nanmin(sd_ess, initial=_MOST)), _DEPENDENT), len(draws))
    full = _ROWS // expansion.n_rows
    usual = evenly_spread(draws, min(most, max(full, REGRESSED)))
    far = far_out(draws, active, expansion.n_rows)
    if len(usual) <= full:
        return look_at(expansion, usual, far)
    return look_at_random(expansion, usual, far, _RANDOM_ROWS[expansion.order] // len(usual))


@one_thread
def look_at_random(
    expansion: Expansion, usual: np.ndarray, far: np.ndarray, size: int, seed: int = 0
) -> Look:
    r"""Look at all rows at the farthest draws, (j, d), and at random ones at the usual, (k, d).

    Each of the two estimates of a gradient reads half of `size` rows of its own, drawn at random
    for every draw. In phi, and without the prior,

    .. math:: \sum_{i=1}^n g_i^*(\phi)
        + \frac{n}{m} \sum_{i \in S} \bigl(g_i(\phi) - g_i^*(\phi)\bigr)

    where the control variates :math:`g_i^*` are those around the mean of the usual draws, of the
    expansion's order, and constant if it has none. They are unbiased, products of the two also of
    products of gradients, and their errors are noise to `scores.moment_series`: near the mean with
    constant ones a share d / m of the variance of gradients, more in directions that few rows see.
    Log-likelihoods, which say what is usual, follow from gradients by the trapezoid rule.
    """
    order, n = expansion.order, expansion.n_rows
    at = summed(expansion, usual.mean(axis=0), None, 1.0, curved=order == 2)
    near, beyond = ([expansion.parameters(theta) for theta in x] for x in (usual, far))
    m, k = size // 2, len(usual)
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.integers(n, size=2 * k * m))
    owners = rng.permutation(np.repeat(np.arange(2 * k), m))

    def added(part: slice) -> np.ndarray:
        chosen = np.argsort(owners[part], kind="stable")
        batch = expansion.take(rows[part][chosen])
        expansion.anchor(at.center, batch)
        ends = np.cumsum(np.bincount(owners[part], minlength=2 * k))
        found = np.zeros((2 * k, expansion.phi_size))
        for i, (first, last) in enumerate(zip(ends - np.diff(ends, prepend=0), ends, strict=True)):
            some = np.ascontiguousarray(batch[:, first:last])
            for phi, weight in ((near[i % k][0], n / m), (at.center, -n / m)):
                expansion.gradient(phi, some, at.center, weight, found[i])
        return found

    each = max(_PART // expansion.width, 2 * k)
    parts = [slice(i, i + each) for i in range(0, len(rows), each)]
    # bytes of two results
    slopes = sum(expansion.workers.map(added, parts, 16 * k * expansion.phi_size)).reshape(2, k, -1)
    for i, (phi, _) in enumerate(near):
        control = np.zeros(expansion.phi_size)
        control_sum(phi, at.sums(max(order, 1)), at.level, control)
        slopes[:, i] += control
    moves = np.array([phi - at.center for phi, _ in near])
    levels = at.level + np.sum(0.5 * (at.slope + slopes.mean(axis=0)) * moves, axis=1)
    levels = np.concatenate([levels, sums_at(expansion, [phi for phi, _ in beyond])[0]])
    prior = np.array([logprior for _, logprior in near + beyond])
    scores = [[expansion.pull_back(*x) for x in zip(usual, half, strict=True)] for half in slopes]
    return Look(usual, far, prior + levels, np.array(scores))


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


def least_mean_error(thetas: np.ndarray, scores: np.ndarray, h: float, level: float) -> float:
    r"""Least error of a mean, in standard deviations, that the step size of overdamped steps makes.

    Without noise of gradients, such steps have to first order the invariant density

    .. math:: \pi_h \propto \pi \, \bigl(1 + \tfrac{h}{4} (2 \Delta \log \pi + |g|^2)\bigr)

    in their metric, in which `scores`, (2, k, a), are those of draws theta, (k, a); by parts, the
    mean of :math:`\theta_j` is off by :math:`-h \, cov(\theta_j, |g|^2) / 4`. That is wrong at a
    `level` for each element.
    """
    scores = scores - scores.mean(axis=1, keepdims=True)
    square = np.sum(scores[0] * scores[1], axis=1)
    sd = thetas.std(axis=0)
    z = (thetas - thetas.mean(axis=0)) / np.where(sd > 0, sd, np.inf)
    series = -h / 4 * z * (square - square.mean())[:, None]
    error = -stdtrit(len(z) - 1, level) * series.std(axis=0) / np.sqrt(len(z))
    return float(np.max(np.abs(series.mean(axis=0)) - error, initial=0.0))
