r"""Lower bounds on the rows' log-likelihoods, quadratic in their linear predictors.

Row i, with predictors :math:`x_i`, is bounded by a control variate that touches it at the reference
and whose curvature is replaced,

.. math:: l_i(x) \ge \log B_i(x) = l_i^* + g_i' (x - x_i^*) + \tfrac12 (x - x_i^*)' C_i (x - x_i^*)

for all x. Three curvatures are known. In a predictor in which the log-likelihood is
:math:`a + b x + f((x - c)^2)` with convex f, the tangent of f gives
:math:`C_i = (l'(x^*) - l'(c)) / (x^* - c)`. For a logistic row with c = 0 this is Jaakkola and
Jordan's bound [1]_; for a Student-t row c is the observed value. For a softmax of K predictors
:math:`C_i = -\tfrac12 N (I - 11'/K)`, N the row's count [2]_. For any other predictor
:math:`C_i = \inf l''`, where that is finite.

References
----------
.. [1] T. Jaakkola and M. Jordan (2000). Bayesian parameter estimation via variational methods.
   Statistics and Computing 10, 25-37.
.. [2] D. Böhning (1992). Multinomial logistic regression algorithm. Annals of the Institute of
   Statistical Mathematics 44(1), 197-200.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from scipy.special import softmax

from pymc_subsample.expansion import linear_predictors
from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.expansion.linear import linear_expansion
from pymc_subsample.expansion.predictor_ranges import exact_step
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.expansion.row_code import RowCode
from pymc_subsample.expansion.verification import Agreement
from pymc_subsample.graph.concrete import rebuild, specialised
from pymc_subsample.graph.interpreter import NoForm
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.model import TallModel, TallModelError

KINDS = ("tangent", "softmax", "curvature")

# Rows at which bounds are looked for and verified, beside those of extreme data. A choice: bounds
# follow from the graph, and rows only have to show a wrong one; twice as many would double the
# seconds of a set-up.
_SAMPLE = 200
# Points of the predictors per row, and the range of their distances from the reference. A choice:
# near enough for third derivatives to show beside rounding, and far beyond any predictor of a
# model that is sampled.
_POINTS = 40
_NEAREST, _FARTHEST = 1e-2, 10**2.5
# What rounding may do: to a bound's curvature, and to a row's residual over its terms. A choice:
# some million roundings of doubles, which sums of terms that cancel may show.
_MARGIN = 1e-9
_ROUNDING = 1e-10
# Below this distance from the centre, a slope between two points is taken for a derivative. About
# the square root of the rounding of doubles, where a difference is as exact as it gets; a
# curvature that differs by ten times the error of that is not symmetric.
_CLOSE = 1e-6
_SYMMETRIC = 1e-7
# How far apart predictors are that tie and those that do not. Of two predictors so far apart a
# softmax gives the smaller one e^-10.
_TIE = 10.0
# Grid on which the least curvature is looked for, and how near to the supremum its ends must be.
# A choice: a logistic curvature is e^-1000 there.
_WIDEST = 1e3
_SETTLED = 1e-3

Evaluate = Callable[[np.ndarray, np.ndarray], list[np.ndarray]]


def bounded_expansion(model: TallModel, bound: str | float = "auto") -> tuple[Expansion, str]:
    """Compile control variates of order 2 that are lower bounds, verified on some rows.

    "auto" takes the first bound that holds. A number is a lower bound on the rows' second
    derivatives in their predictors (on all eigenvalues, where there are several). Returns an
    expansion whose second derivatives are the bounds', and which bound was taken.

    Raises
    ------
    TallModelError
        If the model's rows have no bound of the kind.
    ValueError
        If a number is not a bound.
    """
    found: list[str] = []
    predictors = linear_predictors(model)
    if predictors is None:
        raise no_bound(model, "its rows see the parameters otherwise than by few linear predictors")

    @np.errstate(all="ignore")
    def bends(code: RowCode, expansion: Expansion) -> list[Variable]:
        if (rough := code.rough()) is not None:
            raise no_bound(model, f"PyTensor has no second derivatives of it ({rough})")
        data = _sample(expansion, list(code.data))
        if not isinstance(bound, str):
            graphs = _constant(code, [bound] * code.n_predictors)
            least = _least_found(code, data)
            if not bound <= least + _MARGIN * abs(least) or not _holds(code, graphs, data):
                raise ValueError(
                    f"bound={bound:g} is no lower bound on the second derivative of every row of "
                    f"{_named(model)} in its linear predictors: {least:.4g} was "
                    "found for one. Give a smaller number (more negative). If that does not help, "
                    "the log-likelihood is not accurate for far predictors, as that of probit rows."
                )
            found.append("given")
            return graphs
        for kind, graphs in _candidates(code, data, KINDS if bound == "auto" else (bound,)):
            if _holds(code, graphs, data):
                found.append(kind)
                return graphs
        whole = linear_expansion(model, predictors, 2)
        at = reference_at(whole, model.ravel(model.initial_point))
        raise no_bound(model, _why(code), bound, exact_step(whole, at))

    expansion = linear_expansion(model, predictors, 2, bends)
    if expansion.highest_order < 2:
        raise TallModelError(
            f"{model.phi_size:,} parameters meet the data in this model: the sum of their bounds' "
            "curvatures is too large. Use HMCECS, or sample this model with pm.sample()."
        )
    try:
        agree = Agreement(model, expansion).of_posterior()
    except NoForm:
        raise no_bound(model, "the code of its rows is too long for second derivatives") from None
    if not agree:
        raise TallModelError(
            f"The linear predictors of {_named(model)} do not give its log-likelihood: its graph "
            "was misread. Please report the model, and sample it with pm.sample()."
        )
    return expansion, found[0]


def no_bound(
    model: TallModel, why: str, bound: str = "auto", others: Sequence[str] = ()
) -> TallModelError:
    """Return the error that says why a model has no bound, and which bounds and `others` are."""
    kind = "" if bound == "auto" else f" of the kind {bound!r}"
    return TallModelError(
        f"FireflyMC needs a lower bound on the log-likelihood of every row of {_named(model)} and "
        f"knows none{kind}: {why}. There are bounds for logistic rows (Bernoulli or Binomial with "
        "logit link; Jaakkola-Jordan), for Student-t rows with known nu and scale, for softmax "
        "rows (Categorical or Multinomial; Boehning), and where the second derivative in the "
        "linear predictor is bounded below and accurate for far predictors; give bound=c if you "
        f"know a bound c of it. Else {', '.join([*others, 'use HMCECS or another step'])}, or "
        "sample this model with pm.sample()."
    )


def _named(model: TallModel) -> str:
    return ", ".join(map(repr, model.likelihood))


def _why(code: RowCode) -> str:
    shared = code.n_predictors - code.n_varying
    if shared and code.n_predictors > 1:
        return (
            f"beside linear predictors its rows see {shared} unknown number(s) that they share, "
            "such as a scale that is not fixed to a number"
        )
    if code.n_predictors > 1:
        return f"its rows see {code.n_predictors} linear predictors, and not through a softmax"
    return "its second derivative in the linear predictor is not bounded below"


# Candidates: curvature graphs, the upper triangle by rows.


def _candidates(
    code: RowCode, data: np.ndarray, kinds: Sequence[str]
) -> Iterator[tuple[str, list[Variable]]]:
    if "softmax" in kinds and code.n_predictors > 1:
        for n_classes in (code.n_predictors, code.n_predictors + 1):
            if _is_softmax(code, data, n_classes):
                graphs = rebuild(_bends(code), {x: pt.zeros_like(x) for x in code.x})
                yield "softmax", [0.5 * n_classes * (1 + _MARGIN) * h for h in graphs]
    if not _separable(code, data):
        return
    if "tangent" in kinds:
        tangents = [_tangent(code, e, data) for e in range(code.n_predictors)]
        if all(t is not None for t in tangents):
            yield "tangent", _diagonal(code, [t for t in tangents if t is not None])
    if "curvature" in kinds:
        least = [_least(code, e, data) for e in range(code.n_predictors)]
        if all(c is not None for c in least):
            yield "curvature", _constant(code, [c for c in least if c is not None])


def _bends(code: RowCode) -> list[Variable]:
    return list(code.derivatives(2).values())


def _constant(code: RowCode, values: Sequence[float]) -> list[Variable]:
    return _diagonal(code, [pt.full_like(code.x[0], v) for v in values])


def _diagonal(code: RowCode, values: Sequence[Variable]) -> list[Variable]:
    nothing = pt.zeros_like(code.x[0])
    return [values[e] if e == f else nothing for e, f in code.derivatives(2)]


def _separable(code: RowCode, data: np.ndarray) -> bool:
    """Whether no second derivative mixes two predictors, at random points."""
    size = code.n_predictors
    if size == 1:
        return True
    evaluate = _function(code, [h for (e, f), h in code.derivatives(2).items() if e != f])
    rng = np.random.default_rng(0)
    return all(
        not np.any(np.nan_to_num(h, nan=1.0))
        for _ in range(_POINTS)
        for h in evaluate(rng.normal(0, 2, (size, data.shape[1])), data)
    )


def _tangent(code: RowCode, e: int, data: np.ndarray) -> Variable | None:
    """Curvature of the tangent in the squared distance from a centre: zero or a data column."""
    x, slope = code.x[e], code.derivatives(1)[e,]
    for column in (None, *code.data.values()):
        center = pt.zeros_like(x) if column is None else column
        base, peak = rebuild([slope, code.derivatives(2)[e, e]], {x: center})
        shift = x - center
        close = pt.abs(shift) < _CLOSE
        value = pt.switch(close, peak, (slope - base) / pt.switch(close, 1.0, shift))
        if _rises(code, e, value, center, data):
            return (1 + _MARGIN) * value
    return None


def _rises(code: RowCode, e: int, value: Variable, center: Variable, data: np.ndarray) -> bool:
    """Whether a slope's growth per distance is even, and rises with the distance: f is convex."""
    m = data.shape[1]
    evaluate = _function(code, [value, center])
    rng = np.random.default_rng(0)
    x = rng.normal(0, 2, (code.n_predictors, m))
    origin = np.broadcast_to(evaluate(x, data)[1], (m,))
    previous = np.full(m, -np.inf)
    for distance in np.concatenate([[0.0], np.geomspace(_NEAREST, _FARTHEST, _POINTS)]):
        x[e] = origin + distance
        right = evaluate(x, data)[0]
        x[e] = origin - distance
        left = evaluate(x, data)[0]
        allowed = _SYMMETRIC * (np.abs(left) + np.abs(right)) + _ROUNDING
        if not np.all(np.abs(right - left) <= allowed) or not np.all(right >= previous - allowed):
            return False
        previous = right
    return True


