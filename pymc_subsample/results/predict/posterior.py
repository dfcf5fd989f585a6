"""Draws of a posterior, as a model has its variables."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pymc as pm
import xarray as xr
from pymc.distributions.distribution import SymbolicRandomVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.random.op import RandomVariable
from pytensor.xtensor.vectorization import XRV

from pymc_subsample.diagnostics.data_trees import SAMPLE_DIMS
from pymc_subsample.model.bambi import to_keep
from pymc_subsample.model.errors import TallModelError, op_name
from pymc_subsample.results.predict.quantity import SAID, Predicted


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


def leaves(
    model: pm.Model, what: Predicted, posterior: xr.Dataset, longer: Sequence[str] = ()
) -> list[Variable]:
    """Return variables of the posterior that the quantity is computed from.

    Free variables, in the model's shapes but for those that are `longer`; those that are missing
    may be hidden behind deterministic ones.
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
            "is made. "
            f"{to_keep(posterior, missing, model, 'Sample without var_names, or keep them.')}"
        )
    found = [v for v in stored if v in seen]
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
        shape = posterior[v.name].shape[2:]
        expected = tuple(map(int, shapes[v.name])) if v.name in shapes else shape
        if shape != expected and v.name not in longer:
            raise ValueError(
                f"{SAID}: idata.posterior[{v.name!r}] has shape {shape} per draw, the model's "
                f"variable {expected}. Pass the model that was sampled."
            )
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
