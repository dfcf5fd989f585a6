"""Whether integrals over local variables, and draws of these, are what they should be."""

import re
from collections.abc import Iterable, Mapping

import xarray as xr

from pymc_subsample.diagnostics.checks import Rule

# Statistics of every draw, by the names of variables that were integrated out and drawn given the
# others, and of functions of these level by level: which axis has the levels.
_AXIS = "effect_axis_"
# Of variables that some rows have, or none: what is subsampled are rows.
_OF_ROWS = "imputed_axis_"
# Rows of all units.
_N_ROWS = "rows_of_units"
# Words of a text, but not names of variables, quoted or with an index.
_ROWS = re.compile(r"(?<!')\b[Rr]ows?\b(?!\[)")
INTEGRALS = Rule(
    "integrals",
    # A choice: densities are off by a tenth, and means by a twentieth of a standard deviation or
    # less.
    "error of the log posterior from integrals over local variables",
    0.1,
    "Sample pms.marginalize(model, n_nodes=...) with twice as many nodes.",
)
LOCAL_DRAWS = Rule(
    "local_draws",
    # A choice: one draw of a hundred.
    "probability missed by the draws of a level",
    0.01,
    "A level has several modes, or moves far with the other variables: sample this model with "
    "integrate=False, or with pm.NUTS.",
)
UNIT_RULES = (INTEGRALS, LOCAL_DRAWS)


def as_statistics(axes: Mapping[str, int], n_rows: int | None) -> dict[str, int]:
    """Return what every draw records of effects: their names, and which axis has the levels.

    And how many rows all units have; None if rows are subsampled.
    """
    if n_rows is None:
        return {_OF_ROWS + name: axis for name, axis in axes.items()}
    return {_AXIS + name: axis for name, axis in axes.items()} | {_N_ROWS: n_rows}


def rows_of_units(stats: xr.Dataset) -> int | None:
    """Return how many rows the units of a run have, None if it does not say."""
    return int(stats[_N_ROWS].max()) if _N_ROWS in stats else None


def effects_in(stats: xr.Dataset) -> dict[str, int]:
    """Return by the names of a run's effects which axis has the levels; none if it has none."""
    return {
        str(name).removeprefix(_AXIS).removeprefix(_OF_ROWS): int(values.max())
        for name, values in stats.items()
        if str(name).startswith((_AXIS, _OF_ROWS))
        and values.notnull().all()  # in all runs put together
    }


def counted(runs: Iterable[xr.Dataset]) -> str:
    """Return what the steps of some runs, by their statistics, subsampled: rows, units, or both."""
    return " or ".join(sorted({"units" if _has_units(stats) else "rows" for stats in runs}))


def _has_units(stats: xr.Dataset) -> bool:
    return bool(effects_in(stats[[name for name in stats if str(name).startswith(_AXIS)]]))


def worded(text: str, of: str) -> str:
    """Return a text about rows with what was `counted` in their place."""

    def word(found: re.Match) -> str:
        one = of.replace("rows", "row").replace("units", "unit")
        said = of if found[0].endswith("s") else one
        return said.capitalize() if found[0][0] == "R" else said

    return _ROWS.sub(word, text)
