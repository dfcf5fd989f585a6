"""Summaries, expectations and quantiles of draws, signed or not, through ArviZ."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import xarray as xr
from arviz_base import rcParams

from pymc_subsample.diagnostics import signed
from pymc_subsample.diagnostics.data_trees import (
    SAMPLE_DIMS,
    apply,
    check_selection,
    draws_of,
    formatted,
    signs_of,
    warn_of_negative_variances,
    with_lists,
)
from pymc_subsample.validation import choice, count, name_list, probabilities, takes, truth

_INTERVAL = "interval"
_COLUMNS = {
    "stats": ("mean", "sd", _INTERVAL),
    "diagnostics": ("ess_bulk", "ess_tail", "r_hat", "mcse_mean", "mcse_sd"),
    "stats_median": ("median", "mad", _INTERVAL),
    "diagnostics_median": ("ess_median", "ess_tail", "r_hat", "mcse_median"),
    "mc_diagnostics": ("mcse_mean", "ess_mean", "min_ss"),
}
_COLUMNS |= {
    "all": _COLUMNS["stats"] + _COLUMNS["diagnostics"],
    "all_median": _COLUMNS["stats_median"] + _COLUMNS["diagnostics_median"],
}


def summary(
    idata: xr.DataTree,
    var_names: str | Sequence[str] | None = None,
    filter_vars: str | None = None,
    group: str = "posterior",
    coords: Mapping[str, Any] | None = None,
    sample_dims: str | Sequence[str] | None = None,
    kind: str = "all",
    fmt: str = "wide",
    ci_prob: float | None = None,
    ci_kind: str | None = None,
    round_to: int | str | None = "auto",
    skipna: bool = False,
) -> pd.DataFrame | xr.Dataset:
    r"""Summarise draws as `arviz.summary` does, with their signs taken into account.

    Where the run recorded no signs, or only positive ones, this is `arviz.summary`. Otherwise

    - means are :math:`\sum_j \psi_j s_j / \sum_j s_j` over draws psi with signs s (equation 5.3 of
      [1]_), and sds those of that (signed) distribution;
    - quantiles and intervals invert the signed distribution function. Noise lets it fall in places:
      it is replaced by the nondecreasing function nearest to it in least squares;
    - Monte Carlo errors are those of a ratio of means (the delta method), autocorrelation
      included. `ess_bulk` (of normalised ranks), `ess_tail`, `ess_mean` and `ess_median` are
      numbers of independent draws from the posterior with the same error: with a share tau of
      positive signs, independent draws are worth :math:`(2 \tau - 1)^2` of their number;
    - `r_hat` is the largest of those of the draws, of the signs and of the estimate's influence
      series, `min_ss` that of the latter.

    Parameters
    ----------
    idata : xarray.DataTree
        Result of `pm.sample`, fresh or read from a file. Its group `sample_stats` holds the signs.
    var_names, filter_vars, group, coords, kind, fmt, ci_prob, ci_kind, round_to
        As for `arviz.summary`.
    sample_dims : str or sequence of str, optional
        As for `arviz.summary`; only chain and draw for signed draws.
    skipna : bool, default False
        As for `arviz.summary`; must be false for signed draws.

    Returns
    -------
    pandas.DataFrame or xarray.Dataset
        As `arviz.summary` returns it.

    Raises
    ------
    TypeError
        If `idata` is not a DataTree.
    ValueError
        If an argument is out of range, signs are not 1 or -1 or don't belong to the draws, or the
        mean sign is less than three of its standard errors above zero.

    Warns
    -----
    UserWarning
        If the standard error of the mean sign is more than a tenth of the mean sign, which makes
        estimates biased and their errors too small; or if noise makes a variance negative, in
        which case sd and effective sample size are NaN.

    References
    ----------
    .. [1] K.-D. Dang, M. Quiroz, R. Kohn, M.-N. Tran and M. Villani (2019). Hamiltonian Monte Carlo
       with energy conserving subsampling. Journal of Machine Learning Research 20(100), section 5.

    Examples
    --------
    >>> table = pms.summary(idata, kind="stats")
    >>> table = pms.summary(idata, var_names=["b"], ci_prob=0.9)
    """
    check_selection(idata, var_names, filter_vars, group, coords)
    choice("kind", kind, _COLUMNS)
    choice("fmt", fmt, ("wide", "long", "xarray"))
    truth("skipna", skipna)
    _check_digits(round_to)
    if ci_kind is not None:
        choice("ci_kind", ci_kind, ("eti", "hdi"))
    if ci_prob is not None and probabilities("ci_prob", ci_prob).ndim:
        raise ValueError(f"ci_prob must be one number, got {ci_prob!r}.")
    for dim in name_list("sample_dims", sample_dims) or []:
        if dim not in idata[group].dims:
            raise ValueError(f"sample_dims holds {dim!r}, which is no dimension of {group}.")
    signs = signs_of(idata, group, coords)
    if signs is None:
        return az.summary(
            idata, var_names=var_names, filter_vars=filter_vars, group=group,
            coords=with_lists(coords),
            sample_dims=sample_dims, kind=kind, fmt=fmt, ci_prob=ci_prob, ci_kind=ci_kind,
            round_to=round_to, skipna=skipna,
        )  # fmt: skip
    _refuse_unsigned_options(sample_dims, skipna)
    ci_kind = rcParams["stats.ci_kind"] if ci_kind is None else ci_kind
    prob = float(rcParams["stats.ci_prob"] if ci_prob is None else ci_prob)
    if kind.endswith("_median"):
        ci_kind = "eti"
    names = [ci_kind if name == _INTERVAL else name for name in _COLUMNS[kind]]
    bounds = [f"{ci_kind}{int(prob * 100)}_{end}" for end in ("lb", "ub")]
    columns = [c for name in names for c in (bounds if name == ci_kind else [name])]
    tail = rcParams["stats.ci_prob"]

    def row(values: np.ndarray, signs: np.ndarray) -> np.ndarray:
        return np.hstack([signed.statistic(n, values, signs, prob, tail) for n in names])

    table = apply(row, draws_of(idata, var_names, filter_vars, group, coords), signs, "summary")
    table = table.assign_coords(summary=columns)
    warn_of_negative_variances(table)
    return formatted(table, fmt, round_to)


def expectation(
    idata: xr.DataTree,
    f: Callable[[xr.Dataset], xr.DataArray],
    *,
    group: str = "posterior",
    coords: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    r"""Estimate the posterior expectation of a function of the parameters, with its error.

    Parameters
    ----------
    idata : xarray.DataTree
        Result of `pm.sample`. Its group `sample_stats` holds the signs, if there are any.
    f : callable
        Takes all draws as a Dataset with dimensions chain and draw and returns the function's
        values as a DataArray with these dimensions and maybe more, say
        ``lambda draws: draws["beta"] > 0``.
    group : str, default "posterior"
        Group that holds the draws.
    coords : mapping, optional
        Part of the draws to look at, by dimension.

    Returns
    -------
    xarray.Dataset
        `mean`, its Monte Carlo standard error `mcse` and the effective sample size `ess`, over
        the dimensions that `f` adds. See `summary` for their meaning, and what is warned of, for
        signed draws; of unsigned ones they are ArviZ's.

    Raises
    ------
    TypeError
        If `idata` is not a DataTree, or `f` does not return a DataArray.
    ValueError
        If the result of `f` lacks a dimension, or the signs are unfit (see `summary`).

    Examples
    --------
    The chance that flights late in the day are late more often:

    >>> found = pms.expectation(idata, lambda draws: draws["b"][..., 1] > 0)
    >>> sorted(found)
    ['ess', 'mcse', 'mean']
    """
    check_selection(idata, group=group, coords=coords)
    signs = signs_of(idata, group, coords)
    draws = draws_of(idata, None, None, group, coords)
    if not callable(f):
        raise TypeError(
            f'f must be a function of the draws, got {f!r}: lambda draws: draws["beta"] ** 2.'
        )
    values = takes("f", f, "draws")(draws)
    if not isinstance(values, xr.DataArray):
        raise TypeError(
            f"f must return a DataArray, got {type(values).__name__}. Compute with the variables "
            'of the Dataset that it is given: lambda draws: draws["beta"] ** 2.'
        )
    sizes = {d: values.sizes.get(d) for d in SAMPLE_DIMS}
    if sizes != {d: draws.sizes[d] for d in SAMPLE_DIMS}:
        raise ValueError(
            f"f must keep the dimensions chain and draw in full; got dimensions {values.dims}."
        )
    if values.dtype.kind not in "biuf":
        raise TypeError(
            f"f must return real numbers, got values of type {values.dtype}. Take .real and .imag "
            "of complex numbers, and compare texts: draws[...] == 'label'."
        )
    if values.dtype == bool:
        values = _without_answers_to_nan(f, draws, values)
    values = values.astype(float).reset_coords(drop=True)
    if signs is None:
        stats = values.azstats
        columns = {
            "mean": values.mean(SAMPLE_DIMS, skipna=False),
            "mcse": stats.mcse(sample_dims=SAMPLE_DIMS, method="mean"),
            "ess": stats.ess(sample_dims=SAMPLE_DIMS, method="mean"),
        }
        return xr.Dataset(columns)

    def row(values: np.ndarray, signs: np.ndarray) -> np.ndarray:
        return np.array(
            [s(values, signs) for s in (signed.mean, signed.mcse_mean, signed.ess_mean)]
        )

    table = apply(row, values.to_dataset(name="f"), signs, "statistic")
    table = table.assign_coords(statistic=["mean", "mcse", "ess"])
    return table["f"].to_dataset("statistic")


def quantile(
    idata: xr.DataTree,
    prob: float | Sequence[float],
    var_names: str | Sequence[str] | None = None,
    *,
    filter_vars: str | None = None,
    group: str = "posterior",
    coords: Mapping[str, Any] | None = None,
    kind: str = "value",
) -> xr.Dataset:
    """Estimate posterior quantiles, their Monte Carlo errors or effective sample sizes.

    Parameters
    ----------
    idata : xarray.DataTree
        Result of `pm.sample`. Its group `sample_stats` holds the signs, if there are any.
    prob : float or sequence of float
        Probabilities, strictly between 0 and 1.
    var_names, filter_vars, group, coords
        As for `summary`.
    kind : {"value", "mcse", "ess"}
        Whether to return the quantiles, their Monte Carlo standard errors, or the effective
        sample sizes of the probabilities of not exceeding them.

    Returns
    -------
    xarray.Dataset
        A variable for each variable, with a dimension `quantile` in front if `prob` is a
        sequence. Quantiles of unsigned draws are interpolated linearly; of signed ones they are
        the smallest draws at which the distribution function (see `summary`, also for what is
        warned of) reaches `prob`.

    Raises
    ------
    TypeError
        If `idata` is not a DataTree.
    ValueError
        If an argument is out of range, or the signs are unfit (see `summary`).

    Examples
    --------
    >>> interval = pms.quantile(idata, [0.05, 0.95], "b")
    >>> errors = pms.quantile(idata, [0.05, 0.95], "b", kind="mcse")
    """
    given = probabilities("prob", prob)
    choice("kind", kind, ("value", "mcse", "ess"))
    check_selection(idata, var_names, filter_vars, group, coords)
    signs = signs_of(idata, group, coords)
    draws = draws_of(idata, var_names, filter_vars, group, coords)
    if signs is not None:
        method = {"mcse": signed.mcse_quantile, "ess": signed.ess_quantile}.get(kind)

        def row(values: np.ndarray, signs: np.ndarray) -> np.ndarray:
            if method is None:
                return signed.quantile(values, signs, given.ravel())
            return np.array([method(values, signs, p) for p in given.ravel()])

        found = apply(row, draws, signs, "quantile").assign_coords(quantile=given.ravel())
    elif kind == "value":
        found = draws.quantile(given.ravel(), dim=SAMPLE_DIMS, skipna=False)
    else:
        statistic = getattr(draws.azstats, kind)
        parts = [
            statistic(sample_dims=SAMPLE_DIMS, method="quantile", prob=p) for p in given.ravel()
        ]
        found = xr.concat(parts, dim="quantile").assign_coords(quantile=given.ravel())
    found = found.transpose("quantile", ...)
    return found if given.ndim else found.squeeze("quantile")


def _refuse_unsigned_options(sample_dims: str | Sequence[str] | None, skipna: bool) -> None:
    given = [sample_dims] if isinstance(sample_dims, str) else sample_dims
    if given is not None and set(given) != set(SAMPLE_DIMS):
        raise ValueError(
            f"sample_dims must be {SAMPLE_DIMS} for signed draws, got {sample_dims!r}."
        )
    if skipna:
        raise ValueError("skipna must be False for signed draws: a draw cannot be left out.")


def _check_digits(round_to: int | str | None) -> None:
    """Refuse what is no number of digits, before or after the point."""
    words = isinstance(round_to, str) and re.fullmatch(r"auto|[Nn]one|\d+g?", round_to)
    if round_to is not None and not words:
        count("round_to", round_to, smallest=0)


def _without_answers_to_nan(
    f: Callable[[xr.Dataset], xr.DataArray], draws: xr.Dataset, values: xr.DataArray
) -> xr.DataArray:
    """Turn truth values into NaN where they compare draws that are NaN: those are neither."""
    for filler in (-np.inf, np.inf):
        values = values.where(f(draws.fillna(filler)) == values.astype(bool))
    return values
