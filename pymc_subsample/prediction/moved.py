"""Whether a result of Bambi's fit has draws of the PyMC model, or the intercept moved."""

from collections.abc import Mapping

import numpy as np
import pymc as pm
import xarray as xr

from pymc_subsample.likelihood.checks import split_checks
from pymc_subsample.prediction.quantity import Quantity
from pymc_subsample.prediction.rowwise import RowFunction

# How far the most likely intercept may be from the draws' mean, the other variables at theirs: in
# standard deviations of the draws, and of an intercept of which all else is known.
_OFF, _FAR = 0.5, 10.0
_PIECE = 2**20


def refuse_moved(model: pm.Model, posterior: xr.Dataset, said: str) -> None:
    """Refuse a posterior of Bambi's whose intercepts are not the model's.

    Raises
    ------
    ValueError
        If the likelihood says so: a Newton step of an intercept from the mean of the draws.
    """
    if posterior.attrs.get("modeling_interface") != "bambi":
        return
    names = [v.name for v in model.free_RVs if v.name.split("_")[-1] == "Intercept"]
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
    values = [moved[n] for n in function.leaves]
    total = 0.0
    for start in range(0, function.n_rows, _PIECE):
        index = np.arange(start, min(start + _PIECE, function.n_rows))
        columns = [np.take(r.value, index, r.axis) for r in function.raw]
        total += float(function([values], columns, np.random.default_rng(0)).sum())
    return total
