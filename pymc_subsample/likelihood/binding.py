"""A model that was written on some rows, bound to columns on disk: which of its data they are.

The graphs of the model stay as they are, with columns of all rows in the place of the sample's.
What could still say something of the sample is refused: data of as many rows that are not bound,
numbers computed from the sample inside the model, and columns that were changed on their way into
the model.
"""

import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor

from pymc_subsample.data import Rows
from pymc_subsample.data.columns import Column
from pymc_subsample.data.rows import sample_index
from pymc_subsample.data.several import Several
from pymc_subsample.likelihood.discovery import are_few
from pymc_subsample.likelihood.errors import TallModelError, op_name
from pymc_subsample.likelihood.terms import Whole
from pymc_subsample.likelihood.verification import probes, tolerance
from pymc_subsample.rows import Joined
from pymc_subsample.symbolic.graph import ReadsAllRows, root_array

if TYPE_CHECKING:
    from pymc_subsample.likelihood.tall_model import TallModel

# What makes rows of the objects of a library.
_MAKERS = {
    "pandas": "from_pandas",
    "polars": "from_polars",
    "pyarrow": "from_arrow",
    "dask": "from_dask",
    "xarray": "from_xarray",
}
_PACKAGE = str(Path(__file__).parents[1])
_REMEDY = (
    "Compute it over all rows, before the model, and write the number into it: rows.mean('x'), "
    "rows.std('x'), rows.min('x'), rows.max('x') or len(rows); or compute a column, and make the "
    "rows with it."
)
_AS_IT_IS = (
    "The model must be written on rows.sample(5_000) as it is: scale columns inside the model, "
    "with rows.mean and rows.std as constants, or before the rows are made; codes of categories "
    "are those of rows.coords."
)
_MOVING = {
    "AdvancedIncSubtensor", "AdvancedSubtensor", "IncSubtensor", "Join", "Nonzero", "Subtensor",
}  # fmt: skip
_NUMBERING = "ARange"
# Rows of a sample that are looked for, and rows that are read at a time.
_LOOKED_FOR, _PIECE = 32, 2**17
# Numbers of few rows beside many that are held in memory.
_HELD = 2**16
# Floating-point numbers hold integers up to here as they are.
_LARGEST_INTEGER = {"float64": 2**53, "float32": 2**24}


def bound(model: pm.Model, data: Rows | Several) -> dict[Variable, Column]:
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
            f"data has columns {_listed(data.names)}, and none of them has the name of a pm.Data "
            f"of the model ({_listed([v.name for v in model.data_vars]) or 'it has none'}). Write "
            "the model on s = rows.sample(5_000), with pm.Data('x', s['x']) for every column, and "
            "give columns the model's names by rows.select(x=...)."
        )
    for n_rows in {len(column) for column in found.values()}:
        lengths = {v.name: len(_value(v)) for v, column in found.items() if len(column) == n_rows}
        if len(set(lengths.values())) > 1:
            raise TallModelError(
                f"pm.Data of the model have different numbers of rows: {lengths}, and in data "
                f"{n_rows:,}. Write it on one sample of the rows: rows.sample(5_000)."
            )
    _refuse_part_of_few(found)
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


def placed(found: Mapping[Variable, Column]) -> dict[Variable, Column | np.ndarray]:
    """Return what takes the place of the model's data: numbers in memory where rows are few.

    Those are evaluated in full, by terms that see all of them at once.
    """
    few = _few(found)
    return {v: column[:] if v in few else column for v, column in found.items()}


def _few(found: Mapping[Variable, Column]) -> set[Variable]:
    most = max(map(len, found.values()), default=0)
    lengths = {len(column) for column in found.values() if are_few(len(column), most)}
    sizes = {n: sum(c.size for c in found.values() if len(c) == n) for n in lengths}
    return {v for v, c in found.items() if sizes.get(len(c), np.inf) <= _HELD}


def _refuse_part_of_few(found: Mapping[Variable, Column]) -> None:
    for v in _few(found):
        if len(_value(v)) != (n_rows := len(found[v])):
            raise TallModelError(
                f"pm.Data {v.name!r} has {len(_value(v)):,} of {n_rows:,} rows, which are so few "
                "beside the others that they are not sampled. Write the model on all of them: "
                f"rows.sample({n_rows:,})."
            )


def _value(var: Variable) -> np.ndarray:
    value = root_array(var)
    assert value is not None
    return value


def _column(var: Variable, data: Rows | Several) -> Column:
    """Return the column for a `pm.Data`, in the type that it has in the model."""
    name, value = var.name, _value(var)
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
    bound = column.as_type(value.dtype)
    _refuse_others(name, value, bound)
    return bound


def _holds(dtype: np.dtype, column: Column, low: np.ndarray, high: np.ndarray) -> bool:
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


def _refuse_others(name: str, value: np.ndarray, column: Column) -> None:
    """Refuse numbers that cannot be those of the column, such as standardised ones."""
    low, high = (column.statistic(which).astype(value.dtype) for which in ("low", "high"))
    if np.any(~((low <= value) & (value <= high))):
        raise TallModelError(
            f"pm.Data {name!r} holds numbers from {np.min(value):.6g} to {np.max(value):.6g}, and "
            f"column {name!r} of data from {np.min(low):.6g} to {np.max(high):.6g}. {_AS_IT_IS}"
        )


