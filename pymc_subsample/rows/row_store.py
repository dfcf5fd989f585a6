"""Where the rows live."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np

# Of each part, evenly spread, that tell data from others. A choice: two sets of data that agree
# in them are most likely the same.
_FINGERPRINT_ROWS = 256
# Of a long array, of which a glimpse is taken. A choice: digests of 4 MB take some milliseconds.
_GLIMPSE_BYTES = 2**22
_GLIMPSE_ELEMENTS = 2**14
# Of the rows that a check evaluates at once, in double precision. A choice: 32 MB, and a check
# that fails early.
_BATCH_BYTES = 2**25
_LARGEST_BATCH = 100_000


def glimpse(array: np.ndarray) -> bytes:
    """Digest of an array's content that takes milliseconds however long it is.

    Up to 4 MB every byte counts. Of longer arrays the first and the last element do and 16,384 at
    random but fixed places: where a share p of the elements changed, that goes unseen with
    probability (1 - p)^16384, 7e-8 for one in a thousand. Changes of a few elements of a long
    array, and those that leave the values at all these places as they are, are not seen.
    """
    digest = sha256(f"{array.dtype.str}{array.shape}".encode())
    if array.nbytes > _GLIMPSE_BYTES:
        places = np.random.default_rng(0).integers(0, array.size, _GLIMPSE_ELEMENTS)
        places[:2] = 0, array.size - 1
        array = array[np.unravel_index(places, array.shape)]
    digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()


class Joined:
    """Arrays of one type, rows first, as if they lay one after the other; nothing is copied.

    Columns on disk are such arrays.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = tuple(parts)
        self.starts: list[int] = np.cumsum([0, *map(len, parts)]).tolist()
        self.dtype = self.parts[0].dtype
        self.shape = (self.starts[-1], *self.parts[0].shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | slice | np.ndarray) -> np.ndarray:
        """Return some rows: consecutive ones of one part as a view, others copied."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            k = int(np.searchsorted(self.starts, start, "right")) - 1
            if step == 1 and k < len(self.parts) and stop <= self.starts[k + 1]:
                return self.parts[k][start - self.starts[k] : stop - self.starts[k]]
            index = np.arange(start, stop, step)
        index = np.asarray(index)
        if not index.ndim:
            return self[index : index + 1][0]
        return self.take(*places(index, self.starts))

    def take(self, rows: Sequence[np.ndarray], order: np.ndarray) -> np.ndarray:
        """Return some rows of every part, in some order: see `places`."""
        taken = [part[index] for part, index in zip(self.parts, rows, strict=True)]
        return np.concatenate(taken).take(order, axis=0)


def parts_of(column: Any) -> tuple:
    """Return the arrays of a column: those that are joined, or itself."""
    return column.parts if isinstance(column, Joined) else (column,)


def places(index: np.ndarray, starts: Sequence[int]) -> tuple[list[np.ndarray], np.ndarray]:
    """Return an index's rows of each part, and where each element of the index is among them."""
    found = [np.flatnonzero((a <= index) & (index < b)) for a, b in pairwise(starts)]
    rows = [index[where] - start for where, start in zip(found, starts[:-1], strict=True)]
    order = np.empty(len(index), dtype=np.intp)
    order[np.concatenate(found)] = np.arange(len(index))
    return rows, order


