"""Bounds of functions of a row wherever its predictor is: what interval arithmetic proves.

A grid gives a guess. It becomes a bound when boxes that cover all predictors and data are enclosed,
and none holds more; what may hold more is halved until it is known.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from pytensor.graph.basic import Apply, Variable

from pymc_subsample.graph.concrete import rebuild
from pymc_subsample.graph.interpreter import NoForm
from pymc_subsample.graph.intervals import Enclosure, enclose
from pymc_subsample.graph.jets import enclose_coefficient
from pymc_subsample.graph.nodes import elemwise_name
from pymc_subsample.graph.numpy_functions import numpy_function

if TYPE_CHECKING:
    from pymc_subsample.expansion.expansion import Expansion

# As far as predictors are followed. A choice: no chain goes there, and powers of it are finite.
ANYWHERE = 1e9
# Range of predictors on whose inner half a function is evaluated first, and what is added to the
# largest value that is known. Choices: at 30 a logistic row is linear to rounding (e^-30).
_WIDEST = 30.0
_ROUNDING = 1e-3
# What is larger farther out than this, or than twice the data, grows with the predictor. A choice:
# a logistic curvature is e^-1000 there.
_FAR = 1e3
# Kinds of rows that are told apart. A choice.
_MOST_KINDS = 64
# How many boxes there may be, and their width, relative to where they are, at which halving ends.
_MOST_BOXES, _NARROW = 2**20, 1e-6

type Measure = Callable[[np.ndarray, np.ndarray], np.ndarray]


def largest_size(
    graph: Variable, predictor: Variable, data: Sequence[Variable], kinds: np.ndarray
) -> float | None:
    """Bound the size of a function over all predictors and kinds of rows; None if none is found.

    It is a vector graph of the predictor and of data, whose distinct values are `kinds`, shape
    (len(data), k). The bound is a thousandth above the supremum, unless that is a peak narrower
    than the last boxes. Functions that grow with the predictor have none. Of the kink or step of a
    switch this says nothing: see `Pieces.smooth_everywhere`.
    """
    return _supremum(graph, predictor, data, (kinds, kinds), _size)


def least(
    graph: Variable, predictor: Variable, data: Sequence[Variable], low: np.ndarray,
    high: np.ndarray,
) -> float | None:  # fmt: skip
    """Bound a function, or zero, from below, for data in k boxes, shapes (len(data), k)."""
    found = _supremum(graph, predictor, data, (low, high), lambda low, high: -low)
    return None if found is None else -found


def _size(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(low), np.abs(high))


def _supremum(
    graph: Variable,
    predictor: Variable,
    data: Sequence[Variable],
    boxes: tuple[np.ndarray, np.ndarray],
    measure: Measure,
) -> float | None:
    """Return an upper bound of a measure, from zero up, over all predictors and boxes of data."""
    evaluate = numpy_function([predictor, *data], [graph])
    enclosed = enclose([graph], [predictor, *data])

    def values(x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            found = np.broadcast_to(evaluate(*x)[0], x.shape[1])
        return measure(found, found)

    # An even number of points: derivatives of powers are 0 * inf at zero.
    grid = np.linspace(-_WIDEST, _WIDEST, 6000)
    inner = grid[np.abs(grid) <= _WIDEST / 2]
    middle = _between(*boxes)
    largest = values(_times(inner, middle)).max(initial=0.0)
    far = max(_FAR, 2.0 * np.abs(middle[np.isfinite(middle)]).max(initial=0.0))
    doubled = 2.0 ** np.arange(1, np.ceil(np.log2(ANYWHERE / _WIDEST)) + 1) * _WIDEST
    edges = np.concatenate([-doubled[::-1], grid, doubled])
    low, high = _times(edges[:-1], boxes[0]), _times(edges[1:], boxes[1])
    known = largest * (1 + _ROUNDING)
    while True:
        middle = _between(low, high)
        found = values(middle)
        distant = np.abs(middle[0]) > far
        if not np.isfinite(known) or not np.all(np.isfinite(found)):
            return None
        if np.any(found[distant] > known):
            return None
        if np.any(found > known):
            known = found.max() * (1 + _ROUNDING)
        try:
            [within] = enclosed([Enclosure(*ends) for ends in zip(low, high, strict=True)])
        except NoForm:
            return None
        above = np.broadcast_to(measure(within.low, within.high), found.shape)
        open_ = ~(above <= known)
        if not open_.any():
            return float(known)
        with np.errstate(invalid="ignore"):
            width = np.nan_to_num((high - low) / np.maximum(1.0, np.abs(middle)))  # one infinity
        widest = width.argmax(axis=0)
        narrow = np.all(width[:, open_] < _NARROW)
        if narrow or 2 * open_.sum() > _MOST_BOXES:
            bound = float(above[open_].max())
            return bound if np.isfinite(bound) else None
        low, high, middle = low[:, open_], high[:, open_], middle[:, open_]
        cut, columns = widest[open_], np.arange(low.shape[1])
        left, right = high.copy(), low.copy()
        left[cut, columns] = right[cut, columns] = middle[cut, columns]
        low, high = np.concatenate([low, right], axis=1), np.concatenate([left, high], axis=1)


def _between(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return numbers about half-way, and not zero between -x and x: see above."""
    with np.errstate(invalid="ignore"):
        return np.where(low == high, low, 0.49 * low + 0.51 * high)


