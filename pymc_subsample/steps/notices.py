"""What chains remark while they run, once in a run of `pm.sample`."""

import threading

from pymc.stats.convergence import SamplerWarning, WarningType


class _Run(threading.local):
    """The causes that have been named in the run of this thread."""

    def __init__(self) -> None:
        self.named: set[str] = set()


_run = _Run()


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
        if self.cause in _run.named:
            return "debug"
        _run.named.add(self.cause)
        return "info"


def begin_run() -> None:
    """Forget what another run said."""
    _run.named.clear()
