"""What effective draws cost: evaluations of rows, or of units, and seconds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pymc_subsample.diagnostics.data_trees import (
    KEEP_DIMS,
    SAMPLE_DIMS,
    check_selection,
    require_tree,
)
from pymc_subsample.diagnostics.integrals import counted
from pymc_subsample.diagnostics.reading_draws import sample_stats, sampled_rows
from pymc_subsample.results.expectations import summary


def efficiency(
    idata: xr.DataTree,
    var_names: str | Sequence[str] | None = None,
    *,
    filter_vars: str | None = None,
    coords: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Return effective draws per variable, and what they cost in evaluations and time.

    Parameters
    ----------
    idata : xarray.DataTree
        Result of `pm.sample` with a step method of this package, not thinned.
    var_names, filter_vars
        As for `summary`.
    coords : mapping, optional
        Elements of variables to look at, by dimension; chains and draws cannot be selected.

    Returns
    -------
    pandas.DataFrame
        A row per element of a variable, with columns

        - `ess_bulk`: effective sample size of all chains, of signed draws that of `summary`.
        - `evaluations_per_effective_draw`: row evaluations (log-likelihoods of single rows; a
          gradient counts as one more) of all chains after tuning, per effective draw. Units (all
          rows of a level) take the place of rows in a run that integrated effects out.
        - `passes_per_effective_draw`: the same in units of the number of rows; NaN where `rows` is.
        - `effective_draws_per_second`: per second of the run's wall-clock time as PyMC measures it
          (`sampling_time`), which covers all chains and their tuning but not the set-up of the step
          method. NaN where the result doesn't hold it, or lacks the run's first draws or a chain
          before its last, so that it is known not to be all that was timed.
        - `data_share`: rows that a decision or gradient reads, as a share of all rows (for
          `AusterityGibbs` of those that touch a variable), mean over draws.
        - `rows`, or `units`: their number; NaN for `AusterityGibbs` and `ScalableMH`, which don't
          record it.

        The evaluations of several such step methods in one run are added. `data_share` is then NaN,
        and so is that of rows unless all steps record the same number.

    Raises
    ------
    TypeError
        If `idata` is not a DataTree.
    ValueError
        If `sample_stats` lacks what this package's step methods record, or draws are left out, so
        that their cost is unknown; for signed draws also as `summary`.

    Warns
    -----
    UserWarning
        As `summary`.

    Notes
    -----
    Evaluations compare algorithms; seconds also compare implementations, and depend on the
    machine. Tuning is in the seconds but not in the evaluations, which PyMC drops along with the
    draws of the tuning phase.

    Examples
    --------
    >>> table = pms.efficiency(idata)
    >>> table["evaluations_per_effective_draw"]
    """
    stats = subsampling_statistics(idata, "n_evaluations", "data_share")
    check_selection(idata, var_names, filter_vars, coords=coords)
    refuse_parts(stats, coords or {})
    table = summary(
        idata, var_names, filter_vars=filter_vars, coords=coords, kind="diagnostics",
        round_to="none",
    )  # fmt: skip
    rows, steps = float(sampled_rows(idata) or np.nan), per_step(stats, ["data_share"])
    share = float(steps[0]["data_share"].mean()) if len(steps) == 1 else np.nan
    ess = table["ess_bulk"]
    seconds = idata["posterior"].attrs.get("sampling_time", np.nan) if _whole(stats) else np.nan
    evaluations = float(stats["n_evaluations"].sum())
    return pd.DataFrame(
        {
            "ess_bulk": ess,
            "evaluations_per_effective_draw": evaluations / ess,
            "passes_per_effective_draw": evaluations / rows / ess,
            "effective_draws_per_second": ess / float(seconds),
            "data_share": share,
            counted([stats]): rows,
        }
    )


def subsampling_statistics(idata: xr.DataTree, *names: str) -> xr.Dataset:
    """Return `sample_stats`; refuse a result that lacks any of the named statistics."""
    require_tree(idata)
    stats = sample_stats(idata)
    missing = [name for name in names if name not in stats]
    if missing:
        raise ValueError(
            f"idata.sample_stats has no {' and no '.join(map(repr, missing))}; it has "
            f"{sorted(map(str, stats)) or 'nothing'}. This needs the result of pm.sample with a "
            "step method of pymc_subsample that records it."
        )
    return stats


def per_step(stats: xr.Dataset, names: Sequence[str]) -> list[xr.Dataset]:
    """Return some statistics of each step method of a run, with dimensions chain and draw.

    PyMC gives a statistic that several steps record a third dimension. Where only some of the named
    ones have it, the first of them without it says whose it is: a step's share of the rows is
    proportional to its batches. Refuses what lacks chain or draw, or is of no clear step.
    """
    of = {}
    for name in names:
        values = stats[name]
        if not set(SAMPLE_DIMS) <= set(values.dims):
            raise ValueError(
                f"sample_stats[{name!r}] must have the dimensions chain and draw, got "
                f"{values.dims}. {KEEP_DIMS}"
            )
        steps = [d for d in values.dims if d not in SAMPLE_DIMS]
        of[name] = (
            [values]
            if not steps
            else [values.isel({steps[0]: k}, drop=True) for k in range(values.sizes[steps[0]])]
        )
    count = max(map(len, of.values()))
    for name, found in of.items():
        if len(found) not in (1, count):
            raise ValueError(f"sample_stats[{name!r}] is of other step methods than the rest.")
    single = [found[0] for found in of.values() if len(found) == 1]
    if count > 1 and single:
        first = single[0]
        for name, found in of.items():
            if len(found) > 1:
                of[name] = [min(found, key=lambda x: _unevenness(first, x))]
        count = 1
    return [xr.Dataset({name: found[k] for name, found in of.items()}) for k in range(count)]


def _unevenness(size: xr.DataArray, share: xr.DataArray) -> float:
    """Return how far two statistics are from being proportional."""
    ratio = (size / share).values
    ratio = ratio[np.isfinite(ratio)]
    return float(np.std(ratio) / np.mean(ratio)) if len(ratio) else np.inf


def _whole(stats: xr.Dataset) -> bool:
    """Whether no draw or chain is known to be missing before the last one."""
    labels = [stats[d].values for d in SAMPLE_DIMS if d in stats.coords]
    return all(np.array_equal(x, np.arange(len(x))) for x in labels)


def refuse_parts(stats: xr.Dataset, coords: Mapping[str, Any]) -> None:
    """Refuse parts of a run, chains, draws or thinned ones, whose cost is not known."""
    selected = [d for d in ("chain", "draw") if d in coords]
    if selected:
        raise ValueError(
            f"coords selects by {' and '.join(selected)}, but the cost of a run is known only for "
            "all of its chains and draws. Select elements of variables."
        )
    if "draw" in stats.coords and np.any(np.diff(stats["draw"]) != 1):
        raise ValueError(
            "idata was thinned, and what the dropped draws cost went with them. Give the result "
            "as pm.sample returned it."
        )
