"""What steps that decide on growing batches of rows have in common: set-up, draws and checks."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np
from pymc.step_methods.state import dataclass_state

from pymc_subsample.bounds.predictor_ranges import exact_step
from pymc_subsample.chain import arguments, finding_reference, moves
from pymc_subsample.chain.ellipsoid import far_points
from pymc_subsample.chain.guards import row_numbers
from pymc_subsample.chain.integrating import each
from pymc_subsample.chain.method import require_parts
from pymc_subsample.chain.model_compilation import attach
from pymc_subsample.chain.moves import (
    Aims,
    ProposingState,
    SharedProposing,
    by_langevin,
)
from pymc_subsample.chain.multimodality import warn_of_modes
from pymc_subsample.chain.proposals import require_size
from pymc_subsample.chain.shared_arguments import shares
from pymc_subsample.chain.sizing import Choice, choose, choose_always
from pymc_subsample.compiled.functions import Compiled, address_of
from pymc_subsample.diagnostics.checks import Finding, amount, sentence
from pymc_subsample.diagnostics.look import look_without_gradients
from pymc_subsample.diagnostics.overlooked_rows import check_overlooked
from pymc_subsample.expansion.estimators import VARIANCE_BOUND
from pymc_subsample.expansion.residuals import residuals_around
from pymc_subsample.kernels.estimates import PERTURBED
from pymc_subsample.kernels.proposals import Proposing
from pymc_subsample.model import TallModelError
from pymc_subsample.samplers.minibatch import kernel as kernel
from pymc_subsample.samplers.minibatch.acceptance import Criterion
from pymc_subsample.samplers.minibatch.checks import check_moves
from pymc_subsample.samplers.minibatch.decision_errors import (
    AcceptanceErrors,
    Proposed,
    acceptance_errors,
    metropolis,
)
from pymc_subsample.samplers.minibatch.kernel import INFO, transitions
from pymc_subsample.samplers.minibatch.largest_term import GIVEN_BOUND, TermBound

_log = logging.getLogger("pymc.subsample")

_transitions = transitions.get_overload(transitions.signatures[0])

# Of a Langevin proposal's gradient, where its batch size is left open. A choice between noise of
# the drift and rows.
_GRADIENT_ROWS = 100
# Numbers that the decisions of a chain's check may read: as many as it has read, within limits. A
# choice of time.
_DECISION_ROWS = 2_000_000, 200_000_000


class SharedMH(SharedProposing, total=False):
    """Arguments of all steps that decide on growing batches."""

    batch_size: int | None
    control_variate_order: int | str | None


@dataclass_state
class MinibatchMHState(ProposingState):
    """Everything the next draw depends on. The rows themselves are taken anew from the data."""

    control_variate_order: int | None = field(metadata={"frozen": True})
    batch_size: int = field(metadata={"frozen": True})
    always: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Decision:
    """What tells an acceptance test from the others; `step` is its step method."""

    test: Compiled  # The compiled test; see `decisions`.
    # ``settings(step)`` returns its numbers for the next draw.
    settings: Callable[[Any], np.ndarray]
    # ``cause(step)`` says why it reads many rows, where it does, and ``remedies(step)`` what makes
    # it more accurate.
    cause: Callable[[Any], str]
    remedies: Callable[[Any], list[str]]
    error: str = "test_error"  # What its own error is called among the statistics.
    batch_size: int = arguments.BATCH  # Rows to start with, unless others are given.
    aims: Aims = moves.USUAL
    # ``with_all_rows(step)`` returns what it decides with all rows, a function as `metropolis`.
    with_all_rows: Callable[[Any], Callable] = lambda step: metropolis
    # Whether reading all rows is what the user asked for, whether settings change between draws,
    # and whether it asks Python at each proposal.
    exact: Callable[[Any], bool] = lambda step: False
    changes: Callable[[Any], bool] = lambda step: False
    asks: Callable[[Any], bool] = lambda step: False
    # ``bound(step, theta, given)`` returns where bounds of the rows' terms come from, for tests
    # that need them, and ``bounded(step, proposed)`` a proposal with its bound.
    bound: Callable[[Any, np.ndarray, np.ndarray], TermBound] = lambda step, theta, given: (
        TermBound(GIVEN_BOUND, np.inf, np.zeros((0, 0)))
    )
    bounded: Callable[[Any, Proposed], Proposed] = lambda step, proposed: proposed
    # ``conclude(step, errors)`` says what is known of a chain that passed its checks.
    conclude: Callable[[Any, AcceptanceErrors], None] = lambda step, errors: None

    def __post_init__(self):
        require_parts(self, _PARTS)


_PARTS = {
    "step": ("settings", "cause", "remedies", "with_all_rows", "exact", "changes", "asks"),
    "step, theta, given": ("bound",),
    "step, proposed": ("bounded",),
    "step, errors": ("conclude",),
}


@shares(moves.set_up, moves.set_up.__doc__)
def set_up(
    step: Any,
    vars: Sequence | None = None,
    *,
    batch_size: int | None = None,
    control_variate_order: int | str | None = "auto",
    **above: Unpack[SharedProposing],
) -> None:
    """Set up a step that decides on growing batches.

    Parameters
    ----------
    batch_size : int, optional
        Rows to start with, from 2 to all, and by which a batch grows. Default: 100, or all rows
        where there are fewer. With control variates the few rows of the largest residuals are read
        beside it, always.
    control_variate_order : {"auto", 2, 1, None}, default "auto"
        Order of the Taylor control variates: their sum over all rows is exact and a batch
        estimates the remainder alone. "auto" is the highest there is; None takes plain batches,
        which needs no gradients and no reference but far more rows.
    """
    order = arguments.order(control_variate_order, type(step).__name__, plain=True)
    arguments.optional_batch(batch_size, smallest=2)
    moves.set_up(step, vars, **above)
    if step.reference_asked_for and order is None:
        raise ValueError(
            "reference is the expansion point of the control variates, and "
            "control_variate_order is None. Give one or the other."
        )
    step.aims = step.decision.aims
    step.form.own &= order is not None
    attach(step, order)
    step.control_variate_order = None if order is None else step.expansion.order
    step.batch_size = arguments.batch_size(batch_size, step.n_rows, step.decision.batch_size)
    require_size(step.proposal, len(step.active), step.n_rows)
    step.prepared = _prepare(step)
    warn_of_modes(step)
    step.begin(tune=0, draws=0)


def _prepare(step: Any) -> Choice | None:
    if step.control_variate_order is None:
        return None
    found = finding_reference.find(step, temperature=step.temperature)
    prepared = choose(*found, step.batch_size)
    variance = float(np.max(prepared.moments.variance(step.n_rows, step.temperature)))
    if variance > VARIANCE_BOUND and step.batch_size < step.n_rows:
        todo = ["leave reference=None"] if step.given_reference else []
        todo += ["use control_variate_order=2"] if step.control_variate_order == 1 else []
        todo += ["use control_variate_order=None", "sample this model with pm.sample()"]
        _log.warning(
            f"{type(step).__name__}: the log-likelihood of "
            f"{', '.join(map(repr, step.likelihood))} cannot be expanded well around the "
            f"reference: even {step.n_rows:,} {each(step)}, as many as there are, leave an "
            f"estimate of it a variance of {amount(variance)} (should be at most "
            f"{VARIANCE_BOUND:g}). " + sentence(todo)
        )
    return prepared


def _functions(step: Any) -> tuple[str | None, ...]:
    unused = [] if step.asked_order else ["anchor"]
    unused += [] if by_langevin(step) else kernel.GRADIENTS
    names = (*kernel.FUNCTIONS, *kernel.GRADIENTS)
    return tuple(None if name in unused else name for name in names)


def connected(step: Any) -> None:
    """Give rows their numbers."""
    step.permutation = row_numbers(step, step.n_rows, step.likelihood)
    # What is read always at a reference, which rows of it, and the numbers of the others: a
    # reference, two arrays of numbers and one of packed rows.
    step.packed = None


def _begin(step: Any, tune: int, draws: int) -> None:
    moves.begin(step, tune, draws)
    home = None if step.prepared is None else step.home
    step.always = home.always if isinstance(home, Choice) else np.zeros(0, dtype=np.int64)


def _one_by_one(step: Any) -> bool:
    """Whether Python code takes part in every transition."""
    return callable(step.proposal) or step.decision.asks(step)


def _steady(step: Any) -> bool:
    return not _one_by_one(step) and not step.decision.changes(step)


def _run(
    step: Any, thetas: np.ndarray, kind: int, given: np.ndarray, log_factor: float, k: int
) -> dict[str, np.ndarray]:
    infos, population, decision = (
        np.empty((len(thetas), len(INFO))),
        _population(step),
        step.decision,
    )
    batch = getattr(step.proposal, "batch_size", 0) or _GRADIENT_ROWS
    batch = min(batch, len(population.permutation))
    _transitions(
        address_of(step.rng), address_of(step.row_rng), step.compiled, step.sums(),
        Criterion(decision.test.address, decision.settings(step)),
        decision.bound(step, thetas[0], given),
        Proposing(
            kind, step.active, step.tuning.factor, moves.scaling(step), batch, given, log_factor
        ),
        population, thetas, k, infos,
    )  # fmt: skip
    return dict(zip(INFO, infos.T, strict=True))


def recentre(step: Any, theta: np.ndarray) -> None:
    """Take another reference, and the rows of the largest residuals around it."""
    before = step.reference
    moves.recentred(step, theta)
    at = step.reference
    far = far_points(PERTURBED, at.theta, step.tuning.factor, step.active, step.rng)
    try:
        residuals = residuals_around(step.expansion, at, far[: len(far) // 2], far)
    except TallModelError:
        step.reference = before  # impossible rows on the way: the end of the chain judges
        return
    step.always, _ = choose_always(PERTURBED, residuals, step.temperature)


def _population(step: Any) -> kernel.Population:
    at, always = step.reference, step.always
    if step.packed is None or step.packed[0] is not at or step.packed[1] is not always:
        members, exact = step.permutation[:0], step.expansion.take(always)
        if at is not None and len(always):
            members = np.delete(step.permutation, always)
            step.expansion.anchor(at.center, exact)
        step.packed = at, always, members, exact
    others, (_, _, members, exact) = step.n_rows - len(always), step.packed
    return kernel.Population(
        step.permutation[:others], members, weight(step), exact, 1.0 / step.temperature
    )


def weight(step: Any) -> float:
    """Of a row's log-ratio in the terms of a batch."""
    return (step.n_rows - len(step.always)) / step.temperature


