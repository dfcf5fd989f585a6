"""Tables that other libraries read, as blocks of NumPy arrays. They are imported where needed."""

import glob
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from pymc_subsample.data.layout import kept_type, not_numbers
from pymc_subsample.data.writing import Block, Blocks
from pymc_subsample.rows import glimpse

# Rows of a block.
_BLOCK = 2**17
_PATTERN = set("*?[")
# Of codes.
_CODE = np.dtype("int32")


# What identifies rows, as JSON, if it can be told; and how to read them, if they are not there yet.
type Source = tuple[dict[str, Any] | None, Callable[[], Blocks]]


class Options:
    """What of a table is kept.

    Parameters
    ----------
    columns : sequence of str or None
        Names; None for all.
    categorical : sequence of str
        Columns of words or numbers that are kept as codes.
    drop_missing : bool
        Whether rows with a missing value in a column that is kept are left out.
    """

    def __init__(
        self, columns: Sequence[str] | None, categorical: Sequence[str], drop_missing: bool
    ) -> None:
        for name, value in (("columns", columns), ("categorical", categorical)):
            if isinstance(value, str):
                raise TypeError(f'{name} must be a list of names, got {value!r}: use ["{value}"].')
        self.columns = None if columns is None else list(columns)
        self.categorical, self.drop_missing = list(categorical), bool(drop_missing)
        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns names a column twice: {self.columns}.")

    @property
    def as_json(self) -> dict[str, Any]:
        """What identifies the rows that are made of a source with them."""
        return {
            "columns": self.columns,
            "categorical": self.categorical,
            "drop_missing": self.drop_missing,
        }

    def chosen(self, known: list[str], what: str) -> list[str]:
        """Return the names of the columns to keep, of those of a table."""
        unfit = [name for name in known if not isinstance(name, str) or known.count(name) > 1]
        if unfit:
            raise ValueError(
                f"Columns of {what} are called {_listed(list(dict.fromkeys(unfit)))}. Names must "
                "be text, and each the name of one column."
            )
        wanted = known if self.columns is None else self.columns
        for argument, names in (("columns", wanted), ("categorical", self.categorical)):
            missing = [name for name in names if name not in known]
            if missing:
                raise ValueError(
                    f"{argument} names {', '.join(map(repr, missing))}, which {what} has not. It "
                    f"has {_listed(known)}."
                )
        beside = [name for name in self.categorical if name not in wanted]
        if beside:
            raise ValueError(f"categorical names {beside}, which columns does not keep.")
        return wanted


def _listed(names: Sequence) -> str:
    shown = ", ".join(map(repr, names[:20]))
    return shown + ", ..." * (len(names) > 20)


class _Levels:
    """Words seen so far, numbered in the order in which they came."""

    def __init__(self, known: Mapping[str, Sequence] = MappingProxyType({})) -> None:
        self.codes = {name: {w: k for k, w in enumerate(words)} for name, words in known.items()}

    def recoded(self, name: str, codes: np.ndarray, words: Sequence) -> np.ndarray:
        """Return codes into all words for codes into some; -1 stays."""
        known = self.codes.setdefault(name, {})
        table = np.array([known.setdefault(_word(w), len(known)) for w in words] + [-1], _CODE)
        return table[codes]

    def of(self, name: str, words: Sequence) -> None:
        """Give words their numbers before codes come."""
        self.recoded(name, np.empty(0, _CODE), words)


class _Named(Mapping):
    """The words of each column, read when all blocks were."""

    def __init__(self, levels: _Levels) -> None:
        self._levels = levels

    def __getitem__(self, name: str) -> Sequence:
        return list(self._levels.codes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._levels.codes)

    def __len__(self) -> int:
        return len(self._levels.codes)


