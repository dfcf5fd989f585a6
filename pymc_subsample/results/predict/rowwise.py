"""A quantity of a model's rows, as a function of one draw and of the columns of some rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.basic import Alloc, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import BaseSubtensor, Subtensor

from pymc_subsample.graph.concrete import concretize, depends_on, rebuild
from pymc_subsample.graph.numpy_functions import evaluate, frozen, numpy_function
from pymc_subsample.model.batch import BatchGraph, batch_graph
from pymc_subsample.model.data_columns import column_graph, row_number_test
from pymc_subsample.model.errors import CoupledRows, TallModelError, op_name
from pymc_subsample.model.indices import negative_codes
from pymc_subsample.model.loops import followed
from pymc_subsample.model.selection import select_in_data
from pymc_subsample.model.trace import RowTrace
from pymc_subsample.results.predict.quantity import NOT_DRAWN, SAID, Predicted, leaves
from pymc_subsample.units.placed import read_by_places

# Numbers of what is predicted up to which it is also computed as the model is written. A choice
# of time. The difference that is tolerated is some million roundings of doubles.
_COMPARED = 2**22
_TOLERANCE = 1e-9
# What makes a column of a number.
_FILLING = (Alloc, DimShuffle, Elemwise, MakeVector, ScalarFromTensor, Subtensor, TensorFromScalar)
NO_DRAWS = (
    "A level that the model does not know has no draws: leave its rows out, or predict it from the "
    "distribution of the levels, which new_levels= does if a step integrated their effects out."
)


@dataclass(frozen=True)
class Raw:
    """A column that is read."""

    name: str | None  # Of its `pm.Data`; None of any other array.
    value: np.ndarray  # What the model holds.
    axis: int  # Where its rows are.
    whole: bool  # Whether it was computed from all rows at once.
    same: bool  # Whether all rows are alike, and new ones too: a number that fills a column.
    index: bool  # Whether it says which entries of an array are read.


def _reduces(node: Apply, n_rows: int) -> bool:
    """Whether it adds up, or the like, over an axis as long as there are rows."""
    if not isinstance(node.op, CAReduce):
        return False
    shape, axis = node.inputs[0].type.shape, node.op.axis
    return n_rows in (shape if axis is None else [shape[a] for a in axis])


class RowFunction:
    """The quantity of a batch of rows at one draw.

    `posterior` holds draws, as `in_order` has them. Of the posterior, the variables `leaves` are
    read; of the `n_rows` rows that the model holds, the columns `raw`; and the `pm.Data`
    `constants`, which have no rows. `reduces` says whether numbers of whole columns, such as their
    means, are read, and `negative` what is to be said of indices with codes that count from the
    end. Raises `TallModelError` if it has no rows, or they depend on each other, and `ValueError`
    if the posterior lacks a variable, or has it in another shape; or the model's data have lengths
    that don't fit together, or point outside of what they index. Variables that are `longer` have
    draws of more levels than the model. With `by_row`, variables may have an element for each row:
    `own` says along which axis, and their values are those of the batch.
    """

    def __init__(
        self,
        model: pm.Model,
        what: Predicted,
        posterior: xr.Dataset,
        longer: Sequence[str] = (),
        *,
        by_row: bool = False,
    ) -> None:
        read = leaves(model, what, posterior, longer)
        self.leaves = [v.name for v in read]
        point = {name: posterior[name].values[0, 0] for name in self.leaves}
        graphs = rebuild(what.graphs, {v: v for v in read}, _viewed)
        try:
            concrete = concretize(graphs, read, point)
        except ValueError as error:
            raise ValueError(
                f"{SAID}: the data that the model holds don't fit together for {what.name} "
                f"({error}). Where pm.set_data gave some of them another length, give the model "
                "back its rows, and pass the new ones as data=."
            ) from None
        arrays, values = concrete.arrays, concrete.values
        outputs = followed(concrete.outputs, values, arrays, point)
        lengths = [n for out in outputs for n in out.type.shape if (n or 0) > 1]
        outputs, _ = read_by_places(outputs, arrays, values, min(lengths, default=2))
        outputs = select_in_data(outputs, arrays, values)
        dependent = depends_on(outputs, values)
        self._what = what
        self.n_rows, rows = _rows(what, outputs)
        self.negative = negative_codes(concrete, {self.n_rows}, model)
        self.reduces = any(
            _reduces(node, self.n_rows)
            for node in toposort(outputs)
            if dependent.isdisjoint(node.outputs)
        )
        trace = RowTrace(lambda v: v not in dependent, row_number_test(arrays))
        _trace(trace, what.name, rows, dependent, self.n_rows)
        own = {v: trace.axes[v] for v in values if v in trace.axes}
        if not by_row or not (own and what.observed):
            _refuse_rowless(trace, what.name, self.n_rows, own, by_row)
        self.own = {v.name: axis for v, axis in own.items()}
        batch = batch_graph(rows, trace, dependent, arrays)
        batches = {old: new for new, old in batch.columns.items() if old in own}
        old = [v for v in batch.columns.values() if v not in own]
        known = set(arrays)
        columns = BatchGraph([], {}, {}, {})  # of what effects of rows alone make
        if old:
            columns = column_graph(old, [trace.axes[v] for v in old], arrays)
        others = [out for out in outputs if out not in rows]
        parameters = frozen(list(batch.parameters.values()), arrays)
        placed = {
            new: graph.astype(new.type.dtype)
            for new, graph in zip(batch.parameters, parameters, strict=True)
        }
        data = [new for new, v in batch.columns.items() if v not in own]
        placed |= zip(data, columns.outputs, strict=True)
        placed |= {v: v for v in batches.values()}
        made = dict(zip(rows, rebuild(batch.outputs, placed), strict=True))
        made |= zip(others, frozen(others, arrays), strict=True)
        indices = _indices([made[out] for out in outputs])
        computed = dict(zip(columns.outputs, old, strict=True))
        self.raw = []
        for new, var in columns.columns.items():
            root = concrete.roots.get(var)
            name = root.name if root is not None and root in model.data_vars else None
            axis, whole = columns.axes[new], var not in known
            same = whole and _fills(computed[new])
            self.raw.append(Raw(name, arrays[var], axis, whole, same, new in indices))
        names = _read(graphs, read) - {r.name for r in self.raw}
        self.constants = [v.name for v in model.data_vars if v.name in names]
        inputs = [*(batches.get(v, v) for v in values), *columns.columns]
        self._function = numpy_function(inputs, [made[out] for out in outputs])
        if all(np.prod(out.type.shape) <= _COMPARED for out in outputs):
            givens = {v: np.asarray(point[v.name], v.type.dtype) for v in values}
            try:
                self._compare(point, evaluate(outputs, arrays | givens))
            except IndexError as error:
                raise outside("of the model", error) from None

    def _compare(self, point: dict[str, np.ndarray], written: Sequence[np.ndarray]) -> None:
        """Compare two parts of the rows with the quantity as the model has it."""
        for part in (slice(0, self.n_rows // 2), slice(self.n_rows // 2, None)):
            some = np.arange(self.n_rows)[part]
            columns = [np.take(r.value, some, r.axis) for r in self.raw]
            values = [np.asarray(point[name]) for name in self.leaves]
            values = [
                x.take(some, self.own[name]) if name in self.own else x
                for name, x in zip(self.leaves, values, strict=True)
            ]
            for new, old in zip(self._function(*values, *columns), written, strict=True):
                old = old[part] if np.ndim(old) and len(old) == self.n_rows else old
                scale = np.max(np.abs(old[np.isfinite(old)]), initial=0.0)
                if new.shape != np.shape(old) or not np.allclose(
                    new, old, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True
                ):
                    raise TallModelError(
                        f"{SAID}: {self._what.name} of some rows is not what the model has for "
                        "them: its graph was misread. Please report the model, and use "
                        "pm.sample_posterior_predictive."
                    )

    def __call__(
        self,
        draws: Iterable[Sequence[np.ndarray]],
        columns: Sequence[np.ndarray],
        rng: np.random.Generator,
    ) -> Iterator[np.ndarray]:
        """Yield the quantity of m rows, shape (m, ...), at each draw."""
        axes = [*(self.own.get(name) for name in self.leaves), *(r.axis for r in self.raw)]
        for values in draws:
            given = [*values, *columns]
            found = self._function(*given)
            if self._what.op is None:
                yield found[0]
                continue
            m = next(x.shape[a] for x, a in zip(given, axes, strict=True) if a is not None)
            yield self._drawn(found, m, rng)

    def _drawn(
        self, parameters: Sequence[np.ndarray], m: int, rng: np.random.Generator
    ) -> np.ndarray:
        op, shape = self._what.op, (m, *self._what.shape[1:])
        assert op is not None
        try:
            return op.rng_fn(rng, *parameters, shape[: len(shape) - op.ndim_supp])
        except NotImplementedError:
            raise ValueError(NOT_DRAWN.format(f"{self._what.name} ({op_name(op)})")) from None


def _rows(what: Predicted, outputs: list[Variable]) -> tuple[int, list[Variable]]:
    """Return how many rows there are, and which outputs have them, on their first axis."""
    if what.op is None:
        [out] = outputs
        if not out.type.ndim or not out.type.shape[0]:
            raise _no_rows(what.name, f"its shape is {out.type.shape}")
        return out.type.shape[0], [out]
    batch = len(what.shape) - what.op.ndim_supp
    full = [
        out
        for out, core in zip(outputs, what.op.ndims_params, strict=True)
        if batch and out.type.ndim - core == batch and out.type.shape[0] != 1
    ]
    if not full and what.shape[:1] == (1,):
        raise _one_row(what.name)
    if not full:
        raise _no_rows(what.name, "none of its parameters has rows")
    return full[0].type.shape[0], list(dict.fromkeys(full))


def _trace(
    trace: RowTrace, name: str, rows: Sequence[Variable], dependent: set[Variable], n_rows: int
) -> None:
    """Follow the rows to data, or refuse."""
    try:
        for out in rows:
            trace.follow(out, 0)
        trace.refuse_reductions(dependent, n_rows)
    except CoupledRows as error:
        if n_rows == 1:
            raise _one_row(name) from None
        op = "an axis used twice" if error.node is None else op_name(error.node.op)
        raise TallModelError(
            f"{SAID}: the rows of {name} are coupled by {op}, so that they cannot be predicted "
            "some at a time. Use pm.sample_posterior_predictive."
        ) from None


def _refuse_rowless(
    trace: RowTrace, name: str, n_rows: int, own: Mapping[Variable, int], by_row: bool
) -> None:
    """Refuse what has the axis of a variable, unless those may have rows, or of nothing."""
    data = any(v not in own and (trace.stop(v) or v.owner is None) for v in trace.axes)
    if data and (by_row or not own):
        return
    if n_rows == 1 and not own:
        raise _one_row(name)
    why = f"its first axis is that of {next(iter(own)).name!r}" if own else (
        "it is the same for all rows")  # fmt: skip
    raise _no_rows(name, why)


def _viewed(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
    """Go through `pm.Deterministic`."""
    return inputs if isinstance(node.op, ViewOp) else None


def _read(graphs: Sequence[Variable], leaves: Sequence[Variable]) -> set[str | None]:
    """Return the names of what graphs are computed from, of the values and not only the lengths."""
    lengths = [v for v in ancestors(graphs) if v.owner and isinstance(v.owner.op, Shape | Shape_i)]
    return {v.name for v in ancestors(graphs, blockers=[*leaves, *lengths])}


def _fills(column: Variable) -> bool:
    """Whether a column is a number as often as there are rows, as a process's zero mean is."""
    lengths = [
        v for v in ancestors([column]) if v.owner and isinstance(v.owner.op, Shape | Shape_i)
    ]
    made = set(ancestors([column], blockers=lengths)) - set(lengths)
    return all(isinstance(v.owner.op, _FILLING) if v.owner else not v.type.ndim for v in made)


