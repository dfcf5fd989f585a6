"""What is predicted, as graphs, and the draws that it is computed from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import pymc as pm
import xarray as xr
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.moments.means import mean
from pymc.exceptions import UndefinedMomentException
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.random.basic import CategoricalRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.xtensor.vectorization import XRV

from pymc_subsample.diagnostics.data_trees import SAMPLE_DIMS
from pymc_subsample.diagnostics.reading_draws import refuse_other_shape
from pymc_subsample.graph.concrete import root_array
from pymc_subsample.graph.named_dims import without_names
from pymc_subsample.model.bambi import to_keep
from pymc_subsample.model.errors import TallModelError, op_name
from pymc_subsample.validation import shown

SAID = "pms.predict"
NOT_DRAWN = (
    f"{SAID}: outcomes of {{}} are not drawn here. Use pm.sample_posterior_predictive on some rows "
    "at a time, or predict an expression."
)


@dataclass(frozen=True)
class Predicted:
    """What is predicted."""

    name: str  # For messages.
    graphs: list[Variable]  # It, or the parameters of the distribution that it is drawn from.
    dims: tuple[str, ...]  # Those that the model gives it; may be empty.
    op: RandomVariable | None = None  # What draws it.
    shape: tuple[int, ...] = ()  # Of what the model observed of it.
    observed: bool = False  # Whether its rows are those of an observed variable.


def quantity(model: pm.Model, given: Any, kind: str) -> Predicted:
    """Return what a name or a graph stands for; of observed variables their mean, or a draw."""
    if isinstance(given, str):
        if given not in model.named_vars:
            known = [v.name for v in [*model.observed_RVs, *model.deterministics]]
            instead = f"only {known}" if known else (
                "and none but parameters and potentials. Predict an expression of these, such as "
                "pm.math.sigmoid(eta)")  # fmt: skip
            raise ValueError(f"{SAID}: the model has no variable {given!r}, {instead}.")
        var = model[given]
    elif isinstance(given, Variable):
        var = given
    else:
        raise TypeError(
            f"{SAID}: what is predicted must be the name of a variable, or an expression of the "
            f"model's variables such as pm.math.sigmoid(eta); got {shown(given)}."
        )
    if var in model.potentials:
        raise ValueError(
            f"{SAID}: {var.name!r} is a pm.Potential, a term of the log density, and says nothing "
            "about outcomes. Predict an expression of the model's variables, such as the mean that "
            f"{var.name!r} is made of: {SAID}(idata, pm.math.sigmoid(eta))."
        )
    name = repr(var.name or "the expression")
    dims = tuple(model.named_vars_to_dims.get(var.name, ())) if var.name else ()
    if var not in model.observed_RVs:
        if kind == "outcome":
            raise ValueError(
                f'{SAID}: kind="outcome" draws an observed variable, one of '
                f"{[v.name for v in model.observed_RVs]}; {name} is not one."
            )
        return Predicted(name, [var], dims)
    held = model.rvs_to_values[var]
    while isinstance(var.owner.op, MinibatchRandomVariable):
        var = var.owner.inputs[0]
    [var] = without_names([var], [v for v in model.named_vars.values() if v is not var])
    op = var.owner.op
    drawn = isinstance(op, RandomVariable)
    if kind == "outcome":
        if not drawn:
            raise ValueError(NOT_DRAWN.format(f"{name} ({op_name(op)})"))
        lengths = root_array(held)
        shape = (0,) * var.type.ndim if lengths is None else lengths.shape
        return Predicted(name, op.dist_params(var.owner), dims, op, shape, observed=True)
    try:
        return Predicted(name, [mean(var)], dims, observed=True)
    except (NotImplementedError, UndefinedMomentException):
        if isinstance(op, CategoricalRV):
            [p] = op.dist_params(var.owner)
            if p.type.ndim > var.type.ndim and not any(p.type.broadcastable[:-1]):
                return Predicted(name, [p], dims, observed=True)
        also = ', or kind="outcome"' if drawn else ""
        raise ValueError(
            f"{SAID}: PyMC knows no mean of {name} ({op_name(op)}). Pass the expression that you "
            "want, such as the probabilities or the location as you wrote them in the model"
            f"{also}."
        ) from None


def given_observed(model: pm.Model, what: Predicted) -> Predicted:
    """Put what was observed in the place of other observed variables, as of covariates."""
    values = {rv: model.rvs_to_values[rv] for rv in model.observed_RVs}
    return replace(what, graphs=graph_replace(what.graphs, values, strict=False))


def in_order(model: pm.Model, posterior: xr.Dataset) -> xr.Dataset:
    """Return draws with chain and draw first, and dimensions in the order of the model's names."""
    found = posterior.transpose(*SAMPLE_DIMS, ...)
    for name in posterior.data_vars:
        if set(dims := _dims(model, name)) == set(found[name].dims[2:]):
            found[name] = found[name].transpose(*SAMPLE_DIMS, *dims)
    return found


