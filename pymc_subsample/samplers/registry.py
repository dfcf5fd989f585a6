"""The table of all samplers: a line for each folder, whose `sampler.py` holds the records."""

from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from pymc_subsample.chain.sampler import STATISTIC, Advised, Sampler
from pymc_subsample.diagnostics.checks import Rule

if TYPE_CHECKING:
    from pymc_subsample.chain.engine import ChainStep

_FOLDERS = ("hmc_ecs", "minibatch", "gibbs", "firefly", "scalable", "gradients")

SAMPLERS: dict[str, Sampler] = {
    sampler.name: sampler
    for folder in _FOLDERS
    for sampler in import_module(f"pymc_subsample.samplers.{folder}.sampler").SAMPLERS
}
BY_NUMBER = {sampler.number: name for name, sampler in SAMPLERS.items()}
if len(BY_NUMBER) != len(SAMPLERS) or 0 in BY_NUMBER:
    raise TypeError("Each sampler needs a number of its own, above 0.")

# Those that `pms.advise` knows, in the order of their places.
ADVISED: dict[str, Advised] = dict(
    sorted(
        ((name, s.advised) for name, s in SAMPLERS.items() if s.advised is not None),
        key=lambda entry: entry[1].place,
    )
)


def families() -> dict[str, tuple[Rule, ...]]:
    """Return the rules that samplers of each family record."""
    return {sampler.family: sampler.rules for sampler in SAMPLERS.values()}


def samplers_of(stats: xr.Dataset) -> list[str]:
    """Name the samplers that made a run, but for those that have no number."""
    if STATISTIC not in stats:
        return []
    numbers = np.unique(stats[STATISTIC].values[np.isfinite(stats[STATISTIC].values)]).astype(int)
    return [BY_NUMBER[k] for k in numbers if k in BY_NUMBER]


def step_of(name: str) -> "type[ChainStep]":
    """Return the step method of a sampler, loading its code."""
    public = SAMPLERS[name].called.removeprefix("pms.")
    return attrgetter(public)(import_module("pymc_subsample"))
