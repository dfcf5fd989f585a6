r"""Where functions of a row that are made of pieces are smooth.

`switch(c, a, b)` has a kink or a jump where c turns, unless a and b are two forms of one function
there, as those that PyTensor takes for the logarithm of the normal distribution function. Where
the inputs of a row may turn a condition, the place is searched by halving the way, and both
pieces are compared beside it: with k - 1 derivatives in common, they differ by no more than
:math:`O(t^k)` at a distance t from there. A truth or an integer that is reckoned with, as in
`3 * (x > 0)`, jumps.
"""

import re
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import toposort
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.type import continuous_dtypes

from pymc_subsample.graph.concrete import depends_on, rebuild
from pymc_subsample.graph.interpreter import NoForm, array_of
from pymc_subsample.graph.intervals import Enclosure, Enclosures
from pymc_subsample.graph.nodes import elemwise_name, is_constant
from pymc_subsample.graph.numpy_functions import numpy_function

_EXTREMES = {"Maximum", "Minimum", "ScalarMaximum", "ScalarMinimum"}
KINKS = {"Abs", *_EXTREMES}
# Constant but for jumps.
JUMPS = {"Ceil", "Floor", "RoundHalfAwayFromZero", "RoundHalfToEven", "Sign", "Trunc"}
# Smooth but for jumps, or kinks.
_BROKEN = {"Angle", "ArcTan2", "IntDiv", "Mod"}
_SORTED = {"ArgSortOp", "Argmax", "SortOp"}
# Where Ops come from of which kinks and jumps are known.
_OWN = re.compile(r"(pytensor|pymc)\.")
# Ways through a row's box, each halved so many times, and points on it between which conditions
# may turn.
_WAYS, _HALVED, _STOPS = 8, 60, 17
# Points within a box at which guards are looked at, and corners, which are all that four have.
_POINTS, _CORNERS = 8, 16
# Distances from a turn at which its pieces are compared: shares of the way, and of the inputs.
_SHARE, _OF_INPUTS, _NEARER = 0.05, 0.01, 10.0
# Everywhere, in the predictors' units, and distances at which they are compared there.
_ANYWHERE, _STEP = 1e9, 0.5
# What rounding may make of two forms of one function, which have constants in single precision, of
# their difference, and of the power of t.
_ROUNDING, _EXACT, _CANCELLED, _SLACK = 1e-7, 1e-12, 1e-13, 3.0


