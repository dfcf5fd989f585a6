"""Row functions over intervals: what encloses their values while their inputs vary.

The graph of one row (see `scalars`) is evaluated with intervals in place of numbers,
for many rows at once. The result holds every value that the inputs allow; it is wider
than it need be where an input occurs more than once.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op
from pytensor.scalar.basic import Composite
from scipy import special

from pymc_subsample.graph.concrete import specialised
from pymc_subsample.graph.interpreter import NoForm, array_of
from pymc_subsample.graph.scalars import Scalars


class _Work(threading.local):
    """Intervals that a thread has computed: what its time is counted by."""

    elements = 0


WORK = _Work()


class Enclosure:
    """Intervals from `low` to `high`, arrays of one shape over rows or numbers.

    `above`: whether it is known that `low` itself is not reached.
    """

    def __init__(self, low: ArrayLike, high: ArrayLike, *, above: bool = False):
        self.low = np.where(np.isnan(low), -np.inf, low)
        self.high = np.where(np.isnan(high), np.inf, high)
        self.above = above
        WORK.elements += self.low.size

    @property
    def size(self) -> np.ndarray:
        """Largest size of an element."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def positive(self) -> bool:
        """Whether all numbers are above zero."""
        return bool(np.all(self.low >= 0)) and (self.above or bool(np.all(self.low > 0)))


EVERYTHING = Enclosure(-np.inf, np.inf)


def enclose(
    outputs: Sequence[Variable], inputs: Sequence[Variable]
) -> Callable[[Sequence[Enclosure]], list[Enclosure]]:
    """Return a function that encloses graphs over rows given their inputs', or raises `NoForm`."""
    fgraph = specialised(inputs, outputs)

    def evaluate(given: Sequence[Enclosure]) -> list[Enclosure]:
        known = {v: array_of([x], (1,)) for v, x in zip(fgraph.inputs, given, strict=True)}
        with np.errstate(all="ignore"):
            return [a.item() for a in Enclosures(known).evaluate(fgraph.outputs)]

    return evaluate


class Enclosures(Scalars):
    """Arrays of intervals."""

    def __init__(self, known: Mapping[Variable, np.ndarray]):
        super().__init__(known, applied)

    def _number(self, x: np.generic) -> Enclosure:
        return Enclosure(float(x), float(x))

    def _integer(self, element: Enclosure) -> int:
        if np.ndim(element.low) or element.low != element.high:
            raise NoForm
        return int(element.low)


def _of(x: Any) -> Enclosure:
    if isinstance(x, Enclosure):
        return x
    number = float(x.data if isinstance(x, Constant) else x)
    return Enclosure(number, number)


def applied(op: Op, inputs: Sequence) -> list[Enclosure]:
    """Return what encloses the outputs of a scalar Op."""
    if isinstance(op, Composite):  # as powers become
        inner: dict[Variable, object] = dict(zip(op.fgraph.inputs, inputs, strict=True))
        for node in op.fgraph.toposort():
            results = applied(node.op, [inner.get(i, i) for i in node.inputs])
            inner.update(zip(node.outputs, results, strict=True))
        return [_of(inner.get(v, v)) for v in op.fgraph.outputs]
    name = type(op).__name__
    x = [_of(i) for i in inputs]
    if name in _RISING | _FALLING:
        return [_monotone(_function(op), x[0], falls=name in _FALLING)]
    if name == "Mul" and len(x) == 2 and inputs[0] is inputs[1]:
        return [_even(np.square, x[0])]
    if name == "Cast":
        return [_cast(op, x[0])]
    if name not in _RULES:
        raise NoForm
    return [_RULES[name](*x)]


def _function(op: Op) -> Callable:
    """Return a scalar Op as a function of arrays."""
    if type(op).__name__ in _FUNCTIONS:
        return _FUNCTIONS[type(op).__name__]
    *library, name = op.nfunc_spec[0].split(".")
    return getattr(special if library else np, name)


