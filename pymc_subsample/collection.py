"""Garbage collection, put off."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Put garbage collection off.

    Importing modules and rewriting graphs make and drop so many objects that the collector, which
    they set off again and again, takes a tenth of the time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
