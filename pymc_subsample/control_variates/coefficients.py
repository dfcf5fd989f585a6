"""Bounds on what the Taylor expansion of a row leaves, while its predictors move."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from pytensor.graph.basic import Apply, Variable

from pymc_subsample.symbolic.graph import elemwise_name, is_constant, numpy_function, rebuild
from pymc_subsample.symbolic.interpreter import NoForm
from pymc_subsample.symbolic.intervals import Enclosure, enclose
from pymc_subsample.symbolic.jets import enclose_coefficient

# Of a row's predictors, at which its conditions are looked at.
_POINTS = 16


class Coefficients:
    r"""Bounds of a log-likelihood's Taylor coefficients of order k, row by row.

    While predictor e is at most :math:`t a_e` from where it was, the remainder of order k - 1 is at
    most :math:`t^k` times the largest size of the coefficient
    :math:`\frac{1}{k!} \frac{d^k}{ds^k} l(\eta + s v)`, :math:`|v_e| \le a_e`.

    Parameters
    ----------
    loglik : Variable
        The rows' log-likelihood, a vector graph of `predictors` and `data`.
    predictors, data : sequence of Variable
        Its inputs.
    which, derivatives
        By which predictors the log-likelihood is differentiated k times, and the results. As
        PyTensor simplifies them, those of one or two predictors are enclosed more sharply than
        coefficients along all directions at once.
    order : int
        k.
    """

    def __init__(
        self,
        loglik: Variable,
        predictors: Sequence[Variable],
        data: Sequence[Variable],
        order: int,
        which: Sequence[tuple[int, ...]] = (),
        derivatives: Sequence[Variable] = (),
    ):
        inputs = [*predictors, *data]
        self._which = which
        free, guards = _without_guards(loglik)
        self._guards = numpy_function(inputs, guards) if guards else None
        self._along = enclose_coefficient(free, inputs, order)
        self._enclosed = enclose(derivatives, inputs) if which else None

    def __call__(
        self, predictors: np.ndarray, data: np.ndarray, moves: np.ndarray, limit: float
    ) -> np.ndarray:
        """Return a bound per row, infinite where none is found.

        `predictors` and `moves`, a, have shape (E, m), `data` (k, m); `limit` is the largest t.
        """
        far = limit * moves
        low, high = predictors - far, predictors + far
        values = [Enclosure(*ends) for ends in zip(low, high, strict=True)]
        values += [Enclosure(x, x) for x in data]
        total = np.full(predictors.shape[1], np.inf)
        if self._enclosed is not None:
            try:
                total = combined(self._which, self._enclosed(values), moves)
            except NoForm:
                self._enclosed = None
        if np.all(np.isfinite(total)):
            return total
        directions = [Enclosure(-a, a) for a in moves] + [None] * len(data)
        try:
            along = self._along(values, directions)
        except NoForm:
            return total
        held = self._held(predictors, data, far)
        return np.where(held, np.fmin(total, along), np.inf)

    def _held(self, predictors: np.ndarray, data: np.ndarray, far: np.ndarray) -> np.ndarray:
        """Whether rows keep to the model's conditions at corners of the box, and within."""
        held = np.ones(predictors.shape[1], dtype=bool)
        if self._guards is None:
            return held
        rng = np.random.default_rng(0)
        for k in range(_POINTS):
            z = rng.uniform(-1.0, 1.0, size=far.shape)
            at = predictors + far * (np.sign(z) if k % 2 else z)
            for condition in self._guards(*at, *data):
                held &= np.asarray(condition, dtype=bool)
        return held


def _without_guards(loglik: Variable) -> tuple[Variable, list[Variable]]:
    """Take out conditions of rows' parameters, beyond which the log-likelihood is -inf.

    Intervals cannot tell that they hold, as that probabilities add up to one.
    """
    guards: list[Variable] = []

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if elemwise_name(node) != "Switch" or not is_constant(inputs[2], -np.inf):
            return None
        condition, value, _ = inputs
        if condition.type.ndim > 1 or value.type != node.outputs[0].type:
            return None
        guards.append(condition)
        return [value]

    [free] = rebuild([loglik], {}, hook)
    return free, guards


def combined(
    which: Sequence[tuple[int, ...]], sizes: Sequence[Enclosure], moves: np.ndarray
) -> np.ndarray:
    """Bound a coefficient along all directions, by derivatives in predictors e <= f <= g."""
    total = np.zeros(moves.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        for predictors, values in zip(which, sizes, strict=True):
            weight = math.prod(math.factorial(k) for k in Counter(predictors).values())
            reach = np.prod(moves[list(predictors)], axis=0)
            total += np.where(reach > 0, values.size, 0.0) * reach / weight
    # Zero times infinity is no bound.
    return np.where(np.isnan(total), np.inf, total)
