"""What a set-up is at, said now and then where it takes long."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_log = logging.getLogger("pymc.subsample")

# Seconds of wall time after which it is said. A choice of patience: the first when one begins to
# wonder, each later one some times as long.
_LIMITS = (5.0, 30.0, 120.0, 600.0)


# What the outermost set-up of a thread is `doing`.
_running = threading.local()


@contextmanager
def announced(who: str, work: str = "setting up") -> Iterator[None]:
    """Say what a set-up, or other work, is at when it has taken 5 s, 30 s, 2 and 10 minutes.

    One within another says nothing itself.

    A thread waits for that time, because compiling and searching come back to Python at no regular
    times. It ends with the set-up, before `pm.sample` forks.
    """
    if getattr(_running, "doing", None) is not None:
        yield
        return
    doing = _running.doing = ["reading the model"]

    over, start = threading.Event(), time.monotonic()

    def watch() -> None:
        for limit in _LIMITS:
            if over.wait(start + limit - time.monotonic()):
                return
            _log.info(f"{who}: still {work} ({limit:g} s): {doing[-1]}")

    watcher = threading.Thread(target=watch, daemon=True)
    try:
        watcher.start()
        yield
    finally:
        _running.doing = None
        over.set()
        watcher.join()


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Name the part of a set-up that follows."""
    parts = getattr(_running, "doing", None)
    if parts is None:
        yield
        return
    parts.append(what)
    try:
        yield
    finally:
        parts.pop()
