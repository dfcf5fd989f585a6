r"""Lower bounds on the rows' log-likelihoods, quadratic in their linear predictors.

Row i, with predictors :math:`x_i`, is bounded by a control variate that touches it at the reference
and whose curvature is replaced,

.. math:: l_i(x) \ge \log B_i(x) = l_i^* + g_i' (x - x_i^*) + \tfrac12 (x - x_i^*)' C_i (x - x_i^*)

for all x. Three curvatures are known. In a predictor in which the log-likelihood is
:math:`a + b x + f((x - c)^2)` with convex f, the tangent of f gives
:math:`C_i = (l'(x^*) - l'(c)) / (x^* - c)`. For a logistic row with c = 0 this is Jaakkola and
Jordan's bound [1]_; for a Student-t row c is the observed value; see `tangents`. Of sums of
exponentials, as softmax rows, sets of choices and sums over states have, C_i is Böhning's bound;
see `softmax`. For any other predictor :math:`C_i = \inf l''`, where that is finite; see
`everywhere`. All are proven by the graph of the row; that they were compiled as they should is
verified on some rows.

References
----------
.. [1] T. Jaakkola and M. Jordan (2000). Bayesian parameter estimation via variational methods.
   Statistics and Computing 10, 25-37.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_subsample.bounds.predictor_ranges import exact_step
from pymc_subsample.bounds.softmax import least_curvature
from pymc_subsample.bounds.tangents import tangent
from pymc_subsample.expansion import linear_predictors
from pymc_subsample.expansion.everywhere import ANYWHERE, affine_in, distinct, hulls, least
from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.expansion.linear import linear_expansion
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.expansion.row_code import RowCode
from pymc_subsample.expansion.verification import Agreement
from pymc_subsample.graph.concrete import rebuild, specialised
from pymc_subsample.graph.interpreter import NoForm
from pymc_subsample.graph.intervals import Enclosure, enclose
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.graph.piecewise import Pieces
from pymc_subsample.model import TallModel, TallModelError

KINDS = ("tangent", "softmax", "curvature")  # in the order in which they are tried

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
# How far apart predictors are that tie and those that do not. Of two predictors so far apart a
# softmax gives the smaller one e^-10.
_TIE = 10.0
# Combinations of values of columns. A choice: a proof takes a second for so many.
_MOST_COMBINED = 512

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
        raise no_bound(
            model, "its rows do not depend on the parameters through few linear predictors"
        )

    @np.errstate(all="ignore")
    def bends(code: RowCode, expansion: Expansion) -> list[Variable]:
        if (rough := code.rough()) is not None:
            raise no_bound(model, f"PyTensor has no second derivatives of it ({rough})")
        data = _sample(expansion, list(code.data))
        if not isinstance(bound, str):
            graphs = _constant(code, [bound] * code.n_predictors)
            lowest = _least_found(code, data)
            if not bound <= lowest + _MARGIN * abs(lowest) or not _holds(code, graphs, data):
                raise ValueError(
                    f"bound={bound:g} is no lower bound on the second derivative of every row of "
                    f"{_named(model)} in its linear predictors: {lowest:.4g} was "
                    "found for one. Give a smaller number (more negative). If that does not help, "
                    "the log-likelihood is inaccurate for extreme predictors, as for probit rows."
                )
            found.append("given")
            return graphs
        for kind, graphs in _candidates(code, expansion, KINDS if bound == "auto" else (bound,)):
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
        "rows, sets of choices and sums over the states of logistic rows (Boehning), and for rows "
        "whose second derivative in the linear predictor is bounded below and accurate for extreme "
        "predictors; if you know a bound c on it, give bound=c. Otherwise "
        f"{', '.join([*others, 'use HMCECS or another step'])}, or sample this model with "
        "pm.sample()."
    )


def _named(model: TallModel) -> str:
    return ", ".join(map(repr, model.likelihood))


def _why(code: RowCode) -> str:
    shared = code.n_predictors - code.n_varying
    if shared and code.n_predictors > 1:
        return (
            f"besides linear predictors, its rows depend on {shared} unknown number(s) that they "
            "share, such as a scale that is not fixed, and not through sums of exponentials"
        )
    if code.n_predictors > 1:
        return (
            f"its rows depend on {code.n_predictors} linear predictors, and not only through sums "
            "of exponentials"
        )
    return "its second derivative in the linear predictor is not bounded below"


# Candidates: curvature graphs, the upper triangle by rows.


def _candidates(
    code: RowCode, expansion: Expansion, kinds: Sequence[str]
) -> Iterator[tuple[str, list[Variable]]]:
    separable = _separable(code)
    if "tangent" in kinds and separable:
        tangents = [tangent(code, e, partial(_values, code, expansion)) for e in _every(code)]
        if all(t is not None for t in tangents):
            yield "tangent", _diagonal(code, [t for t in tangents if t is not None])
    if "softmax" in kinds and code.n_predictors > 1:
        found = least_curvature(code.loglik, code.x, list(code.data.values()))
        if found is not None:
            yield "softmax", [(1 + _MARGIN) * h for h in found.values()]
    if "curvature" in kinds and separable:
        least = [_least(code, expansion, e) for e in _every(code)]
        if all(c is not None for c in least):
            yield "curvature", _constant(code, [c for c in least if c is not None])


def _every(code: RowCode) -> range:
    return range(code.n_predictors)


def _bends(code: RowCode) -> list[Variable]:
    return list(code.derivatives(2).values())


def _constant(code: RowCode, values: Sequence[float]) -> list[Variable]:
    return _diagonal(code, [pt.full_like(code.x[0], v) for v in values])


def _diagonal(code: RowCode, values: Sequence[Variable]) -> list[Variable]:
    nothing = pt.zeros_like(code.x[0])
    return [values[e] if e == f else nothing for e, f in code.derivatives(2)]


def _separable(code: RowCode) -> bool:
    """Whether no second derivative mixes two predictors, wherever these and the data are."""
    mixed = [h for (e, f), h in code.derivatives(2).items() if e != f]
    if not mixed:
        return True
    inputs = [*code.x, *code.data.values()]
    within = [Enclosure(-ANYWHERE, ANYWHERE) for _ in code.x]
    within += [Enclosure(-np.inf, np.inf) for _ in code.data]
    try:
        return all(np.all(h.size == 0) for h in enclose(mixed, inputs)(within))
    except NoForm:
        return False


def _values(
    code: RowCode, expansion: Expansion, slope: Variable, data: Sequence[Variable], x: Variable
) -> np.ndarray | None:
    """Return data that stand for all rows' in a slope, shape (len(data), k): see `tangents`.

    They are all combinations of the distinct values of the columns that it reads. Of a column with
    many, and in which the slope is affine, its smallest and largest ones do.
    """
    seen = set(ancestors([slope]))
    read = [k for k, v in enumerate(data) if v in seen]
    columns = [list(code.data)[k] for k in read]
    found = expansion.take(np.zeros(1, dtype=np.int64))[list(code.data)]
    if not read:
        return found
    values = distinct(expansion, columns)
    if values is None:
        each = [distinct(expansion, [c]) for c in columns]
        low, high, whole = hulls(expansion, columns)
        many = np.array([v is None for v in each])
        ends = [v[0] if v is not None else np.array(x)
                for v, x in zip(each, zip(low, high, strict=True), strict=True)]  # fmt: skip
        count = np.prod([len(v) for v in ends])
        if count > _MOST_COMBINED or not np.all(np.isfinite([low[many], high[many]])):
            return None
        inputs = [data[k] for k in read]
        if not affine_in(slope, x, inputs, low, high, whole, many):
            return None
        values = np.array(list(product(*ends))).T
    found = np.tile(found, values.shape[1])
    found[read] = values
    return found


def _least(code: RowCode, expansion: Expansion, e: int) -> float | None:
    """Infimum of a second derivative over all rows and predictors; None where it has none."""
    nothing: dict[Variable, Variable] = {
        x: pt.zeros_like(code.x[e]) for k, x in enumerate(code.x) if k != e
    }
    [bend] = rebuild([code.derivatives(2)[e, e]], nothing)
    columns, data = list(code.data), list(code.data.values())
    if not Pieces(code.loglik, code.x, data).smooth_everywhere(_sample(expansion, columns), 2):
        return None
    if (values := distinct(expansion, columns)) is not None:
        return least(bend, code.x[e], data, values, values)
    low, high, _ = hulls(expansion, columns)
    return least(bend, code.x[e], data, low[:, None], high[:, None])


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
