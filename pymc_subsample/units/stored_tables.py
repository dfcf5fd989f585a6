"""Units of rows on disk, each with its rows side by side: a folder of units for each table.

To a step these are rows on disk, of a model that is written on a sample of units.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any
from weakref import finalize

import numpy as np
import pymc as pm
import pytensor
from filelock import FileLock, Timeout
from pytensor.graph.basic import Variable

from pymc_subsample.model import TallModelError
from pymc_subsample.rows import Rows
from pymc_subsample.rows.constructors import made
from pymc_subsample.rows.on_disk import sample_index
from pymc_subsample.rows.store import UNITS
from pymc_subsample.units.accuracy import Marginal
from pymc_subsample.units.integrated import log_likelihood
from pymc_subsample.units.layout import (
    Table,
    mode_numbers,
    placed_first,
    row_numbers,
    state_numbers,
)
from pymc_subsample.units.stored_rows import PIECE_ROWS

# Units on which the model is written, and as many numbers of all units as it holds in memory: some
# more than those up to which rows are evaluated in full.
_SAMPLE, _HELD = 1_000, 2**17


class StoredTables:
    """Tables of units, in a folder beside the rows that goes with the process that made it."""

    def __init__(self, path: Path) -> None:
        self._of = path
        self._folder = _Folder(path / UNITS)
        self.rows: list[Rows] = []

    def added(self, marginal: Marginal, table: Table, label: str) -> Variable:
        """Write the units of a table; return their log-likelihoods, over a sample of them."""
        n = len(table.units)
        path = self._folder.path / f"{len(self.rows)}.rows"
        blocks = _blocks(marginal, table)
        made(lambda given, options: (given, n, {}), blocks, cache=path, progressbar=None)
        rows = Rows.open(path)
        numbers = sum(column.size for column in map(rows.column, rows.names))
        index = sample_index(n, n if numbers <= _HELD else _SAMPLE, 0)
        sample, some = rows.sample(len(index)), marginal.at(table.units[index])

        def data(what: str, value: np.ndarray) -> Variable:
            if not np.array_equal(value, sample[what]):
                raise TallModelError(
                    f"Units of {self._of} are not read from the disk as they were laid out, in "
                    f"{what!r} of {label!r}. Please report this, and sample with integrate=False."
                )
            name = f"{label}, {what}"
            variable = pytensor.shared(value, name=name, shape=value.shape)
            pm.modelcontext(None).register_data_var(variable)
            return variable

        term = log_likelihood(some, replace(table, units=np.arange(len(index))), label, data)
        selected = rows.select(**{f"{label}, {what}": what for what in rows.names})
        selected.complete, selected._store.keeps = True, self._folder
        self.rows.append(selected)
        return term


def _blocks(marginal: Marginal, table: Table) -> Iterator[dict[str, np.ndarray]]:
    graphs = marginal.functions.graphs
    together = max(1, PIECE_ROWS // max(1, *table.lengths))
    for start in range(0, len(table.units), together):
        own = marginal.at(table.units[start : start + together])
        some = replace(table, units=np.arange(len(own.functions.levels)))
        block = dict(row_numbers(own.functions, some))
        for t, part in enumerate(own.functions.parts):
            if part.stored is not None:
                types = {f"{t}_{c}": kind for c, kind in enumerate(part.stored.types)}
                block |= {what: block[what].astype(types[what]) for what in types if what in block}
        if not graphs.exact:
            block |= dict(mode_numbers(own, some, placed_first(own.functions, some)[0]))
        if graphs.states is not None:
            block |= dict(weights for _, weights in state_numbers(own.functions, some))
        yield block


class _Folder:
    """A folder that is removed with this object, or after the process that made it has ended."""

    def __init__(self, parent: Path) -> None:
        try:
            parent.mkdir(exist_ok=True)
            for left in parent.glob("*.lock"):
                _remove_left(left)
            self.path = parent / token_hex(8)
            lock = FileLock(self.path.with_suffix(".lock"), thread_local=False)
            lock.acquire()
            self.path.mkdir()
        except PermissionError as error:
            raise PermissionError(
                f"Units of rows on disk are written to a folder beside the rows, and {parent} "
                f"cannot be written: {error.strerror}. Copy the rows to where you may write, "
                "or give integrate=False."
            ) from error
        self._end = finalize(self, _remove, self.path, lock, os.getpid())

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}


def _remove(path: Path, lock: FileLock, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)
        lock.release()
        path.with_suffix(".lock").unlink(missing_ok=True)


def _remove_left(file: Path) -> None:
    """Remove a folder whose process was killed."""
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return
    _remove(file.with_suffix(""), lock, os.getpid())
