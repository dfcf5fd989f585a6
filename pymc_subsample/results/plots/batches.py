"""At how many rows minibatch tests decided."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from arviz_plots import PlotCollection, visuals

from pymc_subsample.diagnostics.integrals import counted, worded
from pymc_subsample.results.efficiency import per_step, subsampling_statistics
from pymc_subsample.results.plots.shared import GREY, collection, decorate, named, picture

_BINS = 40  # Of a histogram.


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
    pc.map(visuals.vline, "mean", data=means, color="black", linestyle="--")
    of_rows = xr.Dataset({"batch_size": ("run", list(rows.values()))}, run)
    pc.map(visuals.vline, "rows", data=of_rows, color=GREY, linestyle=":")
    for name, size in sizes.items():
        said = f"mean {size.mean():,.0f} of {rows[name]:,.0f} {counted([of[name]])}"
        decorate(pc, means.sel(run=[name]), title=f"{name}\n{said}" if name else said)
    decorate(pc, means.isel(run=slice(0, None, columns)), ylabel="Draws")
    most = max(count.max() for count in counts)
    limits = {"xlim": (decades[0] / 1.2, decades[1] * 1.2), "ylim": (0.5, 2 * most)}
    label = worded("Rows per decision", counted(of.values()))
    decorate(pc, means, xlabel=label, xscale="log", yscale="log", **limits)
    return pc
