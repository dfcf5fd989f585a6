"""Whether a minibatch Metropolis-Hastings chain can be trusted: the checks behind its warnings."""

from typing import TYPE_CHECKING

import numpy as np

from pymc_subsample.bounds.predictor_ranges import ELSE
from pymc_subsample.diagnostics.checks import (
    ACCEPTED,
    MODES,
    STRETCH_BOUND,
    TEMPERATURE,
    Finding,
    Rule,
    amount,
    check_accepted,
    check_temperature,
    sentence,
)
from pymc_subsample.diagnostics.overlooked_rows import OVERLOOKED
from pymc_subsample.diagnostics.record import MoveRecord
from pymc_subsample.diagnostics.tails import TAIL

if TYPE_CHECKING:
    from pymc_subsample.samplers.minibatch.decision_errors import AcceptanceErrors

# Of an acceptance probability. A choice: half as much again as `MinibatchBarkerMH` promises by
# default.
ERROR_BOUND = 0.03
# One row's share in a batch's sum of squares, above which a batch without it says too little. A
# choice: half of all is in one row then.
TAIL_BOUND = 0.5

ERROR = Rule(
    "acceptance_error",
    "error of the acceptance test / tolerable error",
    1.0,
    f"Use control_variate_order=2, a stricter test, or ConfidenceMH. {ELSE}",
)
SHARE = Rule(
    "share",
    "rows read per proposal",
    0.5,
    "Use control_variate_order=2, smaller proposals, or another sampler (HMCECS, pm.NUTS).",
    severity="warn",
    besides="Matters only for tests that may stop early; this one was set to read all rows.",
)
BOUND = Rule(
    "bound",
    "largest term of a row / its bound",
    1.0,
    'Return a larger bound, or use bound="full".',
)
# At draws from the posterior this is exceeded once in 22,000 chains at most; see
# `AcceptanceErrors.rise`.
RISE = Rule(
    "rise",
    "log of the mean posterior ratio of proposals",
    10.0,
    "Tune longer, or use control_variate_order=2, a stricter test, or ConfidenceMH.",
)
RULES = (ERROR, SHARE, ACCEPTED, TEMPERATURE, BOUND, RISE, OVERLOOKED, TAIL, MODES)


def check_moves(
    record: MoveRecord,
    errors: "AcceptanceErrors | None",
    *,
    order: int,
    exact: bool,
    temperature: float,
    cause: str,
    remedies: list[str],
) -> list[Finding]:
    """Check one chain.

    `errors` of its test, on proposals of its own, are None for an exact one; `exact` says that
    reading all rows is what the user asked for. `cause` says why the test reads many rows, where it
    does, and `remedies` what makes it more accurate.
    """
    share = record.share / record.done
    saving = ["use smaller proposals", "use another sampler (HMCECS, pm.NUTS)"]
    if order < 2:
        saving.insert(0, "use control_variate_order=2")
        remedies = [*remedies, "use control_variate_order=2"]
    inexact = []
    if errors is not None and errors.beyond is not None:
        inexact.append(_bound_check(errors.beyond))
    if errors is not None:
        error = _error_check(errors, share, remedies)
        inexact += [error, _rise_check(errors.rise, remedies if error.passed else [])]
    return [
        *inexact,
        SHARE.check(
            share,
            f"A proposal reads {share:.0%} of the rows on average: the method saves nothing here. "
            f"{cause} {sentence(saving)}",
            exact or SHARE.holds(share),
        ),
        check_accepted(record),
        check_temperature(temperature),
    ]


def _bound_check(beyond: float) -> Finding:
    return BOUND.check(
        beyond,
        "The bound on the rows' terms is too small: on proposals of this chain the log-ratio of a "
        f"row, less the change of its control variate, was up to {amount(beyond)} times as large, "
        "so that decisions are wrong more often than delta says. Return a larger one from "
        'bound(point, new_point), or use bound="full".',
    )


def _rise_check(rise: float, remedies: list[str]) -> Finding:
    if rise == np.inf:
        return RISE.check(
            rise,
            "The draws are not from the posterior: some make rows impossible (a log-likelihood of "
            "-inf). A batch that misses such a row cannot know. Use AusterityMH with epsilon=0, "
            "ConfidenceMH, or another sampler.",
        )
    return RISE.check(
        rise,
        "The draws are not from the posterior: proposals from them multiply its density by "
        f"e^{amount(rise)} on average, which is 1 in a chain that has converged. Either the chain "
        "has not converged yet, or its acceptance test is wrong too often. "
        f"{sentence(['tune longer', *remedies])}",
    )


def _error_check(errors: "AcceptanceErrors", share: float, remedies: list[str]) -> Finding:
    stretch, sure = errors.stretch()
    value = max(errors.worst / ERROR_BOUND, abs(sure) / STRETCH_BOUND)
    tails = (
        "The rows' log-ratios are heavy-tailed, so that a batch says too little about all rows: "
        "neither a t-test nor a normal approximation is valid. Use ConfidenceMH. "
        if errors.largest > TAIL_BOUND * share
        else ""
    )
    found = []
    if errors.worst > ERROR_BOUND:
        found.append(
            f"its acceptance probability is off by up to {errors.worst:.2g} (should be at most "
            f"{ERROR_BOUND:g})"
        )
    if stretch:
        found.append(f"posterior standard deviations are {_size(stretch)}")
    return ERROR.check(
        value,
        f"The acceptance test is wrong too often: on proposals of this chain "
        f"{' and '.join(found)}. {tails}{sentence(remedies)}",
    )


def _size(stretch: float) -> str:
    size = (
        f"about {min(1 + stretch, 1000):.3g} times too large"
        if stretch > 1
        else f"about {abs(stretch):.0%} too {'large' if stretch > 0 else 'small'}"
    )
    return f"{size} (at most {STRETCH_BOUND:.0%} off)"