def _times(x: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Return all pairs of predictors and columns of data, shape (1 + len(data), pairs)."""
    return np.vstack([np.tile(x, data.shape[1]), np.repeat(data, len(x), axis=1)])


def affine_in(
    graph: Variable,
    predictor: Variable,
    data: Sequence[Variable],
    low: np.ndarray,
    high: np.ndarray,
    whole: np.ndarray,
    which: np.ndarray,
) -> bool:
    """Whether a graph is an affine function of some columns of data that are from low to high.

    Then its extremes are at theirs. `which` columns, one at a time; those of `whole` numbers may be
    read as integers.
    """
    integers = {v for v, w in zip(data, whole, strict=True) if w}

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        rounds = elemwise_name(node) == "Cast" and node.outputs[0].type.dtype.startswith("int")
        return [inputs[0]] if rounds and inputs[0] in integers else None

    [graph] = rebuild([graph], {}, hook)
    bound = enclose_coefficient(graph, [predictor, *data], 2)
    within = [Enclosure(-ANYWHERE, ANYWHERE)]
    within += [Enclosure(*ends) for ends in zip(low[:, None], high[:, None], strict=True)]
    try:
        for k in np.flatnonzero(which):
            moving: list[np.ndarray | None] = [None] * len(within)
            moving[k + 1] = np.array([[high[k] - low[k]]])
            if np.any(bound(within, moving, 1.0, {}) != 0):
                return False
    except NoForm:
        return False
    return True


# Columns of rows


def distinct(expansion: "Expansion", positions: Sequence[int]) -> np.ndarray | None:
    """Return the distinct values, shape (len(positions), k), of some columns, if they are few."""
    found = np.zeros((len(positions), 0))
    for some in expansion.over(_kinds, list(positions)):
        found = np.unique(np.concatenate([found, some], axis=1), axis=1)
        if found.shape[1] > _MOST_KINDS:
            return None
    return found


def _kinds(_: "Expansion", batches: Iterable[np.ndarray], positions: list[int]) -> np.ndarray:
    """Return the distinct values in a batch, or more than are few."""
    [rows] = batches
    return np.unique(rows[positions], axis=1)[:, : _MOST_KINDS + 1]


def hulls(
    expansion: "Expansion", positions: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the smallest and the largest number of some columns, and which have whole ones."""
    count = len(positions)
    low, high, whole = np.full(count, np.inf), np.full(count, -np.inf), np.ones(count, dtype=bool)
    for least_, most, rounded in expansion.over(_ends, list(positions)):
        low, high, whole = np.minimum(low, least_), np.maximum(high, most), whole & rounded
    return low, high, whole


def _ends(
    _: "Expansion", batches: Iterable[np.ndarray], positions: list[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    [rows] = batches
    seen = rows[positions]
    return seen.min(axis=1), seen.max(axis=1), np.all(seen == np.floor(seen), axis=1)
