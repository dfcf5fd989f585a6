"""Rows of units side by side: units of about as many different rows in one table, filled up."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pymc_subsample.model.table_lengths import filled_up
from pymc_subsample.units.accuracy import Marginal
from pymc_subsample.units.quadrature import nodes_of
from pymc_subsample.units.unit_densities import Part, UnitFunctions


@dataclass(frozen=True)
class Table:
    """Units whose rows of each term are filled up to as many."""

    units: np.ndarray  # Positions of the units.
    lengths: tuple[int, ...]  # By term; 0 where these units have no rows of it.
    elements: int  # Of local variables that each has.
    # By term, a type of numbers that say how often each row counts: None if each does once.
    counted: tuple[str | None, ...]

    def of(self, most: int) -> "Table":
        """Return this table of some units, from first to last."""
        some = np.linspace(0, len(self.units) - 1, min(most, len(self.units))).astype(int)
        return replace(self, units=self.units[some])


def tables(functions: UnitFunctions) -> list[Table]:
    """Return tables of all units, which together hold few numbers in vain."""
    units = len(functions.levels)
    terms = range(1, len(functions.parts))
    counts = np.column_stack([functions.counts(k) for k in terms])
    often = np.column_stack([functions.counts(k, often=True) for k in terms])
    # Units of a table have equally many variables.
    size, active = functions.graphs.size, functions.active
    own = np.full(units, size) if active is None else active.sum(axis=1)
    lengths = np.zeros_like(counts)
    for n in np.unique(own):
        some = own == n
        read = np.ix_(some, counts[some].any(axis=0))
        lengths[read] = filled_up(counts[read])
    kinds, kind = np.unique(np.column_stack([own, lengths]), axis=0, return_inverse=True)
    found = []
    for i, (elements, *filled) in enumerate(kinds.tolist()):
        own = np.flatnonzero(kind.ravel() == i)
        once = (counts[own] == often[own]).all(axis=0)
        full = (counts[own] == filled).all(axis=0)
        counted = tuple(
            None if o and f else "bool" if o else "float64" for o, f in zip(once, full, strict=True)
        )
        found.append(Table(own, tuple(filled), elements, counted))
    return found


def places(part: Part, units: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which row stands where in a table, (units, length), and how often it counts.

    Where a unit has no row left, its last one stands again, and does not count.
    """
    starts = np.searchsorted(part.unit, units)
    counts = np.searchsorted(part.unit, units, side="right") - starts
    own = np.arange(length)
    at = starts[:, None] + np.minimum(own, counts[:, None] - 1)
    return at, part.times[at] * (own < counts[:, None])


def row_numbers(functions: UnitFunctions, table: Table) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what rows of a table are read by, (units, length, ...), and how often they count.

    By names ``{part}_{column}`` and ``{part}_rows``; of the prior, each unit has one row.
    """
    parts = zip(functions.parts, functions.data, strict=True)
    for t, ((part, rows), length, counted) in enumerate(
        zip(parts, (1, *table.lengths), (None, *table.counted), strict=True)
    ):
        if not length:
            continue
        at, counts = places(rows, table.units, length)
        for c, (v, column) in enumerate(zip(part.columns, rows.columns, strict=True)):
            axis = part.columns[v].axis
            values = np.moveaxis(np.take(column, at, axis=axis), axis, 0)
            yield f"{t}_{c}", np.ascontiguousarray(values)
        if counted is not None:
            yield f"{t}_rows", counts.astype(counted)


def mode_numbers(
    marginal: Marginal, table: Table, own: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield where nodes of a table's units are, of elements that are their `own`, (units, k)."""
    modes, units = marginal.modes.of(table.units), np.arange(len(own))
    every = range(own.shape[1])
    for i in every:
        yield f"mode{i}", modes.m[units, own[:, i]]
    for i in every:
        for j in every:
            yield f"spread{i}_{j}", modes.S[units, own[:, i], own[:, j]]
    yield "volume", modes.log_volume


def state_numbers(marginal: Marginal, table: Table) -> Iterator[tuple[str, np.ndarray]]:
    """Yield logarithms of weights of each state of a table's units, (units, 1)."""
    functions, n = marginal.functions, len(table.units)
    active = functions.active
    active = None if active is None else active[table.units]
    _, log_weights = nodes_of(functions.graphs, marginal.integral.per_dimension, active)
    for k, each in enumerate(log_weights):
        weights = np.broadcast_to(np.reshape(each, (-1, 1)), (n, 1))
        yield f"nothing{k}", np.ascontiguousarray(weights)
