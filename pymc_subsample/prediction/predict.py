"""Predictions for all rows or new ones, some rows at a time."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike

from pymc_subsample import arguments
from pymc_subsample.compile import building_graphs
from pymc_subsample.data import Rows
from pymc_subsample.data.columns import Column
from pymc_subsample.diagnostics import signed
from pymc_subsample.diagnostics.draws import SAMPLE_DIMS, signs_of
from pymc_subsample.diagnostics.thinned import group, sampled_rows, spread
from pymc_subsample.likelihood.discovery import full_data_model
from pymc_subsample.likelihood.levels import refuse_other_levels
from pymc_subsample.passes import current
from pymc_subsample.prediction.moved import of_another, refuse_moved
from pymc_subsample.prediction.quantity import SAID, Quantity, quantity
from pymc_subsample.prediction.rowwise import Raw, RowFunction, in_order, outside
from pymc_subsample.validation import choice, count, probabilities, shown

# Predictions that are in memory at a time, per thread.
_MATRIX = 2**21


def predict(
    idata: xr.DataTree,
    what: Any,
    *,
    model: pm.Model | None = None,
    data: Mapping[str, ArrayLike] | pd.DataFrame | Rows | None = None,
    kind: str = "mean",
    draws: int = 500,
    prob: float | Sequence[float] | None = None,
    chunksize: int | None = None,
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
        such as ``pm.math.sigmoid(logit)``.
    model : pymc.Model, optional
        The model that was sampled. Default: the model on the context stack.
    data : dict of str to array_like, pandas.DataFrame or Rows, optional
        New rows: by the names of the model's `pm.Data`, all that `what` reads; observed values are
        not needed. Categories are the integers that the model was fitted with. Of a data frame
        other columns are left alone; matrices go into a dict, ``{"X": frame[["a", "b"]]}``.
        Default: the rows that the model holds. A model that was written on a sample of `Rows`
        holds that sample: pass the `Rows` to predict all.
    kind : {"mean", "outcome"}
        Of an observed variable y, predict its expectation given the parameters,
        :math:`E[y_i \mid \theta]` (the probability, of a binary one), which says how well it is
        known; or draw y itself, once for each draw, for prediction intervals.
    draws : int, default 500
        How many of the draws to use, evenly spread over chains.
    prob : float or sequence of float, optional
        Probabilities of quantiles, strictly between 0 and 1: ``[0.05, 0.95]`` gives the ends of
        intervals that hold 90% of the draws, and 0.5 medians. With ``kind="mean"`` they say how
        well the expectation is known, with ``kind="outcome"`` where a new outcome will be.
    chunksize : int, optional
        Return an iterator over results of so many rows each, so that memory does not grow with
        the rows at all.
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
        ``row``; its coordinates are row numbers from 0. Eight bytes per row and statistic.

    Raises
    ------
    TypeError
        If there is no model, or an argument is of the wrong kind.
    ValueError
        If the posterior lacks a variable that `what` is made of, or has it in another shape or with
        other dimensions, or is Bambi's with the intercept moved; columns are missing, unknown,
        constants of the model, of other shapes, lengths or types than the model's, or point outside
        of what they index; or the mean sign of signed draws is not known well enough, or signs
        and draws don't belong together.
    TallModelError
        If `what` has no rows, or they depend on each other, or new rows are wanted where the model
        reads an array that is not `pm.Data`, or a column of `Rows` indexes parameters whose coords
        in the model are not its levels in order.

    Warns
    -----
    UserWarning
        As `summary`, of signed draws. If the model holds other rows than the run sampled. If it
        holds the same observed values and columns, as `idata` recorded them, and the draws are
        not where its posterior is, as `loo` tells: they are of another model.

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
    model = full_data_model(arguments.model_in_context(model, f"call {SAID}"))
    choice("kind", kind, ("mean", "outcome"))
    probs = None if prob is None else np.atleast_1d(probabilities("prob", prob))
    if chunksize is not None:
        count("chunksize", chunksize)
    # PyMC copies a generator; that of the caller is to be advanced.
    generator = rng if isinstance(rng, np.random.Generator) else arguments.generator(rng)
    posterior = group(idata, "posterior", SAID)
    each = spread(posterior.sizes["draw"], posterior.sizes["chain"], count("draws", draws))
    signs = signs_of(_stats(idata, posterior, each), "posterior", None)
    posterior = in_order(model, posterior.isel(draw=each))
    with building_graphs():
        wanted = quantity(model, what, kind)
        function = RowFunction(model, wanted, posterior)
        refuse_moved(model, posterior, SAID)
    n, read = _reader(function, data, model)
    if isinstance(data, Rows):
        columns = {r.name: data.column(r.name) for r in function.raw if r.name is not None}
        refuse_other_levels(model, wanted.graphs, columns)
    alone = len(model.observed_RVs) == 1 and not model.potentials
    if data is None and alone and sampled_rows(idata) not in (None, n):
        warnings.warn(
            f"{SAID}: the run sampled {sampled_rows(idata):,} rows, and these are the {n:,} that "
            "the model holds. Pass data= to predict others.",
            stacklevel=2,
        )
    if signs is None and (other := of_another(idata, model, posterior)):
        warnings.warn(
            f"{SAID}: idata seems to hold no sample of this model's posterior, given the rows that "
            f"both have: {other} Pass the model that was sampled, and other rows as data=.",
            stacklevel=2,
        )
    values = [posterior[name].values for name in function.leaves]
    values = [v.reshape(-1, *v.shape[2:]) for v in values]
    points = list(zip(*values, strict=True))
    weights = None if signs is None else signs.values
    key = generator.integers(2**32, size=4).tolist()

    def part(start: int, stop: int) -> dict[str, np.ndarray]:
        own = np.random.default_rng([*key, start])
        try:
            found = function(points, read(start, stop), own)
        except IndexError as error:
            raise outside(f"{start} to {stop - 1}", error) from None
        return _statistics(found, weights, probs)

    one = function(points[:1], read(0, 1), np.random.default_rng(0))
    size = max(1, _MATRIX // (len(points) * one[0].size))
    named = _named(wanted, one.ndim - 1)
    if chunksize is not None:
        return _in_parts(part, n, min(size, chunksize), chunksize, named, probs)
    return _joined(part, 0, n, size, named, probs)


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


# Columns


def _reader(
    function: RowFunction, data: Any, model: pm.Model
) -> tuple[int, Callable[[int, int], list[np.ndarray]]]:
    """Return how many rows there are, and a function that reads some of them."""
    axes = [r.axis for r in function.raw]
    if isinstance(data, pd.DataFrame):
        data = {v.name: data[v.name] for v in model.data_vars if v.name in data}
    if data is None:
        columns: list[Any] = [r.value for r in function.raw]
        n = function.n_rows
    else:
        names = _new_names(function, data, model)
        columns = [
            _new_column(r, data.column(name) if isinstance(data, Rows) else data[name])
            for r, name in zip(function.raw, names, strict=True)
        ]
        lengths = {name: c.shape[a] for name, c, a in zip(names, columns, axes, strict=True)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{SAID}: columns of data have different numbers of rows: {lengths}.")
        n = next(iter(lengths.values()))
        if not n:
            raise ValueError(f"{SAID}: data has no rows.")

    def read(start: int, stop: int) -> list[np.ndarray]:
        parts = [c[(slice(None),) * a + (slice(start, stop),)] if a else c[start:stop]
                 for c, a in zip(columns, axes, strict=True)]  # fmt: skip
        if data is not None:
            parts = [_cast(r, x, start) for r, x in zip(function.raw, parts, strict=True)]
        return parts

    return n, read


def _new_names(function: RowFunction, data: Any, model: pm.Model) -> list[str]:
    """Return the names of columns that are read, which new rows must have."""
    if not isinstance(data, Rows | Mapping):
        raise TypeError(
            f"{SAID}: data must be a dict of columns by the names of the model's pm.Data, a pandas "
            f"DataFrame with columns of these names, or pms.Rows; got {shown(data)}."
        )
    known = [v.name for v in model.data_vars]
    if isinstance(data, Mapping):
        unknown = [name for name in data if name not in known]
        if unknown:
            raise ValueError(f"{SAID}: data holds {unknown}; the pm.Data of the model are {known}.")
    for name in (name for name in function.constants if name in data):
        held = model[name].get_value(borrow=True)
        # Rows may have what only the model's means and the like were computed from.
        if isinstance(data, Mapping) or function.n_rows not in held.shape[:1]:
            raise ValueError(
                f"{SAID}: data[{name!r}] would have no effect: it is a constant of the model, "
                f"shape {held.shape}, and no column of rows. Change it by pm.set_data before, or "
                "leave it out."
            )
    for r in function.raw:
        if r.whole:
            raise ValueError(
                f"{SAID}: the model computes a column (shape {r.value.shape}) from all of its rows "
                "at once, which new rows have no part in. Compute it before the model."
            )
        if r.name is None:
            raise ValueError(
                f"{SAID}: the model reads an array of shape {r.value.shape} that is not pm.Data, "
                "whose place new rows cannot take. Write the same model with pm.Data('name', "
                "...) for every column; its draws need not be made anew."
            )
    names = [r.name for r in function.raw if r.name is not None]
    missing = [name for name in names if name not in data]
    if missing:
        shapes = {r.name: r.value.shape for r in function.raw}
        raise ValueError(
            f"{SAID}: data lacks {missing}; the rows are made of {names}, of shapes "
            f"{[shapes[name] for name in names]} in the model. Name columns so, as by "
            f"data={{{missing[0]!r}: table[...], ...}}."
        )
    return names


def _new_column(r: Raw, given: Any) -> Any:
    column = given if isinstance(given, Column) else np.asarray(given)
    row, held = (list(np.delete(x.shape, r.axis)) if x.ndim > r.axis else None
                 for x in (column, r.value))  # fmt: skip
    if row != held:
        raise ValueError(
            f"{SAID}: data[{r.name!r}] has shape {column.shape}; one row must have the shape that "
            f"it has in the model, {r.value.shape}, with rows on axis {r.axis}."
        )
    if column.dtype.kind not in "biuf":
        raise TypeError(
            f"{SAID}: data[{r.name!r}] must be of numbers, got type {column.dtype}. Turn labels "
            "into the integers that the model was fitted with."
        )
    return column


def _cast(r: Raw, part: np.ndarray, start: int) -> np.ndarray:
    """Bring new numbers into the type of the model's, and refuse those that it does not hold."""
    to = r.value.dtype
    new = part.astype(to)
    if to.kind != "f" and np.any(new != part):
        raise ValueError(
            f"{SAID}: data[{r.name!r}] is of type {part.dtype} with numbers that the model's type, "
            f"{to}, does not hold, in rows from {start}."
        )
    if r.index and to.kind == "i" and np.any(new < 0) and not np.any(r.value < 0):
        raise ValueError(
            f"{SAID}: data[{r.name!r}] goes down to {new.min()}, and in the model to "
            f"{r.value.min()}: negative codes often stand for what is missing, and as an index "
            "would count from the end."
        )
    return new


