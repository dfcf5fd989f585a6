"""Rows on disk, as a user sees them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from pymc_subsample.rows import sources
from pymc_subsample.rows.appending import appended
from pymc_subsample.rows.columns import Columns, StoredColumn
from pymc_subsample.rows.constructors import TableOptions, folder_at, in_full, made
from pymc_subsample.rows.drawn_samples import remember
from pymc_subsample.rows.row_format import NotNumbersError
from pymc_subsample.rows.store import Store
from pymc_subsample.rows.writing import RowBlocks


class Rows(Columns):
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

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"miles": miles, "hour": hour, "late": late})
    >>> rows = pms.Rows.from_pandas(frame, cache="flights.rows", progressbar=False)
    >>> some = rows.sample(1_000)  # to write the model on
    >>> with pm.Model():
    ...     a = pm.Normal("a", 0, 5)
    ...     b = pm.Normal("b")
    ...     logit = a + b * pm.Data("hour", some["hour"])
    ...     pm.Bernoulli("y", logit_p=logit, observed=pm.Data("late", some["late"]))
    ...     idata = pm.sample(step=pms.HMCECS(data=rows.select(hour="hour", late="late")))
    """

    def __init__(self, path: str | Path) -> None:
        self._set(Store(folder_at(path)), None)

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
    @in_full
    def from_parquet(
        cls,
        path: str | Path | Sequence[str | Path],
        columns: Sequence[str] | None = None,
        **shared: Unpack[TableOptions],
    ) -> "Rows":
        """Make rows from Parquet files, a few row groups in memory at a time.

        Parameters
        ----------
        path : str, Path or sequence of these
            Files, patterns such as ``"flights/*.parquet"``, or folders, in which all files of that
            name at any depth are taken. Files are read in order.

        Raises
        ------
        ImportError
            Without PyArrow: ``pip install 'pymc-subsample[arrow]'``.
        FileNotFoundError
            If there are no such files.
        TypeError
            If a column is not of numbers.
        ValueError
            If files have different columns, an integer is missing, a value is not among the levels
            that `categorical` gives, or `cache` was made from something else.
        OSError
            If the disk is full, or does not allow writing; names bytes needed and free.
        """
        files = sources.parquet_files(path)
        return cls._of(
            made(
                sources.parquet_blocks, files, columns, identify=sources.parquet_identity, **shared
            )
        )

    @classmethod
    @in_full
    def from_arrow(
        cls, data: Any, columns: Sequence[str] | None = None, **shared: Unpack[TableOptions]
    ) -> "Rows":
        """Make rows from Arrow data, some batches in memory at a time.

        Parameters
        ----------
        data : pyarrow.Table, RecordBatchReader, dataset.Dataset or object with __arrow_c_stream__
            The table. Lists of a fixed size become matrices.
        """
        return cls._of(
            made(sources.arrow_blocks, data, columns, identify=sources.arrow_identity, **shared)
        )

    @classmethod
    @in_full
    def from_pandas(
        cls, frame: Any, columns: Sequence[str] | None = None, **shared: Unpack[TableOptions]
    ) -> "Rows":
        """Make rows from a pandas DataFrame; its index is left out.

        Parameters
        ----------
        frame : pandas.DataFrame
            The table.
        """
        return cls._of(
            made(sources.frame_blocks, frame, columns, identify=sources.frame_identity, **shared)
        )

    @classmethod
    @in_full
    def from_polars(
        cls, frame: Any, columns: Sequence[str] | None = None, **shared: Unpack[TableOptions]
    ) -> "Rows":
        """Make rows from a Polars DataFrame, by way of Arrow. A LazyFrame needs ``collect()``.

        Parameters
        ----------
        frame : polars.DataFrame
            The table. Arrays become matrices.
        """
        if hasattr(frame, "collect") and hasattr(frame, "sink_parquet"):
            raise TypeError(
                "from_polars takes a DataFrame. For a LazyFrame, use .collect(), or write it with "
                ".sink_parquet(...) and make the rows by Rows.from_parquet."
            )
        return cls.from_arrow(frame, columns, **shared)

    @classmethod
    @in_full
    def from_xarray(
        cls,
        data: Any,
        columns: Sequence[str] | None = None,
        *,
        dim: str | None = None,
        **shared: Unpack[TableOptions],
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
        """
        return cls._of(made(partial(sources.xarray_blocks, dim), data, columns, **shared))

    @classmethod
    @in_full
    def from_dask(
        cls, frame: Any, columns: Sequence[str] | None = None, **shared: Unpack[TableOptions]
    ) -> "Rows":
        """Make rows from a Dask DataFrame, one partition in memory at a time.

        Parameters
        ----------
        frame : dask.dataframe.DataFrame
            The table.
        """
        return cls._of(made(sources.dask_blocks, frame, columns, **shared))

    @classmethod
    @in_full
    def from_blocks(
        cls,
        blocks: Iterable[Mapping[str, np.ndarray]],
        n_rows: int | None = None,
        *,
        cache: str | Path,
        by: str | None = None,
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
        coords : dict of str to sequence, optional
            What the integers 0, 1, ... in a column stand for.
        """

        def read(several: Any, options: sources.Options) -> RowBlocks:
            return sources.given(several, n_rows), n_rows, dict(coords or {})

        return cls._of(
            made(read, blocks, cache=cache, by=by, overwrite=overwrite, progressbar=progressbar)
        )

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
        drawn = {name: np.array(c.of(records)) for name, c in self._columns.items()}
        for column in drawn.values():
            remember(column, self.path, len(self))
        return drawn

    def verify(self) -> None:
        """Read all rows and compare them with what was written.

        Raises
        ------
        ValueError
            If a byte differs.
        """
        self._store.verify()

    def append(self, data: Any, *, progressbar: bool = True) -> None:
        """Write more rows behind these, sorted among themselves if these are (``by=``).

        Steps, views and pickles that were made before go on with the rows that they had, which
        stay as they are. Rows with missing values are left out if those of the folder were
        (``drop_missing=True``).

        Parameters
        ----------
        data : pandas or Polars DataFrame, Arrow data, dict of str to ndarray or iterable of dicts
            With the same columns; or Parquet files, as for `from_parquet`. Categories are found by
            their level; new ones that rows have are added.
        progressbar : bool, default True
            Whether one is shown.

        Raises
        ------
        ValueError
            If columns or types differ, or others have written to the folder since it was opened.
        """
        if self.selection is not None:
            raise ValueError("Append to all rows, not to what select made of them.")
        store = self._store
        levels = {f.name: f.levels for f in store.fields.values() if f.levels is not None}
        options = sources.Options(list(store.fields), list(levels), store.drop_missing, levels)
        read = partial(sources.more, data, options)
        try:
            self._set(appended(store, options, read, progressbar=progressbar), None)
        except NotNumbersError as error:
            raise TypeError(
                f"Rows keep numbers, and these columns to append hold none: {error.listed}. Words "
                f"of categorical columns (here {', '.join(map(repr, levels)) or 'none'}) are taken "
                "from data frames, Arrow tables and Parquet files; in a dict of arrays they are "
                "codes, the places of the words in rows.coords. Others must be numbers, as in the "
                "rows before."
            ) from None
        options.log_left_out()

    def as_checked(self) -> "Rows":
        """Return the same rows for a model that was compared with all of them."""
        return self._of(self._store, self.selection, True)

    def __reduce__(self) -> tuple:
        return self._of, (self._store, self.selection, self.checked)


def sample_index(n: int, k: int, seed: int | np.random.Generator | None) -> np.ndarray:
    """Draw k of n rows without replacement, in order; all of them if k is larger."""
    if k >= n:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, k, replace=False))


