"""Units side by side: those of about as many rows and variables in one table, filled up."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pymc_subsample.model.table_lengths import filled_up
from pymc_subsample.units.accuracy import Marginal
from pymc_subsample.units.quadrature import centred, nodes_of
from pymc_subsample.units.unit_arrays import Part
from pymc_subsample.units.unit_densities import UnitFunctions

# A choice: nodes that a table more saves at each pass over all rows, a quarter of a second of them,
# beside the tens of seconds that compiling it takes.
_NODES = 5_000_000


@dataclass(frozen=True)
class Table:
    """Units whose rows of each term are filled up to as many."""

    units: np.ndarray  # Positions of the units.
    lengths: tuple[int, ...]  # By term; 0 where these units have no rows of it.
    elements: int  # Of continuous local variables that each has at most,
    discrete: int  # and of others.
    # By term, a type of numbers that say how often each row counts: None if each does once.
    counted: tuple[str | None, ...]

    def of(self, most: int) -> "Table":
        """Return this table of some units, from first to last."""
        some = np.linspace(0, len(self.units) - 1, min(most, len(self.units))).astype(int)
        return replace(self, units=self.units[some])


def tables(functions: UnitFunctions, per_dimension: int) -> list[Table]:
    """Return tables of all units, which together hold few numbers in vain."""
    terms = range(1, len(functions.parts))
    counts = np.column_stack([functions.counts(k) for k in terms])
    often = np.column_stack([functions.counts(k, often=True) for k in terms])
    own = _elements(functions, per_dimension)
    lengths = np.zeros_like(counts)
    for n in np.unique(own, axis=0):
        some = (own == n).all(axis=1)
        read = np.ix_(some, counts[some].any(axis=0))
        lengths[read] = filled_up(counts[read])
    kinds, kind = np.unique(np.column_stack([own, lengths]), axis=0, return_inverse=True)
    found = []
    for i, (elements, discrete, *filled) in enumerate(kinds.tolist()):
        these = np.flatnonzero(kind.ravel() == i)
        once = (counts[these] == often[these]).all(axis=0)
        full = (counts[these] == filled).all(axis=0)
        counted = tuple(
            None if o and f else "bool" if o else "float64" for o, f in zip(once, full, strict=True)
        )
        found.append(Table(these, tuple(filled), elements, discrete, counted))
    return found


def _elements(functions: UnitFunctions, per_dimension: int) -> np.ndarray:
    """Return with how many continuous and discrete variables each unit is laid out, (units, 2).

    Those of a table are equally many: units with fewer join one where that costs few nodes. They
    have its nodes of which the others are zero, and the first of its states.
    """
    graphs = functions.graphs
    has = np.ones((len(functions.levels), graphs.size), dtype=bool)
    if graphs.active is not None:
        has = graphs.active[functions.levels]
    discrete = graphs.discrete
    own = np.column_stack([(has & ~discrete).sum(axis=1), (has & discrete).sum(axis=1)])
    patterns, pattern = np.unique(has, axis=0, return_inverse=True)
    points = np.isfinite(nodes_of(graphs, per_dimension, patterns)[1]).sum(axis=0)[pattern.ravel()]
    kinds, kind = np.unique(own, axis=0, return_inverse=True)
    kind = kind.ravel()
    each = np.array([points[kind == i].max() for i in range(len(kinds))])
    found, joined = own.copy(), list[int]()
    for i in np.argsort(-each):
        mine = kind == i
        rows = functions.n_rows[mine].sum()
        for j in joined:
            fits = (kinds[j] >= kinds[i]).all() and (
                kinds[j][0] == kinds[i][0] or centred(kinds[j][0], per_dimension)
            )
            if fits and rows * (each[j] - each[i]) <= _NODES:
                found[mine] = kinds[j]
                break
        else:
            joined.append(int(i))
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


def placed_first(functions: UnitFunctions, table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Return a unit's elements that have nodes, before others, (units, k), and how many have."""
    placed = functions.active
    if placed is None:
        placed = np.ones((len(functions.levels), table.elements), dtype=bool)
    placed = placed[table.units]
    return np.argsort(~placed, axis=1, kind="stable")[:, : table.elements], placed.sum(axis=1)


def state_numbers(
    functions: UnitFunctions, table: Table
) -> Iterator[tuple[np.ndarray, tuple[str, np.ndarray]]]:
    """Yield states of a table's units, (units, size), and logarithms of their weights, named.

    These are 0, or -inf where a unit has no such state, (units, 1).
    """
    states = functions.of(functions.levels[table.units]).all_states
    for k, (state, nothing) in enumerate(zip(*states, strict=True)):
        yield state, (f"nothing{k}", np.ascontiguousarray(nothing[:, None]))
