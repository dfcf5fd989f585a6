"""What a chain of scalable Metropolis-Hastings does: the surrogate proposes, rows decide."""

from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np
from pymc.blocking import PointType
from pymc.step_methods.state import dataclass_state

from pymc_subsample.bounds.thinning import (
    DRAW,
    GRADIENTS,
    lag_one,
    left_by_a_move,
    most_effective_moves,
)
from pymc_subsample.chain import points
from pymc_subsample.chain.method import Method, ReferredState, as_nuts_says, divergences, of_order
from pymc_subsample.chain.moves import given_factor, given_scale
from pymc_subsample.chain.proposals import RandomWalk
from pymc_subsample.chain.tuning import Tuning, TuningState, extent, settled
from pymc_subsample.compiled.functions import address_of
from pymc_subsample.diagnostics.checks import Finding
from pymc_subsample.diagnostics.record import without_crossings
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.kernels.dynamics import Moves
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.samplers.scalable.checks import ProposalRecord, check_proposals
from pymc_subsample.samplers.scalable.kernel import (
    FACTORISED,
    INFO,
    MH_SS,
    PARAMETER_FUNCTIONS,
    RowDecision,
)
from pymc_subsample.samplers.scalable.kernel import transitions as compiled

if TYPE_CHECKING:
    from pymc_subsample.samplers.scalable.step import ScalableMH

ACCEPTANCE = {"factorised": FACTORISED, "mh-ss": MH_SS}
TRAJECTORIES = ("hmc", "nuts")
# Correlation of draws that a transition of the surrogate leaves, before a chain has shown it. A
# choice, which tuning corrects.
LEFT = 0.5
# Draws over which their number is averaged. A choice: fewer follow noise, more lag behind tuning.
_REMEMBERED = 50


@dataclass_state
class ScalableMHState(ReferredState):
    """Everything the next draw depends on. Bounds of rows are made anew at the reference."""

    underrated: float
    tuning: TuningState
    surrogate_transitions: int
    gradients: float
    control_variate_order: int = field(metadata={"frozen": True})
    acceptance: str = field(metadata={"frozen": True})
    kind: str = field(metadata={"frozen": True})
    bound: str | float = field(metadata={"frozen": True})
    intensity: float = field(metadata={"frozen": True})
    given_transitions: int | None = field(metadata={"frozen": True})
    max_treedepth: int = field(metadata={"frozen": True})
    target_accept: float = field(metadata={"frozen": True})
    path_length: float = field(metadata={"frozen": True})


def _expand(step: "ScalableMH", tall: TallModel) -> Expansion:
    expansion = of_order(step, tall)
    _refuse_no_predictors(expansion)
    return expansion


def _refuse_no_predictors(expansion: Expansion) -> None:
    if not expansion.n_predictors:
        raise TallModelError(
            f"ScalableMH needs rows of {', '.join(map(repr, expansion.likelihood))} that each "
            "depend on the parameters through at most ten linear predictors; they do not in this "
            "model. Use HMCECS."
        )


def _connected(step: "ScalableMH") -> None:
    _refuse_no_predictors(step.expansion)
    if step.prepared is not None:  # otherwise the set-up goes on
        step.deciding.connect(step.expansion)
        step.compiled = step.deciding.model


def reading_time(step: "ScalableMH") -> float:
    """Seconds that rows take to decide on a proposal, over those of a row."""
    return step.deciding.bounds(step.home.reference, step.home.factor).reading.time


def moves_per_proposal(step: "ScalableMH", left: float) -> int:
    """Transitions of the surrogate per proposal, if each leaves such a correlation of draws."""
    if step.given_transitions is not None:
        return step.given_transitions
    if step.kind == "nuts":
        return 1
    others = reading_time(step) + DRAW / step.transitions_per_draw
    time = step.deciding.moving_time(step.gradients)
    return most_effective_moves(step.predicted_acceptance, left, time, others)


# Chains


def _begin(step: "ScalableMH", tune: int, draws: int):
    prepared = step.home
    step.underrated = step.found_underrated
    factor = given_factor(step.proposal, len(step.active))
    step.tuning = Tuning(
        tune, step.active, step.expansion.theta_size,
        prepared.factor if factor is None else factor, step.target_accept,
    )  # fmt: skip
    step.record = ProposalRecord(draws=draws, size=step.tall.size)
    step.gradients = GRADIENTS
    step.surrogate_transitions = moves_per_proposal(step, LEFT)


def _entered(step: "ScalableMH", point: PointType) -> np.ndarray:
    theta = points.read(step, point)
    points.start(step, theta, point, step.tuning.factor)
    return theta


def _extent(step: "ScalableMH") -> float:
    """Return how far a transition goes: the length of a trajectory, or its doublings."""
    if step.proposal == "hmc":
        return extent(step.path_length, step.step_size)
    return float(step.max_treedepth) if step.proposal == "nuts" else 0.0


