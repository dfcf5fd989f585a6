"""Bounds on what the Taylor expansion of a row leaves, while its predictors move."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise, product
from types import MappingProxyType

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import toposort

from pymc_subsample.graph.interpreter import NoForm
from pymc_subsample.graph.intervals import Enclosure, enclose
from pymc_subsample.graph.jets import enclose_coefficient
from pymc_subsample.graph.piecewise import Pieces

# Of the derivatives, which PyTensor takes 3 ms each to simplify.
_MOST_NODES = 1_000
# Parts of the interval of one predictor and of each of two, looked at in so many rows, and taken if
# bounds of that share of them are as much sharper.
_PARTS, _LOOKED_AT, _SHARPER, _SHARE = (12, 4), 200, 0.4, 0.25
# Rows of which coefficients are enclosed at a time. A choice of memory: a walk through the graph
# holds all that it has met, up to 0.5 MB for a unit whose effect is integrated out.
_TOGETHER = 1_000


class Coefficients:
    r"""Bounds of a log-likelihood's Taylor coefficients of order k, row by row.

    Predictors move as :math:`t g_e'u`, u of length one. While t is within a limit, the remainder of
    order k - 1 is at most :math:`t^k` times the largest size of the coefficient
    :math:`\frac{1}{k!} \frac{d^k}{ds^k} l(\eta + s v)`, :math:`v_e = g_e'u`.

    The log-likelihood is a vector graph of `predictors` and `data`. `derivatives` are k-fold ones
    by the predictors that are their keys: as PyTensor simplifies them, those of one or two
    predictors are enclosed more sharply than coefficients along all directions at once.
    """

    def __init__(
        self,
        loglik: Variable,
        predictors: Sequence[Variable],
        data: Sequence[Variable],
        order: int,
        derivatives: Mapping[tuple[int, ...], Variable] = MappingProxyType({}),
    ):
        self._which, self._order = list(derivatives), order
        self.pieces = Pieces(loglik, predictors, data)
        inputs = [*predictors, *data]
        self._along = enclose_coefficient(self.pieces.loglik, inputs, order)
        graphs = list(derivatives.values())
        few = len(list(toposort(graphs))) <= _MOST_NODES
        self._enclosed = enclose(graphs, inputs) if graphs and few else None

    def __call__(
        self, predictors: np.ndarray, data: np.ndarray, gradients: np.ndarray, limit: float
    ) -> np.ndarray:
        """Return a bound per row, infinite where none is found.

        `predictors` have shape (E, m), `gradients`, g, (E, m, d), `data` (k, m); `limit` is the
        largest t.
        """
        moves = np.linalg.norm(gradients, axis=2)
        far = limit * moves
        values = [Enclosure(x - f, x + f) for x, f in zip(predictors, far, strict=True)]
        values += [Enclosure(x, x) for x in data]
        joined, smooth = self.pieces.joined(predictors, data, far, self._order)
        total = np.full(predictors.shape[1], np.inf)
        if self._enclosed is not None:
            try:
                # Derivatives see no kinks.
                total = np.where(smooth, self._sharp(values, moves), np.inf)
            except NoForm:
                self._enclosed = None
        if not np.all(np.isfinite(total)):
            with suppress(NoForm):
                along = within_their_span(gradients)
                found = self._along_all(predictors, data, along, limit, joined)
                total = np.fmin(total, found)
        return np.where(self.pieces.held(predictors, data, far), total, np.inf)

    def _along_all(
        self,
        predictors: np.ndarray,
        data: np.ndarray,
        gradients: np.ndarray,
        limit: float,
        joined: Mapping[Apply, np.ndarray],
    ) -> np.ndarray:
        """Bound by coefficients along all directions at once, some rows at a time."""
        count = predictors.shape[1]
        found = np.empty(count)
        for start in range(0, count, _TOGETHER):
            some = slice(start, start + _TOGETHER)
            at, stay = [*predictors[:, some], *data[:, some]], [None] * len(data)
            meeting = {node: rows[some] for node, rows in joined.items()}
            found[some] = self._along(at, [*gradients[:, some], *stay], limit, meeting)
        return found

    def _sharp(self, values: Sequence[Enclosure], moves: np.ndarray) -> np.ndarray:
        """Bound by derivatives; in parts of the box of one or two predictors where that pays."""
        whole = self._combined(values, moves)
        if len(moves) > len(_PARTS):
            return whole
        step = max(whole.size // _LOOKED_AT, 1)
        some = [Enclosure(x.low[::step], x.high[::step]) for x in values]
        few = self._in_parts(some, moves[:, ::step])
        if np.mean(few < _SHARPER * whole[::step]) < _SHARE:
            return whole
        return np.fmin(whole, self._in_parts(values, moves))

    def _in_parts(self, values: Sequence[Enclosure], moves: np.ndarray) -> np.ndarray:
        found, size = np.zeros(moves.shape[1]), len(moves)
        shares = np.linspace(0.0, 1.0, _PARTS[size - 1] + 1)[:, None]
        with np.errstate(invalid="ignore"):
            edges = [x.low + shares * (x.high - x.low) for x in values[:size]]
        for part in product(*map(pairwise, edges)):
            box = [Enclosure(*ends) for ends in part]
            np.maximum(found, self._combined([*box, *values[size:]], moves), out=found)
        return found

    def _combined(self, values: Sequence[Enclosure], moves: np.ndarray) -> np.ndarray:
        assert self._enclosed is not None
        return combined(self._which, self._enclosed(values), moves)


def within_their_span(gradients: np.ndarray) -> np.ndarray:
    """Return gradients, (E, m, d), in at most E dimensions, of the same lengths and angles."""
    count, _, size = gradients.shape
    if size <= count:
        return gradients
    triangular = np.linalg.qr(gradients.transpose(1, 2, 0), mode="r")
    return np.ascontiguousarray(triangular.transpose(2, 0, 1))


def combined(
    which: Sequence[tuple[int, ...]], sizes: Sequence[Enclosure], moves: np.ndarray
) -> np.ndarray:
    """Bound a coefficient along all directions, by derivatives in predictors e <= f <= g."""
    total = np.zeros(moves.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        for predictors, values in zip(which, sizes, strict=True):
            reach = np.prod(moves[list(predictors)], axis=0)
            total += np.where(reach > 0, values.size, 0.0) * reach / multiplicity(predictors)
    # Zero times infinity is no bound.
    return np.where(np.isnan(total), np.inf, total)


def multiplicity(which: Sequence[int]) -> float:
    """Return what divides a derivative in these predictors, as a Taylor coefficient."""
    return float(math.prod(math.factorial(k) for k in Counter(which).values()))
