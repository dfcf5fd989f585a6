"""What `pms.loo` takes: which rows to leave out, and draws of which that can be done."""

import warnings
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_subsample.diagnostics.data_trees import signs_of
from pymc_subsample.diagnostics.drift import Drift
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.model.bambi import of_intercepts
from pymc_subsample.model.evaluation import Vector
from pymc_subsample.validation import count, is_whole, shown


def chosen_rows(value: Any) -> int | np.ndarray | None:
    """Return how many rows, or which, are to be left out; None if it is not said."""
    if isinstance(value, str) or is_whole(value):
        return count("observations", value, auto=True, smallest=2)
    index = np.asarray(value)
    if index.dtype.kind not in "iu" or index.ndim != 1 or len(index) < 2:
        raise ValueError(
            'observations must be "auto", an integer of at least 2, or row numbers, two or more; '
            f"got {shown(value)}."
        )
    return index.astype(np.int64)


def within(wanted: int | np.ndarray | None, n: int, of: str) -> int | np.ndarray | None:
    """Return the same, if there are so many of the n rows or groups."""
    if isinstance(wanted, np.ndarray):
        if wanted.min() < 0 or wanted.max() >= n or len(np.unique(wanted)) < len(wanted):
            raise ValueError(
                f"observations must be different numbers from 0 to {n - 1}, those of {of}; got "
                f"{shown(wanted)}."
            )
        return wanted
    return None if wanted is None else count("observations", wanted, n, of)


def refuse_signs(idata: xr.DataTree) -> None:
    """Refuse draws of an estimate that may be negative."""
    if signs_of(idata, "posterior", None) is not None:
        raise ValueError(
            "pms.loo: some draws carry a negative sign, and importance weights of signed draws "
            "cannot be smoothed. Sample with pms.HMCECS(), whose draws have none, or with a larger "
            "subsample until no estimate is negative."
        )


def warn_of_others(posterior: xr.Dataset, model: pm.Model) -> None:
    """Warn of variables that the model does not have."""
    known = {v.name for v in [*model.free_RVs, *model.deterministics]}
    known |= {v.name for v in model.value_vars}
    others = [str(name) for name in posterior.data_vars if name not in known]
    if others:
        warnings.warn(
            f"pms.loo: idata.posterior holds {', '.join(map(repr, others))}, which the model does "
            "not have. If another model was sampled, pass that one: the draws of one model say "
            "nothing of what another predicts.",
            stacklevel=3,
        )


def require_one(tall: TallModel, names: list[str] | None) -> None:
    """Refuse rows of which it is not clear what is left out."""
    listed = ", ".join(map(repr, tall.observed))
    if names is None and len(tall.observed) > 1:
        raise TallModelError(
            f"pms.loo: {listed} have rows. Say whose are left out: "
            f"var_name={tall.observed[0]!r}, or several names, whose rows go together."
        )
    if len(tall.rows.names) > 1:
        raise TallModelError(
            f"pms.loo: {listed} have different numbers of rows ({tall.rows.counted}), which cannot "
            "be left out together. Name one of them as var_name."
        )


def refuse_others(model: pm.Model, vector: Vector, found: Drift) -> None:
    """Refuse draws that are far from where the model's posterior is."""
    if found.is_large:
        raise ValueError(
            "pms.loo: idata holds no sample of this model's posterior: "
            f"{found.said(model, vector)}. Pass the model and the data that were sampled."
            f"{of_intercepts(model)}"
        )
