"""Values of local variables by level, and as the model has them."""

import numpy as np

from pymc_subsample.units.graphs import UnitGraphs


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
