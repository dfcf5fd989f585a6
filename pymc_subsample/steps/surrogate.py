"""How a surrogate is moved between decisions of rows: by what, how often, and what tunes it."""

from typing import TYPE_CHECKING

import numpy as np

from pymc_subsample.control_variates.forecast import Forecast
from pymc_subsample.control_variates.reference import reference_at
from pymc_subsample.kernels.scalable import FACTORISED, MH_SS
from pymc_subsample.likelihood import TallModelError
from pymc_subsample.proposals import AdaptiveMetropolis, Langevin, RandomWalk
from pymc_subsample.thinning import (
    DRAW,
    better_acceptance,
    gradient_time,
    lag_one,
    left_by_a_move,
    most_effective_moves,
)

if TYPE_CHECKING:
    from pymc_subsample.steps.scalable import ScalableMH

type Proposal = str | Langevin | AdaptiveMetropolis | RandomWalk
ACCEPTANCE = {"factorised": FACTORISED, "mh-ss": MH_SS}
TRAJECTORIES = ("hmc", "nuts")
# Compiled dynamics, and the acceptance rates of many parameters and of one that step sizes are
# tuned to.
MOVES = {
    "hmc": ("hmc", 0.8, 0.8),
    "nuts": ("nuts", 0.8, 0.8),
    "Langevin": ("hmc", 0.574, 0.574),
    "AdaptiveMetropolis": ("random-walk", 0.234, 0.44),
    "RandomWalk": ("random-walk", 0.234, 0.44),
}
# Of a trajectory; lengths are jittered by 20%.
_MOST_STEPS = 1024
# Gradients that a transition of the surrogate takes and correlation of draws that it leaves, before
# a chain has shown them.
GRADIENTS, LEFT = 8.0, 0.5
# Draws over which their number is averaged.
_REMEMBERED = 50


def extent(step: "ScalableMH") -> float:
    """Return how far a transition goes: the length of a trajectory, or its doublings."""
    if step.proposal == "hmc":
        return float(min(step.path_length, _MOST_STEPS / 1.2 * step.step_size))
    return float(step.max_treedepth) if step.proposal == "nuts" else 0.0


def choose(step: "ScalableMH", acceptance: str, predicted: Forecast) -> None:
    """Choose how rows decide by what that costs and accepts."""
    factorised, together, _ = predicted.accepted
    step.predicted_acceptance, step.gradients = max(factorised, together), GRADIENTS
    others = DRAW / step.transitions_per_draw + transitions(step, LEFT) * _time(step)
    better = better_acceptance(factorised, together, _reading_time(step), others)
    step.acceptance = better if acceptance == "auto" else acceptance
    step.predicted_acceptance = predicted.accepted[ACCEPTANCE[step.acceptance]]


def transitions(step: "ScalableMH", left: float) -> int:
    """Transitions of the surrogate per proposal, if each leaves such a correlation of draws."""
    if step.given_transitions is not None:
        return step.given_transitions
    if step.kind == "nuts":
        return 1
    others = _reading_time(step) + DRAW / step.transitions_per_draw
    return most_effective_moves(step.predicted_acceptance, left, _time(step), others)


def adapt(step: "ScalableMH", theta: np.ndarray, info: dict[str, float]) -> None:
    """Adapt to the surrogate, which costs no rows; move the reference if the chain has left."""
    tuning = step.tuning
    tuning.add(theta, info["acceptance_rate"], 0.0)
    moves = step.surrogate_transitions * step.transitions_per_draw
    step.gradients += (info["n_steps"] / moves - step.gradients) / _REMEMBERED
    if not tuning.due():
        return
    step.surrogate_transitions = transitions(step, _persistence(step))
    fixed = isinstance(step.proposal, RandomWalk)
    better = None if fixed else tuning.better_factor(_independent(step))
    if better is not None:
        tuning.factor = better
    left = step._given_reference is None and tuning.left(step.reference.theta)
    if left:
        _recentre(step, step._settled(theta))
    tuning.restart(step.step_size if left or better is not None else None)


def _recentre(step: "ScalableMH", theta: np.ndarray) -> None:
    """Take another reference, if rows have bounds there that hold."""
    reference = reference_at(step._expansion, theta, step.temperature)
    try:
        _, share = step._deciding.verify(reference, step._home.factor, step.tuning.factor)
    except TallModelError:
        return
    step.reference, step.underrated = reference, share


def _reading_time(step: "ScalableMH") -> float:
    return step._bounds_at(step._home.reference).reading.time


def _time(step: "ScalableMH") -> float:
    exact = len(step._deciding.exact)
    return step.gradients * gradient_time(len(step._active), step._expansion.phi_size, exact)


def _correlation(step: "ScalableMH") -> float:
    """Correlation of successive draws of late."""
    return lag_one(step.tuning.recent()[:, step._active])


def _independent(step: "ScalableMH") -> float:
    """How many independent draws one is worth, of proposals that move by single steps."""
    correlation = 0.0 if step.kind in TRAJECTORIES else _correlation(step)
    return (1.0 - correlation) / (1.0 + correlation)


def _persistence(step: "ScalableMH") -> float:
    """Correlation that one transition of the surrogate leaves, by the recent draws."""
    between = _correlation(step) ** (1.0 / step.transitions_per_draw)  # successive proposals
    return left_by_a_move(between, step.predicted_acceptance, step.surrogate_transitions)
