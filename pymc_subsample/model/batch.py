"""The log-likelihood of a batch of rows, rebuilt from the graph of all rows."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.reshape import SplitDims
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import Subtensor

from pymc_subsample.graph.concrete import ReadsAllRows, apply_op, on_disk, rebuild, tensor_input
from pymc_subsample.graph.nodes import elemwise_name
from pymc_subsample.graph.numpy_functions import evaluate, numpy_function
from pymc_subsample.model.errors import CoupledRows, TallModelError
from pymc_subsample.model.scales import Scale
from pymc_subsample.model.trace import RowTrace

_VIEWS = (DimShuffle, Subtensor, SpecifyShape, Reshape)
# Rows that are read at a time where all must be looked at.
PIECE = 2**17


@dataclass
class BatchGraph:
    """A graph over a batch of rows."""

    outputs: list[Variable]  # The graphs, with the batch length in place of n.
    axes: dict[Variable, int]  # Row axis of each variable of the graph that carries rows.
    # Input of the graph -> parameter-only variable that it stands for (phi).
    parameters: dict[Variable, Variable]
    # Input of the graph -> data-only variable of all rows that it stands for.
    columns: dict[Variable, Variable]
    # The column with the number of a row's kind, where there are several.
    kind: Variable | None = None
    tests: list[Variable] = field(default_factory=list)  # Whether a row is of kind 1, 2, ...


def batch_graph(
    outputs: Sequence[Variable],
    trace: RowTrace,
    dependent: set[Variable],
    arrays: Mapping[Variable, np.ndarray],
) -> BatchGraph:
    """Rebuild `outputs`, whose rows have been traced, over inputs of any number of rows.

    Variables where the trace stopped become columns; the values of `dependent` ones depend on
    parameters, `arrays` are those of the data placeholders.
    """
    axes, memo = trace.axes, {}
    columns: dict[Variable, Variable] = {}
    for var, axis in axes.items():
        if trace.stop(var) or var.owner is None:
            shape = [None if i == axis else s for i, s in enumerate(var.type.shape)]
            memo[var] = tensor_input(var.name, var.type.dtype, shape)
            columns[memo[var]] = var
    if not columns:
        raise TallModelError(
            "The rows hold no data: every row has the same log-likelihood. Give the observed "
            "variable data, or sample this model with pm.sample()."
        )

    whole = [
        i
        for node in toposort(outputs, blockers=list(memo))
        if node.outputs[0] in axes
        for position, i in enumerate(node.inputs)
        if position not in trace.row_numbers.get(node, ())
    ]
    whole = [i for i in whole if i not in axes and not isinstance(i, Constant)]
    fixed = [i for i in whole if i not in dependent]
    bases = _parameter_bases([i for i in whole if i in dependent], dependent, fixed)
    inputs = {v: tensor_input(v.name, v.type.dtype, v.type.shape) for v in bases}
    memo |= inputs
    # A condition of a check is a number that is no tensor.
    parameters = {
        new: pt.tensor_from_scalar(v) if isinstance(v.type, ScalarType) else v
        for v, new in inputs.items()
    }
    fixed = list(dict.fromkeys(fixed))
    for var, value in zip(fixed, evaluate(fixed, arrays), strict=True):
        memo[var] = pt.constant(np.asarray(value, dtype=var.type.dtype))

    first, old = next(iter(columns.items()))
    resized = partial(_resized, trace=trace, arrays=arrays, length=first.shape[axes[old]])
    new_outputs = rebuild(outputs, memo, resized)
    used = set(ancestors(new_outputs))
    return BatchGraph(
        outputs=new_outputs,
        axes={memo[old]: axis for old, axis in axes.items() if old in memo and memo[old] in used},
        parameters={k: v for k, v in parameters.items() if k in used},
        columns={k: v for k, v in columns.items() if k in used},
    )


def on_scales(graph: BatchGraph, scales: Mapping[int, Scale]) -> BatchGraph:
    """Let rows see some parameters, by their numbers, on other scales."""
    parameters, memo = dict[Variable, Variable](), dict[Variable, Variable]()
    bent: dict[Variable, tuple[Variable, Scale]] = {}
    for number, (old, value) in enumerate(graph.parameters.items()):
        if (scale := scales.get(number)) is None:
            parameters[old] = value
        else:
            new = tensor_input(old.name, old.type.dtype, old.type.shape)
            parameters[new], memo[old] = scale.forward(value), scale.back(new)
            bent[memo[old]] = new, scale

    def seen(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if not isinstance(node.op, _VIEWS) or inputs[0] not in bent:
            return None
        new, scale = bent[inputs[0]]  # rows see views of it
        [view] = apply_op(node.op, [new, *inputs[1:]])
        back = scale.back(view)
        bent[back] = view, scale
        return [back]

    outputs = rebuild(graph.outputs, memo, seen)
    axes = {memo.get(v, v): axis for v, axis in graph.axes.items()}
    return replace(graph, outputs=outputs, axes=axes, parameters=parameters)


def pieces(var: Variable, arrays: Mapping[Variable, Any]) -> Iterator[np.ndarray]:
    """Yield arrays that together hold the elements of a data-only variable.

    One, unless it is computed from columns on disk: those are read some rows at a time, or raise
    `ReadsAllRows` if that cannot be done row by row.
    """
    roots = [v for v in ancestors([var]) if v in arrays]
    stored = [v for v in roots if on_disk(arrays[v])]
    if not stored:
        yield evaluate([var], arrays)[0]
        return
    n_rows = len(arrays[stored[0]])
    trace = RowTrace(lambda v: v in arrays, lambda *_: False)
    try:
        trace.follow(var, [*var.type.shape].index(n_rows))
    except (CoupledRows, ValueError):
        raise ReadsAllRows([var], stored) from None
    graph = batch_graph([var], trace, set(), arrays)
    function = numpy_function(list(graph.columns), graph.outputs)
    columns = [(arrays[old], trace.axes[old]) for old in graph.columns.values()]
    if any(axis and on_disk(x) for x, axis in columns):
        raise ReadsAllRows([var], stored)
    for start in range(0, n_rows, PIECE):
        part = slice(start, start + PIECE)
        yield function(*(x[(*[slice(None)] * axis, part)] if axis else x[part]
                         for x, axis in columns))[0]  # fmt: skip


def _resized(
    node: Apply,
    inputs: list[Variable],
    trace: RowTrace,
    arrays: Mapping[Variable, np.ndarray],
    length: Variable,
) -> list[Variable] | None:
    """Apply an Op that knows the number of rows to a batch of another length."""
    [output, *_] = node.outputs
    axis = trace.axes.get(output)
    if axis is None:
        return None
    if isinstance(node.op, Alloc):
        value, *shape = inputs
        shape[axis] = length
        return [pt.alloc(value, *shape)]
    if isinstance(node.op, Reshape | SplitDims):
        lengths = [-1 if i == axis else n for i, n in enumerate(output.type.shape)]
        if None in lengths:
            raise CoupledRows(node)
        return [inputs[0].reshape(tuple(lengths))]
    if isinstance(node.op, SpecifyShape):
        return [inputs[0]]
    if elemwise_name(node) == "Switch":
        return _settled(node, inputs, trace, arrays)
    if numbers := trace.row_numbers.get(node):
        new = list(inputs)
        for position, own in numbers.items():
            order = [0 if i == own else "x" for i in range(inputs[position].type.ndim)]
            new[position] = pt.arange(length).dimshuffle(order)
        return node.op.make_node(*new).outputs
    return None


def _settled(
    node: Apply, inputs: list[Variable], trace: RowTrace, arrays: Mapping[Variable, np.ndarray]
) -> list[Variable] | None:
    """Drop a choice that data make the same way in every row (inside the support, say)."""
    condition = node.inputs[0]
    if condition not in trace.axes or not trace.stop(condition):
        return None
    ever, always = False, True
    for part in pieces(condition, arrays):
        ever, always = ever or bool(np.any(part)), always and bool(np.all(part))
    for branch, chosen in ((1, always), (2, not ever)):
        same = node.inputs[branch].type == node.outputs[0].type
        if chosen and same and node.inputs[branch] in trace.axes:
            return [inputs[branch]]
    return None


def _parameter_bases(
    variables: Sequence[Variable], param_dependent: set[Variable], fixed: list[Variable]
) -> list[Variable]:
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


def _followed(
    var: Variable,
    param_dependent: set[Variable],
    ops: tuple[type, ...],
    fixed: list[Variable],
    until: Collection[Variable],
) -> Variable:
    """Walk up a chain of `ops` while one input alone depends on parameters."""
    needed: list[Variable] = []
    while var not in until and var.owner is not None and isinstance(var.owner.op, ops):
        first, *_ = var.owner.inputs
        above = [i for i in dict.fromkeys(var.owner.inputs) if i in param_dependent]
        if len(above) != 1 or (not isinstance(var.owner.op, Elemwise) and above[0] is not first):
            break  # an index that is a parameter, into a table that is not
        needed += [i for i in var.owner.inputs if i is not above[0] and not isinstance(i, Constant)]
        [var] = above
    fixed += needed
    return var