class Several:
    """Rows of several folders, each of its own length, as the data of one model."""

    def __init__(self, rows: Sequence[Rows]) -> None:
        self.rows = tuple(rows)

    @property
    def checked(self) -> bool:
        """Whether a model was compared with all of them, and they with the model."""
        return all(rows.checked for rows in self.rows)

    @property
    def complete(self) -> bool:
        """Whether a model was written on samples that cannot have brought anything else into it."""
        return all(rows.complete for rows in self.rows)

    def as_checked(self) -> "Several":
        """Return the same rows for a model that was compared with all of them."""
        return Several([rows.as_checked() for rows in self.rows])

    @property
    def names(self) -> tuple[str, ...]:
        """All columns."""
        return tuple(dict.fromkeys(name for rows in self.rows for name in rows.names))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return any(name in rows for rows in self.rows)

    def __len__(self) -> int:
        return sum(map(len, self.rows))

    def column(self, name: str) -> StoredColumn:
        """Return the column of a name; raises `ValueError` where several have it."""
        holding = [rows for rows in self.rows if name in rows]
        if len(holding) != 1:
            folders = ", ".join(str(rows.path) for rows in holding)
            raise ValueError(
                f"data has {len(holding)} columns of the name {name!r}, in {folders or 'none'}. "
                "Give them names of their own, as in the model: rows.select(...)."
            )
        return holding[0].column(name)
