"""What steps declare to PyMC: the state of a chain, and the statistics of a draw."""

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from pymc.stats.convergence import SamplerWarning
from pymc.step_methods.compound import StepMethodState
from pymc.step_methods.state import dataclass_state

from pymc_subsample.diagnostics import checks, samplers
from pymc_subsample.diagnostics.checks import Rule
from pymc_subsample.expansion.reference import Reference

# How the progress bar shows statistics: title and format.
SHOWN = {
    "acceptance_rate": ("Accepted", "0.2f"),
    "batch_size": ("Batch", "0.0f"),
    "data_share": ("Data", "0.3%"),
    "divergences": ("Divergences", "d"),
    "flips": ("Flips", "0.2f"),
    "n_bright": ("Bright", "0.0f"),
    "rows_accepted": ("Accepted", "0.2f"),
    "rows_read": ("Rows", "0.0f"),
    "step_size": ("Step size", "0.3g"),
}

Statistics = dict[str, tuple[type, list[int] | None]]


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


def statistics(rules: Sequence[Rule], numbers: Iterable[str], **others: type) -> Statistics:
    """Types and shapes of numbers, of other statistics by name, and of those of all steps."""
    return {name: (np.float64, []) for name in numbers} | {
        **{name: (kind, []) for name, kind in others.items()},
        "n_evaluations": (np.int64, []),
        "n_rows": (np.int64, []),
        samplers.STATISTIC: (np.int64, []),
        "tune": (bool, []),
        "warning": (SamplerWarning, None),
        **checks.statistics(rules),
    }


def named_alike(declared: Statistics, infos: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return statistics that transitions report by the names, and in the types, declared."""
    return {
        name: found.astype(declared[name][0], copy=False)
        for name, found in infos.items()
        if name in declared
    }
