"""Folders of rows, written so that they are there as a whole or not at all."""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from rich import get_console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from pymc_subsample.rows.folders import (
    complaints,
    require_space,
    sync,
)
from pymc_subsample.rows.row_format import Field, columns_of, laid_out, records_of, stored_types
from pymc_subsample.rows.statistics import ColumnStatistics, statistics
from pymc_subsample.rows.store import Segment, Store, glimpse, header_of

_log = logging.getLogger("pymc.subsample")

RowBlock = Mapping[str, np.ndarray]
# Blocks of rows, how many rows there will be if that is known, and levels, known at the end.
RowBlocks = tuple[Iterator[RowBlock], int | None, Mapping[str, Sequence]]


class Written:
    """Rows on their way into a file, and what is to be known of them.

    Their columns are those of the rows before, else those of the first block. They are a segment
    behind these, or if `apart` the first of a file of their own.
    """

    def __init__(self, path: Path, before: Store | None = None, *, apart: bool = False) -> None:
        self.path = path
        self.fields: list[Field] = [] if before is None else list(before.fields.values())
        self.row_bytes = 0 if before is None else before.row_bytes
        self.segments: list[Segment] = [] if before is None or apart else list(before.segments)
        self.start = sum(s.n_rows for s in self.segments) * self.row_bytes
        self.n_rows, self._digest = 0, sha256()
        self._statistics: dict[str, ColumnStatistics] = {}

    def write(
        self, file: FileIO, blocks: Iterator[RowBlock], n_rows: int | None, progressbar: bool | None
    ) -> None:
        """Write blocks, and wait until they are on the disk."""
        with progress("Writing", self.path, n_rows, progressbar) as advance:
            for k, block in enumerate(blocks):
                records = self.records(block)
                if n_rows is not None and not k:
                    require_space(self.path, n_rows * self.row_bytes)
                self.add(file, records)
                advance(len(records))
        with complaints(self.path):
            sync(file)

    def _lay_out(self, block: RowBlock) -> None:
        if not block:
            raise ValueError("The rows have no columns. Name some: columns=[...].")
        arrays = {name: np.asarray(x) for name, x in block.items()}
        without = [name for name, x in arrays.items() if not x.ndim]
        if without:
            raise ValueError(
                f"{', '.join(map(repr, without))} is one number for a block of rows. Give each "
                "column one entry per row."
            )
        self.fields, self.row_bytes = laid_out(arrays)

    def records(self, block: RowBlock) -> np.ndarray:
        """Return the rows of a block as bytes, shape (m, row_bytes); the first lays columns out."""
        if not self.fields:
            self._lay_out(block)
        return records_of(self.fields, self.row_bytes, self._fitting(block))

    def add(self, file: FileIO, records: np.ndarray) -> None:
        """Write rows."""
        if not len(records):
            return
        with complaints(self.path):
            left = memoryview(records).cast("B")
            while left:  # a disk that is nearly full takes some of it
                left = left[file.write(left) :]
        self._digest.update(records)
        for name, x in columns_of(self.fields, records).items():
            found = statistics(x)
            known = self._statistics.get(name)
            self._statistics[name] = found if known is None else known + found
        self.n_rows += len(records)

    def _fitting(self, block: RowBlock) -> dict[str, np.ndarray]:
        given = {name: np.asarray(x) for name, x in block.items()}
        stored_types(given)
        names = [f.name for f in self.fields]
        if set(block) != set(names):
            raise ValueError(
                f"A block of rows has columns {sorted(block)}; the rows before have {names}. "
                "Blocks must have the same columns."
            )
        arrays = {}
        for field in self.fields:
            x = given[field.name]
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

    def end_segment(self, file: Path) -> None:
        """Let the rows that were written since the last segment be one."""
        if not self.n_rows:
            return
        records = np.memmap(file, np.uint8, "r", self.start, (self.n_rows, self.row_bytes))
        own = Segment(self.n_rows, self._digest.hexdigest(), glimpse(records), self._statistics)
        self.segments.append(own)
        self.start += self.n_rows * self.row_bytes
        self.n_rows, self._digest, self._statistics = 0, sha256(), {}

    def header(
        self,
        file: Path,
        source: Any,
        levels: Mapping[str, Sequence],
        *,
        drop_missing: bool,
        by: str | None,
    ) -> str:
        """Return the text of the header of a file with all rows."""
        self.end_segment(file)
        fields = [_with_levels(f, levels, self.segments) for f in self.fields]
        return header_of(
            source, fields, self.row_bytes, self.segments, drop_missing=drop_missing, by=by
        )


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
    return dataclasses.replace(field, levels=tuple(known))


@contextmanager
def progress(
    what: str, path: Path, n_rows: int | None, wanted: bool | None
) -> Iterator[Callable[[int], None]]:
    """Show how many rows are written, or sorted, and how fast; say so at the end, but for None."""
    start, done = time.perf_counter(), 0
    console = get_console()
    bar = Progress(
        TextColumn(f"{what} {{task.description}}"),
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
            rate = done / max(time.perf_counter() - start, 1e-9)  # divides nothing by zero
            bar.update(task, completed=done, rate=rate)

        yield advance
    if wanted is None:
        return
    took = time.perf_counter() - start
    seconds = f"{took:.1f}" if took >= 1 else f"{took:.1g}"
    said = path, f"{done:,}", seconds, f"{done / max(took, 1e-9):,.0f}"
    if what == "Sorting":
        _log.info("%s: %s rows read and sorted in runs in %s s, %s per second", *said)
    else:
        _log.info("%s: %s rows written in %s s, %s per second", *said)