def _is_softmax(code: RowCode, data: np.ndarray, n_classes: int) -> bool:
    """Whether the Hessian is -N (diag p - p p') with p a softmax, at random points.

    A class beyond the predictors has predictor zero.
    """
    size, m = code.n_predictors, data.shape[1]
    evaluate = _function(code, _bends(code))
    at_zero = evaluate(np.zeros((size, m)), data)[0]
    count = -np.broadcast_to(at_zero, (m,)) * n_classes**2 / (n_classes - 1)
    if not np.all(np.isfinite(count)) or not np.any(count > 0):
        return False
    rng = np.random.default_rng(0)
    # At zero, where a softmax is curved, and where it is nearly flat.
    for scale in (0.0, 1.0, 4.0):
        x = rng.normal(0, 1, (size, m)) * scale
        p = softmax(np.concatenate([x, np.zeros((n_classes - size, m))]), axis=0)[:size]
        hessian = -count * (p[:, None] * np.eye(size)[:, :, None] - p[:, None] * p[None])
        for h, (e, f) in zip(evaluate(x, data), code.derivatives(2), strict=True):
            # Rounding: a difference of numbers near count.
            if not np.all(np.abs(h - hessian[e, f]) <= 1e-8 * (1 + count)):
                return False
    return True


def _least(code: RowCode, e: int, data: np.ndarray) -> float | None:
    """Infimum of a second derivative over sampled rows and a wide grid; None where it has none."""
    m = data.shape[1]
    evaluate = _function(code, [code.derivatives(2)[e, e]])
    # A choice: a grid of 1,000 points, dense near the centre, between which a curvature hardly
    # changes.
    grid = np.sinh(np.linspace(-np.arcsinh(_WIDEST), np.arcsinh(_WIDEST), 1000))
    origins = [np.zeros(m), *data]
    x, least, inner = np.zeros((code.n_predictors, m)), np.inf, np.inf
    for origin in origins:
        for distance in grid:
            x[e] = origin + distance
            lowest = float(np.min(evaluate(x, data)[0]))
            if not np.isfinite(lowest):
                return None
            least = min(least, lowest)
            if abs(distance) < 0.1 * _WIDEST:  # A choice: the inner tenth.
                inner = min(inner, lowest)
    settled = least >= inner - _SETTLED * abs(inner)
    return (1 + 2 * _SETTLED) * min(least, 0.0) if settled else None


