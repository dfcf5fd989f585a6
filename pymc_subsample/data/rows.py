"""Rows on disk, as a user sees them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from pymc_subsample.data import sources
from pymc_subsample.data.columns import Column
from pymc_subsample.data.sources import Options
from pymc_subsample.data.store import Store
from pymc_subsample.data.writing import Blocks, appended, converted

_SHOWN = 20


class Rows:
    r"""Rows on disk, for models of more data than memory holds.

    A folder that is made once, from Parquet files or any table, and holds one row after the other
    in a file that processes map into their memory: a row is read where it is, with all of its
    columns in one piece, and what is not read takes no memory. Make one with `from_parquet`,
    `from_arrow`, `from_pandas`, `from_polars`, `from_xarray`, `from_dask` or `from_blocks`, and
    `open` it later. Steps take it as ``data=``.

    Columns are numbers: floats of 32 and 64 bits (those of 16 are kept in 32), integers and truth
    values, of one number per row or several. Categorical columns become integers from 0 on, and
    what these stand for is in `coords`.

    Parameters
    ----------
    path : str or Path
        The folder.

    Attributes
    ----------
    path : Path
        The folder.
    names : tuple of str
        Columns, or what `select` calls them.
    shape : dict of str to tuple of int
        By name, (n, ...): rows first.
    dtype : dict of str to numpy.dtype
        By name, the type in which numbers are kept.
    coords : dict of str to list
        Levels of the categorical columns by name.
    fingerprint : str
        Identifies all rows and their types, by SHA-256.

    Raises
    ------
    FileNotFoundError
        If the folder is not there.
    ValueError
        If it was not made by this class, was torn or was changed; the message says what is wrong.

    Notes
    -----
    A folder appears when it is whole, and not before: a conversion that is interrupted leaves
    nothing that could be mistaken for rows, and what it leaves is removed by the next one. Of two
    processes that make one folder, one waits for the other.

    Where the folder is there already, it is used if it was made from the same files, which had the
    same size and time of change, with the same options, or from a pandas data frame with the same
    content (of long columns, 16,384 numbers are compared). Anything else raises, unless
    ``overwrite=True``; so do sources of which this cannot be told, and rows that were appended to.

    When a folder is opened, and whenever a chain starts, 64 rows are compared with their digest,
    and all of them if the file was written to in between. `verify` compares all bytes.
    """

    def __init__(self, path: str | Path) -> None:
        self._set(Store(_path(path)), None)

    # Whether a model was compared with all rows, and they with the model.
    checked = False

    def _set(self, store: Store, selection: Mapping[str, list[str] | str] | None) -> None:
        self._store = store
        self._selection = selection
        self.__dict__.pop("_columns", None)

    @classmethod
    def _of(cls, store: Store, selection: Mapping[str, list[str] | str] | None = None) -> "Rows":
        rows = cls.__new__(cls)
        rows._set(store, selection)
        return rows

    @classmethod
    def open(cls, path: str | Path) -> "Rows":
        """Open a folder that was made before.

        Parameters
        ----------
        path : str or Path
            The folder.
        """
        return cls(path)

    @classmethod
    def from_parquet(
        cls,
        path: str | Path | Sequence[str | Path],
        columns: Sequence[str] | None = None,
        *,
        cache: str | Path,
        categorical: Sequence[str] = (),
        drop_missing: bool = False,
        overwrite: bool = False,
        progressbar: bool = True,
    ) -> "Rows":
        """Make rows from Parquet files, a few row groups in memory at a time.

        Parameters
        ----------
        path : str, Path or sequence of these
            Files, patterns such as ``"flights/*.parquet"``, or folders, in which all files of that
            name at any depth are taken. Files are read in order.
        columns : sequence of str, optional
            Columns to keep. Default: all.
        cache : str or Path
            The folder to make, or to use if it was made from the same files before.
        categorical : sequence of str, optional
            Columns of text, or anything else, of which codes and levels are kept. Those of
            dictionary type need not be named.
        drop_missing : bool, default False
            Whether rows with a missing value in any column that is kept are left out. Otherwise
            they stay, as NaN, and steps refuse models that read them.
        overwrite : bool, default False
            Whether rows that were made from something else are replaced.
        progressbar : bool, default True
            Whether one is shown.

        Returns
        -------
        Rows

        Raises
        ------
        ImportError
            Without PyArrow: ``pip install 'pymc-subsample[arrow]'``.
        FileNotFoundError
            If there are no such files.
        TypeError
            If a column is not of numbers.
        ValueError
            If files have different columns, an integer is missing, or `cache` was made from
            something else.
        OSError
            If the disk is full, or does not allow writing; names bytes needed and free.
        """
        files = sources.parquet_files(path)
        options = Options(columns, categorical, drop_missing)
        source = sources.parquet_source(files, options)
        return cls._made(
            cache, source, lambda: sources.parquet_blocks(files, options), overwrite, progressbar
        )

    @classmethod
    def from_arrow(
        cls,
        data: Any,
        columns: Sequence[str] | None = None,
        *,
        cache: str | Path,
        categorical: Sequence[str] = (),
        drop_missing: bool = False,
        overwrite: bool = False,
        progressbar: bool = True,
    ) -> "Rows":
        """Make rows from Arrow data, some batches in memory at a time.

        Parameters
        ----------
        data : pyarrow.Table, RecordBatchReader, dataset.Dataset or object with __arrow_c_stream__
            The table. Lists of a fixed size become matrices.
        columns, cache, categorical, drop_missing, overwrite, progressbar
            As for `from_parquet`.

        Returns
        -------
        Rows
        """
        options = Options(columns, categorical, drop_missing)
        source, read = sources.arrow_blocks(data, options)
        return cls._made(cache, source, read, overwrite, progressbar)

    @classmethod
    def from_pandas(
        cls,
        frame: Any,
        columns: Sequence[str] | None = None,
        *,
        cache: str | Path,
        categorical: Sequence[str] = (),
        drop_missing: bool = False,
        overwrite: bool = False,
        progressbar: bool = True,
    ) -> "Rows":
        """Make rows from a pandas DataFrame; its index is left out.

        Parameters
        ----------
        frame : pandas.DataFrame
            The table.
        columns, cache, categorical, drop_missing, overwrite, progressbar
            As for `from_parquet`.

        Returns
        -------
        Rows
        """
        if not sources.is_pandas(frame):
            return cls.from_arrow(
                frame, columns, cache=cache, categorical=categorical, drop_missing=drop_missing,
                overwrite=overwrite, progressbar=progressbar,
            )  # fmt: skip
        options = Options(columns, categorical, drop_missing)
        source = sources.pandas_source(frame, options)
        return cls._made(
            cache, source, lambda: sources.pandas_blocks(frame, options), overwrite, progressbar
        )

    @classmethod
    def from_polars(
        cls,
        frame: Any,
        columns: Sequence[str] | None = None,
        *,
        cache: str | Path,
        categorical: Sequence[str] = (),
        drop_missing: bool = False,
        overwrite: bool = False,
        progressbar: bool = True,
    ) -> "Rows":
        """Make rows from a Polars DataFrame, by way of Arrow. A LazyFrame needs ``collect()``.

        Parameters
        ----------
        frame : polars.DataFrame
            The table. Arrays become matrices.
        columns, cache, categorical, drop_missing, overwrite, progressbar
            As for `from_parquet`.

        Returns
        -------
        Rows
        """
        if hasattr(frame, "collect") and hasattr(frame, "sink_parquet"):
            raise TypeError(
                "from_polars takes a DataFrame. Of a LazyFrame, use .collect(), or write it with "
                ".sink_parquet(...) and make the rows by Rows.from_parquet."
            )
        return cls.from_arrow(
            frame, columns, cache=cache, categorical=categorical, drop_missing=drop_missing,
            overwrite=overwrite, progressbar=progressbar,
        )  # fmt: skip

    @classmethod
    def from_xarray(
        cls,
        data: Any,
        columns: Sequence[str] | None = None,
        *,
        cache: str | Path,
        dim: str | None = None,
        categorical: Sequence[str] = (),
        drop_missing: bool = False,
        overwrite: bool = False,
        progressbar: bool = True,
    ) -> "Rows":
        """Make rows from an xarray Dataset or DataArray, also one whose arrays are on disk.

        Parameters
        ----------
        data : xarray.Dataset or DataArray
            Its variables become columns; those of several dimensions have several numbers per row.
        columns : sequence of str, optional
            Variables or coordinates to keep. Default: all variables with the dimension `dim`.
        dim : str, optional
            The dimension of the rows. Default: the one that all variables share.
        cache, categorical, drop_missing, overwrite, progressbar
            As for `from_parquet`.

        Returns
        -------
        Rows
        """
        options = Options(columns, categorical, drop_missing)
        return cls._made(
            cache, None, lambda: sources.xarray_blocks(data, dim, options), overwrite, progressbar
        )

    @classmethod
    def from_dask(
        cls,
        frame: Any,
        columns: Sequence[str] | None = None,
        *,
        cache: str | Path,
        categorical: Sequence[str] = (),
        drop_missing: bool = False,
        overwrite: bool = False,
        progressbar: bool = True,
    ) -> "Rows":
        """Make rows from a Dask DataFrame, one partition in memory at a time.

        Parameters
        ----------
        frame : dask.dataframe.DataFrame
            The table.
        columns, cache, categorical, drop_missing, overwrite, progressbar
            As for `from_parquet`.

        Returns
        -------
        Rows
        """
        options = Options(columns, categorical, drop_missing)
        return cls._made(
            cache, None, lambda: sources.dask_blocks(frame, options), overwrite, progressbar
        )

    @classmethod
    def from_blocks(
        cls,
        blocks: Iterable[Mapping[str, np.ndarray]],
        n_rows: int | None = None,
        *,
        cache: str | Path,
        coords: Mapping[str, Sequence] | None = None,
        overwrite: bool = False,
        progressbar: bool = True,
    ) -> "Rows":
        """Make rows from blocks that are computed, or read, one after the other.

        Parameters
        ----------
        blocks : iterable of dict of str to ndarray
            Some rows of each column, shape (m, ...), for any m. Types and shapes of one row are
            those of the first block.
        n_rows : int, optional
            How many rows there will be, so that the room on the disk is looked at first.
        cache, overwrite, progressbar
            As for `from_parquet`.
        coords : dict of str to sequence, optional
            What the integers 0, 1, ... in a column stand for.

        Returns
        -------
        Rows
        """

        def read() -> Blocks:
            found, expected, _ = sources.given_blocks(blocks, n_rows)
            return found, expected, dict(coords or {})

        return cls._made(cache, None, read, overwrite, progressbar)

    @classmethod
    def _made(
        cls, cache: str | Path, source: Any, read: Any, overwrite: bool, progressbar: bool
    ) -> "Rows":
        known = sources.json_of(source)
        store = converted(_path(cache), known, read, overwrite=overwrite, progressbar=progressbar)
        return cls._of(store)

    @property
    def path(self) -> Path:
        """The folder."""
        return self._store.path

    @property
    def fingerprint(self) -> str:
        """Identifies all rows and their types."""
        return self._store.fingerprint

    @cached_property
    def _columns(self) -> dict[str, Column]:
        fields = self._store.fields
        if self._selection is None:
            return {name: Column(self._store, [f], f.shape) for name, f in fields.items()}
        columns = {}
        for name, chosen in self._selection.items():
            if isinstance(chosen, str):
                columns[name] = Column(self._store, [fields[chosen]], fields[chosen].shape)
            else:
                columns[name] = Column(self._store, [fields[c] for c in chosen], (len(chosen),))
        return columns

    @property
    def names(self) -> tuple[str, ...]:
        """Columns, or what `select` calls them."""
        return tuple(self._columns)

    @property
    def shape(self) -> dict[str, tuple[int, ...]]:
        """Shapes by name, rows first."""
        return {name: column.shape for name, column in self._columns.items()}

    @property
    def dtype(self) -> dict[str, np.dtype]:
        """Types by name."""
        return {name: column.dtype for name, column in self._columns.items()}

    @property
    def coords(self) -> Mapping[str, list]:
        """Levels of categorical columns by name."""
        found = {}
        for name, column in self._columns.items():
            levels = column.fields[0].levels
            if levels is not None and not column.row_shape:
                found[name] = list(levels)
        return MappingProxyType(found)

    def __len__(self) -> int:
        return self._store.n_rows

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def column(self, name: str) -> Column:
        """Return a column, to be read some rows at a time: ``column[:100]``.

        Parameters
        ----------
        name : str
            One of `names`.
        """
        if name not in self._columns:
            listed = ", ".join(map(repr, self.names[:_SHOWN]))
            raise KeyError(f"These rows have no column {name!r}; they have {listed}.")
        return self._columns[name]

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a column, shape (n, ...), as it is on disk: nothing is read before it is used.

        A matrix of columns of different types, or not side by side, has no such view: read it by
        `column`.
        """
        column = self.column(name)
        if not column.is_view:
            raise TypeError(
                f"{name!r} is made of columns that are apart on disk, so that all of it would be "
                f"copied. Read some rows of it, rows.column({name!r})[:1000], or its columns one "
                "by one."
            )
        return column[:]

    def select(self, **names: str | Sequence[str]) -> "Rows":
        """Return the same rows under other names: those of a model's `pm.Data`.

        Parameters
        ----------
        **names : str or sequence of str
            By the new name, a column, or columns of one number per row that become a matrix, shape
            (n, k).

        Returns
        -------
        Rows
            A view: nothing is copied.

        Raises
        ------
        KeyError
            If there is no such column.
        """
        if self._selection is not None:
            raise ValueError("These rows were selected already; select from all of them.")
        if not names:
            raise ValueError('select needs names: rows.select(X=["distance", "wind"], y="late").')
        chosen: dict[str, list[str] | str] = {}
        for name, wanted in names.items():
            several = wanted if isinstance(wanted, str) else list(wanted)
            listed = [several] if isinstance(several, str) else several
            if not listed:
                raise ValueError(f"{name} names no column.")
            for column in listed:
                shape = self.column(column).row_shape
                if shape and not isinstance(several, str):
                    raise ValueError(
                        f"{name}: a list makes a matrix of columns of one number per row, and "
                        f"{column!r} has shape {('n', *shape)}. Select it alone: "
                        f'{name}="{column}".'
                    )
            chosen[name] = several
        return self._of(self._store, chosen)

    def sample(self, k: int, seed: int | np.random.Generator | None = 0) -> dict[str, np.ndarray]:
        """Return random rows, to write a model on.

        Parameters
        ----------
        k : int
            How many, drawn without replacement; all rows, in order, if there are no more.
        seed : int or Generator, default 0
            Random numbers.

        Returns
        -------
        dict of str to ndarray, shape (k, ...)
            By name.
        """
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise ValueError(f"k must be an integer from 1 up, got {k!r}.")
        records = self._store.take(sample_index(len(self), int(k), seed))
        return {name: np.array(c.of(records)) for name, c in self._columns.items()}

    def mean(self, name: str) -> Any:
        """Return the mean of a column over all rows, without those that are missing.

        Parameters
        ----------
        name : str
            One of `names`.

        Returns
        -------
        float or ndarray
            Of the shape that one row has. Known since the rows were written.
        """
        return self._statistic(name, "mean")

    def std(self, name: str) -> Any:
        """Return the standard deviation of a column over all rows, as `numpy.std` does.

        Parameters
        ----------
        name : str
            One of `names`.

        Returns
        -------
        float or ndarray
        """
        return self._statistic(name, "std")

    def min(self, name: str) -> Any:
        """Return the smallest number of a column.

        Parameters
        ----------
        name : str
            One of `names`.

        Returns
        -------
        float or ndarray
        """
        return self._statistic(name, "low")

    def max(self, name: str) -> Any:
        """Return the largest number of a column.

        Parameters
        ----------
        name : str
            One of `names`.

        Returns
        -------
        float or ndarray
        """
        return self._statistic(name, "high")

    def missing(self, name: str) -> Any:
        """Return how many numbers of a column are NaN.

        Parameters
        ----------
        name : str
            One of `names`.

        Returns
        -------
        int or ndarray
        """
        return self._statistic(name, "missing")

    def _statistic(self, name: str, which: str) -> Any:
        found = self.column(name).statistic(which)
        return found if found.ndim else found.item()

    def verify(self) -> None:
        """Read all rows and compare them with what was written.

        Raises
        ------
        ValueError
            If a byte differs.
        """
        self._store.verify()

    def append(self, data: Any, *, progressbar: bool = True) -> None:
        """Write more rows behind these.

        Steps, views and pickles that were made before go on with the rows that they had, which
        stay as they are.

        Parameters
        ----------
        data : pandas or Polars DataFrame, Arrow data, dict of str to ndarray, or iterable of these
            With the same columns. Categories are found by their level, and new ones are added.
        progressbar : bool, default True
            Whether one is shown.

        Raises
        ------
        ValueError
            If columns or types differ, or others have written to the folder since it was opened.
        """
        if self._selection is not None:
            raise ValueError("Append to all rows, not to what select made of them.")
        store = self._store
        self._set(appended(store, lambda: _more(store, data), progressbar=progressbar), None)

    def __repr__(self) -> str:
        lines = [f"Rows: {len(self):,} rows of {self._store.row_bytes} bytes at {self.path}"]
        for name, column in list(self._columns.items())[:_SHOWN]:
            fields = ", ".join(f.name for f in column.fields)
            of = f" of {fields}" if (name,) != tuple(f.name for f in column.fields) else ""
            levels = column.fields[0].levels
            kind = f", {len(levels):,} levels" if levels is not None else ""
            shape = " x ".join(map(str, column.row_shape))
            missing = int(column.statistic("missing").sum())
            holes = f", {missing:,} missing" if missing else ""
            lines.append(f"  {name}: {column.dtype}{f' x {shape}' * bool(shape)}{of}{kind}{holes}")
        hidden = len(self._columns) - _SHOWN
        return "\n".join(lines + [f"  and {hidden} more"] * (hidden > 0))

    def as_checked(self) -> "Rows":
        """Return the same rows for a model that was compared with all of them."""
        rows = self._of(self._store, self._selection)
        rows.checked = True
        return rows

    def __reduce__(self) -> tuple:
        return _reopened, (self._store, self._selection, self.checked)


def sample_index(n: int, k: int, seed: int | np.random.Generator | None) -> np.ndarray:
    """Draw k of n rows without replacement, in order; all of them if k is larger."""
    if k >= n:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, k, replace=False))


def _reopened(store: Store, selection: Mapping[str, list[str] | str] | None, checked: bool) -> Rows:
    rows = Rows._of(store, selection)
    rows.checked = checked
    return rows


def _path(path: str | Path) -> Path:
    if not isinstance(path, str | Path) or not str(path):
        raise TypeError(f'A folder for the rows must be named, such as "x.rows"; got {path!r}.')
    return Path(path).expanduser().absolute()


def _more(store: Store, data: Any) -> Blocks:
    """Read rows to append, with the levels of categories so far."""
    fields = store.fields.values()
    known = {f.name: f.levels for f in fields if f.levels is not None}
    options = Options([f.name for f in fields], list(known), drop_missing=False)
    if sources.is_pandas(data):
        return sources.pandas_blocks(data, options, known)
    if hasattr(data, "__arrow_c_stream__") or type(data).__module__.startswith("pyarrow."):
        return sources.arrow_blocks(data, options, known)[1]()
    blocks, n_rows, _ = sources.given_blocks(data, None)
    return blocks, n_rows, known
