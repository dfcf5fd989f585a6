"""Datasets of xarray, and blocks of arrays that the caller makes."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pymc_subsample.data.layout import NotNumbersError, kept_type, not_numbers
from pymc_subsample.data.sources.shared import BLOCK, Levels, Options, Reader, Source, blocks
from pymc_subsample.data.writing import Block, Blocks


def of_xarray(data: Any, dim: str | None, options: Options) -> Source:
    """Read the variables of a Dataset that have a dimension, which becomes that of the rows."""
    return None, partial(_xarray_blocks, data, dim, options)


def _xarray_blocks(data: Any, dim: str | None, options: Options) -> Blocks:
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
    wanted = default if options.columns is None else options.columns
    names = Options(wanted, options.categorical, options.drop_missing).chosen(
        known, f"the dataset, along dimension {dim!r},"
    )
    levels = Levels(given=options.levels)

    def reader(name: str) -> Reader | str:
        if name in options.categorical:
            return lambda x, holes: _coded(x.transpose(dim, ...).values, name, levels)
        if data[name].dtype.kind not in "biuf":
            return str(data[name].dtype)
        return lambda x, holes: x.transpose(dim, ...).values

    n_rows = data.sizes[dim]
    slices = (data[names].isel({dim: slice(k, k + BLOCK)}) for k in range(0, n_rows, BLOCK))
    parts = ((part.sizes[dim], part) for part in slices)
    readers = {name: reader(name) for name in names}
    return blocks(parts, readers, options, n_rows, levels, "The dataset")


def _coded(x: np.ndarray, name: str, levels: Levels) -> np.ndarray:
    words, codes = np.unique(x, return_inverse=True)
    return levels.seen(name, codes.reshape(x.shape), words.tolist())


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


def of_blocks(
    several: Any, n_rows: int | None, coords: Mapping[str, Sequence] | None, options: Options
) -> Source:
    """Read all of blocks that the caller makes: dicts of arrays."""
    return None, lambda: (given(several, n_rows), n_rows, dict(coords or {}))


def given(several: Any, n_rows: int | None = None) -> Iterator[Block]:
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
        wrong = {}
        for name, x in arrays.items():
            try:
                kept_type(name, x.dtype)
            except TypeError:
                wrong[name] = str(x.dtype)
        if wrong:
            raise NotNumbersError(not_numbers(wrong), wrong)
        found += len(next(iter(arrays.values()), ()))
        yield arrays
    if n_rows is not None and found != n_rows:
        raise ValueError(f"n_rows={n_rows:,}, but the blocks have {found:,} rows together.")
