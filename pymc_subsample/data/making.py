"""What all constructors of rows share: their options, and the folder that is made or found."""

import inspect
import json
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Required, TypedDict

from pymc_subsample.data.sources import Options, Source
from pymc_subsample.data.sources.shared import Categorical
from pymc_subsample.data.store import Store
from pymc_subsample.data.writing import converted
from pymc_subsample.signatures import completed


class Shared(TypedDict, total=False):
    """Options that follow the columns; `made` has their defaults."""

    cache: Required[str | Path]
    categorical: Categorical
    drop_missing: bool
    overwrite: bool
    progressbar: bool


def made(
    source: Callable[[Options], Source],
    columns: Sequence[str] | None = None,
    *,
    cache: str | Path,
    categorical: Categorical = (),
    drop_missing: bool = False,
    overwrite: bool = False,
    progressbar: bool = True,
) -> Store:
    """Return the rows of a source, written to a folder now or before."""
    options = Options(columns, categorical, drop_missing)
    identity, read = source(options)
    known = None if identity is None else json.loads(json.dumps(identity))  # as in a header
    store = converted(
        folder_at(cache), known, read,
        drop_missing=options.drop_missing, overwrite=overwrite, progressbar=progressbar,
    )  # fmt: skip
    options.log_left_out()
    return store


def in_full[**P, R](constructor: Callable[P, R]) -> Callable[P, R]:
    """Show the arguments that ``**shared`` stands for, and refuse others by the right name."""
    signature = completed(constructor, inspect.signature(made).parameters)

    @wraps(constructor)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{constructor.__qualname__}() {error}") from None
        return constructor(*args, **kwargs)

    wrapped.__signature__ = signature  # type: ignore[attr-defined]
    return wrapped


def folder_at(path: str | Path) -> Path:
    """Return the path of a folder of rows."""
    if not isinstance(path, str | Path) or not str(path):
        raise TypeError(f'A folder for the rows must be named, such as "x.rows"; got {path!r}.')
    return Path(path).expanduser().absolute()
