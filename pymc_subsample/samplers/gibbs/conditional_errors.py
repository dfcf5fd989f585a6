"""Errors of a subsampled Gibbs chain's conditional probabilities, measured at some states of it.

Every row that touches a variable is read once; the test then decides about that variable again and
again on fresh random batches of those numbers.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

from pymc_subsample.expansion import Expansion
from pymc_subsample.samplers.gibbs.checks import SURE
from pymc_subsample.samplers.gibbs.touching import Touching
from pymc_subsample.samplers.minibatch.acceptance import Criterion
from pymc_subsample.samplers.minibatch.decision_errors import (
    PilotErrors,
    RepeatedDecisions,
    compared,
    largest_share,
)

# Numbers that all decisions of a check may read. A choice of time.
_MOST_ROWS = 100_000_000
# Variance of a variable that is hardly ever 1, or 0: a smaller one is not told from it. A choice:
# rarer than once in a thousand draws, which a run hardly sees. A chunk is a choice of memory, 2
# MB.
_RARE = 1e-3
_CHUNK = 2**18


@dataclass(frozen=True)
class ConditionalErrors(PilotErrors):
    """What a pilot of k updates found: conditional probabilities of 1, in arrays of shape (k,)."""

    largest: float  # Largest share that one row has in the sum of squares of the rows' terms.
    impossible: bool  # Whether a row makes a value impossible.
    variable: np.ndarray  # Which one each update is of, shape (k,).

    @property
    def shift(self) -> float:
        r"""What one update moves means by, in standard deviations, beyond doubt.

        Of each variable the mean of its errors, over the root mean square of
        :math:`\sqrt{p (1 - p)}`: a wrong decision favours the rarer value, which is one half of the
        time the other one where a variable is 0 as often as 1. What the noise makes of squares, and
        four standard errors of that, are taken off.
        """
        if not len(self.exact):
            return 0.0
        of, counts = np.unique(self.variable, return_inverse=True, return_counts=True)[1:]
        moved = np.bincount(of, self.error) / counts
        noise = np.bincount(of, self.noise**2) / counts**2
        sure = np.sum(moved**2) - np.sum(noise) - SURE * np.sqrt(2 * np.sum(noise**2))
        spread = max(float(np.mean(self.exact * (1 - self.exact))), _RARE)
        return float(np.sqrt(max(sure, 0.0) / len(counts) / spread))


def log_odds_terms(
    expansion: Expansion, touching: Touching, elements: np.ndarray, theta: np.ndarray, i: int
) -> tuple[np.ndarray, float]:
    """Return ``f(x_i = 1) - f(x_i = 0)`` of the rows that touch i, shape (n_i,), and the prior's.

    `i` counts `elements`, positions in theta.
    """
    below, above = theta.copy(), theta.copy()
    below[elements[i]], above[elements[i]] = 0.0, 1.0
    (phi, prior), (new_phi, new_prior) = map(expansion.parameters, (below, above))
    index = np.arange(expansion.n_rows)
    if touching.unknown is None:
        index = touching.rows[touching.start[i] : touching.start[i + 1]].astype(np.int64)
    y, center = np.empty(len(index)), np.zeros_like(phi)
    for first in range(0, len(index), _CHUNK):
        part = index[first : first + _CHUNK]
        rows = np.empty((expansion.width, len(part)))
        expansion.gather(expansion.packer.table, part, rows)
        expansion.change(phi, new_phi, center, rows, y[first : first + len(part)])
    return y, new_prior - prior


def conditional_errors(
    expansion: Expansion,
    touching: Touching,
    elements: np.ndarray,
    updates: list[tuple[np.ndarray, int]],
    *,
    test: int,
    settings: np.ndarray,
    decisions: int,
    rng: np.random.Generator,
) -> ConditionalErrors:
    """Measure the errors of a test on some updates: states theta, and the variable updated there.

    There are so many `decisions` per update. The others are as `log_odds_terms` and
    `acceptance.acceptance_errors` take them.
    """
    uniforms = (rng.permutation(decisions) + 0.5) / decisions
    thresholds, most = logit(uniforms), _MOST_ROWS // len(updates)
    repeated = RepeatedDecisions(Criterion(test, settings), uniforms, thresholds, most, rng)
    results, largest, impossible = [], 0.0, False
    for theta, i in updates:
        y, known = log_odds_terms(expansion, touching, elements, theta, i)
        if not len(y) or not np.isfinite(known):
            continue
        if not np.all(np.isfinite(y)):
            impossible = True
            continue
        largest = max(largest, largest_share(y))
        made = repeated.decided(y * len(y), known)
        odds = known + y.sum()
        results.append((*compared(made, float(expit(odds)), thresholds[: len(made)] < odds), i))
    probability, exact, noise, variable = np.array(results).reshape(-1, 4).T
    return ConditionalErrors(probability, exact, noise, largest, impossible, variable)
