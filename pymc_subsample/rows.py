"""Where the rows live."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from hashlib import sha256

import numpy as np

_FINGERPRINT_ROWS = 256
# Of a long array, of which a glimpse is taken.
_GLIMPSE_BYTES = 2**22
_GLIMPSE_ELEMENTS = 2**14
# Of the rows that a check evaluates at once, in double precision.
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


class RowStore:
    """Raw columns of n rows, in memory or memory-mapped.

    Parameters
    ----------
    columns : sequence of array_like
        Each has the rows on its first axis; views and memory maps are kept as they are.
    n_rows : int
        Number of rows.
    """

    def __init__(self, columns: Sequence[np.ndarray], n_rows: int):
        for column in columns:
            if len(column) != n_rows:
                raise ValueError(f"A column has {len(column)} rows, expected {n_rows}.")
        self.columns = tuple(columns)
        self.n_rows = n_rows

    def take(self, index: np.ndarray) -> list[np.ndarray]:
        """Return rows `index`, shape (m,), of every column, copied."""
        return [column[index] for column in self.columns]

    def chunks(self, size: int) -> Iterator[list[np.ndarray]]:
        """Yield views of consecutive rows, at most `size` at a time."""
        for start in range(0, self.n_rows, size):
            yield [column[start : start + size] for column in self.columns]

    def batch_size(self) -> int:
        """Return how many rows to evaluate at once so that their columns take little memory."""
        numbers = sum(column[0].size for column in self.columns)
        return max(1, min(_LARGEST_BATCH, _BATCH_BYTES // (8 * max(numbers, 1))))

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the data: types, shapes, some rows at fixed places and a sum of all bits.

        One pass over the data, when first asked for. Sums are of integers, which wrap around: they
        do not depend on the order in memory, as those of floating-point numbers would.
        """
        digest = sha256()
        places = np.linspace(0, self.n_rows - 1, min(self.n_rows, _FINGERPRINT_ROWS)).astype(int)
        for column in self.columns:
            bits = column if column.dtype.itemsize in (1, 2, 4, 8) else column.astype(float)
            bits = bits.view(f"u{bits.dtype.itemsize}")
            total = int(bits.sum(dtype=np.uint64))
            digest.update(f"{column.dtype.str}{column.shape}{total};".encode())
            digest.update(np.ascontiguousarray(bits[places]).tobytes())
        return digest.hexdigest()


def drawn_without(rng: np.random.Generator, n_rows: int, always: np.ndarray, shape) -> np.ndarray:
    """Draw row numbers uniformly among those that are not in `always`, which is in order."""
    index = rng.integers(0, n_rows - len(always), shape)
    if len(always):
        # How many of them come before the row of that rank.
        index += np.searchsorted(always - np.arange(len(always)), index, side="right")
    return index
