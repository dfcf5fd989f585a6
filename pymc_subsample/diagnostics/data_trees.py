"""Between DataTrees, arrays of draws with their signs, and tables."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from arviz_base import dataset_to_dataframe, extract, rcParams
from arviz_stats.base.stats_utils import round_num

from pymc_subsample.diagnostics import array_stats
from pymc_subsample.diagnostics.signed import DOUBTFUL, HOPELESS
from pymc_subsample.validation import choice, mapping, name_list, shown, text

SAMPLE_DIMS = ("chain", "draw")


KEEP_DIMS = "To select one chain or draw, keep its dimension: idata.isel(chain=[0])."


def with_lists(coords: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Turn a single chain or draw in a selection into a list, which keeps its dimension."""
    if coords is None:
        return None
    return {
        d: [v] if d in SAMPLE_DIMS and np.ndim(v) == 0 and not isinstance(v, slice) else v
        for d, v in coords.items()
    }


def require_tree(value: Any, name: str = "idata", otherwise: str = "") -> xr.DataTree:
    """Return a result of `pm.sample`; refuse what is none."""
    if not isinstance(value, xr.DataTree):
        raise TypeError(
            f"{name} must be the DataTree that pm.sample returned, got "
            f"{type(value).__name__}.{otherwise}"
        )
    return value


def check_selection(
    idata: xr.DataTree,
    var_names: str | Sequence[str] | None = None,
    filter_vars: str | None = None,
    group: str = "posterior",
    coords: Mapping[str, Any] | None = None,
) -> None:
    """Refuse what selects no draws."""
    alone = " A group alone doesn't say which signs its draws have."
    require_tree(idata, otherwise=alone)
    text("group", group, "a group of idata")
    if group not in idata.children:
        raise ValueError(f"group: idata has no group {group!r}; it has {sorted(idata.children)}.")
    draws = idata[group].to_dataset()
    chosen = name_list("var_names", var_names) or []
    if filter_vars is not None:
        choice("filter_vars", filter_vars, ("like", "regex"))
    if filter_vars == "regex":
        _check_patterns(chosen)
    known = set(map(str, draws.data_vars))
    unknown = [name for name in chosen if name.removeprefix("~") not in known]
    if unknown and filter_vars is None:
        raise ValueError(f"var_names holds {unknown}; {group} has the variables {sorted(known)}.")
    _check_coords(draws, mapping("coords", coords, "labels by dimension"), group)


def _check_patterns(patterns: list[str]) -> None:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error:
            raise ValueError(
                f"var_names holds {pattern!r}, which is no regular expression."
            ) from None


def _check_coords(draws: xr.Dataset, coords: dict[str, Any], group: str) -> None:
    for name, labels in coords.items():
        if name not in draws.dims:
            raise ValueError(
                f"coords holds {name!r}; {group} has the dimensions {sorted(map(str, draws.dims))}."
            )
        try:
            found = draws.sel({name: labels}).sizes.get(name, 1)
        except (KeyError, ValueError, TypeError, IndexError):
            found = 0
        if not found:
            raise ValueError(f"coords[{name!r}]: {group} does not have {shown(labels)} there.")


def signs_of(
    idata: xr.DataTree, group: str, coords: Mapping[str, Any] | None
) -> xr.DataArray | None:
    """Signs of the draws of a group; None if none is negative or the group has none."""
    home = "warmup_sample_stats" if group.startswith("warmup") else "sample_stats"
    if group.startswith("prior") or home not in idata.children or "sign" not in idata[home]:
        return None
    signs = idata[home]["sign"]
    if not set(SAMPLE_DIMS) <= set(signs.dims):
        raise ValueError(
            f"{home}['sign'] must have the dimensions chain and draw, got {signs.dims}. {KEEP_DIMS}"
        )
    if not np.all(np.isin(signs, (-1, 1))):
        raise ValueError(f"{home}['sign'] must be 1 or -1 in every draw; it holds other values.")
    if coords is not None:
        chosen = {d: v for d, v in coords.items() if d in SAMPLE_DIMS}
        signs = signs.sel(with_lists(chosen))
    if np.all(signs == 1):
        return None
    steps = [d for d in signs.dims if d not in SAMPLE_DIMS]
    if (signs < 0).any(SAMPLE_DIMS).sum() > 1:
        raise ValueError(
            "Several step methods recorded negative signs. Their chain has no common sign: sample "
            'all variables by one HMCECS(estimator="block-poisson").'
        )
    signs = signs.prod(steps)
    signs = signs.astype(float).transpose(*SAMPLE_DIMS)
    _judge(signs.values)
    return signs


