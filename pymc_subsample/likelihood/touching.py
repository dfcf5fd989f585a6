"""Which rows touch which elements of theta, read off the graph of the log-likelihood."""

from dataclasses import dataclass

import numpy as np
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import toposort

from pymc_subsample.likelihood.errors import op_name
from pymc_subsample.likelihood.tall_model import TallModel
from pymc_subsample.symbolic.dependence import Sources
from pymc_subsample.symbolic.graph import depends_on, numpy_function
from pymc_subsample.symbolic.interpreter import NoForm

# Numbers held at a time.
_NUMBERS = 2**22
# Rows and flips of the numerical check.
_CHECKED, _FLIPS = 500, 8


@dataclass(frozen=True)
class Touching:
    """Rows that touch each of some elements of theta, in compressed form."""

    # Integers, shape (a + 1,): rows of element i are ``rows[start[i]:start[i + 1]]``, sorted.
    start: np.ndarray
    rows: np.ndarray  # Integers: the rows; empty if `unknown`.
    # Name of the Op through which rows cannot be told apart: all rows may touch all elements.
    unknown: str | None = None


def touching_rows(model: TallModel, elements: np.ndarray) -> Touching:
    """Find the rows whose log-likelihood can depend on each of `elements`, shape (a,).

    A row with a zero coefficient for an element does not touch it; apart from that only the
    graph counts, not its values.
    """
    sources = _RowSources(model, elements)
    size = len(elements)
    step = max(256, _NUMBERS // max(sources.per_row, 1))
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    if model.n_rows > np.iinfo(np.int32).max:
        return Touching(np.zeros(size + 1, dtype=np.int64), np.zeros(0, np.int32), "too many rows")
    for first in range(0, model.n_rows, step):
        rows = slice(first, min(first + step, model.n_rows))
        try:
            found = sources.of(rows)
        except NoForm as error:
            start = np.zeros(size + 1, dtype=np.int64)
            return Touching(start, np.zeros(0, dtype=np.int32), op_name(*error.args))
        places = np.arange(rows.start, rows.stop)
        keys = [s[s >= 0].astype(np.int64) + size * places[s >= 0] for s in found]
        unique = np.unique(np.concatenate([*keys, np.zeros(0, dtype=np.int64)]))
        pairs.append(((unique % size).astype(np.int32), (unique // size).astype(np.int32)))
    element = np.concatenate([e for e, _ in pairs])
    row = np.concatenate([r for _, r in pairs])
    start = np.concatenate([[0], np.cumsum(np.bincount(element, minlength=size))])
    return Touching(start.astype(np.int64), row[np.argsort(element, kind="stable")])


class _RowSources:
    """Evaluates the sources of the rows, batch by batch."""

    def __init__(self, model: TallModel, elements: np.ndarray):
        self._model = model
        self._graph = model.row_graph()
        dependent = depends_on([self._graph], [model.theta])
        nodes = [n for n in toposort([self._graph]) if n.outputs[0] in dependent]
        self._given = [
            v
            for v in dict.fromkeys(i for n in nodes for i in n.inputs)
            if v not in dependent and not isinstance(v, Constant)
        ]
        # Shapes of what depends on theta do not depend on it.
        self._read = numpy_function([model.theta, *model.raw], self._given)
        self._positions = np.full(model.size, -1, dtype=np.int32)
        self._positions[elements] = np.arange(len(elements))
        lengths = [_size(v.type.shape) for v in self._given]
        self.per_row = sum(lengths) + max(_size(n.inputs[0].type.shape) for n in nodes)

    def of(self, rows: slice) -> tuple[np.ndarray, ...]:
        """Return the sources of some rows, each of shape (m,)."""
        theta = np.zeros(self._model.size)
        values = self._read(theta, *self._model._raw_batch(rows))
        data = dict(zip(self._given, values, strict=True))
        sources = Sources({self._model.theta: self._positions}, data, rows.stop - rows.start)
        return sources.evaluate([self._graph])[0].sources


def _size(shape: tuple[int | None, ...]) -> int:
    return int(np.prod([s or 1 for s in shape]))


def check_touching(model: TallModel, elements: np.ndarray, touching: Touching) -> int | None:
    """Flip elements at random states; return one that changes a row it should not, or None."""
    if touching.unknown is not None or not len(elements):
        return None
    rng = np.random.default_rng(0)
    index = rng.integers(0, model.n_rows, _CHECKED)
    for i in rng.integers(0, len(elements), _FLIPS):
        theta = model.ravel(model.initial_point)
        theta[elements] = rng.random(len(elements)) < 0.5
        before = model.row_loglik(theta, index)
        theta[elements[i]] = 1 - theta[elements[i]]
        after = model.row_loglik(theta, index)
        apart = ~np.isin(index, touching.rows[touching.start[i] : touching.start[i + 1]])
        same = (before == after) | (np.isnan(before) & np.isnan(after))
        if np.any(apart & ~same):
            return int(elements[i])
    return None
