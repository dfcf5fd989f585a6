"""Tables that other libraries read, as blocks of NumPy arrays. They are imported where needed."""

from pathlib import Path
from typing import Any

from pymc_subsample.rows.sources.arrow_tables import (
    arrow_blocks,
    arrow_identity,
    parquet_blocks,
    parquet_files,
    parquet_identity,
)
from pymc_subsample.rows.sources.blocks import Options
from pymc_subsample.rows.sources.frames import (
    dask_blocks,
    frame_blocks,
    frame_identity,
    given,
    is_pandas,
    xarray_blocks,
)
from pymc_subsample.rows.writing import RowBlocks

__all__ = [
    "Options", "arrow_blocks", "arrow_identity", "dask_blocks", "frame_blocks", "frame_identity",
    "given", "more", "parquet_blocks", "parquet_files", "parquet_identity", "xarray_blocks",
]  # fmt: skip


def more(data: Any, options: Options) -> RowBlocks:
    """Read rows of columns that are known."""
    several = data if isinstance(data, list | tuple) and data else [data]
    if all(isinstance(one, str | Path) for one in several):
        return parquet_blocks(parquet_files(data), options)
    in_arrow = hasattr(data, "__arrow_c_stream__") or type(data).__module__.startswith("pyarrow.")
    if is_pandas(data) or in_arrow:
        return frame_blocks(data, options)
    return map(options.whole, given(data)), None, options.known or {}
