"""New rows whose levels or columns come in another order than the model's: both have names."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pymc_subsample.results.predict.quantity import SAID
from pymc_subsample.results.predict.rowwise import NO_DRAWS
from pymc_subsample.rows.columns import StoredColumn
from pymc_subsample.validation import LISTED, shown, warn

# Levels that are listed in messages.


def in_order(given: Any, name: str, labels: Sequence[str] | None) -> Any:
    """Return a matrix with its columns in the order of the model's `labels`, where both have names.

    Rows are on its first axis. Names of which some are the model's and some are not are refused,
    and so are those that come more than once.
    """
    own = _names(given)
    if own is None or labels is None or own == list(labels):
        return given
    if sorted(own) == sorted(labels):
        order = [own.index(label) for label in labels]
        if isinstance(given, StoredColumn):
            return StoredColumn(
                given.store, [given.fields[k] for k in order], given.row_shape, given.dtype
            )
        return np.asarray(given)[:, order]
    said = (
        f"{SAID}: data[{name!r}] has the columns {shown(own)}, and the model's, by its coords, are "
        f"{shown(list(labels))}."
    )
    if set(own) & set(labels):
        raise ValueError(f"{said} Choose those of the model, each once, in any order.")
    warn(
        f"{said} They are taken in the order in which they come: give them the model's names if "
        "it may be another."
    )
    return given


def _names(given: Any) -> list[str] | None:
    """Return the names of a matrix' columns: of a data frame, a DataArray or on disk."""
    if isinstance(given, StoredColumn):
        names = [f.name for f in given.fields] if len(given.fields) > 1 else []
    elif len(np.shape(given)) != 2:
        return None
    elif dims := getattr(given, "dims", None):
        names = list(given.coords[dims[1]].values) if dims[1] in given.coords else []
    else:
        names = list(getattr(given, "columns", ()))
    return [str(x) for x in names] if names and all(isinstance(x, str) for x in names) else None


class Translated:
    """Codes on disk, read as those of the model, `codes`, shape (own levels,); -1: it has none."""

    def __init__(
        self, column: StoredColumn, name: str, dim: str, levels: Sequence, codes: np.ndarray
    ) -> None:
        self.shape = column.shape
        self._column, self._of, self._codes = column, (name, dim, levels), codes

    def __getitem__(self, rows: slice) -> np.ndarray:
        own = self._column[rows]
        codes = self._codes[own]
        if np.any(codes < 0):
            labels = np.array(self._column.fields[0].levels, dtype=object)[own]
            refuse_new(*self._of, labels, codes, rows.start or 0)
        return codes


def translated(
    column: StoredColumn, name: str, known: Mapping[str, list]
) -> StoredColumn | Translated:
    """Return codes on disk as the model's, where they are others; `known` levels by dimension.

    Levels that cannot be told apart are left alone, as are new ones behind the model's.
    """
    own = [str(x) for x in column.fields[0].levels or ()]
    if not own or len({tuple(map(str, levels)) for levels in known.values()}) != 1:
        return column
    dim, levels = next(iter(known.items()))
    names = [str(x) for x in levels]
    first = min(len(own), len(names))
    if own[:first] == names[:first] or len(set(own)) < len(own) or len(set(names)) < len(names):
        return column
    return Translated(column, name, dim, levels, pd.Index(names).get_indexer(pd.Index(own)))


def refuse_new(
    name: str | None,
    dim: str,
    levels: Sequence,
    labels: np.ndarray,
    codes: np.ndarray,
    start: int = 0,
) -> None:
    """Refuse labels, some rows from `start` on, for which the model has no code: theirs is -1."""
    if np.any(codes < 0):
        row = start + int(np.argwhere(codes < 0)[0][0])
        new = pd.unique(pd.Series(labels[codes < 0], dtype=object)).tolist()
        own = shown(list(levels))
        if len(levels) > LISTED:
            own = f"{len(levels):,}, from {levels[0]!r} to {levels[-1]!r}"
        raise ValueError(
            f"{SAID}: data[{name!r}] has {shown(new)}, first in row {row:,}, and the levels of "
            f"{dim!r} in the model are {own}. {NO_DRAWS}"
        )