def _transitions(
    step: "ScalableMH", theta: np.ndarray, size: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    reference, bounds = step.reference, step.bounds
    thetas, infos = np.empty((size, len(theta))), np.empty((size, len(INFO)))
    thetas[0] = theta
    step.step_size = given_scale(step.proposal) or float(step.tuning.step.current(step.tune))
    form = ACCEPTANCE[step.acceptance]
    compiled(step.dynamics)(
        address_of(step.rng), step.compiled, reference.sums(2),
        step.deciding.packed(reference), bounds.table,
        RowDecision(form, float(step.intensity), 1.0 / step.temperature),
        Moves(step.active, step.tuning.factor, step.step_size, _extent(step)),
        step.surrogate_transitions, step.transitions_per_draw, thetas, infos,
    )  # fmt: skip
    exceeded = infos[-1, INFO.index("exceeded")]
    if exceeded >= 0:
        _refuse_row(step, int(exceeded))
    return thetas, without_crossings(dict(zip(INFO, infos.T, strict=True)))


def _refuse_row(step: "ScalableMH", row: int):
    given = "" if isinstance(step.bound, str) else f" with bound={step.bound:g}"
    raise RuntimeError(
        f"ScalableMH: row {row:,} of {', '.join(map(repr, step.likelihood))} exceeds its bound"
        f"{given}, so that the draws would not be from the posterior. "
        + (
            "Give a larger bound."
            if given
            else "Please report this with the model; HMCECS needs no bounds."
        )
    )


def _statistics(step: "ScalableMH", infos: dict[str, np.ndarray]) -> dict[str, Any]:
    exact = 2 * len(step.deciding.exact) * infos["n_steps"].astype(int)
    read, decisions = infos["rows_drawn"] + infos["rows_passed"], infos["decisions"]
    named = as_nuts_says(step, infos["tree_depth"])
    if (given := given_scale(step.proposal)) is not None:
        named["step_size_bar"] = given
    return named | {
        "divergences": divergences(step, infos["diverging"]),
        "rows_accepted": np.where(decisions > 0, infos["rows_accepted"], np.nan),
        "rows_read": read,
        "passes": infos["rows_passed"] / step.n_rows,
        "n_evaluations": 3 * read.astype(int) + exact,  # at the reference, here and there
        "step_size": step.step_size,
        "data_share": read / np.maximum(decisions, 1.0) / step.n_rows,
    }


def _adapt(step: "ScalableMH", theta: np.ndarray, info: dict[str, float]) -> None:
    """Adapt to the surrogate, which costs no rows; move the reference if the chain has left."""
    tuning = step.tuning
    moves = step.surrogate_transitions * step.transitions_per_draw
    crossed = info["crossed"] > 0 and info["n_steps"] > moves
    tuning.add(theta, info["acceptance_rate"], 0.0, crossed=crossed)
    step.gradients += (info["n_steps"] / moves - step.gradients) / _REMEMBERED
    if not tuning.due():
        return
    # Of successive draws, and of successive proposals.
    correlation = lag_one(tuning.recent()[:, step.active])
    between = correlation ** (1.0 / step.transitions_per_draw)
    left = left_by_a_move(between, step.predicted_acceptance, step.surrogate_transitions)
    step.surrogate_transitions = moves_per_proposal(step, left)
    better = None
    if not isinstance(step.proposal, RandomWalk):
        # Independent draws that one is worth, of proposals that move by single steps.
        single = step.kind not in TRAJECTORIES
        worth = (1.0 - correlation) / (1.0 + correlation) if single else 1.0
        better = tuning.better_factor(worth)
    if better is not None:
        tuning.factor = better
    away = step.given_reference is None and tuning.left(step.reference.theta)
    if away:
        _recentre(step, settled(step, theta))
    tuning.restart(step.step_size if away or better is not None else None)


def _recentre(step: "ScalableMH", theta: np.ndarray) -> None:
    """Take another reference, if rows have bounds there that hold."""
    reference = reference_at(step.expansion, theta, step.temperature)
    try:
        _, share = step.deciding.verify(reference, step.home.factor, step.tuning.factor)
    except TallModelError:
        return
    step.reference, step.underrated = reference, share


# After tuning


def _watch(step: "ScalableMH", thetas: np.ndarray, infos: dict[str, np.ndarray]) -> None:
    n = len(thetas)
    shared = {"loglik_variance": np.zeros(n), "subset_accepted": np.ones(n), "sign": np.ones(n)}
    step.record.add(thetas, infos | shared)
    step.record.add_decisions(infos)


def _check(step: "ScalableMH") -> list[Finding]:
    return check_proposals(
        step.record,
        active=step.active,
        n_rows=step.n_rows,
        underrated=step.underrated,
        temperature=step.temperature,
        tune=step.tuning.total,
        began=step.began,
        target=step.target_accept if given_scale(step.proposal) is None else 0.0,
    )


METHOD = Method(
    state=ScalableMHState, functions=lambda step: (*PARAMETER_FUNCTIONS[:2], None), begin=_begin,
    enter=_entered, transitions=_transitions, statistics=_statistics, adapt=_adapt, watch=_watch,
    check=_check, without_gradient="ScalableMH needs one for its proposals.", estimates=False,
    expand=_expand, connected=_connected, compile=lambda step: compiled(step.dynamics),
)  # fmt: skip