class Pieces:
    """The log-likelihood of a row, its guards, and the conditions that choose between pieces.

    `loglik` is the vector graph of predictors and data that it is made from, within its guards, the
    conditions beyond which it is -inf; what makes kinks is written as a `Switch`.
    """

    def __init__(self, loglik: Variable, predictors: Sequence[Variable], data: Sequence[Variable]):
        self._inputs = [*predictors, *data]
        guards: list[Variable] = []
        varying = depends_on([loglik], predictors)

        def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
            if node.outputs[0] not in varying or not isinstance(node.op, Elemwise):
                return None
            guard = _guard(node, inputs)
            if guard is not None:
                guards.append(guard[0])
                return [guard[1]]
            new = _as_switch(node, inputs)
            return None if new is None else [new.astype(node.outputs[0].type.dtype)]

        [self.loglik] = rebuild([loglik], {}, hook)
        self._guards = guards
        self._guarded = numpy_function(self._inputs, guards) if guards else None
        nodes = list(toposort([self.loglik], blockers=self._inputs))
        varying = depends_on([self.loglik], predictors)
        self._switches = [
            n for n in nodes if elemwise_name(n) == "Switch" and n.inputs[0] in varying
        ]
        self._jumps = any(_jumps(n, varying) for n in nodes)
        self._forms = {
            n: (
                numpy_function(self._inputs, n.inputs[:1]),
                numpy_function(self._inputs, n.inputs[1:]),
            )
            for n in self._switches
        }

    def joined(
        self,
        at: np.ndarray,
        data: np.ndarray,
        far: np.ndarray,
        order: int,
        *,
        everywhere: bool = False,
    ) -> tuple[dict[Apply, np.ndarray], np.ndarray]:
        """Look for kinks and jumps while predictors, now `at`, move by at most `far`, both (E, m).

        Without a kink, pieces have ``order - 1`` derivatives in common where they meet;
        `everywhere` says that predictors may move so far that a share of it is no short way.
        Returns of each switch in which rows it makes no kink or jump, shape (m,), and the rows
        without any.
        """
        count = at.shape[1]
        found: dict[Apply, np.ndarray] = {}
        smooth = np.full(count, not self._jumps)
        elements = self._elements(at, data, far)
        for node in self._switches:
            found[node] = np.ones(count, dtype=bool)
            try:
                with np.errstate(all="ignore"):
                    [conditions] = elements.evaluate([node.inputs[0]])
            except NoForm:
                found[node][:] = False
            else:
                turning = np.array(
                    [np.broadcast_to(c.low != c.high, count) for c in conditions.flat]
                )
                rows = np.flatnonzero(turning.any(axis=0))
                if rows.size:
                    box, turns = (at[:, rows], data[:, rows], far[:, rows]), turning[:, rows]
                    with np.errstate(all="ignore"):
                        found[node][rows] = self._joins(
                            node, conditions.shape, turns, box, order, everywhere
                        )
            smooth &= found[node]
        return found, smooth

    def held(self, predictors: np.ndarray, data: np.ndarray, far: np.ndarray) -> np.ndarray:
        """Whether rows keep to their guards, surely or at corners of the box and points within."""
        held = np.ones(predictors.shape[1], dtype=bool)
        if self._guarded is None:
            return held
        held = self._surely_held(predictors, data, far)
        rows = np.flatnonzero(~held)
        at, columns, far = predictors[:, rows], data[:, rows], far[:, rows]
        rng, found = np.random.default_rng(0), np.ones(len(rows), dtype=bool)
        count = len(predictors)
        if 2**count <= _CORNERS:
            corners = np.array(list(product((-1.0, 1.0), repeat=count)))
        else:
            corners = rng.choice((-1.0, 1.0), size=(_CORNERS, count))
        within = rng.uniform(-1.0, 1.0, size=(_POINTS, count))
        for z in np.concatenate([corners, within]):
            for condition in self._guarded(*(at + far * z[:, None]), *columns):
                found &= np.asarray(condition, dtype=bool)
        held[rows] = found
        return held

    def smooth_everywhere(self, data: np.ndarray, order: int) -> bool:
        """Whether rows of the data given, shape (k, m), have no kinks wherever predictors are.

        They must surely keep to their guards, and turns be told from kinks.
        """
        at = np.zeros((len(self._inputs) - len(data), data.shape[1]))
        far = np.full_like(at, _ANYWHERE)
        _, smooth = self.joined(at, data, far, order, everywhere=True)
        return bool(np.all(smooth)) and bool(np.all(self._surely_held(at, data, far)))

    def _surely_held(self, at: np.ndarray, data: np.ndarray, far: np.ndarray) -> np.ndarray:
        held = np.ones(at.shape[1], dtype=bool)
        elements = self._elements(at, data, far)
        try:
            with np.errstate(all="ignore"):
                found = elements.evaluate(self._guards)
        except NoForm:
            return ~held
        for conditions in found:
            for c in conditions.flat:
                held &= (c.low > 0) | (c.high < 0)
        return held

    def _elements(self, at: np.ndarray, data: np.ndarray, far: np.ndarray) -> Enclosures:
        boxes = [Enclosure(x - f, x + f) for x, f in zip(at, far, strict=True)]
        boxes += [Enclosure(x, x) for x in data]
        known = zip(self._inputs, boxes, strict=True)
        return Enclosures({v: array_of([x], (1,)) for v, x in known})

    def _joins(
        self,
        node: Apply,
        shape: tuple[int, ...],
        turning: np.ndarray,
        box: tuple[np.ndarray, np.ndarray, np.ndarray],
        order: int,
        everywhere: bool,
    ) -> np.ndarray:
        """Whether a switch joins its pieces wherever elements of it turn, shape (E, m)."""
        at, data, far = box
        rng, count = np.random.default_rng(0), at.shape[1]
        seen, same = np.zeros_like(turning), np.ones(count, dtype=bool)
        condition, pieces = self._forms[node]

        def elements(arrays: Sequence[np.ndarray], k: int, length: int) -> list[np.ndarray]:
            full = (*shape[: (r := _row_axis(arrays, shape, length))], length, *shape[r + 1 :])
            moved = (np.moveaxis(np.broadcast_to(x, full), r, -1) for x in arrays)
            return [x.reshape(-1, length)[k] for x in moved]

        for way in range(_WAYS):
            ends = np.array([-np.ones_like(at), np.ones_like(at)])
            if way:
                ends = rng.uniform(-1.0, 1.0, size=ends.shape)
                ends = np.sign(ends) if way % 2 and len(at) > 1 else ends
            start, end = at + far * ends
            for k in np.flatnonzero(turning.any(axis=1)).tolist():
                truths = np.array(
                    [
                        elements(condition(*(start + stop * (end - start)), *data), k, count)[0]
                        for stop in np.linspace(0.0, 1.0, _STOPS)
                    ]
                )
                turns = np.count_nonzero(truths[1:] != truths[:-1], axis=0)
                # A way shows one turn: where there are more, they may be of different kinds.
                same &= turns <= 1
                first = truths[0]
                rows = np.flatnonzero(turning[k] & (turns == 1))
                if not rows.size:
                    continue
                origin, along, columns = start[:, rows], (end - start)[:, rows], data[:, rows]
                low, high = np.zeros(len(rows)), np.ones(len(rows))
                for _ in range(_HALVED):
                    middle = (low + high) / 2
                    [truth] = elements(condition(*origin + middle * along, *columns), k, len(rows))
                    low = np.where(truth == first[rows], middle, low)
                    high = np.where(truth == first[rows], high, middle)
                turn = (low + high) / 2
                side = np.where(turn < 0.5, 1.0, -1.0)
                share = _distance(origin + turn * along, along, everywhere) * side
                x = [origin + (turn + share / n) * along for n in (1, _NEARER, _NEARER**2)]
                found = np.array([elements(pieces(*p, *columns), k, len(rows)) for p in x])
                same[rows] &= _meet(found[:, 0], found[:, 1], order)
                seen[k, rows] = True
        return same & np.all(seen | ~turning, axis=0)