def _least_found(code: RowCode, data: np.ndarray) -> float:
    """Smallest curvature along any direction, at random points.

    Among them are points where some predictors tie far from the others: a softmax bends most there.
    """
    evaluate, size, m = _function(code, _bends(code)), code.n_predictors, data.shape[1]
    rng, least = np.random.default_rng(0), np.inf
    origins = np.concatenate([np.zeros((1, m)), data])
    # Up to three, where a softmax is nearly flat.
    for k, scale in enumerate(np.geomspace(_NEAREST, 3.0, _POINTS)):
        ties = _TIE * rng.integers(-1, 2, (size, m)) if k % 2 else 0.0
        x = origins[k % len(origins)] + ties + rng.normal(0, scale, (size, m))
        matrix = np.zeros((m, size, size))
        for h, (e, f) in zip(evaluate(x, data), code.derivatives(2), strict=True):
            matrix[:, e, f] = matrix[:, f, e] = h
        if not np.all(np.isfinite(matrix)):
            return -np.inf
        least = min(least, float(np.linalg.eigvalsh(matrix).min()))
    return least


# Verification


def _function(code: RowCode, graphs: Sequence[Variable]) -> Evaluate:
    """Compile graphs, as stable as those in the loop over rows: ``evaluate(x, data)``."""
    inputs = [*code.x, *code.data.values()]
    fgraph = specialised(inputs, graphs)
    function = numpy_function(list(fgraph.inputs), list(fgraph.outputs))
    return lambda x, data: function(*x, *data)