def _dims(model: pm.Model, name: Any) -> tuple[str, ...]:
    """Return the dimensions of a variable as `pm.sample` names them; none if there is none."""
    if name not in model.named_vars:
        return ()
    ndim = model[name].type.ndim
    dims = model.named_vars_to_dims.get(name, (None,) * ndim)
    return tuple(f"{name}_dim_{k}" if d is None else d for k, d in enumerate(dims))


def read(
    model: pm.Model, graphs: Sequence[Variable], stored: Sequence[Variable]
) -> tuple[list[Variable], list[str]]:
    """Return which of some variables graphs are made of, and names of others that are free."""
    above = set(ancestors(graphs, blockers=stored))
    missing = [v.name for v in model.free_RVs if v in above and v not in stored]
    return [v for v in stored if v in above], missing


def leaves(
    model: pm.Model, what: Predicted, posterior: xr.Dataset, longer: Sequence[str] = ()
) -> list[Variable]:
    """Return variables of the posterior that the quantity is computed from.

    Free variables, in the model's shapes but for those that are `longer`; those that are missing
    may be hidden behind deterministic ones.
    """
    stored = [v for v in model.free_RVs if v.name in posterior]
    found, missing = read(model, what.graphs, stored)
    if missing:
        stored += [v for v in model.deterministics if v.name in posterior]
        found, missing = read(model, what.graphs, stored)
    if missing:
        raise ValueError(
            f"{SAID}: idata.posterior lacks {', '.join(map(repr, missing))}, from which "
            f"{what.name} is computed. "
            f"{to_keep(posterior, missing, model, 'Sample without var_names, or keep them.')}"
        )
    for node in toposort(what.graphs, blockers=found):
        if isinstance(node.op, RandomVariable | SymbolicRandomVariable | XRV):
            raise ValueError(
                f"{SAID}: {what.name} contains random numbers of its own ({op_name(node.op)}). "
                "Predict a function of parameters and data, or use pm.sample_posterior_predictive."
            )
    if not found:
        raise TallModelError(
            f"{SAID}: {what.name} depends on no variable of the model: there is nothing to predict."
        )
    shapes = model.eval_rv_shapes()
    for v in found:
        own, given = _dims(model, v.name), posterior[v.name].dims[2:]
        # Dimensions that the model doesn't name may have any name.
        if any(a != b for a, b in zip(own, given, strict=False) if a in model.coords):
            raise ValueError(
                f"{SAID}: idata.posterior[{v.name!r}] has the dimensions {given}, the model's "
                f"variable {own}. Pass the model that was sampled."
            )
        _refuse_other_coords(model, v.name, posterior[v.name])
        if v.name in shapes and v.name not in longer:
            refuse_other_shape(posterior, v.name, shapes[v.name], f"{SAID}: ")
    return found


def _refuse_other_coords(model: pm.Model, name: str, draws: xr.DataArray) -> None:
    """Refuse draws whose entries have other labels than in the model; 0, 1, ... are none."""
    for dim in set(draws.coords) & set(model.coords):
        own, given = pd.Index(model.coords[dim] or ()), draws.get_index(dim)
        numbers = pd.RangeIndex(len(own))
        if (
            len(own) != len(given)
            or own.equals(given)
            or numbers.equals(own)
            or numbers.equals(given)
        ):
            continue
        for k, (a, b) in enumerate(zip(own, given, strict=True)):
            if a != b and str(a) != str(b):
                raise ValueError(
                    f"{SAID}: entry {k} along {dim!r} is of {b!r} in idata.posterior[{name!r}], "
                    f"and of {a!r} in the model's coords. Pass the model that was sampled: with "
                    f"the same coords, and codes of them."
                )