def _meet(a: np.ndarray, b: np.ndarray, order: int) -> np.ndarray:
    """Whether two pieces, at points nearer and nearer to a turn, have derivatives in common.

    `a` and `b` have shape (3, m). Forms of one function may differ by a constant that is small
    beside them, and in their slopes by one that is small beside these.
    """
    gap = a - b
    steps, slopes = np.abs(np.diff(gap, axis=0)), np.abs(np.diff(a, axis=0)[1])
    slopes = slopes + np.abs(np.diff(b, axis=0)[1])
    size, share = np.abs(a[2]) + np.abs(b[2]), _SLACK * _NEARER**-order
    # Of order 4 bounds may be as small as what two forms differ by.
    alike = _ROUNDING if order < 4 else _EXACT
    no_jump = np.abs(gap[2]) <= np.fmax(share * np.abs(gap[1]), alike * size)
    no_kink = steps[1] <= np.fmax(share * steps[0], alike * slopes + _CANCELLED * size)
    return np.all(np.isfinite(gap), axis=0) & no_jump & no_kink


def _row_axis(arrays: Sequence[np.ndarray], shape: tuple[int, ...], length: int) -> int:
    """Which axis of arrays is that of rows, of length one in `shape`."""
    full = np.broadcast_shapes(*(x.shape for x in arrays))
    axes = [r for r, n in enumerate(full) if n == length and shape[r] == 1]
    return axes[0] if axes else 0


