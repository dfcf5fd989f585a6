"""What was estimated, as ArviZ has it."""

from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from arviz_stats.utils import ELPDData, ELPDDataLOO, ELPDDataLOOSubsample

from pymc_subsample.results.loo.estimate import Estimate, LeftOut
from pymc_subsample.results.loo.groups import Groups


def labels(
    model: pm.Model, observed: str, given: Any, leaving: Groups | None
) -> tuple[str, np.ndarray | None]:
    """Return the dimension of what is left out, and its coordinates if it has any."""
    if leaving is not None:
        return (given if isinstance(given, str) else "group"), leaving.labels
    dims = model.named_vars_to_dims.get(observed, ())
    return (dims[0] if len(dims) == 1 else f"{observed}_dim_0"), None


def elpd_data(
    left: LeftOut,
    found: Estimate,
    good_k: float,
    warned: bool,
    dim: str,
    coords: np.ndarray | None,
) -> ELPDData:
    """Return sums over all rows, or groups, and what is known of each, with these labels."""

    def array(values: np.ndarray, name: str) -> xr.DataArray:
        return xr.DataArray(values, {} if coords is None else {dim: coords}, [dim], name)

    read = np.where(np.isnan(left.elpd), found.approx, left.elpd)
    common: dict[str, Any] = {
        "elpd": found.elpd,
        "se": found.se,
        "p": found.p,
        "n_samples": left.draws,
        "n_data_points": left.n,
        "scale": "log",
        "warning": warned,
        "good_k": good_k,
        "elpd_i": array(read, "elpd_i"),
        "pareto_k": array(left.k, "pareto_k"),
    }
    if len(found.sample) == left.n:
        return ELPDDataLOO(**common)
    return ELPDDataLOOSubsample(
        **common,
        subsample_size=len(found.sample),
        subsampling_se=found.subsampling_se,
        loo_subsample_observations=found.sample,
        elpd_loo_approx=array(found.approx, "elpd_loo_approx"),
    )
