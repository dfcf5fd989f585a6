"""Negative numbers in indices of rows: codes of what is missing, which count from the end."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors

from pymc_subsample.graph.concrete import (
    ConcreteGraph,
    ReadsAllRows,
    apply_op,
    concretize,
    depends_on,
    on_disk,
    rebuild,
)
from pymc_subsample.graph.numpy_functions import evaluate
from pymc_subsample.model.binding import listed
from pymc_subsample.model.errors import TallModelError
from pymc_subsample.model.levels import indexed, unconverted
from pymc_subsample.validation import warn


def warn_of_model(model: pm.Model, terms: Sequence[Variable]) -> None:
    """Warn of a model that was not read, of whose terms the longest axis has rows.

    What cannot be evaluated is refused by who reads it.
    """
    with suppress(NotImplementedError, RuntimeError, ValueError):
        graphs = model.logp(vars=list(terms), sum=False)
        concrete = concretize(graphs, model.value_vars, model.initial_point())
        lengths = {max(g.type.shape) for g in concrete.outputs if g.type.shape}
        for negative in negative_codes(concrete, lengths, model):
            warn(negative)


def _told(which: str, length: int, entries: list[str]) -> str:
    of = f" of {' and '.join(dict.fromkeys(entries))}" if entries else ""
    return (
        f"{which}, where it counts from the end: -1 is the last of {length:,} entries{of}. pandas "
        "codes missing values as -1, as in pd.Categorical(...).codes. Leave these rows out, or "
        "give missing values a level of their own; if you mean the last entry, write its number."
    )


def negative_codes(concrete: ConcreteGraph, lengths: Collection[int], model: pm.Model) -> list[str]:
    """Say where codes of rows, of which there are `lengths`, index parameters from their end.

    So they do in NumPy and PyMC: -1, with which pandas codes what is missing, reads the last level.
    A column on disk is refused. What an index is computed from may be negative, and so may codes
    of which nothing depends on what they read.
    """
    found: dict[tuple[str, int], list[str]] = {}
    dependent = depends_on(concrete.outputs, concrete.values)
    for node, axis, index in indexed(concrete.outputs):
        whole = index not in dependent and np.dtype(index.type.dtype).kind == "i"
        if not (whole and set(lengths) & set(index.type.shape)):
            continue
        above = set(ancestors([index]))
        sources = {concrete.roots[v]: x for v, x in concrete.arrays.items() if v in above}
        names = listed([v.name for v in sources if v in model.data_vars])
        if any(on_disk(x) for x in sources.values()):
            column = concrete.arrays.get(index)
            if column is not None and (low := np.min(column.statistic("low"))) < 0:
                raise TallModelError(
                    f"Column {names} of data is an index in the model, and goes down to {low:.0f}: "
                    "negative codes often stand for missing values, and would count from the end. "
                    "Make the rows with codes from 0 up."
                )
            continue
        value = concrete.arrays.get(index)
        value = evaluate([index], concrete.arrays)[0] if value is None else value
        if value.min(initial=0) < 0 and _is_read(concrete, node, axis, index):
            table = node.inputs[0]
            length = _length(concrete, table, axis)
            said = f"{_name(names, index in concrete.arrays, value)}{_where(value, lengths)}"
            found.setdefault((said, length), []).extend(_entries(table, length, concrete, model))
    return [_told(*key, entries) for key, entries in found.items()]


def _length(concrete: ConcreteGraph, table: Variable, axis: int) -> int:
    """Return how many entries a table has along an axis: what loops make does not say."""
    length = table.type.shape[axis]
    if length is None:
        point = {v: np.zeros(v.type.shape, v.type.dtype) for v in concrete.values}
        length = int(evaluate([pt.shape(table)[axis]], concrete.arrays | point)[0])
    return length


def _is_read(concrete: ConcreteGraph, node: Apply, axis: int, index: Variable) -> bool:
    """Whether another entry in the place of those that are counted from the end makes a difference.

    It makes none in ``switch(code >= 0, z[code], 0)``. What cannot be evaluated is taken to.
    """
    table, *entries = node.inputs
    length = _length(concrete, table, axis)
    longer = pt.concatenate([table, pt.take(table, [length - 1], axis) + 1], axis)
    moved = [pt.switch(e < 0, length, e) if unconverted(e) is index else e for e in entries]
    read = apply_op(node.op, [longer, *moved])
    others = rebuild(concrete.outputs, dict(zip(node.outputs, read, strict=True)))
    rng = np.random.default_rng(0)
    with suppress(ReadsAllRows, IndexError, NotImplementedError, RuntimeError, ValueError):
        for scale in (0.1, 1.0):
            point = {
                v: (scale * rng.uniform(0.5, 1.0, v.type.shape)).astype(v.type.dtype)
                for v in concrete.values
            }
            found = evaluate([*concrete.outputs, *others], concrete.arrays | point)
            pairs = zip(found[: len(others)], found[len(others) :], strict=True)
            if not all(np.array_equal(a, b) and np.isfinite(a).all() for a, b in pairs):
                return True
        return False
    return True


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
