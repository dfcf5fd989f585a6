"""How models of Bambi's are told, and what results of its `fit` have otherwise than they."""

from collections.abc import Callable, Sequence

import numpy as np
import pymc as pm
import xarray as xr

# How far the most likely intercept may be from the draws' mean, the other variables at theirs: in
# standard deviations of the draws, and of an intercept of which all else is known. A choice: half
# of it is no reason to doubt a run, and an intercept that was moved is tens away.
_APART, _FAR = 0.5, 10.0
_MEND = (
    "rite bmb.Model(..., center_predictors=False), with center(x) in the formula, but not within "
    "(x | group), which Bambi does not centre."
)


def _is_bambis(posterior: xr.Dataset) -> bool:
    """Whether Bambi's fit has returned a posterior."""
    return posterior.attrs.get("modeling_interface") == "bambi"


def of_bambi(model: pm.Model) -> bool:
    """Whether Bambi has made a model."""
    return "__obs__" in model.coords


def has_rows(model: pm.Model, name: str) -> bool:
    """Whether a variable has Bambi's name for the rows among its dimensions."""
    return "__obs__" in model.named_vars_to_dims.get(name, ())


def _intercepts(model: pm.Model) -> list[str]:
    """Return the free variables that Bambi names so."""
    return [v.name for v in model.free_RVs if v.name.split("_")[-1] == "Intercept"]


def may_be_moved(model: pm.Model, posterior: xr.Dataset) -> list[str]:
    """Return the intercepts of a model that Bambi's fit may have moved in a posterior."""
    return _intercepts(model) if _is_bambis(posterior) else []


def of_intercepts(model: pm.Model) -> str:
    """Say what Bambi's fit does, of a model with its intercept; else nothing."""
    if not _intercepts(model):
        return ""
    return (
        " Results of Bambi's fit have the intercept moved, for predictors that its model centres: "
        f"w{_MEND}"
    )


def refuse_intercept(
    name: str, sd: np.ndarray, heights: Callable[[np.ndarray], np.ndarray], said: str
) -> None:
    """Refuse draws of Bambi's with an intercept that is not the model's: a Newton step says so.

    `heights` returns log densities, shape (3,), at the mean of the draws with the intercept, which
    has standard deviation `sd`, moved by arrays of shape (3, ...).
    """
    for k in np.ndindex(sd.shape):
        moves = np.zeros((3, *sd.shape))
        moves[(..., *k)] = [-sd[k], 0, sd[k]]
        low, middle, high = heights(moves)
        # In units of `sd`, in which the conditional sd is 1 / sqrt(curvature).
        slope, curvature = (high - low) / 2, 2 * middle - low - high
        step = slope / curvature if curvature > 0 else np.inf * abs(slope)
        # Where nothing is a number, or the density is flat, the intercept is far from anywhere.
        if not abs(step) <= max(_APART, _FAR / np.sqrt(max(curvature, np.finfo(float).tiny))):
            raise ValueError(
                f"{said}: {name!r} in idata is not that of the PyMC model: Bambi's fit moves it "
                f"where the model centres predictors. W{_MEND} Bambi's own model.predict takes it "
                "as it is."
            )


def to_keep(posterior: xr.Dataset, missing: Sequence[str], model: pm.Model, otherwise: str) -> str:
    """Say how a run keeps variables that a posterior lacks.

    Bambi's fit drops standardised effects; with what it does to the model's intercept, so that one
    more fit is enough.
    """
    if not (_is_bambis(posterior) and any(name.endswith("_offset") for name in missing)):
        return otherwise
    return (
        "Bambi's fit drops standardised effects: keep them by fit(..., omit_offsets=False)."
        f"{of_intercepts(model)}"
    )
