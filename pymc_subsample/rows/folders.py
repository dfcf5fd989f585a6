"""Folders of rows: written by one process at a time, there as a whole or not at all.

One that is there already is used as it is, replaced, or refused with what it holds.
"""

import errno
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from secrets import token_hex
from typing import IO, Any

from filelock import FileLock, Timeout

from pymc_subsample.rows.store import (
    FORMAT,
    HEADER,
    RESULTS,
    ROWS,
    UNITS,
    Store,
    StoreError,
    read_header,
)
from pymc_subsample.validation import shown

_log = logging.getLogger("pymc.subsample")

PARTIAL = "partial"
# Files that are named, and where a source says which it was made from. A choice.
_FILES, FILES = 3, "files (path, size, mtime)"
_FULL = (errno.ENOSPC, errno.EDQUOT) if hasattr(errno, "EDQUOT") else (errno.ENOSPC,)
# Left free on a disk. A choice: 16 MB, for the header and what others write meanwhile.
_SPARE = 2**24
_MAKE_ROOM = "Free some, choose a cache on another disk, or keep fewer columns (columns=[...])."


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time write a folder; clear away what killed ones left of theirs."""
    with complaints(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.parent / f".{path.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            _log.info("%s is being written by another process: waiting for it", path)
            lock.acquire()
    try:
        own = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.{PARTIAL}")
        for left in [path.parent / n for n in os.listdir(path.parent) if own.fullmatch(n)]:
            _log.info("removing what an interrupted conversion left: %s", left)
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        lock.release()


@contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """Make a folder beside another, and remove what is left of it."""
    folder = path.parent / f".{path.name}.{token_hex(4)}.{PARTIAL}"
    with complaints(path):
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def replace(folder: Path, path: Path) -> None:
    """Put a folder in the place of another, or where there is none."""
    if path.exists():
        old = path.parent / f".{path.name}.{token_hex(4)}.{PARTIAL}"
        path.rename(old)
        folder.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        folder.rename(path)
    sync_folder(path.parent)


def write(path: Path, text: str) -> None:
    """Write a file, to the disk."""
    with path.open("wb") as file:
        file.write(text.encode())
        sync(file)


def sync(file: IO[bytes] | FileIO) -> None:
    """Wait until a file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    with suppress(OSError, AttributeError):  # not on Windows
        descriptor = os.open(path, os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def require_space(path: Path, needed: int) -> None:
    """Refuse to begin what the disk has no room for; names the bytes that are needed and free."""
    free = shutil.disk_usage(path.parent).free
    if needed + _SPARE > free:
        raise OSError(
            errno.ENOSPC,
            f"{path} takes {needed:,} bytes, and {free:,} are free on its disk. {_MAKE_ROOM}",
        )


@contextmanager
def complaints(path: Path) -> Iterator[None]:
    """Say of what the system refuses which folder it was for, and what to do."""
    try:
        yield
    except PermissionError as error:
        raise PermissionError(
            f"{path} cannot be written: {error.strerror or error} "
            f"({error.filename or path.parent}). Choose a cache in a folder that you may write to."
        ) from error
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise OSError(
            error.errno,
            f"The disk of {path} became full while its rows were written. What was written of them "
            f"is removed; {shutil.disk_usage(path.parent).free:,} bytes are free at this moment. "
            f"{_MAKE_ROOM}",
        ) from error


# A folder that is there already


def made_before(path: Path, source: Mapping[str, Any] | None) -> Store:
    """Open a folder if it was made from the same source; refuse it otherwise."""
    store = Store(path)
    if source is None:
        raise ValueError(
            f"{path} holds rows already, and for this source it cannot be determined whether they "
            "are the same. Use them with Rows.open, replace them with overwrite=True, or choose "
            "another cache."
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
    if not known or names - {HEADER, ROWS, RESULTS, UNITS, f"{HEADER}.{PARTIAL}"}:
        raise StoreError(
            f"{path} was not made by Rows (it holds {shown(sorted(names))}) and is not replaced. "
            "Choose another path."
        )
