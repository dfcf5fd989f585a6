"""What steps declare to PyMC: the state of a chain, and the statistics of a draw."""

from dataclasses import field
from typing import Any

import numpy as np
from pymc.step_methods.compound import StepMethodState
from pymc.step_methods.state import dataclass_state

from pymc_subsample.chain.sampler import Statistics
from pymc_subsample.expansion.reference import Reference


@dataclass_state
class ChainState(StepMethodState):
    """Of all chains; with what subclasses add, everything the next draw depends on.

    The rows themselves are taken anew from the data. `own` is the last draw in coordinates of the
    chain's own, where it has some: found anew from the draw, its last bits would be others.
    """

    tune: bool
    draws_left: int
    own: np.ndarray | None
    record: Any
    n_rows: int = field(metadata={"frozen": True})
    fingerprint: str = field(metadata={"frozen": True})
    observed: tuple[str, ...] = field(metadata={"frozen": True})


@dataclass_state
class ReferredState(ChainState):
    """Of chains that may start at a reference."""

    start_at_reference: bool
    mode: int
    reference: Reference | None
    transitions_per_draw: int = field(metadata={"frozen": True})
    temperature: float = field(metadata={"frozen": True})


def named_alike(declared: Statistics, infos: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return statistics that transitions report by the names, and in the types, declared."""
    return {
        name: found.astype(declared[name][0], copy=False)
        for name, found in infos.items()
        if name in declared
    }


def divergences(step: Any, diverging: np.ndarray) -> Any:
    """Return how many draws had diverged by each of the next ones, none of them in tuning."""
    return 0 if step.tune else step.record.divergences + np.cumsum(diverging > 0)
