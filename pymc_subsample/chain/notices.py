"""What is said once in a run of `pm.sample`: remarks of chains, and of a set-up long before."""

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pymc.stats.convergence import SamplerWarning, WarningType

from pymc_subsample.chain.integrating import say_costs
from pymc_subsample.chain.memory import hint_for_bambi, refuse_beyond_memory, warn_of_rows
from pymc_subsample.validation import warn

if TYPE_CHECKING:
    from pymc_subsample.chain.engine import ChainStep

_log = logging.getLogger("pymc.subsample")


class _Named(threading.local):
    """The causes that have been named in the run of this thread."""

    def __init__(self) -> None:
        self.named: set[str] = set()


_of_run = _Named()


class Notice(SamplerWarning):
    """A remark for the statistic `warning`, which takes it from a worker to the user's process.

    PyMC logs it there, draw by draw, at `level`: that of information for the first of a cause,
    whichever chain it comes from.
    """

    def __init__(self, cause: str, message: str) -> None:
        self.kind, self.message, self.cause = WarningType.BAD_PARAMS, message, cause

    @property
    def level(self) -> str:
        """Level at which PyMC logs this, which is when it asks."""
        if self.cause in _of_run.named:
            return "debug"
        _of_run.named.add(self.cause)
        return "info"


def begin_run() -> None:
    """Forget what another run said."""
    _of_run.named.clear()


def announce(step: "ChainStep") -> None:
    """Say, and refuse, what there is to say of a run before its chains begin: once for all."""
    begin_run()
    if step.unsaid is not None:
        step.unsaid.say()
    units = step.units
    refuse_beyond_memory(step.model, () if units is None else units.names)
    of_units = () if units is None else (units.lengths, units.sample)
    warn_of_rows(step.model, step.tall, *of_units)
    hint_for_bambi(step.model)
    say_costs(step)


class _Held(logging.Filter):
    """Keeps what one thread says, and not how long it takes, which another one says."""

    def __init__(self) -> None:
        super().__init__()
        self.thread, self.heard = threading.get_ident(), list[tuple[int, str]]()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self.thread:
            return True
        self.heard.append((record.levelno, record.getMessage()))
        return False


@contextmanager
def held_back() -> Iterator["Unsaid"]:
    """Keep what a set-up logs for later."""
    kept, unsaid = _Held(), Unsaid()
    _log.addFilter(kept)
    try:
        yield unsaid
    finally:
        _log.removeFilter(kept)
        unsaid.logged = kept.heard


@contextmanager
def silenced() -> Iterator["Unsaid"]:
    """Keep what it warns of too: warnings of all threads, as Python has them."""
    with held_back() as unsaid, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield unsaid
    # PyTensor's remarks on how it was installed are for those who use it.
    said = [w for w in caught if w.category is UserWarning]
    unsaid.warned = [str(w.message) for w in said if "pytensor" not in Path(w.filename).parts]


# What messages on variables that are left out say, whichever sampler takes the others.
_OF_THE_MODEL = ("integrated out: ", "drawn given the others")


class Unsaid:
    """What a set-up had to say."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, str]] = []
        self.warned: list[str] = []

    def after(self, first: "Unsaid", sampler: str, own: str) -> "Unsaid":
        """Add what a set-up that was shared said of the model, and not of its own sampler."""
        shared = [
            (level, text.replace(sampler, own))
            for level, text in first.logged
            if any(part in text for part in _OF_THE_MODEL)
            or (level >= logging.WARNING and not text.startswith(sampler))
        ]
        self.logged = shared + self.logged
        return self

    def say(self) -> None:
        """Say it, once, unless somebody wants no word at all."""
        if not _log.isEnabledFor(logging.WARNING):
            return
        for level, text in self.logged:
            _log.log(level, "%s", text)
        for text in self.warned:
            warn(text)
        self.logged, self.warned = [], []
