"""The record of HMC-ECS."""

from typing import Any

import numpy as np

from pymc_subsample.chain.sampler import Advised, Sampler
from pymc_subsample.samplers.hmc_ecs.checks import RULES


def _foreseen(step: Any) -> dict[str, float]:
    moments, subsample_size = step.moments, step.subsample_size
    return {
        "loglik_variance": float(np.max(moments.variance(subsample_size))),
        "perturbation": float(np.max(moments.perturbation(subsample_size))),
    }


HMCECS = Sampler(
    name="HMCECS",
    number=1,
    rules=RULES,
    numbers=(
        "acceptance_rate", "accepted", "data_share", "energy", "energy_error",
        "loglik_variance", "model_logp", "step_size", "subset_accepted", "tree_depth",
    ),
    others={
        "n_steps": np.int64, "sign": np.int64, "subsample_size": np.int64, "diverging": bool,
        "divergences": int,
    },
    shown=("divergences", "step_size", "data_share"),
    advised=Advised(place=0, unasked=True, foreseen=_foreseen),
)  # fmt: skip
SAMPLERS = (HMCECS,)
