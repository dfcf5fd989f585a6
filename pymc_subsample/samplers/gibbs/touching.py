"""Which rows touch which elements of theta, read off the graph of the log-likelihood."""

from dataclasses import dataclass
from functools import partial

import numpy as np
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import toposort

from pymc_subsample.graph.concrete import depends_on
from pymc_subsample.graph.dependence import Sources
from pymc_subsample.graph.interpreter import NoForm
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.model.errors import op_name
from pymc_subsample.model.tall_model import TallModel

# Numbers held at a time. A choice: 32 MB.
_NUMBERS = 2**22
# Rows and flips of the numerical check. A choice of time.
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
    size, graph = len(elements), model.row_graph()
    unknown = partial(Touching, np.zeros(size + 1, dtype=np.int64), np.zeros(0, dtype=np.uint32))
    if model.n_rows > np.iinfo(np.int32).max:
        return unknown("too many rows")
    dependent = depends_on([graph], [model.theta])
    nodes = [n for n in toposort([graph]) if n.outputs[0] in dependent]
    given = [
        v
        for v in dict.fromkeys(i for n in nodes for i in n.inputs)
        if v not in dependent and not isinstance(v, Constant)
    ]
    # Shapes of what depends on theta do not depend on it.
    read, theta = numpy_function([model.theta, *model.raw], given), np.zeros(model.size)
    positions = np.full(model.size, -1, dtype=np.int32)
    positions[elements] = np.arange(size)
    per_row = sum(map(_size, given)) + max(_size(n.inputs[0]) for n in nodes)
    step = max(256, _NUMBERS // max(per_row, 1))  # a choice: fewer cost a call each
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for first in range(0, model.n_rows, step):
        rows = slice(first, min(first + step, model.n_rows))
        data = dict(zip(given, read(theta, *model.raw_batch(rows)), strict=True))
        try:
            [found] = Sources({model.theta: positions}, data, rows.stop - first).evaluate([graph])
        except NoForm as error:
            return unknown(op_name(*error.args))
        places = np.arange(first, rows.stop)
        keys = [s[s >= 0].astype(np.int64) + size * places[s >= 0] for s in found.sources]
        unique = np.unique(np.concatenate([*keys, np.zeros(0, dtype=np.int64)]))
        pairs.append(((unique % size).astype(np.int32), (unique // size).astype(np.uint32)))
    element = np.concatenate([e for e, _ in pairs])
    row = np.concatenate([r for _, r in pairs])
    start = np.concatenate([[0], np.cumsum(np.bincount(element, minlength=size))])
    return Touching(start.astype(np.int64), row[np.argsort(element, kind="stable")])


def _size(var: Variable) -> int:
    return int(np.prod([s or 1 for s in var.type.shape]))


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
