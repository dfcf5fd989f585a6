"""Local variables of a step's model: which are integrated out, and what is said and checked."""

import logging
from collections.abc import Sequence
from time import thread_time
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
from pymc.blocking import PointType

from pymc_subsample.chain import guards
from pymc_subsample.chain.memory import memory_of_draws
from pymc_subsample.chain.model_compilation import connect
from pymc_subsample.chain.pm_sample import calling_sample
from pymc_subsample.chain.sampler import Statistics
from pymc_subsample.diagnostics.checks import Finding, amount
from pymc_subsample.diagnostics.integrals import INTEGRALS, LOCAL_DRAWS, as_statistics
from pymc_subsample.expansion.modes import ModeSearch
from pymc_subsample.model.binding import require_rows
from pymc_subsample.rows import Rows, Several
from pymc_subsample.units.sampled import Units, units_of
from pymc_subsample.validation import name_list

if TYPE_CHECKING:
    from pymc_subsample.chain.engine import ChainStep

_log = logging.getLogger("pymc.subsample")

# Draws of a chain at which integrals are looked at. A choice: each takes a pass over units with
# twice as many nodes.
_JUDGED = 20
# Seconds and gigabytes from which on it is said beforehand what local variables of all draws take.
# A choice of patience.
_LONG, _LARGE = 10.0, 0.5


def integrated(
    model: pm.Model,
    integrate: str | Sequence[str] | bool,
    said: str,
    data: Rows | Sequence[Rows] | Several | None,
    **given: Any,
) -> Units | None:
    """Return what of a model is integrated out; `given` are arguments that leave parts of it out.

    Variables or rows that a user chose, and several folders, are those of the model as it is.
    """
    if integrate is False:
        return None
    if integrate is True:
        raise TypeError('integrate must be "auto", False or names of free variables, got True.')
    chosen = [name for name, value in given.items() if value is not None]
    rows = None if data is None else require_rows(data)
    if isinstance(rows, Several):
        chosen.append("data")
        rows = None
    names = name_list("integrate", integrate)
    if names in (None, ["auto"]):
        return None if chosen else units_of(model, "auto", said, rows)
    if chosen:
        raise ValueError(
            f"integrate={names} with {chosen[0]}=: units are made of all variables and rows of the "
            f"model, in memory or in one folder of rows. Leave {chosen[0]}= out, or integrate=."
        )
    return units_of(model, names, said, rows)


def declare_units(step: "ChainStep") -> None:
    """Add statistics of units to those of a step's sampler."""
    more: Statistics = {name: (np.int64, []) for name in unit_statistics(step.units)}
    step.stats_dtypes_shapes = {**step.stats_dtypes_shapes, **more}  # type: ignore[misc]
    step.stats_dtypes = [{name: kind for name, (kind, _) in step.stats_dtypes_shapes.items()}]


def unit_statistics(units: Units | None) -> dict[str, int]:
    """Return what every draw records of variables that are integrated out."""
    return {} if units is None else as_statistics(units.axes, units.n_rows)


def each(step: "ChainStep") -> str:
    """Return what a step subsamples, as messages call it."""
    return "rows" if step.units is None or step.units.of_rows else "units"


def sampled(step: "ChainStep") -> str:
    """Say how many rows, or units, of which variables a step subsamples."""
    if step.units is None or not step.units.integrates:
        return f"{step.n_rows:,} rows of {', '.join(step.likelihood)}"
    return f"{step.n_rows:,} {step.units.described(len(step.likelihood))}"


def begin(step: "ChainStep") -> None:
    """Take over what the run that calls, if one does, stores of local variables."""
    if step.units is not None:
        _store_as_called(step.units)


def completed(step: "ChainStep", points: list[PointType], after: int) -> list[PointType]:
    """Return points with draws of local variables, where some are integrated out.

    `after` is how many draws were made after the first of these points.
    """
    if step.units is None:
        return points
    left = step.draws_left + after
    if step.tune and step.tuning is not None:
        left += step.tuning.total - step.tuning.done
    return step.units.completed(points, step.tune, step.rng, left)


def integrated_anew(step: "ChainStep", search: ModeSearch | None) -> bool:
    """Take finer integrals over local variables where coarse ones may make other modes."""
    if step.units is None or search is None or len(search.modes) < 2:
        return False
    values = [step.expansion.values(mode.theta) for mode in search.modes]
    points = [step.tall.unravel(x) for x in values]
    finer = step.units.finer(points, type(step).__name__)
    if finer is None:
        return False
    step.units, step.sampled_model = finer, finer.marginal
    step.rows_of["data"] = finer.data
    connect(step)
    step.seen = guards.contents(step.model, step.tall)
    return True


def _store_as_called(units: Units) -> None:
    """Take over which variables the `pm.sample` that calls, if one does, stores."""
    if (known := calling_sample()) is not None:
        tuning = not known.get("discard_tuned_samples", True)
        units.stores(known.get("var_names"), tuning=tuning)


def say_costs(step: "ChainStep") -> None:
    """Say beforehand what draws of local variables take, where that is long."""
    units, known = step.units, calling_sample()
    if units is None:
        return
    _store_as_called(units)
    if not units.stored or known is None:
        return
    point = units.marginal.initial_point()
    units.drawn(point, bytes(1), 0)  # the first time finds modes
    start = thread_time()
    units.drawn(point, bytes(1), 1)
    seconds = (thread_time() - start) * int(known["draws"]) * len(known["traces"])
    stored, gigabytes = memory_of_draws(units.axes)
    if seconds > _LONG or gigabytes > _LARGE:
        others = [v.name for v in units.model.free_RVs if v.name not in units.names]
        names = " and ".join(n for n in stored if n in units.names) or " and ".join(stored)
        _log.info(
            f"{type(step).__name__}: drawing and storing {names} for the result takes about "
            f"{seconds:,.0f} s of the processor and {gigabytes:.2g} GB of memory. "
            f"pm.sample(..., var_names={others}) leaves it out, and pms.effects draws chosen "
            "levels, or summarises all, afterwards."
        )


def check_units(step: "ChainStep") -> list[Finding]:
    """Check integrals at draws of a chain, and the draws of local variables."""
    units = step.units
    if units is None or not units.integrates:
        return []
    draws = step.record.thinned
    some = np.unique(np.linspace(0, len(draws) - 1, min(_JUDGED, len(draws))).astype(int))
    points = [step.tall.unravel(step.expansion.values(draws[i])) for i in some]
    error = units.error(points) if points else np.nan
    missed, level = units.missed()
    names = " and ".join(map(repr, units.names))
    return [
        INTEGRALS.check(
            error,
            f"The integrals over {names} are off by {amount(error)} at draws of this chain ("
            f"{INTEGRALS.should()}), which lie outside the region where they were measured. "
            f"{INTEGRALS.remedy}",
        ),
        LOCAL_DRAWS.check(
            missed,
            f"Draws of level {level:,} of {names} miss {amount(missed)} of its probability ("
            f"{LOCAL_DRAWS.should()}). {LOCAL_DRAWS.remedy}",
        ),
    ]
