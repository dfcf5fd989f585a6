"""A model that was written on some rows, bound to columns on disk: which of its data they are.

The graphs of the model stay as they are, with columns of all rows in the place of the sample's.
Columns that were changed on their way into the model are refused; `of_sample` refuses what could
still say something of the sample.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import pymc as pm
from pymc.util import get_untransformed_name, is_transformed_name
from pytensor.graph.basic import Variable

from pymc_subsample.graph.concrete import root_array
from pymc_subsample.model.discovery import are_few
from pymc_subsample.model.errors import TallModelError
from pymc_subsample.rows import Rows, Several
from pymc_subsample.rows.columns import StoredColumn
from pymc_subsample.rows.on_disk import sample_index
from pymc_subsample.validation import shown

# What makes rows of the objects of a library.
_MAKERS = {
    "pandas": "from_pandas",
    "polars": "from_polars",
    "pyarrow": "from_arrow",
    "dask": "from_dask",
    "xarray": "from_xarray",
}
_AS_IT_IS = (
    "The model must be written on rows.sample(5_000) as it is: scale columns inside the model, "
    "with rows.mean and rows.std as constants, or before the rows are made; codes of categories "
    "are those of rows.coords."
)
# Rows of a sample that are looked for, and rows that are read at a time.
_LOOKED_FOR, _PIECE = 32, 2**17
# Numbers of few rows beside many that are held in memory.
_HELD = 2**16
# Floating-point numbers hold integers up to here as they are.
_LARGEST_INTEGER = {"float64": 2**53, "float32": 2**24}


def bound(model: pm.Model, data: Rows | Several) -> dict[Variable, StoredColumn]:
    """Return the column of each `pm.Data` of a model that has the name of one.

    Raises
    ------
    TallModelError
        If none has, or two have it, or shape, type or numbers show that the column is another one.
    """
    named = {v.name: v for v in model.data_vars if v.name in data}
    found = {v: _column(v, data) for v in named.values()}
    if not found:
        raise TallModelError(
            f"data has columns {listed(data.names)}, and none of them has the name of a pm.Data "
            f"of the model ({listed([v.name for v in model.data_vars]) or 'it has none'}). Write "
            "the model on s = rows.sample(5_000), with pm.Data('x', s['x']) for every column, and "
            "give columns the model's names by rows.select(x=...)."
        )
    for n_rows in {len(column) for column in found.values()}:
        lengths = {v.name: len(value_of(v)) for v, column in found.items() if len(column) == n_rows}
        if len(set(lengths.values())) > 1:
            raise TallModelError(
                f"pm.Data of the model have different numbers of rows: {lengths}, and in data "
                f"{n_rows:,}. Write it on one sample of the rows: rows.sample(5_000)."
            )
    for v in _few(found):
        if len(value_of(v)) != (n_rows := len(found[v])):
            raise TallModelError(
                f"pm.Data {v.name!r} has {len(value_of(v)):,} of {n_rows:,} rows, which are so few "
                "beside the others that they are not sampled. Write the model on all of them: "
                f"rows.sample({n_rows:,})."
            )
    return found


def require_rows(data: Any) -> Rows | Several:
    """Return rows on disk, of one folder or several; raise `TypeError` of anything else."""
    if isinstance(data, Several):
        return data
    given = data if isinstance(data, list | tuple) and data else [data]
    for one in given:
        if isinstance(one, Rows):
            continue
        if isinstance(one, str | PathLike):
            todo = f"Open the folder with pms.Rows.open({str(one)!r})."
        else:
            todo = "Data in memory are given to the model, as pm.Data or observed=."
            maker = _MAKERS.get(type(one).__module__.split(".")[0])
            if maker is not None:
                todo += f" Or make rows of them with pms.Rows.{maker}(..., cache=...)."
        raise TypeError(
            f"data must be pms.Rows, or a list of these, got {type(one).__name__}. {todo}"
        )
    return given[0] if len(given) == 1 else Several(given)


def placed(found: Mapping[Variable, StoredColumn]) -> dict[Variable, StoredColumn | np.ndarray]:
    """Return what takes the place of the model's data: numbers in memory where rows are few.

    Those are evaluated in full, by terms that see all of them at once.
    """
    few = _few(found)
    return {v: column[:] if v in few else column for v, column in found.items()}


def _few(found: Mapping[Variable, StoredColumn]) -> set[Variable]:
    most = max(map(len, found.values()), default=0)
    lengths = {len(column) for column in found.values() if are_few(len(column), most)}
    sizes = {n: sum(c.size for c in found.values() if len(c) == n) for n in lengths}
    return {v for v, c in found.items() if sizes.get(len(c), np.inf) <= _HELD}


def value_of(var: Variable) -> np.ndarray:
    """Return the numbers of a `pm.Data`."""
    value = root_array(var)
    assert value is not None
    return value


def _column(var: Variable, data: Rows | Several) -> StoredColumn:
    """Return the column for a `pm.Data`, in the type that it has in the model."""
    name, value = var.name, value_of(var)
    try:
        column = data.column(name)
    except ValueError as error:
        raise TallModelError(str(error)) from None
    if value.shape[1:] != column.row_shape or not value.ndim:
        raise TallModelError(
            f"pm.Data {name!r} has shape {value.shape} in the model, and {column.shape} in data: "
            "rows come first, and one row must have the same shape in both. Give the model "
            f"rows.sample(5_000)[{name!r}] as it is, and transpose or reshape it there."
        )
    missing = int(column.statistic("missing").sum())
    if missing:
        raise TallModelError(
            f"Column {name!r} of data has {missing:,} missing values (NaN). Make the rows with "
            "drop_missing=True, or fill in what is missing."
        )
    low, high = column.statistic("low"), column.statistic("high")
    if not _holds(value.dtype, column, low, high):
        raise TallModelError(
            f"Column {name!r} of data is of type {column.dtype}, with numbers from {np.min(low)} "
            f"to {np.max(high)}, and pm.Data {name!r} is of type {value.dtype}, which does not "
            "hold them. Give the model rows.sample(5_000) as it is, or make the rows with another "
            "type."
        )
    low, high = low.astype(value.dtype), high.astype(value.dtype)
    if np.any(~((low <= value) & (value <= high))):
        raise TallModelError(
            f"pm.Data {name!r} holds numbers from {np.min(value):.6g} to {np.max(value):.6g}, and "
            f"column {name!r} of data from {np.min(low):.6g} to {np.max(high):.6g}. {_AS_IT_IS}"
        )
    return column.as_type(value.dtype)


def _holds(dtype: np.dtype, column: StoredColumn, low: np.ndarray, high: np.ndarray) -> bool:
    """Whether a type holds all numbers of a column: floats to the nearest, others as they are."""
    kinds = {t.kind for t in column.types}
    if dtype.kind == "f" and kinds <= set("biuf"):
        largest = _LARGEST_INTEGER.get(dtype.name, 2**11)
        inside = bool(np.all(np.abs([low, high]) <= largest))
        return inside or kinds <= {"f"}
    if dtype.kind == "b":
        return kinds <= {"b"}
    if dtype.kind in "iu" and kinds <= set("biu"):
        limits = np.iinfo(dtype)
        return bool(np.all(low >= limits.min) and np.all(high <= limits.max))
    return False


def refuse_other_rows(found: Mapping[Variable, StoredColumn]) -> None:
    """Refuse a sample that is not of these rows: columns that were changed, or coded anew.

    A sample of `Rows.sample` with its own seed, of all rows or of those before some were appended,
    is told at once. Of any other one, some rows are looked for among all rows.
    """
    stores = {id(column.store): column.store for column in found.values()}
    for key in stores:
        _refuse_other_rows({v: c for v, c in found.items() if id(c.store) == key})


def _refuse_other_rows(found: Mapping[Variable, StoredColumn]) -> None:
    values = {v: value_of(v) for v in found}
    m, n = len(next(iter(values.values()))), len(next(iter(found.values())))
    store = next(iter(found.values())).store
    for end in np.cumsum([segment.n_rows for segment in store.segments])[::-1].tolist():
        index = sample_index(end, m, 0)
        if m <= end and all(np.array_equal(c[index], values[v]) for v, c in found.items()):
            return
    rng = np.random.default_rng(0)
    wanted = np.sort(rng.choice(m, min(m, _LOOKED_FOR), replace=False))
    rows = np.column_stack([values[v][wanted].reshape(len(wanted), -1) for v in found])
    key = int(np.argmax([len(np.unique(column)) for column in rows.T]))
    left = np.ones(len(wanted), dtype=bool)
    for start in range(0, n, _PIECE):
        records = [c[start : min(start + _PIECE, n)] for c in found.values()]
        parts = np.column_stack([x.reshape(len(x), -1) for x in records])
        near = parts[np.isin(parts[:, key], rows[left, key])]
        for k in np.flatnonzero(left):
            left[k] = not np.any(np.all(near == rows[k], axis=1))
        if not left.any():
            return
    first = int(wanted[left][0])
    similar = _most_similar(found, values, first)
    raise TallModelError(
        f"Row {first} of what the model is written on does not occur in data, in the columns "
        f"{listed([v.name for v in found])} together. {similar} {_AS_IT_IS}"
    )


def _most_similar(
    found: Mapping[Variable, StoredColumn], values: Mapping[Variable, np.ndarray], k: int
) -> str:
    """Say which row on disk is most like a row of the sample, and in which columns it differs.

    It has most columns in common, and is nearest in the others, in units of their ranges.
    """
    best, row, there = (-1.0, 0.0), 0, dict[Variable, np.ndarray]()
    for start in range(0, len(next(iter(found.values()))), _PIECE):
        part = {v: column[start : start + _PIECE] for v, column in found.items()}
        same, distance = np.zeros((2, len(next(iter(part.values())))))
        for v, column in found.items():
            span = column.statistic("high") - column.statistic("low")
            apart = abs(part[v].astype(float) - values[v][k]) / np.where(span > 0, span, 1)
            apart = apart.reshape(len(apart), -1).sum(axis=1)
            same, distance = same + (apart == 0), distance + apart
        nearest = int(np.lexsort((distance, -same))[0])
        key = float(same[nearest]), -float(distance[nearest])
        if key > best:
            best, row = key, start + nearest
            there = {v: x[nearest] for v, x in part.items()}
    said = [
        f"{v.name!r} ({shown(values[v][k].tolist())} in the model, {shown(x.tolist())} in data"
        f"{_converted(values[v][k], x, found[v].types[0])})"
        for v, x in there.items()
        if np.any(values[v][k] != x)
    ]
    return f"The most similar, row {row:,} of data, differs in {', '.join(said)}."


def _converted(value: np.ndarray, there: np.ndarray, on_disk: np.dtype) -> str:
    """Say which conversion of the numbers on disk gives others, if one does."""
    with np.errstate(over="ignore"):
        for kind in ("float32", "float16"):
            if np.array_equal(there.astype(kind), value):
                return f": converted to {kind} on the way"
        for how, whole in (("cut off", np.trunc), ("rounded", np.round)):
            if np.array_equal(whole(there), value):
                return f": {how} to integers on the way"
        if np.array_equal(value.astype(on_disk), there):
            return f": not taken from the rows, which hold them as {on_disk}"
    return ""


def listed(names: Sequence[str]) -> str:
    """Return names as a message has them."""
    return ", ".join(map(repr, names))


def quoted(name: str) -> str:
    """Return the name of a value variable as the model has it, and as a message has that."""
    return repr(get_untransformed_name(name) if is_transformed_name(name) else name)
