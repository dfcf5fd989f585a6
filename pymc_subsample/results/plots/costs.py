"""What was got for what was spent: effective draws and errors of means, by rows read or time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from arviz_plots import PlotCollection, visuals

from pymc_subsample.diagnostics.checks import SHIFT_BOUND
from pymc_subsample.diagnostics.data_trees import (
    SAMPLE_DIMS,
    apply,
    check_selection,
    draws_of,
    require_tree,
    signs_of,
)
from pymc_subsample.diagnostics.integrals import counted, worded
from pymc_subsample.diagnostics.reading_draws import sample_stats
from pymc_subsample.diagnostics.signed import ess_bulk
from pymc_subsample.results.efficiency import refuse_parts, subsampling_statistics
from pymc_subsample.results.plots.figures import GREY, collection, decorate, named, picture
from pymc_subsample.validation import choice, count

_FIRST, _FEWEST_DRAWS = 5, 20  # Draws at the first point, and fewest for effective sample sizes.
_MOST_POINTS = 1000  # More than a picture has pixels to show.
_COSTS = {"evaluations": "Row evaluations of a chain", "seconds": "Seconds of the run"}


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
    evaluations = worded("Row evaluations", counted(map(sample_stats, named(runs).values())))
    labels = {"xlabel": evaluations, "ylabel": "Smallest effective sample size"}
    pc, points = _curves("ess", lines, labels, backend, pc_kwargs)
    pc.map(visuals.scatter_xy, "points", data=points)
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


@picture
def plot_error_against_cost(
    runs: xr.DataTree | Mapping[str, xr.DataTree],
    var_names: str | Sequence[str] | None = None,
    *,
    reference: xr.DataTree,
    cost: str = "evaluations",
    filter_vars: str | None = None,
    coords: Mapping[str, Any] | None = None,
    n_points: int = 40,
    backend: str | None = None,
    **pc_kwargs: Any,
) -> PlotCollection:
    r"""Plot how far the means of the first draws are off, against what these draws have cost.

    Each line is a run: after k draws of a chain, the error of its running means

    .. math:: \sqrt{\frac{1}{CP} \sum_{c,p} \Bigl(\frac{\bar\theta_{cp}^{(k)} - \mu_p}{\sigma_p}
              \Bigr)^2}

    over C chains and P elements, with means :math:`\mu` and standard deviations :math:`\sigma` of
    `reference`: what to expect of one chain. Exact samplers fall like one over the root of the
    cost, down to the error of the reference itself, the dashed line; one that is perturbed stops
    falling at its bias. The dotted line is the error of a mean that the checks tolerate. Log-log
    scales. Signed draws are weighed by their signs.

    Parameters
    ----------
    runs : xarray.DataTree or mapping of str to xarray.DataTree
        Results of `pm.sample` by name: of this package's step methods, or of NUTS.
    var_names, filter_vars, coords
        Variables to look at, in all runs and the reference. As for `summary`.
    reference : xarray.DataTree
        A long run that is right, such as NUTS on all rows.
    cost : {"evaluations", "seconds"}, default "evaluations"
        "evaluations": of single rows by a chain after tuning; of a run of NUTS, two per row of its
        largest observed variable and gradient. "seconds": the run's wall-clock time as PyMC
        measures it, tuning included and spread evenly over all draws; set-up is not in it.
    n_points : int, default 40
        Points per line, from 5 draws of each chain up to all.

    Raises
    ------
    TypeError
        If `runs` or `reference` hold anything but DataTrees.
    ValueError
        If a run does not say what it cost, was thinned, or lacks variables or elements that the
        reference has; if the reference has none that vary, or an argument is out of range.

    Examples
    --------
    >>> runs = {"HMCECS": idata}
    >>> pc = pms.plot_error_against_cost(runs, reference=idata)
    """
    count("n_points", n_points, smallest=2, most=_MOST_POINTS)
    choice("cost", cost, tuple(_COSTS))
    require_tree(reference, "reference")
    mean, sd, noise = _moments(reference, var_names, filter_vars, coords)
    lines = {}
    for name, idata in named(runs).items():
        label = name or "the run"
        check_selection(idata, var_names, filter_vars, coords=coords)
        spent = _spent(idata, label, cost, coords or {})
        ends = np.unique(np.geomspace(_FIRST, len(spent), n_points).round().astype(int))
        ends = ends[ends <= len(spent)]
        draws = draws_of(idata, var_names, filter_vars, "posterior", coords)
        error = _errors(draws, signs_of(idata, "posterior", coords), mean, sd, ends, label)
        pad = np.full(n_points - len(ends), np.nan)
        lines[name] = [np.append(spent[ends - 1], pad), np.append(error, pad)]
    of = counted(map(sample_stats, named(runs).values()))
    labels = {"xlabel": worded(_COSTS[cost], of), "ylabel": "Error of means, posterior sds"}
    pc, _ = _curves("error", lines, labels, backend, pc_kwargs)
    plain: dict[str, Any] = {"ignore_aes": "all", "color": GREY}
    tolerated, known = (xr.Dataset({"error": value}) for value in (SHIFT_BOUND, noise))
    pc.map(visuals.hline, "tolerated", data=tolerated, linestyle="C2", **plain)
    pc.map(visuals.hline, "reference", data=known, linestyle="C1", **plain)
    return pc


def _moments(
    reference: xr.DataTree, var_names: Any, filter_vars: Any, coords: Any
) -> tuple[xr.Dataset, xr.Dataset, float]:
    """Means and standard deviations of elements that vary, NaN elsewhere, and the means' error."""
    check_selection(reference, var_names, filter_vars, coords=coords)
    draws = draws_of(reference, var_names, filter_vars, "posterior", coords)
    mean, sd = draws.mean(SAMPLE_DIMS), draws.std(SAMPLE_DIMS)
    sd = sd.where(sd > 0)
    if not any(np.isfinite(values).any() for values in sd.values()):
        raise ValueError("reference: no element of its variables varies.")
    relative = draws.azstats.mcse(sample_dims=SAMPLE_DIMS, method="mean") / sd
    return mean, sd, _root_mean_square([values.values for values in relative.values()])


