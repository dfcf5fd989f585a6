"""What a row consists of: numbers of fixed types at fixed places, one row after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_subsample.validation import LISTED

# Half precision is kept in single: compiled code can't read it.
_WIDER = {np.dtype("float16"): np.dtype("float32")}


@dataclass(frozen=True)
class Field:
    """A column: where a row has it."""

    name: str  # Of the column.
    dtype: np.dtype  # Of its numbers.
    shape: tuple[int, ...] = ()  # What one row has of it; () is one number.
    offset: int = 0  # Bytes from the start of the row.
    levels: tuple | None = None  # What the numbers 0, 1, ... stand for, where they are codes.

    @property
    def size(self) -> int:
        """Numbers in one row."""
        return int(np.prod(self.shape, dtype=int))

    def as_json(self) -> dict[str, Any]:
        """Return what the header says of it."""
        levels = None if self.levels is None else list(self.levels)
        return {**vars(self), "dtype": self.dtype.str, "shape": list(self.shape), "levels": levels}


def field_from_json(entry: Mapping[str, Any]) -> Field:
    """Return a field as a header describes it."""
    levels = entry["levels"]
    return Field(
        entry["name"],
        np.dtype(entry["dtype"]),
        tuple(entry["shape"]),
        entry["offset"],
        None if levels is None else tuple(levels),
    )


def laid_out(blocks: Mapping[str, np.ndarray]) -> tuple[list[Field], int]:
    """Place columns in a row, those of one type side by side; return them and a row's bytes.

    `blocks` are some rows of each column, rows on the first axis.
    """
    stored = stored_types(blocks)
    types = list(dict.fromkeys(sorted(stored.values(), key=lambda t: -t.itemsize)))
    fields, offset = [], 0
    for dtype in types:
        for name, x in blocks.items():
            if stored[name] == dtype:
                fields.append(Field(name, dtype, x.shape[1:], offset))
                offset += dtype.itemsize * int(np.prod(x.shape[1:], dtype=int))
    order = list(blocks)
    fields.sort(key=lambda f: order.index(f.name))
    largest = max((t.itemsize for t in types), default=1)
    return fields, -(-offset // largest) * largest


def stored_types(blocks: Mapping[str, np.ndarray]) -> dict[str, np.dtype]:
    """Return the types in which numbers of columns are kept; refuse what are no numbers."""
    native = {name: x.dtype.newbyteorder("=") for name, x in blocks.items()}
    stored = {name: _WIDER.get(t, t) for name, t in native.items()}
    others = [name for name, t in stored.items() if t.kind not in "biuf" or t.itemsize > 8]
    if others:
        raise NotNumbersError({name: str(blocks[name].dtype) for name in others})
    return stored


class NotNumbersError(TypeError):
    """Columns that cannot be kept, and what to do: `listed` has their names and types."""

    def __init__(self, found: Mapping[str, str]) -> None:
        self.listed = ", ".join(f"{name!r} ({kind})" for name, kind in found.items())
        super().__init__(
            f"Rows keep numbers, and these columns hold none: {self.listed}. Leave them out "
            "(columns=[...]); name those with repeated words in categorical=[...], which keeps "
            "codes and levels; turn times into numbers, such as days since a date, and others into "
            "floats."
        )


def listed(names: Sequence) -> str:
    """Name columns or levels, `LISTED` at most."""
    return ", ".join(map(repr, names[:LISTED])) + ", ..." * (len(names) > LISTED)


def records_of(
    fields: Sequence[Field], row_bytes: int, blocks: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Return rows as bytes, shape (m, row_bytes)."""
    m = len(next(iter(blocks.values())))
    records = np.zeros((m, row_bytes), dtype=np.uint8)
    for field in fields:
        view(records, [field.offset], field.dtype, field.shape)[:] = blocks[field.name]
    return records


def columns_of(fields: Sequence[Field], records: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of rows by name, as views of their bytes."""
    return {f.name: view(records, [f.offset], f.dtype, f.shape) for f in fields}


def view(
    records: np.ndarray, offsets: Sequence[int], dtype: np.dtype, shape: tuple[int, ...]
) -> np.ndarray:
    """Return numbers of rows as a view, shape (m, *shape).

    `records`, bytes of shape (m, row_bytes), hold each row in one piece; `offsets` say where the
    numbers are in it, evenly spaced, or where the first of them is.
    """
    size = int(np.prod(shape, dtype=int))
    step = offsets[1] - offsets[0] if len(offsets) > 1 else dtype.itemsize
    if not len(records) or not size:
        return np.empty((len(records), *shape), dtype)
    first = records[:, offsets[0] : offsets[0] + dtype.itemsize].view(dtype)[:, 0]
    if size == 1:
        return first.reshape(len(records), *shape)
    assert 0 <= offsets[0] + (size - 1) * step <= records.shape[1] - dtype.itemsize
    numbers = np.lib.stride_tricks.as_strided(
        first, (len(records), size), (records.strides[0], step), writeable=first.flags.writeable
    )
    return numbers.reshape(len(records), *shape)
