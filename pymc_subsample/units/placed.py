"""Arrays that are put together of others, as of what is known and what is missing of a column.

What rows read of ``set_subtensor(known[where], x)``, or of arrays that are joined, is an index of
the elements of x, and some rows read none.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import AllocEmpty, Join, Nonzero
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)
from pytensor.tensor.type_other import NoneTypeT

from pymc_subsample.graph.concrete import depends_on, fold, on_disk, rebuild
from pymc_subsample.graph.nodes import index_entries
from pymc_subsample.graph.numpy_functions import evaluate
from pymc_subsample.model.errors import CoupledRows, TallModelError
from pymc_subsample.model.selection import data_input, pairs
from pymc_subsample.units.places import PLACES, at_rows, by_element, placed


def read_by_places(
    outputs: Sequence[Variable],
    arrays: dict[Variable, np.ndarray],
    values: Sequence[Variable],
    shortest: int,
) -> tuple[list[Variable], set[Variable]]:
    """Let rows read by an index what is put among others, in arrays of so many elements or more.

    ``set_subtensor(base[where], x)`` becomes ``switch(places >= 0, x[places], base)``. `arrays`,
    the data of the placeholders, gains the places. Returned are the graphs, and which of the values
    have elements that are put among others.
    """
    put: set[Variable] = set()

    def read(places: np.ndarray, y: Variable, base: Variable) -> Variable:
        while (chosen := _chosen(y, arrays)) is not None:
            y, rows = chosen
            places = np.where(places >= 0, rows[places], -1)
        put.update(by_element(y, arrays, values))
        if (places < 0).all():
            return base
        found = y[placed(places, arrays)]
        if _is_put_together(y) and places.ndim == 1:
            with suppress(CoupledRows, TallModelError):
                found = at_rows(y, places, arrays, values)
        if (places >= 0).all():
            return found
        has = data_input(places >= 0, arrays)
        more = ["x"] * (base.type.ndim - places.ndim)
        return pt.switch(has.dimshuffle(*range(places.ndim), *more), found, base)

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if isinstance(node.op, AllocEmpty):
            return [pt.zeros(inputs, node.outputs[0].type.dtype)]
        if isinstance(node.op, Nonzero):  # of a mask, so that it is known how many there are
            where = [_known(out, arrays) for out in node.op.make_node(*inputs).outputs]
            return None if where[0] is None else [data_input(x, arrays) for x in where]
        if isinstance(node.op, AdvancedSubtensor | Subtensor):
            found = _picked(node, inputs, arrays, values)
            return fold(node, inputs) if found is None else [found]
        if isinstance(node.op, Reshape) and node.outputs[0].type.ndim == 2:
            shape = node.op.make_node(*inputs).outputs[0].type.shape
            if None not in shape and np.prod(shape) == inputs[0].type.shape[0]:
                rows = np.arange(np.prod(shape)).reshape(shape)
                found = _side_by_side(inputs[0], rows, arrays, values)
                return fold(node, inputs) if found is None else [found]
        out = node.outputs[0].type
        puts = isinstance(node.op, Join | AdvancedIncSubtensor | IncSubtensor)
        if not puts or depends_on(inputs, values).isdisjoint(inputs) or not out.ndim:
            return fold(node, inputs)
        if isinstance(node.op, Join):
            lengths = [i.type.shape[0] for i in inputs]
            if None in lengths:
                return None
            ends = np.cumsum(lengths)
            if node.op.axis % out.ndim or None in out.shape or np.prod(out.shape) < shortest:
                return None
            found = pt.zeros(out.shape, out.dtype)
            for part, end in zip(inputs, ends, strict=True):
                start = end - part.type.shape[0]
                rows = np.arange(ends[-1])
                places = np.where((rows >= start) & (rows < end), rows - start, -1)
                found = read(places, part.astype(out.dtype), found)
            return [found]
        x, y = inputs[:2]
        if None in x.type.shape or np.prod(x.type.shape) < shortest:
            return None
        known = _places(node, inputs, arrays)
        return None if known is None else [read(known, y.astype(out.dtype), x)]

    return rebuild(outputs, {v: v for v in [*arrays, *values]}, hook), put


def _picked(
    node: Apply,
    inputs: Sequence[Variable],
    arrays: dict[Variable, np.ndarray],
    values: Sequence[Variable],
) -> Variable | None:
    """Let rows by a mask be numbers of rows, and pick rows of what is put together in its parts.

    None if an index does neither.
    """
    x, (entry, *others) = inputs[0], index_entries(node, inputs)
    if (both := pairs(node, inputs, arrays, set(values))) and by_element(x, arrays, values):
        chosen, *index = both
        with suppress(CoupledRows, TallModelError):
            found = at_rows(x, chosen, arrays, values)
            return found[tuple(data_input(i, arrays) for i in index)]
    ndim = getattr(entry, "ndim", 0)
    if any(_is_number(e) for e in others) and ndim == 1:
        rows_of_all = x[entry]  # x[g, 0] is x[g][:, 0]
        found = _picked(rows_of_all.owner, rows_of_all.owner.inputs, arrays, values)
        return None if found is None else found[(slice(None), *others)]
    if len(others) == 1 and getattr(others[0], "ndim", 0) == 1 and (_is_all(entry) or not ndim):
        rows_of_all = _transposed(x)[others[0]]  # x[0, g] is x.T[g][:, 0]
        found = _picked(rows_of_all.owner, rows_of_all.owner.inputs, arrays, values)
        return None if found is None else found[:, entry].T
    if not others and ndim == 2 and isinstance(entry, Variable) and entry.name != PLACES:
        known = _known(entry, arrays)
        if known is None or known.dtype.kind not in "iu":
            return None
        return _side_by_side(x, known, arrays, values)
    rows = _rows_of(node, inputs, arrays)
    if rows is None:
        return None
    if _is_put_together(x):
        with suppress(CoupledRows, TallModelError):
            return at_rows(x, rows, arrays, values)
    if not isinstance(entry, Variable) or entry.type.dtype != "bool":
        return None
    known = depends_on([x], values).isdisjoint([x])
    return x[data_input(rows, arrays) if known else placed(rows, arrays)]


def _side_by_side(
    x: Variable,
    index: np.ndarray,
    arrays: dict[Variable, np.ndarray],
    values: Sequence[Variable],
) -> Variable | None:
    """Return what is picked of what is put together, several elements to a row; None if unknown."""
    n = x.type.shape[0] if x.type.ndim == 1 else None
    if n is None or not _is_put_together(x) or index.min() < -n or index.max() >= n:
        return None
    with suppress(CoupledRows, TallModelError):
        found = at_rows(x, index % n, arrays, values)
        return found if found.type.shape == index.shape else None
    return None


def _transposed(x: Variable) -> Variable:
    turned = isinstance(x.owner_op, DimShuffle) and x.owner.op.new_order == (1, 0)
    return x.owner.inputs[0] if turned else x.T


def _is_put_together(x: Variable) -> bool:
    return any(v.name == PLACES for v in ancestors([x]))


def _chosen(
    x: Variable, arrays: Mapping[Variable, np.ndarray]
) -> tuple[Variable, np.ndarray] | None:
    """Return of what another array is rows, and which of its rows; None if it is none of these."""
    if not isinstance(x.owner_op, AdvancedSubtensor | Subtensor):
        return None
    rows = _rows_of(x.owner, x.owner.inputs, arrays)
    return None if rows is None else (x.owner.inputs[0], rows)


def _rows_of(
    node: Apply, inputs: Sequence[Variable], arrays: Mapping[Variable, np.ndarray]
) -> np.ndarray | None:
    """Return which rows an index picks along its first axis; None if that is not known, or not all.

    Numbers of rows are from 0 up.
    """
    x, (entry, *others) = inputs[0], index_entries(node, inputs)
    if x.type.shape[0] is None or any(not _is_all(e) for e in others) or _is_all(entry):
        return None
    if isinstance(entry, Variable) and (entry.type.ndim != 1 or entry.name == PLACES):
        return None
    known = _known(entry, arrays)
    rows = np.arange(x.type.shape[0])
    if known is None or not isinstance(known, slice | np.ndarray):
        return None
    with suppress(IndexError):  # beyond the last row: refused where rows are read
        return rows[known]
    return None


def _is_number(entry: slice | int | Variable) -> bool:
    return not isinstance(entry, slice) and getattr(entry, "ndim", 0) == 0


def _is_all(entry: object) -> bool:
    return isinstance(entry, slice) and entry == slice(None)


def _places(
    node: Apply, inputs: Sequence[Variable], arrays: Mapping[Variable, np.ndarray]
) -> np.ndarray | None:
    """Return which element, or row, of what is set stands where; None if that is not known.

    None too where each row is set in itself, as by columns.
    """
    x, y = inputs[:2]
    index = [_known(entry, arrays) for entry in index_entries(node, inputs)]
    while index and isinstance(index[-1], slice) and index[-1] == slice(None):
        index.pop()
    known = node.op.set_instead_of_inc and all(entry is not None for entry in index)
    if not known or not index or None in (*x.type.shape, *y.type.shape):
        return None
    if isinstance(index[0], slice) and index[0] == slice(None):
        return None
    if y.type.ndim == x.type.ndim > 1 == len(index) and y.type.shape[1:] == x.type.shape[1:]:
        places = np.full(x.type.shape[0], -1)
        places[index[0]] = np.arange(y.type.shape[0])
        return places
    if y.type.ndim != 1:
        return None
    places = np.full(x.type.shape, -1)
    places[tuple(index)] = np.arange(y.type.shape[0])
    return places


def _known(entry: slice | int | Variable, arrays: Mapping[Variable, np.ndarray]) -> Any:
    """Return an entry of an index as NumPy takes it, None if it is not made of data."""
    if isinstance(entry, slice):
        ends = [entry.start, entry.stop, entry.step]
        found = [None if _is_none(e) else _known(e, arrays) for e in ends]
        unknown = any(x is None and not _is_none(e) for x, e in zip(found, ends, strict=True))
        return None if unknown else slice(*(None if x is None else int(x) for x in found))
    if not isinstance(entry, Variable):
        return entry
    roots = [v for v in ancestors([entry]) if v.owner is None]
    if any(v not in arrays and not isinstance(v, Constant) for v in roots):
        return None
    if any(on_disk(arrays.get(v)) for v in roots):
        return None
    return evaluate([entry], arrays)[0]


def _is_none(end: object) -> bool:
    return end is None or (isinstance(end, Variable) and isinstance(end.type, NoneTypeT))
