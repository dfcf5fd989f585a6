"""A quantity of a model's rows, as a function of one draw and of the columns of some rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.moments.means import mean
from pymc.exceptions import UndefinedMomentException
from pytensor.compile.ops import ViewOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.random.op import RandomVariable
from pytensor.xtensor.type import XTensorType

from pymc_subsample.likelihood.batch import batch_graph
from pymc_subsample.likelihood.columns import column_graph, row_number_test
from pymc_subsample.likelihood.errors import CoupledRows, TallModelError, op_name
from pymc_subsample.likelihood.trace import RowTrace
from pymc_subsample.symbolic.graph import (
    concretize,
    depends_on,
    evaluate,
    freeze,
    numpy_function,
    rebuild,
)
from pymc_subsample.validation import shown

SAID = "pms.predict"
# Numbers of what is predicted up to which it is also computed as the model is written.
_COMPARED = 2**22
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Quantity:
    """What is predicted.

    Attributes
    ----------
    name : str
        For messages.
    graphs : list of Variable
        The quantity, or the parameters of the distribution that it is drawn from.
    dims : tuple of str or None
        Dimensions that the model gives it; may be empty.
    rv : Variable or None
        The observed variable that is drawn.
    """

    name: str
    graphs: list[Variable]
    dims: tuple[str | None, ...]
    rv: Variable | None = None


def quantity(model: pm.Model, given: Any, kind: str) -> Quantity:
    """Return what a name or a graph stands for; of observed variables their mean, or a draw."""
    if isinstance(given, str):
        if given not in model.named_vars:
            known = [v.name for v in [*model.observed_RVs, *model.deterministics]]
            raise ValueError(f"{SAID}: the model has no variable {given!r}, only {known}.")
        var = model[given]
    elif isinstance(given, Variable):
        var = given
    else:
        raise TypeError(
            f"{SAID}: what is predicted must be the name of a variable, or an expression of the "
            f"model's variables such as pm.math.sigmoid(eta); got {shown(given)}."
        )
    name = repr(var.name or "the expression")
    dims = tuple(model.named_vars_to_dims.get(var.name, ())) if var.name else ()
    if isinstance(var.type, XTensorType):
        dims = var.type.dims
        var = var if var in model.observed_RVs else var.values
    if var not in model.observed_RVs:
        if kind == "outcome":
            raise ValueError(
                f'{SAID}: kind="outcome" draws an observed variable, one of '
                f"{[v.name for v in model.observed_RVs]}; {name} is none."
            )
        return Quantity(name, [var], dims)
    op = var.owner.op
    if kind == "outcome":
        if not isinstance(op, RandomVariable) or isinstance(op, SymbolicRandomVariable):
            raise ValueError(
                f"{SAID}: outcomes of {name} ({op_name(op)}) are not drawn here. Use "
                "pm.sample_posterior_predictive on some rows, or predict an expression."
            )
        return Quantity(name, op.dist_params(var.owner), dims, var)
    try:
        return Quantity(name, [mean(var)], dims)
    except (NotImplementedError, UndefinedMomentException):
        raise ValueError(
            f"{SAID}: PyMC knows no mean of {name} ({op_name(op)}). Pass the expression that you "
            "want, such as the probabilities or the location as you wrote them in the model, or "
            'kind="outcome".'
        ) from None


@dataclass(frozen=True)
class Raw:
    """A column that is read.

    Attributes
    ----------
    name : str or None
        Of its `pm.Data`; None of any other array.
    value : ndarray
        What the model holds.
    axis : int
        Where its rows are.
    whole : bool
        Whether it was computed from all rows at once.
    """

    name: str | None
    value: np.ndarray
    axis: int
    whole: bool


class RowFunction:
    """The quantity of a batch of rows at one draw.

    Parameters
    ----------
    model : pm.Model
    what : Quantity
    posterior : xarray.Dataset
        Draws, chain and draw first.

    Attributes
    ----------
    n_rows : int
        Rows that the model holds.
    leaves : list of str
        Variables of the posterior that are read.
    raw : list of Raw
        Columns that are read.

    Raises
    ------
    TallModelError
        If it has no rows, or they depend on each other.
    ValueError
        If the posterior lacks a variable, or has it in another shape.
    """

    def __init__(self, model: pm.Model, what: Quantity, posterior: xr.Dataset) -> None:
        leaves = _leaves(model, what, posterior)
        self.leaves = [v.name for v in leaves]
        point = {name: posterior[name].values[0, 0] for name in self.leaves}
        graphs = rebuild(what.graphs, {v: v for v in leaves}, _viewed)
        concrete = concretize(graphs, leaves, point)
        arrays, values = concrete.arrays, concrete.values
        outputs = concrete.outputs
        dependent = depends_on(outputs, values)
        self._op = None if what.rv is None else what.rv.owner.op
        self._draw_shape = () if what.rv is None else np.shape(_held(model, what.rv))[1:]
        self.n_rows, rows = self._rows(what, outputs)
        trace = RowTrace(lambda v: v not in dependent, row_number_test(arrays))
        try:
            for out in rows:
                trace.follow(out, 0)
            trace.refuse_reductions(dependent, self.n_rows)
        except CoupledRows as error:
            op = "an axis used twice" if error.node is None else op_name(error.node.op)
            raise TallModelError(
                f"{SAID}: the rows of {what.name} are coupled by {op}, so that they cannot be "
                "predicted some at a time. Use pm.sample_posterior_predictive."
            ) from None
        own = [v.name for v in values if v in trace.axes]
        if own or not any(trace.stop(v) or v.owner is None for v in trace.axes):
            raise _no_rows(what.name, f"its first axis is that of {own[0]!r}" if own else "")
        batch = batch_graph(rows, trace, dependent, arrays)
        old = list(batch.columns.values())
        known = set(arrays)
        columns = column_graph(old, [trace.axes[v] for v in old], arrays)
        self.raw = []
        for new, var in columns.columns.items():
            root = concrete.roots.get(var)
            named = root is not None and isinstance(root, SharedVariable)
            name = root.name if named and root in model.data_vars else None
            self.raw.append(Raw(name, arrays[var], columns.axes[new], var not in known))
        others = [out for out in outputs if out not in rows]
        parameters = list(batch.parameters.values())
        memo = {v: v for v in values} | freeze([*parameters, *others], dependent, arrays)
        placed = {
            new: graph.astype(new.type.dtype)
            for new, graph in zip(batch.parameters, rebuild(parameters, dict(memo)), strict=True)
        }
        placed |= zip(batch.columns, columns.outputs, strict=True)
        made = dict(zip(rows, rebuild(batch.outputs, placed), strict=True))
        made |= zip(others, rebuild(others, dict(memo)), strict=True)
        inputs = [*values, *columns.columns]
        self._function = numpy_function(inputs, [made[out] for out in outputs])
        if all(np.prod(out.type.shape) <= _COMPARED for out in outputs):
            givens = {v: np.asarray(point[v.name], v.type.dtype) for v in values}
            self._compare(what, point, evaluate(outputs, arrays | givens))

    def _rows(self, what: Quantity, outputs: list[Variable]) -> tuple[int, list[Variable]]:
        """Return how many rows there are, and which outputs have them, on their first axis."""
        if self._op is None:
            [out] = outputs
            if not out.type.ndim or not out.type.shape[0]:
                raise _no_rows(what.name, f"its shape is {out.type.shape}")
            return out.type.shape[0], [out]
        batch = what.rv.type.ndim - self._op.ndim_supp
        full = [
            out
            for out, core in zip(outputs, self._op.ndims_params, strict=True)
            if batch and out.type.ndim - core == batch and out.type.shape[0] != 1
        ]
        if not full:
            raise _no_rows(what.name, "none of its parameters has rows")
        return full[0].type.shape[0], list(dict.fromkeys(full))

    def _compare(
        self, what: Quantity, point: dict[str, np.ndarray], written: Sequence[np.ndarray]
    ) -> None:
        """Compare two parts of the rows with the quantity as the model has it."""
        values = [np.asarray(point[name]) for name in self.leaves]
        for part in (slice(0, self.n_rows // 2), slice(self.n_rows // 2, None)):
            columns = [np.take(r.value, np.arange(self.n_rows)[part], r.axis) for r in self.raw]
            for new, old in zip(self._function(*values, *columns), written, strict=True):
                old = old[part] if np.ndim(old) and len(old) == self.n_rows else old
                scale = np.max(np.abs(old[np.isfinite(old)]), initial=0.0)
                if new.shape != np.shape(old) or not np.allclose(
                    new, old, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True
                ):
                    raise TallModelError(
                        f"{SAID}: {what.name} of some rows is not what the model has for them: "
                        "its graph was misread. Please report the model, and use "
                        "pm.sample_posterior_predictive."
                    )

    def __call__(
        self,
        draws: Sequence[Sequence[np.ndarray]],
        columns: Sequence[np.ndarray],
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Return the quantity of m rows at S draws, shape (S, m, ...)."""
        result: list[np.ndarray] = []
        m = columns[0].shape[self.raw[0].axis]
        for values in draws:
            found = self._function(*values, *columns)
            if self._op is not None:
                size = (m, *self._draw_shape)
                size = size[: len(size) - self._op.ndim_supp]
                found = [self._op.rng_fn(rng, *found, size)]
            if not result:
                result = [np.empty((len(draws), *np.shape(found[0])))]
                rows = iter(result[0])
            next(rows)[...] = found[0]
        return result[0]


