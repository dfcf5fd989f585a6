"""How subsamples fared, and at how many rows minibatch tests decided."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from arviz_plots import PlotCollection, visuals

from pymc_subsample.diagnostics.integrals import counted, worded
from pymc_subsample.results.efficiency import per_step, subsampling_statistics
from pymc_subsample.results.plots.figures import GREY, collection, decorate, dot, named, picture, xy
from pymc_subsample.samplers.hmc_ecs.checks import NOISE, REFRESH

# Over which numbers are averaged. A choice: what a panel shows apart.
_WINDOWS = 50
_PANELS = {
    "subset_accepted": ("Refreshes accepted", REFRESH.bound),
    "loglik_variance": ("Variance of estimate", NOISE.bound),
    "loglik_ratio_variance": ("Variance of log-ratio", None),
    "n_bright": ("Bright rows", None),
    "data_share": ("Share of rows", None),
}


@picture
def plot_subsample(
    idata: xr.DataTree, *, backend: str | None = None, **pc_kwargs: Any
) -> PlotCollection:
    """Plot how the subsample fared over the draws of each chain.

    A panel each for the share of accepted refreshes of the subsample, the variance of the
    estimate, the number of bright rows of `FireflyMC` and the share of the rows that is in use, as
    far as the step method records them. Lines are
    means over some fifty stretches of a chain, points single draws; dashed lines are the bounds
    of the checks at the end of a chain. Where several such step methods made the run, what more
    than one of them records has a panel for each, in their order.

    Parameters
    ----------
    idata : xarray.DataTree
        Result of `pm.sample` with a step method of this package.

    Raises
    ------
    TypeError
        If `idata` is not a DataTree.
    ValueError
        If it lacks the statistics, or they have lost the dimension chain or draw.

    Examples
    --------
    >>> pc = pms.plot_subsample(idata)
    >>> pc.savefig("subsample.png")
    """
    traced = traces(subsampling_statistics(idata, "data_share"), _PANELS)
    stats = traced.stats
    figsize = (4.2 * len(stats), 3.4)
    pc = collection(stats, ["__variable__"], figsize, backend, pc_kwargs, color="chain")
    draw_traces(pc, traced)
    if stats.sizes["chain"] > 1:
        pc.add_legend("chain")
    return pc


class Traces(NamedTuple):
    """Statistics, shape (chain, draw), by the names of their panels; titles and bounds of these."""

    stats: xr.Dataset
    titles: dict[str, str]
    bounds: dict[str, float]


def traces(stats: xr.Dataset, panels: Mapping[str, tuple[str, float | None]]) -> Traces:
    """Return what is drawn of some statistics, apart where several steps record them."""
    found, titles, bounds, of = {}, {}, {}, counted([stats])
    for name in (name for name in panels if name in stats):
        title, bound = panels[name]
        title = worded(title, of)
        steps = per_step(stats, [name])
        for k, step in enumerate(steps, start=1):
            several = len(steps) > 1
            label = f"{k} {name}" if several else name
            found[label] = step[name]
            titles[label] = f"{title}, step {k}" if several else title
            if bound is not None:
                bounds[label] = bound
    return Traces(xr.Dataset(found), titles, bounds)


def draw_traces(pc: PlotCollection, traced: Traces) -> None:
    """Draw means over stretches of each chain, noisy draws and bounds, one panel per statistic."""
    stats, titles, bounds = traced
    noisy = stats[[name for name in titles if name.endswith("variance")]]
    if noisy.data_vars:
        pc.map(
            visuals.scatter_xy, "draws", data=xy(noisy["draw"], noisy), alpha=0.25, size=dot(pc, 3)
        )
    stretch = max(stats.sizes["draw"] // _WINDOWS, 1)
    means = stats.coarsen(draw=stretch, boundary="trim").mean()
    pc.map(visuals.line_xy, "means", data=xy(means["draw"], means))
    if bounds:
        line = {"ignore_aes": "all", "color": GREY, "linestyle": "C1"}
        pc.map(visuals.hline, "bounds", data=xr.Dataset(bounds), **line)
    for name, title in titles.items():
        values = stats[name].values
        top = max(values[np.isfinite(values)].max(initial=0), bounds.get(name, 0)) or 1.0
        ylim = (-0.03 * top, 1.08 * top)
        decorate(pc, stats[[name]], title=title, xlabel="Draw", ylim=ylim)


# Of a histogram. A choice.
_BINS = 40


@picture
def plot_batch_sizes(
    runs: xr.DataTree | Mapping[str, xr.DataTree], *, backend: str | None = None, **pc_kwargs: Any
) -> PlotCollection:
    """Plot histograms of the batches at which minibatch tests decided, on log-log scales.

    As figure 2 of [1]_. All runs share bins and axes. A dashed line is the mean, a dotted one the
    number of rows (for `AusterityGibbs` of those that touch a variable, on average). Draws that
    read no row are left out. Several such step methods in one run have a histogram each.

    Parameters
    ----------
    runs : xarray.DataTree or mapping of str to xarray.DataTree
        Results of `pm.sample` with step methods that decide on a growing batch, by name.
        A recorded batch size is the mean over the decisions of a draw.

    Raises
    ------
    TypeError
        If `runs` holds anything but DataTrees.
    ValueError
        If one lacks the statistics, or they have lost the dimension chain or draw.

    References
    ----------
    .. [1] D. Seita, X. Pan, H. Chen and J. Canny (2017). An efficient minibatch acceptance test for
       Metropolis-Hastings. UAI.

    Examples
    --------
    >>> runs = {}
    >>> with model:
    ...     runs["t-test"] = pm.sample(step=pms.AusterityMH())
    ...     runs["Barker"] = pm.sample(step=pms.MinibatchBarkerMH())
    >>> pc = pms.plot_batch_sizes(runs)
    """
    sizes, rows, of = {}, {}, {}
    for name, idata in named(runs).items():
        stats = subsampling_statistics(idata, "batch_size", "data_share")
        steps = per_step(stats, ["batch_size", "data_share"])
        for k, step in enumerate(steps, start=1):
            label = ", ".join(filter(None, [name, f"step {k}" if len(steps) > 1 else ""]))
            sizes[label] = step["batch_size"].values.ravel().astype(float)
            of[label] = stats
            rows[label] = float((step["batch_size"].mean() / step["data_share"].mean()).round())
    lowest = min(s.min(where=s > 0, initial=np.inf) for s in sizes.values())
    first, last = np.floor(np.log10(lowest)), np.ceil(np.log10(max(rows.values())))
    decades = 10.0 ** np.array([first, max(last, first + 1)])
    edges = np.geomspace(decades[0], decades[1], _BINS + 1)
    counts = [np.histogram(s, edges)[0] for s in sizes.values()]
    run = {"run": list(sizes)}
    bars = xr.DataArray(
        [[edges[:-1], edges[1:], count] for count in counts],
        dims=["run", "plot_axis", "bin"],
        coords=run | {"plot_axis": ["left_edges", "right_edges", "histogram"]},
    ).to_dataset(name="batch_size")
    means = xr.Dataset({"batch_size": ("run", [s.mean() for s in sizes.values()])}, run)
    columns = min(len(sizes), 4)
    figsize = (3.6 * columns + (columns == 1), 3.4 * -(-len(sizes) // columns))
    pc = collection(means, ["run"], figsize, backend, pc_kwargs, sharex=True, sharey=True)
    pc.map(visuals.hist, "bars", data=bars, color="C0", alpha=0.6)
    pc.map(visuals.vline, "mean", data=means, color="black", linestyle="C1")
    of_rows = xr.Dataset({"batch_size": ("run", list(rows.values()))}, run)
    pc.map(visuals.vline, "rows", data=of_rows, color=GREY, linestyle="C2")
    for name, size in sizes.items():
        said = f"mean {size.mean():,.0f} of {rows[name]:,.0f} {counted([of[name]])}"
        decorate(pc, means.sel(run=[name]), title=f"{name}\n{said}" if name else said)
    decorate(pc, means.isel(run=slice(0, None, columns)), ylabel="Draws")
    most = max(count.max() for count in counts)
    limits = {"xlim": (decades[0] / 1.2, decades[1] * 1.2), "ylim": (0.5, 2 * most)}
    label = worded("Rows per decision", counted(of.values()))
    decorate(pc, means, xlabel=label, xscale="log", yscale="log", **limits)
    return pc