class RowStore:
    """Raw columns of n rows, in memory or memory-mapped.

    Views and memory maps are kept as they are. `kinds` say what the rows of each kind are rows of,
    and how many there are. Rows of one kind follow each other. Default: all are of one kind.
    """

    # Whether other processes can read the rows too, of a store that is pickled as where they are.
    shared = False

    def __init__(
        self,
        columns: Sequence[Any],  # Arrays or `Joined` ones.
        n_rows: int,
        kinds: Sequence[tuple[tuple[str, ...], int]] = (),
    ) -> None:
        for column in columns:
            if len(column) != n_rows:
                raise ValueError(f"A column has {len(column)} rows, expected {n_rows}.")
        self.columns = tuple(columns)
        self.n_rows = n_rows
        kinds = kinds or [((), n_rows)]
        self.names = [names for names, _ in kinds]
        self.starts = np.cumsum([0, *(length for _, length in kinds)]).tolist()

    def take(self, index: np.ndarray | slice) -> list[np.ndarray]:
        """Return rows `index`, shape (m,), of every column, copied; those of a slice as views."""
        if len(self.names) == 1 or isinstance(index, slice):
            return [column[index] for column in self.columns]
        index = np.asarray(index)
        found = places(index, self.starts)
        return [c.take(*found) if isinstance(c, Joined) else c[index] for c in self.columns]

    def touch(self, index: np.ndarray) -> None:
        """Have rows in memory, shape (m,), before compiled code reads them one by one."""

    def slices(self, size: int, begin: int = 0) -> Iterator[slice]:
        """Yield consecutive rows of one kind from `begin` on, at most `size` at a time."""
        for first, last in pairwise(self.starts):
            for start in range(max(first, begin), last, size):
                yield slice(start, min(start + size, last))

    @cached_property
    def numbers(self) -> int:
        """How many numbers a row has in the raw columns."""
        return sum(column[0].size for column in self.columns)

    def batch_size(self) -> int:
        """Return how many rows to evaluate at once so that their columns take little memory."""
        return max(1, min(_LARGEST_BATCH, _BATCH_BYTES // (8 * max(self.numbers, 1))))

    def named(self, rows: Sequence[int]) -> str:
        """Say which rows these are: by number, and of what where there are several kinds."""
        if len(self.names) == 1:
            return ", ".join(map(str, rows))
        kinds = np.searchsorted(self.starts, rows, "right") - 1
        said = []
        for k in dict.fromkeys(kinds.tolist()):
            own = [
                str(row - self.starts[k])
                for row, kind in zip(rows, kinds, strict=True)
                if kind == k
            ]
            said.append(f"{', '.join(own)} of {' and '.join(map(repr, self.names[k]))}")
        return "; ".join(said)

    @property
    def counted(self) -> str:
        """How many rows there are, and of what."""
        if len(self.names) == 1:
            return f"{self.n_rows:,} rows of {', '.join(self.names[0])}"
        lengths = np.diff(self.starts)
        kinds = [f"{', '.join(n)} ({m:,})" for n, m in zip(self.names, lengths, strict=True)]
        return f"{self.n_rows:,} rows of {', '.join(kinds[:-1])} and {kinds[-1]}"

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the data: types, shapes, some rows at fixed places and a sum of all bits.

        One pass over the data, when first asked for. Sums are of integers, which wrap around: they
        do not depend on the order in memory, as those of floating-point numbers would.
        """
        digest = sha256()
        for column in self.columns:
            for part in parts_of(column):
                places = np.linspace(0, len(part) - 1, min(len(part), _FINGERPRINT_ROWS))
                bits = part if part.dtype.itemsize in (1, 2, 4, 8) else part.astype(float)
                bits = bits.view(f"u{bits.dtype.itemsize}")
                total = int(bits.sum(dtype=np.uint64))
                digest.update(f"{part.dtype.str}{part.shape}{total};".encode())
                digest.update(np.ascontiguousarray(bits[places.astype(int)]).tobytes())
        return digest.hexdigest()


def drawn_without(
    rng: np.random.Generator, n_rows: int, always: np.ndarray, shape: int | tuple[int, ...]
) -> np.ndarray:
    """Draw row numbers uniformly among those that are not in `always`, which is in order."""
    index = rng.integers(0, n_rows - len(always), shape)
    if len(always):
        # How many of them come before the row of that rank.
        index += np.searchsorted(always - np.arange(len(always)), index, side="right")
    return index
