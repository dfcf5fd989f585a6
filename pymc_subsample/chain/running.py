"""A run of `pm.sample`, before its chains begin: what is refused and said, and its progress bar."""

from typing import TYPE_CHECKING

from rich.progress import TextColumn
from rich.table import Column

from pymc_subsample.chain.calling import refuse_init
from pymc_subsample.chain.memory import hint_for_bambi, refuse_beyond_memory, warn_of_rows
from pymc_subsample.chain.notices import begin_run
from pymc_subsample.chain.sampler import SHOWN

if TYPE_CHECKING:
    from pymc_subsample.chain.engine import ChainStep


def announce(step: "ChainStep") -> None:
    """Say, and refuse, what there is to say of a run: once, wherever its chains run."""
    begin_run()
    if step.unsaid is not None:
        step.unsaid.say()
    refuse_init(type(step).__name__)
    refuse_beyond_memory(step.model)
    warn_of_rows(step.model, step.tall)
    hint_for_bambi(step.model)


def columns(step: "ChainStep") -> list[TextColumn]:
    """Return the columns of a progress bar."""
    return [
        TextColumn(f"{{task.fields[{name}]:{form}}}", table_column=Column(title, ratio=1))
        for name in step.sampler.shown
        for title, form in [SHOWN[name]]
    ]
