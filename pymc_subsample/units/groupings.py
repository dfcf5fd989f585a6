"""Groupings: variables whose elements belong to the levels of one index of the rows.

Those whose levels meet one to one are joined.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from pymc_subsample.rows.runs import Runs
from pymc_subsample.units.reading import Reading
from pymc_subsample.units.states import is_discrete

# Beside that of an element of a few hundred rows, an integral costs as many times as many rows as a
# level has. As parameters, G levels of r rows want G**2 / r random rows per draw, since what
# expansions leave of a level goes with r**-1/2; as units, about a hundred of r rows at ten nodes.
_INTEGRATED = 1_000


# A term by its position, or the prior of a variable by its name, whose rows are its elements.
Read = int | str


@dataclass(frozen=True)
class Use:
    """How the rows of a term, or elements in their prior, read a variable."""

    term: Read
    axis: int  # Of the term, with its rows.
    # Element of each row, -1 if there is none, or elements: of shape (rows,) or (rows, k).
    index: np.ndarray
    levels: int
    numbers: int  # Elements that a row has.
    own: int  # Axis of the variable with the levels.
    # Of rows on disk, which are together: `index` is of runs of rows.
    runs: Runs | None = None


@dataclass
class Grouping:
    """Variables that belong to the levels of one index of the rows."""

    names: list[str]
    levels: int
    own: dict[str, int]  # Axis of each variable with the levels.
    discrete: bool  # Whether one of them is,
    among_others: bool  # or is put among other values, as what is missing of a column.
    index: dict[int, np.ndarray] = field(default_factory=dict)  # Level of each row, or -1, by term,
    axes: dict[int, int] = field(default_factory=dict)  # the axis of the term with the rows,
    numbers: dict[int, int] = field(default_factory=dict)  # and how many elements each has.
    # Level of each element of these variables, or -1, and of others whose prior reads one of them.
    above: dict[str, np.ndarray] = field(default_factory=dict)
    links: set[tuple[str, str]] = field(default_factory=set)  # Of which prior reads which.
    # Elements of a variable that levels have, of shape (levels,) or (levels, k), -1 for none. Those
    # of others have one each.
    elements: dict[str, np.ndarray] = field(default_factory=dict)
    # Of rows on disk, where rows of each level are; `index` has levels of runs.
    runs: Runs | None = None

    def elements_of(self, name: str) -> np.ndarray:
        """Return which elements of a variable levels have, -1 for none."""
        return self.elements.get(name, np.arange(self.levels))

    @property
    def partial(self) -> bool:
        """Whether there are rows without a level, or levels without an element."""
        return bool(self.elements) or any((index < 0).any() for index in self.index.values())

    @property
    def rows(self) -> int:
        """Number of rows of all terms, of which each element is one."""
        if self.runs is not None:
            return sum(self.numbers.values()) * int(self.runs.lengths.sum())
        return sum(self.numbers[t] * int((i >= 0).sum()) for t, i in self.index.items())

    @property
    def rows_per_level(self) -> float:
        """Of levels with rows, on average."""
        return self.rows / max(len(self._with_rows), 1)

    @property
    def _with_rows(self) -> np.ndarray:
        index = np.concatenate([*self.index.values(), np.zeros(0, dtype=int)])
        return np.unique(index[index >= 0])

    @property
    def by_row(self) -> bool:
        """Whether each row of a term has a level of its own: no parameters of a subsample.

        Rows are along the longer axis of a term.
        """
        return self.runs is None and any(
            len(index) > self.numbers[t] and np.array_equal(index, np.arange(self.levels))
            for t, index in self.index.items()
        )

    @property
    def required(self) -> bool:
        """Whether its variables cannot be sampled as parameters."""
        return self.by_row or self.discrete or self.among_others

    @property
    def pays(self) -> bool:
        """Whether integrals cost less than parameters, or these cannot be sampled."""
        return self.required or pays(self.levels, self.rows_per_level)

    @property
    def described(self) -> str:
        """Names, levels with rows, and these rows."""
        names = " and ".join(map(repr, self.names))
        return f"{names} ({len(self._with_rows):,} levels of {self.rows_per_level:,.3g} rows)"


def pays(levels: int, rows_per_level: float) -> bool:
    """Whether integrals over variables of so many levels cost less than parameters."""
    return rows_per_level <= 1 or (levels / rows_per_level) ** 2 > _INTEGRATED


class NotLocal(Exception):
    """A variable is not local, for a reason."""


def of_uses(reading: Reading, name: str, found: Sequence[Use], *, among_others: bool) -> Grouping:
    """Return the grouping of a single variable, whose levels are its elements.

    Where rows read several of them, levels are what rows read together.
    """
    first = found[0]
    if any(use.runs is not first.runs for use in found):
        raise NotLocal("is read by several columns of rows on disk")
    discrete = is_discrete(reading.values[name])
    new = Grouping([name], first.levels, {name: first.own}, discrete, among_others)
    new.runs = first.runs
    several = [use for use in found if use.index.ndim > 1]
    level = np.arange(first.levels)  # Of each element.
    if several:
        places = several[0].index[(several[0].index >= 0).any(axis=1)]
        ordered = np.sort(places, axis=1)
        if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any():
            raise NotLocal(
                "is read twice by a row (fill an index of several rows up with rows in which "
                "nothing is missing)"
            )
        places = places[np.sort(np.unique(places, axis=0, return_index=True)[1])]
        level[:] = -1
        level[places[places >= 0]] = np.nonzero(places >= 0)[0]
        alone = np.flatnonzero(level < 0)
        level[alone] = len(places) + np.arange(len(alone))
        new.levels = len(places) + len(alone)
        rest = np.full((len(alone), places.shape[1]), -1)
        rest[:, 0] = alone
        new.elements[name] = np.concatenate([places, rest])
    for use in found:
        index = np.where(use.index >= 0, level[use.index], -1)
        if index.ndim > 1:
            index = index.max(axis=1)
            own = np.where(index[:, None] >= 0, new.elements[name][index], -1)
            if not np.array_equal(own, use.index):
                raise NotLocal("is read at several levels by a row")
        if isinstance(use.term, str):
            new.above[use.term] = index
            new.links.add((use.term, name))
        else:
            new.index[use.term], new.axes[use.term] = index, use.axis
            new.numbers[use.term] = use.numbers
    new.above[name] = level
    return new


def pairs(a: Grouping, b: Grouping, wanted: Collection[str] = ()) -> np.ndarray | None:
    """Return levels of two groupings that rows read together, (n, 2); None if they are not one.

    They are if to each level of one belongs at most one of the other. Where rows do not all have
    levels, both have to pay, or neither, unless both are `wanted`: what is missing of single rows
    is no reason to integrate over groups of many.
    """
    both = a.index.keys() & b.index.keys()
    above = a.above.keys() & b.above.keys()
    if a.runs is not b.runs:
        return None
    if not (both or above) or any(a.axes[term] != b.axes[term] for term in both):
        return None
    read = [(a.index[term], b.index[term]) for term in both]
    read += [(a.above[name], b.above[name]) for name in above]
    same = a.levels == b.levels and all(np.array_equal(x, y) for x, y in read)
    if same and not (a.partial or b.partial):
        return np.column_stack([np.arange(a.levels)] * 2)
    found = np.unique(np.concatenate([(x * b.levels + y)[(x >= 0) & (y >= 0)] for x, y in read]))
    both_levels = np.column_stack(np.divmod(found, b.levels))
    one_to_one = all(len(np.unique(x)) == len(both_levels) for x in both_levels.T)
    both_wanted = all(not set(wanted).isdisjoint(grouping.names) for grouping in (a, b))
    return both_levels if one_to_one and (a.pays == b.pays or both_wanted) else None


def are_apart(a: Grouping, b: Grouping) -> bool:
    """Whether two groupings must be integrated, and nothing reads both."""
    meet = not (a.index.keys() | a.above.keys()).isdisjoint(b.index.keys() | b.above.keys())
    return a.required and b.required and not meet and a.runs is None is b.runs


def joined(a: Grouping, b: Grouping, together: np.ndarray) -> Grouping:
    """Join two groupings whose levels are one where `together` says so."""
    alone = np.setdiff1d(np.arange(b.levels), together[:, 1])
    new = np.full(b.levels, -1)  # Number of each level of b.
    new[together[:, 1]] = together[:, 0]
    new[alone] = a.levels + np.arange(len(alone))
    levels = a.levels + len(alone)

    def moved(index: np.ndarray) -> np.ndarray:
        return np.where(index >= 0, new[index], -1)

    def both(x: dict, y: dict) -> dict:
        y = {key: moved(index) for key, index in y.items()}
        shared = {key: np.where(x[key] >= 0, x[key], y[key]) for key in x.keys() & y.keys()}
        return x | y | shared

    elements = {}
    for grouping, place in ((a, np.arange(a.levels)), (b, new)):
        for name in grouping.names:
            own = grouping.elements_of(name)
            found = np.full((levels, *own.shape[1:]), -1)
            found[place] = own
            if not np.array_equal(found, np.arange(levels)):
                elements[name] = found
    return Grouping(
        a.names + b.names,
        levels,
        a.own | b.own,
        a.discrete or b.discrete,
        a.among_others or b.among_others,
        both(a.index, b.index),
        a.axes | b.axes,
        a.numbers | b.numbers,
        both(a.above, b.above),
        a.links | b.links,
        elements,
        a.runs,
    )
