"""Bayesian inference on tall data: PyMC step methods that look at a subsample of rows.

Keep your model and change one argument, ``pm.sample(step=pms.auto())``. Five names do for most:

auto
    A step for your model. It chooses the sampler, and its first message says which and why.
subsampling
    A `with` block in which packages that call `pm.sample` themselves take that step.
advise
    Whether subsampling saves time for a model, tested before a long run.
report
    Whether a run passed its checks, and what to change if it did not.
audit
    How far off its means and standard deviations are, measured on all rows.

The other names are for decisions of your own: samplers by name (`HMCECS`, `ScalableMH`, `FireflyMC`
and others; stochastic gradients in `sgmcmc`, moves in `proposals`), rows on disk (`Rows`), panels
(`marginalize`, `effects`), and results (`summary`, `predict`, `loo`, `efficiency`, `plot_report`
and others).
"""

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
    home = _HOMES[name]
    with announced(name), doing("loading or compiling code"), without_collection():
        if home == __name__:  # a module of public names
            return import_module(f"{home}.{name}")
        return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
