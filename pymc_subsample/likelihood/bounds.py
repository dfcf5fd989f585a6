"""Bounds of a quantity whatever the parameters, by interval arithmetic."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import Alloc, Join
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Sum
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.special import Softmax
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from pymc_subsample.likelihood.graph import elemwise_name, evaluate

_VIEWS = (Alloc, DimShuffle, Reshape, SpecifyShape, Subtensor, AdvancedSubtensor)


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

    def union(self, other: "Interval") -> "Interval":
        """Return the smallest interval that holds both."""
        above = all(x.above or x.lower > min(self.lower, other.lower) for x in (self, other))
        return Interval(min(self.lower, other.lower), max(self.upper, other.upper), above)

    def __neg__(self) -> "Interval":
        return Interval(-self.upper, -self.lower)

    def __add__(self, other: "Interval") -> "Interval":
        above = self.above or other.above
        return Interval(self.lower + other.lower, self.upper + other.upper, above)

    def __mul__(self, other: "Interval") -> "Interval":
        ends = [
            0.0 if 0 in (a, b) else a * b
            for a in (self.lower, self.upper)
            for b in (other.lower, other.upper)
        ]
        above = self.positive and other.positive and (self.above or other.above)
        return Interval(min(ends), max(ends), above)

    def reciprocal(self) -> "Interval":
        """Return the interval of 1 / x."""
        if self.lower < 0 or self.upper == 0:
            return Interval()
        return Interval(
            1 / self.upper, 1 / self.lower if self.lower else np.inf, self.upper == np.inf
        )


_POSITIVE = Interval(0.0, above=True)
_UNIT = Interval(0.0, 1.0)
_RANGES = {
    "Sigmoid": _UNIT,
    "Exp": _POSITIVE,
    "Softplus": _POSITIVE,
    "Erfc": Interval(0.0, 2.0),
    "Erf": Interval(-1.0, 1.0),
    "Tanh": Interval(-1.0, 1.0),
    "Abs": Interval(0.0),
    "Sqr": Interval(0.0),
}


class Bounds:
    """Bounds of the variables of a graph; data-only ones are evaluated."""

    def __init__(self, dependent: set[Variable], arrays: Mapping[Variable, np.ndarray]):
        self._dependent = dependent
        self._arrays = arrays
        self._known: dict[Variable, Interval] = {}

    def of(self, var: Variable) -> Interval:
        """Return an interval that holds every element of `var`."""
        if var not in self._known:
            self._known[var] = self._data(var) if var not in self._dependent else self._apply(var)
        return self._known[var]

    def always(self, condition: Variable) -> bool:
        """Whether a comparison holds in every element (NaN aside)."""
        name = elemwise_name(condition.owner)
        if name not in {"GE", "GT", "LE", "LT"}:
            return False
        a, b = map(self.of, condition.owner.inputs)
        difference = a + -b if name in {"GE", "GT"} else b + -a
        return difference.lower >= 0 if name in {"GE", "LE"} else difference.positive

    def _data(self, var: Variable) -> Interval:
        value = var.data if isinstance(var, Constant) else evaluate([var], self._arrays)[0]
        if np.size(value) == 0 or np.isnan(np.min(value)):
            return Interval()
        return Interval(float(np.min(value)), float(np.max(value)))

    def _apply(self, var: Variable) -> Interval:
        node = var.owner
        if node is None:
            return Interval()
        if isinstance(node.op, _VIEWS):
            return self.of(node.inputs[0])
        if isinstance(node.op, Softmax):
            return _UNIT
        if isinstance(node.op, Sum):
            return Interval(0.0) if self.of(node.inputs[0]).lower >= 0 else Interval()
        if isinstance(node.op, Join):
            return self._union(node.inputs)
        return self._elemwise(node)

    def _union(self, variables: Iterable[Variable]) -> Interval:
        first, *rest = map(self.of, variables)
        for interval in rest:
            first = first.union(interval)
        return first

    def _elemwise(self, node: Apply) -> Interval:
        name = elemwise_name(node)
        if name in _RANGES:
            return _RANGES[name]
        if name == "Switch":
            return self._union(node.inputs[1:])
        if name in {"Second", "Cast", "Identity"} and node.outputs[0].type.dtype.startswith(
            "float"
        ):
            return self.of(node.inputs[-1])
        if name not in {"Add", "Sub", "Neg", "Mul", "TrueDiv", "Reciprocal", "Sqrt", "Pow"}:
            return Interval()
        x, *others = map(self.of, node.inputs)
        match name:
            case "Neg":
                return -x
            case "Reciprocal":
                return x.reciprocal()
            case "Sqrt":
                return _POSITIVE if x.positive else Interval(0.0)
            case "Pow":
                even = others[0].lower == others[0].upper and others[0].lower % 2 == 0
                return _POSITIVE if x.positive else Interval(0.0) if even else Interval()
        for y in others:
            match name:
                case "Add":
                    x = x + y
                case "Sub":
                    x = x + -y
                case "Mul":
                    x = x * y
                case "TrueDiv":
                    x = x * y.reciprocal()
        return x
