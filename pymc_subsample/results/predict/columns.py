"""Columns that predictions read: those of the model, or new ones in their place."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from pytensor.graph.basic import Variable

from pymc_subsample.model.bambi import of_bambi
from pymc_subsample.model.levels import column_names, indexed_levels, refuse_other_levels
from pymc_subsample.results.predict.order import in_order, refuse_new, translated
from pymc_subsample.results.predict.quantity import SAID
from pymc_subsample.results.predict.rowwise import Raw, RowFunction
from pymc_subsample.rows import Rows, Several
from pymc_subsample.rows.columns import StoredColumn
from pymc_subsample.validation import shown, warn

# Rows whose median tells where most of them are. A choice: a median of 1,000 is good to 4% of a
# standard deviation.
_SOME = 1_000


def reader(
    function: RowFunction,
    data: Any,
    model: pm.Model,
    graphs: Sequence[Variable],
    new: Mapping[str, list[str]],
) -> tuple[pd.Index, Callable[[int, int], list[np.ndarray]]]:
    """Return labels of the rows, else their numbers, and a function that reads some of them.

    Labels, and codes on disk that have levels, become the codes that `graphs`, which are predicted,
    have for them; named columns of a matrix come in the order of the model's. Labels that are `new`
    to a dimension come behind its own.
    """
    if isinstance(data, pd.DataFrame):
        data = {v.name: data[v.name] for v in model.data_vars if v.name in data}
    if data is None:
        columns: list[Any] = [r.value for r in function.raw]
        found = pd.RangeIndex(function.n_rows)
    else:
        names = _new_names(function, data, model)
        known, ordered = indexed_levels(model, graphs), column_names(model, graphs)
        known = {
            name: {dim: [*levels, *new.get(dim, [])] for dim, levels in of.items()}
            for name, of in known.items()
        }
        columns = []
        read_anew = [r for r in function.raw if not r.same]
        axes = [r.axis for r in read_anew]
        for r, name in zip(read_anew, names, strict=True):
            given = data[name] if isinstance(data, Mapping) else data.column(name)
            given = in_order(given, name, ordered.get(name)) if r.axis == 0 else given
            columns.append(_new_column(r, given, known))
        if not isinstance(data, Mapping):
            on_disk = zip(names, columns, strict=True)
            as_they_are = {name: c for name, c in on_disk if isinstance(c, StoredColumn)}
            refuse_other_levels(model, graphs, as_they_are)
        lengths = {name: c.shape[a] for name, c, a in zip(names, columns, axes, strict=True)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{SAID}: columns of data have different numbers of rows: {lengths}.")
        found = pd.RangeIndex(next(iter(lengths.values())))
        if isinstance(data, Mapping):
            found = _labels({n: data[n] for n, a in zip(names, axes, strict=True) if not a}, found)
        if not len(found):
            raise ValueError(f"{SAID}: data has no rows.")

        left = iter(columns)
        columns = [None if r.same else next(left) for r in function.raw]

    def read(start: int, stop: int) -> list[np.ndarray]:
        parts = []
        for r, column in zip(function.raw, columns, strict=True):
            if column is None:
                parts.append(np.repeat(r.value.take([0], r.axis), stop - start, r.axis))
                continue
            some = (slice(None),) * r.axis + (slice(start, stop),)
            part = column[some if r.axis else some[0]]
            parts.append(part if data is None else _cast(r, part, start))
        return parts

    return found, read


def _labels(data: Mapping, numbers: pd.Index) -> pd.Index:
    """Return the index that pandas' columns have, of one level, or the rows' `numbers`."""
    given = {n: x.index for n, x in data.items() if isinstance(x, pd.Series | pd.DataFrame)}
    for (a, one), (b, other) in pairwise(given.items()):
        if not one.equals(other):
            raise ValueError(
                f"{SAID}: data[{a!r}] and data[{b!r}] have different indexes "
                f"({shown(list(one[:3]))}, ... and {shown(list(other[:3]))}, ...), and rows are "
                "taken in the order in which they come, not by these. Take the columns from one "
                "data frame, or pass them without an index: .to_numpy()."
            )
    return next((index for index in given.values() if index.nlevels == 1), numbers)


def _new_names(function: RowFunction, data: Any, model: pm.Model) -> list[str]:
    """Return the names of columns that are read, which new rows must have."""
    if not isinstance(data, Rows | Several | Mapping):
        raise TypeError(
            f"{SAID}: data must be a dict of columns by the names of the model's pm.Data, a pandas "
            "DataFrame with columns of these names, or pms.Rows, also a list of these; got "
            f"{shown(data)}."
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
    made = [r for r in function.raw if not r.same]
    if not made:
        raise ValueError(
            f"{SAID}: what is predicted is the same for all rows: no column of data says how many "
            "there are."
        )
    for r in made:
        if r.whole:
            raise ValueError(
                f"{SAID}: the model computes a column (shape {r.value.shape}) from all of its rows "
                "at once, which new rows have no part in. Compute it before the model."
            )
        if r.name is None:
            raise ValueError(
                f"{SAID}: the model reads an array of shape {r.value.shape} that is not pm.Data, "
                f"whose place new rows cannot take. {_instead(model)}"
            )
    names = [r.name for r in made if r.name is not None]
    missing = [name for name in names if name not in data]
    if missing:
        shapes = {r.name: r.value.shape for r in made}
        raise ValueError(
            f"{SAID}: data lacks {missing}; the rows are made of {names}, of shapes "
            f"{[shapes[name] for name in names]} in the model. Name columns so, a matrix as one: "
            f"data={{{missing[0]!r}: table[...], ...}}."
        )
    return names


def _instead(model: pm.Model) -> str:
    if of_bambi(model):
        return "Use Bambi's own model.predict(idata, data=...), which reads its formula."
    return (
        "Write the same model with pm.Data('name', ...) for every column; its draws need not be "
        "made anew."
    )


def _new_column(r: Raw, given: Any, known: Mapping[str, Mapping[str, list]]) -> Any:
    if np.ma.is_masked(given):
        raise ValueError(
            f"{SAID}: data[{r.name!r}] has masked values. Leave these rows out, or fill in what is "
            "missing."
        )
    column = given if isinstance(given, StoredColumn) else np.asarray(given)
    row, held = (list(np.delete(x.shape, r.axis)) if x.ndim > r.axis else None
                 for x in (column, r.value))  # fmt: skip
    if row != held:
        raise ValueError(
            f"{SAID}: data[{r.name!r}] has shape {column.shape}; one row must have the shape that "
            f"it has in the model, {r.value.shape}, with rows on axis {r.axis}."
        )
    if isinstance(column, StoredColumn):
        return translated(column, r.name or "", known.get(r.name or "", {}))
    if column.dtype.kind in "biuf":
        if not r.index:
            _warn_far(r, column)
        return column
    return _coded(r, column, known.get(r.name or "", {}))


def _warn_far(r: Raw, new: np.ndarray) -> None:
    """Warn of new numbers all beyond the model's, by half their width, or most by ten times it."""
    held, given = (np.moveaxis(x, r.axis, 0) for x in (r.value, new))
    if held.dtype.kind not in "iuf" or not len(given) or not given.size:
        return
    some = given[np.linspace(0, len(given) - 1, min(len(given), _SOME)).astype(int)].astype(float)
    low, high = np.fmin.reduce(held, axis=0), np.fmax.reduce(held, axis=0)
    least, most = np.fmin.reduce(given, axis=0), np.fmax.reduce(given, axis=0)
    usual, width = np.median(some, axis=0), np.subtract(high, low, dtype=float)
    with np.errstate(all="ignore"):
        gap = np.fmax(np.subtract(least, high, dtype=float), np.subtract(low, most, dtype=float))
        # Choices: half of a width is beyond any new row of the same kind, ten times one is in other
        # units.
        far = (gap > width / 2) | (np.fmax(usual - high, low - usual) > 10 * width)
    far = np.ravel(far & (width > 0))
    if far.any():
        k = int(far.argmax())
        ends = [f"{np.ravel(x)[k]:.6g}" for x in (least, most, low, high)]
        warn(
            f"{SAID}: data[{r.name!r}]{f', column {k},' * (len(far) > 1)} has numbers from "
            f"{ends[0]} to {ends[1]}, where the model was sampled on {ends[2]} to {ends[3]}: far "
            "from all that it has seen, or in other units."
        )


