"""Folders of rows, written so that they are there as a whole or not at all."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from rich import get_console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from pymc_subsample.data.existing import made_before, refuse_foreign
from pymc_subsample.data.folders import (
    PARTIAL,
    complaints,
    locked,
    replace,
    require_space,
    sync,
    sync_folder,
    temporary,
    write,
)
from pymc_subsample.data.layout import Field, laid_out, records_of
from pymc_subsample.data.statistics import Statistics, statistics
from pymc_subsample.data.store import (
    HEADER,
    ROWS,
    Segment,
    Store,
    StoreError,
    glimpse,
    header_of,
)

_log = logging.getLogger("pymc.subsample")

# New levels that are named.
_NAMED = 20

Block = Mapping[str, np.ndarray]
# Blocks of rows, how many rows there will be if that is known, and levels, known at the end.
Blocks = tuple[Iterator[Block], int | None, Mapping[str, Sequence]]


def converted(
    path: Path,
    source: Mapping[str, Any] | None,
    read: Callable[[], Blocks],
    *,
    drop_missing: bool,
    overwrite: bool,
    progressbar: bool,
) -> Store:
    """Return the rows of a source: those that are in a folder already, or written there now.

    One process writes at a time; another one waits, and then has what the first one wrote. `source`
    is what the rows are made from, as JSON, or None where that cannot be told; `read` returns the
    blocks. Whether that leaves rows with missing values out, `drop_missing`, holds for rows that
    are appended too. `overwrite` replaces a folder of other rows.
    """
    if not overwrite and path.exists():
        return made_before(path, source)
    with locked(path):
        if path.exists() and not overwrite:
            return made_before(path, source)
        if path.exists():
            refuse_foreign(path)
        blocks, n_rows, levels = read()
        with temporary(path) as folder:
            written = _Folder(folder, n_rows, path)
            with written.file, _progress(path, n_rows, progressbar) as advance:
                for block in blocks:
                    advance(written.add(block))
                with complaints(path):
                    sync(written.file)
            with complaints(path):
                written.finish(source, levels, drop_missing=drop_missing)
                replace(folder, path)
        return Store(path)


def appended(store: Store, read: Callable[[], Blocks], *, progressbar: bool) -> Store:
    """Write more rows behind those of a folder; return it with all of them.

    They count from the moment on that the header names them: rows of an append that was killed
    are written over by the next one.
    """
    path = store.path
    with locked(path):
        current = Store(path)
        if current.fingerprint != store.fingerprint:
            raise StoreError(
                f"{path} has changed since these rows were opened: it holds "
                f"{current.n_rows:,} rows instead of {store.n_rows:,}, or others. Append to "
                "Rows.open(path)."
            )
        blocks, n_rows, levels = read()
        fields = list(current.fields.values())
        written = _Appended(path, fields, current.row_bytes)
        start = current.n_rows * current.row_bytes
        require_space(path, None if n_rows is None else n_rows * current.row_bytes)
        with complaints(path):
            file = (path / ROWS).open("r+b", buffering=0)
        with file:
            file.truncate(start)
            file.seek(start)
            try:
                with _progress(path, n_rows, progressbar) as advance:
                    for block in blocks:
                        advance(written.write(file, block))
                with complaints(path):
                    sync(file)
            except BaseException:
                with suppress(OSError):
                    file.truncate(start)
                raise
        if written.n_rows:
            after = np.memmap(path / ROWS, np.uint8, "r", start, (written.n_rows, store.row_bytes))
            segments = [*current.segments, written.segment(after)]
            named = [_with_levels(f, levels, segments) for f in fields]
            dropped = current.drop_missing
            text = header_of(
                current.source, named, current.row_bytes, segments, drop_missing=dropped
            )
            new = path / f"{HEADER}.{PARTIAL}"
            with complaints(path):
                write(new, text)
                new.replace(path / HEADER)
                sync_folder(path)
            _log_new_levels(fields, named)
        return Store(path)


class _Appended:
    """Rows on their way into a file, and what is to be known of them."""

    def __init__(self, path: Path, fields: Sequence[Field], row_bytes: int) -> None:
        self.path, self.fields, self.row_bytes = path, fields, row_bytes
        self.n_rows, self._digest = 0, sha256()
        self._statistics: dict[str, Statistics] = {}

    def write(self, file: FileIO, block: Block) -> int:
        """Write a block; return its number of rows."""
        arrays = self._fitting(block)
        size = len(next(iter(arrays.values())))
        if not size:
            return 0
        records = records_of(self.fields, self.row_bytes, arrays)
        with complaints(self.path):
            left = memoryview(records).cast("B")
            while left:  # a disk that is nearly full takes some of it
                left = left[file.write(left) :]
        self._digest.update(records)
        for name, x in arrays.items():
            found = statistics(x)
            known = self._statistics.get(name)
            self._statistics[name] = found if known is None else known + found
        self.n_rows += size
        return size

    def _fitting(self, block: Block) -> dict[str, np.ndarray]:
        names = [f.name for f in self.fields]
        if set(block) != set(names):
            raise ValueError(
                f"A block of rows has columns {sorted(block)}; the rows before have {names}. "
                "Blocks must have the same columns."
            )
        arrays = {name: np.asarray(block[name]) for name in names}
        for field in self.fields:
            x = arrays[field.name]
            if x.shape[1:] != field.shape or not x.ndim:
                raise ValueError(
                    f"Column {field.name!r} has shape {x.shape} in a block of rows; (m, "
                    f"{', '.join(map(str, field.shape))}) was expected, as in the rows before."
                )
            arrays[field.name] = _as_type(field, x)
        lengths = {name: len(x) for name, x in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"Columns of a block have different numbers of rows: {lengths}. Give each column "
                "one entry per row."
            )
        return arrays

    def segment(self, records: np.ndarray) -> Segment:
        """Return what is known of the rows; they are given as they are on disk."""
        return Segment(self.n_rows, self._digest.hexdigest(), glimpse(records), self._statistics)


def _as_type(field: Field, x: np.ndarray) -> np.ndarray:
    """Return numbers in a column's type, if it holds them as they are."""
    if np.can_cast(x.dtype, field.dtype, "safe"):
        return x
    whole = x.dtype.kind in "iub" and field.dtype.kind in "iu"
    if whole and x.size:
        known = np.iinfo(field.dtype)
        if known.min <= int(x.min()) and int(x.max()) <= known.max:
            return x.astype(field.dtype)
    if not x.size:
        return np.empty(x.shape, field.dtype)
    unfit = np.argwhere(_unfit(field.dtype, x))
    if len(unfit):
        place = tuple(unfit[0])
        raise TypeError(
            f"Column {field.name!r} has {x[place].item()!r} in row {place[0]:,} of a block of rows "
            f"of type {x.dtype}: {field.dtype}, its type in the rows before, does not hold that "
            "number. Correct or leave out such rows, or make all rows anew with the wider type."
        )
    raise TypeError(
        f"Column {field.name!r} is of type {x.dtype} in a block of rows and of type {field.dtype} "
        f"in the rows before. Convert it: x.astype({field.dtype.name!r}), or make all rows anew "
        "with the wider type."
    )


