"""Local variables: those each of whose elements belongs to few rows, given the others.

A variable is one where every row reads it by the row's level of one grouping, ``z[customer]``, or
by the row itself, or not at all, as what is missing in other rows; and where a level's elements are
independent of other levels' a priori.
"""

from collections.abc import Collection, Sequence

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.subtensor import AdvancedSubtensor

from pymc_subsample.graph.concrete import depends_on
from pymc_subsample.graph.nodes import index_entries
from pymc_subsample.graph.numpy_functions import evaluate
from pymc_subsample.model import TallModelError
from pymc_subsample.model.errors import CoupledRows, op_name
from pymc_subsample.model.set_axes import adds
from pymc_subsample.model.trace import RowTrace
from pymc_subsample.rows.runs import NotTogether, Runs, find_runs
from pymc_subsample.units.groupings import (
    Grouping,
    NotLocal,
    Use,
    are_apart,
    joined,
    of_uses,
    pairs,
    pays,
)
from pymc_subsample.units.parents import without_parents
from pymc_subsample.units.places import PLACES
from pymc_subsample.units.reading import Reading
from pymc_subsample.units.standardised import standardised
from pymc_subsample.units.states import Endless, is_discrete, values_of
from pymc_subsample.units.stored_rows import reads_disk, stored_index

_DIFFERENCES = (
    " (take differences between rows, as for AR errors, within a level: e[k] - rho * e[k - 1], "
    "where k holds the rows that follow one of the same level)"
)


class SeveralLevels(NotLocal):
    """Rows read a variable by an index of several elements."""


def find_groupings(
    reading: Reading, wanted: Collection[str] = ()
) -> tuple[list[Grouping], dict[str, str]]:
    """Return groupings, and of all other free variables why they are not local.

    Rows read what enters the location and the scale of a variable where they read that. Variables
    that are `wanted` are in one grouping wherever that may be.
    """
    given, reading = reading, standardised(reading, list(reading.values))
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
            new = of_uses(reading, name, found, among_others=name in reading.among_others)
        except NotLocal as error:
            reasons[name] = str(error)
            continue
        for grouping in groupings[:]:
            if (together := pairs(grouping, new, wanted)) is not None:
                groupings.remove(grouping)
                new = joined(grouping, new, together)
        groupings.append(new)
    groupings = without_parents(given, reading, groupings, reasons)
    # Last, since a third may belong to the levels of both.
    whole: list[Grouping] = []
    for new in groupings:
        other = next((g for g in whole if are_apart(g, new)), None)
        if other is not None:
            whole.remove(other)
            new = joined(other, new, np.empty((0, 2), dtype=int))
        whole.append(new)
    return whole, reasons


def _uses_of(reading: Reading, name: str, value: Variable) -> list[Use]:
    """Return how terms read a variable; raise `NotLocal` with a reason if it is not local."""
    op = op_name(reading.model[name].owner.op)
    if value.type.ndim == 0:
        raise NotLocal("is a single number")
    if set(value.type.shape) == {1}:
        raise NotLocal(
            "has a single element, which cannot be distinguished from what all rows read"
        )
    if op.startswith("ZeroSumNormal"):
        raise NotLocal(
            "is a ZeroSumNormal: its levels add up to zero, so that they depend on each other. "
            "Give it a normal prior, whose mean the intercept takes"
        )
    if 0 in value.type.shape:
        raise NotLocal("has no elements")
    axes = [axis for axis in range(value.type.ndim) if _is_independent(reading, name, axis)]
    found = [_use(reading, i, value, axes) for i, term in enumerate(reading.terms)
             if value in ancestors([term.graph])]  # fmt: skip
    found += _uses_in_priors(reading, name, value)
    if all(isinstance(use.term, str) and (use.index >= 0).all() for use in found):
        raise NotLocal("is read by no rows")
    if len({(use.levels, use.own) for use in found}) > 1:
        raise NotLocal("has its levels on two axes")
    if found[0].own not in axes:
        raise NotLocal(f"has a prior in which levels depend on each other ({op})")
    if is_discrete(value):
        try:
            values_of(reading, name)
        except Endless as error:
            raise NotLocal(str(error)) from None
    return found


def _is_independent(reading: Reading, name: str, axis: int) -> bool:
    """Whether elements of a variable along an axis are independent in its prior."""
    prior, value, trace = reading.priors[name], reading.values[name], reading.trace()
    if prior.type.ndim <= axis or prior.type.shape[axis] != value.type.shape[axis]:
        return False
    try:
        trace.follow(prior, axis)
        trace.refuse_reductions(depends_on([prior], [value]), value.type.shape[axis])
    except (CoupledRows, TallModelError):
        return False
    return trace.axes.get(value) == axis


