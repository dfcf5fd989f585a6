"""How far an audit found a posterior to be off."""

from typing import Any

import numpy as np
import xarray as xr
from arviz_plots import PlotCollection, visuals
from matplotlib.ticker import MaxNLocator

from pymc_subsample.diagnostics.checks import SHIFT_BOUND, STRETCH_BOUND
from pymc_subsample.diagnostics.weights import MOST_K
from pymc_subsample.results.audit.result import Audit
from pymc_subsample.results.plots.figures import GREY, bars, collection, decorate, picture
from pymc_subsample.validation import count

_AUDITED = ("mean", "sd", "corrected_mean", "corrected_sd", "corrected_mean_mcse")

# Titles, labels, and the ends of the bands.
_PANELS = {
    "mean": ("Error of the mean", "posterior standard deviations", -SHIFT_BOUND, SHIFT_BOUND),
    "sd": ("Standard deviation", "over the corrected one", 1 - STRETCH_BOUND, 1 + STRETCH_BOUND),
}


@picture
def plot_audit(
    audit: Audit, *, max_parameters: int = 40, backend: str | None = None, **pc_kwargs: Any
) -> PlotCollection:
    """Plot how far an audit found posterior means and standard deviations to be off.

    One panel shows the errors of means in posterior standard deviations, the other standard
    deviations as shares of the corrected ones, both with two Monte Carlo standard errors to either
    side. What lies in the shaded bands is tolerated by the check at the end of a chain: a tenth of
    a standard deviation, and 5%. Parameters that are constant are left out. If the audit's weights
    are too uneven for its corrections to be reliable [1]_, the figure's title says so; from a
    Pareto shape of 1 up the Monte Carlo errors are not known, and not drawn.

    Parameters
    ----------
    audit : object
        Result of an audit. Its attribute `table` is a Dataset of `mean`, `sd`, `corrected_mean`,
        `corrected_sd` and `corrected_mean_mcse` over a dimension `parameter` of labels, and maybe
        `bias_mcse` and `sd_error_mcse`, the Monte Carlo errors of both panels. An audit whose
        `kind` is "weights" has the Pareto shape of its weights as `k_hat`.
    max_parameters : int, default 40
        Where there are more, those are shown whose means or sds are farthest off.

    Raises
    ------
    TypeError
        If `audit` has no such table.
    ValueError
        If `max_parameters` is not a positive integer, or the table holds numbers that are not
        finite or no parameters that vary.

    References
    ----------
    .. [1] A. Vehtari, D. Simpson, A. Gelman, Y. Yao and J. Gabry (2024). Pareto smoothed importance
       sampling. Journal of Machine Learning Research 25(72).

    Examples
    --------
    >>> pc = pms.plot_audit(pms.audit(idata, model=model))
    """
    count("max_parameters", max_parameters)
    errors = _errors(audit)
    total = errors.sizes["parameter"]
    shift, stretch = errors["mean"].values, errors["sd"].values - 1
    size = np.maximum(abs(shift) / SHIFT_BOUND, abs(stretch) / STRETCH_BOUND)
    worst = np.argsort(-size)[:max_parameters]
    errors = errors.isel(parameter=np.sort(worst))
    k = errors.sizes["parameter"]
    labels = [str(label) for label in errors["parameter"].values]
    places = xr.DataArray(-np.arange(k), dims="parameter")
    panels = errors[list(_PANELS)].drop_vars("parameter")
    figsize = 9.0, 1.4 + 0.26 * k
    pc = collection(panels, ["__variable__"], figsize, backend, pc_kwargs, sharey=True)
    span = xr.Dataset({name: ("end", list(ends)) for name, (_, _, *ends) in _PANELS.items()})
    pc.map(visuals.vspan, "tolerated", data=span, color=GREY, alpha=0.15)
    pc.map(visuals.vline, "none", data=span.mean("end"), color=GREY, linestyle="C1")
    noise = {"mean": errors["noise"].values, "sd": errors["sd_noise"].values}
    lines = xr.merge([bars(x, errors[x] - noise[x], errors[x] + noise[x], places) for x in _PANELS])
    pc.map(visuals.line_xy, "noise", data=lines, color="C0")
    pc.map(visuals.scatter_xy, "errors", data=panels, y=places, color="C0")
    decorate(pc, panels, yticks=(list(places.values), labels), ylim=(0.7 - k, 0.7))
    locator = MaxNLocator(5, steps=[1, 2, 5, 10])
    for name, (title, label, *band) in _PANELS.items():
        shown = np.concatenate([panels[name], lines[name][0], band])
        reach = np.array([np.nanmin(shown), np.nanmax(shown)])
        limits = reach + np.ptp(reach) * np.array([-0.05, 0.05])
        ticks = [t for t in locator.tick_values(*reach) if limits[0] <= t <= limits[1]]
        marks = {"xticks": (ticks, [f"{t:.4g}" for t in ticks]), "xlim": tuple(limits)}
        some = f"\n{k} of {total:,} parameters" if k < total else ""
        decorate(pc, panels[[name]], title=title + some, xlabel=label, **marks)
    k_hat = getattr(audit, "k_hat", np.nan)
    if getattr(audit, "kind", None) == "weights" and not k_hat < MOST_K:
        pc.add_title(
            f"The corrections are not reliable: k-hat {k_hat:.2f} (should be below {MOST_K})"
            + ("; their errors are not known" if not k_hat < 1 else "")
        )
    return pc


def _errors(audit: Audit) -> xr.Dataset:
    """Errors of means, in sds, and their noise, and ratios of sds."""
    table = getattr(audit, "table", None)
    found = list(table.variables) if isinstance(table, xr.Dataset) else type(table).__name__
    if not isinstance(table, xr.Dataset) or not {*_AUDITED, "parameter"} <= set(table.variables):
        raise TypeError(
            f"audit must have a table of {', '.join(_AUDITED)} over the dimension parameter, as "
            f"the result of an audit has; its table is {found}."
        )
    bias = table["mean"] - table["corrected_mean"]
    constant = (table["sd"] == 0) & (table["corrected_sd"] == 0) & np.isclose(bias, 0)
    table, bias = table.isel(parameter=~constant.values), bias[~constant.values]
    if not len(bias):
        raise ValueError("audit: the table has no parameters that vary.")
    scale = table["corrected_sd"]
    of_corrected = table["corrected_mean_mcse"] / scale
    errors = xr.Dataset(
        {
            "mean": bias / scale,
            "sd": table["sd"] / scale,
            "noise": 2 * table.get("bias_mcse", of_corrected),
            "sd_noise": 2 * table.get("sd_error_mcse", xr.zeros_like(scale)),
        }
    )
    if getattr(audit, "kind", None) == "weights" and not getattr(audit, "k_hat", 0.0) < 1:
        for noise in ("noise", "sd_noise"):
            errors[noise] = errors[noise].where(np.isfinite(errors[noise]), 0.0)
    finite = np.all([np.isfinite(values) for values in errors.values()], axis=0)
    if not finite.all():
        raise ValueError(
            "audit: the table has no finite errors for "
            f"{', '.join(map(str, errors['parameter'].values[~finite]))}; means, sds and Monte "
            "Carlo errors must be finite, and sds above zero."
        )
    return errors
