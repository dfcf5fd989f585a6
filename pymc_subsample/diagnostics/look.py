"""One look at all rows, at draws that are chosen once.

The farthest draws in single parameters, where rows may matter that do so nowhere else, and others
that stand for all. Log densities and gradients there are read in one pass, and every check judges
what was read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from pymc_subsample.compiled.process import one_thread
from pymc_subsample.diagnostics.perturbation import standardised
from pymc_subsample.expansion import Expansion

# Draws that are the farthest: so many or all, up to a number, that are farther in a parameter than
# so many standard deviations. A choice of time: a pass over all rows at each.
_FARTHEST, _MOST_FAR, _FAR = 8, 32, 4.0
# Draws that say what is usual. A choice: passes over all rows.
_USUAL = 24
# Rows that are read in all at draws that are the farthest; of more rows audits tell alone. A choice
# of time.
MOST_ROWS = 400_000_000


@dataclass(frozen=True)
class Look:
    """What rows say at some draws."""

    usual: np.ndarray  # Evenly spread draws theta, shape (k, d), and
    far: np.ndarray  # the farthest, shape (j, d).
    logp: np.ndarray  # Log density, to a constant, at the usual and then at the farthest, (k + j,).
    # Gradients of the log density at the usual ones, shape (2, k, d): two independent estimates, or
    # the same twice; empty if nobody needs them.
    scores: np.ndarray

    @property
    def score(self) -> np.ndarray:
        """Mean of the estimates, shape (k, d)."""
        return self.scores.mean(axis=0)

    def along(self, active: np.ndarray) -> Self:
        """Return the same of some elements of theta."""
        return replace(
            self,
            usual=self.usual[:, active],
            far=self.far[:, active],
            scores=self.scores[..., active],
        )


def farthest(z: np.ndarray, most: int = _MOST_FAR) -> np.ndarray:
    """Return some draws, of z of shape (k, a), that are the farthest of all in a parameter."""
    ends = np.concatenate([z.argmax(axis=0), z.argmin(axis=0)])
    size = np.concatenate([z.max(axis=0), -z.min(axis=0)])
    order = np.argsort(-size, kind="stable")
    ordered = list(dict.fromkeys(ends[order]))
    beyond = len(set(ends[size > _FAR]))
    many = min(max(_FARTHEST, beyond), most)
    return np.sort(np.array(ordered[:many], dtype=np.int64))


def systematic(adds: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
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


def evenly_spread(thetas: np.ndarray, most: int = _USUAL) -> np.ndarray:
    """Return at most so many of some draws, shape (k, d)."""
    return thetas[np.linspace(0, len(thetas) - 1, min(most, len(thetas))).astype(int)]


def far_out(thetas: np.ndarray, active: np.ndarray, n_rows: int, beside: int = 0) -> np.ndarray:
    """Return the farthest of draws, shape (k, d); none where those and others are too many rows."""
    shares = np.full(len(thetas), 1 / max(len(thetas), 1))
    far = farthest(standardised(thetas[:, active], shares)) if len(thetas) else np.zeros(0, int)
    return thetas[far if n_rows * (len(far) + beside) <= MOST_ROWS else far[:0]]


@one_thread
def sums_at(expansion: Expansion, phis: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Sum log-likelihoods and their gradients over all rows, in one pass: shapes (k,), (k, P)."""
    level, slope = np.zeros(len(phis)), np.zeros((len(phis), expansion.phi_size))
    if not len(phis):
        return level, slope
    for levels, slopes in expansion.over(_at_points, phis, result_bytes=slope.nbytes):
        level += levels
        slope += slopes
    return level, slope


def _at_points(
    expansion: Expansion, batches: Iterable[np.ndarray], points: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    level, slope = np.zeros(len(points)), np.zeros((len(points), expansion.phi_size))
    for rows in batches:
        found = [expansion.totals([rows], phi, curved=False) for phi in points]
        level += [value[0] for value, *_ in found]
        slope += [gradient for _, gradient, *_ in found]
    return level, slope


def log_posteriors(expansion: Expansion, thetas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log posterior and gradient at points theta, (k, d), by one pass over all rows."""
    points = [expansion.parameters(theta) for theta in thetas]
    level, slope = sums_at(expansion, [phi for phi, _ in points])
    prior = np.array([logprior for _, logprior in points])
    gradient = [expansion.pull_back(t, g) for t, g in zip(thetas, slope, strict=True)]
    return prior + level, np.array(gradient).reshape(len(points), expansion.theta_size)


def log_densities(expansion: Expansion, thetas: np.ndarray, temperature: float) -> np.ndarray:
    """Log densities that a chain samples at points theta, (k, d), as `log_posteriors`: (k,).

    Without gradients, which a log-likelihood need not have.
    """
    points = [expansion.parameters(theta) for theta in thetas]
    expansion.addresses("left")  # compiled before other processes are asked
    level = sum(expansion.over(_levels, [phi for phi, _ in points]))
    return np.array([logprior for _, logprior in points]) + level / temperature


def _levels(
    expansion: Expansion, batches: Iterable[np.ndarray], points: Sequence[np.ndarray]
) -> np.ndarray:
    [rows] = batches
    value, found = np.empty(rows.shape[1]), np.empty(len(points))
    for i, phi in enumerate(points):
        expansion.loglik(phi, rows, value)
        found[i] = value.sum()
    return found


def look_at(expansion: Expansion, usual: np.ndarray, far: np.ndarray) -> Look:
    """Look at all rows at draws, shapes (k, d) and (j, d)."""
    logp, score = log_posteriors(expansion, np.concatenate([usual, far]))
    score = score[: len(usual)]
    return Look(usual, far, logp, np.broadcast_to(score, (2, *score.shape)))


def look_without_gradients(
    expansion: Expansion, thetas: np.ndarray, active: np.ndarray, temperature: float
) -> Look | None:
    """Look at the log densities that a chain samples, at some of its draws theta, shape (k, d).

    None of too many rows.
    """
    usual = evenly_spread(thetas)
    far = far_out(thetas, active, expansion.n_rows, len(usual))
    if not len(far):
        return None
    logp = log_densities(expansion, np.concatenate([usual, far]), temperature)
    return Look(usual, far, logp, np.zeros((2, 0, thetas.shape[1])))
