"""The record of scalable Metropolis-Hastings."""

from typing import Any

import numpy as np

from pymc_subsample.bounds.thinning import (
    CORRELATION,
    DRAW,
    effective,
    most_effective_moves,
    steps,
)
from pymc_subsample.chain.sampler import Advised, Sampler
from pymc_subsample.samplers.scalable.checks import RULES

# Predicted acceptance, where rows decide, that is told. A choice: half of the draws repeat the
# one before.
FEW_ACCEPTED = 0.5
# Why rows accept little where the cube of the number of parameters is many times their number: so
# many, where set-ups are as dear as they ever are.
CROWD = "too many parameters for so few rows"
_CROWDED = 20.0


def _unworthy(step: Any) -> str:
    share = step.predicted_acceptance
    few = f"it would accept only about {share:.0%} of its proposals, with {CROWD}"
    return few if share < FEW_ACCEPTED else ""


def crowded(parameters: int, rows: int) -> bool:
    """Whether rows accept little, and bounds take as long as they ever do."""
    return parameters**3 > _CROWDED * rows


def _effective_time(step: Any) -> float:
    accepted, left = step.predicted_acceptance, CORRELATION[step.proposal]
    moving = steps(step.proposal, len(step.active)) * step.deciding.moving_time(1.0)
    others = DRAW / step.transitions_per_draw + step.bounds.reading.time
    moves = 1 if step.proposal == "nuts" else most_effective_moves(accepted, left, moving, others)
    return (others + moves * moving) / effective(accepted, left, moves)


SCALABLE_MH = Sampler(
    name="ScalableMH",
    number=2,
    rules=RULES,
    numbers=(
        "acceptance_rate", "accepted", "data_share", "energy", "energy_error",
        "max_energy_error", "rows_accepted", "rows_read", "step_size", "step_size_bar", "tightness",
        "tree_depth", "passes",
    ),
    others={
        "index_in_trajectory": np.int64, "n_steps": np.int64, "diverging": bool,
        "divergences": int, "reached_max_treedepth": bool,
    },
    shown=("divergences", "rows_accepted", "rows_read"),
    chosen=("acceptance", "proposal", "control_variate_order", "predicted_acceptance"),
    # Set-up in trials: 1 to 5 times that of HMCECS, twice usually; up to 50 in a crowd.
    advised=Advised(
        place=1, unasked=True, exact=True, reads_for="draw", dearer=(2.0, 50.0), unworthy=_unworthy,
        effective_time=_effective_time,
    ),
)  # fmt: skip
SAMPLERS = (SCALABLE_MH,)
