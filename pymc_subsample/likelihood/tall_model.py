"""A PyMC model seen as a prior, a set of rows and the log-likelihood of one row."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.xtensor.type import XTensorType

from pymc_subsample.likelihood.batch import BatchGraph, batch_graph
from pymc_subsample.likelihood.checks import sort_checks, split_checks
from pymc_subsample.likelihood.columns import column_graph, row_number_test
from pymc_subsample.likelihood.discovery import (
    find_rows,
    full_data_model,
    refuse_imputed,
    row_terms,
)
from pymc_subsample.likelihood.errors import CoupledRows, TallModelError, op_name
from pymc_subsample.likelihood.graph import (
    concretize,
    depends_on,
    evaluate,
    freeze,
    numpy_function,
    rebuild,
)
from pymc_subsample.likelihood.lifting import lifted
from pymc_subsample.likelihood.simplify import simplified
from pymc_subsample.likelihood.trace import RowTrace
from pymc_subsample.likelihood.verification import (
    check_batches,
    check_sizes,
    check_start,
    units,
    warn_about_deterministics,
    warn_about_whole_terms,
)
from pymc_subsample.rows import RowStore, glimpse


class TallModel:
    """A model whose log-likelihood is a sum over rows.

    The log posterior is ``logprior(theta) + sum_i loglik_i(phi(theta))``, where theta is the
    vector of all value variables (PyMC's unconstrained space, PyMC's order, Jacobians in the
    prior) and phi are the parameter-only quantities that meet a row column, after any transform.

    Parameters
    ----------
    model : pymc.Model
        Any model with conditionally independent rows. `pm.Minibatch` is undone: the full data
        behind it are the rows. Data are read now: a later `pm.set_data` needs a new `TallModel`.
    observed : sequence of str or Variable, optional
        Observed variables and potentials to subsample. Default: all that share the longest
        row axis.
    dim : str, optional
        Name of the rows' dimension, where lengths leave it ambiguous.
    binary : sequence of str, optional
        Names of value variables that are 0 or 1 and will be sampled one element at a time. There
        may be as many of them as rows, as long as rows gather them by an index; the checks of the
        batch graph draw them at random.
    initial_point : dict, optional
        Start, as values of some value variables (unconstrained), in place of the model's own.
        Prior and rows are checked there.

    Attributes
    ----------
    n_rows : int
        Number of rows.
    observed : tuple of str
        Names of the subsampled variables.
    model : pymc.Model
        The model, without `pm.Minibatch`.
    value_vars : list of Variable
        Value variables, in the order of the model.
    names, shapes, slices : list
        Name, shape and position in theta of each value variable.
    size, phi_size : int
        Length of theta and of phi.
    initial_point : dict of str to ndarray
        Start, of all value variables.
    discrete : list of str
        Names of the value variables that are integers.
    batch : BatchGraph
        Log-likelihood of a batch of rows, shape (m,), over phi and data-only columns.
    rows : RowStore
        The raw columns.
    raw, raw_axes : list
        Inputs that stand for a batch of each raw column, and their row axes.
    derived : dict of Variable to Variable
        Columns of the batch graph as functions of the raw columns.

    Raises
    ------
    TallModelError
        If the rows cannot be found or are not independent; names the variable and the Op.
    """

    def __init__(
        self,
        model: pm.Model,
        observed: Sequence[str | Variable] | None = None,
        dim: str | None = None,
        binary: Sequence[str] = (),
        initial_point: Mapping[str, np.ndarray] | None = None,
    ):
        self.binary = tuple(binary)
        order = [v.name for v in model.value_vars]
        self.initial_point = _started(model.initial_point(), initial_point or {})
        model = full_data_model(model)
        refuse_imputed(model)
        self.model = model
        self.value_vars = sorted(model.value_vars, key=lambda v: order.index(v.name))
        self.discrete = [v.name for v in model.discrete_value_vars]
        self._lay_out_theta()

        terms = row_terms(model, observed)
        graphs = model.logp(vars=list(terms.values()), sum=False)
        graphs = [g.values if isinstance(g.type, XTensorType) else g for g in graphs]
        prior = model.logp(vars=model.free_RVs) if model.free_RVs else pt.constant(0.0)
        try:
            concrete = concretize([*graphs, prior], self.value_vars, self.initial_point)
        except ValueError as error:
            raise TallModelError(
                f"The shapes of {', '.join(map(repr, terms))} and of the data do not fit together "
                f"({error}). Check the number of rows of every column."
            ) from error
        self._arrays, self._values = concrete.arrays, concrete.values
        [*graphs, prior], checks = split_checks(concrete.outputs)

        by_name = dict(zip(terms, graphs, strict=True))
        self.n_rows, row_axes = find_rows(model, by_name, observed, dim)
        self.observed = tuple(row_axes)
        rows = [by_name[name] for name in row_axes]
        whole = {name: graph.sum() for name, graph in by_name.items() if name not in row_axes}

        dependent = depends_on(rows, self._values)
        rows = lifted(rows, dependent, self._arrays, self.n_rows)
        dependent = depends_on([*rows, prior, *(c.condition for c in checks)], self._values)
        trace = self._trace(model, rows, list(row_axes.values()), dependent)
        guards, conditions = sort_checks(
            checks, trace, dependent, self._arrays, self.n_rows, self.observed
        )
        axes = [*row_axes.values(), *(axis for _, axis in guards)]
        graphs = [*rows, *(condition for condition, _ in guards)]
        try:
            batch = batch_graph(graphs, trace, dependent, self._arrays)
        except CoupledRows as error:
            raise error.refusal(self.observed[0]) from None
        logprior = sum(whole.values(), prior)
        for condition in conditions:
            logprior = pt.switch(condition, logprior, -np.inf)
        self._place_parameters(batch, logprior)
        self._place_columns(batch, trace.axes)
        batch_rows = _per_row(batch.outputs, axes, len(rows))
        written = numpy_function([self.theta, *self.raw], [self._over_theta(batch_rows)])
        self._functions: dict[str, Callable] = {"as written": written}
        self.batch = simplified(batch_rows, batch)
        check_sizes(self)
        check_start(self, self.loglik_as_written)
        all_rows = _per_row(graphs, axes, len(rows))
        check_batches(self, self.loglik_as_written, all_rows, self._values, self._arrays)
        warn_about_deterministics(model, self)
        warn_about_whole_terms(whole, self._arrays, self.n_rows)

    def _lay_out_theta(self):
        self.names = [v.name for v in self.value_vars]
        self.shapes = [np.shape(self.initial_point[name]) for name in self.names]
        self.slices, self.size = _consecutive(self.shapes)
        self.theta = pt.tensor("theta", dtype="float64", shape=(self.size,))

    def _trace(self, model, graphs, axes, dependent) -> RowTrace:
        trace = RowTrace(lambda v: v not in dependent, row_number_test(self._arrays))
        if self.binary:
            values = zip(self._values, self.value_vars, strict=True)
            others = depends_on(graphs, [v for v, x in values if x.name not in self.binary])
        else:
            others = dependent
        for name, graph, axis in zip(self.observed, graphs, axes, strict=True):
            try:
                trace.follow(graph, axis)
                self._refuse_latents(model, trace)
                trace.refuse_reductions(others, self.n_rows)
            except CoupledRows as error:
                raise error.refusal(name) from None
        return trace

    def _refuse_latents(self, model, trace):
        for value, var in zip(self._values, self.value_vars, strict=True):
            alike = self.n_rows in value.type.shape and var.name not in self.binary
            if value in trace.axes or alike:
                rv = model.values_to_rvs[var]
                raise TallModelError(
                    f"Free variable {rv.name!r} ({op_name(rv.owner.op)}) has one element per row "
                    f"(shape {value.type.shape}, {self.n_rows} rows): with a latent variable per "
                    "row the rows cannot be subsampled. Marginalise it, or index group-level "
                    "parameters with an integer column."
                )

    def _place_parameters(self, batch: BatchGraph, logprior: Variable):
        """Lay the parameters out in one vector phi and express phi and the prior in theta."""
        for new, old in batch.parameters.items():
            if None in new.type.shape:
                raise TallModelError(
                    f"The length of parameter {old.name or old!s} is not known before sampling; "
                    "give it a fixed shape."
                )
        slices, self.phi_size = _consecutive([new.type.shape for new in batch.parameters])
        self.phi_slices = dict(zip(batch.parameters, slices, strict=True))
        outputs = [*batch.parameters.values(), logprior]
        memo: dict[Variable, Variable] = {
            value: _part(self.theta, place, value)
            for value, place in zip(self._values, self.slices, strict=True)
        }
        memo |= freeze(outputs, depends_on(outputs, self._values), self._arrays)
        self.value_graphs = [memo[value] for value in self._values]
        *phi, logprior = rebuild(outputs, memo)
        self.logprior_graph = logprior.astype("float64")
        self.phi_graphs = [p.astype("float64") for p in phi]

    def _place_columns(self, batch: BatchGraph, axes: Mapping[Variable, int]):
        """Find the raw columns on which the batch graph's data depend."""
        arrays = dict(self._arrays)
        old = list(batch.columns.values())
        columns = column_graph(old, [axes[v] for v in old], arrays)
        self.raw = list(columns.columns)
        self.raw_axes = [columns.axes[v] for v in self.raw]
        values = [arrays[columns.columns[v]] for v in self.raw]
        values = [np.moveaxis(x, axis, 0) for x, axis in zip(values, self.raw_axes, strict=True)]
        self.rows = RowStore(values, self.n_rows)
        self.derived = dict(zip(batch.columns, columns.outputs, strict=True))

    def column(self, var: Variable) -> np.ndarray:
        """Return the value over all rows of a data-only variable of the batch graph."""
        [graph] = rebuild([var], dict(self.batch.columns))
        [value] = evaluate([graph], self._arrays)
        return value

    def column_batches(self, var: Variable) -> Iterator[np.ndarray]:
        """Yield the value of a data-only variable of the batch graph, some rows at a time."""
        [graph] = rebuild([var], dict(self.derived))
        function = numpy_function(self.raw, [graph])
        for columns in self.rows.chunks(self.rows.batch_size()):
            yield function(*self._rows_on_axis(columns))[0]

    def over_theta(self, graphs: Sequence[Variable]) -> list[Variable]:
        """Return graphs of the model's random variables as graphs of theta."""
        graphs = self.model.replace_rvs_by_values(list(graphs))
        concrete = concretize(graphs, self.value_vars, self.initial_point)
        outputs, _ = split_checks(concrete.outputs)
        memo = dict(zip(concrete.values, self.value_graphs, strict=True))
        memo |= freeze(outputs, depends_on(outputs, concrete.values), concrete.arrays)
        return [graph.astype("float64") for graph in rebuild(outputs, memo)]

    def glimpses(self) -> dict[str, bytes]:
        """Return a digest of the content of each array of the model, by its name or shape."""
        found: dict[str, bytes] = {}
        for var, array in self._arrays.items():
            name = repr(var.name) if var.name else f"an array of shape {array.shape}"
            found[name] = found.get(name, b"") + glimpse(array)
        return found

    # Evaluation for checks and tests: plain Python, no compilation.

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

    def logprior(self, theta: np.ndarray) -> float:
        """Log density of everything but the rows: priors, Jacobians, small observed variables."""
        return float(self._evaluate("prior", lambda: self.logprior_graph, theta))

    def row_loglik(self, theta: np.ndarray, index: np.ndarray | slice) -> np.ndarray:
        """Log-likelihood of the rows `index`, shape (m,)."""
        return self._evaluate("rows", self.row_graph, theta, index)

    def loglik_as_written(self, theta: np.ndarray, index: np.ndarray | slice) -> np.ndarray:
        """Log-likelihood of the rows `index`, shape (m,), by the model's own Ops: a check."""
        return self._functions["as written"](theta, *self._raw_batch(index))[0]

    def row_loglik_grad(self, theta: np.ndarray, index: np.ndarray | slice) -> np.ndarray:
        """Gradient with respect to theta, shape (d,), of the sum of `row_loglik`."""

        def gradient():
            return pt.grad(self.row_graph().sum(), self.theta)

        return self._evaluate("gradient", gradient, theta, index)

    def weighted_gradient(
        self, theta: np.ndarray, index: np.ndarray, weights: np.ndarray
    ) -> np.ndarray:
        """Gradient, shape (d,), of `row_loglik` times weights, shape (m,)."""
        if "weighted" not in self._functions:
            weight = pt.vector("weight")
            gradient = pt.grad((weight * self.row_graph()).sum(), self.theta)
            self._functions["weighted"] = numpy_function(
                [self.theta, weight, *self.raw], [gradient]
            )
        return self._functions["weighted"](theta, weights, *self._raw_batch(index))[0]

    @cached_property
    def units(self) -> np.ndarray:
        """How far each element of theta may go from the start for a check, shape (d,)."""
        return units(self)

    def _evaluate(self, name, graph, theta, index=slice(0)):
        if name not in self._functions:
            self._functions[name] = numpy_function([self.theta, *self.raw], [graph()])
        return self._functions[name](theta, *self._raw_batch(index))[0]

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

    def _raw_batch(self, index):
        return self._rows_on_axis(self.rows.take(index))

    def _rows_on_axis(self, columns):
        return [np.moveaxis(x, 0, axis) for x, axis in zip(columns, self.raw_axes, strict=True)]


