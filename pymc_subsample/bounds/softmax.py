r"""Least second derivatives of sums of exponentials, wherever predictors are.

The logarithm of a sum of n exponentials of affine functions, of slopes :math:`a_s` in the
predictors, has the covariance of the slopes under the terms' shares as second derivatives. Whatever
the shares are, that is at most [1]_

.. math:: \tfrac12 \sum_s (a_s - \bar a) (a_s - \bar a)', \qquad \bar a = \tfrac1n \sum_s a_s,

and at least zero; where terms bend themselves, the mean of what they do is added, which is at least
the sum of what each may do. So a graph of affine functions, data and such logarithms is gone
through once: elements of it know their slopes, or between which multiples of outer products their
second derivatives are.

References
----------
.. [1] D. Böhning (1992). Multinomial logistic regression algorithm. Annals of the Institute of
   Statistical Mathematics 44(1), 197-200.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.scalar.basic import Maximum, Minimum, ScalarMaximum, ScalarMinimum
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.special import LogSoftmax, LogSumExp, Softmax

from pymc_subsample.graph.concrete import ALONG_AXES, rebuild, specialised
from pymc_subsample.graph.interpreter import NoForm, array_of, axes_of
from pymc_subsample.graph.scalars import Scalars

# A number, or a graph over rows that reads data alone.
type Number = float | Variable
# A multiple of the outer product of a vector, by its places.
type Outer = tuple[Number, Mapping[Any, Number]]

_EXTREMES = (Maximum, Minimum, ScalarMaximum, ScalarMinimum)


@dataclass(frozen=True)
class _Curved:
    """A function of the predictors: `number` if it reads data alone.

    Its second derivatives are between minus the sum of `below` and the sum of `above`; None is no
    bound. `slopes` are those of its affine part, which is all of it if it is `straight`. Of a sum
    of exponentials, `terms` are the logarithms, with whether each is there.
    """

    number: Variable | None = None
    slopes: Mapping[Any, Number] = field(default_factory=dict)
    straight: bool = False
    below: Sequence[Outer] | None = None
    above: Sequence[Outer] | None = None
    terms: Sequence[tuple["_Curved", Number]] = ()
    positive: bool = False  # from zero up

    @property
    def finite(self) -> bool:
        return self.below is not None or self.above is not None

    @property
    def known(self) -> Number:
        """The number, as a factor."""
        if isinstance(self.number, Constant):
            return float(self.number.data.item())
        assert self.number is not None
        return self.number.astype("float64")


def _affine(slopes: Mapping[Any, Number]) -> _Curved:
    return _Curved(slopes=slopes, straight=True, below=(), above=())


_NOTHING = _affine({})


def least_curvature(
    output: Variable, predictors: Sequence[Variable], data: Sequence[Variable]
) -> dict[tuple[int, int], Variable] | None:
    """Return graphs, by e <= f, of what second derivatives are bounded by; None of other rows.

    The matrix of them is below that of the second derivatives wherever predictors are.
    """
    fgraph = specialised([*predictors, *data], [output])
    count = len(predictors)
    known = {
        v: array_of([_affine({e: 1.0}) if e < count else _Curved(number=v)], (1,))
        for e, v in enumerate(fgraph.inputs)
    }
    try:
        found = _Curvatures(known).evaluate(fgraph.outputs)[0].item()
        below = _of(found).below
    except NoForm:
        return None
    if below is None or any(_opaque(a) for a in (_of(found).slopes, *(a for _, a in below))):
        return None
    pairs = [(e, f) for e in range(count) for f in range(e, count)]
    total = {
        (e, f): _sum(_product(-1.0, c, a[e], a[f]) for c, a in below if e in a and f in a)
        for e, f in pairs
    }
    memo = dict(zip(fgraph.inputs, [*predictors, *data], strict=True))
    like = predictors[0]
    return {k: _over(rebuild([pt.as_tensor(v)], dict(memo))[0], like) for k, v in total.items()}


def _over(graph: Variable, like: Variable) -> Variable:
    return pt.zeros_like(like) + graph


class _Opaque:
    """The largest of some functions, which cancels: it is taken from them before exponentials."""


def _opaque(slopes: Mapping[Any, Number]) -> bool:
    return any(isinstance(e, _Opaque) for e in slopes)


def _is_zero(x: Number) -> bool:
    return isinstance(x, float) and x == 0.0


def _product(*factors: Number) -> Number:
    number = float(np.prod([f for f in factors if isinstance(f, float)]))
    others = [f for f in factors if not isinstance(f, float)]
    if not others or number == 0.0:
        return number
    return reduce(pt.mul, others if number == 1.0 else [number, *others])


def _sum(terms: Any) -> Number:
    every = list(terms)
    number = float(sum(t for t in every if isinstance(t, float)))
    others = [t for t in every if not isinstance(t, float)]
    if not others:
        return number
    return reduce(pt.add, others if number == 0.0 else [number, *others])


def _of(x: _Curved) -> _Curved:
    """Return a number as the function that it is."""
    return _NOTHING if x.number is not None else x


class _Curvatures(Scalars):
    """Arrays of functions of the predictors."""

    def __init__(self, known: Mapping[Variable, np.ndarray]):
        super().__init__(known, self._bent)

    def _number(self, x: Any) -> _Curved:
        return _Curved(number=pt.constant(x), positive=bool(x >= 0))

    def _integer(self, element: _Curved) -> int:
        if not isinstance(element.number, Constant):
            raise NoForm
        return int(element.number.data.item())

    def _results(self, node: Apply) -> list[np.ndarray]:
        if isinstance(node.op, CAReduce) and isinstance(node.op.scalar_op, _EXTREMES):
            x = self.value(node.inputs[0])
            if any(e.number is None for e in x.flat):
                axes = axes_of(node.op.axis, x.ndim)
                return [self._joined_along(x, axes, lambda _: _affine({_Opaque(): 1.0}))]
        if not isinstance(node.op, ALONG_AXES):
            return super()._results(node)
        x = self.value(node.inputs[0])
        axes = axes_of(node.op.axis, x.ndim)
        total = self._joined_along(x, axes, lambda terms: _log_of_sum([(t, 1.0) for t in terms]))
        if isinstance(node.op, LogSumExp):
            return [total]
        if isinstance(node.op, Softmax) and not isinstance(node.op, LogSoftmax):
            raise NoForm
        return self._elementwise(pt.sub.scalar_op, [x, np.expand_dims(total, axes)])

    def _bent(self, op: Op, elements: Sequence) -> list[_Curved]:
        x = [e if isinstance(e, _Curved) else self._number(e) for e in elements]
        name = type(op).__name__
        if name == "AND" and any(_is_zero(e.known) for e in x if e.number is not None):
            return [self._number(np.False_)]
        if all(e.number is not None for e in x):
            graph = Elemwise(op)(*(e.number for e in x))
            if all(isinstance(e.number, Constant) for e in x):
                return [self._number(graph.eval())]
            same = name in {"Add", "Mul", "Cast", "Second", "Identity"}
            always = name in {"Exp", "Sqr", "Abs"} or graph.type.dtype == "bool" or (
                same and all(e.positive for e in x)
            ) or (name == "Switch" and all(e.positive for e in x[1:]))  # fmt: skip
            return [_Curved(number=graph, positive=always)]
        match name:
            case "Exp" if x[0].finite:
                return [_Curved(terms=((x[0], 1.0),), positive=True)]
            case "Log" if x[0].terms:
                return [_log_of_sum(x[0].terms)]
            case "Log1p" if x[0].terms:
                return [_log_of_sum([*x[0].terms, (_NOTHING, 1.0)])]
            case "Softplus" if x[0].finite:
                return [_log_of_sum([(x[0], 1.0), (_NOTHING, 1.0)])]
            case "Add" if any(e.terms for e in x):
                return [_Curved(terms=tuple(chain(*map(_terms, x))), positive=True)]
            case "Mul" if sum(e.number is None for e in x) == 1:
                [moving] = (e for e in x if e.number is None)
                factors = [e for e in x if e is not moving]
                factor = _product(*(e.known for e in factors))
                if not moving.terms:
                    return [_scaled(factor, moving)]
                if not all(e.positive for e in factors):
                    raise NoForm
                present = factor if isinstance(factor, float) else pt.neq(factor, 0.0)
                if isinstance(present, float):
                    present = float(present != 0.0)
                else:
                    present = present.astype("float64")
                return [_Curved(terms=tuple((t, _product(present, p)) for t, p in moving.terms),
                              positive=True)]  # fmt: skip
            case "TrueDiv" if x[1].number is not None:
                inverse = _Curved(number=pt.reciprocal(x[1].number), positive=x[1].positive)
                return self._bent(pt.mul.scalar_op, [x[0], inverse])
            case "Switch" if x[0].number is not None:
                return [_switch(x[0].known, *x[1:])]
            case "EQ" | "LE" | "GE" | "LT" | "GT" if any(_is_infinite(e) for e in x):
                # What is finite is no infinity, and on a known side of each.
                first = next(k for k, e in enumerate(x) if _is_infinite(e))
                if not x[1 - first].finite:
                    raise NoForm
                less = (x[first].known == np.inf) == (first == 1)
                truth = less if name in {"LE", "LT"} else not less if name != "EQ" else False
                return [self._number(np.bool_(truth))]
            case "IsInf" | "IsNan" if x[0].finite:
                return [self._number(np.False_)]
            case "Maximum" | "Minimum" | "ScalarMaximum" | "ScalarMinimum" if all(
                e.number is None and e.finite for e in x
            ):
                return [_affine({_Opaque(): 1.0})]
            case "Second":
                return [x[1]]
            case "Identity":
                return [x[0]]
            case "Cast" if op.o_type.dtype.startswith("float"):
                return [x[0]]
        if any(e.terms for e in x):
            raise NoForm
        match name:
            case "Add":
                return [reduce(_plus, map(_of, x))]
            case "Sub":
                return [_plus(_of(x[0]), _scaled(-1.0, _of(x[1])))]
            case "Neg":
                return [_scaled(-1.0, x[0])]
            case "Sqr" if x[0].straight and not _opaque(x[0].slopes):
                return [_Curved(below=(), above=((2.0, x[0].slopes),), positive=True)]
        raise NoForm


def _is_infinite(x: _Curved) -> bool:
    return isinstance(x.number, Constant) and bool(np.isinf(x.number.data.item()))


def _terms(x: _Curved) -> Sequence[tuple[_Curved, Number]]:
    if x.terms:
        return x.terms
    if x.number is None or not x.positive:
        raise NoForm
    return ((_NOTHING, 0.0 if _is_zero(x.known) else 1.0),)


def _plus(x: _Curved, y: _Curved) -> _Curved:
    slopes = {
        e: _sum(s[e] for s in (x.slopes, y.slopes) if e in s) for e in {**x.slopes, **y.slopes}
    }
    slopes = {e: s for e, s in slopes.items() if not _is_zero(s)}
    below = None if x.below is None or y.below is None else (*x.below, *y.below)
    above = None if x.above is None or y.above is None else (*x.above, *y.above)
    straight = x.straight and y.straight
    return _Curved(slopes=slopes, straight=straight, below=below, above=above)


def _scaled(factor: Number, x: _Curved) -> _Curved:
    slopes = {e: _product(factor, s) for e, s in x.slopes.items()}
    up, down = _positive_part(factor), _positive_part(_product(-1.0, factor))

    def mixed(same: Sequence[Outer] | None, other: Sequence[Outer] | None):
        found: list[Outer] = []
        for part, outers in ((up, same), (down, other)):
            if _is_zero(part):
                continue
            if outers is None:
                return None
            found += [(_product(part, c), a) for c, a in outers]
        return tuple(found)

    below, above = mixed(x.below, x.above), mixed(x.above, x.below)
    return _Curved(slopes=slopes, straight=x.straight, below=below, above=above)


def _positive_part(x: Number) -> Number:
    return max(x, 0.0) if isinstance(x, float) else pt.maximum(x, 0.0)


def _switch(condition: Number, x: _Curved, y: _Curved) -> _Curved:
    if isinstance(condition, float):
        return x if condition else y
    first = pt.neq(condition, 0).astype("float64")
    if x.terms or y.terms:
        parts = [
            (t, _product(w, p))
            for part, w in ((x, first), (y, 1.0 - first))
            for t, p in _terms(part)
        ]
        return _Curved(terms=tuple(p for p in parts if not _is_zero(p[1])), positive=True)
    x, y = _of(x), _of(y)
    chosen = _plus(_scaled(first, x), _scaled(1.0 - first, y))
    return chosen


def _log_of_sum(terms: Sequence[tuple[_Curved, Number]]) -> _Curved:
    """Return the logarithm of a sum of exponentials, of those terms that are there."""
    full = [(_of(t), p) for t, p in terms]
    if not full or any(t.terms for t, _ in full):
        raise NoForm
    slopes = [t.slopes for t, _ in full]
    # What all of them have in common makes no differences.
    common = {
        e: s for e, s in slopes[0].items() if all(_same(other.get(e), s) for other in slopes[1:])
    }
    if not all(t.straight for t, _ in full):
        # At least the mean of what terms do.
        own = ({e: v for e, v in s.items() if e not in common} for s in slopes)
        if any(t.below is None for t, _ in full) or any(map(_opaque, own)):
            raise NoForm
        each = [(_product(p, c), a) for t, p in full for c, a in t.below or ()]
        return _Curved(slopes=common, below=tuple(each))
    places = list(dict.fromkeys(e for s in slopes for e in s if e not in common))
    present = [p for _, p in full]
    count = _sum(present)
    share = 1.0 / count if isinstance(count, float) else pt.reciprocal(pt.maximum(count, 1.0))
    mean = {
        e: _product(share, _sum(_product(p, s[e]) for s, p in zip(slopes, present, strict=True)
                                if e in s))
        for e in places
    }  # fmt: skip
    above = [
        (_product(0.5, p), {e: _sum([s.get(e, 0.0), _product(-1.0, mean[e])]) for e in places})
        for s, p in zip(slopes, present, strict=True)
    ]
    if len(full) == 1:
        return _affine(common)
    return _plus(_affine(common), _Curved(below=(), above=tuple(above)))


def _same(x: Number | None, y: Number) -> bool:
    return x is y or (isinstance(x, float) and isinstance(y, float) and x == y)
