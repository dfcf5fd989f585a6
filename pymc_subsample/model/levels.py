"""Order of levels and of columns: codes and matrices say nothing unless others have the same."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

import pymc as pm
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar.basic import Cast
from pytensor.tensor.math import Sum
from pytensor.tensor.subtensor import AdvancedSubtensor

from pymc_subsample.graph.nodes import index_entries, is_product
from pymc_subsample.model.axis_rules import carried_axes
from pymc_subsample.model.errors import CoupledRows, TallModelError
from pymc_subsample.rows.columns import StoredColumn
from pymc_subsample.rows.sources.blocks import word

_COORDS = "; or, if the model was not sampled yet, give it the coords of the rows"


def refuse_other_levels(
    model: pm.Model, graphs: Sequence[Variable], columns: Mapping[str, StoredColumn]
) -> None:
    """Refuse columns that index the same axis with levels in another order, or than its coords.

    `columns` are those that `pm.Data` of a name stands for. Codes of an axis agree if the first
    levels are the same: more of them may follow. Coords 0, 1, ... are taken for codes. Axes are
    told apart by the dimension, else by the array; what an index is computed from is not looked at.
    """
    known: dict[Hashable, list[tuple[str, str, str, Sequence]]] = {}
    order = [n for n, c in columns.items() if c.fields[0].levels and not c.row_shape]
    found = [(name, axis) for name, axis in _indexed(model, graphs) if name in order]
    for name, axis in sorted(dict.fromkeys(found), key=lambda x: order.index(x[0])):
        own = columns[name].fields[0].levels or ()
        if axis not in known:
            said = f"the model's coords of {axis!r}", f"model.coords[{axis!r}]", _COORDS
            known[axis] = [(*said, given)] if (given := _labels(model, axis)) else []
        field, path = columns[name].fields[0].name, columns[name].store.path
        called = repr(field) if field == name else f"{field!r} ({name!r} in the model)"
        what = f"column {called} of {path}"
        for other, source, more, first in known[axis]:
            for k, (a, b) in enumerate(zip(first, own, strict=False)):
                if str(a) != str(b) and a != b:
                    raise TallModelError(
                        f"Code {k} stands for level {a!r} in {other}, and for level {b!r} in "
                        f"{what}, and both index the same parameters. Make the latter with "
                        f"categorical={{{field!r}: list({source})}}, new levels after these{more}."
                    )
        known[axis].append((f"{what} (first)", f"first.coords[{field!r}]", "", own))


def indexed_levels(model: pm.Model, graphs: Sequence[Variable]) -> dict[str, dict[str, list]]:
    """Return by the name of each `pm.Data` that is an index as it is: by dimension, its labels."""
    found: dict[str, dict[str, list]] = {}
    for name, axis in _indexed(model, graphs):
        if labels := _labels(model, axis):
            found.setdefault(name, {})[str(axis)] = labels
    return found


def column_names(model: pm.Model, graphs: Sequence[Variable]) -> dict[str, list[str]]:
    """Return by the name of each `pm.Data` with rows first: the coords of its columns.

    These are of its own dimension, else of that of the parameters over which a product is added up.
    """
    dims = model.named_vars_to_dims
    found = [(v.name, dim) for v in model.data_vars for dim in (dims.get(v.name) or ())[1:2]]
    for v in ancestors(graphs):
        if v.owner is None:
            continue
        [first, *rest] = v.owner.inputs
        added: list[list[tuple[Any, int]]] = []
        if is_product(v.owner):
            added = [[(first, first.type.ndim - 1), (rest[0], max(rest[0].type.ndim - 2, 0))]]
        elif isinstance(v.owner.op, Sum):
            over = range(first.type.ndim) if v.owner.op.axis is None else v.owner.op.axis
            added = [[(first, axis)] for axis in over]
        for places in added:
            axes = [axis for place in places for axis in _axes(model, *place)]
            data = [a for a in axes if isinstance(a, tuple) and a[0] in model.data_vars]
            found += product([x.name for x, k in data if k == 1], set(axes).difference(data))
    labels = [(name, _labels(model, dim)) for name, dim in found]
    return {
        name: own
        for name, own in reversed(labels)
        if own and all(isinstance(x, str) for x in own) and len(set(own)) == len(own)
    }


def _labels(model: pm.Model, axis: Hashable) -> list:
    """Return the coords of a dimension; none if there are none, or they are 0, 1, ..."""
    given = [word(c) for c in model.coords.get(axis) or ()]
    return [] if given == list(range(len(given))) else given


def _indexed(model: pm.Model, graphs: Sequence[Variable]) -> Iterator[tuple[str, Hashable]]:
    """Yield names of `pm.Data` that are an index as they are, and the axis that they index."""
    for node, axis, index in indexed(graphs):
        if index in model.data_vars:
            yield from ((index.name, found) for found in _axes(model, node.inputs[0], axis))


def indexed(graphs: Sequence[Variable]) -> Iterator[tuple[Apply, int, Variable]]:
    """Yield where arrays are indexed by arrays: the node, the axis, and the `unconverted` index."""
    for node in toposort(graphs):
        if isinstance(node.op, AdvancedSubtensor):
            for axis, entry in enumerate(index_entries(node)):
                if isinstance(entry, Variable):
                    yield node, axis, unconverted(entry)


def unconverted(x: Variable) -> Variable:
    """Return what is behind conversions of type."""
    while isinstance(getattr(getattr(x.owner, "op", None), "scalar_op", None), Cast):
        [x] = x.owner.inputs
    return x


def _axes(model: pm.Model, table: Any, axis: int) -> Iterator[Hashable]:
    """Yield the dimensions that an axis is of, or the arrays."""
    queue = [(table, axis)]
    for x, k in queue:  # which grows
        named = model.named_vars.get(x.name) is x
        dims = model.named_vars_to_dims.get(x.name) if named else None
        if dims is not None and dims[k] is not None:
            yield dims[k]
            continue
        before: list[tuple[Any, int | None]] = []
        if x.owner is not None:
            with suppress(CoupledRows):
                before = [*zip(x.owner.inputs, carried_axes(x.owner.op, x.owner, k), strict=True)]
        if not before:
            yield x, k
        queue += [(i, a) for i, a in before if a is not None and (i, a) not in queue]
