"""Rows whose log-likelihood has no derivatives at a point: which they are, and why.

Without a slope nothing can be done. Without a second derivative a row has a control variate of
order 1, and is read always where that is cheaper.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor.elemwise import Elemwise

from pymc_subsample.expansion.curvature import as_array
from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.graph.nodes import elemwise_name
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.model import TallModelError

# Rows that are named.
_SHOWN = 10
# Beyond it, and below its inverse, squares are no numbers, which second derivatives are made of.
_SQUARED = float(np.sqrt(np.finfo(float).max))


def refuse_undefined(expansion: Expansion, reference: Reference) -> None:
    """Raise `TallModelError`, which names rows, if some have no slope at the reference."""
    if reference.is_finite:
        return
    bad = _rows_that(_undefined_of, expansion, reference.center)
    if bad:
        raise undefined(expansion, bad, reference.center)


def undefined(expansion: Expansion, rows: Sequence[int], center: np.ndarray) -> TallModelError:
    """Return the refusal of rows that have a log-likelihood but no derivatives."""
    return TallModelError(
        f"The derivatives of the log-likelihood of {', '.join(map(repr, expansion.likelihood))} "
        f"are not finite in rows {_named(expansion, rows)}, although it is finite itself, and no "
        f"step can use such gradients.{_reason(expansion, rows, center)} Look for infinite or "
        "extreme numbers in these rows, such as open ends of intervals, and write their "
        "log-likelihood without them."
    )


def without_curvature(expansion: Expansion, reference: Reference) -> TallModelError:
    """Return the refusal of rows that have a slope but no curvature, where all must have one."""
    rows = _rows_that(_flat_of, expansion, reference.center)
    return TallModelError(
        f"control_variate_order=2 needs second derivatives of all rows, and those of "
        f"{', '.join(map(repr, expansion.likelihood))} are not finite in {reference.flat:,} rows "
        f"({_named(expansion, rows)}).{_reason(expansion, rows, reference.center)} Use "
        'control_variate_order="auto", which is of order 1 here.'
    )


def flat_rows(expansion: Expansion, reference: Reference) -> str:
    """Say which rows have no second derivatives, and why."""
    rows = _rows_that(_flat_of, expansion, reference.center)
    return (
        f"{reference.flat:,} rows have no finite second derivatives at the reference "
        f"({_named(expansion, rows)}) and control variates of order 1."
        f"{_reason(expansion, rows, reference.center)}"
    ).removesuffix(".")


def without_derivatives(expansion: Expansion, rows: np.ndarray, center: np.ndarray) -> np.ndarray:
    """Return which of some packed rows have a log-likelihood at `center` but no derivatives."""

    def among(part: np.ndarray) -> list[int]:
        level, slope, curvature, _ = expansion.totals(
            [np.ascontiguousarray(rows[:, part])], center, True
        )
        if np.all(np.isfinite(slope)) and np.all(np.isfinite(as_array(curvature, 1.0))):
            return []
        if len(part) == 1:
            return part.tolist() if np.isfinite(level[0]) else []
        return [row for half in np.array_split(part, 2) for row in among(half)]

    with np.errstate(all="ignore"):
        return np.array(among(np.arange(rows.shape[1])), dtype=int)


def cause(graph: Variable, inputs: Sequence[Variable], values: Sequence[np.ndarray]) -> str | None:
    """Say what in the log-likelihood of one row has no derivatives, given its inputs' values."""
    nodes = [n for n in toposort([graph], blockers=inputs) if isinstance(n.op, Elemwise)]
    needed = list(dict.fromkeys(v for n in nodes for v in (*n.inputs, n.outputs[0])))
    found = dict(zip(needed, numpy_function(inputs, needed)(*values), strict=True))
    for kind in (_of_zero, _infinite, _extreme):
        for node in nodes:
            said = kind(node, [np.asarray(found[i], dtype=float) for i in node.inputs],
                        np.asarray(found[node.outputs[0]], dtype=float))  # fmt: skip
            if said is not None:
                return said
    return None


def _of_zero(node: Apply, inputs: list[np.ndarray], _: np.ndarray) -> str | None:
    if elemwise_name(node) != "Pow":
        return None
    base, power = np.broadcast_arrays(*inputs)
    at = (base == 0) & (power != np.trunc(power))
    return f"zero is raised to the power of {power[at][0]:.3g}" if at.any() else None


def _infinite(node: Apply, inputs: list[np.ndarray], output: np.ndarray) -> str | None:
    if np.all(np.isfinite(output)):
        return None
    name = str(elemwise_name(node)).lower()
    if not all(np.all(np.isfinite(x)) for x in inputs):
        return f"{name} is taken of what is not finite"
    shown = ", ".join(f"{x.flat[0]:.3g}" for x in inputs[:2])
    return f"{name} is not finite, of {shown}" if all(x.size == 1 for x in inputs) else None


def _extreme(node: Apply, inputs: list[np.ndarray], output: np.ndarray) -> str | None:
    if elemwise_name(node) != "Exp":
        return None
    for at, what in ((output > _SQUARED, "overflows"), (output < 1 / _SQUARED, "underflows")):
        if at.any():
            x = np.broadcast_to(inputs[0], output.shape)[at][0]
            return f"the exponential of {x:.4g} {what}, itself or squared"
    return None


def _reason(expansion: Expansion, rows: Sequence[int], center: np.ndarray) -> str:
    with np.errstate(all="ignore"):
        said = expansion.cause(center, expansion.take(np.array(rows[:1], dtype=np.int64)))
    return "" if said is None else f" In row {expansion.store.named(rows[:1])} {said}."


def _named(expansion: Expansion, rows: Sequence[int]) -> str:
    return expansion.store.named(rows[:_SHOWN]) + " and maybe more" * (len(rows) > _SHOWN)


def _rows_that(function: Callable, expansion: Expansion, center: np.ndarray) -> list[int]:
    bad: list[int] = []
    start = 0
    for found, size in expansion.over(function, center):
        bad += (start + found).tolist()
        start += size
    return bad


def _undefined_of(
    expansion: Expansion, batches: Iterable[np.ndarray], center: np.ndarray
) -> tuple[np.ndarray, int]:
    [rows] = batches
    return without_derivatives(expansion, rows, center), rows.shape[1]


def _flat_of(
    expansion: Expansion, batches: Iterable[np.ndarray], center: np.ndarray
) -> tuple[np.ndarray, int]:
    [rows] = batches
    with np.errstate(all="ignore"):
        expansion.anchor(center, rows)
        return np.flatnonzero(expansion.sums.flat(rows, center)), rows.shape[1]
