"""Data frames of pandas and Dask, datasets of xarray, and blocks of arrays of the caller."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pymc_subsample.rows.row_store import glimpse
from pymc_subsample.rows.sources.arrow_tables import arrow_blocks, arrow_identity
from pymc_subsample.rows.sources.blocks import BLOCK, Options, PartReader, blocks, word
from pymc_subsample.rows.writing import RowBlock, RowBlocks


def is_pandas(data: Any) -> bool:
    """Whether this is a DataFrame of pandas."""
    return type(data).__module__.split(".")[0] == "pandas" and hasattr(data, "iloc")


def frame_identity(frame: Any, options: Options) -> dict[str, Any] | None:
    """Return what identifies the rows of a data frame, None where that cannot be told."""
    if not is_pandas(frame):
        return arrow_identity(frame, options)
    names = options.chosen(list(frame.columns), "the data frame")
    digests = {}
    for name in names:
        column = frame[name]
        if str(column.dtype) == "category":
            words = [word(w) for w in column.cat.categories]
            digests[name] = [glimpse(column.cat.codes.to_numpy()).hex(), words]
        elif isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
            digests[name] = [str(column.dtype), glimpse(column.to_numpy()).hex()]
        else:
            return None
    return {"kind": "pandas", "n_rows": len(frame), "digests": digests, **options.as_json()}


def frame_blocks(frame: Any, options: Options) -> RowBlocks:
    """Read a data frame; its index is left out. Those of other libraries are read by Arrow."""
    if not is_pandas(frame):
        return arrow_blocks(frame, options)
    names = options.chosen(list(frame.columns), "the data frame")
    readers = {name: _series(frame[name], options) for name in names}
    slices = (frame.iloc[start : start + BLOCK] for start in range(0, len(frame), BLOCK))
    parts = ((len(part), part) for part in slices)
    return blocks(parts, readers, options, len(frame), "The data frame")


def _series(column: Any, options: Options) -> PartReader | str:
    """Return a function of a part of a column and holes to count; or its type, without one."""
    name, dtype, levels = column.name, column.dtype, options.levels
    if str(dtype) == "category":
        levels.declare(name, list(column.cat.categories))
    elif name in options.categorical:
        levels.declare(name)
    elif not isinstance(dtype, np.dtype):
        numeric = getattr(dtype, "kind", "O") in "biuf" and hasattr(dtype, "na_value")
        return _nullable if numeric else str(dtype)
    elif dtype.kind not in "biuf" or dtype.itemsize > 8:
        return str(dtype)
    else:
        return lambda x, holes: x.to_numpy()

    def coded(x: Any, holes: np.ndarray) -> np.ndarray:
        x = x if str(x.dtype) == "category" else x.astype("category")
        return levels.read(name, x.cat.codes.to_numpy(), list(x.cat.categories), holes)

    return coded


def _nullable(x: Any, holes: np.ndarray) -> np.ndarray:
    """Read a column of pandas' own types, which has marks for what is missing."""
    missing = x.isna().to_numpy(dtype=bool)
    kind, size = x.dtype.kind, x.dtype.itemsize
    dtype = np.dtype(bool) if kind == "b" else np.dtype(f"{kind}{size}")
    if kind == "f":
        return x.to_numpy(dtype=dtype, na_value=np.nan)
    holes += missing
    return x.to_numpy(dtype=dtype, na_value=0)


def dask_blocks(frame: Any, options: Options) -> RowBlocks:
    """Read a Dask data frame, one partition in memory at a time."""
    if not (type(frame).__module__.startswith("dask") and hasattr(frame, "partitions")):
        raise TypeError(
            "from_dask takes a dask.dataframe.DataFrame, got "
            f"{type(frame).__module__}.{type(frame).__name__}. Make one from an array with "
            "dask.dataframe.from_dask_array."
        )
    chosen = frame[options.chosen(list(frame.columns), "the data frame")]
    computed = (chosen.partitions[k].compute() for k in range(chosen.npartitions))
    found = (block for part in computed for block in frame_blocks(part, options)[0])
    return found, None, options.levels


def xarray_blocks(dim: str | None, data: Any, options: Options) -> RowBlocks:
    """Read the variables of a Dataset that have a dimension, which becomes that of the rows."""
    if not hasattr(data, "data_vars"):
        if not hasattr(data, "to_dataset"):
            raise TypeError(
                "from_xarray takes an xarray.Dataset or DataArray, got "
                f"{type(data).__module__}.{type(data).__name__}."
            )
        data = data.to_dataset(name=data.name or "values")
    dim = _row_dim(data, dim)
    known = [str(name) for name, x in data.variables.items() if dim in x.dims and name != dim]
    default = [name for name in known if name in data.data_vars]
    names = options.chosen(known, f"the dataset, along dimension {dim!r},", default)

    def reader(name: str) -> PartReader | str:
        if name in options.categorical:
            return lambda x, holes: coded(x.transpose(dim, ...).values, name)
        if data[name].dtype.kind not in "biuf":
            return str(data[name].dtype)
        return lambda x, holes: x.transpose(dim, ...).values

    def coded(x: np.ndarray, name: str) -> np.ndarray:
        words, codes = np.unique(x, return_inverse=True)
        return options.levels.seen(name, codes.reshape(x.shape), words.tolist())

    n_rows = data.sizes[dim]
    slices = (data[names].isel({dim: slice(k, k + BLOCK)}) for k in range(0, n_rows, BLOCK))
    parts = ((part.sizes[dim], part) for part in slices)
    readers = {name: reader(name) for name in names}
    return blocks(parts, readers, options, n_rows, "The dataset")


def _row_dim(data: Any, dim: str | None) -> str:
    if dim is not None:
        if dim not in data.sizes:
            raise ValueError(f"dim={dim!r} is not a dimension of the dataset: {dict(data.sizes)}.")
        return dim
    shared = [str(d) for d in data.sizes if all(d in x.dims for x in data.data_vars.values())]
    if len(shared) != 1:
        raise ValueError(
            "The dimension of the rows cannot be determined: "
            f"{', '.join(map(repr, shared)) or 'none'} is shared by all variables, of "
            f"{dict(data.sizes)}. Name it: dim=..."
        )
    return shared[0]


def given(several: Any, n_rows: int | None = None) -> Iterator[RowBlock]:
    """Read blocks that the caller makes, and refuse what is none."""
    if isinstance(several, Mapping):
        several = [several]
    found = 0
    for k, block in enumerate(several):
        if not isinstance(block, Mapping):
            raise TypeError(
                f"Block {k} must be a dict of arrays by column, got {type(block).__name__}."
            )
        arrays = {str(name): np.asarray(x) for name, x in block.items()}
        found += len(next(iter(arrays.values()), ()))
        yield arrays
    if n_rows is not None and found != n_rows:
        raise ValueError(f"n_rows={n_rows:,}, but the blocks have {found:,} rows together.")
