"""Rows of units side by side: units of about as many different rows in one table, filled up."""

from dataclasses import dataclass

import numpy as np

from pymc_subsample.model.table_lengths import filled_up
from pymc_subsample.units.unit_densities import Part, UnitFunctions


@dataclass(frozen=True)
class Table:
    """Units whose rows of each term are filled up to as many."""

    units: np.ndarray  # Positions of the units.
    lengths: tuple[int, ...]  # By term; 0 where these units have no rows of it.
    elements: int  # Of continuous local variables that each has,
    discrete: int  # and of others.

    def of(self, most: int) -> "Table":
        """Return this table of some units, from first to last."""
        some = np.linspace(0, len(self.units) - 1, min(most, len(self.units))).astype(int)
        return Table(self.units[some], self.lengths, self.elements, self.discrete)


def tables(functions: UnitFunctions) -> list[Table]:
    """Return tables of all units, which together hold few numbers in vain."""
    units = len(functions.levels)
    counts = np.column_stack([
        np.bincount(part.unit, minlength=units) for part in functions.data[1:]
    ])  # fmt: skip
    # Units of a table have equally many variables of each kind.
    graphs, every = functions.graphs, np.ones((units, functions.graphs.size), dtype=bool)
    has = every if graphs.active is None else graphs.active[functions.levels]
    own = np.column_stack([(has & ~graphs.discrete).sum(axis=1), (has & graphs.discrete).sum(axis=1)])
    lengths = np.zeros_like(counts)
    for n in np.unique(own, axis=0):
        some = (own == n).all(axis=1)
        read = np.ix_(some, counts[some].any(axis=0))
        lengths[read] = filled_up(counts[read])
    kinds, kind = np.unique(np.column_stack([own, lengths]), axis=0, return_inverse=True)
    return [
        Table(np.flatnonzero(kind.ravel() == i), tuple(map(int, lengths[2:])), *map(int, lengths[:2]))
        for i, lengths in enumerate(kinds)
    ]


def places(part: Part, units: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which row stands where in a table, (units, length), and how often it counts.

    Where a unit has no row left, its last one stands again, and does not count.
    """
    starts = np.searchsorted(part.unit, units)
    counts = np.searchsorted(part.unit, units, side="right") - starts
    own = np.arange(length)
    at = starts[:, None] + np.minimum(own, counts[:, None] - 1)
    return at, part.times[at] * (own < counts[:, None])
