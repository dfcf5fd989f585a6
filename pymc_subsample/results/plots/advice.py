"""What samplers would take, before any of them runs."""

from textwrap import fill
from typing import Any

import numpy as np
import xarray as xr
from arviz_plots import PlotCollection, visuals

from pymc_subsample.results.advise.result import DAY, HOUR, Advice, duration, shortened
from pymc_subsample.results.plots.figures import (
    GREY,
    bars,
    collection,
    decorate,
    dot,
    pairs,
    picture,
)

_MOST_TICKS = 8  # That are legible side by side.
_WIDTH = 80  # Characters of a line of the title, which fit into the figure.
_CHOSEN, _OTHER = "C1", "C0"
_SCALE = (
    *(10.0**k * x for k in (-3, -2, -1, 0) for x in (1, 2, 5)), 10.0, 20.0, 60.0, 120.0, 300.0,
    600.0, 1_800.0, *(h * HOUR for h in (1, 3, 10)), *(d * DAY for d in (1, 3, 10, 30, 100, 1e3)),
)  # fmt: skip


@picture
def plot_advice(advice: Advice, *, backend: str | None = None, **pc_kwargs: Any) -> PlotCollection:
    """Plot what `advise` predicts: how long each sampler takes to the effective draws wanted.

    A line per sampler, the fastest first, on a log scale of seconds: from its set-up to the whole
    run, whose end is a filled point where draws are exact and an open one where they are perturbed;
    a triangle is a lower bound, or a time without end. The one that is recommended has
    another colour. Those that failed their pilot's checks say so, and those below that were refused
    or not tried have their reason in the place of a line.

    Parameters
    ----------
    advice : Advice
        What `advise` returned.

    Raises
    ------
    TypeError
        If `advice` is something else.
    ValueError
        If it predicts nothing, for no sampler was tried.

    Examples
    --------
    >>> advice = pms.advise(model)
    >>> pc = pms.plot_advice(advice)
    """
    if not isinstance(advice, Advice):
        raise TypeError(f"advice must be what pms.advise returned, got {type(advice).__name__}.")
    known = sorted((o for o in advice.options if o.seconds > 0), key=lambda o: o.seconds)
    if not known:
        raise ValueError(f"advice predicts no times: {advice.reason}")
    options = [*known, *(o for o in advice.options if o not in known)]
    k = len(options)
    places = -np.arange(k, dtype=float)
    ends = np.array([o.seconds for o in known])
    starts = np.array([o.setup_seconds for o in known])
    finite = [x for x in (*starts, *ends) if np.isfinite(x)] or [1.0]
    first, last = min(finite) / 2, max(finite)
    limits = first, last * (last / first) ** 0.5 * 2
    # Logarithms are drawn: of the backends, matplotlib alone has an axis for them.
    ends = np.log10(np.where(np.isfinite(ends), ends, np.sqrt(last * limits[1])))
    starts = np.log10(np.where(np.isnan(starts), first / 2, starts))
    panel = xr.Dataset({"seconds": ("option", ends)})
    pc = collection(panel, [], (8.6, 1.5 + 0.33 * k), backend, pc_kwargs)

    for j, option in enumerate(known):
        chosen = option.sampler == advice.recommendation
        colour = _CHOSEN if chosen else _OTHER
        line = bars("seconds", starts[[j]], ends[[j]], places[[j]])
        pc.map(visuals.line_xy, f"{option.sampler} line", data=line, color=colour, width=2.5)
        point = xr.Dataset({"seconds": ends[j]})
        face = colour if option.exact else "B0"  # the background
        marker = {"marker": "C2"} if option.at_least or np.isinf(option.seconds) else {}
        pc.map(
            visuals.scatter_xy, option.sampler, data=point, y=xr.DataArray(places[j]),
            size=dot(pc, 60), edgecolor=colour, facecolor=face, **marker,
        )  # fmt: skip
        said = option.taking + (", failed its checks" if option.status == "failed" else "")
        if chosen:
            said += ", recommended"
        _write(pc, f"{option.sampler} said", ends[j] + np.log10(1.35), places[j], said, "black")
    for place, option in zip(places[len(known) :], options[len(known) :], strict=True):
        said = shortened(": ".join(filter(None, [option.status, option.note])), 70)
        _write(pc, f"{option.sampler} said", np.log10(first * 1.05), place, said, GREY)
    ticks = [t for t in _SCALE if limits[0] <= t <= limits[1]]
    ticks = ticks[:: -(-len(ticks) // _MOST_TICKS)]
    labels = [f"{o.sampler} ({'exact' if o.exact else 'perturbed'})" for o in options]
    decorate(
        pc, panel, xlim=tuple(np.log10(limits)), ylim=(0.5 - k, 0.5),
        yticks=(list(places), labels), xticks=(np.log10(ticks), [duration(t) for t in ticks]),
        xlabel=f"Predicted time to {advice.effective_draws:,} effective draws",
    )  # fmt: skip
    pc.add_title(fill(advice.answer, _WIDTH))
    return pc


def _write(pc: PlotCollection, name: str, x: float, y: float, text: str, colour: str) -> None:
    pc.map(
        visuals.annotate_xy, name, data=pairs("seconds", x, y), text=text, color=colour,
        horizontal_align="left",
    )  # fmt: skip
