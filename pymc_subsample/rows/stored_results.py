"""Arrays stored beside the rows that they were computed from, for those who come back to them."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from zipfile import BadZipFile

import numpy as np

from pymc_subsample.rows.store import RESULTS, Store

_log = logging.getLogger("pymc.subsample")

# Files in a folder, and bytes of one. A choice: what comes back is of a few models, and 1 GB is
# the most that they take.
_MOST, _MOST_BYTES = 16, 2**26
_ROWS, _FINGERPRINT = "n_rows", "fingerprint"


def write_result(store: Store, key: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write what was computed from all rows of a store, where its folder allows that.

    It takes the place of what was stored under the same key. Of others, the oldest make room.
    """
    if sum(x.nbytes for x in arrays.values()) > _MOST_BYTES:
        return
    path = _path(store, key)
    try:
        of: dict[str, Any] = {_ROWS: store.n_rows, _FINGERPRINT: store.fingerprint}
        path.parent.mkdir(exist_ok=True)
        with NamedTemporaryFile(dir=path.parent) as file:
            np.savez(file, **of | dict(arrays))
            file.flush()
            os.replace(file.name, path)
        files = sorted(path.parent.iterdir(), key=lambda f: f.stat().st_mtime)
        for old in files[:-_MOST]:
            old.unlink(missing_ok=True)
    except OSError as error:
        _log.debug("Nothing is kept beside the rows: %s", error)


def read_result(store: Store, key: str) -> tuple[int, dict[str, np.ndarray]] | None:
    """Return what was stored under a key, and of how many of these rows: the first ones.

    None where nothing was, or it was of other rows.
    """
    try:
        with np.load(_path(store, key), allow_pickle=False) as file:
            found = dict(file)
        n_rows, fingerprint = int(found.pop(_ROWS)), str(found.pop(_FINGERPRINT))
    except (OSError, KeyError, ValueError, EOFError, BadZipFile):
        return None
    whole = n_rows <= store.n_rows and fingerprint == store.fingerprint_of(n_rows)
    return (n_rows, found) if whole else None


def rows_of_result(store: Store, key: str) -> int:
    """Return of how many rows something was stored, 0 where nothing was."""
    found = read_result(store, key)
    return 0 if found is None else found[0]


def _path(store: Store, key: str) -> Path:
    return store.path / RESULTS / f"{key}.npz"
