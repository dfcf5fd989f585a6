"""Rows sorted by a column, so that those of each of its levels are together.

As many as memory takes easily are sorted at a time and written to a folder beside, each such run as
a segment; then runs are merged, some levels at a time. Where the folder is whole, and of the same
source, an interrupted conversion goes on from there.
"""

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pymc_subsample.rows.folders import complaints, require_space, sync, sync_folder, write
from pymc_subsample.rows.row_format import Field, columns_of, listed, view
from pymc_subsample.rows.sources.blocks import Options
from pymc_subsample.rows.store import HEADER, ROWS, Store, StoreError
from pymc_subsample.rows.writing import RowBlock, RowBlocks, Written, progress

_log = logging.getLogger("pymc.subsample")

SORTING = "sorting"
# Bytes of rows that are sorted at a time. A choice: 64 MB, of which sorting takes four times as
# much, and runs are long enough to be read in order.
_RUN_BYTES = 2**26
# Levels of a run that are looked at to see how many rows are to be merged at a time.
_LOOKED = 64


@contextmanager
def in_order(
    path: Path,
    by: str | None,
    options: Options,
    source: Mapping[str, Any] | None,
    read: Callable[[], RowBlocks],
    progressbar: bool | None,
    before: Store | None = None,
) -> Iterator[RowBlocks]:
    """Yield what `read` returns, sorted by a column if one is named.

    `path` and `source` are those of the rows to be made, of `before` those that they are for.
    """
    folder = path.parent / f".{path.name}.{SORTING}"
    runs = None if by is None or source is None else _read_before(folder, source)
    if runs is None:
        shutil.rmtree(folder, ignore_errors=True)
    if by is None:
        yield read()
        return
    done = True
    try:
        if runs is None:
            if not _write_runs(path, folder, by, options, source, read, progressbar, before):
                yield iter(()), 0, {}
                return
            runs = Store(folder)
        else:
            _log.info(
                "%s: %s rows were read and sorted in runs before the conversion was interrupted; "
                "these are merged", path, f"{runs.n_rows:,}",
            )  # fmt: skip
            options.left_out = (runs.source or {}).get("left_out", 0)
        levels = {f.name: f.levels for f in runs.fields.values() if f.levels is not None}
        yield merged(runs, by), runs.n_rows, levels
    except KeyboardInterrupt:
        done = source is None  # else the next conversion goes on from the runs
        raise
    finally:
        if done:
            shutil.rmtree(folder, ignore_errors=True)


def _read_before(folder: Path, source: Mapping[str, Any]) -> Store | None:
    """Return the runs that an interrupted conversion of the same source left, if they are whole."""
    with suppress(FileNotFoundError, StoreError):
        runs = Store(folder)
        if {**(runs.source or {}), "left_out": None} == {**source, "left_out": None}:
            runs.verify()
            return runs
    return None


def _write_runs(
    path: Path,
    folder: Path,
    by: str,
    options: Options,
    source: Mapping[str, Any] | None,
    read: Callable[[], RowBlocks],
    progressbar: bool | None,
    before: Store | None,
) -> bool:
    """Read all rows, sort some at a time and write them; return whether there are any."""
    blocks, n_rows, levels = read()
    rows, waiting, size = Written(path, before, apart=True), list[np.ndarray](), 0
    with complaints(path):
        folder.mkdir()
        file = (folder / ROWS).open("wb", buffering=0)

    def end_run() -> None:
        if waiting:
            records = np.concatenate(waiting)
            rows.add(file, _sorted(records, _key(rows.fields, by)))
            rows.end_segment(folder / ROWS)

    with file, progress("Sorting", path, n_rows, progressbar) as advance:
        for k, block in enumerate(blocks):
            records = rows.records(block)
            _key(rows.fields, by)
            if n_rows is not None and not k:
                require_space(path, 2 * n_rows * rows.row_bytes)
            waiting.append(records)
            size += records.nbytes
            if size >= _RUN_BYTES:
                end_run()
                waiting, size = [], 0
            advance(len(records))
        end_run()
        with complaints(path):
            sync(file)
    if not rows.segments:
        return False
    said = None if source is None else {**source, "left_out": options.left_out}
    text = rows.header(folder / ROWS, said, levels, drop_missing=options.drop_missing, by=by)
    with complaints(path):
        write(folder / HEADER, text)
        sync_folder(folder)
    return True


def _key(fields: list[Field], by: str) -> Field:
    """Return the column by which rows are sorted, of integers."""
    found = {f.name: f for f in fields}
    if by not in found:
        raise ValueError(f"by={by!r} is no column of the rows; they have {listed(list(found))}.")
    field = found[by]
    if field.shape or field.dtype.kind not in "iu":
        raise TypeError(
            f"by={by!r} is a column of {field.dtype}"
            f"{' of several numbers per row' * bool(field.shape)}. Rows are kept together by a "
            f"column of one integer per row: name it in categorical=[{by!r}], which keeps codes."
        )
    return field


def _sorted(records: np.ndarray, key: Field) -> np.ndarray:
    order = np.argsort(_keys(records, key), kind="stable")
    return records.view(f"V{records.shape[1]}")[order].view(np.uint8)


def _keys(records: np.ndarray, key: Field) -> np.ndarray:
    return view(records, [key.offset], key.dtype, ())


def merged(store: Store, by: str) -> Iterator[RowBlock]:
    """Yield all rows of a store whose segments are sorted; those of a level stay as they came."""
    fields, key = list(store.fields.values()), store.fields[by]
    ends = np.cumsum([segment.n_rows for segment in store.segments]).tolist()
    runs = [store.records[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    most = max(1, _RUN_BYTES // store.row_bytes)
    starts = np.zeros(len(runs), dtype=int)
    for level in _ranges([_keys(run, key) for run in runs], most):
        after = np.array([_first(_keys(run, key), level, "left") for run in runs])
        if (after - starts).sum() > 2 * most:  # of which most are of one level, the first
            first = min(int(_keys(run, key)[a]) for run, a in zip(runs, starts, strict=True)
                        if a < len(run))  # fmt: skip
            for k, run in enumerate(runs):
                end = _first(_keys(run, key), first, "right")
                for at in range(starts[k], end, most):
                    yield columns_of(fields, np.array(run[at : min(at + most, end)]))
                starts[k] = max(starts[k], end)
        parts = [run[a:b] for run, a, b in zip(runs, starts, after, strict=True) if b > a]
        if parts:
            yield columns_of(fields, _sorted(np.concatenate(parts), key))
        starts = after


def _first(keys: np.ndarray, level: int | None, side: Literal["left", "right"]) -> int:
    """Return where rows of a level begin or end; of None, the end."""
    return len(keys) if level is None else int(np.searchsorted(keys, keys.dtype.type(level), side))


def _ranges(runs: list[np.ndarray], most: int) -> Iterator[int | None]:
    """Yield levels before which about as many rows come as are merged at a time; None at the end.

    One that has more rows by itself comes first in its range.
    """
    step = max(1, most // max(_LOOKED, len(runs)))
    levels, counts = np.unique(np.concatenate([run[::step] for run in runs]), return_counts=True)
    total = np.concatenate([[0], np.cumsum(counts * step)])
    start = 0
    while start < len(levels):
        end = int(np.searchsorted(total, total[start] + most, side="right")) - 1
        start = max(end, start + 1)
        yield None if start >= len(levels) else int(levels[start])
