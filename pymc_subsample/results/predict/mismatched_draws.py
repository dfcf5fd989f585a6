"""Whether draws are of the model: of another one, or of Bambi's fit with the intercept moved."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.xtensor.type import XTensorType

from pymc_subsample.diagnostics.drift import (
    SOME,
    Drift,
    Other,
    drift_of_scores,
    other_observed,
)
from pymc_subsample.diagnostics.reading_draws import sampled_rows, spread, to_theta
from pymc_subsample.graph.concrete import UNDIFFERENTIABLE
from pymc_subsample.model import TallModel
from pymc_subsample.model.bambi import may_be_moved, of_intercepts, refuse_intercept
from pymc_subsample.model.errors import TallModelError
from pymc_subsample.model.parameter_checks import split_checks
from pymc_subsample.model.tall_model import silently
from pymc_subsample.results.predict.quantity import SAID, Predicted
from pymc_subsample.results.predict.rowwise import RowFunction
from pymc_subsample.rows.workers import current
from pymc_subsample.units.run_marginal import integrated_in

# Rows at a time. A choice of memory: 512 KB for each column.
_PIECE = 2**16


def refuse_moved(model: pm.Model, posterior: xr.Dataset, said: str) -> None:
    """Refuse a posterior of Bambi's whose intercepts are not the model's, by the likelihood."""
    names = may_be_moved(model, posterior)
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
    with suppress(TallModelError, ValueError, *UNDIFFERENTIABLE):
        if (found := _drift(model, posterior, signs)) is not None and found[1].is_large:
            tall, drift = found
            return f"{drift.said(model, tall)}.{of_intercepts(model)}"
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
    model: pm.Model, posterior: xr.Dataset, signs: np.ndarray | None
) -> tuple[TallModel, Drift] | None:
    """Pass over all rows at some of the draws; None where their derivatives cannot be had."""
    tall = silently(partial(TallModel, model, lift=False))
    thetas = to_theta(model, tall, posterior, SAID).reshape(-1, tall.size)
    names = zip(tall.names, tall.slices, strict=True)
    smooth = [np.arange(tall.size)[at] for name, at in names if name not in tall.discrete]
    if not smooth:
        return None
    own, some = np.concatenate(smooth), spread(len(thetas), 1, SOME)
    logp, scores = tall.log_posteriors(thetas[some])
    scores, possible = scores[:, own], np.isfinite(logp)
    if possible.all() and not np.isfinite(scores).all():
        return None
    scores[~possible] = np.nan
    weights = None if signs is None else signs[some] / signs.mean()
    off = drift_of_scores(thetas[:, own], scores, weights)
    drift = np.zeros(tall.size)
    drift[own] = off.drift
    return tall, Drift(drift, off.off)


def _heights(
    function: RowFunction, center: Mapping[str, np.ndarray], name: str, moves: np.ndarray
) -> np.ndarray:
    """Log-likelihoods of all rows, a variable moved."""
    draws = [[v + by if n == name else v for n, v in center.items()] for by in moves]

    def part(start: int) -> np.ndarray:
        index = np.arange(start, min(start + _PIECE, function.n_rows))
        columns = [np.take(r.value, index, r.axis) for r in function.raw]
        found = function(draws, columns, np.random.default_rng(0))
        return np.array([x.sum(dtype=float) for x in found])

    return sum(current().map(part, range(0, function.n_rows, _PIECE)), np.zeros(len(moves)))
