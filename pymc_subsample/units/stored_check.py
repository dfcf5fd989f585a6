"""Rows of units that are on disk, against the same rows in memory."""

from dataclasses import replace

import numpy as np

from pymc_subsample.graph.concrete import on_disk
from pymc_subsample.model import TallModelError
from pymc_subsample.rows.runs import Runs
from pymc_subsample.units.discovery import find_groupings
from pymc_subsample.units.graphs import unit_graphs
from pymc_subsample.units.groupings import Grouping
from pymc_subsample.units.reading import Reading, read
from pymc_subsample.units.standardised import standardised
from pymc_subsample.units.stored_rows import PIECE_ROWS, reads_disk
from pymc_subsample.units.unit_densities import UnitFunctions

# Units whose rows are held in memory. Sums of many terms agree to this share of their size.
_UNITS, _TOLERANCE = 200, 1e-8


def refuse_other_terms(reading: Reading, grouping: Grouping) -> None:
    """Refuse terms that read rows on disk, and not by the levels of units."""
    for i, term in enumerate(reading.terms):
        by_level = i in grouping.index and grouping.runs is not None
        if not by_level and reads_disk(term.graph, reading.arrays):
            raise TallModelError(
                f"{term.name!r} reads rows on disk, and not "
                f"{' or '.join(map(repr, grouping.names))}, which is integrated out of rows on "
                "disk: all terms of these must read it. Leave the term out, hold the model in "
                "memory, or give integrate=False."
            )


def in_memory(whole: Reading, functions: UnitFunctions, runs: Runs) -> UnitFunctions:
    """Return functions of the same model whose rows are those of some units, read as in memory.

    These are compared with the model as it is written; here they are with those of the disk, which
    `functions` read. `whole` is the reading of these before variables were standardised.
    """
    graphs = functions.graphs
    names = graphs.grouping.names
    rng = np.random.default_rng(0)
    some = rng.permutation(len(functions.levels))[:_UNITS]
    within = np.cumsum(functions.n_rows[some]) <= PIECE_ROWS
    some = np.sort(some[: max(1, int(within.sum()))])
    levels = functions.levels[some]
    rows = runs.rows(levels)
    placed = {v: c[rows] if on_disk(c) else c for v, c in whole.placed.items()}
    reading = read(whole.model, placed)
    found = [g for g in find_groupings(reading)[0] if set(names) <= set(g.names)]
    if len(found) != 1:
        raise TallModelError(
            f"{' and '.join(map(repr, names))}: rows of some levels are read in another way than "
            "all rows on disk. Please report this model, and give integrate=False."
        )
    grouping = replace(found[0], names=list(names))
    own = UnitFunctions(unit_graphs(standardised(reading, names), grouping))
    theta = own.ravel(own.start) + 0.1 * rng.standard_normal(own.size)
    u = 0.1 * rng.standard_normal((len(levels), graphs.size))
    if graphs.states is not None:
        u = np.where(graphs.discrete, own.of(levels).all_states[0][0], u)
    here, there = (f.of(levels).log_density(theta, u) for f in (own, functions))
    if not np.allclose(here, there, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
        worst = int(np.nanargmax(np.abs(here - there)))
        raise TallModelError(
            f"The log density of level {levels[worst]:,} of {' and '.join(map(repr, names))} is "
            f"{there[worst]} of rows on disk, and {here[worst]} of the same rows in memory. Please "
            "report this model, and give integrate=False."
        )
    return own
