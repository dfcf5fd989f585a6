"""Bounds of a quantity whatever the parameters: one interval for all elements of an array."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.tensor.math import Sum
from pytensor.tensor.special import Softmax

from pymc_subsample.graph.interpreter import REARRANGING, Interpreter, Merge, NoForm
from pymc_subsample.graph.intervals import Enclosure, applied
from pymc_subsample.graph.nodes import elemwise_name, is_product


@dataclass(frozen=True)
class Interval:
    """Numbers from `lower` to `upper`; `above`: `lower` itself is not reached."""

    lower: float = -np.inf
    upper: float = np.inf
    above: bool = False

    @property
    def positive(self) -> bool:
        """Whether all are above zero."""
        return self.lower > 0 or (self.lower == 0 and self.above)


_ANY = Interval()


class OverallIntervals(Interpreter[Interval]):
    """Bounds of the variables of a graph; data-only ones are evaluated.

    The values of `dependent` ones depend on parameters. ``pieces(var)`` returns arrays that
    together hold the elements of a data-only variable.
    """

    def __init__(self, dependent: set[Variable], pieces: Callable[[Variable], Iterable]):
        super().__init__({})
        self._dependent, self._pieces = dependent, pieces

    def of(self, var: Variable) -> Interval:
        """Return an interval that holds every element of `var`."""
        return self.evaluate([var])[0]

    def always(self, condition: Variable) -> bool:
        """Whether a comparison holds in every element (NaN aside)."""
        name = elemwise_name(condition.owner)
        if name not in {"GE", "GT", "LE", "LT"}:
            return False
        a, b = map(self.of, condition.owner.inputs)
        if name in {"LE", "LT"}:
            a, b = b, a
        strictly = name in {"GE", "LE"} or a.above
        return a.lower > b.upper or (a.lower == b.upper and np.isfinite(a.lower) and strictly)

    def value(self, var: Variable) -> Interval:
        """Return what every element of a variable is in."""
        if var not in self.known and var not in self._dependent:
            self.known[var] = self._given(var)
        return self.known.get(var, _ANY)

    def _given(self, var: Variable) -> Interval:
        parts = [var.data] if isinstance(var, Constant) else self._pieces(var)
        ends = [(np.min(x), np.max(x)) for x in parts if np.size(x)]
        if not ends or np.isnan(np.min(ends)):
            return _ANY
        return Interval(float(np.min(ends)), float(np.max(ends)))

    def _leaves(self, outputs: Sequence[Variable]) -> list[Variable]:
        return [v for v in ancestors(outputs) if v not in self._dependent]

    def _results(self, node: Apply) -> list[Interval]:
        if isinstance(node.op, Softmax):
            return [Interval(0.0, 1.0)]
        if is_product(node):  # without a look at its matrices, which may be all of the data
            return [_ANY]
        if isinstance(node.op, REARRANGING):
            return [self.value(node.inputs[0])] * len(node.outputs)
        if isinstance(node.op, Sum):
            return [Interval(0.0) if self.value(node.inputs[0]).lower >= 0 else _ANY]
        try:
            return super()._results(node)
        except NoForm:
            return [_ANY] * len(node.outputs)

    def _merged(self, values: Sequence[Interval], function: Merge) -> Interval:
        lower = min(x.lower for x in values)
        above = all(x.above or x.lower > lower for x in values)
        return Interval(lower, max(x.upper for x in values), above)

    def _elementwise(self, op: Op, values: Sequence[Interval]) -> list[Interval]:
        name, x = type(op).__name__, values[0]
        if name == "Switch":
            return [self._merged(values[1:], np.concatenate)]
        with np.errstate(all="ignore"):
            [found] = applied(op, [Enclosure(x.lower, x.upper) for x in values])
        match name:
            case "Exp" | "Softplus":
                above = found.low == 0
            case "Sqrt" | "Pow":
                above = found.low == 0 and x.positive
            case "Mul" | "TrueDiv" | "Reciprocal":
                above = found.low == 0 and all(v.positive for v in values)
            case "Add":
                above = any(v.above for v in values)
            case "Sub":
                above = x.above
            case "Second" | "Cast" | "Identity":
                above = values[-1].above
            case _:
                above = False
        return [Interval(float(found.low), float(found.high), bool(above))]