def _use(reading: Reading, position: int, value: Variable, levels_on: Sequence[int]) -> Use:
    """Return how the rows of a term read a variable, along the first axis on which they do.

    The first on which its levels are on one of some axes, if there is one.
    """
    term = reading.terms[position]
    axes = sorted((a for a, n in enumerate(term.shape) if n > 1), key=lambda a: -term.shape[a])
    reason, other = NotLocal(f"is read by {term.name!r}, which has no rows"), None
    for axis in axes:
        trace = reading.trace()
        try:
            trace.follow(term.graph, axis)
        except CoupledRows as error:
            reason = NotLocal(f"is read by {term.name!r}, {_coupled(error)}")
            continue
        try:
            index, levels, own, runs = _read_by(reading, trace, term.graph, axis, value)
            numbers = int(np.prod(term.shape)) // term.shape[axis]
            found = Use(position, axis, index, levels, numbers, own, runs)
            if own in levels_on:
                return found
            other = other or found
        except NotLocal as error:
            reason = NotLocal(f"{error} in {term.name!r}")
    if other is None:
        raise reason
    return other


def _coupled(error: CoupledRows) -> str:
    if adds(error.node):
        return (
            "which adds up sets of rows (put the rows of a set side by side, x[rows] where `rows`, "
            "of shape (sets, rows of a set), fills smaller sets up with rows in which nothing is "
            "missing, and leave these out by pt.where(is_row, u, -np.inf))"
        )
    return f"whose rows are coupled by {error.cause}"


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
                found.append(Use(child, axis, read[0], *read[1:2], 1, read[2], read[3]))
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
        raise SeveralLevels("is read at several levels by a row")
    if any(not isinstance(e, Constant) or e.type.ndim for e in others):
        raise NotLocal("is indexed by several arrays at once")
    return axis, entry


def _several(reading: Reading, value: Variable, instead: str = "") -> NotLocal:
    """Return why a variable of which rows read several elements is not local; what to write."""
    if any(reading.values[name] is value for name in reading.among_others):
        instead = (
            " (give each column a distribution of its own, and read all that a row needs of it by "
            "one index, x[rows] where `rows` has the shape (rows, elements of a row), before "
            "columns are put together: b[0] * x[rows] + b[1] * w[rows])"
        )
    return NotLocal(f"is read at several levels by a row{instead}")


def _read_by(
    reading: Reading, trace: RowTrace, graph: Variable, axis: int, value: Variable
) -> tuple[np.ndarray, int, int, Runs | None]:
    """Return the level of each row, the number of levels, and their axis.

    Of rows on disk, levels are those of runs of rows, which are returned, too.
    """
    tables = gathers(trace, graph, [value])
    n_rows = graph.type.shape[axis]
    if value in trace.axes:
        if tables:
            raise NotLocal("is read by each row at its own and at other levels")
        return np.arange(n_rows), n_rows, trace.axes[value], None
    found: tuple[np.ndarray, int, int] | None = None
    runs: Runs | None = None
    for node, table in tables.items():
        try:
            level, entry = level_axis(trace, node)
        except SeveralLevels:
            raise _several(reading, value) from None
        levels, own = table.type.shape[level], reading.trace()
        try:
            own.follow(table, level)
        except CoupledRows as error:
            raise NotLocal(f"is read through {error}, which mixes its levels,") from None
        if value not in own.axes or gathers(own, table, [value]):
            raise NotLocal("is read through what mixes its levels")
        if reads_disk(entry, reading.arrays):
            index = (runs := _runs(reading, entry, levels)).levels
        else:
            # Types of codes may have no room for the number of levels.
            index = evaluate([entry], reading.arrays)[0].astype(np.int64)
            index = np.moveaxis(index, trace.axes[entry], 0)
        if entry.name != PLACES:
            _refuse_outside(reading, value, index, levels)
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
            raise _several(reading, value, _DIFFERENCES)
        found = use
    if found is None:
        raise NotLocal("is not read by the level of a row")
    return *found, runs


def _refuse_outside(reading: Reading, value: Variable, index: np.ndarray, levels: int) -> None:
    low, high = int(index.min(initial=0)), int(index.max(initial=0))
    if low < -levels or high >= levels:
        name = next(n for n, v in reading.values.items() if v is value)
        raise TallModelError(
            f"An index of {name!r} points outside the array: it goes from {low:,} to {high:,}, and "
            f"{name!r} has {levels:,} elements along that axis, 0 to {levels - 1:,}. Number levels "
            "without gaps, as pd.factorize does, or give the variable more elements."
        )


def _runs(reading: Reading, entry: Variable, levels: int) -> Runs:
    """Return where rows on disk of each level are; raise `NotLocal` if they are not together."""
    column = stored_index(entry, reading.arrays)
    if column is None:
        raise NotLocal(
            "is indexed by what the model computes of columns on disk. Make a column of it, by "
            "which the rows are kept together,"
        )
    name, rows = column.fields[0].name, len(column)
    if column.offsets[0] not in reading.runs:
        low, high = column.statistic("low"), column.statistic("high")
        if low < 0 or high >= levels:
            raise NotLocal(f"is indexed by {name!r}, which has numbers from {low} to {high},")
        try:
            reading.runs[column.offsets[0]] = find_runs(column)
        except NotTogether as error:
            said = (
                f"is read by the levels of {name!r} in {column.store.path}, whose rows are not "
                f"together: {error}. Make the rows with by={name!r}, which sorts them"
            )
            if pays(levels, max(1.0, rows / levels)):
                reading.apart.append(said)
            raise NotLocal(said) from None
    return reading.runs[column.offsets[0]]
