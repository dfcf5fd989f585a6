"""Whether draws are of the model: of another one, or of Bambi's fit with the intercept moved."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.gradient import NullTypeGradError, grad

from pymc_subsample.bambi import intercepts, is_bambis, of_intercepts
from pymc_subsample.diagnostics.drift import (
    SOME,
    Drift,
    drift_of_scores,
    other_data,
    refuse_intercept,
)
from pymc_subsample.diagnostics.thinned import spread, to_theta
from pymc_subsample.likelihood.checks import split_checks
from pymc_subsample.likelihood.errors import TallModelError
from pymc_subsample.likelihood.evaluation import Vector
from pymc_subsample.passes import current
from pymc_subsample.prediction.quantity import SAID, Quantity
from pymc_subsample.prediction.rowwise import RowFunction

_PIECE = 2**16


def refuse_moved(model: pm.Model, posterior: xr.Dataset, said: str) -> None:
    """Refuse a posterior of Bambi's whose intercepts are not the model's, by the likelihood."""
    if not is_bambis(posterior):
        return
    names = intercepts(model)
    for rv in model.observed_RVs if names else []:
        [logp], _ = split_checks([pm.logp(rv, model.rvs_to_values[rv])])
        function = RowFunction(model, Quantity(repr(rv.name), [logp], ()), posterior)
        center = {name: posterior[name].mean(("chain", "draw")).values for name in function.leaves}
        for name in set(names) & set(function.leaves):
            refuse_intercept(
                name,
                posterior[name].std(("chain", "draw")).values,
                partial(_heights, function, center, name),
                said,
            )


def of_another(idata: xr.DataTree, model: pm.Model, posterior: xr.Dataset) -> str:
    """Say so where draws are of another posterior, by the rows that the model and the run share.

    Nothing where they have other rows or other columns, or where that cannot be told: of discrete
    variables, or rows that depend on each other.
    """
    names = [rv.name for rv in model.free_RVs]
    told = not model.discrete_value_vars and all(name in posterior for name in names)
    recorded = set(idata["observed_data"].data_vars) if "observed_data" in idata.children else set()
    observed = [rv.name for rv in model.observed_RVs]
    if not (told and observed and recorded.issuperset(observed)):
        return ""
    if other_data(idata, model, observed) is not None:
        return ""
    vector = Vector(model.initial_point())
    with suppress(TallModelError, ValueError, NotImplementedError, NullTypeGradError):
        found = _drift(model, vector, posterior)
        return f"{found.said(model, vector)}.{of_intercepts(model)}" if found.is_large else ""
    return ""


def _drift(model: pm.Model, vector: Vector, posterior: xr.Dataset) -> Drift:
    """Pass over all rows at some of the draws."""
    thetas = to_theta(model, vector, posterior, SAID).reshape(-1, vector.size)
    flat = posterior.stack(sample=("chain", "draw")).transpose("sample", ...)
    some = spread(len(thetas), 1, SOME)
    rvs, values = model.free_RVs, model.value_vars
    rises = {rv.name: np.zeros((len(some), *posterior[rv.name].shape[2:])) for rv in rvs}
    for rv in model.observed_RVs:
        [logp], _ = split_checks([pm.logp(rv, model.rvs_to_values[rv])])
        function = RowFunction(model, Quantity(repr(rv.name), [logp], ()), posterior)
        draws = [[flat[name].values[k] for name in function.leaves] for k in some]
        for found in _over(function, partial(_slopes, function, draws)):
            for name, each in zip(function.leaves, zip(*found, strict=True), strict=True):
                rises[name] += each
    # Of the rows by the chain rule, and of the prior.
    given = [rv.type(f"slope of {rv.name}") for rv in rvs]
    pulled = zip(model.replace_rvs_by_values(rvs), given, strict=True)
    height = model.logp(vars=[*rvs, *model.potentials]) + sum((x * g).sum() for x, g in pulled)
    score = model.compile_fn(
        grad(height, values), inputs=[*values, *given], mode="FAST_COMPILE", point_fn=False
    )
    scores = []
    for k, at in enumerate(some):
        point = vector.unravel(thetas[at])
        found = score(*(point[v.name] for v in values), *(rises[rv.name][k] for rv in rvs))
        scores.append(vector.ravel(dict(zip(point, found, strict=True))))
    return drift_of_scores(thetas, np.array(scores))


def _slopes(
    function: RowFunction, draws: list[list[np.ndarray]], columns: list[np.ndarray]
) -> list[list[np.ndarray]]:
    return [function.slopes(draw, columns) for draw in draws]


def _heights(
    function: RowFunction, center: Mapping[str, np.ndarray], name: str, moves: np.ndarray
) -> np.ndarray:
    """Log-likelihoods of all rows, a variable moved."""
    rng = np.random.default_rng(0)

    def height(by: np.ndarray) -> float:
        values = [v + by if n == name else v for n, v in center.items()]
        return sum(_over(function, lambda columns: function([values], columns, rng).sum()))

    return np.array([height(by) for by in moves])


def _over(function: RowFunction, work: Callable[[list[np.ndarray]], Any]) -> Iterator[Any]:
    """Yield what `work` makes of columns of all rows, some at a time."""

    def part(start: int) -> Any:
        index = np.arange(start, min(start + _PIECE, function.n_rows))
        return work([np.take(r.value, index, r.axis) for r in function.raw])

    return current().map(part, range(0, function.n_rows, _PIECE))