def _viewed(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
    """Go through `pm.Deterministic`."""
    return inputs if isinstance(node.op, ViewOp) else None


def _held(model: pm.Model, rv: Variable) -> Any:
    value = model.rvs_to_values[rv]
    return value.get_value(borrow=True) if isinstance(value, SharedVariable) else value.eval()


def _leaves(model: pm.Model, what: Quantity, posterior: xr.Dataset) -> list[Variable]:
    """Return variables of the posterior that the quantity is computed from.

    Free variables; those that are missing may be hidden behind deterministic ones.
    """
    stored = [v for v in model.free_RVs if v.name in posterior]
    seen = set(ancestors(what.graphs, blockers=stored))
    missing = [v.name for v in model.free_RVs if v in seen and v not in stored]
    if missing:
        stored += [v for v in model.deterministics if v.name in posterior]
        seen = set(ancestors(what.graphs, blockers=stored))
        missing = [v.name for v in model.free_RVs if v in seen and v not in stored]
    if missing:
        raise ValueError(
            f"{SAID}: idata.posterior lacks {', '.join(map(repr, missing))}, of which {what.name} "
            "is made. Sample without var_names, or keep them."
        )
    found = [v for v in stored if v in seen]
    for node in toposort(what.graphs, blockers=found):
        if isinstance(node.op, RandomVariable | SymbolicRandomVariable):
            raise ValueError(
                f"{SAID}: {what.name} contains random numbers of its own ({op_name(node.op)}). "
                "Predict a function of parameters and data, or use pm.sample_posterior_predictive."
            )
    shapes = model.eval_rv_shapes()
    for v in found:
        shape = posterior[v.name].shape[2:]
        expected = tuple(map(int, shapes[v.name])) if v.name in shapes else shape
        if shape != expected:
            raise ValueError(
                f"{SAID}: idata.posterior[{v.name!r}] has shape {shape} per draw, the model's "
                f"variable {expected}. Pass the model that was sampled."
            )
    return found


def _no_rows(name: str, why: str) -> TallModelError:
    return TallModelError(
        f"{SAID}: {name} has no rows of data{f' ({why})' if why else ''}. Predict an observed "
        "variable, or an expression with one entry for each row, rows first."
    )