def _errors(
    draws: xr.Dataset,
    signs: xr.DataArray | None,
    mean: xr.Dataset,
    sd: xr.Dataset,
    ends: np.ndarray,
    label: str,
) -> np.ndarray:
    """Errors of running means after some draws, in sds, over chains and elements."""
    weight = xr.ones_like(draws["draw"], float) if signs is None else signs
    parts = []
    for name, mu in mean.items():
        if name not in draws or draws[name].isel(chain=0, draw=0).shape != mu.shape:
            raise ValueError(
                f"runs: {label} has no {str(name)!r} of the shape that reference has, {mu.shape}. "
                "Choose variables that all have: var_names=."
            )
        sums = (weight * draws[name]).cumsum("draw") / weight.cumsum("draw")
        some = sums.isel(draw=ends - 1).transpose("draw", "chain", ...).values
        scaled = (some - mu.values) / sd[name].values
        parts.append(scaled.reshape(len(ends), -1))
    return np.array([_root_mean_square([row]) for row in np.concatenate(parts, axis=1)])


def _root_mean_square(parts: Sequence[np.ndarray]) -> float:
    values = np.concatenate([np.ravel(part) for part in parts])
    return float(np.sqrt(np.nanmean(values**2)))


def _spent(idata: xr.DataTree, label: str, cost: str, coords: Mapping[str, Any]) -> np.ndarray:
    """Return what the first draws had cost, for growing numbers of them."""
    stats = sample_stats(idata)
    refuse_parts(stats, coords)
    if cost == "seconds":
        attrs, draws = idata["posterior"].attrs, idata["posterior"].sizes["draw"]
        if "sampling_time" not in attrs:
            raise ValueError(
                f'runs: {label} does not hold the time that it took, which cost="seconds" needs. '
                "PyMC keeps it as the posterior's attribute sampling_time."
            )
        tune = int(attrs.get("tuning_steps", 0))
        share = (tune + 1 + np.arange(draws)) / (tune + draws)
        return float(attrs["sampling_time"]) * share
    if "n_evaluations" in stats:
        of_draws = stats["n_evaluations"]
    elif "n_steps" in stats and "observed_data" in idata.children:
        observed = idata["observed_data"].to_dataset()
        rows = max(values.shape[0] if values.ndim else 1 for values in observed.values())
        of_draws = 2 * rows * stats["n_steps"]
    else:
        raise ValueError(
            f"runs: {label} does not say how many rows it evaluated: its sample_stats have neither "
            "'n_evaluations', which this package's steps record, nor NUTS's 'n_steps' together "
            f"with observed data. They hold {sorted(map(str, stats))}. "
            'cost="seconds" needs neither.'
        )
    of_steps = of_draws.sum([d for d in of_draws.dims if d not in SAMPLE_DIMS])
    return of_steps.mean("chain").cumsum("draw").values


def _curves(
    name: str,
    lines: Mapping[str, list],
    labels: Mapping[str, str],
    backend: str | None,
    pc_kwargs: dict[str, Any],
) -> tuple[PlotCollection, xr.Dataset]:
    """Return a figure with a line per run, of points x and y on logarithmic scales, and these."""
    points = xr.DataArray(
        list(lines.values()),
        dims=["run", "plot_axis", "point"],
        coords={"run": list(lines), "plot_axis": ["x", "y"]},
    ).to_dataset(name=name)
    pc = collection(points, [], (6.4, 4.2), backend, pc_kwargs, color="run")
    pc.map(visuals.line_xy, "lines", data=points)
    decorate(pc, points, **labels, xscale="log", yscale="log")
    if len(lines) > 1:
        pc.add_legend("run", title="")
    return pc, points
