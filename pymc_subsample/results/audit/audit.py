"""Audit a run against the full data: what its posterior should have been, and how far off it is."""

import time
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_subsample.chain import arguments
from pymc_subsample.chain.progress import announced, doing
from pymc_subsample.compiled.functions import building_graphs
from pymc_subsample.diagnostics.chain_ends import in_result
from pymc_subsample.diagnostics.drift import refuse_other_observed, require_same_data
from pymc_subsample.diagnostics.mixing import mixing
from pymc_subsample.diagnostics.reading_draws import (
    group,
    require_free_variables,
    require_same_rows,
    spread,
    why_not_weights,
)
from pymc_subsample.expansion import expand
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.model.binding import require_rows
from pymc_subsample.model.discovery import chosen_names, row_terms
from pymc_subsample.model.errors import differentiated
from pymc_subsample.model.own_steps import own_steps, said
from pymc_subsample.results.audit import audited_draws, other_models
from pymc_subsample.results.audit.audited_draws import read
from pymc_subsample.results.audit.result import Audit
from pymc_subsample.rows import Rows, Several
from pymc_subsample.units.run_marginal import integrated_in, marginal_of_run, without_units
from pymc_subsample.units.stored_tables import StoredTables

_SAID = "pms.audit"
# Draws for which Pareto smoothing has a tail of some points. A fifth of them, eight: five are the
# least that ArviZ fits a tail to.
_FEWEST = 40


@announced(_SAID, "auditing")
def audit(
    idata: xr.DataTree,
    *,
    model: pm.Model | None = None,
    draws: int = 200,  # a choice: passes over all rows; k-hat is judged up to 0.57 then
    var_names: Sequence[str] | str | None = None,
    kind: str = "auto",
    likelihood: Sequence[str] | None = None,
    dim: str | None = None,
    data: Rows | Sequence[Rows] | None = None,
    workers: Any = None,
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
    likelihood, dim, data : optional
        Rows to subsample, as given to the step.
    workers : int, concurrent.futures.Executor or dask.distributed.Client, optional
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
    posterior with twice as many nodes: what integrals are off by is part of what is found. What is
    said of rows above then holds of units, all rows of a level.

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
    made_by = arguments.workers(workers)
    given = None if data is None else require_rows(data)
    generator = arguments.generator(rng)
    posterior = group(idata, "posterior", _SAID)
    model = arguments.model_in_context(model, f"call {_SAID}")
    arguments.text("dim", dim, "a dimension")
    chosen = chosen_names(likelihood) or None
    row_terms(model, chosen)
    written, integrated = model, integrated_in(idata, model)
    if integrated:
        refuse_other_observed(idata, written, _SAID)
        model, given = _with_finer_nodes(idata, written, integrated, given)
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
        tall = TallModel(model, chosen, dim, data=given)
        with differentiated(tall, "Its draws cannot be audited."):
            expansion = expand(tall, 0)
            expansion.addresses("forward", "backward", "anchor")
    require_same_rows(idata, tall, _SAID)
    if data is None:
        require_same_data(idata, written, tall, _SAID)
    audited = read(model, tall, expansion, posterior, names, at, "units" if integrated else "rows")
    if kind == "score":
        audited_draws.require_scores(audited)
    with doing("reading all rows at some of the draws"):
        look = audited.look()
    other_models.refuse_impossible(audited, look)
    every, other = audited.every(), ""
    if kind == "weights":
        stats = idata["sample_stats"].to_dataset().transpose("chain", "draw", ...)
        found, log_weights = audited_draws.of_weights(audited, stats, look)
        ends = chain(*in_result(idata).values())
        other = other_models.of_other_estimates(stats, ends, log_weights)
    else:
        found = audited_draws.of_scores(audited, names, look, every, generator)
    passes = len(look.logp) + found.asked
    other = other_models.of_drift(audited, look, found.signs) or other
    other = other or other_models.of_overlooked(look)
    unreached = 0.0, ""
    if not other:
        with doing("looking for mass beyond the draws"):
            unreached, asked = audited.unreached(every)
        passes += asked
    table = audited_draws.table(audited.labels, found.raw, found.found, audited.values[:, at])
    seconds = time.perf_counter() - start
    judged = dict.fromkeys([*(rv.name for rv in model.free_RVs), *names])
    mixed = mixing(posterior[list(judged)], found.signs)
    return Audit(
        table, kind, tuple(mixed), found.k_hat, found.ess, found.p_value, len(look.usual), passes,
        seconds, other, found.edges, unreached, audited.counted,
    )  # fmt: skip


def _with_finer_nodes(
    idata: xr.DataTree, model: pm.Model, names: Sequence[str], data: Rows | Several | None
) -> tuple[pm.Model, Rows | Several | None]:
    """Return a model without local variables, of twice a step's nodes, and its rows on disk."""
    if isinstance(data, Several):
        raise TypeError(f"{_SAID}: data must be the rows of one folder, as units of rows are.")
    integrals = marginal_of_run(idata, model, _SAID, data)
    n_nodes = None if integrals is None else 2 * integrals.integral.per_dimension
    stored = None if data is None or integrals is None else StoredTables(data.path)
    marginal, _ = without_units(model, names, n_nodes, stored, data)
    return marginal, data if stored is None else require_rows(stored.rows)


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
