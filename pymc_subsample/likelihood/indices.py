"""Negative numbers in indices of rows: codes of what is missing, which count from the end."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar.basic import Cast
from pytensor.tensor.subtensor import AdvancedSubtensor, unflatten_index_variables
from pytensor.xtensor.type import XTensorType

from pymc_subsample.data.columns import Column
from pymc_subsample.likelihood.binding import listed
from pymc_subsample.likelihood.errors import TallModelError
from pymc_subsample.symbolic.graph import (
    ConcreteGraph,
    concretize,
    depends_on,
    evaluate,
    on_disk,
)
from pymc_subsample.warning import warn


class Negative(NamedTuple):
    """An index of rows that has negative numbers."""

    which: str  # The index, and where.
    length: int  # Of what it indexes.
    entries: list[str]  # What that is, with its last level where it is known.


def warn_about_negative(found: Iterable[Negative]) -> None:
    """Warn of `negative_codes`."""
    for entry in found:
        warn(_told(*entry))


def warn_of_model(model: pm.Model, terms: Sequence[Variable]) -> None:
    """Warn of a model that was not read, of whose terms the longest axis has rows.

    What cannot be evaluated is refused by who reads it.
    """
    with suppress(NotImplementedError, RuntimeError, ValueError):
        graphs = model.logp(vars=list(terms), sum=False)
        graphs = [g.values if isinstance(g.type, XTensorType) else g for g in graphs]
        concrete = concretize(graphs, model.value_vars, model.initial_point())
        lengths = {max(g.type.shape) for g in concrete.outputs if g.type.shape}
        warn_about_negative(negative_codes(concrete, lengths, model))


def _told(which: str, length: int, entries: list[str]) -> str:
    of = f" of {' and '.join(dict.fromkeys(entries))}" if entries else ""
    return (
        f"{which}, where it counts from the end: -1 is the last of {length:,} entries{of}. So "
        "pandas codes what is missing, as in pd.Categorical(...).codes. Leave these rows out, or "
        "give what is missing a level of its own; where the last entry is meant, write its number."
    )


def negative_codes(
    concrete: ConcreteGraph, lengths: Collection[int], model: pm.Model
) -> list[Negative]:
    """Find where codes of rows, of which there are `lengths`, index parameters from their end.

    So they do in NumPy and PyMC: -1, with which pandas codes what is missing, reads the last level.
    A column on disk is refused. What an index is computed from may be negative.
    """
    found: dict[tuple[str, int], list[str]] = {}
    for table, axis, index in _of_rows(concrete, lengths):
        above = set(ancestors([index]))
        sources = {concrete.roots[v]: x for v, x in concrete.arrays.items() if v in above}
        names = listed([v.name for v in sources if v in model.data_vars])
        if any(on_disk(x) for x in sources.values()):
            if index in concrete.arrays:
                _refuse(names, concrete.arrays[index])
            continue
        value = concrete.arrays.get(index)
        value = evaluate([index], concrete.arrays)[0] if value is None else value
        if value.min(initial=0) < 0:
            length = table.type.shape[axis]
            said = f"{_name(names, index in concrete.arrays, value)}{_where(value, lengths)}"
            found.setdefault((said, length), []).extend(_entries(table, length, concrete, model))
    return [Negative(*key, entries) for key, entries in found.items()]


def _of_rows(
    concrete: ConcreteGraph, lengths: Collection[int]
) -> Iterator[tuple[Variable, int, Variable]]:
    """Yield what is indexed by data of rows, the axis, and the index without conversions."""
    dependent = depends_on(concrete.outputs, concrete.values)
    for node in toposort(concrete.outputs):
        if not isinstance(node.op, AdvancedSubtensor):
            continue
        table, *index = node.inputs
        for axis, entry in enumerate(unflatten_index_variables(index, node.op.idx_list)):
            if not isinstance(entry, Variable) or entry in dependent:
                continue
            while isinstance(getattr(getattr(entry.owner, "op", None), "scalar_op", None), Cast):
                [entry] = entry.owner.inputs
            if np.dtype(entry.type.dtype).kind == "i" and set(lengths) & set(entry.type.shape):
                yield table, axis, entry


def _name(names: str, direct: bool, value: np.ndarray) -> str:
    if not names:
        return f"An index of shape {value.shape}"
    return f"pm.Data {names}, an index," if direct else f"An index that is made of pm.Data {names}"


def _where(value: np.ndarray, lengths: Collection[int]) -> str:
    rows = next(k for k, n in enumerate(value.shape) if n in lengths)
    negative = np.moveaxis(value < 0, rows, 0).reshape(value.shape[rows], -1).any(axis=1)
    return (
        f" is negative (down to {value.min()}) in {negative.sum():,} of {len(negative):,} rows "
        f"(first: row {np.argmax(negative):,})"
    )


def _entries(
    table: Variable, length: int, concrete: ConcreteGraph, model: pm.Model
) -> Iterator[str]:
    """Name variables with so many entries that are indexed, and the last level where it is one."""
    rvs = {v.name: rv.name for v, rv in model.values_to_rvs.items()}
    above = set(ancestors([table]))
    for v in (v for v in concrete.values if v in above and length in v.type.shape):
        name = rvs.get(v.name, v.name)
        levels = [list(model.coords.get(d) or ()) for d in model.named_vars_to_dims.get(name, ())]
        last = [x[-1] for x in levels if len(x) == length]
        yield f"{name!r}" + (f" ({last[0]!r})" if last else "")


def _refuse(name: str, column: Column) -> None:
    if (low := np.min(column.statistic("low"))) < 0:
        raise TallModelError(
            f"Column {name} of data is an index in the model, and goes down to {low:.0f}: "
            "negative codes often stand for what is missing, and would count from the end. Make "
            "the rows with codes from 0 up."
        )
