"""The log-likelihood of a batch of rows, rebuilt from the graph of all rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.reshape import SplitDims
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import Subtensor

from pymc_subsample.likelihood.errors import CoupledRows
from pymc_subsample.likelihood.graph import (
    depends_on,
    elemwise_name,
    evaluate,
    is_constant,
    rebuild,
    tensor_input,
)
from pymc_subsample.likelihood.trace import trace_rows

_VIEWS = (DimShuffle, Subtensor, SpecifyShape, Reshape)


@dataclass
class BatchGraph:
    """A graph over a batch of rows.

    Attributes
    ----------
    outputs : list of Variable
        The graphs, with the batch length in place of n.
    axes : dict of Variable to int
        Row axis of each variable of the graph that carries rows.
    parameters : dict of Variable to Variable
        Input of the graph -> parameter-only variable that it stands for (phi).
    columns : dict of Variable to Variable
        Input of the graph -> data-only variable of all rows that it stands for.
    support : list of (Variable, bool)
        Data-only conditions dropped from the graph, and the value that makes a row impossible.
    """

    outputs: list[Variable]
    axes: dict[Variable, int]
    parameters: dict[Variable, Variable]
    columns: dict[Variable, Variable]
    support: list[tuple[Variable, bool]] = field(default_factory=list)


def batch_graph(
    outputs: Sequence[Variable],
    axes: Mapping[Variable, int],
    row_numbers: set[Variable],
    param_dependent: set[Variable],
    arrays: Mapping[Variable, np.ndarray],
) -> BatchGraph:
    """Rebuild row-labelled `outputs` over inputs of any number of rows.

    Parameters
    ----------
    outputs : sequence of Variable
        Graphs over all rows; each one is labelled in `axes`.
    axes, row_numbers
        As `trace_rows` returns them.
    param_dependent : set of Variable
        Variables whose value depends on parameters. With an empty set the data placeholders
        themselves are the columns.
    arrays : mapping of Variable to ndarray
        Values of the data placeholders.
    """
    memo: dict[Variable, Variable] = {}
    parameters: dict[Variable, Variable] = {}
    columns: dict[Variable, Variable] = {}
    support: list[tuple[Variable, bool]] = []

    def is_column(var: Variable) -> bool:
        return var not in param_dependent if param_dependent else var in arrays or var.owner is None

    for var, axis in axes.items():
        if is_column(var) and not (isinstance(var, Constant) or var in row_numbers):
            shape = [None if i == axis else s for i, s in enumerate(var.type.shape)]
            memo[var] = tensor_input(var.name, var.type.dtype, shape)
            columns[memo[var]] = var

    inner = [n for n in toposort(outputs, blockers=list(memo)) if n.outputs[0] in axes]
    free = [i for node in inner for i in node.inputs if i not in axes and i not in memo]
    free = [i for i in dict.fromkeys(free) if not isinstance(i, Constant) and i not in row_numbers]
    fixed = [i for i in free if i not in param_dependent]
    for base in _parameter_bases([i for i in free if i in param_dependent], param_dependent, fixed):
        memo[base] = tensor_input(base.name, base.type.dtype, base.type.shape)
        parameters[memo[base]] = base
    if fixed:
        fixed = list(dict.fromkeys(fixed))
        values = evaluate(fixed, arrays)
        for var, value in zip(fixed, values, strict=True):
            memo[var] = pt.constant(np.asarray(value, dtype=var.type.dtype))

    length = next(v.shape[axes[old]] for v, old in columns.items()) if columns else None

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        axis = axes.get(node.outputs[0])
        if axis is None:
            return None
        if isinstance(node.op, Alloc):
            value, *shape = inputs
            shape[axis] = length
            return [pt.alloc(value, *shape)]
        if isinstance(node.op, Reshape | SplitDims):
            shape = list(node.outputs[0].type.shape)
            shape[axis] = -1
            if None in shape:
                raise CoupledRows(node)
            return [inputs[0].reshape(tuple(shape))]
        if isinstance(node.op, SpecifyShape):
            return [inputs[0]]
        if elemwise_name(node) == "Switch" and node.inputs[0] in columns.values():
            for branch, other, bad in ((1, 2, True), (2, 1, False)):
                if is_constant(node.inputs[branch], -np.inf):
                    support.append((node.inputs[0], bad))
                    return [inputs[other]]
        return None

    for var in row_numbers:
        shape = [-1 if i == _numbered_axis(var) else 1 for i in range(var.type.ndim)]
        memo[var] = pt.arange(length).reshape(tuple(shape))
    new = rebuild(outputs, memo, hook)
    used = set(ancestors(new))
    return BatchGraph(
        outputs=new,
        axes={memo[old]: axis for old, axis in axes.items() if old in memo and memo[old] in used},
        parameters={k: v for k, v in parameters.items() if k in used},
        columns={k: v for k, v in columns.items() if k in used},
        support=support,
    )


def simplified(rows: Variable, graph: BatchGraph) -> BatchGraph:
    """Rewrite a batch log-likelihood into its stable, shared form and label it anew.

    PyTensor's canonical and stable forms come first; then both branches of a choice made by
    data (``y ? log p : log(1 - p)``) that apply one function are merged, so that the function is
    evaluated once per row.
    """
    rows = rewrite_graph(rows, include=("canonicalize", "stabilize"), clone=False)
    rows = _merge_branches(rows)
    known = set(ancestors([rows]))
    dependent = depends_on([rows], [p for p in graph.parameters if p in known])

    def is_row_number(index, axis, length):
        return index not in depends_on([index], list(graph.columns))

    axes, _ = trace_rows([(rows, 0)], lambda v: v not in dependent, is_row_number)
    axes |= {v: graph.axes[v] for v in graph.columns if v in known}
    return BatchGraph(
        [rows],
        axes,
        {k: v for k, v in graph.parameters.items() if k in known},
        {k: v for k, v in graph.columns.items() if k in known},
        graph.support,
    )


def _merge_branches(rows: Variable) -> Variable:
    def hook(node, inputs):
        if elemwise_name(node) != "Switch":
            return None
        condition, a, b = inputs
        functions = []
        while (
            elemwise_name(a.owner) == elemwise_name(b.owner) is not None
            and len(a.owner.inputs) == len(b.owner.inputs) == 1
        ):
            functions.append(a.owner.op)
            a, b = a.owner.inputs[0], b.owner.inputs[0]
        if not functions:
            return None
        merged = pt.switch(condition, a, b)
        for function in reversed(functions):
            merged = function(merged)
        return [merged]

    return rebuild([rows], {}, hook)[0]


def _numbered_axis(index: Variable) -> int:
    return int(np.argmax([s != 1 for s in index.type.shape]))


def _parameter_bases(variables, param_dependent: set[Variable], fixed: list[Variable]):
    """Return the parameters that `variables` are made of, each one once.

    Views are followed to what they view. A parameter that is an elementwise function of another
    one (log sigma beside sigma) is left to the batch graph. Data met on the way joins `fixed`.
    """
    bases = dict.fromkeys(_followed(v, param_dependent, _VIEWS, fixed, set()) for v in variables)
    for base in list(bases):
        needed: list[Variable] = []
        others = bases.keys() - {base}
        if _followed(base, param_dependent, (*_VIEWS, Elemwise), needed, others) in others:
            del bases[base]
            fixed += needed
    return list(bases)


def _followed(var, param_dependent, ops, fixed, until) -> Variable:
    """Walk up a chain of `ops` while one input alone depends on parameters."""
    needed: list[Variable] = []
    while var not in until and var.owner is not None and isinstance(var.owner.op, ops):
        above = [i for i in dict.fromkeys(var.owner.inputs) if i in param_dependent]
        if len(above) != 1:
            break
        needed += [
            i for i in var.owner.inputs if i is not above[0] and not isinstance(i, Constant)
        ]
        [var] = above
    fixed += needed
    return var


def column_graph(
    columns: Sequence[Variable], axes: Sequence[int], arrays: dict[Variable, np.ndarray]
) -> BatchGraph:
    """Rebuild data-only columns over batches of the raw columns.

    A column that needs all rows at once (a cumulative sum, a rank) is evaluated here and becomes
    a raw column itself; `arrays` gains it.
    """
    memo: dict[Variable, Variable] = {}
    labels: dict[Variable, int] = {}
    row_numbers: set[Variable] = set()
    for var, axis in zip(columns, axes, strict=True):
        try:
            traced, numbers = trace_rows(
                [(var, axis)], stop=lambda v: v in arrays, is_row_number=row_number_test(arrays)
            )
            conflict = any(labels.get(v, a) != a for v, a in traced.items())
            needs_data = not any(v in arrays for v in traced)
        except CoupledRows:
            conflict, needs_data = True, False
        if conflict or needs_data:
            [value] = evaluate([var], arrays)
            root = tensor_input(var.name, value.dtype, value.shape)
            arrays[root] = value
            memo[var] = root
            labels[root] = axis
        else:
            labels.update(traced)
            row_numbers |= numbers
    outputs = [memo.get(v, v) for v in columns]
    return batch_graph(outputs, labels, row_numbers, set(), arrays)


def row_number_test(arrays: Mapping[Variable, np.ndarray]):
    """Return a test of whether an index variable holds 0, 1, ..., n - 1 along an axis."""

    def test(index: Variable, axis: int, length: int | None) -> bool:
        known = set(ancestors([index]))
        if any(v.owner is None and not isinstance(v, Constant) and v not in arrays for v in known):
            return False
        [value] = evaluate([index], arrays)
        return value.size == value.shape[axis] == length and np.array_equal(
            value.ravel(), np.arange(value.size)
        )

    return test
