"""Local variables: those each of whose elements belongs to few rows, given the others.

A variable is one where every row reads it by the row's level of one grouping, ``z[customer]``, or
by the row itself, or not at all, as what is missing in other rows; and where a level's elements are
independent of other levels' a priori.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.subtensor import AdvancedSubtensor

from pymc_subsample.graph.concrete import depends_on
from pymc_subsample.graph.nodes import index_entries
from pymc_subsample.graph.numpy_functions import evaluate
from pymc_subsample.model import TallModelError
from pymc_subsample.model.errors import CoupledRows, op_name
from pymc_subsample.model.trace import RowTrace
from pymc_subsample.units.placed import PLACES
from pymc_subsample.units.reading import Reading, standardised
from pymc_subsample.units.states import Endless, is_discrete, values_of

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


@dataclass
class Grouping:
    """Variables that belong to the levels of one index of the rows."""

    names: list[str]
    levels: int
    own: dict[str, int]  # Axis of each variable with the levels.
    discrete: bool  # Whether one of them is.
    index: dict[int, np.ndarray] = field(default_factory=dict)  # Level of each row, or -1, by term,
    axes: dict[int, int] = field(default_factory=dict)  # the axis of the term with the rows,
    numbers: dict[int, int] = field(default_factory=dict)  # and how many elements each has.
    # Level of each element of these variables, or -1, and of others whose prior reads one of them.
    above: dict[str, np.ndarray] = field(default_factory=dict)
    links: set[tuple[str, str]] = field(default_factory=set)  # Of which prior reads which.
    # Elements of a variable that levels have, of shape (levels,) or (levels, k), -1 for none. Those
    # of others have one each.
    elements: dict[str, np.ndarray] = field(default_factory=dict)

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
        return sum(self.numbers[t] * int((i >= 0).sum()) for t, i in self.index.items())

    @property
    def rows_per_level(self) -> float:
        """Of levels with rows, on average."""
        index = np.concatenate([*self.index.values(), np.zeros(0, dtype=int)])
        return self.rows / max(len(np.unique(index[index >= 0])), 1)

    @property
    def by_row(self) -> bool:
        """Whether each row of a term has a level of its own: no parameters of a subsample.

        Rows are along the longer axis of a term.
        """
        return any(
            len(index) > self.numbers[t] and np.array_equal(index, np.arange(self.levels))
            for t, index in self.index.items()
        )

    @property
    def required(self) -> bool:
        """Whether its variables cannot be sampled as parameters."""
        return self.by_row or self.discrete or self.partial

    @property
    def pays(self) -> bool:
        """Whether integrals cost less than parameters, or these cannot be sampled."""
        return self.required or pays(self.levels, self.rows_per_level)

    @property
    def described(self) -> str:
        """Names, levels and rows."""
        names = " and ".join(map(repr, self.names))
        return f"{names} ({self.levels:,} levels of {self.rows_per_level:,.3g} rows)"


def pays(levels: int, rows_per_level: float) -> bool:
    """Whether integrals over variables of so many levels cost less than parameters."""
    return rows_per_level <= 1 or (levels / rows_per_level) ** 2 > _INTEGRATED


def find_groupings(reading: Reading) -> tuple[list[Grouping], dict[str, str]]:
    """Return groupings, and of all other free variables why they are not local.

    Rows read what enters the location and the scale of a variable where they read that.
    """
    reading = standardised(reading, list(reading.forms))
    reasons: dict[str, str] = {}
    uses: dict[str, list[Use]] = {}
    for name, value in reading.values.items():
        try:
            uses[name] = _uses_of(reading, name, value)
        except NotLocal as error:
            reasons[name] = str(error)
    groupings: list[Grouping] = []
    for name, found in uses.items():
        try:
            new = _of_uses(reading, name, found)
        except NotLocal as error:
            reasons[name] = str(error)
            continue
        for grouping in groupings[:]:
            if (pairs := _pairs(grouping, new)) is not None:
                groupings.remove(grouping)
                new = _joined(grouping, new, pairs)
        groupings.append(new)
    return _without_parents(reading, groupings, reasons), reasons


def _of_uses(reading: Reading, name: str, found: Sequence[Use]) -> Grouping:
    """Return the grouping of a single variable, whose levels are its elements.

    Where rows read several of them, levels are rows.
    """
    first = found[0]
    new = Grouping([name], first.levels, {name: first.own}, is_discrete(reading.values[name]))
    several = [use for use in found if use.index.ndim > 1]
    level = np.arange(first.levels)  # Of each element.
    if several:
        places = several[0].index[(several[0].index >= 0).any(axis=1)]
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


def _pairs(a: Grouping, b: Grouping) -> np.ndarray | None:
    """Return levels of two groupings that rows read together, (n, 2); None if they are not one.

    They are if to each level of one belongs at most one of the other. Where rows do not all have
    levels, both have to pay, or neither: what is missing of single rows is no reason to integrate
    over groups of many.
    """
    both = a.index.keys() & b.index.keys()
    above = a.above.keys() & b.above.keys()
    if not (both or above) or any(a.axes[term] != b.axes[term] for term in both):
        return None
    read = [(a.index[term], b.index[term]) for term in both]
    read += [(a.above[name], b.above[name]) for name in above]
    same = a.levels == b.levels and all(np.array_equal(x, y) for x, y in read)
    if same and not (a.partial or b.partial):
        return np.column_stack([np.arange(a.levels)] * 2)
    found = np.unique(np.concatenate([(x * b.levels + y)[(x >= 0) & (y >= 0)] for x, y in read]))
    pairs = np.column_stack(np.divmod(found, b.levels))
    one_to_one = all(len(np.unique(column)) == len(pairs) for column in pairs.T)
    return pairs if one_to_one and a.pays == b.pays else None


def _joined(a: Grouping, b: Grouping, pairs: np.ndarray) -> Grouping:
    """Join two groupings whose levels are one where `pairs` say so."""
    alone = np.setdiff1d(np.arange(b.levels), pairs[:, 1])
    new = np.full(b.levels, -1)  # Number of each level of b.
    new[pairs[:, 1]] = pairs[:, 0]
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
        both(a.index, b.index),
        a.axes | b.axes,
        a.numbers | b.numbers,
        both(a.above, b.above),
        a.links | b.links,
        elements,
    )


class NotLocal(Exception):
    """A variable is not local, for a reason."""


def _uses_of(reading: Reading, name: str, value: Variable) -> list[Use]:
    """Return how terms read a variable; raise `NotLocal` with a reason if it is not local."""
    op = op_name(reading.model[name].owner.op)
    if value.type.ndim == 0:
        raise NotLocal("is a single number")
    if op.startswith("ZeroSumNormal"):
        raise NotLocal(
            "is a ZeroSumNormal: its levels add up to zero, so that they depend on each other. "
            "Give it a normal prior, whose mean the intercept takes"
        )
    found = [_use(reading, i, name, value) for i, term in enumerate(reading.terms)
             if value in ancestors([term.graph])]  # fmt: skip
    found += _uses_in_priors(reading, name, value)
    if all(isinstance(use.term, str) and (use.index >= 0).all() for use in found):
        raise NotLocal("is read by no rows")
    if len({(use.levels, use.own) for use in found}) > 1:
        raise NotLocal("has its levels on two axes")
    _check_prior(reading, name, value, found[0].own)
    if is_discrete(value):
        try:
            values_of(reading, name)
        except Endless as error:
            raise NotLocal(str(error)) from None
    return found


def _check_prior(reading: Reading, name: str, value: Variable, own: int) -> None:
    prior, trace = reading.priors[name], reading.trace()
    if prior.type.ndim <= own or prior.type.shape[own] != value.type.shape[own]:
        raise NotLocal(f"has a prior in which levels depend on each other ({_op(reading, name)})")
    try:
        trace.follow(prior, own)
        trace.refuse_reductions(depends_on([prior], [value]), value.type.shape[own])
    except (CoupledRows, TallModelError):
        trace.axes.pop(value, None)
    if trace.axes.get(value) != own:
        raise NotLocal(f"has a prior in which levels depend on each other ({_op(reading, name)})")


def _op(reading: Reading, name: str) -> str:
    return op_name(reading.model[name].owner.op)


def _use(reading: Reading, position: int, name: str, value: Variable) -> Use:
    """Return how the rows of a term read a variable, along the first axis on which they do."""
    term = reading.terms[position]
    axes = sorted((a for a, n in enumerate(term.shape) if n > 1), key=lambda a: -term.shape[a])
    reason = NotLocal(f"is read by {term.name!r}, which has no rows")
    for axis in axes:
        trace = reading.trace()
        try:
            trace.follow(term.graph, axis)
        except CoupledRows as error:
            reason = NotLocal(f"is read by {term.name!r}, whose rows are coupled by {error}")
            continue
        try:
            index, levels, own = _read_by(reading, trace, term.graph, axis, value)
            numbers = int(np.prod(term.shape)) // term.shape[axis]
            return Use(position, axis, index, levels, numbers, own)
        except NotLocal as error:
            reason = NotLocal(f"{error} in {term.name!r}")
    raise reason


def _uses_in_priors(reading: Reading, name: str, value: Variable) -> list[Use]:
    """Return how elements of other variables read a variable in their prior, where that is known.

    Where it isn't, the variable is none of their level.
    """
    found = []
    for child, prior in reading.priors.items():
        if child == name or value not in ancestors([prior]):
            continue
        for axis in range(reading.values[child].type.ndim):
            trace = reading.trace()
            try:
                trace.follow(prior, axis)
                read = _read_by(reading, trace, prior, axis, value)
            except (CoupledRows, NotLocal):
                continue
            if trace.axes.get(reading.values[child]) == axis and read[0].ndim == 1:
                found.append(Use(child, axis, read[0], *read[1:2], 1, read[2]))
                break
    return found


def gathers(trace: RowTrace, graph: Variable, values: Sequence[Variable]) -> dict[Apply, Variable]:
    """Return nodes with rows that read tables made of `values`, and those tables.

    Raises `NotLocal` where rows read them in another way than by an index.
    """
    found: dict[Apply, Variable] = {}
    above = depends_on([graph], values)
    for node in toposort([graph]):
        if node.outputs[0] not in trace.axes or trace.stop(node.outputs[0]):
            continue
        for position, table in enumerate(node.inputs):
            if table in trace.axes or table not in above:
                continue
            if position or not isinstance(node.op, AdvancedSubtensor):
                raise NotLocal("is read as a whole by each row")
            found[node] = table
    return found


def level_axis(trace: RowTrace, node: Apply) -> tuple[int, Variable]:
    """Return the axis of a table that rows index by their level, and the index."""
    entries = index_entries(node)
    arrays = [(i, e) for i, e in enumerate(entries) if isinstance(e, Variable)]
    ours = [(i, e) for i, e in arrays if e in trace.axes]
    if len(ours) != 1:
        raise NotLocal("is indexed by several columns at once")
    [(axis, entry)] = ours
    others = [e for i, e in arrays if i != axis]
    several = entry.type.ndim == 2 and entry.name == PLACES and node.inputs[0].type.ndim == 1
    if not (entry.type.ndim == 1 or several) or not trace.stop(entry):
        raise NotLocal("is read at several levels by a row")
    if any(not isinstance(e, Constant) or e.type.ndim for e in others):
        raise NotLocal("is indexed by several arrays at once")
    return axis, entry


def _read_by(
    reading: Reading, trace: RowTrace, graph: Variable, axis: int, value: Variable
) -> tuple[np.ndarray, int, int]:
    """Return the level of each row, the number of levels, and their axis."""
    tables = gathers(trace, graph, [value])
    n_rows = graph.type.shape[axis]
    if value in trace.axes:
        if tables:
            raise NotLocal("is read by each row at its own and at other levels")
        return np.arange(n_rows), n_rows, trace.axes[value]
    found: tuple[np.ndarray, int, int] | None = None
    for node, table in tables.items():
        level, entry = level_axis(trace, node)
        levels, own = table.type.shape[level], reading.trace()
        try:
            own.follow(table, level)
        except CoupledRows as error:
            raise NotLocal(f"is read through {error}, which mixes its levels,") from None
        if value not in own.axes or gathers(own, table, [value]):
            raise NotLocal("is read through what mixes its levels")
        [index] = evaluate([entry], reading.arrays)
        if entry.name != PLACES:
            index = np.where(index < 0, index + levels, index)
        use = index, levels, own.axes[value]
        if found is not None and use[1:] == found[1:] and use[0].shape == found[0].shape:
            # Of what is put in several places, a row may read what is in one of them.
            both = np.where(found[0] >= 0, found[0], use[0])
            use = both, *use[1:]
            if (use[0] == np.where(index >= 0, index, both)).all():
                found = use
                continue
        if found is not None:
            raise NotLocal("is read at several levels by a row")
        found = use
    if found is None:
        raise NotLocal("is not read by the level of a row")
    return found


def _without_parents(
    reading: Reading, groupings: list[Grouping], reasons: dict[str, str]
) -> list[Grouping]:
    """Leave out variables that enter the prior of others, unless level by level of one grouping."""
    for grouping in groupings:
        for name in list(grouping.names):
            children = [
                child
                for child, prior in reading.priors.items()
                if child != name and reading.values[name] in ancestors([prior])
            ]
            other = next((c for c in children if not _follows(grouping, name, c)), None)
            if other is not None:
                grouping.names.remove(name)
                grouping.elements.pop(name, None)
                reasons[name] = f"enters the prior of {other!r}, which is not one of its level"
    return [grouping for grouping in groupings if grouping.names]


def _follows(grouping: Grouping, parent: str, child: str) -> bool:
    """Whether the prior of a variable reads another level by level."""
    return child in grouping.names and (child, parent) in grouping.links
