"""Rows that will be asked for in a known order, read by a thread before they are."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import numpy as np

from pymc_subsample.data.store import Store

# Of what is read at once: bytes, as a share of those that are free, and how often rows are taken.
_MOST_BYTES, _SHARE = 2**28, 1 / 16
_FEWEST, _MOST = 8, 10_000
# Bytes from one row to the next up to which a disk is read on rather than asked anew.
_NEAR = 2**17


class Ahead:
    """Rows of a store for those who say what they will take.

    Two buffers: while one is handed out, a thread fills the other, from one end of the file to the
    other where its rows are close. Rows that were not said, or not read yet, are not waited for.

    Parameters
    ----------
    store : Store
        The rows.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._coming: Iterator[np.ndarray] = iter(())
        self._buffer: _Buffer | None = None
        self._next: _Buffer | None = None
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="rows ahead")

    @property
    def idle(self) -> bool:
        """Whether nothing is expected, as after rows that were not."""
        return self._buffer is None

    def expect(self, batches: Iterator[np.ndarray]) -> None:
        """Say what will be taken: numbers of rows, shape (m,), turn by turn."""
        self._coming = batches
        self._buffer = self._fill()
        self._next = None if self._buffer is None else self._fill()

    def take(self, index: np.ndarray) -> np.ndarray | None:
        """Return the records of rows, shape (m, row_bytes), if they were expected and are there."""
        if self._buffer is not None and self._buffer.over:
            self._buffer, self._next = self._next, self._fill()
        if self._buffer is None:
            return None
        if not self._buffer.is_next(index):
            self._buffer = self._next = None
            return None
        return self._buffer.take()

    def _fill(self) -> "_Buffer | None":
        """Have the thread read the rows of the next turns."""
        first = next(self._coming, None)
        if first is None:
            return None
        most = min(_MOST_BYTES, int(_SHARE * _free())) // (self._store.row_bytes * (len(first) + 1))
        turns = [first, *islice(self._coming, int(np.clip(most, _FEWEST, _MOST)) - 1)]
        return _Buffer(turns, self._reader.submit(_read, self._store, np.concatenate(turns)))


class _Buffer:
    """Rows of some turns, and whose turn it is."""

    def __init__(self, turns: list[np.ndarray], records: Future) -> None:
        self._turns, self._records = turns, records
        self._turn, self._start = 0, 0

    @property
    def over(self) -> bool:
        return self._turn == len(self._turns)

    def is_next(self, index: np.ndarray) -> bool:
        return np.array_equal(self._turns[self._turn], index)

    def take(self) -> np.ndarray | None:
        start, size = self._start, len(self._turns[self._turn])
        self._turn += 1
        self._start += size
        return self._records.result()[start : start + size] if self._records.done() else None


def _read(store: Store, index: np.ndarray) -> np.ndarray:
    """Read rows in the order in which they are on the disk."""
    order = np.argsort(index)
    close = len(index) * _NEAR >= store.n_rows * store.row_bytes
    found = np.empty((len(index), store.row_bytes), np.uint8)
    found[order] = store.records[index[order]] if close else store.take(index[order])
    return found


def _free() -> int:
    """Bytes of memory that nobody uses, as far as the system says."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 16 * _MOST_BYTES