def _distance(x: np.ndarray, along: np.ndarray, everywhere: bool) -> np.ndarray:
    """Share of the way from a turn at which pieces are compared."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if everywhere:
            return _STEP / np.abs(along).max(axis=0)
        of_inputs = np.where(along != 0, np.abs(x / along), np.inf).min(axis=0)
    return np.maximum(_SHARE, np.where(np.isfinite(of_inputs), _OF_INPUTS * of_inputs, 0.0))


def _guard(node: Apply, inputs: Sequence[Variable]) -> tuple[Variable, Variable] | None:
    """Return a condition beyond which a node is -inf, and what it is within, if it has one."""
    if elemwise_name(node) != "Switch" or inputs[0].type.ndim > 1:
        return None
    for condition, taken, other in (
        (inputs[0], *inputs[1:]),
        (pt.eq(inputs[0], 0), *inputs[:0:-1]),
    ):
        if is_constant(other, -np.inf) and taken.type == node.outputs[0].type:
            return condition, taken
    return None


def _as_switch(node: Apply, inputs: Sequence[Variable]) -> Variable | None:
    """Write what has kinks as a choice between pieces."""
    name, x = elemwise_name(node), inputs[0]
    if name == "Abs":
        return pt.switch(x >= 0, x, -x)
    if name == "Clip":
        above = pt.switch(x >= inputs[1], x, inputs[1])
        return pt.switch(above <= inputs[2], above, inputs[2])
    if name in _EXTREMES and len(inputs) == 2:
        larger = "Max" in str(name)
        return pt.switch(x >= inputs[1] if larger else x <= inputs[1], *inputs)
    return None


def may_jump(
    outputs: Sequence[Variable], inputs: Sequence[Variable], passed: Callable[[Op], bool]
) -> bool:
    """Whether graphs, as they are written, round or choose by what depends on the inputs.

    Ops that are `passed` do not.
    """
    varying = set(inputs)
    for node in toposort(outputs):
        moved = [v for v in node.inputs if v in varying]
        if not moved:
            continue
        varying.update(node.outputs)
        if passed(node.op):
            continue
        inner = getattr(node.op, "fgraph", None)
        if inner is not None and may_jump(inner.outputs, inner.inputs, passed):
            return True
        name, kind = elemwise_name(node), type(node.op).__name__
        if name in JUMPS | _BROKEN or kind in _SORTED | {"SearchsortedOp"}:
            return True
        if (name == "Switch" or kind == "IfElse") and node.inputs[0] in varying:
            return True
        if inner is None and _reckons(node, moved):
            return True
    return False


def _reckons(node: Apply, moved: Sequence[Variable]) -> bool:
    """Whether a node makes a number of truths or integers."""
    made, *given = (getattr(v.type, "dtype", "") for v in (node.outputs[0], *moved))
    return made in continuous_dtypes and not all(x in continuous_dtypes for x in given)


def _jumps(node: Apply, varying: set[Variable]) -> bool:
    """Whether a node has kinks or jumps, and is no choice between two pieces."""
    moved = [v for v in node.inputs if v in varying]
    if not moved:
        return False
    if isinstance(node.op, CAReduce) and type(node.op.scalar_op).__name__ in _EXTREMES:
        return True
    if isinstance(node.op, Elemwise) and not _OWN.match(type(node.op.scalar_op).__module__):
        return True  # nothing is known of it
    if type(node.op).__name__ in _SORTED or elemwise_name(node) in JUMPS | _BROKEN | _EXTREMES:
        return True
    if elemwise_name(node) == "Switch":
        moved = [v for v in node.inputs[1:] if v in varying]
    return _reckons(node, moved)
