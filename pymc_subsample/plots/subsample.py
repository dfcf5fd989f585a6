"""How the subsample fared."""

from typing import Any

import numpy as np
import xarray as xr
from arviz_plots import PlotCollection, visuals

from pymc_subsample.diagnostics.efficiency import subsampling_statistics
from pymc_subsample.diagnostics.hmc import NOISE, REFRESH
from pymc_subsample.plots.parts import GREY, apart, collection, decorate, picture, xy
from pymc_subsample.validation import mapping

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
    stats = subsampling_statistics(idata, "data_share")
    steps = apart(stats[[name for name in _PANELS if name in stats]])
    panels, parts = {}, {}
    for name, found in steps.items():
        title, bound = _PANELS[name]
        for k, of_step in enumerate(found, start=1):
            several = len(found) > 1
            label = f"{k} {name}" if several else name
            panels[label] = (f"{title}, step {k}" if several else title, bound)
            parts[label] = of_step
    stats = xr.Dataset(parts)
    pc_kwargs["aes"] = {"color": ["chain"]} | mapping("aes", pc_kwargs.get("aes"), "dimensions")
    pc = collection(stats, ["__variable__"], (4.2 * len(panels), 3.4), backend, pc_kwargs)
    noisy = stats[[name for name in panels if name.endswith("variance")]]
    if noisy.data_vars:
        pc.map(visuals.scatter_xy, "draws", data=xy(noisy["draw"], noisy), alpha=0.25, size=3)
    stretch = max(stats.sizes["draw"] // _WINDOWS, 1)
    means = stats.coarsen(draw=stretch, boundary="trim").mean()
    pc.map(visuals.line_xy, "means", data=xy(means["draw"], means))
    bounds = xr.Dataset({name: bound for name, (_, bound) in panels.items() if bound is not None})
    if bounds.data_vars:
        pc.map(visuals.hline, "bounds", data=bounds, ignore_aes="all", color=GREY, linestyle="--")
    for name, (title, bound) in panels.items():
        values = stats[name].values
        top = max(values[np.isfinite(values)].max(initial=0), bound or 0) or 1.0
        ylim = (-0.03 * top, 1.08 * top)
        decorate(pc, stats[[name]], title=title, xlabel="Draw", ylim=ylim)
    if stats.sizes["chain"] > 1:
        pc.add_legend("chain")
    return pc
