"""Tables that other libraries read, as blocks of NumPy arrays. They are imported where needed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pymc_subsample.data.sources.arrays import given, of_blocks, of_xarray
from pymc_subsample.data.sources.arrow_tables import of_arrow, of_parquet
from pymc_subsample.data.sources.frames import is_pandas, of_dask, of_pandas, pandas_blocks
from pymc_subsample.data.sources.shared import Levels, Options, Source
from pymc_subsample.data.writing import Blocks

__all__ = [
    "Options", "Source", "more",
    "of_arrow", "of_blocks", "of_dask", "of_pandas", "of_parquet", "of_xarray",
]  # fmt: skip


def more(data: Any, options: Options, levels: Mapping[str, Sequence]) -> Blocks:
    """Read rows of columns that are known, with the levels of their categories so far."""
    if _names_files(data):
        return of_parquet(data, options, Levels(levels))[1]()
    if is_pandas(data):
        return pandas_blocks(data, options, Levels(levels))
    if hasattr(data, "__arrow_c_stream__") or type(data).__module__.startswith("pyarrow."):
        return of_arrow(data, options, Levels(levels))[1]()
    return map(options.whole, given(data)), None, levels


def _names_files(data: Any) -> bool:
    several = data if isinstance(data, list | tuple) and data else [data]
    return all(isinstance(one, str | Path) for one in several)
