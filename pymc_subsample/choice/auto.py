"""One step for a model."""
from typing import Any
from pymc_subsample.samplers.hmc_ecs.step import HMCECS

def auto(vars=None, *, fallback=False, **above: Any):
    return HMCECS(vars, **above)