def _statistics(step: Any, infos: dict[str, np.ndarray]) -> dict[str, Any]:
    tested, proposed = infos["rows_tested"], infos["rows_proposed"]
    # At both ends, and with gradients there.
    evaluations = 2 * tested + 4 * proposed
    if step.control_variate_order:
        uses = 2 if by_langevin(step) else 1
        anchored_before = step.transitions_per_draw * uses * len(step.always)
        evaluations += 2 * (tested + proposed - anchored_before)
    return {
        "n_evaluations": evaluations.astype(int),
        step.decision.error: infos["error"],
        "scaling": moves.scaling(step),
        "data_share": infos["batch_size"] / step.n_rows,
    }


# After tuning


def _watch(step: Any, thetas: np.ndarray, infos: dict[str, np.ndarray]) -> None:
    share = infos["rows_tested"] / (step.transitions_per_draw * step.n_rows)
    step.record.add(thetas, infos["accepted"], share)


def _check(step: Any) -> list[Finding]:
    decision, told = step.decision, step.decision.exact(step)
    errors = None if told else _measured_errors(step)
    exact = []
    if errors is not None and step.prepared is not None:
        exact = exact_step(step.expansion, step.prepared.reference)
    found = check_moves(
        step.record,
        errors,
        order=step.control_variate_order or 0,
        exact=told,
        temperature=step.temperature,
        cause=decision.cause(step),
        remedies=[*decision.remedies(step), *exact],
    )
    if errors is not None:
        draws = np.array(step.record.thinned)
        look = look_without_gradients(step.expansion, draws, step.active, step.temperature)
        found += check_overlooked(look)
    if errors is not None and all(x.passed for x in found):
        decision.conclude(step, errors)
    return found


def _measured_errors(step: Any) -> AcceptanceErrors:
    """Let the test decide about proposals of this chain, at less cost than the chain's."""
    rng, decision = np.random.default_rng(0), step.decision
    read = step.record.share * step.n_rows * step.transitions_per_draw
    proposals = [Proposed(at, *moves.moved_from(step, at, rng)) for at in moves.pilots(step)]
    return acceptance_errors(
        step.expansion,
        step.reference,
        [decision.bounded(step, proposal) for proposal in proposals],
        order=step.control_variate_order or 0,
        always=step.always,
        temperature=step.temperature,
        test=decision.test.address,
        settings=decision.settings(step),
        exact=decision.with_all_rows(step),
        most_rows=int(np.clip(read, *_DECISION_ROWS)),
        rng=rng,
    )


METHOD = moves.method(
    _run, one_by_one=_one_by_one, recentre=recentre, state=MinibatchMHState, functions=_functions,
    begin=_begin, statistics=_statistics, watch=_watch, check=_check, steady=_steady,
    without_gradient="Use control_variate_order=None, and a proposal without gradients.",
    connected=connected, anew=("permutation", "packed"),
)  # fmt: skip
