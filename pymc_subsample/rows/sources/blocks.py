"""Blocks of rows of any table: columns that are kept, codes for words, rows with missing values."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pymc_subsample.rows.row_format import NotNumbersError, listed
from pymc_subsample.rows.writing import RowBlock, RowBlocks

_log = logging.getLogger("pymc.subsample")

# Rows of a block. A choice: 1 MB for each column of doubles.
BLOCK = 2**17
# Of codes.
_CODE = np.dtype("int32")

type PartReader = Callable[[Any, np.ndarray], np.ndarray]
# Names of columns, or also their levels; None where these are to be found.
type Categorical = Sequence[str] | Mapping[str, Sequence | None]


class Options:
    """What of a table is kept: columns (None for all), and those among them that are kept as codes.

    `given` are levels of the latter that are given, and `levels` those that are found; `known`
    those of rows before these. `left_out` counts rows that are left out since a value is missing in
    a column that is kept.
    """

    def __init__(
        self,
        columns: Sequence[str] | None,
        categorical: Categorical,
        drop_missing: bool,
        known: Mapping[str, Sequence] | None = None,
    ) -> None:
        for name, value in (("columns", columns), ("categorical", categorical)):
            if isinstance(value, str):
                raise TypeError(f'{name} must be a list of names, got {value!r}: use ["{value}"].')
        self.columns = None if columns is None else list(columns)
        self.categorical, self.drop_missing = list(categorical), bool(drop_missing)
        self.given: dict[str, list] = {}
        for name, words in categorical.items() if isinstance(categorical, Mapping) else ():
            if words is None:
                continue
            if isinstance(words, str) or not isinstance(words, Iterable):
                raise TypeError(f"categorical[{name!r}] must be a list of levels, got {words!r}.")
            self.given[name] = [word(w) for w in words]
            if len(set(self.given[name])) < len(self.given[name]):
                raise ValueError(f"categorical[{name!r}] names a level twice.")
        self.known, self.levels, self.left_out = known, Levels(known, self.given), 0
        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns names a column twice: {self.columns}.")

    def as_json(self) -> dict[str, Any]:
        """Return what tells rows of one source apart."""
        names = ("columns", "categorical", "drop_missing")
        found = {name: getattr(self, name) for name in names}
        return found | ({"levels": self.given} if self.given else {})

    def log_left_out(self) -> None:
        """Say how many rows were left out, if any were."""
        if self.left_out:
            said = "1 row with a missing value was"
            if self.left_out > 1:
                said = f"{self.left_out:,} rows with missing values were"
            _log.info("%s left out", said)

    def whole(self, block: RowBlock, holes: np.ndarray | None = None) -> RowBlock:
        """Return a block without rows to be left out, by NaN and `holes`, (m,), and count these."""
        lengths = {x.shape[:1] for x in block.values()}
        if not self.drop_missing or len(lengths) != 1 or () in lengths:
            return block  # columns of different lengths are refused where they are written
        missing = np.zeros(lengths.pop(), dtype=bool) if holes is None else holes > 0
        for x in block.values():
            if x.dtype.kind == "f":
                missing |= np.isnan(x).reshape(len(x), -1).any(axis=1)
        self.left_out += int(missing.sum())
        return {name: x[~missing] for name, x in block.items()} if missing.any() else block

    def chosen(self, known: list[str], what: str, default: list[str] | None = None) -> list[str]:
        """Return the names of the columns to keep, of those of a table; by default all."""
        unfit = [name for name in known if not isinstance(name, str) or known.count(name) > 1]
        if unfit:
            raise ValueError(
                f"Columns of {what} are called {listed(list(dict.fromkeys(unfit)))}. Names must "
                "be text, and each the name of one column."
            )
        default = known if default is None else default
        wanted = default if self.columns is None else self.columns
        for argument, names in (("columns", wanted), ("categorical", self.categorical)):
            missing = [name for name in names if name not in known]
            if missing:
                raise ValueError(
                    f"{argument} names {', '.join(map(repr, missing))}, which {what} does not "
                    f"have. It has {listed(known)}."
                )
        beside = [name for name in self.categorical if name not in wanted]
        if beside:
            raise ValueError(f"categorical names {beside}, which columns does not keep.")
        return wanted


class Levels(Mapping[str, list]):
    """Words of each column that rows have, numbered in the order in which they came.

    Rows may be left out once they are read, so that codes are first those of all words seen, and
    `settled` where it is known which rows stay. `known` are the levels of rows before these;
    `given` are all that a column may have, in order.
    """

    def __init__(self, known: Mapping[str, Sequence] | None, given: Mapping[str, Sequence]) -> None:
        self._appending, self._given = known is not None, given
        self._seen: dict[str, dict[Any, int]] = {}
        # By number among the words seen: the code of each, -1 where no row has it.
        self._codes: dict[str, np.ndarray] = {}
        for name, words in {**(known or {}), **self._given}.items():
            self._number(name, self.seen(name, np.arange(len(words)), words))

    def __getitem__(self, name: str) -> list:
        codes, words = self._codes[name], list(self._seen[name])
        return [words[k] for k in np.argsort(codes, kind="stable") if codes[k] >= 0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._codes)

    def __len__(self) -> int:
        return len(self._codes)

    def seen(self, name: str, codes: np.ndarray, words: Sequence) -> np.ndarray:
        """Return codes into all words seen for codes into some; -1 stays, as do those of None."""
        known = self._seen.setdefault(name, {})
        table = np.array(
            [-1 if w is None else known.setdefault(word(w), len(known)) for w in words] + [-1],
            _CODE,
        )
        codes_before = self._codes.get(name, np.empty(0, _CODE))
        added = np.full(len(known) - len(codes_before), -1, _CODE)
        self._codes[name] = np.concatenate([codes_before, added])
        return table[codes]

    def read(self, name: str, codes: np.ndarray, words: Sequence, holes: np.ndarray) -> np.ndarray:
        """Return these codes of a part of a column, and count in `holes` what is missing."""
        found = self.seen(name, codes, words)
        holes += found < 0
        return found

    def declare(self, name: str, words: Sequence = ()) -> None:
        """Name a column of words; those given are levels even if no row has them.

        Not of rows that are appended: a new level changes the model. Nor where levels are given.
        """
        found = self.seen(name, np.arange(len(words)), words)
        if not self._appending and name not in self._given:
            self._number(name, found[found >= 0])

    def settled(self, name: str, codes: np.ndarray) -> np.ndarray:
        """Return the codes of rows that stay for those into all words seen."""
        counts = np.bincount(codes.ravel(), minlength=len(self._codes[name]))
        found = np.flatnonzero(counts)
        if name in self._given and np.any(other := self._codes[name][found] < 0):
            words = list(self._seen[name])
            raise ValueError(
                f"Column {name!r} has values that are none of the levels in categorical: "
                f"{listed([words[k] for k in found[other]])}. Add them after the others, or "
                "leave these rows out."
            )
        self._number(name, found)
        return self._codes[name][codes]

    def _number(self, name: str, seen: np.ndarray) -> None:
        codes = self._codes[name]
        new = seen[codes[seen] < 0]
        codes[new] = codes.max(initial=-1) + 1 + np.arange(len(new))


def word(value: Any) -> Any:
    """Return what a header can hold of a level: text, a finite number, or how it prints."""
    value = value.item() if isinstance(value, np.generic) else value
    plain = isinstance(value, str | int) or (isinstance(value, float) and np.isfinite(value))
    return value if plain else str(value)


def blocks(
    parts: Iterable[tuple[int, Any]],
    readers: Mapping[str, PartReader | str],
    options: Options,
    n_rows: int | None,
    what: str,
) -> RowBlocks:
    """Return the rows of a table, without those where something is missing if they are left out.

    `parts` are numbers of rows, and what gives columns of them by name. `readers` read a part of a
    column and count, in an array of shape (m,), what is missing where numbers cannot say it; a type
    stands for those that there are none for. Raises `TypeError` if there is no way to read a
    column, and where blocks are read `ValueError` if something is missing of integers or
    categories.
    """
    wrong = {name: reader for name, reader in readers.items() if isinstance(reader, str)}
    if wrong:
        raise NotNumbersError(wrong)
    levels = options.levels
    known = {name: reader for name, reader in readers.items() if not isinstance(reader, str)}

    def read() -> Iterator[RowBlock]:
        start = 0
        for size, part in parts:
            holes = {name: np.zeros(size, dtype=np.int64) for name in known}
            block = {name: reader(part[name], holes[name]) for name, reader in known.items()}
            if not options.drop_missing:
                _refuse_holes(holes, start, what)
            start += size
            whole = options.whole(block, np.sum([*holes.values()], axis=0))
            coded = {name: levels.settled(name, whole[name]) for name in levels if name in whole}
            yield {**whole, **coded}

    return read(), None if options.drop_missing else n_rows, levels


def _refuse_holes(holes: Mapping[str, np.ndarray], start: int, what: str) -> None:
    """Refuse what is missing of integers and categories: no number says so."""
    found = {name: start + int(np.argmax(x > 0)) for name, x in holes.items() if x.any()}
    if found:
        places = ", ".join(f"{name!r}, first in row {row:,}" for name, row in found.items())
        raise ValueError(
            f"{what} has missing values where there are integers or categories: {places}. Leave "
            "such rows out with drop_missing=True when the rows are made, or fill them in."
        )
