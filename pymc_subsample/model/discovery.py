"""The rows of a model: which observed variables have them, and on which axis."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pymc as pm
from pymc.data import MinibatchOp
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.type_other import NoneTypeT

from pymc_subsample.graph.concrete import rebuild, root_array
from pymc_subsample.model.errors import TallModelError, op_name
from pymc_subsample.model.model_graphs import graph_of, model_of
from pymc_subsample.model.terms import FEW_NUMBERS, RowTerm, TermPart, Whole
from pymc_subsample.validation import shown

# At most so many rows, or this share of the most, that read at most `FEW_NUMBERS`, are few.
# Choices: to read them always then costs little beside a subsample.
_FEW_ROWS = 16
_FEW = 0.01


def full_data_model(model: pm.Model) -> pm.Model:
    """Return the model behind `pm.Minibatch`.

    Scaling by `total_size` stays: it is one where the full data have that many rows, and PyMC's
    weight of a row elsewhere.
    """
    graphs = [*model.basic_RVs, *model.potentials, *model.deterministics]
    graphs += [model.rvs_to_values[rv] for rv in model.observed_RVs]
    if not any(v.owner and isinstance(v.owner.op, MinibatchOp) for v in ancestors(graphs)):
        return model

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if isinstance(node.op, MinibatchOp):
            return inputs[: len(node.outputs)]
        if isinstance(node.op, MinibatchRandomVariable):  # takes None, but not its constant
            rv, *sizes = inputs
            sizes = [None if isinstance(s.type, NoneTypeT) else s for s in sizes]
            return node.op.make_node(rv, *sizes).outputs
        return None

    old, _ = graph_of(model)
    return model_of(rebuild(old.outputs, {}, hook), old, model)


def refuse_masked(model: pm.Model) -> None:
    """Raise if data are masked."""
    for var in model.data_vars:  # where `pm.set_data` was given NaN, or a mask
        if (values := root_array(var)) is None:
            continue
        masked = np.ma.getmaskarray(values)
        if masked.any():
            raise TallModelError(
                f"pm.Data {var.name!r} has missing values (NaN, or masked) in {_places(masked)}. "
                "Leave these rows out, or fill in the missing values."
            )


def refuse_missing(model: pm.Model) -> None:
    """Raise if data are masked, or PyMC imputes missing values of an observed variable."""
    refuse_masked(model)
    for missing, name in imputed(model).items():
        where = _imputed(model[name], model[missing])
        raise TallModelError(
            f"Observed variable {name!r} has missing values{where}, which PyMC turns into the "
            f"variable {missing!r}. A step integrates it out, or draws it afterwards, with "
            'integrate="auto" and without vars, likelihood, dim or data; pms.marginalize(model) '
            "does so too, or says why it cannot. Or leave these rows out: rows in which only an "
            "outcome is missing carry no information about the parameters."
        )


def imputed(model: pm.Model) -> dict[str, str]:
    """Return by the names of variables that PyMC makes of missing values what they are part of."""
    observed = {rv.name for rv in model.observed_RVs}
    names = {rv.name: rv.name.removesuffix("_unobserved") for rv in model.free_RVs}
    return {
        missing: name
        for missing, name in names.items()
        if f"{name}_observed" in observed and name in model.named_vars
    }


def _places(masked: np.ndarray) -> str:
    rows = np.unique(np.nonzero(np.atleast_1d(masked))[0])
    some = ", ".join(map(str, rows[:5]))
    return f"rows {some}" if len(rows) <= 5 else f"{len(rows):,} rows, such as {some}"


def _imputed(joined: Variable, missing: Variable) -> str:
    """Say in which rows values are missing, by where PyMC puts those that it draws."""
    for v in ancestors([joined]):
        [*_, where] = v.owner.inputs if v.owner and missing in v.owner.inputs[1:] else [None]
        mask = None if where is None else root_array(where)
        if mask is not None and mask.dtype.kind == "b":
            return f" in {_places(mask)}"
    return ""


def unfitting(model: pm.Model, terms: Mapping[str, Variable], error: Exception) -> TallModelError:
    """Say which shapes what is observed, its parameters and the data have."""
    said, hint = [], ""
    for name, term in terms.items():
        value = model.rvs_to_values.get(term)
        values = None if value is None else root_array(value)
        if values is not None:
            shape = values.shape
            hint = hint or " Of a column y of shape (n, 1) take y.ravel()." * (shape[1:] == (1,))
            known = [s for s in _parameter_shapes(term) if s and None not in s]
            made = " and ".join(map(str, dict.fromkeys(known)))
            said.append(
                f"{name!r} is observed with shape {shape}" + f", and made of {made}" * bool(made)
            )
        above = set(ancestors([term, *([] if value is None else [value])]))
        data = {v.name: root_array(v) for v in model.data_vars if v in above}
        said += [f"pm.Data {name!r} has {x.shape}" for name, x in data.items() if x is not None]
    return TallModelError(
        f"The shapes of {', '.join(map(repr, terms))} and of the data do not fit together"
        f"{'' if hint else f' ({error})'}. {'; '.join(dict.fromkeys(said))}. Check the number of "
        f"rows of every column.{hint}"
    )


def _parameter_shapes(term: Variable) -> list[tuple[int | None, ...]]:
    """Return static shapes of the parameters of a distribution, as far as they are known."""
    parameters = getattr(term.owner.op, "dist_params", None)
    return [] if parameters is None else [p.type.shape for p in parameters(term.owner)]


def row_terms(model: pm.Model, likelihood: Sequence[str | Variable] | None) -> dict[str, Variable]:
    """Return the observed variables and potentials by name; check the names in `likelihood`."""
    terms = {v.name: v for v in [*model.observed_RVs, *model.potentials]}
    if not terms:
        raise TallModelError(
            "The model has no observed variable and no potential: there are no rows to "
            "subsample. Give a variable `observed=` data."
        )
    for name in chosen_names(likelihood):
        if name not in terms:
            raise TallModelError(
                f"likelihood holds {name!r}, which is not an observed variable or potential of the "
                f"model; choose among {sorted(terms)}."
            )
    return terms


def chosen_names(likelihood: str | Variable | Sequence[str | Variable] | None) -> list[str]:
    """Return the names in `likelihood`, which may be a single variable or name."""
    if likelihood is None:
        return []
    one = isinstance(likelihood, str | bytes | Variable) or not isinstance(likelihood, Iterable)
    chosen: list = [likelihood] if one else list(likelihood)
    for var in chosen:
        if not isinstance(var, str | Variable):
            raise TypeError(f"likelihood must hold variables or their names, got {shown(var)}.")
    if not chosen:
        raise ValueError("likelihood is empty. Leave it out to subsample all that share the rows.")
    return [var if isinstance(var, str) else str(var.name) for var in chosen]


def find_rows(
    model: pm.Model,
    parts: Sequence[TermPart],
    likelihood: Sequence[str | Variable] | None,
    dim: str | None,
    cost: Callable[[Variable], int],
) -> tuple[list[RowTerm], list[Whole]]:
    """Return what has rows, the most rows first, and what has none, or too few to subsample.

    ``cost(graph)`` is how many numbers of the data are read at every evaluation; `likelihood` and
    `dim` are as given to `TallModel`.
    """
    named = set(chosen_names(likelihood))
    wanted = named or {part.name for part in parts}
    chosen = [part for part in parts if part.name in wanted]
    whole = [Whole(p.name, p.graph, "not in likelihood=") for p in parts if p.name not in wanted]
    for part in chosen:
        if None in part.shape:
            raise TallModelError(
                f"The shape of the log-likelihood of {part.name!r} depends on parameters. Fix the "
                "number of rows."
            )
    if dim is None:
        rows, others = _longest_axes(model, chosen, named, cost)
    else:
        rows, others = _axes_of_dim(model, chosen, dim)
    missing = named - {r.name for r in rows}
    if missing:
        raise TallModelError(
            f"likelihood= names {', '.join(map(repr, sorted(missing)))}, which has no axis for "
            f"rows as {', '.join(dict.fromkeys(repr(r.name) for r in rows))} has. Choose variables "
            "with one log-likelihood per row."
        )
    return sorted(rows, key=lambda r: -r.n_rows), whole + others


def _longest_axes(
    model: pm.Model,
    parts: Sequence[TermPart],
    named: set[str],
    cost: Callable[[Variable], int],
) -> tuple[list[RowTerm], list[Whole]]:
    """Take the longest axis of each part for its rows."""
    lengths = [max((*p.shape, *_value_shape(model, p)), default=0) for p in parts]
    rows, whole = [], []
    firm = [n for n, part in zip(lengths, parts, strict=True) if not part.summed]
    longest = max(firm, default=0)
    for part, length in zip(parts, lengths, strict=True):
        if length < 2:
            whole.append(Whole(part.name, part.graph, "no rows"))
            continue
        axes = [i for i, n in enumerate(part.shape) if n == length]
        if len(axes) == 1:
            strict = part.name in named or (length == longest and not part.summed)
            rows.append(RowTerm(part.name, part.graph, axes[0], length, strict))
            continue
        why = _many_axes(part, axes, length) if axes else _joint(model, part, length)
        if part.name in named or length == longest:
            raise why
        whole.append(Whole(part.name, part.graph, "rows that are not independent"))
    if not rows:
        raise _no_rows(parts)
    most = max(r.n_rows for r in rows)
    few = [
        r
        for r in rows
        if r.name not in named and are_few(r.n_rows, most) and cost(r.graph) <= FEW_NUMBERS
    ]
    whole += [Whole(r.name, r.graph, "few rows") for r in few]
    return [r for r in rows if r not in few], whole


def are_few(n_rows: int, most: int) -> bool:
    """Whether rows are few beside the most that a term has."""
    return n_rows <= min(max(_FEW_ROWS, _FEW * most), most - 1)


def _many_axes(part: TermPart, axes: Sequence[int], length: int) -> TallModelError:
    return TallModelError(
        f"{part.name!r} has two candidate row axes ({axes}, both of length {length}). "
        "Name its dimensions (dims=) and say which one carries the rows: dim='...'."
    )


def _joint(model: pm.Model, part: TermPart, length: int) -> TallModelError:
    op = op_name(model[part.name].owner.op)
    why = (
        "rows can be told apart only if logp= of pm.CustomDist returns one number for each of "
        "them, not a sum. If they are not independent given the parameters,"
        if "CustomDist" in op
        else "they are not independent given the parameters and cannot be subsampled. Use a "
        "likelihood that factorises over rows, or"
    )
    return TallModelError(
        f"Observed variable {part.name!r} has one joint log density for its {length} rows ({op}): "
        f"{why} sample this model with pm.sample()."
    )


def _value_shape(model: pm.Model, part: TermPart) -> tuple[int, ...]:
    value = model.rvs_to_values.get(model[part.name])
    data = None if value is None else root_array(value)
    return part.shape if data is None else data.shape


def _no_rows(parts: Sequence[TermPart]) -> TallModelError:
    names = ", ".join(dict.fromkeys(repr(part.name) for part in parts))
    for part in parts:
        name, graph = part.name, part.graph
        node = graph.owner
        while node is not None and not isinstance(node.op, CAReduce):
            node = next((i.owner for i in node.inputs if i.owner is not None), None)
        if node is not None and graph.type.ndim == 0 and node.inputs[0].type.ndim > 0:
            return TallModelError(
                f"No row axis: {name!r} is reduced to one number by {op_name(node.op)}. It is not "
                "itself a sum over rows, so a subsample cannot estimate it. Sample this model "
                "with pm.sample(), or write a likelihood with one element for each row."
            )
    return TallModelError(
        f"No row axis: none of {names} has a log-likelihood with more than one element. Give the "
        "rows as an axis of an observed variable or of a vector potential; a model without rows is "
        "for pm.NUTS."
    )


def _axes_of_dim(
    model: pm.Model, parts: Sequence[TermPart], dim: str
) -> tuple[list[RowTerm], list[Whole]]:
    rows, whole = [], []
    for part in parts:
        dims = model.named_vars_to_dims.get(part.name) or ()
        if part.summed or dim not in dims:
            whole.append(Whole(part.name, part.graph, f"dimension {dim!r} is not its own"))
            continue
        axis = list(dims).index(dim)
        if axis >= len(part.shape):
            raise TallModelError(
                f"dim={dim!r} is a dimension of the values of {part.name!r} but not of its "
                "log-likelihood: the rows along it are not independent. Choose another one, or "
                "sample this model with pm.sample()."
            )
        rows.append(RowTerm(part.name, part.graph, axis, part.shape[axis], strict=True))
    if not rows:
        known = sorted({d for dims in model.named_vars_to_dims.values() for d in dims if d})
        raise TallModelError(
            f"dim={dim!r} is not a dimension of any of {[part.name for part in parts]}; the model "
            f"has dimensions {known}. Give the observed variable dims=."
        )
    lengths = {r.n_rows for r in rows}
    if len(lengths) > 1:
        raise TallModelError(
            f"dim={dim!r} has several lengths: {sorted(lengths)}. Choose variables that share "
            "their rows: likelihood=[...]."
        )
    return rows, whole