def _indices(graphs: Sequence[Variable]) -> set[Variable]:
    """Return what indices in graphs are computed from."""
    found: list[Variable] = []
    for node in toposort(graphs):
        op = node.op.core_op if isinstance(node.op, Blockwise) else node.op
        if isinstance(op, BaseSubtensor):
            found += node.inputs[len(node.inputs) - op.n_index_vars :]
    return set(ancestors(found))


def outside(
    where: str, error: IndexError, raw: Sequence[Raw] = (), read: Sequence[np.ndarray] = ()
) -> ValueError:
    """Return what to say of an index that is out of bounds; `read` are new numbers of `raw`."""
    tops = [
        (r.name, np.max(x), np.max(r.value)) for r, x in zip(raw, read, strict=False) if r.index
    ]
    names = [f"data[{name!r}] goes up to {a}, in the model to {b}" for name, a, b in tops if a > b]
    said = str(error).partition("\n")[0]
    return ValueError(
        f"{SAID}: an integer column points outside the array that it indexes, in rows {where} "
        f"({'; '.join([*names, said])}). {NO_DRAWS}"
    )


def _one_row(name: str) -> TallModelError:
    return TallModelError(
        f"{SAID}: the model holds a single row of {name}, which looks like something that all "
        "rows share. "
        "Give it two rows or more, with the same draws, and pass the row as data=."
    )


def _no_rows(name: str, why: str) -> TallModelError:
    return TallModelError(
        f"{SAID}: {name} has no rows of data: {why}. Predict an observed "
        "variable, or an expression with one entry for each row, rows first."
    )
