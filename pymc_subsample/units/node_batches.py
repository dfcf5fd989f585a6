"""Units at their nodes, several at a time: a call of NumPy costs more than a few numbers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from pymc_subsample.units.modes import Modes
from pymc_subsample.units.unit_densities import UnitFunctions

# Rows that are evaluated at a time: so many numbers of each column stay within a processor's cache.
# Units that have no more at so many nodes are laid out once.
_ROWS, _KEPT = 2**15, 8


@dataclass(frozen=True)
class NodeBatch:
    """Some nodes of units, and functions of these units, one for each node."""

    functions: UnitFunctions
    node: np.ndarray  # Number of each node, and of the unit that has it.
    unit: np.ndarray
    nu: np.ndarray
    log_weights: np.ndarray

    def at(self, modes: Modes) -> np.ndarray:
        """Return variables at the nodes, given modes of all units."""
        m, S = modes.m[self.unit], modes.S[self.unit]
        return m + np.einsum("gij,gj->gi", S, self.nu)


def batches(functions: UnitFunctions, per_dimension: int) -> Iterable[NodeBatch]:
    """Return all nodes of all units that have a weight."""
    if per_dimension in functions.batches:
        return functions.batches[per_dimension]
    found = _made(functions, per_dimension)
    if len(functions.nodes(per_dimension)[0]) * functions.n_rows.sum() > _KEPT * _ROWS:
        return found
    return functions.batches.setdefault(per_dimension, list(found))


def _made(functions: UnitFunctions, per_dimension: int) -> Iterator[NodeBatch]:
    points, log_weights = functions.nodes(per_dimension)
    units, size = len(functions.levels), functions.graphs.size
    points = np.broadcast_to(points.reshape(len(points), -1, size), (len(points), units, size))
    log_weights = np.broadcast_to(log_weights.reshape(len(points), -1), points.shape[:2])
    together = max(1, _ROWS // max(int(functions.n_rows.sum()), units))
    for start in range(0, len(points), together):
        node, unit = np.nonzero(np.isfinite(log_weights[start : start + together]))
        node += start
        whole = together == 1 and len(unit) == units
        own = functions if whole else functions.among(unit)
        yield NodeBatch(own, node, unit, points[node, unit], log_weights[node, unit])
