"""ArviZ's statistics of arrays, imported with the first that is used: it takes as long as PyMC."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("arviz_stats.base").array_stats, name)