def _cast(op: Op, x: Enclosure) -> Enclosure:
    if op.o_type.dtype.startswith("float"):
        return x
    if op.o_type.dtype == "bool":
        return _truth((x.low > 0) | (x.high < 0), (x.low != 0) | (x.high != 0))
    return _monotone(np.trunc, x)


def _monotone(function: Callable, x: Enclosure, falls: bool = False) -> Enclosure:
    ends = function(x.high if falls else x.low), function(x.low if falls else x.high)
    return Enclosure(*ends)


def _even(function: Callable, x: Enclosure) -> Enclosure:
    low, high = function(np.abs(x.low)), function(np.abs(x.high))
    inside = (x.low <= 0) & (x.high >= 0)
    return Enclosure(np.where(inside, function(0.0), np.minimum(low, high)), np.maximum(low, high))


def _add(*terms: Enclosure) -> Enclosure:
    return Enclosure(sum(x.low for x in terms), sum(x.high for x in terms))


def _negative(x: Enclosure) -> Enclosure:
    return Enclosure(-x.high, -x.low)


def _times(*factors: Enclosure) -> Enclosure:
    x, *rest = factors
    for y in rest:
        ends = [a * b for a in (x.low, x.high) for b in (y.low, y.high)]
        ends = [np.where(np.isnan(e), 0.0, e) for e in ends]  # zero times what is not bounded
        x = Enclosure(reduce(np.minimum, ends), reduce(np.maximum, ends))
    return x


def _reciprocal(x: Enclosure) -> Enclosure:
    low = np.where(x.high == 0, -np.inf, 1 / x.high)
    high = np.where(x.low == 0, np.inf, 1 / x.low)
    across = ((x.low < 0) & (x.high > 0)) | ((x.low == 0) & (x.high == 0))
    return Enclosure(np.where(across, -np.inf, low), np.where(across, np.inf, high))


def _power(x: Enclosure, exponent: Enclosure) -> Enclosure:
    p = exponent.low
    if np.ndim(p) or p != exponent.high:
        power = _monotone(np.exp, _times(exponent, _monotone(np.log, x)))
        defined = x.low >= 0
        return Enclosure(
            np.where(defined, power.low, -np.inf), np.where(defined, power.high, np.inf)
        )
    if p < 0:
        return _reciprocal(_power(x, Enclosure(-p, -p)))
    if p % 2 == 0:
        return _even(lambda a: a**p, x)
    return _monotone(lambda a: a**p, x)  # not a number where x may be negative and p is no integer


def _extreme(function: np.ufunc) -> Callable[..., Enclosure]:
    return lambda *x: Enclosure(
        function.reduce(np.broadcast_arrays(*(a.low for a in x))),
        function.reduce(np.broadcast_arrays(*(a.high for a in x))),
    )


def _truth(surely: np.ndarray | np.bool_, maybe: np.ndarray | np.bool_) -> Enclosure:
    return Enclosure(np.where(surely, 1.0, 0.0), np.where(maybe, 1.0, 0.0))


def _equal(x: Enclosure, y: Enclosure) -> Enclosure:
    same = (x.low == x.high) & (y.low == y.high) & (x.low == y.low)
    return _truth(same, (x.low <= y.high) & (y.low <= x.high))


def _unbounded(x: Enclosure) -> Enclosure:
    return _truth(np.isinf(x.low) & (x.low == x.high), np.isinf(x.low) | np.isinf(x.high))


def _not(x: Enclosure) -> Enclosure:
    return Enclosure(1 - x.high, 1 - x.low)


def _switch(condition: Enclosure, x: Enclosure, y: Enclosure) -> Enclosure:
    first = (condition.low > 0) | (condition.high < 0)
    second = (condition.low == 0) & (condition.high == 0)
    low = np.where(first, x.low, np.where(second, y.low, np.minimum(x.low, y.low)))
    high = np.where(first, x.high, np.where(second, y.high, np.maximum(x.high, y.high)))
    return Enclosure(low, high)