def refuse_other_rows(found: Mapping[Variable, Column]) -> None:
    """Refuse a sample that is not of these rows: columns that were changed, or coded anew.

    A sample of `Rows.sample` with its own seed, of all rows or of those before some were appended,
    is told at once. Of any other one, some rows are looked for among all rows.
    """
    stores = {id(column.store): column.store for column in found.values()}
    for key in stores:
        _refuse_other_rows({v: c for v, c in found.items() if id(c.store) == key})


def _refuse_other_rows(found: Mapping[Variable, Column]) -> None:
    values = {v: _value(v) for v in found}
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
    raise TallModelError(
        f"Row {wanted[left][0]} of what the model is written on is none of the rows of data, in "
        f"the columns {_listed([v.name for v in found])} together. {_AS_IT_IS}"
    )


def refusal(error: ReadsAllRows, roots: Mapping[Variable, Variable]) -> TallModelError:
    """Say which number the model computes from all rows."""
    names = _listed(list(dict.fromkeys(roots[c].name for c in error.columns)))
    op = _mixing(error.outputs, error.columns)
    if op in _MOVING:
        return TallModelError(
            f"The model chooses, moves or changes some rows of pm.Data {names} ({op}): which ones, "
            "follows from the sample that it is written on. Make rows that need no such choice, or "
            "a column that says what a row is."
        )
    if op == _NUMBERING:
        return TallModelError(
            f"pm.Data {names} meets a number of each row that the model makes itself, such as "
            f"pt.arange ({op}). Make it a column of the rows."
        )
    return TallModelError(
        f"The model computes something of all rows of pm.Data {names} at once ({op}), of which it "
        f"holds a sample: it would be a statistic of the sample. {_REMEDY}"
    )


def _mixing(outputs: Sequence[Variable], columns: Sequence[Variable]) -> str:
    """Name the first Op that takes the columns together."""
    keeping = (Elemwise, DimShuffle, SpecifyShape)
    nodes = [node for node in toposort(outputs) if not isinstance(node.op, keeping)]
    reading = [n for n in nodes if not set(ancestors(n.inputs)).isdisjoint(columns)]
    return next((op_name(node.op) for node in [*reading, *nodes]), "a function of all rows")


def misfit(found: Mapping[Variable, Column], error: Exception) -> TallModelError:
    """Say that the model fixes the number of rows of its sample."""
    lengths = {len(column): len(_value(v)) for v, column in found.items()}
    rows, length = (" and ".join(f"{n:,}" for n in x) for x in (lengths, lengths.values()))
    return TallModelError(
        f"With {rows} rows in the place of the {length} that the model is written on, shapes "
        f"do not fit together ({error}). Something in the model has the length of the sample: an "
        "array, coordinates of its rows, or a number such as len(s['y']). Make arrays columns of "
        "the rows; leave out shape= where there is data, and coordinates of the rows."
    )


def refuse_unbound(tall: "TallModel", found: Mapping[Variable, Column]) -> None:
    """Refuse data of the sample's rows that have no column; `tall` is the model on the sample."""
    for length in {len(_value(v)) for v in found}:
        _refuse_unbound(tall, {v.name for v in found}, length)


def _refuse_unbound(tall: "TallModel", names: set[str], length: int) -> None:
    data = {v.name for v in tall.model.data_vars}
    for var in tall.data_of_length(length):
        shared = isinstance(var, SharedVariable) and var.name in data
        if shared and var.name in names:
            continue
        value = root_array(var)
        shape = getattr(value, "shape", ())
        if shared:
            raise TallModelError(
                f"pm.Data {var.name!r}, of shape {shape}, has an entry for each of the "
                f"{length:,} rows that the model is written on, and data has no column of that "
                f"name (of the model's, it has {_listed(sorted(names))}). Select one: "
                f"rows.select(..., {var.name}=...). If its length is another one by chance, write "
                "the model on another number of rows."
            )
        owner = _observed_with(tall, var)
        said = f"The observed values of {owner!r} are" if owner else "The model holds"
        raise TallModelError(
            f"{said} an array of shape {shape}, with one entry for each of the {length:,} rows "
            "that the model is written on, which is not pm.Data and so has no column on disk. Make "
            "it a column of the rows, and write pm.Data('name', s['name']) with s = "
            "rows.sample(5_000)."
        )


def refuse_in_full(
    terms: Sequence[Whole],
    arrays: Mapping[Variable, np.ndarray | Column],
    roots: Mapping[Variable, Variable],
) -> None:
    """Refuse terms that all rows on disk would be read for at every gradient."""
    for term in terms:
        read = [v for v in ancestors([term.graph]) if isinstance(arrays.get(v), Column)]
        if read:
            raise TallModelError(
                f"{term.name!r} is evaluated in full ({term.why}), and reads pm.Data "
                f"{_listed([roots[v].name for v in read])} of data, which stay on disk. Sample its "
                "rows, too (observed=), or hold all of them in memory: leave them out of data, and "
                "write the model on them."
            )


