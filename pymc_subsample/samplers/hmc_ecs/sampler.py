"""The record of HMC-ECS."""

from typing import Any

import numpy as np

from pymc_subsample.bounds.thinning import (
    CORRELATION,
    DRAW,
    effective,
    gradient_time,
    row_time,
    steps,
)
from pymc_subsample.chain.sampler import Advised, Sampler
from pymc_subsample.samplers.hmc_ecs.checks import RULES


def _foreseen(step: Any) -> dict[str, float]:
    moments, subsample_size = step.moments, step.subsample_size
    return {
        "loglik_variance": float(np.max(moments.variance(subsample_size))),
        "perturbation": float(np.max(moments.perturbation(subsample_size))),
    }


def _effective_time(step: Any) -> float:
    size, rows = len(step.active), step.rows_read
    gradient = gradient_time(size, step.expansion.phi_size, rows)
    refreshed = 0 if step.exact else step.subsample_size / step.n_blocks
    moving = steps(step.kernel, size) * gradient + refreshed * row_time(step.expansion.width)
    transition = DRAW / step.transitions_per_draw + moving
    return transition / effective(1.0, CORRELATION[step.kernel], 1)


HMCECS = Sampler(
    name="HMCECS",
    number=1,
    rules=RULES,
    numbers=(
        "acceptance_rate", "accepted", "data_share", "energy", "energy_error",
        "loglik_variance", "max_energy_error", "model_logp", "step_size", "step_size_bar",
        "subset_accepted", "tree_depth",
    ),
    others={
        "index_in_trajectory": np.int64, "n_steps": np.int64, "sign": np.int64,
        "subsample_size": np.int64, "diverging": bool,
        "divergences": int, "reached_max_treedepth": bool,
    },
    shown=("divergences", "step_size", "data_share"),
    chosen=(
        "estimator", "kernel", "control_variate_order", "subsample_size", "n_blocks", "rows_read",
    ),
    advised=Advised(
        place=0, unasked=True, foreseen=_foreseen, effective_time=_effective_time
    ),
)  # fmt: skip
SAMPLERS = (HMCECS,)
