"""What all constructors of rows share: their options, and the folder that is made or found."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Required, TypedDict

from pymc_subsample.rows.folders import (
    complaints,
    locked,
    made_before,
    refuse_foreign,
    replace,
    sync_folder,
    temporary,
    write,
)
from pymc_subsample.rows.sorting import in_order
from pymc_subsample.rows.sources import Options
from pymc_subsample.rows.sources.blocks import Categorical
from pymc_subsample.rows.store import HEADER, ROWS, Store
from pymc_subsample.rows.writing import RowBlocks, Written
from pymc_subsample.signatures import completed, described


class TableOptions(TypedDict, total=False):
    """Options that follow the columns; `made` has their defaults."""

    cache: Required[str | Path]
    by: str | None
    categorical: Categorical
    drop_missing: bool
    overwrite: bool
    progressbar: bool


def made(
    read: Callable[[Any, Options], RowBlocks],
    data: Any,
    columns: Sequence[str] | None = None,
    *,
    identify: Callable[[Any, Options], Mapping[str, Any] | None] = lambda data, options: None,
    cache: str | Path,
    by: str | None = None,
    categorical: Categorical = (),
    drop_missing: bool = False,
    overwrite: bool = False,
    progressbar: bool | None = True,
) -> Store:
    """Return the rows of a source, written to a folder now or before.

    Parameters
    ----------
    columns : sequence of str, optional
        Columns to keep. Default: all.
    cache : str or Path
        The folder to make, or to use if it was made from the same source before.
    by : str, optional
        Column of integers or categories, as of customers, whose rows are kept together: rows are
        sorted by it, those of one customer as they come. Steps need that where they integrate
        effects of customers out. Sorting takes little memory, and while it goes on as much room on
        the disk again. If it is interrupted after all rows were read, the same call goes on from
        there, as long as it can be told that the source is the same. Rows that are appended are
        sorted among themselves.
    categorical : sequence of str or dict of str to sequence, optional
        Columns of text, or anything else, of which codes and levels are kept, these in the order in
        which they are found. Those of dictionary type need not be named, and have their own order.
        A dict gives the levels in order, such as those of other rows,
        ``{"region": first.coords["region"]}``; None leaves them to be found.
    drop_missing : bool, default False
        Whether rows with a missing value in any column that is kept are left out. Otherwise they
        stay, as NaN, and steps refuse models that read them. Appended rows are treated alike, and
        how many were left out is logged.
    overwrite : bool, default False
        Whether rows that were made from something else are replaced.
    progressbar : bool, default True
        Whether one is shown.

    Returns
    -------
    Rows

    Raises
    ------
    TypeError
        If a column is not of numbers.
    ValueError
        If an integer is missing, a value is not among the levels that `categorical` gives, or
        `cache` was made from something else.
    OSError
        If the disk is full, or does not allow writing; names bytes needed and free.
    """
    options = Options(columns, categorical, drop_missing)
    path = folder_at(cache)
    if by is not None and not isinstance(by, str):
        raise TypeError(f'by must be the name of a column, such as by="customer"; got {by!r}.')
    source = json.loads(json.dumps(identify(data, options)))  # as in a header
    if source is not None and by is not None:
        source["by"] = by
    if not overwrite and path.exists():
        return made_before(path, source)
    with locked(path):
        if path.exists() and not overwrite:
            return made_before(path, source)
        if path.exists():
            refuse_foreign(path)
        with (
            in_order(path, by, options, source, lambda: read(data, options), progressbar) as found,
            temporary(path) as folder,
        ):
            blocks, n_rows, levels = found
            rows = Written(path)
            with complaints(path):
                file = (folder / ROWS).open("wb", buffering=0)
            with file:
                rows.write(file, blocks, n_rows, progressbar)
            if not rows.n_rows:
                beside = ", or has a missing value in each row" * options.drop_missing
                raise ValueError(
                    f"There are no rows to write to {path}: the source is empty{beside}."
                )
            text = rows.header(
                folder / ROWS, source, levels, drop_missing=options.drop_missing, by=by
            )
            with complaints(path):
                write(folder / HEADER, text)
                sync_folder(folder)
                replace(folder, path)
    options.log_left_out()
    return Store(path)


def in_full[**P, R](constructor: Callable[P, R]) -> Callable[P, R]:
    """Show and describe what is left to `made`, and refuse other arguments by the right name."""
    signature = completed(constructor, inspect.signature(made).parameters)

    @wraps(constructor)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{constructor.__qualname__}() {error}") from None
        return constructor(*args, **kwargs)

    wrapped.__signature__ = signature  # type: ignore[attr-defined]
    if constructor.__doc__ and made.__doc__:  # there are none under `python -OO`
        wrapped.__doc__ = described(constructor.__doc__, made.__doc__, list(signature.parameters))
    return wrapped


def folder_at(path: str | Path) -> Path:
    """Return the path of a folder of rows."""
    if not isinstance(path, str | Path) or not str(path):
        raise TypeError(f'A folder for the rows must be named, such as "x.rows"; got {path!r}.')
    return Path(path).expanduser().absolute()
