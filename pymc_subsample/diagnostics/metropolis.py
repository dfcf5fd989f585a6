"""Whether a minibatch Metropolis-Hastings chain can be trusted: the checks behind its warnings."""

from pymc_subsample.diagnostics.acceptance import AcceptanceErrors
from pymc_subsample.diagnostics.checks import Check, sentence
from pymc_subsample.diagnostics.record import MoveRecord

# Of an acceptance probability, and of posterior standard deviations.
ERROR_BOUND = 0.03
STRETCH_BOUND = 0.05
FULL_BATCH_BOUND = 0.5
ACCEPTED_BOUND = 0.01
# One row's share in the sum of squares, from which a batch's moments say little of all rows'.
TAIL_BOUND = 0.01


def check_moves(
    record: MoveRecord,
    errors: AcceptanceErrors,
    *,
    exact: bool,
    temperature: float,
    remedies: list[str],
) -> list[Check]:
    """Check one chain.

    Parameters
    ----------
    record : MoveRecord
        What the chain did.
    errors : AcceptanceErrors
        Of its test, on proposals of its own.
    exact : bool
        Whether reading all rows is what the user asked for.
    temperature : float
        Divides the log-likelihood.
    remedies : list of str
        What makes the test more accurate.

    Returns
    -------
    list of Check
        Error of the acceptance test, batches of all rows, acceptance, temperature.
    """
    full, accepted = record.full_batches / record.done, record.accepted / record.done
    return [
        _error_check(errors, remedies),
        Check(
            "full_batches",
            full,
            FULL_BATCH_BOUND,
            exact or full <= FULL_BATCH_BOUND,
            f"{full:.0%} of the proposals read all rows: the method saves nothing here. Use "
            "control_variate_order=2, smaller proposals, or another sampler (HMCECS, pm.NUTS).",
        ),
        Check(
            "accepted",
            accepted,
            ACCEPTED_BOUND,
            accepted >= ACCEPTED_BOUND,
            f"Only {accepted:.1%} of the proposals were accepted (should be at least "
            f"{ACCEPTED_BOUND:.0%}). Use smaller proposals, or increase tune.",
        ),
        Check(
            "temperature",
            temperature,
            1.0,
            temperature == 1.0,
            f"temperature={temperature:g}: the draws are not from the posterior but from a "
            "distribution with the log-likelihood divided by that.",
        ),
    ]


def _error_check(errors: AcceptanceErrors, remedies: list[str]) -> Check:
    stretch, noise = errors.stretch()
    off = max(abs(stretch) - 3 * noise, 0.0)
    value = max(errors.worst / ERROR_BOUND, off / STRETCH_BOUND)
    tails = (
        "The rows' log-ratios are heavy-tailed, so that a batch says too little of all rows: "
        "neither a t-test nor a normal approximation is valid. Use ConfidenceMH. "
        if errors.largest > TAIL_BOUND
        else ""
    )
    return Check(
        "acceptance_error",
        value,
        1.0,
        value <= 1.0,
        f"The acceptance test is wrong too often: on proposals of this chain its acceptance "
        f"probability is off by up to {errors.worst:.2g} (should be at most {ERROR_BOUND:g}), and "
        f"posterior standard deviations by about {stretch:+.0%} (at most {STRETCH_BOUND:.0%}). "
        f"{tails}{sentence(remedies)}",
    )
