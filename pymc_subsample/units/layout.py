"""Units side by side: those of about as many rows and variables in one table, filled up."""

from dataclasses import dataclass

import numpy as np

from pymc_subsample.model.table_lengths import filled_up
from pymc_subsample.units.quadrature import centred, nodes_of
from pymc_subsample.units.unit_densities import Part, UnitFunctions

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

    def of(self, most: int) -> "Table":
        """Return this table of some units, from first to last."""
        some = np.linspace(0, len(self.units) - 1, min(most, len(self.units))).astype(int)
        return Table(self.units[some], self.lengths, self.elements, self.discrete)


def tables(functions: UnitFunctions, per_dimension: int) -> list[Table]:
    """Return tables of all units, which together hold few numbers in vain."""
    units = len(functions.levels)
    counts = np.column_stack([
        np.bincount(part.unit, minlength=units) for part in functions.data[1:]
    ])  # fmt: skip
    own = _elements(functions, per_dimension)
    lengths = np.zeros_like(counts)
    for n in np.unique(own, axis=0):
        some = (own == n).all(axis=1)
        read = np.ix_(some, counts[some].any(axis=0))
        lengths[read] = filled_up(counts[read])
    kinds, kind = np.unique(np.column_stack([own, lengths]), axis=0, return_inverse=True)
    return [
        Table(np.flatnonzero(kind.ravel() == i), (*lengths,), elements, discrete)
        for i, (elements, discrete, *lengths) in enumerate(kinds.tolist())
    ]


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
