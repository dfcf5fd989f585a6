"""Predictions for all rows or new ones, some rows at a time."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike

from pymc_subsample.chain import arguments
from pymc_subsample.compiled.functions import building_graphs
from pymc_subsample.diagnostics import signed
from pymc_subsample.diagnostics.data_trees import SAMPLE_DIMS, signs_of
from pymc_subsample.diagnostics.drift import other_columns
from pymc_subsample.diagnostics.reading_draws import group, spread
from pymc_subsample.model.discovery import full_data_model, refuse_masked
from pymc_subsample.results.predict.columns import reader
from pymc_subsample.results.predict.mismatched_draws import of_another, of_other_rows, refuse_moved
from pymc_subsample.results.predict.quantity import (
    SAID,
    Predicted,
    given_observed,
    in_order,
    quantity,
)
from pymc_subsample.results.predict.row_effects import RowEffects
from pymc_subsample.results.predict.rowwise import RowFunction, outside
from pymc_subsample.results.predict.units import with_local
from pymc_subsample.rows import Rows, Several
from pymc_subsample.rows.workers import current
from pymc_subsample.validation import choice, count, is_whole, name_list, probabilities, shown, warn

# Predictions that are in memory at a time, per thread: of all draws, for quantiles, or of one.
# Choices: 16 MB, and 256 KB, which the second cache of most processors holds.
_MATRIX = 2**21
_VECTOR = 2**15


def predict(
    idata: xr.DataTree,
    what: Any = None,
    *,
    model: pm.Model | None = None,
    data: Mapping[str, ArrayLike] | pd.DataFrame | Rows | Sequence[Rows] | None = None,
    kind: str = "mean",
    draws: int = 500,  # a choice: quantiles of 5% are then good to 1%
    prob: float | Sequence[float] | None = None,
    chunksize: int | None = None,
    new_levels: int | Sequence[str] = 0,
    rng: int | np.random.Generator | None = None,
) -> xr.Dataset | Iterator[xr.Dataset]:
    r"""Predict each row: mean, standard deviation and quantiles over draws.

    For data of any length: rows are read some at a time, and of each a few numbers are kept. There
    is no matrix of rows and draws.

    Parameters
    ----------
    idata : xarray.DataTree
        What `pm.sample` returned, by any sampler.
    what : str or Variable
        What to predict, with one entry (or more) for each row, rows first: an observed variable; a
        `pm.Deterministic`, which need not be in `idata`; or an expression of the model's variables,
        such as ``pm.math.sigmoid(logit)``. Default: the observed variable, if there is one alone.
    model : pymc.Model, optional
        The model that was sampled. Default: the model on the context stack.
    data : dict of str to array_like, pandas.DataFrame, Rows or list of Rows, optional
        New rows: by the names of the model's `pm.Data`, all that `what` reads; observed values are
        not needed. Categories are the integers that the model was fitted with; or words, where
        the column indexes parameters whose dims have them as coords. Of a data frame other columns
        are left alone; matrices go into a dict, ``{"X": frame[["a", "b"]]}``. Their columns may
        come in any order where the model has coords of the same names, by the dims of the `pm.Data`
        or of the parameters that it is multiplied with; so may levels of a column of `Rows`.
        Variables with an element for each row are drawn anew from their prior, given each draw.
        Default: the rows that the model holds. A model that was written on a sample of `Rows`
        holds that sample: pass the `Rows`, as to the step, to predict all.
    kind : {"mean", "outcome"}
        Of an observed variable y, predict its expectation given the parameters,
        :math:`E[y_i \mid \theta]` (the probability, of a binary one; the probabilities of all
        categories, of a categorical or ordered one), which says how well it is known; or draw y
        itself, once for each draw, for prediction intervals. Of categories that is their number,
        whose mean says little where they have no order.
    draws : int, default 500
        How many of the draws to use, evenly spread over chains.
    prob : float or sequence of float, optional
        Probabilities of quantiles, strictly between 0 and 1: ``[0.05, 0.95]`` gives the ends of
        intervals that hold 90% of the draws, and 0.5 medians. With ``kind="mean"`` they say how
        well the expectation is known, with ``kind="outcome"`` where a new outcome will be.
    chunksize : int, optional
        Return an iterator over results of so many rows each, so that memory does not grow with
        the rows at all.
    new_levels : int or sequence of str, default 0
        Levels of `data` that the model does not know, such as new customers, if the run integrated
        their effects out, which are then drawn from their prior given each draw. Labels, if the
        model has coords for its levels; or how many are new: of G levels in the model, codes G,
        G + 1, ... are new ones.
    rng : int or Generator, optional
        Random numbers of outcomes. Default: a fixed seed. A generator is advanced, so that another
        call with it draws others. The same seed draws other outcomes where `chunksize`, `draws` or
        what a row holds are others.

    Returns
    -------
    xarray.Dataset, or iterator of these
        `mean` and `sd` over the posterior, and `quantiles` if `prob` is given, with a dimension
        `quantile` behind the others, whose coordinates are the probabilities:
        ``found["quantiles"].sel(quantile=0.05)``. The rows' dimension is that of the variable, else
        ``row``; its coordinates are row numbers from 0, or the index of a data frame or of series
        as `data`. Eight bytes per row and statistic.

    Raises
    ------
    TypeError
        If there is no model, or an argument is of the wrong kind.
    ValueError
        If the posterior lacks a variable that `what` is made of, or has it in another shape or with
        other dimensions or coords, or is Bambi's with the intercept moved; columns are missing,
        unknown, constants of the model, of other shapes, lengths or types than the model's, or
        point outside of what they index, or are series with different indexes; or the mean sign of
        signed draws is not known well enough, or signs and draws don't belong together.
    TallModelError
        If `what` has no rows, or they depend on each other, or new rows are wanted where the model
        reads an array that is not `pm.Data`, or two columns of `Rows` have levels in another order
        and index the same parameters, of which the model does not say which it means.

    Warns
    -----
    UserWarning
        As `summary`, of signed draws. If the model holds other rows than the run sampled, by their
        number or the `constant_data` of `idata`, and `data` is not given or the model computes
        numbers from whole columns. If columns of a matrix have other names than the model's, all
        of them. If it holds the same observed values and columns, as `idata`
        recorded them, and the draws are not where its posterior is, as `loo` tells: they are of
        another model. That is told by the rows that the model holds, never by new ones, and by
        continuous variables, with the signs of signed draws. It is not told where `idata` lacks a
        free variable or the observed values, where rows of the likelihood depend on each other,
        where all free variables are discrete or one has named dimensions (`pymc.dims`), or where
        PyTensor's derivatives are not finite though log-likelihoods are. If codes of the model's
        rows are negative where they index: they count from the end. If predictions are NaN.

    Notes
    -----
    Numbers that the model computes from all its rows, such as ``X - X.mean()``, stay those of the
    rows that the model holds, where `pm.set_data` would compute them anew. Signed draws count with
    their signs, as in `summary`.

    Examples
    --------
    >>> found = pms.predict(idata, "late", model=model)
    >>> share = float(found["mean"].mean())  # of late flights, as the model has it
    >>> found = pms.predict(idata, a + b[1] * hour, model=model, prob=[0.05, 0.95])
    >>> lower, upper = (found["quantiles"].sel(quantile=p) for p in (0.05, 0.95))
    >>> for part in pms.predict(idata, "late", model=model, chunksize=100_000):
    ...     some = part["mean"].values
    """
    if isinstance(what, pm.Model):
        raise TypeError(f"{SAID}: what= is a model: write {SAID}(idata, what, model=model).")
    model = full_data_model(arguments.model_in_context(model, f"call {SAID}"))
    what = _only_observed(model) if what is None else what
    choice("kind", kind, ("mean", "outcome"))
    probs = None if prob is None else np.atleast_1d(probabilities("prob", prob))
    if chunksize is not None:
        count("chunksize", chunksize)
    refuse_masked(model)
    # PyMC copies a generator; that of the caller is to be advanced.
    generator = rng if isinstance(rng, np.random.Generator) else arguments.generator(rng)
    posterior = group(idata, "posterior", SAID)
    each = spread(posterior.sizes["draw"], posterior.sizes["chain"], count("draws", draws))
    signs = signs_of(_stats(idata, posterior, each), "posterior", None)
    posterior = in_order(model, posterior.isel(draw=each))
    if is_whole(new_levels):
        count("new_levels", new_levels, smallest=0)
    else:
        new_levels = name_list("new_levels", new_levels) or 0
    with building_graphs():
        wanted = given_observed(model, quantity(model, what, kind))
        posterior, longer, new = with_local(idata, model, posterior, wanted, new_levels, generator)
        function = RowFunction(model, wanted, posterior, longer, by_row=True)
        effects = RowEffects(model, function, posterior, data is not None)
        refuse_moved(model, posterior, SAID)
    if isinstance(data, list | tuple) and data and all(isinstance(x, Rows) for x in data):
        data = Several(data)
    labels, read = reader(function, data, model, wanted.graphs, new)
    whole = function.reduces and not isinstance(data, Rows | Several)
    for said in function.negative:
        warn(said)
    changed = other_columns(idata, model)
    told = of_other_rows(idata, model, function.n_rows, data is None, whole, changed)
    if told is not None:
        warnings.warn(told, stacklevel=2)
    weights = None if signs is None else signs.values.ravel()
    if changed is None and not longer and (other := of_another(idata, model, posterior, weights)):
        warnings.warn(
            f"{SAID}: idata seems to hold no sample of this model's posterior, given the rows that "
            f"both have: {other} Pass the model that was sampled, and other rows as data=.",
            stacklevel=2,
        )
    values = [posterior[name].values for name in effects.names]
    values = [v.reshape(-1, *v.shape[2:]) for v in values]
    points = list(zip(*values, strict=True))
    key = generator.integers(2**32, size=4).tolist()

    def evaluated(
        points: Sequence, start: int, stop: int, own: np.random.Generator
    ) -> Iterator[np.ndarray]:
        columns = read(start, stop)
        try:
            yield from function(effects.at(points, start, stop, own), columns, own)
        except IndexError as error:
            raise outside(f"{start} to {stop - 1}", error, function.raw, columns) from None

    def part(start: int, stop: int) -> dict[str, np.ndarray]:
        own = np.random.default_rng([*key, start])
        found = evaluated(points, start, stop, own)
        if probs is None:
            return _moments(found, weights)
        drawn = np.dtype((float, (stop - start, *one.shape[1:])))
        return _statistics(np.fromiter(found, drawn, len(points)), weights, probs)

    [one] = evaluated(points[:1], 0, 1, np.random.default_rng(0))
    numbers = _VECTOR if probs is None else _MATRIX // len(points)
    size = max(1, numbers // one.size)
    named = _named(wanted, one.ndim)
    n = len(labels)
    ends = [(k, min(k + chunksize, n)) for k in range(0, n, chunksize)] if chunksize else [(0, n)]
    parts = (_joined(part, labels, *each, size, named, probs) for each in ends)
    return next(parts) if chunksize is None else parts


def _stats(idata: xr.DataTree, posterior: xr.Dataset, each: np.ndarray) -> xr.DataTree:
    """Return the signs of some draws, in a tree of their own."""
    groups = {}
    if "sample_stats" in idata.children and "sign" in idata["sample_stats"]:
        stats = idata["sample_stats"].to_dataset()[["sign"]]
        for dim in SAMPLE_DIMS:
            own = stats.get_index(dim).tolist() if dim in stats.dims else None
            if own != (known := posterior.get_index(dim).tolist()):
                raise ValueError(
                    f"{SAID}: sample_stats has the {dim}s {shown(own)} and posterior "
                    f"{shown(known)}: the signs don't belong to these draws. Select from the "
                    "whole DataTree."
                )
        groups["sample_stats"] = stats.isel(draw=each)
    return xr.DataTree.from_dict(groups)


# Results


def _moments(found: Iterable[np.ndarray], signs: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return mean and standard deviation over draws, each of shape (m, ...), one by one.

    Sums are of what draws differ by from the first, which no offset makes inexact.
    """
    draws = iter(found)
    first = np.asarray(next(draws), dtype=float)
    start = np.where(np.isfinite(first), first, 0.0)
    weights = repeat(1.0) if signs is None else iter(signs)
    total, square, n = np.zeros_like(first), np.zeros_like(first), 0
    with np.errstate(invalid="ignore"):
        for x, weight in zip(chain([first], draws), weights, strict=False):
            apart = x - start
            total += apart if signs is None else weight * apart
            np.square(apart, out=apart)
            square += apart if signs is None else weight * apart
            n += 1
        size = n if signs is None else signs.sum()
        mean = total / size
        variance = square / size - mean**2
    if signs is None:
        variance = np.maximum(variance, 0.0) * (n / max(1, n - 1))
    return {"mean": start + mean, "sd": np.sqrt(np.where(variance >= 0, variance, np.nan))}


