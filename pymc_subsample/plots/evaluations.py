"""What effective draws cost as a run goes on."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from arviz_plots import PlotCollection, visuals

from pymc_subsample.diagnostics.draws import SAMPLE_DIMS, apply, check_selection, draws_of, signs_of
from pymc_subsample.diagnostics.efficiency import refuse_parts, subsampling_statistics
from pymc_subsample.diagnostics.signed import ess_bulk
from pymc_subsample.plots.parts import curves, named, picture
from pymc_subsample.validation import count

_FEWEST_DRAWS = 20
_MOST_POINTS = 1000


@picture
def plot_evaluations(
    runs: xr.DataTree | Mapping[str, xr.DataTree],
    var_names: str | Sequence[str] | None = None,
    *,
    filter_vars: str | None = None,
    coords: Mapping[str, Any] | None = None,
    n_points: int = 10,
    backend: str | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    """Plot effective sample sizes against row evaluations, for growing numbers of draws.

    Each line is a run, each point its first draws: how many row evaluations all its chains
    had spent on them, and the smallest bulk effective sample size of the variables by then (of
    signed draws that of `summary`). Lines further up or left are cheaper. Log-log scales.

    Parameters
    ----------
    runs : xarray.DataTree or mapping of str to xarray.DataTree
        Results of `pm.sample` with step methods of this package, by name.
    var_names, filter_vars, coords
        Variables to look at, in all runs. As for `summary`.
    n_points : int, default 10
        Points per line, from 20 draws of each chain up to all.

    Raises
    ------
    TypeError
        If `runs` holds anything but DataTrees.
    ValueError
        If one lacks the statistics, was thinned or has fewer than 20 draws per chain, if `n_points`
        is not an integer from 2 up, or if signs are unfit (see `summary`).

    Notes
    -----
    Evaluations of the tuning phase are not in the results of `pm.sample`, nor here.

    Examples
    --------
    >>> pc = pms.plot_evaluations({"HMCECS": idata}, var_names=["b"])
    """
    count("n_points", n_points, smallest=2, most=_MOST_POINTS)
    lines = {}
    for name, idata in named(runs).items():
        stats = subsampling_statistics(idata, "n_evaluations")
        check_selection(idata, var_names, filter_vars, coords=coords)
        refuse_parts(stats, coords or {})
        of_draws = stats["n_evaluations"]
        spent = of_draws.sum([d for d in of_draws.dims if d != "draw"]).cumsum("draw").values
        if len(spent) < _FEWEST_DRAWS:
            raise ValueError(
                f"runs: {name or 'the result'} has {len(spent)} draws per chain; effective sample "
                f"sizes need at least {_FEWEST_DRAWS}."
            )
        signs = signs_of(idata, "posterior", coords)
        draws = draws_of(idata, var_names, filter_vars, "posterior", coords)
        ends = np.geomspace(_FEWEST_DRAWS, len(spent), n_points).round().astype(int)
        lines[name] = [spent[ends - 1], [_smallest_ess(draws, signs, end) for end in ends]]
    labels = {"xlabel": "Row evaluations", "ylabel": "Smallest effective sample size"}
    pc, points = curves("ess", lines, labels, backend, pc_kwargs)
    pc.map(visuals.scatter_xy, "points", data=points)
    if len(lines) > 1:
        pc.add_legend("run", title="")
    return pc


def _smallest_ess(draws: xr.Dataset, signs: xr.DataArray | None, end: int) -> float:
    """Smallest effective sample size of the first draws."""
    first = draws.isel(draw=slice(0, end))
    if signs is None:
        ess = first.azstats.ess(sample_dims=SAMPLE_DIMS, method="bulk")
    else:
        ess = apply(
            lambda v, s: np.array([ess_bulk(v, s)]), first, signs.isel(draw=slice(0, end)), "ess"
        )
    lost = [str(name) for name, values in ess.items() if values.isnull().any()]
    if lost:
        raise ValueError(
            f"var_names: draws of {', '.join(lost)} are NaN, or too few that move, and have no "
            "effective sample size. Choose other variables."
        )
    return min(float(values.min()) for values in ess.values())
