r"""Tangents in the squared distance from a centre, and proofs that they are lower bounds.

Around its centre c a log-likelihood is :math:`l(c + d) = l(c) + l'(c) d + f(d^2)` if what is odd
in it is a straight line. If f is convex, its tangent at :math:`d_*^2` lies below it: a quadratic of
curvature :math:`v(d_*) = (l'(c + d_*) - l'(c)) / d_*` that touches l at :math:`d_*`, and at
:math:`-d_*`. Convex is f where v rises with d, that is, where

.. math:: F(d) = d\, l''(c + d) - l'(c + d) + l'(c) \ge 0.

Both are shown by Taylor expansions of order 3 in boxes that cover all distances, with their
remainders enclosed.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pymc_subsample.expansion.coefficients import Coefficients
from pymc_subsample.expansion.everywhere import ANYWHERE
from pymc_subsample.expansion.row_code import RowCode
from pymc_subsample.graph.concrete import UNDIFFERENTIABLE, rebuild, specialised
from pymc_subsample.graph.interpreter import NoForm
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.graph.scalar_loop_gradients import gradients

# Below this distance from the centre, a slope between two points is taken for a derivative. About
# the square root of the rounding of doubles, where a difference is as exact as it gets.
_CLOSE = 1e-6
# By what rounding may have proofs miss: by as much rows' residuals may be negative later on.
_ROUNDING = 1e-9
# Boxes per doubling of the distance to begin with, how many there may be, and how often each is
# halved. Choices: a Student-t row takes some 4,000.
_PER_DOUBLING, _MOST_BOXES, _HALVED = 4, 2**18, 30

# ``kinds(slope, data, d)`` returns values of the data, shape (len(data), k), which stand for all
# rows in a slope, or None.
type Kinds = Callable[[Variable, Sequence[Variable], Variable], np.ndarray | None]


def tangent(code: RowCode, e: int, kinds: Kinds) -> Variable | None:
    """Return the tangent's curvature in a predictor; None if none is proven to be a lower bound.

    Others are at zero: no derivative mixes them. The centre is zero, or a column of the data.
    """
    x, slope = code.x[e], code.derivatives(1)[e,]
    for column in (None, *code.data.values()):
        if not _convex(code, e, column, kinds):
            continue
        center = pt.zeros_like(x) if column is None else column
        base, peak = rebuild([slope, code.derivatives(2)[e, e]], {x: center})
        shift = x - center
        close = pt.abs(shift) < _CLOSE
        value = pt.switch(close, peak, (slope - base) / pt.switch(close, 1.0, shift))
        return (1 + _ROUNDING) * value
    return None


def _convex(code: RowCode, e: int, center: Variable | None, kinds: Kinds) -> bool:
    """Whether the log-likelihood is a line and a convex function of the squared distance."""
    d = pt.vector("d", dtype="float64", shape=(None,))
    memo: dict[Variable, Variable] = {x: pt.zeros_like(d) for x in code.x}
    memo[code.x[e]] = d if center is None else center + d
    # Simplified: where the data are the centre, they are often gone.
    fgraph = specialised([d, *code.data.values()], rebuild([code.loglik], memo))
    [level], (d, *data) = fgraph.outputs, fgraph.inputs
    levels = [level]
    try:
        for _ in range(3):
            options = {"disconnected_inputs": "ignore"}
            levels += gradients(levels[-1].sum(), [d], **options)
        evaluate = numpy_function([d, *data], levels)
        remainder = Coefficients(level, [d], data, 4)
    except (*UNDIFFERENTIABLE, NoForm):
        return False
    known = kinds(levels[1], data, d)
    if known is None:
        return False

    def at(d: np.ndarray, data: np.ndarray) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return [np.broadcast_to(x, d.shape) for x in evaluate(d, *data)]

    def rest(d: np.ndarray, data: np.ndarray, width: np.ndarray) -> np.ndarray:
        """Bound the remainder of order 3 while the distance is within `width` of d."""
        return remainder(d[None], data, width[None, :, None], 1.0)

    doubled = np.arange(-20 * _PER_DOUBLING, np.log2(ANYWHERE) * _PER_DOUBLING) / _PER_DOUBLING
    edges = np.concatenate([[0.0], 2.0**doubled])
    count = known.shape[1]
    low, high = np.tile(edges[:-1], count), np.tile(edges[1:], count)
    data_ = np.repeat(known, len(edges) - 1, axis=1)
    for _ in range(_HALVED):
        if not low.size:
            return True
        d, width = (low + high) / 2, (high - low) / 2
        right, left, first = at(d, data_), at(-d, data_), at(low, data_)
        begun = at(np.zeros_like(d), data_)[1]
        # What is odd, less its line.
        odd = [right[0] - left[0] - 2 * begun * d, right[1] + left[1] - 2 * begun]
        odd += [right[2] - left[2], right[3] + left[3]]
        sizes = np.abs(right[0]) + np.abs(left[0]) + np.abs(begun * d)
        allowed = _ROUNDING * (1.0 + sizes)

        steep = _ROUNDING * (d * np.abs(right[2]) + np.abs(right[1]) + np.abs(begun))
        here, start = (x * y[2] - y[1] + begun for x, y in ((d, right), (low, first)))
        if not np.all((np.abs(odd[0]) <= allowed) & (here >= -steep) & (start >= -steep)):
            return False
        beyond, before = rest(d, data_, width), rest(-d, data_, width)
        with np.errstate(over="ignore", invalid="ignore"):
            total = beyond + before
            for k, x in enumerate(odd):
                total = total + np.abs(x) * width**k / (1, 1, 2, 6)[k]
            bend = 24 * beyond / width**3  # what the third derivative changes by
            rises = right[3] >= bend
            fallen = here - (d + width) * width * (np.abs(right[3]) + bend / 2)
        open_ = ~((total <= allowed) & (rises | (fallen >= -steep)))
        if 2 * open_.sum() > _MOST_BOXES:
            return False
        low, high = np.concatenate([low[open_], d[open_]]), np.concatenate([d[open_], high[open_]])
        data_ = np.tile(data_[:, open_], 2)
    return False
