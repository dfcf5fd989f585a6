"""Where the rows of each level are, of a column by which rows are kept together."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pymc_subsample.rows.columns import StoredColumn

# Rows that are read at a time.
_PIECE = 2**17


class NotTogether(Exception):
    """Rows of a level that are apart, with others between them."""


@dataclass(frozen=True)
class Runs:
    """Rows side by side that have the same level; in each segment, a level has one run at most.

    In the order of levels; those of a level are in the order of segments.
    """

    column: StoredColumn
    levels: np.ndarray
    starts: np.ndarray  # First row of each,
    lengths: np.ndarray  # and number of rows.

    def counts(self, levels: np.ndarray) -> np.ndarray:
        """Return how many rows some levels have."""
        first, last = self._places(levels)
        return self._total[last] - self._total[first]

    @cached_property
    def _total(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def rows(self, levels: np.ndarray) -> np.ndarray:
        """Return numbers of the rows of some levels, one level after the other."""
        first, last = self._places(levels)
        own = _ranges(first, last - first)
        return _ranges(self.starts[own], self.lengths[own])

    def _places(self, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.searchsorted(self.levels, levels), np.searchsorted(self.levels, levels, "right")


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return consecutive numbers from each start on, so many of each."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - (ends - lengths), lengths)


def _repeats(levels: np.ndarray) -> np.ndarray:
    """Return which of some levels were there before."""
    first = np.zeros(len(levels), dtype=bool)
    first[np.unique(levels, return_index=True)[1]] = True
    return ~first


def find_runs(column: StoredColumn) -> Runs:
    """Find the runs of a column of levels 0, 1, ..., by a pass; raises `NotTogether`."""
    high = int(column.statistic("high"))
    all_levels, all_starts = list[np.ndarray](), list[np.ndarray]()
    begin = 0
    for segment in column.store.segments:
        end, seen, last = begin + segment.n_rows, np.zeros(high + 1, dtype=bool), -1
        for at in range(begin, end, _PIECE):
            own = column[at : min(at + _PIECE, end)]
            new = np.concatenate([[own[0] != last], own[1:] != own[:-1]])
            starts = np.flatnonzero(new)
            levels = own[starts]
            again = _repeats(levels) | seen[levels]
            if again.any():
                place = int(np.argmax(again))
                raise NotTogether(
                    f"row {at + int(starts[place]):,} is of level {int(levels[place]):,} of "
                    f"{column.fields[0].name!r}, as rows before it are, and others are between them"
                )
            seen[levels] = True
            last = int(own[-1])
            all_levels.append(levels)
            all_starts.append(starts + at)
        begin = end
    levels, starts = np.concatenate(all_levels), np.concatenate(all_starts)
    lengths = np.diff(np.append(starts, begin))
    order = np.argsort(levels, kind="stable")
    return Runs(column, levels[order], starts[order], lengths[order])
