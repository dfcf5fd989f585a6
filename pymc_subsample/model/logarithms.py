r"""Logarithms of sums of exponentials with coefficients, which underflow as they are written.

PyTensor has :math:`\log \sum_k e^{x_k}` in a stable form, as long as exponentials are all there is.
Mixtures written by hand are :math:`\log \sum_k c_k e^{x_k}`, with weights, with indicators that are
zero in some rows, or with sums within sums. As each part of such an expression is a product of a
coefficient and an exponential,

.. math:: \sum_k c_k e^{x_k} = \Bigl(\sum_k c_k e^{x_k - m}\Bigr) e^m, \qquad
          m = \max_{k: c_k \ne 0} x_k,

so is the whole. Its logarithm is m and that of the sum, which neither underflows nor overflows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add, mul, or_

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Sum

from pymc_subsample.graph.concrete import rebuild
from pymc_subsample.graph.nodes import elemwise_name, is_constant
from pymc_subsample.graph.numpy_functions import evaluate


def shifted(
    rows: Variable, parameters: Sequence[Variable], columns: Sequence[Variable]
) -> Variable:
    """Write logarithms of sums of exponentials with coefficients in their stable form.

    Coefficients may be zero where data are, `columns`; what depends on `parameters` is not.
    """
    factored = _Factoring(set(parameters), set(columns))

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if elemwise_name(node) != "Log":
            return None
        found = factored.of(inputs[0])
        if found.exponent is None or found.plain:
            return None
        log = found.exponent
        if found.factors:
            log = log + pt.log(found.coefficient)
        if found.zero is not None:
            log = pt.switch(found.zero, -np.inf, log)
        return [log.astype(node.outputs[0].type.dtype)]

    return rebuild([rows], {}, hook)[0]


@dataclass(frozen=True)
class _Factored:
    """An expression as ``prod(factors) * exp(exponent)``."""

    factors: tuple[Variable, ...] = ()
    exponent: Variable | None = None  # None: no exponential, but what does not underflow.
    zero: Variable | None = None  # Where data make it zero.
    plain: bool = True  # Whether PyTensor has a stable form of its logarithm.

    @property
    def coefficient(self) -> Variable:
        return reduce(mul, self.factors) if self.factors else pt.constant(1.0)

    @property
    def shown(self) -> Variable:
        """The exponent where it is not zero."""
        exponent = pt.constant(0.0) if self.exponent is None else self.exponent
        return exponent if self.zero is None else pt.switch(self.zero, -np.inf, exponent)

    def __mul__(self, other: "_Factored") -> "_Factored":
        return _Factored(
            self.factors + other.factors,
            _joined(add, self.exponent, other.exponent),
            _joined(or_, self.zero, other.zero),
            False,
        )

    @property
    def weight(self) -> Variable:
        """The coefficient, or zero where it may be no number since data choose against it."""
        return (
            self.coefficient if self.zero is None else pt.switch(self.zero, 0.0, self.coefficient)
        )

    def each(self, function: Callable[[Variable], Variable]) -> "_Factored":
        """Apply what moves elements."""
        exponent, zero = (None if v is None else function(v) for v in (self.exponent, self.zero))
        factors = tuple(function(v) if v.type.ndim else v for v in self.factors)
        return replace(self, factors=factors, exponent=exponent, zero=zero)


def _joined(
    function: Callable[[Variable, Variable], Variable], a: Variable | None, b: Variable | None
) -> Variable | None:
    if a is None or b is None:
        return b if a is None else a
    return function(a, b)


class _Factoring:
    """Finds the form of expressions."""

    def __init__(self, parameters: set[Variable], columns: set[Variable]) -> None:
        self._parameters, self._columns = parameters, columns
        self._known: dict[Variable, _Factored] = {}

    def of(self, var: Variable) -> _Factored:
        """Return an expression as a product; with no exponential where it need not have one."""
        if var not in self._known:
            self._known[var] = self._of(var)
        return self._known[var]

    def _of(self, var: Variable) -> _Factored:
        node, name = var.owner, elemwise_name(var.owner)
        inputs = [] if node is None else node.inputs
        if name == "Exp":
            return _Factored((), inputs[0].astype(var.type.dtype))
        if name == "Mul":
            found = reduce(mul, map(self.of, inputs))
        elif name == "TrueDiv":
            below = self.of(inputs[1])
            if below.exponent is None or below.zero is not None:
                below = _Factored((inputs[1],))
            exponent = None if below.exponent is None else -below.exponent
            factors = (pt.reciprocal(below.coefficient),) if below.factors else ()
            found = self.of(inputs[0]) * _Factored(factors, exponent)
        elif name == "Neg":
            found = self.of(inputs[0]) * _Factored((pt.constant(-1.0),))
        elif name in ("Add", "Sub"):
            terms = [self.of(i) for i in inputs]
            if name == "Sub":
                terms[1] = terms[1] * _Factored((pt.constant(-1.0),))
            found = self._sum(var, terms)
        elif name == "Cast" and inputs[0].type.dtype.startswith("float"):
            found = self.of(inputs[0])
        elif name == "Switch":
            found = self._choice(var, *inputs)
        elif node is not None and isinstance(node.op, Sum):
            found = self._along(var, node, self.of(inputs[0]))
        elif node is not None and isinstance(node.op, DimShuffle):
            found = self.of(inputs[0]).each(node.op)
        else:
            return self._number(var)
        return self._number(var) if found.exponent is None and found.zero is None else found

    def _number(self, var: Variable) -> _Factored:
        """Return what has no exponential."""
        above = set(ancestors([var]))
        if is_constant(var, 1.0):
            return _Factored()
        zero = None
        if above.isdisjoint(self._parameters) and (
            not above.isdisjoint(self._columns) or not np.all(evaluate([var], {})[0])
        ):
            zero = pt.eq(var, 0)
        return _Factored((var,), None, zero, False)

    def _sum(self, var: Variable, terms: Sequence[_Factored]) -> _Factored:
        if not any(t.exponent is not None for t in terms):
            return self._number(var)
        if any(t.exponent is None and t.zero is None for t in terms):
            return _Factored((var,), plain=False)  # a term keeps it from zero
        if all(t.plain for t in terms):
            return _Factored((), pt.log(var))
        shown = [t.shown for t in terms]
        most = _finite(reduce(pt.maximum, shown))
        total = reduce(
            add, (t.weight * pt.exp(x - most) for t, x in zip(terms, shown, strict=True))
        )
        return _Factored((total,), most, plain=False)

    def _along(self, var: Variable, node: Apply, term: _Factored) -> _Factored:
        if term.exponent is None:
            return self._number(var)
        if term.plain:
            return _Factored((), pt.log(var))
        [x], axis = node.inputs, node.op.axis
        shape_of = x if x.type.dtype == var.type.dtype else x.astype(var.type.dtype)
        exponent = term.shown + pt.zeros_like(shape_of)
        most = _finite(pt.max(exponent, axis=axis, keepdims=True))
        total = (term.weight * pt.exp(exponent - most)).sum(axis=axis)
        along = tuple(range(x.type.ndim)) if axis is None else axis
        return _Factored((total,), most.squeeze(axis=along), plain=False)

    def _choice(self, var: Variable, test: Variable, *branches: Variable) -> _Factored:
        if not set(ancestors([test])).isdisjoint(self._parameters):
            return _Factored((var,), plain=False)
        for k, never in ((0, pt.eq(test, 0)), (1, pt.neq(test, 0))):
            if is_constant(branches[1 - k], 0.0):
                found = self.of(branches[k])
                zero = _joined(or_, found.zero, never)
                return replace(found, zero=zero, plain=False)
        a, b = map(self.of, branches)
        if a.exponent is None and b.exponent is None:
            return self._number(var)
        if a.zero is not None or b.zero is not None:
            return _Factored((var,), plain=False)
        none = pt.constant(0.0)
        exponent = pt.switch(test, *(none if x.exponent is None else x.exponent for x in (a, b)))
        return _Factored((pt.switch(test, a.coefficient, b.coefficient),), exponent, plain=False)


def _finite(largest: Variable) -> Variable:
    """Zero where no term is possible, or one is infinite: infinities have no difference."""
    return pt.switch(pt.isinf(largest), 0.0, largest)
