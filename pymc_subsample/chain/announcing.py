"""A run of `pm.sample`, before its chains begin: what is refused and said, and its progress bar."""

from typing import TYPE_CHECKING, Any

from rich.progress import TextColumn
from rich.table import Column

from pymc_subsample.chain.integrating import say_costs
from pymc_subsample.chain.memory import hint_for_bambi, refuse_beyond_memory, warn_of_rows
from pymc_subsample.chain.notices import begin_run
from pymc_subsample.chain.pm_sample import refuse_init
from pymc_subsample.chain.sampler import SHOWN, Sampler

if TYPE_CHECKING:
    from pymc_subsample.chain.engine import ChainStep


def announce(step: "ChainStep") -> None:
    """Say, and refuse, what there is to say of a run: once, wherever its chains run."""
    begin_run()
    if step.unsaid is not None:
        step.unsaid.say()
    refuse_init(type(step).__name__)
    units = step.units
    refuse_beyond_memory(step.model, () if units is None else units.names)
    warn_of_rows(step.model, step.tall, () if units is None else units.lengths)
    hint_for_bambi(step.model)
    say_costs(step)


def columns(sampler: Sampler, n_chains: int) -> tuple[list, dict[str, list[int]]]:
    """Return the columns of a progress bar, and what they show first."""
    found = [
        TextColumn(f"{{task.fields[{name}]:{form}}}", table_column=Column(title, ratio=1))
        for name in sampler.shown
        for title, form in [SHOWN[name]]
    ]
    return found, {name: [0] * n_chains for name in sampler.shown}


def shown(sampler: Sampler, stats: dict[str, Any]) -> dict[str, Any]:
    """Return what they show of a draw."""
    found = {name: stats[name] for name in sampler.shown}
    return found | {"failing": bool(stats.get("divergences", 0))}