def _statistics(
    matrix: np.ndarray, signs: np.ndarray | None, probs: np.ndarray
) -> dict[str, np.ndarray]:
    """Return moments and quantiles over draws, shape (S, m, ...), which lose their order."""
    result = _moments(matrix, signs)
    if signs is None:
        matrix.sort(axis=0)  # faster than the partition that NumPy's quantiles begin with
        quantiles = np.quantile(matrix, probs, axis=0, overwrite_input=True)
        result["quantiles"] = np.moveaxis(quantiles, 0, -1)
    else:
        flat = matrix.reshape(len(matrix), -1).T
        each = [signed.quantile(x, signs, probs) for x in flat]
        result["quantiles"] = np.array(each).reshape(*matrix.shape[1:], len(probs))
    return result


def _named(wanted: Predicted, ndim: int) -> list[str]:
    """Name the dimensions of what is predicted, rows first."""
    own = [*wanted.dims, *(None,) * ndim][:ndim]
    return [d or (f"dim_{k}" if k else "row") for k, d in enumerate(own)]


def _joined(
    part: Callable[[int, int], dict[str, np.ndarray]],
    labels: pd.Index,
    begin: int,
    end: int,
    size: int,
    dims: list[str],
    probs: np.ndarray | None,
) -> xr.Dataset:
    """Predict some rows, in pieces of a size."""
    result: dict[str, np.ndarray] = {}
    starts = range(begin, end, size)
    found = current().map(lambda start: part(start, min(start + size, end)), starts)
    for start, piece in zip(starts, found, strict=True):
        for name, values in piece.items():
            whole = result.setdefault(name, np.empty((end - begin, *values.shape[1:])))
            whole[start - begin : start - begin + len(values)] = values
    unknown = np.flatnonzero(np.isnan(result["mean"]).reshape(end - begin, -1).any(axis=1))
    if len(unknown):
        warn(
            f"{SAID}: {len(unknown):,} of {end - begin:,} rows are NaN, first row "
            f"{begin + int(unknown[0]):,}: a column has NaN there, or its values give no number."
        )
    # An index may have a name, which xarray would take for that of the dimension.
    coords: dict[str, Any] = {dims[0]: (dims[0], labels[begin:end])}
    if probs is not None:
        coords["quantile"] = probs
    return xr.Dataset(
        {name: ([*dims, "quantile"] if name == "quantiles" else dims, values)
         for name, values in result.items()}, coords
    )  # fmt: skip


def _only_observed(model: pm.Model) -> str:
    names = [rv.name for rv in model.observed_RVs]
    if len(names) != 1:
        raise ValueError(
            f"{SAID}: what= has to name what to predict: the model has "
            f"{len(names) or 'no'} observed variables{': ' * bool(names)}{', '.join(names)}."
        )
    return names[0]