def _coded(r: Raw, labels: np.ndarray, known: Mapping[str, list]) -> np.ndarray:
    """Return codes for labels: where the coords of what a column indexes say which they are.

    `known` are these by dimension. Text alone is a label: a number may be a code.
    """
    said = (
        f"{SAID}: data[{r.name!r}] must be of numbers, got {shown(np.ravel(labels)[:4].tolist())} "
        f"of type {labels.dtype}"
    )
    held = f"from {np.min(r.value):.6g} to {np.max(r.value):.6g}"
    if not r.index or r.value.dtype.kind not in "iu":
        raise TypeError(
            f"{said}; in the model it has numbers {held}. Convert numbers by .astype(float)."
        )
    if not known:
        raise TypeError(
            f"{said}. The model holds codes of it, {held}, and no coords of what it indexes say "
            "which label each stands for. Pass the codes that the model was fitted with, as "
            "pd.Categorical(labels, categories=levels).codes makes them from the levels that it "
            "had then, in their order; or write the model with these levels as coords, and their "
            "dims= on the parameters."
        )
    (dim, levels), *others = known.items()
    text = all(isinstance(x, str) for x in levels) and len(set(levels)) == len(levels)
    if not text or any(theirs != levels for _, theirs in others):
        coords = ", and ".join(f"of {name!r} {shown(each)}" for name, each in known.items())
        raise TypeError(
            f"{said}. What it indexes has the coords {coords}: not one list of different words, "
            f"so that the code of a label is not clear. Pass codes, in the model {held}."
        )
    codes = pd.Index(levels, dtype=object).get_indexer(pd.Index(np.ravel(labels), dtype=object))
    codes = codes.reshape(labels.shape)
    first = np.moveaxis(labels, r.axis, 0), np.moveaxis(codes, r.axis, 0)
    refuse_new(r.name, dim, levels, *first)
    return codes


def _cast(r: Raw, part: np.ndarray, start: int) -> np.ndarray:
    """Bring new numbers into the type of the model's, and refuse those that it does not hold."""
    to = r.value.dtype
    with np.errstate(invalid="ignore"):
        new = part.astype(to)
    if to.kind != "f" and np.any(wrong := new != part):
        row, *_ = (int(k) for k in np.argwhere(np.moveaxis(wrong, r.axis, 0))[0])
        raise ValueError(
            f"{SAID}: data[{r.name!r}] is of type {part.dtype} and has {part[wrong][0]} in row "
            f"{start + row:,}, which the model's type, {to}, does not hold."
        )
    if r.index and to.kind == "i" and np.any(new < 0) and not np.any(r.value < 0):
        raise ValueError(
            f"{SAID}: data[{r.name!r}] goes down to {new.min()}, and in the model to "
            f"{r.value.min()}: negative codes often stand for missing values, and as an index "
            "would count from the end."
        )
    return new