def _unfit(dtype: np.dtype, x: np.ndarray) -> np.ndarray:
    """Return which numbers another type does not hold, except for rounding of fractions."""
    with np.errstate(all="ignore"):
        there = x.astype(dtype)
        if dtype.kind == "f" and x.dtype.kind == "f":
            return np.isfinite(x) & ~np.isfinite(there)
        if dtype.kind == "f":
            return there.astype(x.dtype) != x
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return ~((x >= low) & (x <= high) & (np.floor(x) == x))


class _Folder:
    """A new folder of rows; its columns are those of the first block."""

    def __init__(self, folder: Path, n_rows: int | None, path: Path) -> None:
        self.folder, self.expected, self.path = folder, n_rows, path
        self.rows: _Appended | None = None
        with complaints(path):
            self.file = (folder / ROWS).open("wb", buffering=0)

    def add(self, block: Block) -> int:
        """Write a block; return its number of rows."""
        if self.rows is None:
            if not block:
                raise ValueError("The rows have no columns. Name some: columns=[...].")
            arrays = {name: np.asarray(x) for name, x in block.items()}
            without = [name for name, x in arrays.items() if not x.ndim]
            if without:
                raise ValueError(
                    f"{', '.join(map(repr, without))} is one number for a block of rows. Give each "
                    "column one entry per row."
                )
            fields, row_bytes = laid_out(arrays)
            require_space(self.path, None if self.expected is None else self.expected * row_bytes)
            self.rows = _Appended(self.path, fields, row_bytes)
        return self.rows.write(self.file, block)

    def finish(
        self,
        source: Mapping[str, Any] | None,
        levels: Mapping[str, Sequence],
        *,
        drop_missing: bool,
    ) -> None:
        """Write the header, and see that everything is on the disk."""
        rows = self.rows
        if rows is None or not rows.n_rows:
            beside = ", or has a missing value in each row" * drop_missing
            raise ValueError(
                f"There are no rows to write to {self.path}: the source is empty{beside}."
            )
        shape = (rows.n_rows, rows.row_bytes)
        records = np.memmap(self.folder / ROWS, np.uint8, "r", shape=shape)
        segment = rows.segment(records)
        fields = [_with_levels(f, levels, [segment]) for f in rows.fields]
        text = header_of(source, fields, rows.row_bytes, [segment], drop_missing=drop_missing)
        write(self.folder / HEADER, text)
        sync_folder(self.folder)


