"""What was estimated, as ArviZ has it, and where it is not to be trusted."""

import logging
import warnings
from time import perf_counter
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from arviz_stats.utils import ELPDData, ELPDDataLOO, ELPDDataLOOSubsample
from scipy.stats import binomtest

from pymc_subsample.results.loo.arguments import Groups
from pymc_subsample.results.loo.estimate import Estimate, LeftOut
from pymc_subsample.results.loo.expanded import Approximation


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


_log = logging.getLogger("pymc.subsample")
# Log-likelihoods of rows that take some seconds, and groups that are looked at before. A choice
# of patience; if none of three that matter most is doubtful, few others are.
_LONG, _LOOKED_AT = 3 * 10**8, 3


def say_beforehand(left: LeftOut, known: Approximation, enough: float, first: int) -> None:
    """Leave out the groups that matter most, where all take long, and say so if a k is large.

    One after the other, so that the first that is above `enough` is told before more are read.
    `first` are the groups that will be read at least.
    """
    effect = np.argsort(-np.abs(known.elpd - known.level))
    work = left.rows_in(np.arange(min(left.n, first))) * left.draws
    if work < _LONG:
        return
    start = perf_counter()
    for k in range(min(_LOOKED_AT, left.n)):
        left.read(effect[[k]])
        if left.k[effect[k]] > enough:
            spent, seen = perf_counter() - start, effect[: k + 1]
            seconds = spent * (work / (left.rows_in(seen) * left.draws) - 1)
            which = f"one of the {k + 1} groups that matter" if k else "the group that matters"
            _log.warning(
                f"pms.loo: Pareto k is {left.k[effect[k]]:.2f}, above {enough:.2f}, in {which} "
                f"most. Leaving out the others takes about {seconds:,.0f} s; interrupt it if this "
                "is enough, and use arviz_stats.loo_kfold, which fits without them."
            )
            return


def warn_of_k(
    left: LeftOut, found: Estimate, outlying: np.ndarray, good_k: float, what: str
) -> bool:
    """Say of how many rows Pareto k is large, and of about how many of all."""
    high = left.k > good_k
    if not high.any():
        return False
    others = np.setdiff1d(found.sample, outlying)
    said = f"in {high.sum():,} of the {np.sum(~np.isnan(left.elpd)):,} {what} that were read"
    if len(found.sample) < left.n:
        sure, rest = int(high[outlying].sum()), left.n - len(outlying)
        counted = binomtest(int(high[others].sum()), max(len(others), 1))
        share = counted.proportion_ci(method="exact")
        least, most = (100 * (sure + rest * p) / left.n for p in (share.low, share.high))
        middle = 100 * (sure + rest * counted.statistic) / left.n
        said += (
            f", {sure} of them among the {len(outlying)} that matter most: {middle:.2g}% of all "
            f"{left.n:,} {what} (95% interval {least:.2g}% to {most:.2g}%)"
        )
    warnings.warn(
        f"pms.loo: the estimated shape parameter of the Pareto distribution, k, is above "
        f"{good_k:.2f} {said}. Their log predictive densities, and with them elpd and its errors, "
        "cannot be trusted: the posterior without them is far from the one with them. A more "
        "robust model has fewer; arviz_stats.loo_kfold fits without them.",
        stacklevel=3,
    )
    return True
