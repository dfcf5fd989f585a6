"""The report of a run: each check between pass and fail, and what decided on them over the run."""

from textwrap import fill
from typing import Any

import numpy as np
import xarray as xr
from arviz_plots import PlotCollection, visuals

from pymc_subsample.diagnostics.checks import Finding
from pymc_subsample.diagnostics.findings import COLOURS
from pymc_subsample.results.audit.result import Audit
from pymc_subsample.results.plots.figures import GREY, bars, collection, decorate, dot, picture
from pymc_subsample.results.plots.subsamples import draw_traces, traces
from pymc_subsample.results.report import report
from pymc_subsample.samplers.hmc_ecs.checks import NOISE

# Beside the checks: as far as they are recorded.
_TRACED = {
    "loglik_variance": ("Variance of estimate", NOISE.bound),
    "loglik_ratio_variance": ("Variance of log-ratio", None),
    "subsample_size": ("Rows in subsample", None),
    "batch_size": ("Rows per decision", None),
    "rows_read": ("Rows per draw", None),
}
# What a number is where there is nothing to complain of; 0 unless it is here.
_IDEAL = {"r_hat": 1.0}
_TICKS = {0.0: "ideal", 0.5: "bound", 10 / 11: "10 times"}
# Characters of a line of names. A choice.
_WIDTH = 44


@picture
def plot_report(
    idata: xr.DataTree, *, audit: Audit | None = None, backend: str | None = None, **pc_kwargs: Any
) -> PlotCollection:
    """Plot what `report` says of a run: every check on its way from pass to fail.

    One panel has a bar for each check, green for pass, amber for warn, red for fail, with number
    and bound beside its name. Its length is :math:`x / (1 + x)`, where x is how far the number is
    from ideal in units of how far the bound is, or the bound over the number where the number
    should be at least that: bars that end in the shaded half are beyond their bounds, and one that
    fills the panel is infinitely far beyond. The other panels show what the checks are about over
    the draws, as `plot_subsample` does: the variance of the estimate and the rows that are read,
    as far as the step method records them.

    Parameters
    ----------
    idata : xarray.DataTree
        Result of `pm.sample` with a step method of this package.
    audit : Audit, optional
        What `audit` found of the same run, as for `report`.

    Raises
    ------
    TypeError
        If `idata` is no DataTree, or `audit` no `Audit`.
    ValueError
        If no step method of this package made the run, or its statistics have lost the dimension
        chain or draw.

    Examples
    --------
    >>> pc = pms.plot_report(idata)
    """
    found = report(idata, audit=audit)
    checks, k = found.findings, len(found.findings)
    traced = traces(idata["sample_stats"].to_dataset(), _TRACED)
    ends = xr.DataArray([reach(finding) for finding in checks], dims="check")
    panels = traced.stats.copy()
    panels["checks"] = ends.expand_dims(chain=idata["sample_stats"]["chain"])
    panels = panels[["checks", *traced.stats.data_vars]]
    names = [fill(_named(finding), _WIDTH) for finding in checks]
    lines = sum(1 + name.count("\n") for name in names)
    figsize = (6.5 + 3.4 * len(traced.titles), max(3.4, 1.2 + 0.12 * k + 0.19 * lines))
    pc = collection(panels, ["__variable__"], figsize, backend, pc_kwargs, color="chain")
    plain: dict[str, Any] = {"ignore_aes": "all"}
    beyond = xr.Dataset({"checks": ("end", [0.5, 1.0])})
    pc.map(visuals.vspan, "beyond", data=beyond, color=COLOURS["fail"], alpha=0.07, **plain)
    pc.map(visuals.vline, "bound", data=beyond.min("end"), color=GREY, linestyle="C1", **plain)
    places = xr.DataArray(-np.arange(k, dtype=float), dims="check")
    for status, colour in COLOURS.items():
        own = np.flatnonzero([finding.status == status for finding in checks])
        if not len(own):
            continue
        x, y = ends.isel(check=own), places.isel(check=own)
        way = bars("checks", 0 * x, x, y)
        pc.map(visuals.line_xy, f"{status} bars", data=way, color=colour, width=4, **plain)
        points = x.to_dataset(name="checks")
        pc.map(
            visuals.scatter_xy, status, data=points, y=y, color=colour, size=dot(pc, 40), **plain
        )
    decorate(
        pc, panels[["checks"]], title="Checks", xlim=(-0.02, 1.02),
        yticks=(list(places.values), names), ylim=(0.5 - k, 0.5),
        xticks=(list(_TICKS), list(_TICKS.values())),
    )  # fmt: skip
    if traced.titles:
        draw_traces(pc, traced)
    pc.add_title(found.head)
    if traced.titles and traced.stats.sizes["chain"] > 1:
        pc.add_legend("chain")
    return pc


def reach(finding: Finding) -> float:
    """Return how far a check is from pass to fail, from 0 to 1; at its bound that is a half."""
    value, bound = finding.value, finding.bound
    if finding.equal:
        return float(value != bound)
    if np.isnan(value) or np.isnan(bound):
        return 0.0 if finding.status == "pass" else 1.0
    if finding.at_least:
        return float(bound / (bound + value)) if value > 0 else 1.0
    ideal = _IDEAL.get(finding.name, 0.0)
    away, room = max(value - ideal, 0.0), bound - ideal
    if np.isinf(away) or (away > 0 and room <= 0):
        return 1.0
    return float(away / (away + room)) if away > 0 else 0.0


def _named(finding: Finding) -> str:
    _, title, value, bound, _ = finding.row()
    number = f"{value} {f'({bound})' if bound else ''}".rstrip().replace(" ", "\N{NO-BREAK SPACE}")
    return f"{title}: {number}"