def _log_new_levels(before: Sequence[Field], after: Sequence[Field]) -> None:
    for old, new in zip(before, after, strict=True):
        added = list(new.levels or ())[len(old.levels or ()) :]
        if added:
            listed = ", ".join(map(repr, added[:_NAMED])) + ", ..." * (len(added) > _NAMED)
            said = "new level" if len(added) == 1 else f"{len(added):,} new levels"
            _log.info("%s of %r: %s", said, new.name, listed)


def _with_levels(
    field: Field, levels: Mapping[str, Sequence], segments: Sequence[Segment]
) -> Field:
    known = levels.get(field.name)
    if known is None:
        return field
    low = min(float(np.min(s.statistics[field.name].low)) for s in segments)
    high = max(float(np.max(s.statistics[field.name].high)) for s in segments)
    if not 0 <= low <= high < len(known):
        raise ValueError(
            f"Column {field.name!r} has codes from {low:g} to {high:g}, and {len(known):,} levels. "
            f"Codes must be from 0 to {len(known) - 1:,}."
        )
    return Field(field.name, field.dtype, field.shape, field.offset, tuple(known))


@contextmanager
def _progress(path: Path, n_rows: int | None, wanted: bool) -> Iterator[Callable[[int], None]]:
    """Show how many rows are written, and how fast; say so at the end."""
    start, done = time.perf_counter(), 0
    console = get_console()
    bar = Progress(
        TextColumn("Writing {task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} rows, {task.fields[rate]:,.0f} per second"),
        console=console,
        disable=not (wanted and (console.is_terminal or console.is_jupyter)),
        transient=True,
    )
    with bar:
        task: TaskID = bar.add_task(path.name, total=n_rows, rate=0.0)

        def advance(size: int) -> None:
            nonlocal done
            done += size
            rate = done / max(time.perf_counter() - start, 1e-9)
            bar.update(task, completed=done, rate=rate)

        yield advance
    took = time.perf_counter() - start
    _log.info(
        "%s: %s rows written in %.1f s, %s per second",
        path, f"{done:,}", took, f"{done / max(took, 1e-9):,.0f}",
    )  # fmt: skip
