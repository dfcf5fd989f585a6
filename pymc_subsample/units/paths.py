"""Paths: variables with more elements for a level than integrals serve, as one for each time."""

from functools import partial

import numpy as np
import pymc as pm

from pymc_subsample.model import TallModelError
from pymc_subsample.model.errors import op_name
from pymc_subsample.units.graphs import UnitGraphs
from pymc_subsample.units.groupings import Grouping
from pymc_subsample.units.quadrature import MOST_PRODUCTS
from pymc_subsample.units.reading import Reading

_INSTEAD = (
    "A path in time may be written as a likelihood of what is observed, whose rows are the levels: "
    "pm.AR(..., observed=y), or columns of the values before; or marginalised by a Kalman filter, "
    "as in pymc_extras.statespace; or given fewer values. Or sample this model with pm.sample()."
)


def is_path(reading: Reading, name: str) -> bool:
    """Whether a variable has several series in time."""
    series = type(reading.model[name].owner.op).__module__ == pm.distributions.timeseries.__name__
    return series and reading.values[name].type.ndim > 1


def path_apart(reading: Reading, name: str, reason: str) -> TallModelError:
    """Return what to say of a path that is not local, and has too many values for parameters."""
    *levels, values = reading.values[name].type.shape
    return TallModelError(
        f"{name!r} has {int(np.prod(levels)):,} paths of {values:,} values that depend on each "
        f"other ({_op(reading, name)}), too many to be parameters, and is not integrated out: it "
        f"{reason}. {_INSTEAD}"
    )


def refuse_long_paths(reading: Reading, grouping: Grouping) -> None:
    """Raise if levels have paths of more values than products of nodes serve.

    Nodes that fill more dimensions may be accurate, but each of them follows all times of a path:
    a model of eight was read for minutes.
    """
    for name in filter(partial(is_path, reading), grouping.names):
        *_, values = reading.values[name].type.shape
        if values > MOST_PRODUCTS:
            raise TallModelError(
                f"Each of {grouping.levels:,} levels of {name!r} has {values:,} values that depend "
                f"on each other ({_op(reading, name)}), and integrals over so many take too long. "
                f"{_INSTEAD}"
            )


def of_path(reading: Reading, graphs: UnitGraphs, error: TallModelError) -> TallModelError:
    """Return what to say of integrals that do not serve, where a level has many elements."""
    sizes = {name: int(np.prod(shape, dtype=int)) for name, shape in graphs.shapes.items()}
    name = max(sizes, key=lambda n: sizes[n])
    if sizes[name] <= MOST_PRODUCTS:
        return error
    joint = reading.priors[name].type.ndim < reading.values[name].type.ndim
    how = f" that depend on each other ({_op(reading, name)})" if joint else ""
    return TallModelError(
        f"Each of {graphs.grouping.levels:,} levels of {name!r} has {sizes[name]:,} values{how}, "
        f"and integrals over so many do not work: {_cause(error)}. {_INSTEAD}"
    )


def _cause(error: TallModelError) -> str:
    """Return the first sentence of a message, without what it says to do."""
    return str(error).split(". ")[0]


def _op(reading: Reading, name: str) -> str:
    return op_name(reading.model[name].owner.op)
