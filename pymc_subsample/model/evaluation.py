"""Prior and rows of a model evaluated for checks and tests: plain Python, no compilation."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable

from pymc_subsample.graph.concrete import UNDIFFERENTIABLE, rebuild, stable
from pymc_subsample.graph.nodes import elemwise_name
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.model.batch import BatchGraph
from pymc_subsample.rows.columns import StoredColumn
from pymc_subsample.rows.row_store import RowStore
from pymc_subsample.rows.workers import current

if TYPE_CHECKING:
    from pymc_subsample.model.qr import QR

_WEIGHTS = pt.vector("weights")
# Rows and random signs by which units are found, and the share of its size by which a row changes.
_UNIT_ROWS, _SIGNS, SHARE = 200, 8, 0.1
# Below it, products of 1e16 and less have factors that have lost digits to underflow.
_DENORMAL = float(np.finfo(float).tiny / np.finfo(float).eps)


class Vector:
    """Value variables of a model, one after the other in a vector theta.

    `point` is any, in the order of the vector; `slices` are the places of the variables, and `size`
    is d.
    """

    def __init__(self, point: Mapping[str, np.ndarray]) -> None:
        self.lay_out(point)

    def lay_out(self, point: Mapping[str, np.ndarray]) -> None:
        """Place the variables of a point."""
        self.names, self.shapes = list(point), [np.shape(x) for x in point.values()]
        self.slices, self.size = consecutive(self.shapes)

    def ravel(self, point: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return theta, shape (d,), for a point of value variables."""
        parts = [np.ravel(np.asarray(point[name], dtype=float)) for name in self.names]
        return np.concatenate([*parts, np.zeros(0)])

    def unravel(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Return the point of value variables for theta, shape (d,)."""
        return {
            name: theta[place].reshape(shape)
            for name, place, shape in zip(self.names, self.slices, self.shapes, strict=True)
        }


class Evaluation(Vector):
    """What `TallModel` lays out, evaluated."""

    model: pm.Model  # Without `pm.Minibatch`.
    value_vars: list[Variable]  # In the order of the model, as names, shapes and slices are.
    initial_point: dict[str, np.ndarray]
    discrete: list[str]  # Names of value variables that are integers,
    binary: tuple[str, ...]  # and that are 0 or 1.
    bound: dict[Variable, StoredColumn]  # What takes the place of some of the model's data.
    likelihood: tuple[str, ...]  # Names of all subsampled variables together,
    n_rows: int  # and their rows.
    theta: Variable
    logprior_graph: Variable
    phi_graphs: list[Variable]  # Parameters of the batch graph as functions of theta,
    phi_slices: dict[Variable, slice]  # and the place of each in phi.
    qr: "QR | None" = None  # What rows see in the place of some of phi, once it is chosen.
    batch: BatchGraph  # Log-likelihood of a batch, shape (m,), over phi and data-only columns.
    rows: RowStore  # The raw columns.
    raw: list[Variable]  # Inputs that stand for a batch of each raw column,
    raw_axes: list[int]  # their row axes,
    raw_roots: list[dict[int, Variable]]  # and the model's data that it is, by kind of rows.
    derived: dict[Variable, Variable]  # Columns of the batch graph as functions of the raw ones.
    roots: dict[Variable, Variable]  # Data that placeholders stand for,
    read_by_rows: list[Variable]  # and those placeholders that rows read.
    _as_written: Variable
    _functions: dict[str, Callable]
    _stable = False
    # The same without `lift`, where that makes a difference.
    _plain: "Evaluation | None"

    def over_column(
        self, var: Variable, work: Callable[[np.ndarray], Any], begin: int = 0
    ) -> Iterator[Any]:
        """Yield ``work(value)`` of a data-only variable of the batch graph, in batches of rows."""
        [graph] = rebuild([var], dict(self.derived))
        function = numpy_function(self.raw, [graph])
        slices = self.rows.slices(self.rows.batch_size(), begin)
        return current().map(lambda part: work(function(*self.raw_batch(part))[0]), slices)

    def logprior(self, theta: np.ndarray) -> float:
        """Log density of everything but the rows: priors, Jacobians, small observed variables."""
        return float(self._evaluate("prior", lambda: self.logprior_graph, theta))

    def row_loglik(self, theta: np.ndarray, index: np.ndarray | slice) -> np.ndarray:
        """Log-likelihood of the rows `index`, shape (m,)."""
        return self._evaluate("rows", self.row_graph, theta, index)

    def loglik_as_written(self, theta: np.ndarray, index: np.ndarray | slice) -> np.ndarray:
        """Log-likelihood of the rows `index`, shape (m,), by the model's own Ops: a check."""
        if self._plain is not None:
            return self._plain.loglik_as_written(theta, index)
        return self._evaluate("written", lambda: self._over_theta(self._as_written), theta, index)

    def stabilise(self) -> bool:
        """Have PyTensor write `loglik_as_written` in its stable form; False if it has already.

        By the model's own Ops log(1 - p) is rounding at a large predictor, where PyMC's functions
        are right. Rows are NaN where exponentials have lost digits to underflow.
        """
        if self._plain is not None:
            return self._plain.stabilise()
        done, self._stable = self._stable, True
        if not done:
            graph = stable(self._over_theta(self._as_written))
            [graph] = rebuild([graph], {}, _with_digits)
            self._functions["written"] = numpy_function([self.theta, *self.raw], [graph])
        return not done

    def loglik_of(self, theta: np.ndarray, columns: Sequence[np.ndarray]) -> np.ndarray:
        """Log-likelihood, shape (m,), of rows that are given as raw columns, rows first."""
        return self._function("rows", self.row_graph)(theta, *self._rows_on_axis(columns))[0]

    def weighted_gradient(
        self, theta: np.ndarray, index: np.ndarray | slice, weights: np.ndarray
    ) -> np.ndarray:
        """Gradient, shape (d,), of `row_loglik` times weights, shape (m,)."""

        def gradient() -> Variable:
            total = (_WEIGHTS * self.row_graph()).sum()
            return pt.grad(total, self.theta, disconnected_inputs="ignore")

        return self._evaluate("gradient", gradient, theta, index, {_WEIGHTS: weights})

    def log_posteriors(self, thetas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log posterior and gradient at points theta, (k, d): rows are read once for all."""

        def function(graph: Variable, *columns: Variable) -> Callable:
            gradient = pt.grad(graph, self.theta, disconnected_inputs="ignore")
            return numpy_function([self.theta, *columns], [graph, gradient])

        prior, rows = function(self.logprior_graph), function(self.row_graph().sum(), *self.raw)

        def of_rows(part: slice) -> list[list[np.ndarray]]:
            columns = self.raw_batch(part)
            return [rows(theta, *columns) for theta in thetas]

        parts = current().map(of_rows, self.rows.slices(self.rows.batch_size()))
        found = [[prior(theta) for theta in thetas], *parts]
        level, slope = (np.sum([[x[i] for x in part] for part in found], axis=0) for i in (0, 1))
        return level, slope

    def _evaluate(
        self,
        name: str,
        graph: Callable[[], Variable],
        theta: np.ndarray,
        index: slice | np.ndarray = slice(0),
        more: Mapping[Variable, np.ndarray] = MappingProxyType({}),
    ) -> np.ndarray:
        function = self._function(name, graph, *more)
        return function(theta, *self.raw_batch(index), *more.values())[0]

    def _function(self, name: str, graph: Callable[[], Variable], *more: Variable) -> Callable:
        if name not in self._functions:
            self._functions[name] = numpy_function([self.theta, *self.raw, *more], [graph()])
        return self._functions[name]

    @cached_property
    def units(self) -> np.ndarray:
        """How far each element of theta may go from the start for a check, shape (d,).

        At most 1, and so far that the log-likelihood of a row changes by about 1 and a tenth of
        its size, whatever the units of its column: further away it may overflow, nearer by a change
        could not be told from rounding. Zero for discrete elements.
        """
        parts = {
            n: np.full(s, n not in self.discrete)
            for n, s in zip(self.names, self.shapes, strict=True)
        }
        continuous = self.ravel(parts)
        rng = np.random.default_rng(2)
        theta, index = self.ravel(self.initial_point), rng.integers(0, self.n_rows, _UNIT_ROWS)
        # With random signs, rows do not cancel. A change is told by its size beside the row's own.
        level = np.nan_to_num(abs(self.loglik_as_written(theta, index)), posinf=0.0)
        signs = rng.choice([-1.0, 1.0], (_SIGNS, _UNIT_ROWS)) / (1.0 + SHARE * level)
        try:
            slopes = np.array([self.weighted_gradient(theta, index, weights) for weights in signs])
        except UNDIFFERENTIABLE:
            return continuous  # a model without gradients, which some samplers need not have
        slopes = np.where(np.isfinite(slopes), slopes, 0.0)
        size = np.sqrt(np.mean(slopes**2, axis=0) / _UNIT_ROWS)
        return continuous / np.maximum(size, 1.0)

    def row_graph(self) -> Variable:
        """Return the log-likelihood of a batch as a graph of theta and the raw columns."""
        return self._over_theta(self.batch.outputs[0])

    def _over_theta(self, rows: Variable) -> Variable:
        parameters = {
            new: graph.astype(new.type.dtype)
            for new, graph in zip(self.phi_slices, self.phi_graphs, strict=True)
        }
        [graph] = rebuild([rows], parameters | self.derived)
        return graph

    def raw_batch(self, index: slice | np.ndarray) -> list[np.ndarray]:
        """Return the raw columns of some rows, along the axes that graphs have them on."""
        return self._rows_on_axis(self.rows.take(index))

    def _rows_on_axis(self, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.moveaxis(x, 0, axis) for x, axis in zip(columns, self.raw_axes, strict=True)]


def _with_digits(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
    """Replace exponentials that have lost digits to underflow, and logarithms of their products."""
    if elemwise_name(node) not in ("Exp", "Log"):
        return None
    [x], [value] = inputs, node.op.make_node(*inputs).outputs
    lost = x < _DENORMAL if elemwise_name(node) == "Log" else (value > 0) & (value < _DENORMAL)
    return [pt.switch(lost, np.nan, value)]


def consecutive(shapes: Sequence[tuple[int, ...]]) -> tuple[list[slice], int]:
    """Return the places of arrays laid out one after the other, and their total size."""
    sizes = [int(np.prod(shape, dtype=int)) for shape in shapes]
    stops = np.cumsum([0, *sizes]).tolist()
    return [slice(a, b) for a, b in pairwise(stops)], stops[-1]
