"""Arrays by unit: rows, those of each next to each other, and variables of levels."""

from dataclasses import dataclass

import numpy as np

from pymc_subsample.units.graphs import RowGraph, UnitGraphs


@dataclass(frozen=True)
class Part:
    """Rows of one graph, those of a unit next to each other."""

    columns: list[np.ndarray]  # Each with its rows along the axis of the graph's column.
    unit: np.ndarray  # Position of each row's unit.
    rows: np.ndarray  # Which of the graph's rows they are,
    times: np.ndarray  # and how often each counts.


def part_of(part: RowGraph, levels: np.ndarray, position: np.ndarray) -> Part:
    """Return rows of units of these levels; `position` is that of each level, -1 for others."""
    if part.stored is not None:
        return Part(*part.stored.read(levels))
    unit = position[part.index]
    rows = np.flatnonzero(unit >= 0)
    rows = rows[np.argsort(unit[rows], kind="stable")]
    columns = [np.take(c.array, rows, axis=c.axis) for c in part.columns.values()]
    return Part(columns, unit[rows], rows, part.times[rows])


def among(part: RowGraph, data: Part, units: np.ndarray, n_units: int) -> Part:
    """Return rows of some units, by position, any of them several times."""
    counts = np.bincount(data.unit, minlength=n_units)
    own, before = counts[units], (np.cumsum(counts) - counts)[units]
    within = np.arange(own.sum()) - np.repeat(np.cumsum(own) - own, own)
    rows = within + np.repeat(before, own)
    columns = [
        np.take(x, rows, axis=column.axis)
        for x, column in zip(data.columns, part.columns.values(), strict=True)
    ]
    unit = np.repeat(np.arange(len(units)), own)
    return Part(columns, unit, data.rows[rows], data.times[rows])


def sums(values: np.ndarray, data: Part, units: int) -> np.ndarray:
    """Add values of rows up over the rows of each unit."""
    return np.bincount(data.unit, weights=values * data.times, minlength=units)


def by_level(graphs: UnitGraphs, name: str, u: np.ndarray) -> np.ndarray:
    """Return a variable as the model has it, of levels' variables (levels, size)."""
    values = u[:, graphs.places[name]].reshape(len(u), *graphs.shapes[name])
    kind = graphs.reading.values[name].type.dtype
    return np.moveaxis(values, 0, graphs.grouping.own[name]).astype(kind, copy=False)


def variable_of(graphs: UnitGraphs, name: str, u: np.ndarray) -> np.ndarray:
    """Return a variable as a whole, of the variables of all levels, in their order."""
    if name not in graphs.grouping.elements:
        return by_level(graphs, name, u)
    value, own = graphs.reading.values[name], graphs.grouping.own[name]
    elements = graphs.grouping.elements[name]
    shape = graphs.shapes[name][elements.ndim - 1 :]
    each = u[:, graphs.places[name]].reshape(*elements.shape, *shape)
    whole = np.zeros((value.type.shape[own], *each.shape[elements.ndim :]))
    whole[elements[elements >= 0]] = each[elements >= 0]
    return np.moveaxis(whole, 0, own).astype(value.type.dtype, copy=False)


def levels_of(graphs: UnitGraphs, name: str, whole: np.ndarray) -> np.ndarray:
    """Return the elements of a variable that each level has, (levels, ...); zero for none."""
    elements = graphs.grouping.elements_of(name)
    moved = np.moveaxis(whole, graphs.grouping.own[name], 0)
    has = (elements >= 0).reshape(*elements.shape, *[1] * (moved.ndim - 1))
    found = np.where(has, moved[np.maximum(elements, 0)], 0)
    return found.reshape(len(elements), -1)
