"""How models of Bambi's are told, and what results of its `fit` have otherwise than they."""

from collections.abc import Sequence

import pymc as pm
import xarray as xr


def is_bambis(posterior: xr.Dataset) -> bool:
    """Whether Bambi's fit has returned a posterior."""
    return posterior.attrs.get("modeling_interface") == "bambi"


def of_bambi(model: pm.Model) -> bool:
    """Whether Bambi has made a model."""
    return "__obs__" in model.coords


def has_rows(model: pm.Model, name: str) -> bool:
    """Whether a variable has Bambi's name for the rows among its dimensions."""
    return "__obs__" in model.named_vars_to_dims.get(name, ())


def intercepts(model: pm.Model) -> list[str]:
    """Return the free variables that Bambi names so."""
    return [v.name for v in model.free_RVs if v.name.split("_")[-1] == "Intercept"]


def of_intercepts(model: pm.Model) -> str:
    """Say what Bambi's fit does, of a model with its intercept; else nothing."""
    if not intercepts(model):
        return ""
    return (
        " Results of Bambi's fit have the intercept moved, for predictors that its model centres: "
        "write bmb.Model(..., center_predictors=False), with center(x) in the formula, but not "
        "within (x | group), which Bambi does not centre."
    )


def to_keep(posterior: xr.Dataset, missing: Sequence[str], model: pm.Model, otherwise: str) -> str:
    """Say how a run keeps variables that a posterior lacks.

    Bambi's fit drops standardised effects; with what it does to the model's intercept, so that one
    more fit is enough.
    """
    if not (is_bambis(posterior) and any(name.endswith("_offset") for name in missing)):
        return otherwise
    return (
        "Bambi's fit drops standardised effects: keep them by fit(..., omit_offsets=False)."
        f"{of_intercepts(model)}"
    )