def _word(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    plain = isinstance(value, str | int) or (isinstance(value, float) and np.isfinite(value))
    return value if plain else str(value)


def _kept(blocks: Iterator[tuple[Block, np.ndarray]], drop: bool, what: str) -> Iterator[Block]:
    """Leave out rows with something missing, or refuse those that numbers cannot say it of.

    Blocks come with how many values are missing in each row where a column of integers has it.
    """
    start = 0
    for block, holes in blocks:
        m = len(holes)
        if drop:
            missing = holes > 0
            for x in block.values():
                if x.dtype.kind == "f":
                    missing = missing | np.isnan(x).reshape(m, -1).any(axis=1)
            if missing.any():
                block = {name: x[~missing] for name, x in block.items()}
        elif holes.any():
            raise ValueError(
                f"{what} has missing values where there are integers or categories, first in row "
                f"{start + int(np.flatnonzero(holes)[0]):,}. Leave such rows out with "
                "drop_missing=True, or fill them in."
            )
        start += m
        yield block


def _readable(readers: Mapping[str, Callable | str]) -> dict[str, Callable]:
    """Refuse columns of which the type is known, and not how to read it."""
    wrong = {name: reader for name, reader in readers.items() if isinstance(reader, str)}
    if wrong:
        raise TypeError(not_numbers(wrong))
    return {name: reader for name, reader in readers.items() if not isinstance(reader, str)}


# Arrow


def arrow() -> Any:
    """Import PyArrow."""
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError(
            "Reading Parquet and Arrow tables needs PyArrow: pip install 'pymc-subsample[arrow]'."
        ) from error
    return pyarrow


def of_parquet(path: str | Path | Sequence[str | Path], options: Options) -> Source:
    """Read Parquet files: a path, a pattern, a folder, or several of these.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    files = _parquet_files(path)
    return _identity(files, options), partial(_parquet_blocks, files, options)


def _parquet_files(path: str | Path | Sequence[str | Path]) -> list[Path]:
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


def _identity(files: Sequence[Path], options: Options) -> dict[str, Any]:
    known = [(str(f.resolve()), f.stat()) for f in files]
    listed = [[name, s.st_size, s.st_mtime_ns] for name, s in known]
    return {"kind": "parquet", "files (path, size, mtime)": listed, **options.as_json}


def _parquet_blocks(files: Sequence[Path], options: Options) -> Blocks:
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
                yield from one.iter_batches(batch_size=_BLOCK, columns=names)

    fields = [schemas[0].field(name) for name in names]
    return _from_batches(batches, fields, options, None if options.drop_missing else n_rows)


def of_arrow(
    data: Any, options: Options, known: Mapping[str, Sequence] = MappingProxyType({})
) -> Source:
    """Read Arrow data. `known` are levels that the first codes stand for."""
    pa = arrow()
    if type(data).__module__.startswith("pyarrow._dataset"):
        files = list(getattr(data, "files", []))
        exist = files and all(Path(f).exists() for f in files)
        source = _identity(list(map(Path, files)), options) if exist else None

        def scanned() -> Blocks:
            names = options.chosen(data.schema.names, "the dataset")

            def batches() -> Iterator[Any]:
                return data.to_batches(columns=names, batch_size=_BLOCK, batch_readahead=2,
                                       fragment_readahead=1)  # fmt: skip

            n_rows = None if options.drop_missing else data.count_rows()
            fields = [data.schema.field(name) for name in names]
            return _from_batches(batches, fields, options, n_rows, known)

        return source, scanned
    if not hasattr(data, "__arrow_c_stream__"):
        raise TypeError(
            "from_arrow takes a Table, a RecordBatchReader, a Dataset or anything else with "
            f"__arrow_c_stream__, got {type(data).__module__}.{type(data).__name__}."
        )

    def streamed() -> Blocks:
        table = isinstance(data, pa.Table)
        reader = data.to_reader(_BLOCK) if table else pa.RecordBatchReader.from_stream(data)
        names = options.chosen(reader.schema.names, "the table")

        def batches() -> Iterator[Any]:
            for batch in reader:
                batch = batch.select(names)
                yield from (batch.slice(i, _BLOCK) for i in range(0, batch.num_rows, _BLOCK))

        length = len(data) if hasattr(data, "__len__") else None
        fields = [reader.schema.field(name) for name in names]
        length = None if options.drop_missing else length
        return _from_batches(batches, fields, options, length, known)

    return None, streamed


def _from_batches(
    batches: Callable[[], Iterator[Any]],
    fields: Sequence[Any],
    options: Options,
    n_rows: int | None,
    known: Mapping[str, Sequence] = MappingProxyType({}),
) -> Blocks:
    pa = arrow()
    levels = _Levels(known)
    readers = _readable({f.name: _reader(pa, f, options, levels) for f in fields})

    def read() -> Iterator[tuple[Block, np.ndarray]]:
        empty = True
        for batch in batches():
            holes = np.zeros(batch.num_rows, dtype=np.int64)
            block = {name: readers[name](batch.column(name), holes) for name in readers}
            empty = empty and not batch.num_rows
            yield block, holes

    return _kept(read(), options.drop_missing, "The table"), n_rows, _Named(levels)


def _reader(pa: Any, field: Any, options: Options, levels: _Levels) -> Callable | str:
    """Return a function of an Arrow array and holes to count; or the type, where there is none."""
    name, kind = field.name, field.type
    if pa.types.is_dictionary(kind):
        levels.of(name, [])
        return partial(_codes, levels, name)
    if name in options.categorical:
        levels.of(name, [])
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


def _codes(levels: _Levels, name: str, x: Any, holes: np.ndarray) -> np.ndarray:
    words = x.dictionary.to_pylist()
    codes = x.indices.fill_null(len(words)).to_numpy(zero_copy_only=False).astype(np.int64)
    codes[codes == len(words)] = -1
    known = [k for k, w in enumerate(words) if w is not None]
    places = np.full(len(words) + 1, -1)
    places[known] = np.arange(len(known))
    found = levels.recoded(name, places[codes], [words[k] for k in known])
    holes += found < 0
    return found


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


# pandas and Dask


def of_pandas(frame: Any, options: Options) -> Source:
    """Read a data frame; its index is left out. Those of other libraries are read by Arrow."""
    if not _is_pandas(frame):
        return of_arrow(frame, options)
    return _glimpsed(frame, options), partial(_pandas_blocks, frame, options)


def _is_pandas(data: Any) -> bool:
    return type(data).__module__.split(".")[0] == "pandas" and hasattr(data, "iloc")


def _glimpsed(frame: Any, options: Options) -> dict[str, Any] | None:
    names = options.chosen(list(frame.columns), "the data frame")
    digests = {}
    for name in names:
        column = frame[name]
        if str(column.dtype) == "category":
            words = [_word(w) for w in column.cat.categories]
            digests[name] = [glimpse(column.cat.codes.to_numpy()).hex(), words]
        elif isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
            digests[name] = [str(column.dtype), glimpse(column.to_numpy()).hex()]
        else:
            return None
    return {"kind": "pandas", "n_rows": len(frame), "digests": digests, **options.as_json}


def _pandas_blocks(
    frame: Any, options: Options, known: Mapping[str, Sequence] | _Levels = MappingProxyType({})
) -> Blocks:
    names = options.chosen(list(frame.columns), "the data frame")
    levels = known if isinstance(known, _Levels) else _Levels(known)
    readers = _readable({name: _series(frame[name], options, levels) for name in names})

    def read() -> Iterator[tuple[Block, np.ndarray]]:
        for start in range(0, len(frame), _BLOCK):
            part = frame.iloc[start : start + _BLOCK]
            holes = np.zeros(len(part), dtype=np.int64)
            yield {name: readers[name](part[name], holes) for name in names}, holes

    n_rows = None if options.drop_missing else len(frame)
    return _kept(read(), options.drop_missing, "The data frame"), n_rows, _Named(levels)


def _series(column: Any, options: Options, levels: _Levels) -> Callable | str:
    """Return a function of a part of a column and holes to count; or its type, without one."""
    name, dtype = column.name, column.dtype
    if str(dtype) == "category":
        levels.of(name, list(column.cat.categories))
    elif name in options.categorical:
        levels.of(name, [])
    elif not isinstance(dtype, np.dtype):
        numeric = getattr(dtype, "kind", "O") in "biuf" and hasattr(dtype, "na_value")
        return _nullable if numeric else str(dtype)
    elif dtype.kind not in "biuf" or dtype.itemsize > 8:
        return str(dtype)
    else:
        return lambda x, holes: x.to_numpy()

    def coded(x: Any, holes: np.ndarray) -> np.ndarray:
        x = x if str(x.dtype) == "category" else x.astype("category")
        found = levels.recoded(name, x.cat.codes.to_numpy(), list(x.cat.categories))
        holes += found < 0
        return found

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


def of_dask(frame: Any, options: Options) -> Source:
    """Read a Dask data frame, one partition in memory at a time."""
    return None, partial(_dask_blocks, frame, options)


def _dask_blocks(frame: Any, options: Options) -> Blocks:
    if not (type(frame).__module__.startswith("dask") and hasattr(frame, "partitions")):
        raise TypeError(
            "from_dask takes a dask.dataframe.DataFrame, got "
            f"{type(frame).__module__}.{type(frame).__name__}. Make one of an array by "
            "dask.dataframe.from_dask_array."
        )
    names = options.chosen(list(frame.columns), "the data frame")
    frame = frame[names]
    levels = _Levels()

    def read() -> Iterator[Block]:
        for k in range(frame.npartitions):
            part = frame.partitions[k].compute()
            yield from _pandas_blocks(part, options, levels)[0]

    return read(), None, _Named(levels)


# xarray and blocks


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
    wanted = Options(
        default if options.columns is None else options.columns,
        options.categorical,
        options.drop_missing,
    )
    names = wanted.chosen(known, f"the dataset, along dimension {dim!r},")
    levels = _Levels()
    wrong = {
        name: str(data[name].dtype)
        for name in names
        if name not in options.categorical and data[name].dtype.kind not in "biuf"
    }
    if wrong:
        raise TypeError(not_numbers(wrong))

    def read() -> Iterator[tuple[Block, np.ndarray]]:
        n = data.sizes[dim]
        for start in range(0, n, _BLOCK):
            part = data[names].isel({dim: slice(start, start + _BLOCK)})
            holes = np.zeros(part.sizes[dim], dtype=np.int64)
            block = {}
            for name in names:
                x = part[name].transpose(dim, ...).values
                if name in options.categorical:
                    words, codes = np.unique(x, return_inverse=True)
                    x = levels.recoded(name, codes.reshape(x.shape), words.tolist())
                block[name] = x
            yield block, holes

    n_rows = None if options.drop_missing else data.sizes[dim]
    return _kept(read(), options.drop_missing, "The dataset"), n_rows, _Named(levels)


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
    blocks: Any, n_rows: int | None, coords: Mapping[str, Sequence] | None, options: Options
) -> Source:
    """Read all of blocks that the caller makes: dicts of arrays."""
    return None, lambda: (_given(blocks, n_rows), n_rows, dict(coords or {}))


def more(data: Any, known: Mapping[str, Sequence | None]) -> Blocks:
    """Read rows of columns that are known, with the levels of their categories so far."""
    levels = {name: words for name, words in known.items() if words is not None}
    options = Options(list(known), list(levels), drop_missing=False)
    if _is_pandas(data):
        return _pandas_blocks(data, options, levels)
    if hasattr(data, "__arrow_c_stream__") or type(data).__module__.startswith("pyarrow."):
        return of_arrow(data, options, levels)[1]()
    return _given(data), None, levels


def _given(blocks: Any, n_rows: int | None = None) -> Iterator[Block]:
    if isinstance(blocks, Mapping):
        blocks = [blocks]
    found = 0
    for k, block in enumerate(blocks):
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
            raise TypeError(not_numbers(wrong))
        found += len(next(iter(arrays.values()), ()))
        yield arrays
    if n_rows is not None and found != n_rows:
        raise ValueError(f"n_rows={n_rows:,}, but the blocks have {found:,} rows together.")
