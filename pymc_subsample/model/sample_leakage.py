"""What a model bound to rows on disk must not hold: numbers of the sample, or of no column."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import SpecifyShape

from pymc_subsample.graph.concrete import ReadsAllRows, root_array
from pymc_subsample.model.binding import listed, value_of
from pymc_subsample.model.errors import TallModelError, op_name
from pymc_subsample.model.evaluation import Evaluation
from pymc_subsample.model.terms import Whole
from pymc_subsample.model.verification import probes, tolerance
from pymc_subsample.rows.columns import StoredColumn

_REMEDY = (
    "Compute it over all rows, before the model, and write the number into it: rows.mean('x'), "
    "rows.std('x'), rows.min('x'), rows.max('x') or len(rows); or compute a column, and make the "
    "rows with it."
)
_MOVING = {
    "AdvancedIncSubtensor", "AdvancedSubtensor", "IncSubtensor", "Join", "Nonzero", "Subtensor",
}  # fmt: skip
_NUMBERING = "ARange"


def refusal(error: ReadsAllRows, roots: Mapping[Variable, Variable]) -> TallModelError:
    """Say which number the model computes from all rows."""
    names = listed(list(dict.fromkeys(roots[c].name for c in error.columns)))
    op = _mixing(error.outputs, error.columns)
    if op in _MOVING:
        return TallModelError(
            f"The model chooses, moves or changes some rows of pm.Data {names} ({op}): which ones "
            "depends on the sample that it is written on. Make rows that need no such choice, or "
            "a column that says what a row is."
        )
    if op == _NUMBERING:
        return TallModelError(
            f"pm.Data {names} meets a number of each row that the model makes itself, such as "
            f"pt.arange ({op}). Make it a column of the rows."
        )
    return TallModelError(
        f"The model computes something of all rows of pm.Data {names} at once ({op}), of which it "
        f"holds a sample: it would be a statistic of the sample. {_REMEDY}"
    )


def _mixing(outputs: Sequence[Variable], columns: Sequence[Variable]) -> str:
    """Name the first Op that takes the columns together."""
    keeping = (Elemwise, DimShuffle, SpecifyShape)
    nodes = [node for node in toposort(outputs) if not isinstance(node.op, keeping)]
    reading = [n for n in nodes if not set(ancestors(n.inputs)).isdisjoint(columns)]
    return next((op_name(node.op) for node in [*reading, *nodes]), "a function of all rows")


def misfit(found: Mapping[Variable, StoredColumn], error: Exception) -> TallModelError:
    """Say that the model fixes the number of rows of its sample."""
    lengths = {len(column): len(value_of(v)) for v, column in found.items()}
    rows, length = (" and ".join(f"{n:,}" for n in x) for x in (lengths, lengths.values()))
    return TallModelError(
        f"With {rows} rows in the place of the {length} that the model is written on, shapes "
        f"do not fit together ({error}). Something in the model has the length of the sample: an "
        "array, coordinates of its rows, or a number such as len(s['y']). Make arrays columns of "
        "the rows; leave out shape= where there is data, and coordinates of the rows."
    )


def refuse_unbound(sample: Evaluation, found: Mapping[Variable, StoredColumn]) -> None:
    """Refuse data of the sample's rows, of a model on the sample, that have no column."""
    model = sample.model
    names, data = {v.name for v in found}, {v.name for v in model.data_vars}
    by_length = (
        (length, root)
        for length in {len(value_of(v)) for v in found}
        for v, root in sample.roots.items()
        if v.type.shape[:1] == (length,) or (v in sample.read_by_rows and length in v.type.shape)
    )
    for length, var in by_length:
        shared = isinstance(var, SharedVariable) and var.name in data
        if shared and var.name in names:
            continue
        value = root_array(var)
        shape = getattr(value, "shape", ())
        if shared:
            todo = f"Select one: rows.select(..., {var.name}=...)."
            if apart := _apart(model, var, names):
                todo = f"None of what {listed(apart)} reads is in data. "
                todo += (
                    "Pass its rows, too: data=[rows, others]."
                    if set(apart) <= set(sample.likelihood)
                    else "Write the model on all of its rows: s = others.sample(len(others))."
                )
            raise TallModelError(
                f"pm.Data {var.name!r}, of shape {shape}, has an entry for each of the "
                f"{length:,} rows that the model is written on, and data has no column of that "
                f"name (of the model's, it has {listed(sorted(names))}). {todo} If it has that "
                "length by chance, write the model on another number of rows."
            )
        values = {rv.name: model.rvs_to_values[rv] for rv in model.observed_RVs}
        owner = next((name for name, v in values.items() if var in ancestors([v])), None)
        said = f"The observed values of {owner!r} are" if owner else "The model holds"
        raise TallModelError(
            f"{said} an array of shape {shape}, with one entry for each of the {length:,} rows "
            "that the model is written on, which is not pm.Data and so has no column on disk. Make "
            "it a column of the rows, and write pm.Data('name', s['name']) with s = "
            "rows.sample(5_000)."
        )


