"""Figures of all pictures: runs by name, coordinates, titles and scales."""

import inspect
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import xarray as xr
from arviz_base import rcParams
from arviz_plots import PlotCollection
from arviz_plots.plot_collection import backend_from_object
from numpy.typing import ArrayLike

from pymc_subsample.diagnostics.data_trees import require_tree
from pymc_subsample.validation import choice, mapping

GREY = "#777777"
_BACKENDS = ("matplotlib", "bokeh", "plotly", "none")

_SHARED = """\
    backend : {"matplotlib", "bokeh", "plotly"}, optional
        Default: ArviZ's ``rcParams["plot.backend"]``.
    **pc_kwargs
        Passed to `arviz_plots.PlotCollection.wrap`.

    Returns
    -------
    arviz_plots.PlotCollection

    Raises
"""


def picture[**P](function: Callable[P, PlotCollection]) -> Callable[P, PlotCollection]:
    """Write what all pictures take and return into the docstring of a function that makes one."""
    doc = inspect.cleandoc(function.__doc__ or "")
    function.__doc__ = doc.replace("\nRaises\n", inspect.cleandoc(_SHARED) + "\n")
    return function


def named(runs: xr.DataTree | Mapping[str, xr.DataTree]) -> dict[str, xr.DataTree]:
    """Return runs by name; the name of a single one is empty."""
    if isinstance(runs, xr.DataTree):
        return {"": runs}
    if not isinstance(runs, Mapping) or not runs:
        raise TypeError(
            "runs must be the DataTree that pm.sample returned, or a dict of them by name; got "
            f"{type(runs).__name__ if not isinstance(runs, Mapping) else 'an empty one'}."
        )
    found: dict[str, xr.DataTree] = {}
    for name, idata in runs.items():
        found[str(name)] = require_tree(idata, f"runs[{name!r}]")
    return found


def collection(
    data: xr.Dataset,
    cols: list[str],
    figsize: tuple[float, float],
    backend: str | None,
    pc_kwargs: dict[str, Any],
    *,
    color: str | None = None,
    **shared: bool,
) -> PlotCollection:
    """Return an empty figure; `figsize` is in inches, and `pc_kwargs` go first.

    `color` is the dimension that colours tell apart, `shared` says which axes panels share, as
    `sharex` and `sharey`.
    """
    if color is not None:
        given = mapping("aes", pc_kwargs.get("aes"), "dimensions")
        pc_kwargs["aes"] = {"color": [color]} | given
    if backend is None:
        backend = rcParams["plot.backend"]
    choice("backend", backend, _BACKENDS)
    if backend != "none" and find_spec(backend) is None:
        raise ValueError(f"backend={backend!r} is not installed. Install it, or leave it out.")
    layout = {"layout": "constrained"} if backend == "matplotlib" else {}
    given = mapping("figure_kwargs", pc_kwargs.pop("figure_kwargs", None), "options")
    size = {"figsize": figsize, "figsize_units": "inches"}
    options = {"cols": cols, "backend": backend, "figure_kwargs": layout | size | shared | given}
    return PlotCollection.wrap(data, **options | pc_kwargs)


def pairs(name: str, x: Any, y: Any, *dims: str) -> xr.Dataset:
    """Return numbers x and y, over some dimensions, as arviz-plots takes points of a panel."""
    return xr.Dataset({name: (("plot_axis", *dims), [x, y])}, {"plot_axis": ["x", "y"]})


def bars(name: str, starts: ArrayLike, ends: ArrayLike, places: ArrayLike) -> xr.Dataset:
    """Return horizontal lines at some heights, all shape (k,), as one that has gaps."""
    corners = np.stack([starts, ends, np.full(np.shape(places), np.nan)], axis=1)
    return pairs(name, corners.ravel(), np.repeat(places, 3), "corner")


def xy(x: xr.DataArray, y: xr.Dataset) -> xr.Dataset:
    """Return pairs of x and y for arviz-plots, along a dimension `plot_axis`."""
    both = [x.broadcast_like(values).rename(name) for name, values in y.items()]
    parts = [xr.merge(both) if both else xr.Dataset(), y]
    return xr.concat(parts, "plot_axis").assign_coords(plot_axis=["x", "y"])


def dot(pc: PlotCollection, area: float) -> float:
    """Return the size of a point of some area: bokeh alone takes its width."""
    return area**0.5 if pc.backend == "bokeh" else area


def decorate(pc: PlotCollection, data: xr.Dataset, **what: Any) -> None:
    """Set titles, labels, limits, scales and ticks of the panels that some data belong to."""

    def decorate_one(da: xr.DataArray, target: Any, **_: Any) -> None:
        plot = backend_from_object(target)
        for name, value in what.items():
            function = getattr(plot, name)
            if name.endswith("scale"):
                function(target, value)
            elif name.endswith("ticks"):
                function(*value, target)
            else:
                function(value, target)

    pc.map(decorate_one, data=data, ignore_aes="all", store_artist=False)
