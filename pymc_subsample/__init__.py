"""Bayesian inference on tall data: PyMC step methods that look at a subsample of rows."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from pymc_subsample.chain.progress import announced, doing
from pymc_subsample.compiled.process import without_collection

__version__ = "0.2.0"

# A step's compiled transition is loaded with the step, which takes a tenth of a second.
_STUB = Path(__file__).with_name("__init__.pyi").read_text(encoding="utf-8")
_HOMES = {
    name: home for home, name in re.findall(r"^from (\S+) import (\w+) as", _STUB, re.MULTILINE)
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with announced(name), doing("loading what it needs, or compiling it"), without_collection():
        module = import_module(_HOMES[name])
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