# Results


def _statistics(
    found: np.ndarray, signs: np.ndarray | None, probs: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Return statistics over draws, shape (S, m, ...)."""
    if signs is None:
        result = {"mean": found.mean(axis=0), "sd": found.std(axis=0, ddof=min(1, len(found) - 1))}
        if probs is not None:
            result["quantiles"] = np.moveaxis(np.quantile(found, probs, axis=0), 0, -1)
        return result
    weights = signs.ravel() / signs.sum()
    mean = np.tensordot(weights, found, 1)
    variance = np.tensordot(weights, (found - mean) ** 2, 1)
    result = {"mean": mean, "sd": np.sqrt(np.where(variance >= 0, variance, np.nan))}
    if probs is not None:
        flat = found.reshape(len(found), -1).T
        each = [signed.quantile(x, signs.ravel(), probs) for x in flat]
        result["quantiles"] = np.array(each).reshape(*found.shape[1:], len(probs))
    return result


def _named(wanted: Quantity, ndim: int) -> list[str]:
    """Name the dimensions of what is predicted, rows first."""
    own = [*wanted.dims, *(None,) * ndim][:ndim]
    return [d or (f"dim_{k}" if k else "row") for k, d in enumerate(own)]


def _joined(
    part: Callable[[int, int], dict[str, np.ndarray]],
    begin: int,
    end: int,
    size: int,
    dims: list[str],
    probs: np.ndarray | None,
) -> xr.Dataset:
    """Predict some rows, in pieces."""
    result: dict[str, np.ndarray] = {}
    starts = range(begin, end, size)
    found = current().map(lambda start: part(start, min(start + size, end)), starts)
    for start, piece in zip(starts, found, strict=True):
        for name, values in piece.items():
            whole = result.setdefault(name, np.empty((end - begin, *values.shape[1:])))
            whole[start - begin : start - begin + len(values)] = values
    coords: dict[str, Any] = {dims[0]: np.arange(begin, end)}
    if probs is not None:
        coords["quantile"] = probs
    return xr.Dataset(
        {name: ([*dims, "quantile"] if name == "quantiles" else dims, values)
         for name, values in result.items()}, coords
    )  # fmt: skip


def _in_parts(
    part: Callable[[int, int], dict[str, np.ndarray]],
    n: int,
    size: int,
    chunksize: int,
    dims: list[str],
    probs: np.ndarray | None,
) -> Iterator[xr.Dataset]:
    for start in range(0, n, chunksize):
        yield _joined(part, start, min(start + chunksize, n), size, dims, probs)
