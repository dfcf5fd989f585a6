"""Bounds of a quantity whatever the parameters: one interval for all elements of an array."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.tensor.math import Sum
from pytensor.tensor.special import Softmax

from pymc_subsample.graph.interpreter import REARRANGING, Interpreter, Merge, NoForm
from pymc_subsample.graph.intervals import EVERYTHING, Enclosure, applied
from pymc_subsample.graph.nodes import elemwise_name, is_product


class OverallIntervals(Interpreter[Enclosure]):
    """Bounds of the variables of a graph; data-only ones are evaluated.

    The values of `dependent` ones depend on parameters. ``pieces(var)`` returns arrays that
    together hold the elements of a data-only variable.
    """

    def __init__(self, dependent: set[Variable], pieces: Callable[[Variable], Iterable]):
        super().__init__({})
        self._dependent, self._pieces = dependent, pieces

    def of(self, var: Variable) -> Enclosure:
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
        return bool(a.low > b.high or (a.low == b.high and np.isfinite(a.low) and strictly))

    def value(self, var: Variable) -> Enclosure:
        """Return what every element of a variable is in."""
        if var not in self.known and var not in self._dependent:
            self.known[var] = self._given(var)
        return self.known.get(var, EVERYTHING)

    def _given(self, var: Variable) -> Enclosure:
        parts = [var.data] if isinstance(var, Constant) else self._pieces(var)
        ends = [(np.min(x), np.max(x)) for x in parts if np.size(x)]
        if not ends or np.isnan(np.min(ends)):
            return EVERYTHING
        return Enclosure(float(np.min(ends)), float(np.max(ends)))

    def _leaves(self, outputs: Sequence[Variable]) -> list[Variable]:
        return [v for v in ancestors(outputs) if v not in self._dependent]

    def _results(self, node: Apply) -> list[Enclosure]:
        if isinstance(node.op, Softmax):
            return [Enclosure(0.0, 1.0)]
        if is_product(node):  # without a look at its matrices, which may be all of the data
            return [EVERYTHING]
        if isinstance(node.op, REARRANGING):
            return [self.value(node.inputs[0])] * len(node.outputs)
        if isinstance(node.op, Sum):
            return [Enclosure(0.0, np.inf) if self.value(node.inputs[0]).low >= 0 else EVERYTHING]
        try:
            return super()._results(node)
        except NoForm:
            return [EVERYTHING] * len(node.outputs)

    def _merged(self, values: Sequence[Enclosure], function: Merge) -> Enclosure:
        low = min(float(x.low) for x in values)
        above = all(x.above or x.low > low for x in values)
        return Enclosure(low, max(float(x.high) for x in values), above=bool(above))

    def _elementwise(self, op: Op, values: Sequence[Enclosure]) -> list[Enclosure]:
        name, x = type(op).__name__, values[0]
        if name == "Switch":
            return [self._merged(values[1:], np.concatenate)]
        with np.errstate(all="ignore"):
            # Of what is one interval, elements may differ: x * x is no square here.
            [found] = applied(op, [Enclosure(v.low, v.high) for v in values])
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
        return [Enclosure(found.low, found.high, above=bool(above))]