def refuse_in_full(
    terms: Sequence[Whole],
    arrays: Mapping[Variable, np.ndarray | StoredColumn],
    roots: Mapping[Variable, Variable],
) -> None:
    """Refuse terms that all rows on disk would be read for at every gradient."""
    for term in terms:
        read = [v for v in ancestors([term.graph]) if isinstance(arrays.get(v), StoredColumn)]
        if read:
            raise TallModelError(
                f"{term.name!r} is evaluated in full ({term.why}), and reads pm.Data "
                f"{listed([roots[v].name for v in read])} of data, which stay on disk. Hold its "
                "rows in memory: write the model on all of them, s = rows.sample(len(rows)), and "
                "leave these rows out of data. Or, with a step, subsample them too: likelihood=."
            )


def refuse_others(
    found: Mapping[Variable, StoredColumn],
    roots: Mapping[Variable, Variable | None],
    axes: Mapping[Variable, int],
    kinds: Mapping[int, Sequence],
) -> None:
    """Refuse raw columns that are not on disk."""
    known = {len(column) for column in found.values()}
    missing = ", ".join(
        f"{n:,} of {listed([r.name for r in t])}" for n, t in kinds.items() if n not in known
    )
    if missing:
        raise TallModelError(
            f"The model has rows of other lengths than data ({missing}). Make rows of these too, "
            "with pm.Data of their columns: data=[rows, others]. Or name those that are in data: "
            "likelihood=[...]; the others are then evaluated in full."
        )
    for raw, root in roots.items():
        if root not in found:
            raise TallModelError(
                f"The rows read {raw.name or 'an array'!r}, which has "
                f"{raw.type.shape[axes[raw]] or max(kinds):,} entries and "
                "is not a column of data: a number of each row that the model makes itself, such "
                "as pt.arange. Make it a column of the rows."
            )
        if axes[raw]:
            raise TallModelError(
                f"Rows are on axis {axes[raw]} of pm.Data {raw.name!r}. They must come first, as "
                "in rows.sample."
            )


def _apart(model: pm.Model, var: Variable, names: set[str]) -> list[str]:
    """Return what reads a `pm.Data`, if none of it reads one of those names."""
    terms = {rv.name: [rv, model.rvs_to_values[rv]] for rv in model.observed_RVs}
    terms |= {v.name: [v] for v in model.potentials}
    read = {name: set(ancestors(graphs)) for name, graphs in terms.items()}
    reading = {name: {v.name for v in seen} for name, seen in read.items() if var in seen}
    return [] if any(seen & names for seen in reading.values()) else list(reading)


def refuse_disagreement(sample: Evaluation, tall: Evaluation) -> None:
    """Refuse a model that differs on the sample's rows when written on all: it uses the sample."""
    for theta, index in probes(sample):
        expected = sample.loglik_as_written(theta, index)
        known = np.isfinite(expected)
        error = abs(_of_sample(sample, tall, theta, index)[known] - expected[known])
        allowed = tolerance(sample, sample.loglik_as_written, theta, index)[known]
        priors = sample.logprior(theta), tall.logprior(theta)
        apart = abs(priors[0] - priors[1]) > 1e-6 * (1 + abs(priors[0]))
        if apart or not np.all(error <= allowed):
            where = "its log prior" if apart else f"the log-likelihood of {listed(tall.likelihood)}"
            raise TallModelError(
                f"With all rows of data, {where} differs from the model as it is written, for the "
                "same rows. It depends on the sample that the model is written "
                f"on: most likely on its length, by x.shape[0], total_size= or the like. {_REMEDY}"
            )


def _of_sample(
    sample: Evaluation, tall: Evaluation, theta: np.ndarray, index: np.ndarray
) -> np.ndarray:
    """Return the log-likelihood of some of the sample's rows, by the model of all rows.

    Kinds of rows of which samples of equal length were drawn are of one kind in the sample.
    """
    total = np.zeros(len(index))
    for kind in range(len(tall.rows.names)):
        own = [roots.get(kind) for roots in tall.raw_roots]
        length = next(len(value_of(root)) for root in own if root is not None)
        for first, last in pairwise(sample.rows.starts):
            if last - first != length:
                continue
            here = (first <= index) & (index < last)
            some = index[here] - first
            columns = [
                np.repeat(column.parts[kind][:1], len(some), axis=0)
                if root is None
                else value_of(root)[some]
                for column, root in zip(tall.rows.columns, own, strict=True)
            ]
            total[here] += tall.loglik_of(theta, columns)
    return total
