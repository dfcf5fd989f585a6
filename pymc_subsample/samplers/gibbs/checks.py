"""Whether a subsampled Gibbs chain can be trusted: errors of its conditional probabilities.

At a few states of the chain every row that touches a variable is read once; the test then decides
about that variable again and again on fresh random batches of those numbers.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

from pymc_subsample.diagnostics.checks import SHIFT_BOUND, Check, Rule, amount, sentence
from pymc_subsample.diagnostics.record import MoveRecord
from pymc_subsample.expansion import Expansion
from pymc_subsample.samplers.gibbs.touching import Touching
from pymc_subsample.samplers.minibatch.acceptance import Criterion
from pymc_subsample.samplers.minibatch.checks import TAIL_BOUND
from pymc_subsample.samplers.minibatch.decision_errors import (
    PilotErrors,
    RepeatedDecisions,
    compared,
    largest_share,
)

IMPOSSIBLE = Rule("impossible", "rows that make a value impossible", 0.0, "Use epsilon=0.")
_REMEDY = "Decrease epsilon or increase batch_size."
# 0.05: a choice, as of `AusterityMH`, whose errors have either sign as well.
ERROR = Rule("conditional_error", "error of conditional probabilities", 0.05, _REMEDY)
SHIFT = Rule(
    "conditional_shift",
    "shift of means by wrong decisions, in standard deviations",
    SHIFT_BOUND,
    _REMEDY,
)
# Up to this share the test pays for itself.
SHARE = Rule(
    "share", "rows read, of those that touch a variable", 0.9, "Use epsilon=0.", severity="warn"
)
RULES = (IMPOSSIBLE, ERROR, SHIFT, SHARE)

# Numbers that all decisions of a check may read. A choice of time.
_MOST_ROWS = 100_000_000
# Standard errors beyond which an error is one. Exceeded once in 16,000 times.
_SURE = 4
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
        sure = np.sum(moved**2) - np.sum(noise) - _SURE * np.sqrt(2 * np.sum(noise**2))
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


def memory(record: MoveRecord, active: np.ndarray, sweeps: int) -> float:
    """Sweeps over which a chain adds up what each of them moves, one at least.

    From the largest autocorrelation of successive draws, `sweeps` apart, less four standard errors.
    """
    between = max(record.autocorrelation(active) - _SURE * record.done**-0.5, 0.0)
    return 1 / max(1 - between ** (1 / sweeps), 1 / record.done)


def check_updates(
    record: MoveRecord, errors: ConditionalErrors, sweeps: float, remedies: list[str]
) -> list[Check]:
    """Check one chain that decides by a test; `remedies` make that more accurate.

    It adds up moves of so many `sweeps`.
    """
    share, shift = record.share / record.done, errors.shift * sweeps
    tails = (
        "The rows' terms are heavy-tailed, so that a batch says too little of all rows. "
        if errors.largest > TAIL_BOUND * share
        else ""
    )
    return [
        IMPOSSIBLE.check(
            float(errors.impossible),
            "Rows make values of a binary variable impossible (a log-likelihood of -inf): a batch "
            "that misses such a row decides against it. Use epsilon=0.",
        ),
        ERROR.check(
            errors.worst,
            "The test is wrong too often: on updates of this chain the conditional probability is "
            f"off by up to {errors.worst:.2g} (should be at most {ERROR.bound:g}). "
            f"{tails}{sentence(remedies)}",
        ),
        SHIFT.check(
            shift,
            "The test favours the rarer value: an update moves means by about "
            f"{errors.shift:.2g} standard deviations, and {amount(sweeps)} sweeps, which the chain "
            f"remembers, by {shift:.2g} (should be at most {SHIFT.bound:g}). "
            f"{tails}{sentence(remedies)}",
        ),
        SHARE.check(
            share,
            f"An update reads {share:.0%} of the rows that touch its variable: the test saves "
            "nothing here. Use epsilon=0, which is exact and faster then.",
        ),
    ]
