"""Samples that were drawn in this process, so that a model of one that lacks `data=` is told."""

import logging
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from pymc_subsample.rows.row_store import parts_of

_log = logging.getLogger("pymc.subsample")

# Columns that are remembered, the latest ones. A choice: some hundred bytes each.
_REMEMBERED = 4_096
# Rows of which others may have the same numbers by chance. A choice: two columns of twenty zeros
# and ones are alike once in a million.
_FEW = 20


# By shape and digest of a column: the folder, and how many rows it had when the sample was drawn.
_drawn: dict[tuple[tuple[int, ...], bytes], tuple[Path, int]] = {}


def remember(column: np.ndarray, path: Path, n_rows: int) -> None:
    """Remember a column of a sample by its digest, if it has fewer rows than the folder."""
    if not _FEW <= len(column) < n_rows or not np.any(column != column[0]):
        return
    key = column.shape, _digest(column)
    _drawn.pop(key, None)
    _drawn[key] = path, n_rows
    while len(_drawn) > _REMEMBERED:
        del _drawn[next(iter(_drawn))]


def warn_of_samples(columns: Iterable[Any], user: str, remedy: str = "data=rows") -> None:
    """Warn once if the rows of a model in memory are a sample of rows on disk.

    `columns`, arrays or `Joined` ones, are what its rows read, shape (n, ...), and `user` who takes
    them for all there are, where a `remedy` has all rows.
    """
    shapes = {shape for shape, _ in _drawn}
    for column in (part for c in columns for part in parts_of(c)):
        if not isinstance(column, np.ndarray) or column.shape not in shapes:
            continue
        if found := _drawn.get((column.shape, _digest(column))):
            path, n_rows = found
            _log.warning(
                f"{user}: without {remedy}, the {len(column):,} rows that the model holds are all "
                f"its data. They were drawn by Rows.sample from the {n_rows:,} rows of {path}, "
                f"whose posterior is narrower: {remedy} samples all of them."
            )
            return


def _digest(column: np.ndarray) -> bytes:
    """Digest numbers as they are in any of the types that `pm.Data` makes of them."""
    return blake2b(np.ascontiguousarray(column, dtype=np.float32), digest_size=16).digest()
