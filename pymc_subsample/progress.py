"""What a set-up is at, said once where it takes long."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_log = logging.getLogger("pymc.subsample")

# Seconds of wall time.
_LIMIT = 5.0


class _Running(threading.local):
    """What the outermost set-up of a thread is at."""

    doing: list[str] | None = None


_running = _Running()


@contextmanager
def announced(who: str) -> Iterator[None]:
    """Say what a set-up is at when it has taken 5 s; one within another says nothing itself.

    A thread waits for that time, because compiling and searching come back to Python at no regular
    times. It ends with the set-up, before `pm.sample` forks.
    """
    if _running.doing is not None:
        yield
        return
    doing = _running.doing = ["reading the model"]

    def say():
        _log.info(f"{who}: set-up takes more than {_LIMIT:g} s; now {doing[-1]}")

    timer = threading.Timer(_LIMIT, say)
    timer.daemon = True
    try:
        timer.start()
        yield
    finally:
        _running.doing = None
        timer.cancel()
        if timer.is_alive():
            timer.join()


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Name the part of a set-up that follows."""
    parts = _running.doing
    if parts is None:
        yield
        return
    parts.append(what)
    try:
        yield
    finally:
        parts.pop()
