"""A folder of rows, opened: checked at little cost, and mapped when first read."""

import json
import logging
import mmap
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, reduce
from hashlib import sha256
from operator import add
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from pymc_subsample.rows.row_format import Field, field_from_json
from pymc_subsample.rows.statistics import ColumnStatistics, statistics_from_json

_log = logging.getLogger("pymc.subsample")

FORMAT, VERSION = "pymc_subsample rows", 2
HEADER, ROWS, RESULTS, UNITS = "header.json", "rows.bin", "kept", "units"
# Rows of a segment that are compared with the header whenever a folder is opened. A choice: a
# page of memory or some; passes ask for 16 MB, which disks read at full speed.
_GLIMPSED = 64
_PASS_BYTES = 2**24
# Seconds that rows in memory take at most, per row and besides, and how often a disk is asked for
# all rows at once after it had to be waited for. Choices, below the 100 us or so that a disk takes
# to answer.
_PER_ROW, _OVERHEAD, _ASKED = 5e-6, 1e-4, 64


@dataclass(frozen=True)
class Segment:
    """Rows that were written in one go."""

    n_rows: int  # How many.
    digest: str  # SHA-256 of all their bytes.
    glimpse: str  # SHA-256 of the bytes of a few of them.
    statistics: dict[str, ColumnStatistics]  # Of each column.

    def as_json(self) -> dict[str, Any]:
        """Return what the header says of it."""
        known = {name: s.as_json() for name, s in self.statistics.items()}
        return {**vars(self), "statistics": known}


def glimpse(records: np.ndarray) -> str:
    """Digest of up to 64 rows, shape (n, row_bytes), at fixed places, first and last included."""
    places = np.random.default_rng(0).integers(0, len(records), min(_GLIMPSED, len(records)))
    places[-1:] = len(records) - 1
    places[:1] = 0
    return sha256(np.ascontiguousarray(records[places]).tobytes()).hexdigest()


