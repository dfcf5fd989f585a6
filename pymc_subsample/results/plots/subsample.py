"""How the subsample fared."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from arviz_plots import PlotCollection, visuals

from pymc_subsample.diagnostics.integrals import counted, worded
from pymc_subsample.results.efficiency import per_step, subsampling_statistics
from pymc_subsample.results.plots.shared import GREY, collection, decorate, picture, xy
from pymc_subsample.samplers.hmc_ecs.checks import NOISE, REFRESH

_WINDOWS = 50  # Over which numbers are averaged.
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
        pc.map(visuals.scatter_xy, "draws", data=xy(noisy["draw"], noisy), alpha=0.25, size=3)
    stretch = max(stats.sizes["draw"] // _WINDOWS, 1)
    means = stats.coarsen(draw=stretch, boundary="trim").mean()
    pc.map(visuals.line_xy, "means", data=xy(means["draw"], means))
    if bounds:
        line = {"ignore_aes": "all", "color": GREY, "linestyle": "--"}
        pc.map(visuals.hline, "bounds", data=xr.Dataset(bounds), **line)
    for name, title in titles.items():
        values = stats[name].values
        top = max(values[np.isfinite(values)].max(initial=0), bounds.get(name, 0)) or 1.0
        ylim = (-0.03 * top, 1.08 * top)
        decorate(pc, stats[[name]], title=title, xlabel="Draw", ylim=ylim)
