"""In the place of a step that reads a large share of the rows: NUTS on all of them."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_subsample.chain.integrating import each as each_of
from pymc_subsample.chain.notices import Notice
from pymc_subsample.chain.nuts_cost import (
    DRAWS,
    LEAST_SLOWER,
    SLOWER,
    seconds_as_written,
    seconds_per_draw,
)
from pymc_subsample.chain.nuts_trial import Gradients, projection_of
from pymc_subsample.chain.pm_sample import has_draws
from pymc_subsample.chain.progress import doing
from pymc_subsample.diagnostics.checks import amount

if TYPE_CHECKING:
    from pymc_subsample.chain.engine import ChainStep

# Of the rows, from which reading all of them is tried, and from which it may be faster. A choice:
# of fewer rows a trial of NUTS is not worth its time.
LARGE_SHARE, NO_SMALL_SHARE = 0.25, 0.1
# What an approximation must save: at least so many seconds, and this share of the time. A choice:
# below them nobody would change an exact run for an approximate one.
SAVED_SECONDS, _SAVED_SHARE = 10.0, 0.5
# Seconds of a short trial of NUTS; gradients per draw that are many. A choice: some hundred draws;
# thirty gradients are a tree of depth five.
_TRIED_SECONDS, _MANY = 1.0, 30


class OutgrownError(RuntimeError):
    """A chain's subsample has to grow until NUTS on all rows saves most of the time."""


class Outgrown(Notice):
    """Ends the run where PyMC logs this, in the user's process, unless a chain has draws by then.

    An error of a worker would end all chains, whatever they have drawn.
    """

    @property
    def level(self) -> str:
        """Level at which PyMC logs this: once as a warning."""
        if not has_draws():
            raise OutgrownError(self.message)
        return "warn" if super().level == "info" else "debug"


def pays(seconds: float, full_seconds: float, bound: str = "") -> bool:
    """Whether an approximation saves enough: 10 s, and half the time if that is a projection.

    Projections are rough, but a lower bound errs to one side.
    """
    share = 0.0 if bound else _SAVED_SHARE
    return bool(full_seconds - seconds >= max(SAVED_SECONDS, share * full_seconds))


def nuts(units: bool = False) -> tuple[str, str]:
    """Name and code of the best NUTS on all rows, or units, that is installed."""
    of = ["model=pms.marginalize(model)"] if units else []
    if find_spec("nutpie") is None:
        return "pm.NUTS", f"pm.sample({', '.join(of)})"
    return "nutpie", f"pm.sample({', '.join(['nuts_sampler="nutpie"', *of])})"


@dataclass(frozen=True)
class Comparison:
    """What a chain of 1,000 draws, of NUTS effective ones, takes after as many of tuning."""

    per_gradient: float  # Seconds of the processor for a gradient of all rows.
    # The same of the step, and of NUTS with its compilation. nan where not even many gradients of
    # all rows would take long.
    seconds: float = np.nan
    full_seconds: float = np.nan
    gradients: float = np.nan  # Of all rows per draw of NUTS.
    bound: str = ""  # Why NUTS takes as long or longer, if it does.


def compare(step: "ChainStep", drawn: tuple[float, float] | None = None) -> Comparison:
    """Time a few draws of a step, which samples all variables, and project NUTS on all rows.

    Seconds and gradients per draw are those `drawn`, if they are known. A gradient of all rows is
    timed. As many of them are taken as NUTS needs on the rows' expansion, which runs for a second,
    or else as the step takes.
    """
    full = projection_of(step)
    if drawn is None and 2 * DRAWS * _MANY * full.per_gradient < SAVED_SECONDS:
        return Comparison(full.per_gradient)
    per_draw, steps = drawn or seconds_per_draw(step, 0)
    found = full.projected(_TRIED_SECONDS, Gradients(steps, steps))
    return Comparison(
        full.per_gradient,
        2 * DRAWS * per_draw,
        found.seconds(),
        found.gradients.per_tuning_draw,
        found.bound,
    )


@dataclass(frozen=True)
class Beside:
    """What is said of NUTS on all rows, and whether it saves so much that going on is no use."""

    said: str = ""
    use: str = ""  # Code of what saves so much.
    as_good: bool = False  # Whether NUTS on all rows takes no longer, or hardly.


def beside_all_rows(step: Any, drawn: tuple[float, float] | None = None) -> Beside:
    """Compare a step with NUTS on all rows, if its estimates read many of them, `share`.

    `drawn` are seconds and gradients per draw of a chain that runs; None for those of a trial.
    """
    if step.share < NO_SMALL_SHARE:
        return Beside()
    # nutpie neither takes turns with other steps nor tempers.
    alike = len(step.active) == step.tall.size and step.temperature == 1.0
    if step.share <= LARGE_SHARE or not alike:
        return Beside(
            ". This is a large part of the data: pm.NUTS or nutpie on all "
            f"{each_of(step)} may be faster"
        )
    name, code = nuts(units=step.units is not None and step.units.integrates)
    with doing(f"comparing it with {name}"):
        found = compare(step, drawn)
    said = f". An estimate reads {step.share:.0%} of the {each_of(step)}"
    each = f"{amount(1000 * found.per_gradient)} ms"
    if np.isnan(found.seconds):
        quick = f"{said}, and a gradient of all of them takes about {each}: try {code}"
        return Beside(quick, as_good=True)
    times = (
        f"{said}. A chain of {DRAWS:,} tuning steps and {DRAWS:,} draws takes about "
        f"{amount(found.seconds)} s; {name} on {_all(step)} takes "
        f"{'over' if found.bound else 'about'} {amount(found.full_seconds)} s for as many "
        f"effective draws ({found.gradients:.0f} gradients per draw, {each} each)"
    )
    # A bound is what it takes at least: about this is likely.
    likely = found.full_seconds * (SLOWER / LEAST_SLOWER if found.bound else 1.0)
    faster = step.exact and found.seconds < likely
    if pays(found.seconds, likely) or faster:
        written = as_written(step)
        if written >= found.seconds:
            return Beside(f"{times}. {type(step).__name__} is the faster of the two")
        own = f"as many draws with {nuts()[1]}, {' and '.join(step.units.names)} sampled too"
        return Beside(f"{times}. But {own}, take about {amount(written)} s: try that", as_good=True)
    use = code if pays(likely, found.seconds) else ""
    return Beside(f"{times}. Use {code}, which is exact", use, True)


def as_written(step: "ChainStep") -> float:
    """Seconds of NUTS on a model with its local variables in it; infinite without such ones.

    Or if rows are on disk, of which the model holds a sample.
    """
    if step.units is None or not step.units.integrates or step.units.sample:
        return np.inf
    return seconds_as_written(step.model)


def _all(step: "ChainStep") -> str:
    """Say what NUTS evaluates: of a model without its local variables, all units."""
    whole = step.units is None or not step.units.integrates
    return "all rows" if whole else f"all {each_of(step)}, also without local variables,"