def refuse_others(
    found: Mapping[Variable, Column],
    roots: Mapping[Variable, Variable | None],
    axes: Mapping[Variable, int],
    kinds: Mapping[int, Sequence],
) -> None:
    """Refuse raw columns that are not on disk."""
    known = {len(column) for column in found.values()}
    missing = ", ".join(
        f"{n:,} of {_listed([r.name for r in t])}" for n, t in kinds.items() if n not in known
    )
    if missing:
        raise TallModelError(
            f"The model has rows of other lengths than data ({missing}). Make rows of these too, "
            "with pm.Data of their columns: data=[rows, others]. Or name those that are in data: "
            "observed=[...]; the others are then evaluated in full."
        )
    for raw, root in roots.items():
        if root not in found:
            raise TallModelError(
                f"The rows read {raw.name or 'an array'!r}, which has "
                f"{raw.type.shape[axes[raw]] or max(kinds):,} entries and "
                "is not a column of data: a number of each row that the model makes itself, such "
                "as pt.arange. Make it a column of the rows."
            )
        if axes[raw]:
            raise TallModelError(
                f"Rows are on axis {axes[raw]} of pm.Data {raw.name!r}. They must come first, as "
                "in rows.sample."
            )


def _observed_with(tall: "TallModel", root: Variable) -> str | None:
    model = tall.model
    for rv in model.observed_RVs:
        if root in ancestors([model.rvs_to_values[rv]]):
            return rv.name
    return None


def refuse_negative(tall: "TallModel") -> None:
    """Refuse negative numbers in columns that are indices: codes of what is missing."""
    for node in toposort(tall.batch.outputs):
        if not isinstance(node.op, AdvancedSubtensor):
            continue
        for entry in node.inputs[1:]:
            raw = tall.derived.get(entry)
            if raw is None or raw not in tall.raw:
                continue
            roots = tall.raw_roots[tall.raw.index(raw)].values()
            low = [np.min(tall.bound[root].statistic("low")) for root in roots]
            if np.min(low, initial=0) < 0:
                raise TallModelError(
                    f"Column {raw.name!r} of data is an index in the model, and goes down to "
                    f"{np.min(low):.0f}: negative codes often stand for what is missing, and would "
                    "count from the end. Make the rows with codes from 0 up."
                )


def refuse_disagreement(sample: "TallModel", tall: "TallModel") -> None:
    """Refuse a model that differs on the sample's rows when written on all: it uses the sample."""
    for theta, index in probes(sample):
        expected = sample.loglik_as_written(theta, index)
        known = np.isfinite(expected)
        error = abs(_of_sample(sample, tall, theta, index)[known] - expected[known])
        allowed = tolerance(sample, sample.loglik_as_written, theta, index)[known]
        priors = sample.logprior(theta), tall.logprior(theta)
        apart = abs(priors[0] - priors[1]) > 1e-6 * (1 + abs(priors[0]))
        if apart or not np.all(error <= allowed):
            where = "its log prior" if apart else f"the log-likelihood of {_listed(tall.observed)}"
            raise TallModelError(
                f"With all rows of data, {where} is another one than in the model as it is "
                "written, for the same rows. It depends on the sample that the model is written "
                f"on: most likely on its length, by x.shape[0], total_size= or the like. {_REMEDY}"
            )


def _of_sample(
    sample: "TallModel", tall: "TallModel", theta: np.ndarray, index: np.ndarray
) -> np.ndarray:
    """Return the log-likelihood of some of the sample's rows, by the model of all rows.

    Kinds of rows of which samples of equal length were drawn are of one kind in the sample.
    """
    total = np.zeros(len(index))
    for kind in range(len(tall.rows.names)):
        own = [roots.get(kind) for roots in tall.raw_roots]
        length = next(len(_value(root)) for root in own if root is not None)
        for first, last in pairwise(sample.rows.starts):
            if last - first != length:
                continue
            here = (first <= index) & (index < last)
            some = index[here] - first
            columns = []
            for column, root in zip(tall.rows.columns, own, strict=True):
                if root is not None:
                    columns.append(_value(root)[some])
                    continue
                assert isinstance(column, Joined)
                [repeated] = column.parts[kind][:1]
                columns.append(np.broadcast_to(repeated, (len(some), *np.shape(repeated))))
            total[here] += tall.loglik_of(theta, columns)
    return total


def warn_about_deterministics(model: pm.Model, found: Mapping[Variable, Column]) -> None:
    """Warn of deterministic variables that PyMC computes from the sample."""
    read = [v.name for v in model.deterministics if not set(ancestors([v])).isdisjoint(found)]
    if read:
        warnings.warn(
            f"{_listed(read)}: computed by PyMC from the rows that the model is written on, not "
            "from all rows of data. Leave such deterministic variables out of the model, or out of "
            "the result: pm.sample(..., var_names=[...]).",
            UserWarning,
            skip_file_prefixes=(_PACKAGE,),
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
