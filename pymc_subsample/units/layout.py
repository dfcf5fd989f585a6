"""Rows of units side by side: units of about as many different rows in one table, filled up."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pymc_subsample.units.unit_densities import Part, UnitFunctions

# What a table more costs, as a share of all rows: its graph is compiled on its own.
_TABLE = 0.25
# Sizes beyond are considered in steps of a quarter at most.
_EXACT, _FINER = 8, 1.25


@dataclass(frozen=True)
class Table:
    """Units whose rows of each term are filled up to as many."""

    units: np.ndarray  # Positions of the units.
    lengths: tuple[int, ...]  # By term; 0 where these units have no rows of it.
    elements: int  # Of local variables that each has.

    def of(self, most: int) -> "Table":
        """Return this table of some units, from first to last."""
        some = np.linspace(0, len(self.units) - 1, min(most, len(self.units))).astype(int)
        return Table(self.units[some], self.lengths, self.elements)


def tables(functions: UnitFunctions) -> list[Table]:
    """Return tables of all units, which together hold few numbers in vain."""
    units = len(functions.levels)
    filled = [_filled(np.bincount(part.unit, minlength=units)) for part in functions.data[1:]]
    # Units of a table have equally many variables.
    size, active = functions.graphs.size, functions.active
    own = np.full(units, size) if active is None else active.sum(axis=1)
    lengths = np.column_stack([own, *filled])
    while True:
        kinds, kind, counts = np.unique(lengths, axis=0, return_inverse=True, return_counts=True)
        alike = [np.flatnonzero(counts == n) for n in np.unique(counts)]
        several = [same for same in alike if len(np.unique(kinds[same, 0])) < len(same)]
        if not several:
            break
        # Terms of equally many rows would be taken for terms of the same rows.
        sizes = kinds[several[0], 0]
        two = several[0][sizes == next(n for n in sizes if (sizes == n).sum() > 1)][:2]
        lengths[np.isin(kind.ravel(), two)] = kinds[two].max(axis=0)
    return [
        Table(np.flatnonzero(kind.ravel() == i), tuple(map(int, lengths[1:])), int(lengths[0]))
        for i, lengths in enumerate(kinds)
    ]


def _filled(counts: np.ndarray) -> np.ndarray:
    """Return for each unit as how many rows its own are laid out: the best few sizes."""
    sizes = np.array(list(_sizes(counts)))
    place = np.searchsorted(sizes, counts)
    units = np.bincount(place, minlength=len(sizes)).cumsum()
    table = _TABLE * counts.sum()
    # The least that units of the first j sizes cost, and the size before the last of their tables.
    least, before = [0.0], [0]
    for j, size in enumerate(sizes, 1):
        below = np.concatenate([[0], units])[:j]
        costs = np.array(least) + (units[j - 1] - below) * size + table
        before.append(int(np.argmin(costs)))
        least.append(float(costs[before[-1]]))
    chosen, j = [], len(sizes)
    while j:
        chosen.append(sizes[j - 1])
        j = before[j]
    ends = np.array(chosen[::-1])
    return np.where(counts == 0, 0, ends[np.searchsorted(ends, counts)])


def _sizes(counts: np.ndarray) -> Iterator[int]:
    """Yield sizes that tables may have: those of units, of large ones some."""
    found = np.unique(counts[counts > 0])
    last = 0.0
    for size, following in zip(found, [*found[1:], np.inf], strict=True):
        if size <= _EXACT or following > last * _FINER or following == np.inf:
            last = float(size)
            yield int(size)


def places(part: Part, units: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which row stands where in a table, (units, length), and how often it counts.

    Where a unit has no row left, its last one stands again, and does not count.
    """
    starts = np.searchsorted(part.unit, units)
    counts = np.searchsorted(part.unit, units, side="right") - starts
    own = np.arange(length)
    at = starts[:, None] + np.minimum(own, counts[:, None] - 1)
    return at, part.times[at] * (own < counts[:, None])
