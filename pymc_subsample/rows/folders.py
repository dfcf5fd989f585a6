"""Folders and their disk: one process at a time, there as a whole or not at all, errors by name."""

import errno
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from secrets import token_hex
from typing import IO

from filelock import FileLock, Timeout

_log = logging.getLogger("pymc.subsample")

PARTIAL = "partial"
_FULL = (errno.ENOSPC, errno.EDQUOT) if hasattr(errno, "EDQUOT") else (errno.ENOSPC,)
# Left free on a disk.
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
