"""The rows of a model: which observed variables have them, and on which axis."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pymc as pm
from pymc.data import MinibatchOp
from pymc.model.fgraph import fgraph_from_model, model_from_fgraph
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.type_other import NoneTypeT

from pymc_subsample.likelihood.errors import TallModelError, op_name
from pymc_subsample.likelihood.graph import rebuild, root_array
from pymc_subsample.validation import shown


def full_data_model(model: pm.Model) -> pm.Model:
    """Return the model behind `pm.Minibatch`.

    Scaling by `total_size` stays: it is one where the full data have that many rows, and PyMC's
    weight of a row elsewhere. Initial values are left out, since PyMC cannot carry them over.
    """
    graphs = [*model.basic_RVs, *model.potentials, *model.deterministics]
    graphs += [model.rvs_to_values[rv] for rv in model.observed_RVs]
    if not any(v.owner and isinstance(v.owner.op, MinibatchOp) for v in ancestors(graphs)):
        return model

    def hook(node, inputs):
        if isinstance(node.op, MinibatchOp):
            return inputs[: len(node.outputs)]
        if isinstance(node.op, MinibatchRandomVariable):  # takes None, but not its constant
            rv, *sizes = inputs
            sizes = [None if isinstance(s.type, NoneTypeT) else s for s in sizes]
            return node.op.make_node(rv, *sizes).outputs
        return None

    given = dict(model.rvs_to_initial_values)
    try:
        model.rvs_to_initial_values.update(dict.fromkeys(given))
        old, _ = fgraph_from_model(model)
    finally:
        model.rvs_to_initial_values.update(given)
    new = FunctionGraph(outputs=rebuild(old.outputs, {}, hook), clone=False)
    new._coords, new._dim_lengths = old._coords, old._dim_lengths
    return model_from_fgraph(new, mutate_fgraph=True)


def refuse_imputed(model: pm.Model) -> None:
    """Raise if PyMC imputes missing values of an observed variable."""
    observed = {rv.name for rv in model.observed_RVs}
    for rv in model.free_RVs:
        name = rv.name.removesuffix("_unobserved")
        if f"{name}_observed" in observed and name in model.named_vars:
            raise TallModelError(
                f"Observed variable {name!r} has missing values. PyMC imputes them as "
                f"{rv.name!r}: each one is a latent variable of its own row, and such rows cannot "
                "be subsampled. Drop the rows with missing values, or model the missingness."
            )


def row_terms(model: pm.Model, observed: Sequence[str | Variable] | None) -> dict[str, Variable]:
    """Return the observed variables and potentials by name; check the names in `observed`."""
    terms = {v.name: v for v in [*model.observed_RVs, *model.potentials]}
    if not terms:
        raise TallModelError(
            "The model has no observed variable and no potential: there are no rows to "
            "subsample. Give a variable `observed=` data."
        )
    for name in chosen_names(observed):
        if name not in terms:
            raise TallModelError(
                f"observed holds {name!r}, which is not an observed variable or potential of the "
                f"model; choose among {sorted(terms)}."
            )
    return terms


def chosen_names(observed: str | Variable | Sequence[str | Variable] | None) -> list[str]:
    """Return the names in `observed`, which may be a single variable or name."""
    if observed is None:
        return []
    several = isinstance(observed, Iterable) and not isinstance(observed, str | bytes | Variable)
    chosen: list = list(observed) if several else [observed]
    for var in chosen:
        if not isinstance(var, str | Variable):
            raise TypeError(f"observed must hold variables or their names, got {shown(var)}.")
    if not chosen:
        raise ValueError("observed is empty. Leave it out to subsample all that share the rows.")
    return [var if isinstance(var, str) else str(var.name) for var in chosen]


def find_rows(
    model: pm.Model,
    graphs: Mapping[str, Variable],
    observed: Sequence[str | Variable] | None,
    dim: str | None,
) -> tuple[int, dict[str, int]]:
    """Return the number of rows and the row axis of each variable to subsample.

    Parameters
    ----------
    model : pymc.Model
    graphs : mapping of str to Variable
        Log-likelihood, not summed, of every observed variable and potential.
    observed, dim
        As given to `TallModel`.
    """
    named = set(chosen_names(observed))
    wanted = named or set(graphs)
    chosen = {name: graph for name, graph in graphs.items() if name in wanted}
    shapes = {name: _fixed_shape(name, graph) for name, graph in chosen.items()}
    if dim is None:
        n_rows, axes = _longest_axis(model, shapes, chosen)
    else:
        n_rows, axes = _axis_of_dim(model, shapes, dim)
    if named and set(axes) != wanted:
        missing = ", ".join(sorted(repr(n) for n in wanted - set(axes)))
        raise TallModelError(
            f"observed= names variables with different rows: {missing} has no axis for the "
            f"{n_rows} rows of {', '.join(axes)}. Choose variables that share their rows."
        )
    return n_rows, axes


def _longest_axis(model, shapes, chosen) -> tuple[int, dict[str, int]]:
    values = {name: _value_shape(model, name, shapes[name]) for name in chosen}
    n_rows = max((n for name in chosen for n in (*values[name], *shapes[name])), default=0)
    if n_rows < 2:
        raise _no_rows(chosen)
    axes = {}
    for name, shape in shapes.items():
        candidates = [i for i, length in enumerate(shape) if length == n_rows]
        if len(candidates) > 1:
            raise TallModelError(
                f"{name!r} has two candidate row axes ({candidates}, both of length {n_rows}). "
                "Name its dimensions (dims=) and say which one carries the rows: dim='...'."
            )
        if candidates:
            axes[name] = candidates[0]
        elif n_rows in values[name]:
            raise TallModelError(
                f"Observed variable {name!r} has one joint log density for its {n_rows} rows "
                f"({op_name(model[name].owner.op)}): they are not independent given the parameters "
                "and cannot be subsampled. Use a likelihood that factorises over rows, or sample "
                "this model with pm.NUTS."
            )
    if not axes:
        raise _no_rows(chosen)
    return n_rows, axes


def _fixed_shape(name: str, graph: Variable) -> tuple[int, ...]:
    if None in graph.type.shape:
        raise TallModelError(
            f"The shape of the log-likelihood of {name!r} depends on parameters. Fix the number of "
            "rows."
        )
    return tuple(graph.type.shape)


def _value_shape(model, name, shape) -> tuple[int, ...]:
    value = model.rvs_to_values.get(model[name])
    data = None if value is None else root_array(value)
    return shape if data is None else np.shape(data)


def _no_rows(graphs: Mapping[str, Variable]) -> TallModelError:
    names = ", ".join(map(repr, graphs))
    for name, graph in graphs.items():
        node = graph.owner
        while node is not None and not isinstance(node.op, CAReduce):
            node = next((i.owner for i in node.inputs if i.owner is not None), None)
        if node is not None and graph.type.ndim == 0 and node.inputs[0].type.ndim > 0:
            return TallModelError(
                f"No row axis: {name!r} is reduced to one number by {op_name(node.op)}. Remove the "
                f"{op_name(node.op).lower()}: PyMC adds up the elements of a vector by itself, and "
                "the rows can then be told apart."
            )
    return TallModelError(
        f"No row axis: none of {names} has a log-likelihood with more than one element. Give the "
        "rows as an axis of an observed variable or of a vector potential; a model without rows is "
        "for pm.NUTS."
    )


def _axis_of_dim(model, shapes, dim) -> tuple[int, dict[str, int]]:
    axes = {}
    for name, shape in shapes.items():
        dims = model.named_vars_to_dims.get(name) or ()
        if dim in dims:
            axes[name] = list(dims).index(dim)
            if axes[name] >= len(shape):
                raise TallModelError(
                    f"dim={dim!r} is a dimension of the values of {name!r} but not of its "
                    "log-likelihood: the rows along it are not independent. Choose another one, or "
                    "sample this model with pm.NUTS."
                )
    if not axes:
        known = sorted({d for dims in model.named_vars_to_dims.values() for d in dims if d})
        raise TallModelError(
            f"dim={dim!r} is not a dimension of any of {list(shapes)}; the model has dimensions "
            f"{known}. Give the observed variable dims=."
        )
    lengths = {shapes[name][axis] for name, axis in axes.items()}
    if len(lengths) > 1:
        raise TallModelError(
            f"dim={dim!r} has several lengths: {sorted(lengths)}. Choose variables that share "
            "their rows: observed=[...]."
        )
    return lengths.pop(), axes
