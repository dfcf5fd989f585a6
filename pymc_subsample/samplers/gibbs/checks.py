"""Whether a subsampled Gibbs chain can be trusted, by errors of its conditional probabilities."""

from typing import TYPE_CHECKING

import numpy as np

from pymc_subsample.diagnostics.checks import SHIFT_BOUND, Finding, Rule, amount, sentence
from pymc_subsample.diagnostics.record import MoveRecord
from pymc_subsample.samplers.minibatch.checks import TAIL_BOUND

if TYPE_CHECKING:
    from pymc_subsample.samplers.gibbs.conditional_errors import ConditionalErrors

IMPOSSIBLE = Rule("impossible", "rows that make a value impossible", 0.0, "Use epsilon=0.")
_REMEDY = "Decrease epsilon or increase batch_size."
# 0.05: a choice, as of `AusterityMH`, whose errors have either sign as well.
ERROR = Rule("conditional_error", "error of conditional probabilities", 0.05, _REMEDY)
SHIFT = Rule(
    "conditional_shift",
    "shift of means from wrong decisions, in sds",
    SHIFT_BOUND,
    _REMEDY,
)
# Up to this share the test pays for itself.
SHARE = Rule(
    "share", "rows read / rows that touch a variable", 0.9, "Use epsilon=0.", severity="warn"
)
RULES = (IMPOSSIBLE, ERROR, SHIFT, SHARE)

# Standard errors beyond which an error is one. Exceeded once in 16,000 times.
SURE = 4


def memory(record: MoveRecord, active: np.ndarray, sweeps: int) -> float:
    """Sweeps over which a chain adds up what each of them moves, one at least.

    From the largest autocorrelation of successive draws, `sweeps` apart, less four standard errors.
    """
    between = max(record.autocorrelation(active) - SURE * record.done**-0.5, 0.0)
    return 1 / max(1 - between ** (1 / sweeps), 1 / record.done)


def check_updates(
    record: MoveRecord, errors: "ConditionalErrors", sweeps: float, remedies: list[str]
) -> list[Finding]:
    """Check one chain that decides by a test; `remedies` make that more accurate.

    It adds up moves of so many `sweeps`.
    """
    share, shift = record.share / record.done, errors.shift * sweeps
    tails = (
        "The rows' terms are heavy-tailed, so that a batch says too little about all rows. "
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
            f"off by up to {errors.worst:.2g} ({ERROR.should()}). "
            f"{tails}{sentence(remedies)}",
        ),
        SHIFT.check(
            shift,
            "The test favours the rarer value: an update moves means by about "
            f"{errors.shift:.2g} standard deviations, and {amount(sweeps)} sweeps, which the chain "
            f"remembers, by {shift:.2g} ({SHIFT.should()}). "
            f"{tails}{sentence(remedies)}",
        ),
        SHARE.check(
            share,
            f"An update reads {share:.0%} of the rows that touch its variable: the test saves "
            "nothing here. Use epsilon=0, which is exact and faster then.",
        ),
    ]
