"""Loops written out: a step after the other, or, where none needs the one before, all at once."""

from collections.abc import Callable, Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scan.op import Scan
from pytensor.tensor.basic import AllocEmpty
from pytensor.tensor.subtensor import IncSubtensor, Subtensor
from pytensor.tensor.type import TensorType

from pymc_subsample.graph.concrete import (
    depends_on,
    fold,
    rebuild,
    stays_constant,
    tensor_input,
)
from pymc_subsample.graph.nodes import index_entries
from pymc_subsample.graph.vectorised import vectorised

type Again = Callable[[Sequence[Variable], dict[Variable, Variable]], list[Variable]]

# Steps of a loop that are written out. Two hidden states over 8 steps compile in 9 s of a
# processor, and a row of more in a multiple of that.
LONGEST = 50


def without_loops(
    outputs: Sequence[Variable], values: Sequence[Variable], arrays: dict[Variable, np.ndarray]
) -> list[Variable]:
    """Write out loops that read data and parameters, as far as their number of steps is known.

    `arrays`, the data of the placeholders, gains what PyTensor has put into loops as constants.
    Other loops are evaluated as they are, without rows: once for all of them.
    """
    loops = [n for n in toposort(outputs) if isinstance(n.op, Scan)]
    if not loops:
        return list(outputs)
    of_values, of_data = depends_on(outputs, values), depends_on(outputs, list(arrays))
    inner = {n: _constants(n) for n in loops}
    reads = {n for n in loops if inner[n] or not of_data.isdisjoint(n.outputs)}
    followed = {n for n in reads if not of_values.isdisjoint(n.outputs)}
    kept = set(loops) - followed
    placed: dict[Variable, Variable] = {}
    for constant in (c for n in followed for c in inner[n]):
        placed[constant] = tensor_input(None, constant.type.dtype, constant.data.shape)
        arrays[placed[constant]] = constant.data
    stacks: dict[Variable, list[Variable]] = {}

    def joined(found: Sequence[list[Variable] | Variable]) -> list[Variable]:
        new = [pt.stack(of) if isinstance(of, list) else of for of in found]
        stacks.update((v, of) for v, of in zip(new, found, strict=True) if isinstance(of, list))
        return new

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if isinstance(node.op, Scan) and node not in kept:
            found = _unrolled(node, inputs, again)
            if found is not None:
                return joined(found)
        if isinstance(node.op, Subtensor) and inputs[0] in stacks:
            found = _element(node, inputs, stacks[inputs[0]])
            return fold(node, inputs) if found is None else joined([found])
        return fold(node, inputs)

    def again(step: Sequence[Variable], memo: dict[Variable, Variable]) -> list[Variable]:
        return rebuild(step, placed | memo, hook, remake=True)

    return rebuild(outputs, {v: v for v in [*values, *arrays]}, hook)


def _constants(node: Apply) -> list[Constant]:
    """Return arrays in the graph of a step, and in those of the loops within."""
    found = []
    for v in ancestors(node.op.inner_outputs):
        if isinstance(v, Constant):
            if isinstance(v.data, np.ndarray) and not stays_constant(v.data):
                found.append(v)
        elif isinstance(v.owner_op, Scan):
            found += _constants(v.owner)
    return found


def why_not(node: Apply) -> str:
    """Say what keeps a loop from being written out."""
    if node.op.info.as_while:
        return "a loop that ends on a condition"
    if not isinstance(node.inputs[0], Constant):
        return "a loop of as many steps as are known only when it runs"
    if (steps := int(node.inputs[0].data)) > LONGEST:
        return f"a loop of {steps:,} steps, and up to {LONGEST} are followed"
    return "a loop that is not followed"


def _unrolled(
    node: Apply, inputs: Sequence[Variable], again: Again
) -> list[list[Variable] | Variable] | None:
    """Return the states of a loop, and what else each step makes, or all as one variable."""
    op, info = node.op, node.op.info
    tensors = all(isinstance(v.type, TensorType) for v in [*inputs, *op.inner_inputs])
    if info.as_while or not isinstance(inputs[0], Constant) or not tensors or info.n_mit_mot:
        return None
    steps = int(inputs[0].data)
    if not (info.n_mit_sot or info.n_sit_sot or info.n_untraced_sit_sot):
        found = _at_once(node, inputs, steps, again)
        if found is not None:
            return found
    return _one_by_one(node, inputs, steps, again) if steps <= LONGEST else None


def _at_once(
    node: Apply, inputs: Sequence[Variable], steps: int, again: Again
) -> list[list[Variable] | Variable] | None:
    """Return what all steps make, or None if one may make longer arrays than another."""
    op = node.op
    sequences = [s[:steps] for s in op.outer_seqs(inputs)]
    each = [s.type.clone(shape=s.type.shape[1:])() for s in sequences]
    memo = dict(zip(op.inner_inputs, [*each, *op.outer_non_seqs(inputs)], strict=True))
    replaced = dict(zip(each, sequences, strict=True))
    found = again(op.inner_outputs, memo)
    if any(None in getattr(v.type, "shape", ()) for v in depends_on(found, each)):
        return None
    every = [vectorised(v, replaced, 1) for v in found]
    return [
        new if new.type.ndim > v.type.ndim
        else new + pt.zeros((steps, *[1] * v.type.ndim), dtype=v.type.dtype)
        for v, new in zip(found, every, strict=True)
    ]  # fmt: skip


def _one_by_one(
    node: Apply, inputs: Sequence[Variable], steps: int, again: Again
) -> list[list[Variable] | Variable]:
    op, info = node.op, node.op.info
    taps = [*info.mit_sot_in_slices, *info.sit_sot_in_slices]
    buffers = [*op.outer_mitsot(inputs), *op.outer_sitsot(inputs)]
    before = [-min(own) for own in taps]
    states = [_begin(b, n) for b, n in zip(buffers, before, strict=True)]
    made: list[list[Variable]] = [[] for _ in range(info.n_nit_sot)]
    last = list(op.outer_untraced_sit_sot(inputs))
    for t in range(steps):
        known = [s[t] for s in op.outer_seqs(inputs)]
        known += [
            state[n + t + tap]
            for state, n, own in zip(states, before, taps, strict=True)
            for tap in own
        ]
        known += [*last, *op.outer_non_seqs(inputs)]
        found = again(op.inner_outputs, dict(zip(op.inner_inputs, known, strict=True)))
        for kept, new in zip([*states, *made], found, strict=False):
            kept.append(new)
        last = found[len(states) + len(made) :]
    return [*states, *made, *last]


def _begin(buffer: Variable, n: int) -> list[Variable]:
    """Return the states before the first step, without the memory for those after it."""
    if isinstance(buffer.owner_op, IncSubtensor):
        memory, first, *_ = buffer.owner.inputs
        if isinstance(memory.owner_op, AllocEmpty):
            buffer = first
    return [buffer[k] for k in range(n)]


def _element(
    node: Apply, inputs: Sequence[Variable], stack: Sequence[Variable]
) -> list[Variable] | Variable | None:
    """Take one, or some, of what was stacked; None if the index is not known."""
    first, *rest = index_entries(node, inputs)
    given = (first.start, first.stop, first.step) if isinstance(first, slice) else (first,)
    ends = [int(e.data) if isinstance(e, Constant) and e.data is not None else e for e in given]
    if not all(e is None or isinstance(e, int) for e in ends):
        return None
    whole = all(e == slice(None) for e in rest)
    if isinstance(first, slice):
        return list(stack[slice(*ends)]) or None if whole else None
    element = stack[ends[0]]
    return element if whole else element[tuple(rest)]
