"""A folder that is there already: used as it is, replaced, or refused with what it holds."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pymc_subsample.rows.folders import PARTIAL
from pymc_subsample.rows.store import FORMAT, HEADER, RESULTS, ROWS, Store, StoreError, read_header
from pymc_subsample.validation import shown

_log = logging.getLogger("pymc.subsample")

# Files that are named, and where a source says which it was made from.
_FILES, FILES = 3, "files (path, size, mtime)"


def made_before(path: Path, source: Mapping[str, Any] | None) -> Store:
    """Open a folder if it was made from the same source; refuse it otherwise."""
    store = Store(path)
    if source is None:
        raise ValueError(
            f"{path} holds rows already, and whether they are the same cannot be told of this "
            "source. Use them with Rows.open, replace them with overwrite=True, or choose another "
            "cache."
        )
    if len(store.segments) > 1:
        n_rows = store.n_rows - store.segments[0].n_rows
        raise ValueError(
            f"{n_rows:,} rows were appended to {path} since it was made. Use them all with "
            "Rows.open, make the rows anew with overwrite=True, or choose another cache."
        )
    if store.source != source:
        raise ValueError(
            f"{path} was made from something else: {_difference(store.source, source)}. Replace it "
            "with overwrite=True, use it as it is with Rows.open, or choose another cache; new "
            "rows are added by Rows.open(...).append(...)."
        )
    _log.info("%s holds %s rows of this source already: used as they are", path,
              f"{store.n_rows:,}")  # fmt: skip
    return store


def _difference(old: Any, new: Mapping[str, Any]) -> str:
    if not isinstance(old, Mapping):
        return "it was made from blocks"
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    parts = []
    for key in keys:
        before, now = old.get(key), new.get(key)
        if key == FILES and isinstance(before, list) and isinstance(now, list):
            parts += _of_files(before, now)
        else:
            parts.append(f"{key} was {shown(before)}, and is {shown(now)}")
    return "; ".join(parts)


def _of_files(before: list, now: list) -> list[str]:
    """Say which files are others; entries are a path, a size in bytes and a time."""
    old, new = ({name: tuple(known) for name, *known in files} for files in (before, now))
    found = {
        "files that are new: ": [name for name in new if name not in old],
        "files that are not named now: ": [name for name in old if name not in new],
        "files that changed since: ": [
            name for name in new if name in old and old[name] != new[name]
        ],
    }
    said = [
        f"{how}{', '.join(names[:_FILES])}"
        + f" and {len(names) - _FILES:,} more" * (len(names) > _FILES)
        for how, names in found.items()
        if names
    ]
    return said or ["files in another order"]


def refuse_foreign(path: Path) -> None:
    """Refuse to replace a folder that holds anything else than rows."""
    if not path.is_dir():
        raise StoreError(f"{path} is a file, which is not replaced. Choose another path.")
    names = {entry.name for entry in path.iterdir()}
    known = ROWS in names
    with suppress(StoreError):
        known = known or read_header(path).get("format") == FORMAT
    if not known or names - {HEADER, ROWS, RESULTS, f"{HEADER}.{PARTIAL}"}:
        raise StoreError(
            f"{path} was not made by Rows (it holds {shown(sorted(names))}) and is not replaced. "
            "Choose another path."
        )
