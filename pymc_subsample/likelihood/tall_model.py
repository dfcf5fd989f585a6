"""A PyMC model seen as a prior, a set of rows and the log-likelihood of one row."""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.data import MinibatchOp
from pymc.distributions.distribution import PartialObservedRV
from pymc.model.fgraph import fgraph_from_model, model_from_fgraph
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import MergeOptimizer
from pytensor.graph.traversal import ancestors, toposort
from pytensor.xtensor.type import XTensorType

from pymc_subsample.likelihood.batch import (
    BatchGraph,
    batch_graph,
    column_graph,
    row_number_test,
    simplified,
)
from pymc_subsample.likelihood.errors import CoupledRows, TallModelError, op_name
from pymc_subsample.likelihood.graph import (
    PYTHON_MODE,
    Check,
    ConcreteGraph,
    concretize,
    depends_on,
    elemwise_name,
    evaluate,
    rebuild,
    split_checks,
)
from pymc_subsample.likelihood.predictors import Column
from pymc_subsample.likelihood.trace import trace_rows
from pymc_subsample.rows import RowStore

_CHECK_ROWS = 100_000


class TallModel:
    """A model whose log-likelihood is a sum over rows.

    The log posterior is ``logprior(theta) + sum_i loglik_i(phi(theta))``, where theta is the
    vector of all value variables (PyMC's unconstrained space, PyMC's order, Jacobians in the
    prior) and phi are the parameter-only quantities that meet a row column, after any transform.

    Parameters
    ----------
    model : pymc.Model
        Any model with conditionally independent rows. `pm.Minibatch` is undone: the full data
        behind it are the rows.
    observed : sequence of str or Variable, optional
        Observed variables and potentials to subsample. Default: all that share the longest
        row axis.
    dim : str, optional
        Name of the rows' dimension, where lengths leave it ambiguous.

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
    ):
        model = _without_minibatch(model)
        _refuse_imputed(model)
        self.value_vars = list(model.value_vars)
        self.initial_point = model.initial_point()
        self.names = [v.name for v in self.value_vars]
        self.shapes = [np.shape(self.initial_point[name]) for name in self.names]
        sizes = [int(np.prod(shape, dtype=int)) for shape in self.shapes]
        stops = np.cumsum(sizes, dtype=int)
        self.slices = [slice(b - s, b) for b, s in zip(stops.tolist(), sizes, strict=True)]
        self.size = int(stops[-1]) if sizes else 0
        self.discrete = [v.name for v in model.discrete_value_vars]

        candidates, concrete = self._concrete(model, observed)
        graphs, checks = split_checks(concrete.outputs)
        graphs, checks = _merged(graphs, checks)
        row_graphs, prior = dict(zip(candidates, graphs[:-1], strict=True)), graphs[-1]
        self.n_rows, axes = _find_rows(model, row_graphs, observed, dim)
        self.observed = tuple(axes)
        self._arrays = dict(concrete.arrays)
        self._values = concrete.values
        self._trace(model, {name: row_graphs[name] for name in axes}, axes, prior, checks, row_graphs)
        self._check_rows()
        _warn_about_deterministics(model, self)

    def _concrete(self, model, observed) -> tuple[list[str], ConcreteGraph]:
        likelihood = {v.name: v for v in [*model.observed_RVs, *model.potentials]}
        if not likelihood:
            raise TallModelError(
                "The model has no observed variable and no potential: there are no rows to "
                "subsample. Give a variable `observed=` data."
            )
        for name in map(_name, observed or ()):
            if name not in likelihood:
                raise TallModelError(
                    f"observed={name!r} is not an observed variable or potential of the model; "
                    f"it has {sorted(likelihood)}."
                )
        rows = model.logp(vars=list(likelihood.values()), sum=False)
        rows = [v.values if isinstance(v.type, XTensorType) else v for v in rows]
        prior = model.logp(vars=model.free_RVs) if model.free_RVs else pt.constant(0.0)
        return list(likelihood), concretize([*rows, prior], self.value_vars, self.initial_point)

    def _trace(self, model, graphs, row_axis, prior, checks, all_graphs):
        outputs = list(graphs.values())
        conditions = [c for check in checks for c in check.conditions]
        dependent = depends_on([*outputs, prior, *conditions], self._values)
        axes: dict[Variable, int] = {}
        row_numbers: set[Variable] = set()
        is_row_number = row_number_test(self._arrays)
        owner_of: dict[Variable, str] = {}
        for name, graph in graphs.items():
            traced = self._trace_one(name, graph, row_axis[name], dependent, is_row_number)
            for var, axis in traced[0].items():
                if axes.setdefault(var, axis) != axis:
                    raise _coupled(name, CoupledRows(var.owner))
                owner_of.setdefault(var, name)
            row_numbers |= traced[1]
        self._refuse_latents(model, axes)
        self._refuse_reductions(axes, dependent, owner_of)

        guards, scalar_guards = self._guards(checks, axes, dependent, row_numbers, is_row_number)
        try:
            batch = batch_graph(
                [*outputs, *(g for g, _ in guards)], axes, row_numbers, dependent, self._arrays
            )
        except CoupledRows as error:
            raise _coupled(self.observed[0], error) from None
        self._data_conditions = batch.support
        rows = sum(
            _sum_rows(g, row_axis[name])
            for g, name in zip(batch.outputs[: len(outputs)], graphs, strict=True)
        )
        for graph, (_, axis) in zip(batch.outputs[len(outputs) :], guards, strict=True):
            graph = pt.moveaxis(graph, axis, 0)
            ok = graph.all(axis=tuple(range(1, graph.ndim))) if graph.ndim > 1 else graph
            rows = pt.switch(ok, rows, -np.inf)
        self.batch = simplified(rows, batch)
        rest = [g.sum() for name, g in all_graphs.items() if name not in graphs]
        self._logprior = prior + sum(rest)
        for guard in scalar_guards:
            self._logprior = pt.switch(guard, self._logprior, -np.inf)
        self._place_parameters()
        self._place_columns(axes)

    def _trace_one(self, name, graph, axis, dependent, is_row_number):
        try:
            return trace_rows([(graph, axis)], lambda v: v not in dependent, is_row_number)
        except CoupledRows as error:
            raise _coupled(name, error) from None

    def _refuse_latents(self, model, axes):
        for value, var in zip(self._values, self.value_vars, strict=True):
            if value in axes or self.n_rows in value.type.shape:
                rv = model.values_to_rvs[var]
                raise TallModelError(
                    f"Free variable {rv.name!r} ({op_name(rv.owner.op)}) has one element per row "
                    f"(shape {value.type.shape}, {self.n_rows} rows): with a latent variable per "
                    "row the rows cannot be subsampled. Marginalise it, or index group-level "
                    "parameters with an integer column."
                )

    def _refuse_reductions(self, axes, dependent, owner_of):
        """Parameter-dependent quantities that are not per row must not read the rows."""
        labelled = [v for v in axes if v in dependent and v.owner is not None]
        for var in labelled:
            entries = [i for i in var.owner.inputs if i in dependent and i not in axes]
            for node in toposort(entries):
                touches = [
                    i for i in node.inputs if i in axes or self.n_rows in getattr(i.type, "shape", ())
                ]
                if node.outputs[0] in dependent and touches:
                    raise _coupled(owner_of[var], CoupledRows(_reducer(node, entries, self.n_rows)))

    def _guards(self, checks, axes, dependent, row_numbers, is_row_number):
        """Sort parameter checks into per-row conditions and conditions on parameters alone."""
        guards, scalars = [], []
        for check in checks:
            for condition in check.conditions:
                if condition not in dependent:
                    if not np.all(evaluate([condition], self._arrays)[0]):
                        raise TallModelError(
                            f"A parameter check of the model fails for its data: {check.message}."
                        )
                elif _always_true(condition, dependent):
                    continue
                elif any(v in axes and v in dependent for v in ancestors([condition])) or any(
                    self.n_rows in getattr(v.type, "shape", ()) for v in ancestors([condition])
                ):
                    guards.append(self._row_guard(condition, axes, dependent, row_numbers, is_row_number))
                else:
                    scalars.append(condition.all())
        return [g for g in guards if g is not None], scalars

    def _row_guard(self, condition, axes, dependent, row_numbers, is_row_number):
        for axis, length in enumerate(condition.type.shape):
            if length != self.n_rows:
                continue
            try:
                traced, numbers = trace_rows(
                    [(condition, axis)], lambda v: v not in dependent, is_row_number
                )
            except CoupledRows:
                continue
            if all(axes.get(v, a) == a for v, a in traced.items()):
                axes.update(traced)
                row_numbers |= numbers
                return condition, axis
        return None

    def _place_parameters(self):
        """Lay the parameters out in one vector phi and express phi and the prior in theta."""
        self.theta = pt.tensor("theta", dtype="float64", shape=(self.size,))
        self.phi_slices: dict[Variable, slice] = {}
        start = 0
        for new in self.batch.parameters:
            if None in new.type.shape:
                raise TallModelError(
                    f"The length of parameter {new.name or new!s} is not known before sampling; "
                    "give it a fixed shape."
                )
            stop = start + int(np.prod(new.type.shape, dtype=int))
            self.phi_slices[new] = slice(start, stop)
            start = stop
        self.phi_size = start
        memo: dict[Variable, Variable] = {
            value: self.theta[part].reshape(value.type.shape).astype(value.type.dtype)
            for value, part in zip(self._values, self.slices, strict=True)
        }
        memo |= {v: pt.constant(a) for v, a in self._arrays.items()}
        old = list(self.batch.parameters.values())
        *phi, logprior = rebuild([*old, self._logprior], memo)
        self.logprior_graph = logprior.astype("float64")
        self.phi_graph = (
            pt.concatenate([p.astype("float64").ravel() for p in phi]) if phi else pt.zeros(0)
        )

    def _place_columns(self, axes):
        """Find the raw columns on which the batch graph's data depend."""
        new = list(self.batch.columns)
        old = [self.batch.columns[v] for v in new]
        arrays = dict(self._arrays)
        columns = column_graph(old, [axes[v] for v in old], arrays)
        self.raw = list(columns.columns)
        raw_old = [columns.columns[v] for v in self.raw]
        self.rows = RowStore(
            [np.moveaxis(arrays[v], columns.axes[r], 0) for r, v in zip(self.raw, raw_old, strict=True)],
            self.n_rows,
        )
        self.raw = list(columns.columns)
        self.raw_axes = [columns.axes[v] for v in self.raw]
        # data-only inputs of the batch graph as functions of the raw columns
        self.derived = dict(zip(new, columns.outputs, strict=True))
        self._raw_of = dict(zip(raw_old, self.raw, strict=True))

    def column_minimum(self, column: Column) -> float:
        """Smallest value of a column of the batch graph over all rows."""
        if column.var not in self.batch.columns:
            return -np.inf
        [value] = evaluate([self.batch.columns[column.var]], self._arrays)
        return float(np.moveaxis(value, column.axis, 0).reshape(len(value), -1)[:, column.element].min())

    def _check_rows(self):
        """Evaluate every row at the initial point and name the rows that are not finite."""
        theta = self.ravel(self.initial_point)
        if not np.isfinite(self.logprior(theta)):
            raise TallModelError(
                "The log prior is not finite at the initial point "
                f"({float(self.logprior(theta))}); run model.point_logps() and change `initval`."
            )
        bad, kinds = [], set()
        for start in range(0, self.n_rows, _CHECK_ROWS):
            index = np.arange(start, min(start + _CHECK_ROWS, self.n_rows))
            values = self.row_loglik(theta, index)
            wrong = ~np.isfinite(values)
            bad += index[wrong].tolist()[: 10 - len(bad)] if len(bad) < 10 else []
            kinds |= {"NaN" if np.isnan(v) else str(v) for v in values[wrong][:100]}
        for condition, impossible in self._data_conditions:
            [value] = evaluate([condition], self._arrays)
            rows = np.argwhere(np.asarray(value, bool) == impossible)
            if len(rows):
                bad += [int(np.max(r)) for r in rows[:10]]
                kinds.add("-inf")
        if bad:
            shown = ", ".join(map(str, sorted(set(bad))[:10]))
            raise TallModelError(
                f"The log-likelihood of {', '.join(map(repr, self.observed))} is "
                f"{' or '.join(sorted(kinds))} at the initial point in rows {shown}"
                f"{' and maybe more' if len(bad) >= 10 else ''}. Look for missing or impossible "
                "values in these rows, or give the parameters another `initval`."
            )

    # Evaluation for checks and tests: plain Python, no compilation.

    def ravel(self, point: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return theta, shape (d,), for a point of value variables."""
        if not self.names:
            return np.zeros(0)
        return np.concatenate([np.ravel(np.asarray(point[n], dtype=float)) for n in self.names])

    def unravel(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Return the point of value variables for theta, shape (d,)."""
        return {
            name: theta[part].reshape(shape)
            for name, part, shape in zip(self.names, self.slices, self.shapes, strict=True)
        }

    def logprior(self, theta: np.ndarray) -> float:
        """Log density of everything but the rows: priors, Jacobians, small observed variables."""
        return float(self._python("prior")(theta))

    def row_loglik(self, theta: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Log-likelihood of the rows `index`, shape (m,)."""
        return self._python("rows")(theta, *self._raw_batch(index))

    def row_loglik_grad(self, theta: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Gradient with respect to theta, shape (d,), of the sum of `row_loglik`."""
        return self._python("grad")(theta, *self._raw_batch(index))

    def _raw_batch(self, index):
        return [
            np.moveaxis(a, 0, axis)
            for a, axis in zip(self.rows.take(np.asarray(index)), self.raw_axes, strict=True)
        ]

    def row_graph(self) -> Variable:
        """Return the log-likelihood of a batch as a graph of theta and the raw columns."""
        parameters: dict[Variable, Variable] = {
            new: self.phi_graph[part].reshape(new.type.shape).astype(new.type.dtype)
            for new, part in self.phi_slices.items()
        }
        [graph] = rebuild(self.batch.outputs, parameters | self.derived)
        return graph

    def _python(self, which: str):
        cache = self.__dict__.setdefault("_functions", {})
        if which not in cache:
            if which == "prior":
                inputs, output = [self.theta], self.logprior_graph
            else:
                inputs, output = [self.theta, *self.raw], self.row_graph()
                if which == "grad":
                    output = pt.grad(output.sum(), self.theta)
            cache[which] = pytensor.function(
                inputs, output, mode=PYTHON_MODE, on_unused_input="ignore"
            )
        return cache[which]


def _name(var) -> str:
    return var if isinstance(var, str) else var.name


def _without_minibatch(model: pm.Model) -> pm.Model:
    """Return the full-data model behind `pm.Minibatch`, without the scaling of `total_size`."""
    graphs = [*model.basic_RVs, *model.potentials, *model.deterministics]
    graphs += [model.rvs_to_values[rv] for rv in model.observed_RVs]
    if not any(v.owner and isinstance(v.owner.op, MinibatchOp) for v in ancestors(graphs)):
        return model

    def hook(node, inputs):
        if isinstance(node.op, MinibatchOp):
            return inputs[: len(node.outputs)]
        if isinstance(node.op, MinibatchRandomVariable):
            return inputs[:1]
        return None

    old, _ = fgraph_from_model(model)
    new = FunctionGraph(outputs=rebuild(old.outputs, {}, hook), clone=False)
    new._coords, new._dim_lengths = old._coords, old._dim_lengths
    return model_from_fgraph(new, mutate_fgraph=True)


def _refuse_imputed(model: pm.Model):
    for rv in model.basic_RVs:
        if rv.owner is not None and isinstance(rv.owner.op, PartialObservedRV):
            name = rv.name.removesuffix("_unobserved").removesuffix("_observed")
            raise TallModelError(
                f"Observed variable {name!r} has missing values, which PyMC imputes "
                "(PartialObservedRV): each missing value is a latent variable of its own row. "
                "Drop the rows with missing values, or model the missingness explicitly."
            )


def _merged(graphs, checks):
    flat = [*graphs, *(v for c in checks for v in (c.expression, *c.conditions))]
    fgraph = FunctionGraph(outputs=flat, clone=False)
    MergeOptimizer().rewrite(fgraph)
    merged = list(fgraph.outputs)
    new, position = [], len(graphs)
    for check in checks:
        k = len(check.conditions)
        new.append(Check(merged[position], merged[position + 1 : position + 1 + k], check.message))
        position += k + 1
    return merged[: len(graphs)], new


def _find_rows(model, graphs, observed, dim) -> tuple[int, dict[str, int]]:
    """Return the number of rows and the row axis of each variable to subsample."""
    wanted = {_name(v) for v in observed} if observed else None
    shapes = {name: _static_shape(name, g) for name, g in graphs.items()}
    values = {}
    for name in graphs:
        rv = model[name]
        value = model.rvs_to_values.get(rv)
        data = None if value is None else getattr(value, "data", None)
        if data is None and value is not None and hasattr(value, "get_value"):
            data = value.get_value(borrow=True)
        values[name] = np.shape(data) if data is not None else shapes[name]
    chosen = [n for n in graphs if wanted is None or n in wanted]
    if dim is not None:
        return _rows_of_dim(model, shapes, chosen, dim)
    n_rows = max((max(values[n] + shapes[n], default=0) for n in chosen), default=0)
    if n_rows < 2:
        raise TallModelError(
            f"No row axis: {', '.join(map(repr, chosen))} has no axis with more than one element. "
            "Rows must be an axis of an observed variable or of a vector potential."
        )
    axes = {}
    for name in chosen:
        candidates = [i for i, s in enumerate(shapes[name]) if s == n_rows]
        if not candidates and n_rows in values[name]:
            op = op_name(model[name].owner.op)
            raise TallModelError(
                f"Observed variable {name!r} has one joint log density for its {n_rows} rows "
                f"({op}): they are not independent given the parameters and cannot be subsampled. "
                "Use a likelihood that factorises over rows, or sample this model with pm.NUTS."
            )
        if len(candidates) > 1:
            raise TallModelError(
                f"{name!r} has two candidate row axes ({candidates}, both of length {n_rows}). "
                "Name its dimensions (dims=) and say which one carries the rows: dim='...'."
            )
        if candidates:
            axes[name] = candidates[0]
    if wanted and set(axes) != wanted:
        missing = ", ".join(sorted(repr(n) for n in wanted - set(axes)))
        raise TallModelError(
            f"observed= names variables with different numbers of rows: {missing} has no axis of "
            f"length {n_rows}. Subsample variables that share their rows."
        )
    if not axes:
        raise TallModelError(
            f"No row axis: none of {', '.join(map(repr, chosen))} has a log-likelihood per row. "
            "A potential must be a vector over rows, not its sum."
        )
    return n_rows, axes


def _rows_of_dim(model, shapes, chosen, dim) -> tuple[int, dict[str, int]]:
    axes = {}
    for name in chosen:
        dims = model.named_vars_to_dims.get(name) or ()
        if dim in dims:
            axes[name] = list(dims).index(dim)
            if axes[name] >= len(shapes[name]):
                raise TallModelError(
                    f"dim={dim!r} is a dimension of the values of {name!r} but not of its "
                    "log-likelihood: the rows along it are not independent."
                )
    if not axes:
        known = sorted({d for dims in model.named_vars_to_dims.values() for d in dims if d})
        raise TallModelError(
            f"dim={dim!r} is not a dimension of any of {chosen}; the model has dimensions {known}. "
            "Give the observed variable dims=."
        )
    lengths = {shapes[name][axis] for name, axis in axes.items()}
    if len(lengths) > 1:
        raise TallModelError(f"dim={dim!r} has several lengths: {sorted(lengths)}.")
    return lengths.pop(), axes


def _static_shape(name: str, graph: Variable) -> tuple[int, ...]:
    shape = graph.type.shape
    if None in shape:
        raise TallModelError(
            f"The shape of the log-likelihood of {name!r} depends on parameters; rows must be fixed."
        )
    return tuple(shape)


def _sum_rows(graph: Variable, axis: int) -> Variable:
    """Sum over every axis but the rows', which becomes the only one."""
    others = tuple(i for i in range(graph.type.ndim) if i != axis)
    return graph.sum(axis=others) if others else graph


_BOUNDED = {
    "GE": {"Sigmoid", "Exp", "Softplus", "Sqr", "Abs", "Softmax"},
    "LE": {"Sigmoid", "Softmax"},
}


def _always_true(condition: Variable, dependent: set[Variable]) -> bool:
    """Whether a check holds whatever the parameters: sigmoid >= 0, softmax sums to one."""
    name = elemwise_name(condition.owner)
    if name in _BOUNDED:
        left, right = condition.owner.inputs
        source = op_name(left.owner.op) if left.owner is not None else ""
        bound = {"GE": 0, "LE": 1}[name]
        return source in _BOUNDED[name] and _constant_value(right) == bound
    pending, softmax = [condition], False
    while pending:
        var = pending.pop()
        if var.owner is None:
            if var in dependent:
                return False
        elif op_name(var.owner.op) == "Sum" and op_name(_owner_op(var)) == "Softmax":
            softmax = True
        else:
            pending += var.owner.inputs
    return softmax


def _owner_op(var):
    inner = var.owner.inputs[0].owner
    return None if inner is None else inner.op


def _constant_value(var: Variable):
    while var.owner is not None and op_name(var.owner.op) == "DimShuffle":
        var = var.owner.inputs[0]
    return float(var.data) if isinstance(var, Constant) and np.ndim(var.data) == 0 else None


def _reducer(node, entries, n_rows):
    """Return the node where the rows disappear, on the way from `node` to the per-row graph."""
    for candidate in toposort(entries):
        before = any(n_rows in getattr(i.type, "shape", ()) for i in candidate.inputs)
        if before and n_rows not in candidate.outputs[0].type.shape:
            return candidate
    return node


_ADVICE = {
    "CumOp": "a cumulative operation over rows",
    "Scan": "a recurrence over rows",
    "Cholesky": "a covariance over rows",
    "Sum": "a sum over rows",
}


def _coupled(name: str, error: CoupledRows) -> TallModelError:
    op = op_name(error.node.op) if error.node is not None else "an axis used twice"
    what = _ADVICE.get(op, "an operation that mixes rows or is not known to keep them apart")
    return TallModelError(
        f"The rows of {name!r} are coupled by {op} ({what}): the log-likelihood of a row must "
        "depend on parameters and on that row alone. Compute quantities that need all rows from "
        "data only, before the model; if rows really depend on each other, sample this model with "
        "pm.NUTS."
    )


def _warn_about_deterministics(model: pm.Model, tall: TallModel):
    """Warn of deterministic variables with one element per row."""
    deterministics = list(model.deterministics)
    if not deterministics:
        return
    graphs = concretize(
        model.replace_rvs_by_values(deterministics), tall.value_vars, tall.initial_point
    ).outputs
    large = [
        v.name
        for v, g in zip(deterministics, graphs, strict=True)
        if tall.n_rows in getattr(g.type, "shape", ())
    ]
    if large:
        warnings.warn(
            f"Deterministic variables with one element per row are evaluated and stored at every "
            f"draw, {tall.n_rows} numbers each: {', '.join(map(repr, large))}. Leave them out with "
            "pm.sample(..., var_names=[...]) and compute them afterwards from a few draws.",
            UserWarning,
            stacklevel=4,
        )