def _positive_only(function: Callable) -> Callable:
    """Not a number at and below zero, where the function is not monotone."""
    return lambda x: np.where(np.asarray(x) > 0, function(x), np.nan)


def _log_gamma(x: Enclosure) -> Enclosure:
    least = 1.4616321449683622
    ends = special.gammaln(x.low), special.gammaln(x.high)
    inside = (x.low <= least) & (x.high >= least)
    low = np.where(inside, special.gammaln(least), np.minimum(*ends))
    defined = x.low > 0
    return Enclosure(np.where(defined, low, -np.inf), np.where(defined, np.maximum(*ends), np.inf))


def _incomplete(function: Callable, falls: bool) -> Callable[..., Enclosure]:
    """Return the rule of an incomplete gamma function, lower or upper: one falls with the shape."""

    def rule(a: Enclosure, x: Enclosure) -> Enclosure:
        low, high = (a.high, x.low), (a.low, x.high)
        ends = (function(*high), function(*low)) if falls else (function(*low), function(*high))
        return Enclosure(*ends)

    return rule


def _polygamma(order: Enclosure, x: Enclosure) -> Enclosure:
    n = order.low
    if np.ndim(n) or n != order.high or n < 0:
        return EVERYTHING
    function = _positive_only(lambda a: special.polygamma(int(n), a))
    return _monotone(function, x, falls=int(n) % 2 == 1)


# Monotone functions, and those of them that are not NumPy's or SciPy's by PyTensor's own account.
_RISING = {
    "ArcSinh", "ArcTan", "Ceil", "Erf", "Exp", "Exp2", "Expm1", "Floor", "Identity", "Log", "Log10",
    "Log1p", "Log2", "Psi", "Sigmoid", "Sign", "Sinh", "Softplus", "Sqrt", "Tanh", "Trunc",
}  # fmt: skip
_FALLING = {"Erfc", "Erfcx", "Log1mexp", "TriGamma"}
_FUNCTIONS: Mapping[str, Callable] = {
    "Identity": lambda a: a,
    "Log1mexp": lambda a: np.log(-np.expm1(a)),
    "Psi": _positive_only(special.psi),
    "Softplus": lambda a: np.logaddexp(0.0, a),
    "TriGamma": _positive_only(lambda a: special.polygamma(1, a)),
}
_RULES: Mapping[str, Callable[..., Enclosure]] = {
    "Add": _add,
    "Sub": lambda x, y: _add(x, _negative(y)),
    "Neg": _negative,
    "Mul": _times,
    "TrueDiv": lambda x, y: _times(x, _reciprocal(y)),
    "Reciprocal": _reciprocal,
    "Sqr": lambda x: _even(np.square, x),
    "Abs": lambda x: _even(np.abs, x),
    "Cosh": lambda x: _even(np.cosh, x),
    "Pow": _power,
    "Maximum": _extreme(np.maximum),
    "Minimum": _extreme(np.minimum),
    "ScalarMaximum": _extreme(np.maximum),
    "ScalarMinimum": _extreme(np.minimum),
    "GammaInc": _incomplete(special.gammainc, falls=False),
    "GammaIncC": _incomplete(special.gammaincc, falls=True),
    "GammaLn": _log_gamma,
    "PolyGamma": _polygamma,
    "Second": lambda x, y: y,
    "Switch": _switch,
    "GT": lambda x, y: _truth(x.low > y.high, x.high > y.low),
    "GE": lambda x, y: _truth(x.low >= y.high, x.high >= y.low),
    "LT": lambda x, y: _truth(x.high < y.low, x.low < y.high),
    "LE": lambda x, y: _truth(x.high <= y.low, x.low <= y.high),
    "EQ": _equal,
    "NEQ": lambda x, y: _not(_equal(x, y)),
    "AND": _extreme(np.minimum),
    "OR": _extreme(np.maximum),
    "Invert": _not,
    "IsInf": _unbounded,
    "IsNan": lambda x: _truth(np.False_, np.isinf(x.low) | np.isinf(x.high)),
}
