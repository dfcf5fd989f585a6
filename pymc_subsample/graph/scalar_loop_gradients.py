"""Derivatives of scalar loops, in which PyTensor computes those of special functions.

Of `betainc`, `gammainc` and `hyp2f1` PyTensor sums up series until they converge, and does not
differentiate these sums again. Each step of a loop is a function of states and constants: another
loop carries the derivatives of the states along (forward accumulation [1]_).

References
----------
.. [1] A. Griewank and A. Walther (2008). Evaluating Derivatives, second edition. SIAM, chapter 3.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import pytensor.scalar as ps
from pytensor.gradient import DisconnectedType, grad
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.null_type import NullType
from pytensor.graph.traversal import toposort
from pytensor.scalar.loop import ScalarLoop
from pytensor.tensor.elemwise import Elemwise

from pymc_subsample.graph.concrete import depends_on, merged, rebuild

# What stands for a derivative that is zero.
_NONE = (DisconnectedType, NullType)
# Share of a derivative that a step changes at the end; PyTensor's own sums end at 1e-12.
_SETTLED = 1e-10


def gradients(cost: Variable, wrt: Sequence[Variable], **options: Any) -> list[Variable]:
    """Differentiate as `pytensor.gradient.grad` does, scalar loops too."""
    moving = depends_on([cost], wrt)

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        loop = node.op.scalar_op if isinstance(node.op, Elemwise) else None
        if node.outputs[0] not in moving or not isinstance(loop, ScalarLoop):
            return None
        smooth = _Loop(loop, [_is_float(i) and i in moving for i in node.inputs[1:]])
        return Elemwise(smooth)(*inputs, return_list=True)

    [cost] = rebuild([cost], {v: v for v in wrt}, hook)
    found = grad(cost, list(wrt), **options)
    # PyTensor makes a loop for every state that is read.
    merged([g for g in found if not isinstance(g.type, _NONE)])
    return found


def has_loops(graphs: Iterable[Variable]) -> bool:
    """Whether graphs are evaluated by loops until sums settle, of which nothing encloses values."""
    ops = (node.op for node in toposort(graphs))
    return any(isinstance(op, Elemwise) and isinstance(op.scalar_op, ScalarLoop) for op in ops)


class _Loop(ScalarLoop):
    """A loop that has derivatives in some of its states at first, and of its constants."""

    __props__ = ("fgraph", "moving")

    def __init__(self, loop: ScalarLoop, moving: Sequence[bool]) -> None:
        self.moving = tuple(moving)
        super().__init__(*_parts(loop), loop.name)

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], along: Sequence[Variable]
    ) -> list[Variable]:
        """Return derivatives of a cost by its derivatives in the last states."""
        n_steps, *given = inputs
        states, updates, constants, until = _parts(self)
        n_states, own = len(states), [*states, *constants]
        # Of each derivative of a state: the state, the input, what it is before and after a step.
        entries: list[tuple[int, int, Variable, Variable]] = []
        wanted = [k for k in range(n_states) if not isinstance(along[k].type, _NONE)]
        for j in [k for k, moves in enumerate(self.moving) if moves]:
            moved = {k: states[k].type() for k in _moved(own[j], states, updates)}
            known = {states[k]: before for k, before in moved.items()}
            if j >= n_states:
                known[own[j]] = _number(own[j], 1.0)
            _push(updates, known)
            for k, before in moved.items():
                after = known.get(updates[k], _number(before, 0.0))
                same = after.owner is None  # an update must be made of something
                entries.append((k, j, before, ps.identity(after) if same else after))
        if until is not None:
            settled = [_settled(*pair) for k, _, *pair in entries if k in wanted]
            until = reduce(ps.and_, settled, until)
        loop = ScalarLoop(
            [*states, *(before for _, _, before, _ in entries)],
            [*updates, *(after.astype(before.type.dtype) for _, _, before, after in entries)],
            constants,
            until,
            f"{self.name}_slopes",
        )
        starts = [_number(before, float(k == j)) for k, j, before, _ in entries]
        last = loop(n_steps, *given[:n_states], *starts, *given[n_states:], return_list=True)
        found = [n_steps.zeros_like("float64"), *(x.zeros_like("float64") for x in given)]
        for (k, j, _, _), slope in zip(entries, last[n_states:], strict=False):
            if k in wanted:
                found[1 + j] = found[1 + j] + along[k] * slope
        return found


def _parts(loop: ScalarLoop) -> tuple[list, list, list, Variable | None]:
    """States before and after a step, constants, and whether it is the last."""
    graph = loop.fgraph.unfreeze()
    updates = list(graph.outputs)
    until = updates.pop() if loop.is_while else None
    return graph.inputs[: len(updates)], updates, graph.inputs[len(updates) :], until


def _settled(before: Variable, after: Variable) -> Variable:
    """Whether a step has changed a derivative no more; what is no number does not go on."""
    return ps.invert(ps.gt(ps.abs(after - before), _SETTLED * ps.abs(after)))


def _is_float(var: Variable) -> bool:
    return var.type.dtype.startswith("float")


def _number(like: Variable, value: float) -> Variable:
    return ps.constant(value, dtype=like.type.dtype)


def _moved(source: Variable, states: Sequence[Variable], updates: Sequence[Variable]) -> list[int]:
    """Return which states move where an input does."""
    moving, before = {source}, 0
    while len(moving) > before:
        before = len(moving)
        above = depends_on(updates, list(moving))
        moving |= {s for s, u in zip(states, updates, strict=True) if u in above and _is_float(s)}
    return [k for k, state in enumerate(states) if state in moving]


def _push(outputs: Sequence[Variable], known: dict[Variable, Variable]) -> None:
    """Add derivatives of what depends on variables whose own, along a direction, are known."""
    for node in toposort(outputs):
        parts = []
        for i, x in enumerate(node.inputs):
            if x in known and _is_float(node.outputs[0]):
                part = node.op.pullback(node.inputs, node.outputs, [known[x]])[i]
                parts += [] if isinstance(part.type, _NONE) else [part]
        if parts:
            known[node.outputs[0]] = ps.add(*parts) if len(parts) > 1 else parts[0]