def _started(start: dict[str, np.ndarray], given: Mapping[str, np.ndarray]):
    for name, value in given.items():
        if name not in start:
            raise ValueError(
                f"initial_point holds {name!r}, which is not a value variable of the model. Those "
                f"are {list(start)}."
            )
        old, new = np.asarray(start[name]), np.asarray(value)
        if new.shape != old.shape:
            raise ValueError(
                f"initial_point[{name!r}] has shape {new.shape}; the variable has {old.shape}."
            )
        start[name] = new.astype(old.dtype)
        if np.any(start[name] != new) and old.dtype.kind in "iu":
            raise ValueError(f"initial_point[{name!r}] must be whole, got {new}.")
    return start


def _consecutive(shapes) -> tuple[list[slice], int]:
    """Return the places of arrays laid out one after the other, and their total size."""
    sizes = [int(np.prod(shape, dtype=int)) for shape in shapes]
    stops = np.cumsum([0, *sizes]).tolist()
    return [slice(a, b) for a, b in pairwise(stops)], stops[-1]


def _part(vector: Variable, place: slice, like: Variable) -> Variable:
    return vector[place].reshape(like.type.shape).astype(like.type.dtype)


def _per_row(graphs: Sequence[Variable], axes: Sequence[int], n_terms: int) -> Variable:
    """Add `n_terms` log-likelihoods per row; -inf where one of the conditions that follow fails."""
    vectors: list[Variable] = []
    for graph, axis in zip(graphs, axes, strict=True):
        others = tuple(i for i in range(graph.type.ndim) if i != axis)
        reduce = pt.sum if len(vectors) < n_terms else pt.all
        vectors.append(reduce(graph, axis=others) if others else graph)
    rows = sum(vectors[1:n_terms], vectors[0])
    for holds in vectors[n_terms:]:
        rows = pt.switch(holds, rows, -np.inf)
    return rows