def _sample(expansion: Expansion, columns: list[int]) -> np.ndarray:
    """Return the data of random rows and of those where a column is extreme, (len(columns), k)."""
    n = expansion.n_rows
    index = np.random.default_rng(0).integers(0, n, min(n, _SAMPLE))
    sample = [expansion.take(index)[columns]]
    extremes = np.zeros((len(columns), 0))
    for seen in expansion.over(_extremes, columns) if columns else ():
        extremes = _extreme(np.concatenate([extremes, seen], axis=1))
    return np.concatenate([*sample, extremes], axis=1)


def _extremes(_: Expansion, batches: Iterable[np.ndarray], columns: list[int]) -> np.ndarray:
    [rows] = batches
    return _extreme(rows[columns])


def _extreme(seen: np.ndarray) -> np.ndarray:
    """Return the rows, shape (k, m), with the smallest and the largest of each of k numbers."""
    return seen[:, np.unique(np.concatenate([seen.argmin(axis=1), seen.argmax(axis=1)]))]


def _holds(code: RowCode, bends: Sequence[Variable], data: np.ndarray) -> bool:
    """Whether bounds lie below the log-likelihood, for random references and points."""
    size, m = code.n_predictors, data.shape[1]
    evaluate = _function(code, [*code.up_to(1), *bends])
    rng = np.random.default_rng(1)
    origins = np.concatenate([np.zeros((1, m)), data])
    touched = False
    for k in range(_POINTS):
        origin = origins[k % len(origins)]
        # A choice: references up to some thirty from the data, as those of scales of data.
        star = origin + rng.normal(0, 1, (size, m)) * 10 ** rng.uniform(-2, 1.5)
        z = rng.normal(0, 1, (size, m)) * 10 ** rng.uniform(
            np.log10(_NEAREST), np.log10(_FARTHEST), m
        )
        at_star = [np.broadcast_to(v, (m,)) for v in evaluate(star, data)]
        value = np.broadcast_to(evaluate(star + z, data)[0], (m,))
        level, slopes, curvature = at_star[0], at_star[1 : 1 + size], at_star[1 + size :]
        terms = [level, *(g * step for g, step in zip(slopes, z, strict=True))]
        for h, (e, f) in zip(curvature, code.derivatives(2), strict=True):
            terms.append((0.5 if e == f else 1.0) * h * z[e] * z[f])
        rounding = _ROUNDING * (np.abs(value) + sum(np.abs(t) for t in terms))
        known = np.all(np.isfinite(terms), axis=0)
        touched |= bool(known.any())
        if not np.all((value - sum(terms) >= -rounding)[known]):
            return False
    return touched