class Store:
    """Rows in a folder: the first so many of it, however many were appended since.

    `n_rows` are those of the first segments, by default all; they must have the `fingerprint`, if
    one is given.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    ValueError
        If the folder holds something else, was torn or was changed; says what is wrong.
    """

    # How often the disk will still be asked for all rows at once.
    _asked = 0
    # What has to be there as long as this is, if anything.
    keeps: Any = None

    def __init__(
        self, path: Path, n_rows: int | None = None, fingerprint: str | None = None
    ) -> None:
        self.path = path
        try:
            self._read_header(n_rows)
        except KeyError as error:
            raise self.refusal(f"{HEADER} does not mention {error}") from error
        except (AttributeError, TypeError, ValueError) as error:
            if isinstance(error, StoreError):
                raise
            raise self.refusal(f"{HEADER} cannot be read ({error})") from error
        if fingerprint is not None and self.fingerprint != fingerprint:
            raise self.refusal("it holds other rows than when this was saved or sent here")
        self._check_rows()

    def __reduce__(self) -> tuple:
        return Store, (self.path, self.n_rows, self.fingerprint)

    def _read_header(self, n_rows: int | None) -> None:
        header = read_header(self.path)
        if header["format"] != FORMAT:
            raise self.refusal(f"{HEADER} is of another format ({header['format']!r})")
        if header["version"] != VERSION:
            raise self.refusal(
                f"its format has version {header['version']!r}, and this pymc_subsample reads "
                f"{VERSION}: make the rows again"
            )
        self.source = header["source"]
        self.drop_missing: bool = header["drop_missing"]
        # The column by which each segment is sorted, if one was named.
        self.by: str | None = header.get("by")
        self.row_bytes: int = header["row_bytes"]
        self.fields = {f.name: f for f in map(field_from_json, header["columns"])}
        self.segments: list[Segment] = []
        self.n_rows = 0
        for entry in header["segments"]:
            if n_rows is not None and self.n_rows >= n_rows:
                break
            known = entry["statistics"]
            statistics = {
                name: statistics_from_json(known[name], f.shape) for name, f in self.fields.items()
            }
            self.segments.append(Segment(**{**entry, "statistics": statistics}))
            self.n_rows += entry["n_rows"]
        # Whether these are all of its rows.
        self.whole = len(self.segments) == len(header["segments"])
        if n_rows is not None and self.n_rows != n_rows:
            raise self.refusal(f"it holds {self.n_rows:,} rows where {n_rows:,} were expected")

    def _check_rows(self) -> None:
        needed = self.n_rows * self.row_bytes
        try:
            size = self._file.stat().st_size
        except FileNotFoundError:
            raise self.refusal(f"{ROWS} is missing") from None
        if size < needed:
            raise self.refusal(
                f"{ROWS} has {size:,} bytes, and {self.n_rows:,} rows of {self.row_bytes} bytes "
                f"take {needed:,}: it was cut off"
            )
        self._seen = self._stamp()
        self._compare_glimpses()
        rows, header = (os.stat(self.path / name).st_mtime_ns for name in (ROWS, HEADER))
        if rows > header:
            self._compare_all()

    def _compare_all(self) -> None:
        """Compare all rows of a file that is newer than its header: one that was written to.

        Copies may be so, too. A header that is dated as the file says that they were compared.
        """
        _log.info("%s was written to or copied after %s: comparing all rows", self._file, HEADER)
        self.verify()
        if self.whole:
            with suppress(OSError):  # a folder that may not be written to is compared every time
                shutil.rmtree(self.path / RESULTS, ignore_errors=True)
                os.utime(self.path / HEADER, ns=(self._seen[2], self._seen[2]))

    def _compare_glimpses(self) -> None:
        start = 0
        for segment in self.segments:
            found = glimpse(self.records[start : start + segment.n_rows])
            if found != segment.glimpse:
                raise self.refusal(f"{ROWS} is not what {HEADER} describes: it was changed")
            start += segment.n_rows

    def refusal(self, what: str) -> "StoreError":
        """Return an error that says what is wrong with the folder."""
        return StoreError(
            f"{self.path} cannot be read as rows: {what}. If it was made by Rows, make it again "
            "(overwrite=True); if it was not, choose another path."
        )

    @property
    def _file(self) -> Path:
        return self.path / ROWS

    @cached_property
    def records(self) -> np.ndarray:
        """The rows as bytes, shape (n, row_bytes), mapped and read-only: to read in order."""
        return self._of(self._mapped())

    @cached_property
    def scattered(self) -> np.ndarray:
        """The same, to read rows here and there: the system does not read on beyond them."""
        return self._of(self._memory)

    @cached_property
    def _memory(self) -> mmap.mmap:
        memory = self._mapped()
        if hasattr(mmap, "MADV_RANDOM"):
            memory.madvise(mmap.MADV_RANDOM)
        return memory

    def _of(self, memory: mmap.mmap) -> np.ndarray:
        return np.frombuffer(memory, np.uint8).reshape(self.n_rows, self.row_bytes)

    def _mapped(self) -> mmap.mmap:
        try:
            with self._file.open("rb") as file:
                size = self.n_rows * self.row_bytes
                return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except PermissionError as error:
            raise PermissionError(
                f"{self._file} cannot be read: {error.strerror}. Ask its owner for permission to "
                "read it."
            ) from error

    def take(self, index: np.ndarray) -> np.ndarray:
        """Return some rows as bytes, shape (m, row_bytes), copied.

        While they come from the disk, that is asked for all of them at once, not for each in turn.
        """
        start, index = perf_counter(), np.asarray(index)
        if self._asked > 0:
            self._asked -= 1
            self._ask(index)
        found = self.scattered[index]
        if perf_counter() - start - _PER_ROW * len(index) > _OVERHEAD:
            self._asked = _ASKED
        return found

    def _ask(self, index: np.ndarray) -> None:
        """Have the system read the pages of rows; it does not wait for them."""
        if not hasattr(mmap, "MADV_WILLNEED"):
            return
        first = index * self.row_bytes
        pages = first // mmap.PAGESIZE * mmap.PAGESIZE
        for start, length in zip(pages.tolist(), (first - pages).tolist(), strict=True):
            self._memory.madvise(mmap.MADV_WILLNEED, start, length + self.row_bytes)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the rows: columns, types, and digests of all bytes."""
        return self.fingerprint_of(self.n_rows)

    def fingerprint_of(self, n_rows: int) -> str:
        """Return the fingerprint that the first rows have alone, where segments end there."""
        columns = [[f.name, f.dtype.str, list(f.shape), f.offset] for f in self.fields.values()]
        digests, end = [], 0
        for s in self.segments:
            end += s.n_rows
            if end <= n_rows:
                digests.append([s.n_rows, s.digest])
        return sha256(json.dumps([self.row_bytes, columns, digests]).encode()).hexdigest()

    def statistics(self, name: str) -> ColumnStatistics:
        """Return those of a column."""
        return reduce(add, (s.statistics[name] for s in self.segments))

    def verify(self) -> None:
        """Read all rows and refuse those whose digests are not those of the header."""
        start = 0
        step = max(1, _PASS_BYTES // self.row_bytes)
        for segment in self.segments:
            digest, stop = sha256(), start + segment.n_rows
            for first in range(start, stop, step):
                digest.update(self.records[first : min(first + step, stop)])
            if digest.hexdigest() != segment.digest:
                raise self.refusal(
                    f"rows {start:,} to {stop - 1:,} are not those that were written: they were "
                    "changed"
                )
            start = stop

    def refuse_changes(self) -> None:
        """Refuse rows that changed since they were opened.

        Where the file was not touched, a few rows are compared; otherwise all bytes are, so that
        appended rows, which leave the others as they are, are no change.
        """
        stamp = self._stamp()
        if stamp == self._seen:
            self._compare_glimpses()
            return
        if stamp[0] != self._seen[0]:
            # The map is of the file that was here before, which is whole.
            raise self.refusal("it was replaced while it was in use")
        if stamp[1] < self.n_rows * self.row_bytes:
            raise self.refusal(f"{ROWS} was cut off while it was in use")
        self.verify()
        self._seen = stamp

    def _stamp(self) -> tuple[int, int, int]:
        try:
            known = os.stat(self._file)
        except FileNotFoundError:
            raise self.refusal("it was removed while it was in use") from None
        return known.st_ino, known.st_size, known.st_mtime_ns


class StoreError(ValueError):
    """A folder that does not hold the rows that it should."""


def read_header(path: Path) -> dict[str, Any]:
    """Return a folder's header; refuse a folder that is not there, or has none that can be read."""
    if not path.exists():
        raise FileNotFoundError(f"There are no rows at {path}: there is nothing of that name.")
    if not path.is_dir():
        raise StoreError(
            f"{path} is a file; rows are a folder. Make one by Rows.from_parquet and the like."
        )
    try:
        header = json.loads((path / HEADER).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(
            f"{path} has no {HEADER}: it was not made by Rows, or it was torn. Choose another "
            "path, or remove this folder and make the rows again."
        ) from None
    except PermissionError as error:
        raise PermissionError(
            f"{path / HEADER} cannot be read: {error.strerror}. Ask its owner for permission to "
            "read it."
        ) from error
    except ValueError as error:
        raise StoreError(
            f"{path / HEADER} cannot be read ({error}): it was torn. Remove this folder and make "
            "the rows again."
        ) from None
    if not isinstance(header, dict):
        raise StoreError(f"{path / HEADER} does not describe rows. Choose another path.")
    return header


def header_of(
    source: Any,
    fields: Sequence[Field],
    row_bytes: int,
    segments: Sequence[Segment],
    *,
    drop_missing: bool,
    by: str | None = None,
) -> str:
    """Return the text of a header."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "n_rows": sum(s.n_rows for s in segments),
        "row_bytes": row_bytes,
        "source": source,
        "drop_missing": drop_missing,
        "by": by,
        "columns": [f.as_json() for f in fields],
        "segments": [s.as_json() for s in segments],
    }
    return json.dumps(header, indent=1, allow_nan=False)
