"""Whether draws are of the model: of another one, or of Bambi's fit with the intercept moved."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.gradient import NullTypeGradError, grad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.type import float_dtypes
from pytensor.xtensor.type import XTensorType

from pymc_subsample.diagnostics.drift import (
    SOME,
    Drift,
    Other,
    drift_of_scores,
    other_observed,
    refuse_intercept,
)
from pymc_subsample.diagnostics.reading_draws import sampled_rows, spread, to_theta
from pymc_subsample.model.bambi import intercepts, is_bambis, of_intercepts
from pymc_subsample.model.errors import TallModelError
from pymc_subsample.model.evaluation import Vector
from pymc_subsample.model.parameter_checks import split_checks
from pymc_subsample.results.predict.quantity import SAID, Predicted
from pymc_subsample.results.predict.rowwise import RowFunction
from pymc_subsample.rows.workers import current
from pymc_subsample.units.run_marginal import integrated_in

# Rows at a time. A choice of memory: 512 KB for each column.
_PIECE = 2**16


def refuse_moved(model: pm.Model, posterior: xr.Dataset, said: str) -> None:
    """Refuse a posterior of Bambi's whose intercepts are not the model's, by the likelihood."""
    if not is_bambis(posterior):
        return
    names = intercepts(model)
    for rv in model.observed_RVs if names else []:
        function = RowFunction(model, _loglik(model, rv), posterior)
        center = {name: posterior[name].mean(("chain", "draw")).values for name in function.leaves}
        for name in set(names) & set(function.leaves):
            refuse_intercept(
                name,
                posterior[name].std(("chain", "draw")).values,
                partial(_heights, function, center, name),
                said,
            )


def of_other_rows(
    idata: xr.DataTree,
    model: pm.Model,
    n_rows: int,
    own: bool,
    whole: bool,
    changed: Other | None,
) -> str | None:
    """Say so where a model's `n_rows` rows are not those that a run recorded, and that matters.

    It does where the model's `own` rows are predicted, and where `whole` columns of them are
    reduced to numbers. `changed` is one of `other_columns`.
    """
    alone = len(model.observed_RVs) == 1 and not model.potentials
    by_rows = alone and not integrated_in(idata, model)
    sampled = sampled_rows(idata) if by_rows else None
    if own and sampled not in (None, n_rows):
        return (
            f"{SAID}: the run sampled {sampled:,} rows, and these are the {n_rows:,} that the "
            "model holds. Pass the model that was sampled, and other rows as data=."
        )
    if own and changed is not None:
        return (
            f"{SAID}: the run was given other values of {changed[0]!r} than the model holds, and "
            "these are predictions for the latter. Pass the model that was sampled, and other rows "
            "as data=."
        )
    if whole and (changed is not None or sampled not in (None, n_rows)):
        return (
            f"{SAID}: the model computes numbers from whole columns, such as a mean, and from the "
            f"{n_rows:,} rows that it holds, which are not those of the run. Pass the model that "
            "was sampled, and the new rows as data=."
        )
    return None


def of_another(
    idata: xr.DataTree, model: pm.Model, posterior: xr.Dataset, signs: np.ndarray | None
) -> str:
    """Say so where draws are of another posterior, by the rows that the model and the run share.

    Of discrete variables at their draws, the mean gradient in the others is zero as well; of signed
    draws, that with signs is. Nothing where other values were observed than the run recorded, where
    rows depend on each other, where no variable is continuous, or where derivatives are not finite
    though log-likelihoods are: that cannot be told, nor of other columns.
    """
    names = [rv.name for rv in model.free_RVs]
    told = all(name in posterior for name in names) and not any(
        isinstance(v.type, XTensorType) for v in model.basic_RVs
    )
    recorded = set(idata["observed_data"].data_vars) if "observed_data" in idata.children else set()
    observed = [rv.name for rv in model.observed_RVs]
    if not (told and observed and recorded.issuperset(observed)):
        return ""
    if other_observed(idata, model, observed) is not None:
        return ""
    vector = Vector(model.initial_point())
    with suppress(TallModelError, ValueError, NotImplementedError, NullTypeGradError):
        found = _drift(model, vector, posterior, signs)
        if found is not None and found.is_large:
            return f"{found.said(model, vector)}.{of_intercepts(model)}"
    return ""


def _loglik(model: pm.Model, rv: Variable) -> Predicted:
    """Return log-likelihoods as a function of the model's variables.

    PyMC may rebuild what the log density of a distribution made of others is computed from, and
    would make copies of them: placeholders it leaves as they are.
    """
    variables = [v for v in [*model.free_RVs, *model.deterministics] if v is not rv]
    places = {v: v.type(v.name) for v in variables}
    others = {v: model.rvs_to_values[v] for v in model.observed_RVs if v is not rv}
    [own] = graph_replace([rv], places | others, strict=False)
    logp = pm.logp(own, model.rvs_to_values[rv])
    back = {place: v for v, place in places.items()}
    [logp], _ = split_checks(graph_replace([logp], back, strict=False))
    return Predicted(repr(rv.name), [logp], ())


def _drift(
    model: pm.Model, vector: Vector, posterior: xr.Dataset, signs: np.ndarray | None
) -> Drift | None:
    """Pass over all rows at some of the draws; None where their derivatives cannot be had."""
    thetas = to_theta(model, vector, posterior, SAID).reshape(-1, vector.size)
    flat = posterior.stack(sample=("chain", "draw")).transpose("sample", ...)
    some = spread(len(thetas), 1, SOME)
    smooth = [rv for rv in model.free_RVs if rv.type.dtype in float_dtypes]
    if not smooth:
        return None
    values = [model.rvs_to_values[rv] for rv in smooth]
    rises = {rv.name: np.zeros((len(some), *posterior[rv.name].shape[2:])) for rv in smooth}
    possible = True
    for rv in model.observed_RVs:
        function = RowFunction(model, _loglik(model, rv), posterior)
        draws = [[flat[name].values[k] for name in function.leaves] for k in some]
        for found in _over(function, partial(function.slopes, draws)):
            for name, each in zip(function.smooth, zip(*found, strict=True), strict=True):
                rises[name] += each
        if not all(np.isfinite(rise).all() for rise in rises.values()):
            finite = _over(function, partial(_are_finite, function, draws))
            possible = possible and all(finite)
    # Of the rows by the chain rule, and of the prior.
    given = [rv.type(f"slope of {rv.name}") for rv in smooth]
    pulled = zip(model.replace_rvs_by_values(smooth), given, strict=True)
    height = model.logp(vars=[*model.free_RVs, *model.potentials])
    height += sum((x * g).sum() for x, g in pulled)
    score = model.compile_fn(
        grad(height, values), inputs=[*model.value_vars, *given], mode="FAST_COMPILE",
        point_fn=False, on_unused_input="ignore",
    )  # fmt: skip
    scores = []
    for k, at in enumerate(some):
        point = vector.unravel(thetas[at])
        held = [point[v.name].astype(v.type.dtype) for v in model.value_vars]
        found = score(*held, *(rises[rv.name][k] for rv in smooth))
        scores.append(np.concatenate([np.ravel(x) for x in found]))
    if possible and not np.isfinite(scores).all():
        return None
    places = dict(zip(vector.names, vector.slices, strict=True))
    own = np.concatenate([np.arange(vector.size)[places[v.name]] for v in values])
    weights = None if signs is None else signs[some] / signs.mean()
    off = drift_of_scores(thetas[:, own], np.array(scores), weights)
    drift = np.zeros(vector.size)
    drift[own] = off.drift
    return Drift(drift, off.off)


def _are_finite(
    function: RowFunction, draws: list[list[np.ndarray]], columns: list[np.ndarray]
) -> bool:
    found = function(draws, columns, np.random.default_rng(0))
    return all(np.isfinite(x).all() for x in found)


def _heights(
    function: RowFunction, center: Mapping[str, np.ndarray], name: str, moves: np.ndarray
) -> np.ndarray:
    """Log-likelihoods of all rows, a variable moved."""
    rng = np.random.default_rng(0)

    def height(by: np.ndarray) -> float:
        values = [v + by if n == name else v for n, v in center.items()]
        return sum(_over(function, lambda x: next(function([values], x, rng)).sum(dtype=float)))

    return np.array([height(by) for by in moves])


def _over(function: RowFunction, work: Callable[[list[np.ndarray]], Any]) -> Iterator[Any]:
    """Yield what `work` makes of columns of all rows, some at a time."""

    def part(start: int) -> Any:
        index = np.arange(start, min(start + _PIECE, function.n_rows))
        return work([np.take(r.value, index, r.axis) for r in function.raw])

    return current().map(part, range(0, function.n_rows, _PIECE))
