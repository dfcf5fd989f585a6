"""Beside a step that reads a large share of the rows: NUTS on all of them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pymc_subsample.chain.integrating import each as each_of
from pymc_subsample.chain.notices import Notice
from pymc_subsample.chain.nuts_cost import DRAWS, compare, nuts, pays
from pymc_subsample.chain.pm_sample import has_draws
from pymc_subsample.chain.progress import doing
from pymc_subsample.diagnostics.checks import amount

if TYPE_CHECKING:
    from pymc_subsample.samplers.hmc_ecs.step import HMCECS

# Of the rows, from which reading all of them is tried, and from which it may be faster.
LARGE_SHARE, NO_SMALL_SHARE = 0.25, 0.1


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


@dataclass(frozen=True)
class Beside:
    """What is said of NUTS on all rows, and whether it saves so much that going on is no use."""

    said: str = ""
    use: str = ""  # Code of what saves so much.


def beside_all_rows(step: "HMCECS", drawn: tuple[float, float] | None = None) -> Beside:
    """Compare a step with NUTS on all rows, if it reads many of them.

    `drawn` are seconds and gradients per draw of a chain that runs; None for those of a trial.
    """
    if step.share < NO_SMALL_SHARE:
        return Beside()
    # nutpie neither takes turns with other steps nor tempers.
    alike = len(step.active) == step.tall.size and step.temperature == 1.0
    if step.share <= LARGE_SHARE or not alike:
        return Beside(
            ". This is no small part of the data: pm.NUTS or nutpie on all "
            f"{each_of(step)} may be faster"
        )
    name, code = nuts(units=step.units is not None)
    with doing(f"comparing it with {name}"):
        found = compare(step, drawn)
    said = f". An estimate reads {step.share:.0%} of the {each_of(step)}"
    each = f"{amount(1000 * found.per_gradient)} ms"
    if np.isnan(found.seconds):
        return Beside(f"{said}, and a gradient of all of them takes about {each}: try {code}")
    times = (
        f"{said}: {DRAWS:,} draws after as many of tuning take a chain about "
        f"{amount(found.seconds)} s, and with {name} on {_all(step)} about "
        f"{amount(found.full_seconds)} s, at {found.gradients:.0f} gradients per draw and "
        f"{each} each"
    )
    faster = step.exact and found.seconds < found.full_seconds
    if pays(found.seconds, found.full_seconds) or faster:
        return Beside(f"{times}. HMCECS is the faster one")
    use = code if pays(found.full_seconds, found.seconds) else ""
    return Beside(f"{times}. Use {code}, which is exact", use)


def _all(step: "HMCECS") -> str:
    """Say what NUTS evaluates: of a model without its local variables, all units."""
    return "all rows" if step.units is None else "all units, without local variables too,"
