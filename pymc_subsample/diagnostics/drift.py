r"""Whether draws are of a model's posterior at all, by the mean gradient of its log density.

By Stein's identity the gradient g of the log posterior in unconstrained space has mean zero over
its draws. Over draws of another one, were both normal with covariance :math:`\Sigma`,
:math:`\Sigma E[g]` is how far their mean is off.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.graph.basic import Variable

from pymc_subsample.diagnostics.look import log_posteriors
from pymc_subsample.diagnostics.reading_draws import sampled_rows, spread
from pymc_subsample.expansion import Expansion
from pymc_subsample.graph.concrete import root_array
from pymc_subsample.model import TallModel
from pymc_subsample.model.evaluation import Vector

# Standard deviations per parameter that draws are off, from which on they are of another
# posterior. A choice: draws of the right posterior are within the Monte Carlo error of 0, those
# of another data set many away.
OFF = 3.0
# Draws of which all rows are read. A choice: passes over all rows. Their mean is good to a fifth
# of a standard deviation.
SOME = 24
# Variances along a direction, as shares of the whole, that are rounding. A choice: ten thousand
# roundings of doubles.
_FLAT = 1e-12
# Parameters up to which a covariance is that of all draws; standard errors that are no doubt. A
# choice: 64 directions need some hundred draws. Four standard errors are exceeded once in 16,000
# directions.
_MOST, _ERRORS = 64, 4.0


@dataclass(frozen=True)
class Drift:
    """How far draws are off."""

    # Shape (d,): the mean gradient of the log posterior over the draws, times their covariance, in
    # their standard deviations. Zero for draws of this posterior, but for Monte Carlo error.
    drift: np.ndarray
    off: float  # Its length by that covariance, per parameter.

    @property
    def is_large(self) -> bool:
        """Whether the draws are of another posterior; so they are where nothing is a number."""
        return not self.off <= OFF

    def said(self, model: pm.Model, vector: Vector) -> str:
        """Say how far the draws are off, and in which variable most."""
        places = zip(vector.names, vector.slices, strict=True)
        sizes = {name: float(np.max(np.abs(self.drift[at]))) for name, at in places}
        worst = max(sizes, key=lambda name: np.nan_to_num(sizes[name], nan=np.inf))
        rv = model.values_to_rvs[next(v for v in model.value_vars if v.name == worst)]
        return (
            f"by the mean gradient of its log density, the draws are off by {self.off:,.3g} of "
            f"their standard deviations per parameter (at most {OFF:g}), most in {rv.name!r} "
            f"({sizes[worst]:,.3g})"
        )


def directions(thetas: np.ndarray, most: int) -> tuple[np.ndarray, float]:
    """Return steps f, shape (k, d), and w with w sum f f' the covariance of draws, shape (S, d).

    If d is above `most`, they are so many of the draws, and the sum is an estimate of it.
    """
    draws, size = thetas.shape
    away = thetas - thetas.mean(axis=0)
    if size > most:
        chosen = spread(draws, 1, most)
        return away[chosen], 1.0 / len(chosen)
    scale = away.std(axis=0)
    scale[scale == 0] = 1.0
    away = away / scale
    values, vectors = np.linalg.eigh(away.T @ away / max(draws - 1, 1))
    some = values > _FLAT * max(size, 1)
    return (np.sqrt(values[some]) * vectors[:, some]).T * scale, 1.0


def drift_of_scores(
    thetas: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None
) -> Drift:
    """Measure how far draws theta, shape (S, d), are off at least, by gradients at some of them.

    Scores have shape (k, d). Their mean counts beyond four of its standard errors: where effects
    and their scales make a bent ridge, single gradients are far longer than the mean's errors.
    Weights, shape (k,), are the signs of signed draws, over the mean sign of all.
    """
    if weights is not None:
        scores = scores * weights[:, None]
    steps, weight = directions(thetas, _MOST)
    scale = thetas.std(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is off
        along = scores @ steps.T
        mean, error = along.mean(axis=0), along.std(axis=0, ddof=1) / np.sqrt(len(along))
        slope = np.sign(mean) * np.maximum(np.abs(mean) - _ERRORS * error, 0.0)
        found = weight * steps.T @ slope / np.where(scale > 0, scale, 1.0)
        off = float(np.sqrt(weight * slope @ slope / thetas.shape[1]))
    return Drift(found, off)


def drift_of(expansion: Expansion, thetas: np.ndarray) -> Drift:
    """Measure how far draws are off, by passes over all rows at some of them."""
    some = thetas[spread(len(thetas), 1, SOME)]
    return drift_of_scores(thetas, log_posteriors(expansion, some)[1])


def require_same_data(idata: xr.DataTree, model: pm.Model, tall: TallModel, said: str) -> None:
    """Refuse draws given other observed values, or other `pm.Data`, than the model's.

    A run whose rows are those on disk recorded the sample that its model was written on, which has
    another shape than all of them.
    """
    other = other_observed(idata, model, tall.likelihood) or other_columns(idata, model)
    if other is None:
        return
    _, seen, held = other
    if seen == held or sampled_rows(idata) != tall.n_rows:
        _refuse_other(other, said)


def _refuse_other(other: "Other", said: str) -> None:
    name, seen, held = other
    raise ValueError(
        f"{said}: idata was sampled given other values of {name!r} (shape {seen}) than the "
        f"model has (shape {held}). Pass the model and the data that were sampled."
    )


def refuse_other_observed(idata: xr.DataTree, model: pm.Model, said: str) -> None:
    """Refuse draws given other observed values than the model's, of any of its variables."""
    other = other_observed(idata, model, [v.name for v in model.observed_RVs])
    if other is not None:
        _refuse_other(other, said)


# Of what a run recorded and the model has other values of: its name, and both shapes.
Other = tuple[str, tuple[int, ...], tuple[int, ...]]


def other_observed(idata: xr.DataTree, model: pm.Model, names: Collection[str]) -> Other | None:
    """Return an observed variable of which a run recorded other values than the model has."""
    held = {v.name: model.rvs_to_values[v] for v in model.observed_RVs if v.name in names}
    return _other(idata, "observed_data", held)


def other_columns(idata: xr.DataTree, model: pm.Model) -> Other | None:
    """Return a `pm.Data` of which a run recorded other values than the model has."""
    return _other(idata, "constant_data", {v.name: v for v in model.data_vars})


def _other(idata: xr.DataTree, group_name: str, held: Mapping[str, Variable]) -> Other | None:
    recorded = idata[group_name].to_dataset() if group_name in idata.children else {}
    for name, var in held.items():
        value = root_array(var)
        if name not in recorded or value is None:
            continue
        seen = recorded[name].values.astype(value.dtype, copy=False)
        if value.shape != seen.shape or not np.array_equal(value, seen):
            return name, seen.shape, value.shape
    return None
