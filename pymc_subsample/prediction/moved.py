"""Whether draws are of the model: of another one, or of Bambi's fit with the intercept moved."""

from collections.abc import Mapping
from contextlib import suppress

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.gradient import grad

from pymc_subsample.diagnostics.drift import (
    Drift,
    directions,
    drift,
    intercepts,
    is_bambis,
    of_bambi,
    other_data,
)
from pymc_subsample.diagnostics.thinned import reader, spread, to_theta
from pymc_subsample.likelihood.checks import split_checks
from pymc_subsample.likelihood.errors import TallModelError
from pymc_subsample.likelihood.evaluation import Vector
from pymc_subsample.passes import current
from pymc_subsample.prediction.quantity import SAID, Quantity
from pymc_subsample.prediction.rowwise import RowFunction

# How far the most likely intercept may be from the draws' mean, the other variables at theirs: in
# standard deviations of the draws, and of an intercept of which all else is known.
_OFF, _FAR = 0.5, 10.0
_PIECE = 2**20
# Directions along which the log-likelihood of all rows is taken, and draws that tell of the prior.
_DIRECTIONS, _PRIOR = 16, 50


def refuse_moved(model: pm.Model, posterior: xr.Dataset, said: str) -> None:
    """Refuse a posterior of Bambi's whose intercepts are not the model's.

    Raises
    ------
    ValueError
        If the likelihood says so: a Newton step of an intercept from the mean of the draws.
    """
    if not is_bambis(posterior):
        return
    names = intercepts(model)
    for rv in model.observed_RVs if names else []:
        [logp], _ = split_checks([pm.logp(rv, model.rvs_to_values[rv])])
        function = RowFunction(model, Quantity(repr(rv.name), [logp], ()), posterior)
        center = {name: posterior[name].mean(("chain", "draw")).values for name in function.leaves}
        for name in set(names) & set(function.leaves):
            spread = posterior[name].std(("chain", "draw")).values
            for k in np.ndindex(spread.shape):
                if _is_off(function, center, name, k, float(spread[k])):
                    raise ValueError(
                        f"{said}: {name!r} in idata is not that of the PyMC model: Bambi's fit "
                        "moves it where the model centres predictors. Write "
                        "bmb.Model(..., center_predictors=False), with center(x) in the formula "
                        "for predictors that are far from 0, or use Bambi's own model.predict."
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
    with suppress(TallModelError, ValueError):
        found = _drift(model, vector, posterior)
        places = dict(zip(vector.names, vector.slices, strict=True))
        return f"{found.said(model, places)}.{of_bambi(model)}" if found.is_large else ""
    return ""


def _drift(model: pm.Model, vector: Vector, posterior: xr.Dataset) -> Drift:
    """Pass over all rows at two points per direction, as order 2 has the mean gradient."""
    thetas = to_theta(model, vector, posterior, SAID).reshape(-1, vector.size)
    steps, weight = directions(thetas, _DIRECTIONS)
    center = thetas.mean(axis=0)
    names = [rv.name for rv in model.free_RVs]
    sizes = [int(np.prod(posterior[name].shape[2:])) for name in names]
    flat = reader(model, vector, names)(np.concatenate([center + steps, center - steps]))
    points = [
        {
            name: part.reshape(posterior[name].shape[2:])
            for name, part in zip(names, np.split(at, np.cumsum(sizes)[:-1]), strict=True)
        }
        for at in flat
    ]
    levels = np.zeros(len(points))
    for rv in model.observed_RVs:
        [logp], _ = split_checks([pm.logp(rv, model.rvs_to_values[rv])])
        levels += _levels(
            RowFunction(model, Quantity(repr(rv.name), [logp], ()), posterior), points
        )
    values = model.value_vars
    prior = model.logp(vars=[*model.free_RVs, *model.potentials])
    rises = model.compile_fn(
        grad(prior, values), inputs=values, mode="FAST_COMPILE", on_unused_input="ignore"
    )
    some = thetas[spread(len(thetas), 1, _PRIOR)]
    with np.errstate(all="ignore"):
        slopes = [vector.ravel(dict(zip(vector.names, rises(vector.unravel(theta)), strict=True)))
                  for theta in some]  # fmt: skip
        rise = (levels[: len(steps)] - levels[len(steps) :]) / 2 + steps @ np.mean(slopes, axis=0)
    return drift(thetas, steps, weight, rise)


def _is_off(
    function: RowFunction, center: Mapping[str, np.ndarray], name: str, k: tuple, spread: float
) -> bool:
    there = {h: _total(function, center, name, k, h * spread) for h in (-1, 0, 1)}
    slope = (there[1] - there[-1]) / 2
    curvature = 2 * there[0] - there[1] - there[-1]
    # In units of `spread`, in which the conditional sd is 1 / sqrt(curvature).
    step = slope / curvature if curvature > 0 else np.inf * abs(slope)
    # Where nothing is a number, or the likelihood is flat, the intercept is far from anywhere.
    return not abs(step) <= max(_OFF, _FAR / np.sqrt(max(curvature, np.finfo(float).tiny)))


def _total(
    function: RowFunction, center: Mapping[str, np.ndarray], name: str, k: tuple, by: float
) -> float:
    """Log-likelihood of all rows, an element of a variable moved."""
    moved = {n: np.array(v, dtype=float) for n, v in center.items()}
    moved[name][k] += by
    return float(_levels(function, [moved])[0])


def _levels(function: RowFunction, points: list[dict[str, np.ndarray]]) -> np.ndarray:
    """Log-likelihood of all rows at points."""
    values = [[point[n] for n in function.leaves] for point in points]
    size = max(1, _PIECE // len(points))

    def part(start: int) -> np.ndarray:
        index = np.arange(start, min(start + size, function.n_rows))
        columns = [np.take(r.value, index, r.axis) for r in function.raw]
        found = function(values, columns, np.random.default_rng(0))
        return found.reshape(len(points), -1).sum(axis=1)

    parts = current().map(part, range(0, function.n_rows, size))
    return np.sum(list(parts), axis=0)
