r"""Taylor coefficients of row functions over intervals.

While the inputs of a row's function vary within intervals around x, by at most v either way in each
direction, its coefficients along any such direction are enclosed: elements are
:math:`(f, f', f''/2!, f'''/3!)` of :math:`t \mapsto f(x + t v)`, each an interval, which Ops carry
on as they do power series [1]_. This takes one walk over the log-likelihood, where derivatives
in each combination of ten inputs would be 220 graphs.

A function with a kink or a jump within the intervals has no bounded coefficients: it may differ
from its Taylor expansion by more than they say. `piecewise` tells where it has none.

References
----------
.. [1] A. Griewank and A. Walther (2008). Evaluating Derivatives, second edition. SIAM, chapter 13;
   R. E. Moore, R. B. Kearfott and M. J. Cloud (2009). Introduction to Interval Analysis. SIAM,
   section 9.3.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial, reduce
from itertools import chain
from math import comb
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.scalar.basic import BinaryScalarOp, UnaryScalarOp
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.special import LogSoftmax, LogSumExp, Softmax

from pymc_subsample.graph.concrete import ALONG_AXES, UNDIFFERENTIABLE
from pymc_subsample.graph.incomplete_gamma import center_of, shape_integrals
from pymc_subsample.graph.interpreter import NoForm, array_of, axes_of
from pymc_subsample.graph.intervals import EVERYTHING, Enclosure, applied, enclose
from pymc_subsample.graph.jet_arithmetic import ZERO, Jet, Slope, added, power_of, product, times
from pymc_subsample.graph.jet_sums import log_of_sum
from pymc_subsample.graph.piecewise import JUMPS, KINKS
from pymc_subsample.graph.scalars import Scalars

# Ops that are constant but for jumps: of what they decide on, if they are truths.
_TRUTHS = {"AND", "EQ", "GE", "GT", "Invert", "IsInf", "IsNan", "LE", "LT", "NEQ", "OR"}


def enclose_coefficient(
    output: Variable, inputs: Sequence[Variable], order: int
) -> Callable[..., np.ndarray]:
    """Return a function that bounds the size of a coefficient of a vector graph over rows.

    It takes where inputs are, numbers or intervals of shape (m,) each; their gradients, (m, k), or
    None for those that
    stay; how far directions u, of length one at most, go on; and what `Pieces.joined` says of the
    graph. It raises `NoForm` if some Op has no form for one row or no rule.
    """

    def bound(
        at: Sequence[np.ndarray | Enclosure],
        gradients: Sequence[np.ndarray | None],
        limit: float,
        joined: Mapping[Apply, np.ndarray],
    ) -> np.ndarray:
        given = zip(inputs, at, gradients, strict=True)
        known = {v: array_of([_input(x, g, limit, order)], (1,)) for v, x, g in given}
        with np.errstate(all="ignore"):
            [found] = _Jets(known, order, limit, joined).evaluate([output])
        last = found.item().at[order]
        return np.zeros(1) if last is None else last.size

    return bound


def _input(x: np.ndarray | Enclosure, gradient: np.ndarray | None, limit: float, order: int) -> Jet:
    center, rest = x if isinstance(x, Enclosure) else Enclosure(x, x), (None,) * (order - 1)
    if gradient is None:
        return Jet(center, None, *rest)
    slope = Slope(gradient, np.zeros(len(gradient)))
    far = slope.size
    moved = Enclosure(center.low - limit * far, center.high + limit * far)
    return Jet(moved, Enclosure(-far, far), *rest, center=center, slope=slope)


@cache
def _derivatives(op: Op, order: int, count: int) -> Callable:
    """Return what encloses a function and its derivatives in the last of its arguments."""
    inputs = [pt.vector(dtype="float64") for _ in range(count)]
    found = [Elemwise(op)(*inputs)]
    for _ in range(order):
        found.append(pt.grad(found[-1].sum(), inputs[-1], disconnected_inputs="ignore"))
    return enclose(found, inputs)


class _Jets(Scalars):
    """Arrays of jets."""

    def __init__(
        self,
        known: dict[Variable, np.ndarray],
        order: int,
        limit: float,
        joined: Mapping[Apply, np.ndarray],
    ):
        super().__init__(known, self._jet)
        self._order, self._limit, self._joined = order, limit, joined

    def _number(self, x: Any) -> Jet:
        return self._constant(Enclosure(float(x), float(x)))

    def _constant(self, x: Enclosure) -> Jet:
        return Jet(x, *(None,) * self._order)

    def _integer(self, element: Jet) -> int:
        low, high = element.value.low, element.value.high
        if not element.fixed or np.ndim(low) or low != high:
            raise NoForm
        return int(low)

    def _results(self, node: Apply) -> list[np.ndarray]:
        if node in self._joined:
            arrays = np.broadcast_arrays(*map(self.value, node.inputs))
            parts = zip(*(a.flat for a in arrays), strict=True)
            joined = self._joined[node]
            return [array_of((self._switch(p, joined) for p in parts), arrays[0].shape)]
        if not isinstance(node.op, ALONG_AXES):
            return super()._results(node)
        x = self.value(node.inputs[0])
        axes = axes_of(node.op.axis, x.ndim)
        total = self._joined_along(x, axes, lambda terms: log_of_sum(list(terms), self._limit))
        if isinstance(node.op, LogSumExp):
            return [total]
        [found] = self._elementwise(pt.sub.scalar_op, [x, np.expand_dims(total, axes)])
        if isinstance(node.op, Softmax) and not isinstance(node.op, LogSoftmax):
            [found] = self._elementwise(pt.exp.scalar_op, [found])
        return [found]

    # Scalar Ops

    def _jet(self, op: Op, elements: Sequence) -> list[Jet]:
        # An index is compared with numbers.
        x = [e if isinstance(e, Jet) else self._number(e) for e in elements]
        if all(e.fixed for e in x):
            return [self._constant(c) for c in applied(op, [e.value for e in x])]
        centers = applied(op, [e.center for e in x])
        found = zip(self._carried(op, x), centers, strict=True)
        return [jet.narrowed(center, self._limit) for jet, center in found]

    def _carried(self, op: Op, x: Sequence[Jet]) -> list[Jet]:
        name = type(op).__name__
        match name:
            case "Exp":
                return [self._composed(op, *x).of_terms(x)]
            case "Log" if x[0].terms:
                return [log_of_sum(x[0].terms, self._limit)]
            case "Add" if len(x) > 1:
                slope = x[0].slope.plus(*(e.slope for e in x[1:]))
                total = self._series(map(added, *(e.at for e in x)), slope)
                return [total.of_terms(chain(*map(self._terms, x)) if self._positive(x) else None)]
            case "Add":
                return [x[0]]
            case "Sub":
                return self._jet(pt.add.scalar_op, [x[0], self._scaled(-1.0, x[1])])
            case "Neg":
                return [self._scaled(-1.0, x[0])]
            case "Sqr":
                return [self._multiplied(x[0], x[0])]
            case "Mul":
                result = x[0]
                for other in x[1:]:
                    result = self._multiplied(result, other)
                if len(x) == 2 and self._positive(x) and x[0].fixed != x[1].fixed:
                    [[factor], terms] = map(self._terms, x if x[0].fixed else x[::-1])
                    return [result.of_terms(self._call(pt.add, factor, t) for t in terms)]
                return [result]
            case "TrueDiv":
                [inverse] = self._jet(pt.reciprocal.scalar_op, [x[1]])
                return [self._multiplied(x[0], inverse)]
            case "Pow":
                return [self._power(*x)]
            case "GammaInc" | "GammaIncC" if not x[0].fixed:
                return [self._incomplete_gamma(op, *x)]
            case "Second":
                return [x[1]]
            case "Switch":
                found, nothing = self._switch(x), self._number(-np.inf)
                if found in x or not x[0].fixed or not self._positive(x[1:]):
                    return [found]  # the same in all rows, with terms of its own
                terms = [self._call(pt.switch, x[0], t, nothing) for t in self._terms(x[1])]
                terms += [self._call(pt.switch, x[0], nothing, t) for t in self._terms(x[2])]
                return [found.of_terms(terms)]
            case "Cast" if op.o_type.dtype.startswith("float"):
                return [x[0]]
            case _ if name == "Cast" or name in _TRUTHS | JUMPS:
                [value] = applied(op, [e.value for e in x])
                return [self._broken(self._constant(value), value.low < value.high)]
        if isinstance(op, UnaryScalarOp | BinaryScalarOp) and name not in KINKS:
            return [self._composed(op, *x)]
        raise NoForm

    @staticmethod
    def _positive(x: Sequence[Jet]) -> bool:
        """Whether all are sums of exponentials, or numbers from zero up, and one is the former."""
        known = all(e.terms or (e.fixed and np.all(e.value.low >= 0)) for e in x)
        return known and any(e.terms for e in x)

    def _terms(self, x: Jet) -> Sequence[Jet]:
        """Return logarithms of the exponentials that a jet is a sum of; a number is one of them."""
        if x.terms and not x.fixed:
            return x.terms
        return [self._constant(applied(pt.log.scalar_op, [x.value])[0])]

    @staticmethod
    def _series(coefficients: Iterable[Enclosure | None], slope: Slope) -> Jet:
        value, *others = coefficients
        return Jet(ZERO if value is None else value, *others, slope=slope)

    def _scaled(self, number: float, x: Jet) -> Jet:
        slope = x.slope.times(Enclosure(number, number))
        center = times(number, x.center) or ZERO
        scaled = self._series((times(number, c) for c in x.at), slope)
        return scaled.narrowed(center, self._limit)

    def _multiplied(self, x: Jet, y: Jet) -> Jet:
        found = []
        for k in range(self._order + 1):
            if x is y:
                pairs = [times(2.0, product(x.at[i], x.at[k - i])) for i in range((k + 1) // 2)]
                pairs += [product(x.at[k // 2], x.at[k // 2])] if k % 2 == 0 else []
            else:
                pairs = [product(x.at[i], y.at[k - i]) for i in range(k + 1)]
            found.append(added(*pairs))
        slope = x.slope.times(y.value).plus(y.slope.times(x.value))
        return self._series(found, slope)

    def _composed(self, op: Op, *inputs: Jet) -> Jet:
        """Return a function of a series (Faa di Bruno), whose other arguments are fixed."""
        *others, x = inputs
        if not all(o.fixed for o in others):
            raise NoForm
        try:
            found = _derivatives(op, self._order, len(inputs))([i.value for i in inputs])
            value, *slopes = found
        except UNDIFFERENTIABLE as error:
            raise NoForm from error
        return self._chained(value, slopes, x)

    def _broken(self, x: Jet, where: np.ndarray) -> Jet:
        """Return a jet whose coefficients are not bounded in some rows."""
        if not np.any(where):
            return x
        truth = Enclosure(where, where)
        others = [applied(pt.switch.scalar_op, [truth, EVERYTHING, c or ZERO])[0] for c in x.others]
        return Jet(x.value, *others)

    def _chained(self, value: Enclosure, slopes: Sequence[Enclosure], x: Jet) -> Jet:
        one, *others = x.others
        first = slopes[0]
        found = [product(first, one)]
        if others:
            found.append(added(product(first, others[0]), times(0.5, power_of(slopes[1], one, 2))))
        if len(others) > 1:
            found.append(
                added(
                    product(first, others[1]),
                    product(slopes[1], one, others[0]),
                    times(1 / 6, power_of(slopes[2], one, 3)),
                )
            )
        if len(others) > 2:
            curved = None if one is None else power_of(others[0], one, 2)
            found.append(
                added(
                    product(first, others[2]),
                    product(slopes[1], one, others[1]),
                    times(0.5, power_of(slopes[1], others[0], 2)),
                    times(0.5, product(slopes[2], curved)),
                    times(1 / 24, power_of(slopes[3], one, 4)),
                )
            )
        return Jet(value, *found, slope=x.slope.times(first))

    def _power(self, x: Jet, exponent: Jet) -> Jet:
        low, high = exponent.value.low, exponent.value.high
        if exponent.fixed and not np.ndim(low) and low == high:
            p, factor = float(low), 1.0
            slopes: list[Enclosure] = []
            for k in range(self._order + 1):
                at = Enclosure(p - k, p - k)
                [power] = applied(pt.pow.scalar_op, [x.value, at])
                factors = [Enclosure(factor, factor), power]
                slopes += applied(pt.mul.scalar_op, factors) if factor else [ZERO]
                factor *= p - k
            return self._chained(slopes[0], slopes[1:], x)
        [log] = self._jet(pt.log.scalar_op, [x])
        return self._composed(pt.exp.scalar_op, self._multiplied(exponent, log))

    def _incomplete_gamma(self, op: Op, a: Jet, x: Jet) -> Jet:
        r"""Return a regularised incomplete gamma function of a shape that moves.

        Along the direction, :math:`\partial_a^k P` changes by :math:`\partial_a^{k+1} P` times the
        change of a, and by :math:`\partial_a^k p` times that of x, where p is the density.
        """
        log = self._call(pt.log, x)
        total = self._call(pt.add, x, log, self._call(pt.gammaln, a))
        density = self._call(pt.exp, self._call(pt.sub, self._call(pt.mul, a, log), total))
        slopes = self._derivatives_of_weight(density, log, a, self._order - 1)
        found = Jet((values := self._derivatives_in_shape(a.value, x.value)).pop())
        for value, slope in zip(values[::-1], slopes[::-1], strict=True):
            others = []
            for j in range(1, len(found.at) + 1):
                parts = [
                    times(i / j, product(by.at[j - i], along.at[i]))
                    for by, along in ((found, a), (slope, x))
                    for i in range(1, j + 1)
                ]
                others.append(added(*parts))
            found = Jet(value, *others)
        [value] = applied(op, [a.value, x.value])
        sign = 1.0 if type(op).__name__ == "GammaInc" else -1.0
        return Jet(value, *self._scaled(sign, found).others)

    def _derivatives_in_shape(self, a: Enclosure, x: Enclosure) -> list[Enclosure]:
        """Enclose the derivatives of P(a, x) in the shape; see `incomplete_gamma`."""
        ends = (a.low, a.high), (x.low, x.high)
        c, scale = center_of(ends[0])
        integrals = shape_integrals(*ends, self._order, c, scale)
        gammas = [self._constant(Enclosure(*e)) for e in integrals]
        shape, center, size = map(self._constant, (a, Enclosure(c, c), Enclosure(scale, scale)))
        log_h = self._call(pt.sub, self._call(pt.mul, center, shape), self._call(pt.gammaln, shape))
        h = self._call(pt.exp, self._call(pt.add, log_h, size))
        weights = self._derivatives_of_weight(h, center, shape, self._order)
        return [
            reduce(
                partial(self._call, pt.add),
                (
                    self._scaled(comb(k, i), self._multiplied(gammas[i], weights[k - i]))
                    for i in range(k + 1)
                ),
            ).value
            for k in range(self._order + 1)
        ]

    def _derivatives_of_weight(self, weight: Jet, log: Jet, a: Jet, most: int) -> list[Jet]:
        """Return derivatives in a, from order 0, of what is exp(a * log) / gamma(a).

        They are the weight times Bell's polynomials of the derivatives of its logarithm.
        """
        orders = (float(n) for n in range(most + self._order))
        psi = [applied(pt.polygamma.scalar_op, [Enclosure(n, n), a.value])[0] for n in orders]
        rates = [
            self._scaled(-1.0, self._chained(psi[n], psi[n + 1 : n + 1 + self._order], a))
            for n in range(most)
        ]
        rates[:1] = [self._call(pt.add, log, rate) for rate in rates[:1]]
        found = [self._number(1.0)]
        for n in range(most):
            terms = (
                self._scaled(comb(n, i), self._multiplied(found[n - i], rates[i]))
                for i in range(n + 1)
            )
            found.append(reduce(partial(self._call, pt.add), terms))
        return [self._multiplied(weight, q) for q in found]

    def _call(self, function: Callable, *jets: Jet) -> Jet:
        return self._jet(function.scalar_op, jets)[0]  # type: ignore[attr-defined]

    def _switch(self, parts: Sequence[Jet], joined: np.ndarray | np.bool_ = np.False_) -> Jet:
        """Return either of two, which break off where it is open which, unless they are joined."""
        condition, x, y = parts
        c = condition.value
        first, second = (c.low > 0) | (c.high < 0), (c.low == 0) & (c.high == 0)

        def chosen(a: Enclosure | None, b: Enclosure | None) -> Enclosure | None:
            if a is None and b is None:
                return None
            return applied(pt.switch.scalar_op, [c, a or ZERO, b or ZERO])[0]

        if np.all(first):
            return x
        if np.all(second):
            return y
        value = chosen(x.value, y.value) or ZERO
        found = Jet(
            value, *map(chosen, x.others, y.others), slope=x.slope.where(first, y.slope, second)
        )
        return self._broken(found, ~(first | second | joined))
