"""Datasets of xarray, and blocks of arrays that the caller makes."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pymc_subsample.rows.sources.shared import BLOCK, Options, PartReader, blocks
from pymc_subsample.rows.writing import RowBlock, RowBlocks


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
            "Which dimension is that of the rows cannot be told: "
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
