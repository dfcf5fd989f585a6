"""Audit a run against the full data: what its posterior should have been, and how far off it is."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_subsample.chain import arguments
from pymc_subsample.compiled.functions import building_graphs
from pymc_subsample.diagnostics import array_stats
from pymc_subsample.diagnostics.beyond_draws import Beyond, beyond
from pymc_subsample.diagnostics.checks import PREFIX, TEMPERATURE
from pymc_subsample.diagnostics.drift import (
    drift_of_scores,
    refuse_intercept,
    refuse_other_observed,
    require_same_data,
)
from pymc_subsample.diagnostics.edges import ManyLinesError, edges_near, ends_in_sight, prior_of
from pymc_subsample.diagnostics.mixing import mixing
from pymc_subsample.diagnostics.overlooked_rows import depth, how_deep
from pymc_subsample.diagnostics.reading_draws import (
    columns,
    farthest_thetas,
    group,
    reader,
    require_free_variables,
    require_same_rows,
    spread,
    to_theta,
    why_not_weights,
)
from pymc_subsample.diagnostics.scores import by_scores, covariance_of, log_posteriors
from pymc_subsample.diagnostics.weights import (
    PosteriorMoments,
    by_weights,
    plain_moments,
    unknown_moments,
)
from pymc_subsample.expansion import Expansion, expand
from pymc_subsample.expansion.continuity import Continuity
from pymc_subsample.expansion.estimators import VARIANCE_BOUND
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.model.bambi import intercepts, is_bambis, of_intercepts
from pymc_subsample.model.binding import require_rows
from pymc_subsample.model.discovery import chosen_names, row_terms
from pymc_subsample.model.errors import differentiated
from pymc_subsample.model.own_steps import own_steps, said
from pymc_subsample.model.support import impossible
from pymc_subsample.results.audited import Audit
from pymc_subsample.rows import Rows
from pymc_subsample.units.of_run import integrated_in, without_units

_SAID = "pms.audit"
_FEWEST = 40  # Draws for which Pareto smoothing has a tail of some points.
# Draws besides, the farthest in single elements, of which all rows are read.
_FARTHEST = 16
# Draws beside which rows are asked whether they end the density.
_ASKED = 16
# Variance of log weights, over that of the noise which a run recorded, that is not its noise.
_OTHER = 100.0
# Draws of which the score's test takes means and variances.
_MOST_DRAWS = 5_000
_NO_SCORES = (
    "These draws cannot be audited: scores are gradients. Compare with pm.Metropolis or "
    "pm.DEMetropolisZ on some thousand of the rows."
)


def audit(
    idata: xr.DataTree,
    *,
    model: pm.Model | None = None,
    draws: int = 200,
    var_names: Sequence[str] | str | None = None,
    kind: str = "auto",
    observed: Sequence[str] | None = None,
    dim: str | None = None,
    data: Rows | Sequence[Rows] | None = None,
    passes: Any = None,
    rng: int | np.random.Generator | None = None,
) -> Audit:
    r"""Audit a run: evaluate all rows at some of its draws and say how far the posterior is off.

    Draws of `HMCECS` are weighed by :math:`p(\theta) L(\theta) / e^{lp}`, which is exact: the
    weighted draws have the posterior's own moments, whatever the noise of the subsample and the
    temperature. The weights are Pareto-smoothed [1]_, and all draws serve as a control variate.

    Draws of any other sampler are judged by the gradients g of the log posterior. By Stein's
    identities, :math:`\theta + \Sigma g` has the posterior's mean and, with :math:`\Sigma` near
    the posterior's covariance, hardly any spread: posterior means and standard deviations follow
    with small error, and are compared with those of the draws. The p-value combines a test of
    means and variances with a kernel Stein discrepancy [2]_.

    Beside draws at which a prior or a potential ends the density, or makes it jump, gradients are
    weighed by their distance from there, as these identities hold only where a density vanishes.

    Log densities of all rows at these draws, and at the farthest of all, tell of rows that the
    subsample overlooked: those make some of the draws all but impossible. Along lines far beyond
    the draws they tell of wide tails that none reached. What lies off these lines, or in another
    mode, an audit cannot see.

    Parameters
    ----------
    idata : xarray.DataTree
        What `pm.sample` returned. Every free variable must be in its posterior.
    model : pymc.Model, optional
        The model that was sampled. Default: the model on the context stack.
    draws : int, default 200
        Draws at which all rows are read, from 40 up, spread evenly over all chains: one pass each,
        and up to 16 at the farthest, 16 beside draws (of scores, and 24 times as many where rows
        end the density there) and 33 beyond them, more where something is found there.
    var_names : sequence of str, optional
        Variables of the posterior to report, deterministic ones among them. Default: the free
        variables.
    kind : {"auto", "weights", "score"}
        "auto" takes weights where the run recorded its estimate of the log posterior as HMCECS
        does, and was made by that step alone; scores otherwise.
    observed, dim, data : optional
        Rows to subsample, as given to the step.
    passes : int, concurrent.futures.Executor or dask.distributed.Client, optional
        Who reads the rows, as a step takes it. Default: threads.
    rng : int or Generator, optional
        Random signs of the bootstrap behind the p-value. Default: a fixed seed.

    Returns
    -------
    Audit
        Corrected means and standard deviations beside those of the draws, on the scale of the
        posterior's variables.

    Raises
    ------
    ValueError
        If a free variable is missing from the posterior, a draw is outside its support, the run
        has fewer than 40 draws, or other rows, observed values or `pm.Data` than the model, or is
        Bambi's with the intercept moved, or an argument is out of range.
    TallModelError
        If a free variable is discrete, or has a step of its own in PyMC as BART's trees do, or the
        model's rows cannot be found.
    TypeError
        If there is no model, or `idata` is not a DataTree.

    Notes
    -----
    Of a run that integrated local variables out, the others are audited, by their marginal
    posterior with twice as many nodes: what integrals are off by is part of what is found.

    Memory is bounded by a chunk of the rows. For models with more than 500 parameters the score
    uses the draws' variances for :math:`\Sigma`: valid, but noisier.

    References
    ----------
    .. [1] A. Vehtari, D. Simpson, A. Gelman, Y. Yao and J. Gabry (2024). Pareto smoothed importance
       sampling. Journal of Machine Learning Research 25(72).
    .. [2] K. Chwialkowski, H. Strathmann and A. Gretton (2016). A kernel test of goodness of fit.
       ICML.

    Examples
    --------
    >>> audit = pms.audit(idata, model=model)
    >>> print(audit)
    """
    start = time.perf_counter()
    arguments.choice("kind", kind, ("auto", "weights", "score"))
    wanted = arguments.count("draws", draws, smallest=_FEWEST)
    made_by = arguments.passes(passes)
    if data is not None:
        require_rows(data)
    generator = arguments.generator(rng)
    posterior = group(idata, "posterior", _SAID)
    model = arguments.model_in_context(model, f"call {_SAID}")
    arguments.text("dim", dim, "a dimension")
    chosen = chosen_names(observed) or None
    row_terms(model, chosen)
    written, integrated = model, integrated_in(idata, model)
    if integrated:
        refuse_other_observed(idata, written, _SAID)
        model = _with_finer_nodes(written, integrated)
    var_names = arguments.name_list("var_names", var_names)
    require_free_variables(posterior, model, _SAID)
    if alone := own_steps(model):
        raise TallModelError(f"{_SAID}: {said(alone)}: there is no density to evaluate.")
    weighable = why_not_weights(idata)
    if kind == "weights" and weighable:
        raise ValueError(f'{_SAID}: kind="weights" is not possible, since {weighable}.')
    kind = "score" if kind == "score" or weighable else "weights"
    names = _names(var_names, posterior, model, kind)

    n_chains, n_draws = posterior.sizes["chain"], posterior.sizes["draw"]
    if n_chains * n_draws < _FEWEST:
        raise ValueError(
            f"{_SAID}: idata has {n_chains * n_draws} draws; an audit needs at least {_FEWEST}."
        )
    at = spread(n_draws, n_chains, wanted)
    with building_graphs(), made_by.in_use():
        tall = TallModel(model, chosen, dim, data=data)
        with differentiated(tall, "Its draws cannot be audited."):
            expansion = expand(tall, 0)
            expansion.addresses("forward", "backward", "anchor")
    require_same_rows(idata, tall, _SAID)
    if data is None:
        require_same_data(idata, written, tall, _SAID)
    values, labels = columns(posterior, names)
    if not np.all(np.isfinite(values)):
        bad = [
            x for x, ok in zip(labels, np.isfinite(values).all(axis=(0, 1)), strict=True) if not ok
        ]
        raise ValueError(f"{_SAID}: draws of {', '.join(bad[:5])} are not finite.")
    theta = to_theta(model, tall, posterior.isel(draw=at), _SAID)
    if kind == "score":
        everything = np.arange(tall.size)
        smooth = Continuity(tall, expansion, everything)
        smooth.require(_NO_SCORES, theta.reshape(-1, tall.size))
    logp, score = log_posteriors(expansion, theta.reshape(-1, tall.size))
    shape, passes = theta.shape, len(logp)
    bambis = of_intercepts(model) if is_bambis(posterior) else ""
    if not np.all(np.isfinite(logp)):
        _refuse_impossible(model, tall, expansion, theta.reshape(-1, tall.size), logp, bambis)
    if bambis:
        _refuse_intercepts(model, tall, expansion, theta.reshape(-1, tall.size))
    some = spread(n_draws, n_chains, _MOST_DRAWS)
    every = to_theta(model, tall, posterior.isel(draw=some), _SAID)
    if kind == "weights":
        stats = idata["sample_stats"].to_dataset().transpose("chain", "draw", ...)
        sign = stats["sign"].values.astype(float) if "sign" in stats else None
        lp = stats["lp"].values[:, at]
        if not np.all(np.isfinite(lp)):
            raise ValueError(f"{_SAID}: sample_stats['lp'] is not finite at some draws.")
        signed = sign if sign is not None and np.any(sign < 0) else None
        log_weights = logp.reshape(shape[:2]) - lp
        raw, found, k_hat, ess = by_weights(log_weights, values, at, sign)
        other = _of_other_estimates(stats, log_weights)
        p_value, edges = np.nan, ""
    else:
        passes += 1
        if not np.all(np.isfinite(score)):
            raise ValueError(
                f"{_SAID}: the gradient of the log posterior is not finite at some draws."
            )
        raw = plain_moments(values)
        read = reader(model, tall, names)
        look = generator.spawn(1)[0]
        near = theta.reshape(-1, tall.size)
        rows_end, asked = _ended_by_rows(expansion, near, logp, every, look)
        passes += asked
        found, p_value, edges = unknown_moments(raw), np.nan, "rows"
        if not rows_end:
            beside = partial(edges_near, prior_of(expansion), near, rng=look)
            try:
                found, p_value, cut = by_scores(
                    expansion, theta, score.reshape(shape), every, raw, n_chains * n_draws, read,
                    generator, beside,
                )  # fmt: skip
                edges = "prior" if cut else ""
            except ManyLinesError:
                edges = "many"
        k_hat = ess = np.nan
        signed, other = None, ""
    weights = None if signed is None else signed[:, at].ravel() / signed.mean()
    drift = drift_of_scores(theta.reshape(-1, tall.size), score, weights)
    if drift.is_large:
        other = (
            f"The draws are far from this model's posterior: {drift.said(model, tall)}. If another "
            "model, or other data, were sampled, pass those; if not, the chains never got there."
        )
    if not other:
        far = farthest_thetas(model, tall, posterior, _FARTHEST)
        passes += len(far)
        farthest = log_posteriors(expansion, far)[0] if len(far) else logp[:0]
        other = _of_overlooked(farthest, logp)
    unreached = 0.0, ""
    if not other:
        tail, asked = _beyond(expansion, every)
        passes += asked
        unreached = tail.stretch, _element(model, tall, tail.element)
    table = _table(labels, raw, found, values[:, at])
    seconds = time.perf_counter() - start
    judged = dict.fromkeys([*(rv.name for rv in model.free_RVs), *names])
    mixed = mixing(posterior[list(judged)], signed)
    return Audit(
        table, kind, tuple(mixed), k_hat, ess, p_value, theta[..., 0].size, passes, seconds, other,
        edges, unreached,
    )  # fmt: skip


def _with_finer_nodes(model: pm.Model, names: Sequence[str]) -> pm.Model:
    """Return a model without local variables, by twice the nodes that a step takes."""
    _, kept = without_units(model, names)
    return without_units(model, names, 2 * kept.integral.per_dimension)[0]


def _beyond(expansion: Expansion, every: np.ndarray) -> tuple[Beyond, int]:
    """Look how much the density holds beyond the farthest of draws, (chain, draw, d)."""
    effective = np.asarray(array_stats.ess(every, chain_axis=0, draw_axis=1, method="mean"))
    flat = every.reshape(-1, every.shape[-1])

    def density(points: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return log_posteriors(expansion, points)[0]

    return beyond(density, flat, np.nan_to_num(np.minimum(effective, len(flat))))


def _element(model: pm.Model, tall: TallModel, place: int) -> str:
    """Name an element of theta by its variable, and its place there."""
    for name, part, shape in zip(tall.names, tall.slices, tall.shapes, strict=True):
        if part.start <= place < part.stop:
            index = ", ".join(map(str, np.unravel_index(place - part.start, shape)))
            owner = next(v for v in model.value_vars if v.name == name)
            label = model.values_to_rvs[owner].name
            return f"{label}[{index}]" if shape else label
    raise IndexError(place)


def _ended_by_rows(
    expansion: Expansion,
    thetas: np.ndarray,
    logp: np.ndarray,
    every: np.ndarray,
    rng: np.random.Generator,
) -> tuple[bool, int]:
    """Whether rows end the density beside draws, (k, d), where it is not nil, and passes taken."""
    passes = 0
    scale = covariance_of(every.reshape(-1, thetas.shape[1]), 10 * thetas.shape[1])

    def level(points: np.ndarray) -> np.ndarray:
        nonlocal passes
        prior = np.array([expansion.parameters(x)[1] for x in points])
        passes += len(points)
        return np.where(np.isfinite(prior), log_posteriors(expansion, points)[0], 0.0)

    some = spread(len(thetas), 1, _ASKED)
    near = ends_in_sight(level, thetas[some], logp[some], np.linalg.cholesky(scale), rng) > 0
    return near, passes


def _of_other_estimates(stats: xr.Dataset, log_weights: np.ndarray) -> str:
    """Say so where a run estimated something else, by the noise that its estimates have."""
    temperature = stats.get(PREFIX + TEMPERATURE.name)
    tempered = temperature is not None and np.any(temperature.values[:, -1] != 1.0)
    if "loglik_variance" not in stats or tempered:
        return ""
    recorded, found = float(stats["loglik_variance"].mean()), float(np.var(log_weights))
    if not found > max(VARIANCE_BOUND, _OTHER * recorded):
        return ""
    return (
        "Log posteriors of all rows differ from those that the run estimated by a standard "
        f"deviation of {np.sqrt(found):,.3g}, where its estimates have one of "
        f"{np.sqrt(recorded):,.3g}: another model, or other data, were sampled, or rows are far "
        "out that its subsample hardly ever held. Pass the model and the data that were sampled."
    )


def _of_overlooked(farthest: np.ndarray, logp: np.ndarray) -> str:
    """Say so where all rows make single draws all but impossible."""
    if not (deep := depth(np.append(logp, farthest), logp)) > 1:
        return ""
    return (
        "All rows make some of the draws all but impossible: their log density is "
        f"{how_deep(deep)}. Rows matter there that the sampler did not see, or it is stuck there. "
        "pms.HMCECS and pms.ScalableMH look for such rows; tune and sample for longer."
    )


def _refuse_impossible(
    model: pm.Model,
    tall: TallModel,
    expansion: Expansion,
    thetas: np.ndarray,
    logp: np.ndarray,
    bambis: str,
) -> None:
    """Refuse draws at which the log posterior is not finite, by what makes it so."""
    bad = np.flatnonzero(~np.isfinite(logp))
    prior = np.array([expansion.parameters(thetas[k])[1] for k in bad])
    if np.isfinite(prior).all():
        cause = (
            "Where these are few, rows are impossible there that the subsample hardly ever held, "
            "and the draws are not from the posterior; otherwise another model, or other data, "
            f"were sampled: pass those.{bambis}"
        )
    else:
        first = thetas[bad[~np.isfinite(prior)][0]]
        cause = (
            f"At {np.sum(~np.isfinite(prior))} they are outside of the support: "
            f"{impossible(model, tall.unravel(first), tall.observed)}. The sampler does not see "
            "that constraint (a gradient does not), or another model was sampled: pass that, or "
            "use a step that accepts or rejects, such as pms.MinibatchBarkerMH."
        )
    raise ValueError(
        f"{_SAID}: the log posterior of all rows is not finite at {len(bad)} of {len(logp)} draws. "
        f"{cause}"
    )


def _refuse_intercepts(
    model: pm.Model, tall: TallModel, expansion: Expansion, thetas: np.ndarray
) -> None:
    """Refuse Bambi's intercepts that are not the model's."""
    sd = thetas.std(axis=0)

    def heights(at: slice, moves: np.ndarray) -> np.ndarray:
        points = np.tile(thetas.mean(axis=0), (len(moves), 1))
        points[:, at] += moves
        return log_posteriors(expansion, points)[0]

    for name in intercepts(model):
        at = tall.slices[tall.names.index(model.rvs_to_values[model[name]].name)]
        refuse_intercept(name, sd[at], partial(heights, at), _SAID)


def _table(
    labels: Sequence[str], raw: PosteriorMoments, found: PosteriorMoments, audited: np.ndarray
) -> xr.Dataset:
    scale = np.where(found.sd > 0, found.sd, 1.0)
    numbers = {
        "mean": raw.mean,
        "sd": raw.sd,
        "mean_mcse": raw.mean_mcse,
        "audited_mean": audited.mean(axis=(0, 1)),
        "audited_sd": audited.std(axis=(0, 1)),
        "corrected_mean": found.mean,
        "corrected_sd": found.sd,
        "corrected_mean_mcse": found.mean_mcse,
        "corrected_sd_mcse": found.sd_mcse,
        "bias": (raw.mean - found.mean) / scale,
        "bias_mcse": found.bias_mcse,
        "sd_error": np.where(found.sd > 0, raw.sd / scale - 1, 0.0),
        "sd_error_mcse": found.sd_error_mcse,
    }
    return xr.Dataset(
        {name: ("parameter", np.asarray(x, dtype=float)) for name, x in numbers.items()},
        coords={"parameter": labels},
    )


# Arguments


def _names(names: list[str] | None, posterior: xr.Dataset, model: pm.Model, kind: str) -> list[str]:
    if names is None:
        return [rv.name for rv in model.free_RVs]
    unknown = [name for name in names if name not in posterior]
    if unknown:
        raise ValueError(
            f"{_SAID}: var_names={names} must name variables of idata.posterior, which are "
            f"{list(posterior.data_vars)}."
        )
    known = {v.name for v in [*model.free_RVs, *model.deterministics]}
    unknown = [name for name in names if name not in known]
    if unknown and kind == "score":
        raise ValueError(
            f"{_SAID}: var_names holds {unknown}, which the model does not compute; scores are "
            f"translated to variables through the model, which has {sorted(known)}."
        )
    return names
