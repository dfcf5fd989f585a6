"""Rows behind those of a folder."""

import logging
from collections.abc import Callable
from contextlib import suppress

from pymc_subsample.rows.folders import PARTIAL, complaints, locked, sync_folder, write
from pymc_subsample.rows.row_format import listed
from pymc_subsample.rows.sorting import in_order
from pymc_subsample.rows.sources.blocks import Options
from pymc_subsample.rows.store import HEADER, ROWS, Store, StoreError
from pymc_subsample.rows.writing import RowBlocks, Written

_log = logging.getLogger("pymc.subsample")


def appended(
    store: Store, options: Options, read: Callable[[], RowBlocks], *, progressbar: bool
) -> Store:
    """Write more rows behind those of a folder, in its order; return it with all of them.

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
        rows = Written(path, current)
        start = rows.start
        with in_order(path, current.by, options, None, read, progressbar, current) as found:
            blocks, n_rows, levels = found
            with complaints(path):
                file = (path / ROWS).open("r+b", buffering=0)
            with file:
                file.truncate(start)
                file.seek(start)
                try:
                    rows.write(file, blocks, n_rows, progressbar)
                except BaseException:
                    with suppress(OSError):
                        file.truncate(start)
                    raise
        if rows.n_rows:
            new = path / f"{HEADER}.{PARTIAL}"
            text = rows.header(
                path / ROWS, current.source, levels, drop_missing=current.drop_missing,
                by=current.by,
            )  # fmt: skip
            with complaints(path):
                write(new, text)
                new.replace(path / HEADER)
                sync_folder(path)
        whole = Store(path)
        _log_new_levels(current, whole)
        return whole


def _log_new_levels(before: Store, after: Store) -> None:
    for name, field in after.fields.items():
        added = list(field.levels or ())[len(before.fields[name].levels or ()) :]
        if added:
            said = "new level" if len(added) == 1 else f"{len(added):,} new levels"
            _log.info("%s of %r: %s", said, name, listed(added))
