"""Parquet files and Arrow tables, by PyArrow, which is imported where it is needed."""

import glob
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pymc_subsample.rows.folders import FILES
from pymc_subsample.rows.sources.blocks import BLOCK, Levels, Options, PartReader, blocks
from pymc_subsample.rows.writing import RowBlocks

_PATTERN = set("*?[")


def arrow() -> Any:
    """Import PyArrow."""
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError(
            "Reading Parquet and Arrow tables needs PyArrow: pip install 'pymc-subsample[arrow]'."
        ) from error
    return pyarrow


def parquet_files(path: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return Parquet files: a path, a pattern, those in a folder, or several of these."""
    several = [path] if isinstance(path, str | Path) else list(path)
    files: list[Path] = []
    for one in several:
        place = Path(one).expanduser()
        if place.is_dir():
            found = sorted(place.rglob("*.parquet"))
        elif place.exists():
            found = [place]
        else:
            found = [Path(f) for f in sorted(glob.glob(str(place), recursive=True))]
            found = found if _PATTERN & set(str(place)) else []
        if not found:
            what = "holds no *.parquet files" if place.is_dir() else "is not there"
            remote = " Files elsewhere: Rows.from_arrow(pyarrow.dataset.dataset(...))."
            raise FileNotFoundError(f"{one} {what}.{remote if '://' in str(one) else ''}")
        files += found
    if not files:
        raise FileNotFoundError("No Parquet files were named.")
    return files


def parquet_identity(files: Sequence[Path], options: Options) -> dict[str, Any]:
    """Return what identifies the rows of Parquet files, as JSON."""
    known = [(str(f.resolve()), f.stat()) for f in files]
    listed = [[name, s.st_size, s.st_mtime_ns] for name, s in known]
    return {"kind": "parquet", FILES: listed, **options.as_json()}


def parquet_blocks(files: Sequence[Path], options: Options) -> RowBlocks:
    """Read Parquet files, a few row groups in memory at a time."""
    pa = arrow()
    from pyarrow import parquet

    def opened(file: Path) -> Any:
        try:
            return parquet.ParquetFile(file)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, PermissionError):
                raise
            raise ValueError(f"{file} cannot be read as Parquet: {error}.") from error

    schemas, n_rows = [], 0
    for file in files:
        with opened(file) as one:
            schemas.append(one.schema_arrow)
            n_rows += one.metadata.num_rows
    names = options.chosen(schemas[0].names, str(files[0]))
    for file, schema in zip(files[1:], schemas[1:], strict=True):
        for name in names:
            if name not in schema.names or schema.field(name).type != schemas[0].field(name).type:
                now = schema.field(name).type if name in schema.names else "missing"
                raise ValueError(
                    f"Column {name!r} is {schemas[0].field(name).type} in {files[0]} and {now} in "
                    f"{file}. Files must have the same columns: leave it out (columns=[...]) or "
                    "convert them."
                )

    def batches() -> Iterator[Any]:
        for file in files:
            with opened(file) as one:
                yield from one.iter_batches(batch_size=BLOCK, columns=names)

    fields = [schemas[0].field(name) for name in names]
    return _of_batches(batches(), fields, options, n_rows)


def arrow_identity(data: Any, options: Options) -> dict[str, Any] | None:
    """Return what identifies the rows of a dataset of files; None of other Arrow data."""
    arrow()
    if not _is_dataset(data) and not hasattr(data, "__arrow_c_stream__"):
        raise TypeError(
            "from_arrow takes a Table, a RecordBatchReader, a Dataset or anything else with "
            f"__arrow_c_stream__, got {type(data).__module__}.{type(data).__name__}."
        )
    files = [Path(f) for f in getattr(data, "files", [])] if _is_dataset(data) else []
    exist = files and all(f.exists() for f in files)
    return parquet_identity(files, options) if exist else None


def _is_dataset(data: Any) -> bool:
    return type(data).__module__.startswith("pyarrow._dataset")


def arrow_blocks(data: Any, options: Options) -> RowBlocks:
    """Read Arrow data, some batches in memory at a time."""
    pa = arrow()
    if _is_dataset(data):
        names = options.chosen(data.schema.names, "the dataset")
        batches = data.to_batches(
            columns=names, batch_size=BLOCK, batch_readahead=2, fragment_readahead=1
        )
        n_rows = None if options.drop_missing else data.count_rows()
        return _of_batches(batches, [data.schema.field(name) for name in names], options, n_rows)
    table = isinstance(data, pa.Table)
    reader = data.to_reader(BLOCK) if table else pa.RecordBatchReader.from_stream(data)
    names = options.chosen(reader.schema.names, "the table")
    batches = (b.slice(i, BLOCK) for b in reader for i in range(0, b.num_rows, BLOCK))
    n_rows = len(data) if hasattr(data, "__len__") else None
    return _of_batches(batches, [reader.schema.field(name) for name in names], options, n_rows)


def _of_batches(
    batches: Iterator[Any], fields: Sequence[Any], options: Options, n_rows: int | None
) -> RowBlocks:
    pa = arrow()
    readers = {f.name: _reader(pa, f, options) for f in fields}
    parts = ((batch.num_rows, batch) for batch in batches)
    return blocks(parts, readers, options, n_rows, "The table")


def _reader(pa: Any, field: Any, options: Options) -> PartReader | str:
    """Return a function of an Arrow array and holes to count; or the type, where there is none."""
    name, kind, levels = field.name, field.type, options.levels
    if pa.types.is_dictionary(kind):
        levels.declare(name)
        return lambda x, holes: _codes(levels, name, x, holes, declared=True)
    if name in options.categorical:
        levels.declare(name)
        return lambda x, holes: _codes(levels, name, x.dictionary_encode(), holes)
    if pa.types.is_fixed_size_list(kind):
        inner = kind.value_type
        if not (pa.types.is_floating(inner) or pa.types.is_integer(inner)):
            return str(kind)
        return partial(_matrix, pa, kind.list_size)
    if pa.types.is_decimal(kind):
        return lambda x, holes: _floats(x.cast(pa.float64()))
    if pa.types.is_floating(kind):
        return lambda x, holes: _floats(x)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return partial(_integers, pa)
    return str(kind)


def _floats(x: Any) -> np.ndarray:
    return x.to_numpy(zero_copy_only=False)


def _integers(pa: Any, x: Any, holes: np.ndarray) -> np.ndarray:
    if x.null_count:
        holes += x.is_null().to_numpy(zero_copy_only=False)
        x = x.fill_null(pa.scalar(0, x.type) if pa.types.is_integer(x.type) else False)
    return x.to_numpy(zero_copy_only=False)


def _codes(
    levels: Levels, name: str, x: Any, holes: np.ndarray, *, declared: bool = False
) -> np.ndarray:
    words = x.dictionary.to_pylist()
    if declared:
        levels.declare(name, words)
    codes = x.indices.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False)
    return levels.read(name, codes, words, holes)


def _matrix(pa: Any, size: int, x: Any, holes: np.ndarray) -> np.ndarray:
    inner = x.values.slice(x.offset * size, len(x) * size)
    missing = x.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_integer(inner.type):
        own = np.zeros(len(inner), dtype=np.int64)
        numbers = _integers(pa, inner, own).reshape(len(x), size)
        holes += own.reshape(len(x), size).any(axis=1) | missing
        return numbers
    numbers = _floats(inner).reshape(len(x), size)
    if missing.any():
        numbers = numbers.copy()
        numbers[missing] = np.nan
    return numbers
