"""Parameter checks: taken out of the graphs, sorted into conditions on a row and on parameters."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.math import Sum
from pytensor.tensor.special import Softmax

from pymc_subsample.graph.concrete import merged, on_disk, rebuild
from pymc_subsample.graph.overall_intervals import OverallIntervals
from pymc_subsample.model.batch import pieces
from pymc_subsample.model.errors import CoupledRows, TallModelError
from pymc_subsample.model.terms import RowTerm
from pymc_subsample.model.trace import RowTrace


def split_checks(outputs: Sequence[Variable]) -> tuple[list[Variable], dict[Variable, str]]:
    """Take every check out of the graphs; equal parts of what is left are merged.

    Returns the graphs, and conditions for these to be finite, with what is said where one fails.
    """
    checks: list[tuple[Variable, str]] = []

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if not isinstance(node.op, CheckAndRaise):
            return None
        expression, *conditions = inputs
        checks.extend((leaf, node.op.msg) for c in conditions for leaf in _leaves(c))
        return [expression]

    graphs = rebuild(outputs, {}, hook)
    found = merged([*graphs, *(c for c, _ in checks)]).outputs
    messages = (message for _, message in checks)
    return found[: len(graphs)], dict(zip(found[len(graphs) :], messages, strict=True))


def _leaves(condition: Variable) -> list[Variable]:
    """Undo PyMC's conjunction: the elementwise conditions under nested `All`."""
    owner = condition.owner
    name = None if owner is None else type(owner.op).__name__
    if name in {"ScalarFromTensor", "TensorFromScalar", "All", "DimShuffle"}:
        return _leaves(owner.inputs[0])
    if name == "MakeVector":
        return [leaf for i in owner.inputs for leaf in _leaves(i)]
    return [condition]


def sort_checks(
    checks: Mapping[Variable, str],
    trace: RowTrace,
    dependent: set[Variable],
    arrays: Mapping[Variable, np.ndarray],
    kinds: Mapping[int, Sequence[RowTerm]],
    whose: Callable[[str], str],
) -> tuple[list[tuple[Variable, int, int]], list[Variable]]:
    """Sort checks into conditions on each row and on parameters alone.

    Conditions on rows come with the row axis and the number of rows. Checks of data are settled
    here, and what holds for all parameters is dropped. `trace` gains the rows of the row
    conditions; `kinds` are the terms by their number of rows, the most first. ``whose(message)``
    says which variable's check fails.
    """
    n_rows = next(iter(kinds))
    rows, scalars = [], []
    bounds = OverallIntervals(dependent, partial(_ends, arrays=arrays))
    for condition, message in checks.items():
        if condition not in dependent:
            if not all(np.all(part) for part in pieces(condition, arrays)):
                raise TallModelError(
                    f"A parameter check of the model fails for its data: {message}"
                    f"{whose(message)}. Fix the data or the parameter it names."
                )
        elif bounds.always(condition) or _adds_to_one(condition, dependent):
            continue
        elif any(trace.has_rows(v, n_rows) for v in ancestors([condition])):
            rows.append((condition, *_follow(condition, message, trace, kinds)))
        else:
            scalars.append(condition.all())
    return rows, scalars


def _ends(var: Variable, arrays: Mapping[Variable, Any]) -> Iterable[np.ndarray]:
    """Return arrays with the smallest and the largest element of a data-only variable."""
    column = arrays.get(var)
    if column is None or not on_disk(column):
        return pieces(var, arrays)
    return [column.statistic("low"), column.statistic("high")]  # it has no NaN


def _follow(
    condition: Variable, message: str, trace: RowTrace, kinds: Mapping[int, Sequence[RowTerm]]
) -> tuple[int, int]:
    """Add a condition to the trace; return its row axis and number of rows."""
    shape = condition.type.shape
    for n_rows in kinds:
        for axis, length in enumerate(shape):
            if length == n_rows:
                with suppress(CoupledRows):
                    trace.follow(condition, axis)
                    return axis, n_rows
    every = [term for terms in kinds.values() for term in terms]
    terms = next((terms for n, terms in kinds.items() if n in shape), every)
    names = dict.fromkeys(repr(term.name) for term in terms)
    raise TallModelError(
        f"The rows of {', '.join(names)} are coupled by a condition: {message}. "
        "Rows can only be subsampled if each one can be checked alone; write the parameter so that "
        "it holds for any value, or sample this model with pm.sample()."
    )


def _adds_to_one(condition: Variable, dependent: set[Variable]) -> bool:
    """Whether a check sees the parameters only through the sum of a softmax."""
    sums = [
        v
        for v in ancestors([condition])
        if isinstance(v.owner_op, Sum) and isinstance(v.owner.inputs[0].owner_op, Softmax)
    ]
    others = ancestors([condition], blockers=sums)
    return bool(sums) and not any(v.owner is None and v in dependent for v in others)