def _judge(signs: np.ndarray) -> None:
    """Refuse or warn of signs whose mean is not known well enough to divide by."""
    center = signs.mean()
    error = float(array_stats.mcse(signs, method="mean"))
    found = (
        f"{np.mean(signs > 0):.1%} of the signs are positive, so their mean, by which estimates "
        f"are divided, is {center:.3g} with a standard error of {error:.2g}"
    )
    advice = (
        "Sample again with a larger subsample, whose estimates are negative less often, or draw "
        "more."
    )
    if not error < HOPELESS * center:
        raise ValueError(f"{found}: it may as well be zero, and nothing can be estimated. {advice}")
    if error > DOUBTFUL * center:
        warnings.warn(
            f"{found}. That is more than {DOUBTFUL:.0%} of it: estimates are biased and "
            f"their errors larger than shown. {advice}",
            stacklevel=4,
        )


def draws_of(
    idata: xr.DataTree,
    var_names: str | Sequence[str] | None,
    filter_vars: str | None,
    group: str,
    coords: Mapping[str, Any] | None,
) -> xr.Dataset:
    """Draws of a group, selected as ArviZ does."""
    draws: Any = extract(
        idata, group=group, combined=False, var_names=var_names, filter_vars=filter_vars,  # type: ignore[arg-type]
        keep_dataset=True,
    )  # fmt: skip
    lost = [d for d in SAMPLE_DIMS if d not in draws.dims]
    if lost:
        raise ValueError(f"{group} has no dimension {' and no '.join(lost)}. {KEEP_DIMS}")
    return draws if coords is None else draws.sel(with_lists(coords))


def apply(row: Callable, draws: xr.Dataset, signs: xr.DataArray, name: str) -> xr.Dataset:
    """Call row(values, signs), arrays of shape (chains, draws), for every element."""
    core = [list(SAMPLE_DIMS), list(SAMPLE_DIMS)]
    try:
        xr.align(draws, signs, join="exact")
    except ValueError as error:
        raise ValueError(
            "The signs don't belong to these draws: chains or draws of sample_stats differ from "
            f"those of the draws ({dict(signs.sizes)} signs). Select from the whole DataTree."
        ) from error
    return xr.apply_ufunc(
        row,
        draws.astype(float),
        signs,
        input_core_dims=core,
        output_core_dims=[[name]],
        vectorize=True,
    )


def warn_of_negative_variances(table: xr.Dataset) -> None:
    """Say which variables of a summary have no sd."""
    if "sd" not in table["summary"]:
        return
    known = table.sel(summary="sd").notnull() | table.sel(summary="mean").isnull()
    failed = [name for name, all_known in known.all().items() if not all_known]
    if failed:
        warnings.warn(
            f"The signed estimate of the variance of {', '.join(map(str, failed))} is negative: "
            "there are too few draws for their signs. The sd is NaN.",
            stacklevel=3,
        )


def formatted(table: xr.Dataset, fmt: str, round_to: int | str | None) -> pd.DataFrame | xr.Dataset:
    """Bring a table into ArviZ's formats."""
    raw = round_to in ("none", "None")
    digits = rcParams["stats.round_to"] if round_to in ("auto", None) else round_to
    table = table.transpose("summary", ...)
    if fmt == "xarray":
        return table if raw else xr.apply_ufunc(round_num, table, digits, vectorize=True)
    if fmt == "wide":
        frame = dataset_to_dataframe(table, sample_dims=["summary"]).T
    else:
        frame = table.to_dataframe().reset_index().set_index("summary")
        frame.index = list(frame.index)
    if round_to == "auto":
        return _with_display_digits(frame, digits)
    if raw:
        return frame
    numbers = frame.select_dtypes("number")
    return frame.assign(**numbers.map(lambda x: round_num(x, digits)))


def _with_display_digits(frame: pd.DataFrame, digits: int | str | None) -> pd.DataFrame:
    """Show digits as the installed ArviZ does, or all of them."""
    try:
        from arviz_stats.summary import SummaryDataFrame, _build_fmt_map
    except ImportError:
        return frame
    return SummaryDataFrame(frame, fmt_map=_build_fmt_map(frame, digits))
