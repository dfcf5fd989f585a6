"""Whether a subsampled Gibbs chain can be trusted: errors of its conditional probabilities.

At a few states of the chain every row that touches a variable is read once; the test then decides
about that variable again and again on fresh random batches of those numbers.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

from pymc_subsample.control_variates import Expansion
from pymc_subsample.diagnostics.acceptance import PilotErrors, Repeated, compared, largest_share
from pymc_subsample.diagnostics.checks import Check, Rule, sentence
from pymc_subsample.diagnostics.metropolis import TAIL_BOUND
from pymc_subsample.diagnostics.record import MoveRecord
from pymc_subsample.kernels.acceptance import Criterion
from pymc_subsample.likelihood.touching import Touching

IMPOSSIBLE = Rule("impossible", "rows that make a value impossible", 0.0, "Use epsilon=0.")
ERROR = Rule(
    "conditional_error",
    "error of conditional probabilities",
    0.05,
    "Decrease epsilon or increase batch_size.",
)
# Up to this share the test pays for itself.
SHARE = Rule(
    "share", "rows read, of those that touch a variable", 0.9, "Use epsilon=0.", severity="warn"
)
RULES = (IMPOSSIBLE, ERROR, SHARE)

_MOST_ROWS = 20_000_000
_CHUNK = 2**18


@dataclass(frozen=True)
class ConditionalErrors(PilotErrors):
    """What a pilot of k updates found: conditional probabilities of 1, in arrays of shape (k,)."""

    largest: float  # Largest share that one row has in the sum of squares of the rows' terms.
    impossible: bool  # Whether a row makes a value impossible.


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
    repeated = Repeated(Criterion(test, settings), uniforms, thresholds, most, rng)
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
        results.append(compared(made, float(expit(odds)), thresholds[: len(made)] < odds))
    probability, exact, noise = np.array(results).reshape(-1, 3).T
    return ConditionalErrors(probability, exact, noise, largest, impossible)


def check_updates(
    record: MoveRecord, errors: ConditionalErrors, remedies: list[str]
) -> list[Check]:
    """Check one chain that decides by a test; `remedies` make that more accurate."""
    share = record.share / record.done
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
        SHARE.check(
            share,
            f"An update reads {share:.0%} of the rows that touch its variable: the test saves "
            "nothing here. Use epsilon=0, which is exact and faster then.",
        ),
    ]
