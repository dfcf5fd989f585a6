"""What a sampler declares: its record, from which reports, advice and statistics are made."""

import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal

import numpy as np
from pymc.stats.convergence import SamplerWarning
from rich.console import Console
from rich.progress import TextColumn
from rich.table import Column

from pymc_subsample.diagnostics.checks import Rule

# Statistic of every draw: the number of the sampler that made it, since a run keeps nothing else
# of it. 0 is that of a step of the user's own.
STATISTIC = "sampler"

# How the progress bar shows statistics: title and format.
SHOWN = {
    "acceptance_rate": ("Accepted", "0.2f"),
    "batch_size": ("Batch", "0.0f"),
    "data_share": ("Data", "0.3%"),
    "divergences": ("Diverged", "d"),
    "flips": ("Flips", "0.2f"),
    "n_bright": ("Bright", "0.0f"),
    "rows_accepted": ("Accepted", "0.2f"),
    "rows_read": ("Rows", "0.0f"),
    "step_size": ("Step", "0.3g"),
}
# Characters of a column, what it takes with its edges, and those of PyMC's own columns: measured,
# since fewer cut its times.
_WIDTH, _TAKEN, _OF_PYMC = 8, 12, 68


def _shown(value: Any) -> str:
    if value is None or isinstance(value, str):
        return repr(value)
    if isinstance(value, numbers.Real):
        return f"{value:,}" if isinstance(value, numbers.Integral) else f"{value:.3g}"
    return getattr(value, "__name__", type(value).__name__)


Statistics = dict[str, tuple[type, list[int] | None]]
# Of the draws of all samplers.
_SHARED: Statistics = {
    "n_evaluations": (np.int64, []),
    "n_rows": (np.int64, []),
    STATISTIC: (np.int64, []),
    "tune": (bool, []),
    "warning": (SamplerWarning, None),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Advised:
    """What `pms.advise` may do with a sampler, and say of it."""

    place: int  # In which it is listed, and tried.
    unasked: bool = False  # Whether it is tried where no samplers are named.
    exact: bool = False  # Whether its draws are from the posterior itself.
    by_gradients: bool = True  # Whether it refuses a log-likelihood without them.
    # {"estimate", "draw"}: what it reads its rows for.
    reads_for: Literal["estimate", "draw"] = "estimate"
    # Set-up over that of HMCECS, usually and at most.
    dearer: tuple[float, float] = (1.0, 1.0)
    # ``foreseen(step)`` returns fields of `results.advise.result.Advice` that a set-up predicts,
    # and ``unworthy(step)`` why a pilot is not worth its time, if it is not.
    foreseen: Callable[[Any], dict[str, float]] = lambda step: {}
    unworthy: Callable[[Any], str] = lambda step: ""
    # ``effective_time(step)`` counts what an effective draw takes by `bounds.thinning`: of samplers
    # among which `pms.auto` chooses.
    effective_time: Callable[[Any], float] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Sampler:
    """What there is to know of a sampler without loading its code."""

    name: str  # Of its step method.
    home: str = "pms"  # Where users find that.
    number: int  # By which runs are stored; no other sampler ever had it. 0 of one of the user's.
    # What a run is called that does not say by which of them it was made: if empty, by its name.
    family: str = ""
    rules: tuple[Rule, ...]  # Of the checks at the end of a chain: what they mean, and remedies.
    # Statistics of its draws: those that are floats, and the types of others.
    numbers: tuple[str, ...]
    others: Mapping[str, type] = field(default_factory=dict)
    shown: tuple[str, ...]  # Those in the progress bar.
    chosen: tuple[str, ...] = ()  # Attributes of a step that say what it is and chose: its `repr`.
    advised: Advised | None = None  # None where `pms.advise` knows nothing of it.

    def __post_init__(self):
        object.__setattr__(self, "family", self.family or self.name)
        if not self.name.isidentifier() or self.number < 0:
            self._refuse(f"name and number must be those of a class, got {self.number!r}")
        wrong = [rule for rule in self.rules if not isinstance(rule, Rule)]
        if wrong or not self.rules:
            self._refuse(f"rules must be at least one Rule, got {wrong or self.rules!r}")
        names = [rule.name for rule in self.rules]
        if twice := {name for name in names if names.count(name) > 1}:
            self._refuse(f"rules have names of their own, and {sorted(twice)} are there twice")
        means = {rule.mean_of for rule in self.rules} - {""}
        if unknown := sorted({*self.shown, *means} - self.statistics.keys()):
            self._refuse(f"shown, or the mean of a rule, and no statistic: {unknown}")
        if unknown := sorted(set(self.shown) - SHOWN.keys()):
            self._refuse(f"the progress bar has no column for {unknown}; see `SHOWN`")

    def _refuse(self, why: str):
        raise TypeError(f"Sampler {self.name!r}: {why}.")

    @property
    def called(self) -> str:
        """What users call its step method."""
        return f"{self.home}.{self.name}"

    def described(self, step: Any) -> str:
        """Say what a step chose."""
        found = {name.rpartition(".")[2]: attrgetter(name)(step) for name in self.chosen}
        return ", ".join(f"{name}={_shown(value)}" for name, value in found.items())

    def columns(self, n_chains: int) -> tuple[list, dict[str, list[int]]]:
        """Return as many columns of a progress bar as have room, and what they show first."""
        room = max(0, (Console().width - _OF_PYMC) // _TAKEN)
        found = [
            TextColumn(
                f"{{task.fields[{name}]:{form}}}",
                table_column=Column(title, width=_WIDTH, no_wrap=True),
            )
            for name in self.shown[:room]
            for title, form in [SHOWN[name]]
        ]
        return found, {name: [0] * n_chains for name in self.shown}

    def shown_of(self, stats: dict[str, Any]) -> dict[str, Any]:
        """Return what they show of a draw."""
        found = {name: stats[name] for name in self.shown}
        return found | {"failing": bool(stats.get("divergences", 0))}

    @property
    def statistics(self) -> Statistics:
        """Types and shapes of all statistics, as PyMC takes them."""
        return {name: (np.float64, []) for name in self.numbers} | {
            **{name: (kind, []) for name, kind in self.others.items()},
            **_SHARED,
        }
