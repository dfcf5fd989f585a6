"""Leave-one-out cross-validation of tall models, from a few hundred rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from arviz_stats.utils import ELPDData

from pymc_subsample.chain import arguments
from pymc_subsample.compiled.functions import building_graphs
from pymc_subsample.diagnostics.drift import drift_of, refuse_other_observed, require_same_data
from pymc_subsample.diagnostics.reading_draws import (
    group,
    require_free_variables,
    require_same_rows,
    to_theta,
)
from pymc_subsample.diagnostics.weights import good_k
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.verification import Agreement
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.model.binding import require_rows
from pymc_subsample.model.discovery import row_terms
from pymc_subsample.results.loo.arguments import (
    chosen_rows,
    read_groups,
    refuse_others,
    refuse_signs,
    require_one,
    warn_of_others,
    within,
)
from pymc_subsample.results.loo.elpd_data import elpd_data, labels, say_beforehand, warn_of_k
from pymc_subsample.results.loo.estimate import LeftOut, estimated, relative_efficiency
from pymc_subsample.results.loo.expanded import Approximation, approximate
from pymc_subsample.results.loo.units import has_rows, of_units
from pymc_subsample.rows import Rows
from pymc_subsample.units.run_marginal import integrated_in, refuse_other_rows, without_units
from pymc_subsample.validation import positive

_SAID = "pms.loo"
# Rows, or groups, that are left out first; half as many that matter most come in addition. As many
# as R's `loo_subsample` takes by default; of fewer than 25 the error of a sum is hardly known.
_FIRST = 400
_FEWEST = 25
# Rows whose compiled log-likelihood is compared with the model as it was written. A choice of
# time.
_COMPARED = 200


def loo(
    idata: xr.DataTree,
    *,
    model: pm.Model | None = None,
    observations: int | str | Sequence[int] | np.ndarray = "auto",
    var_name: str | Sequence[str] | None = None,
    groups: Any = None,
    data: Rows | Sequence[Rows] | None = None,
    dim: str | None = None,
    reff: float | None = None,
    workers: Any = None,
    rng: int | np.random.Generator | None = None,
) -> ELPDData:
    r"""Estimate how well a model predicts rows that it has not seen, from a few hundred of them.

    Rows are left out one at a time by Pareto-smoothed importance sampling of the draws [1]_, as
    `arviz.loo` does: a few hundred random rows, and the rows that matter most. One pass over all
    rows says what leaving each out does, to order 2 in the parameters that rows see, and the
    difference estimator [2]_ [3]_ adds up the two,

    .. math:: \widehat{\text{elpd}} = \sum_{i=1}^n a_i + \frac{n}{m} \sum_{i \in S} (e_i - a_i),

    with e the log predictive density of a row that is left out and a what the pass knows of it.
    There is no matrix of rows and draws: memory is that of three numbers per row. Whether the draws
    are of this model's posterior is told before, by gradients of all rows at 24 of them.

    Parameters
    ----------
    idata : xarray.DataTree
        What `pm.sample` returned, by any sampler. Every free variable must be in its posterior; no
        `log_likelihood` is needed.
    model : pymc.Model, optional
        The model that was sampled. Default: the model on the context stack.
    observations : "auto", int or sequence of int, default "auto"
        How many random rows (or groups) to leave out, or which; what is given counts as a simple
        random sample. By default 400, doubled until `subsampling_se` is at most a tenth of `se`;
        all, where there are fewer than 1,200 or half of them are not enough. The result is then
        `arviz.loo`'s.
    var_name : str or sequence of str, optional
        Observed variable, or potential, whose rows are left out; of several, those of one row go
        together. Needed where more than one has rows; the others stay.
    groups : str or sequence, shape (n,), optional
        Leave out groups, not rows: a label for each row, or the name of a column of `data` or of a
        `pm.Data` that holds it.
    data, dim : optional
        Rows, as given to the step.
    reff : float, optional
        Effective draws over draws. Default: as `arviz.loo` has it, the mean over all variables; 1
        for a single chain.
    workers : int, concurrent.futures.Executor or dask.distributed.Client, optional
        Who reads all rows, as a step takes it. Default: threads.
    rng : int or Generator, optional
        Which rows are read. Default: a fixed seed, so that models of the same rows are compared on
        the same ones.

    Returns
    -------
    arviz_stats.ELPDData
        As `arviz_stats.loo_subsample` returns it: for printing, `arviz.compare` and plots. `elpd`,
        `se` and `p`; `subsampling_se`, the part of the error that more rows would remove;
        `pareto_k` of the rows that were read, the others NaN: the random ones, which
        `subsample_size` counts, and half as many of those that matter most; `elpd_i`, with the
        approximation where rows were not read, so that stacking weights use all rows; `log_weights`
        are not kept.
        Where all rows were read, as `arviz.loo` returns it.

    Raises
    ------
    ValueError
        If a free variable is missing from the posterior, `idata` is of other rows than the model,
        its draws are not where the model's posterior is,
        a log-likelihood is not finite, draws carry negative signs, or an argument is out of range.
    TallModelError
        If the rows cannot be found, several variables have rows and `var_name` does not choose, or
        a free variable is discrete.
    TypeError
        If there is no model, or `idata` is not a DataTree.

    Warns
    -----
    UserWarning
        If Pareto k is above `good_k` in rows that were read: how many, and about how many of all
        rows. If `idata` holds variables that the model does not have.

    Notes
    -----
    A row is all that a model's observed variable has in one place of the rows' dimension: of an
    array of shape (n, k), k numbers, which `arviz.loo` takes one by one.

    `arviz.compare` takes the rows that both models read, and says so where one read more. With
    ``observations=other.loo_subsample_observations`` both read the same.

    Where a step integrated local variables out, as effects of customers, a row is predicted given
    the other rows of its unit, and a unit, with its level as the row's group, as a new one: by
    integrals over the local variables at each draw, with twice the nodes, whose importance weights
    are those of the variables that units share [4]_.

    With `groups`, all rows of a group that is read are read at all draws. A posterior without a
    large group is far from the one with it: expect a large Pareto k, and use
    `arviz_stats.loo_kfold` then. Where reading takes long, the three groups that matter most are
    read first, and the log says so as soon as a k is large, and how long the others take.

    References
    ----------
    .. [1] A. Vehtari, A. Gelman and J. Gabry (2017). Practical Bayesian model evaluation using
       leave-one-out cross-validation and WAIC. Statistics and Computing 27.
    .. [2] M. Magnusson, M. R. Andersen, J. Jonasson and A. Vehtari (2019). Bayesian leave-one-out
       cross-validation for large data. ICML.
    .. [3] M. Magnusson, A. Vehtari, J. Jonasson and M. R. Andersen (2020). Leave-one-out
       cross-validation for Bayesian model comparison in large data. AISTATS.
    .. [4] A. Vehtari, T. Mononen, V. Tolvanen, T. Sivula and O. Winther (2016). Bayesian
       leave-one-out cross-validation approximations for Gaussian latent variable models. Journal
       of Machine Learning Research 17(103).

    Examples
    --------
    >>> elpd = pms.loo(idata, model=model)
    >>> print(elpd)
    """
    made_by = arguments.workers(workers)
    given = None if data is None else require_rows(data)
    wanted = chosen_rows(observations)
    generator = arguments.generator(rng)
    posterior = group(idata, "posterior", _SAID)
    if (draws := posterior.sizes["chain"] * posterior.sizes["draw"]) < _FEWEST:
        raise ValueError(
            f"{_SAID}: idata has {draws} draws; the tail of importance weights takes at least "
            f"{_FEWEST}."
        )
    model = arguments.model_in_context(model, f"call {_SAID}")
    arguments.text("dim", dim, "a dimension")
    names = arguments.name_list("var_name", var_name)
    terms = row_terms(model, names)
    refuse_signs(idata)
    warn_of_others(posterior, model)
    if reff is not None:
        reff = positive("reff", reff)
    if integrated := integrated_in(idata, model):
        refuse_other_observed(idata, model, _SAID)
        if given is not None:
            raise TypeError(
                f"{_SAID}: the run integrated {' and '.join(map(repr, integrated))} out of rows on "
                "disk, and rows of units can be left out only in memory. Leave out data=, and pass "
                "a run and a model of some levels, with all of their rows in memory."
            )
        marginal, integrals = without_units(model, integrated)
        if integrals is not None:
            refuse_other_rows(idata, integrals.functions.graphs.grouping.rows, _SAID)
        if integrals is not None and has_rows(integrals, names):
            of, told, labelled = of_units(
                posterior, model, marginal, integrals, names, groups, reff
            )
            what = "rows" if groups is None else "groups"
            return _estimated(of, told, wanted, generator, what, *labelled)
        model = marginal
    require_free_variables(posterior, model, _SAID)

    with building_graphs(), made_by.in_use():
        tall = TallModel(model, list(terms) if len(terms) == 1 else names, dim, data=given)
        require_one(tall, names)
        expansion = expand(tall, 0)
        expansion.addresses("forward", "left")
    require_same_rows(idata, tall, _SAID, some=names is not None)
    if data is None:
        require_same_data(idata, model, tall, _SAID)
    leaving = read_groups(groups, tall.n_rows, model, given)
    thetas = to_theta(model, tall, posterior, _SAID).reshape(-1, tall.size)
    compared = np.unique(np.linspace(0, tall.n_rows - 1, _COMPARED).astype(int))
    if not Agreement(tall, expansion).of_loglik(thetas[0], compared):
        raise TallModelError(
            f"{_SAID}: the compiled log-likelihood is not that of the model: its graph was "
            "misread. Please report the model, and use arviz.loo."
        )
    refuse_others(model, tall, drift_of(expansion, thetas))
    phis = np.array([expansion.parameters(theta)[0] for theta in thetas])
    left = LeftOut(
        expansion, phis, relative_efficiency(posterior) if reff is None else reff, leaving
    )
    known = approximate(expansion, phis, leaving)
    what = "rows" if leaving is None else "groups"
    labelled = labels(model, tall.likelihood[0], groups, leaving)
    return _estimated(left, known, wanted, generator, what, *labelled)


def _estimated(
    left: LeftOut,
    known: Approximation,
    wanted: int | np.ndarray | None,
    generator: np.random.Generator,
    what: str,
    dim: str,
    coords: np.ndarray | None,
) -> ELPDData:
    wanted, enough = within(wanted, left.n, what), good_k(left.draws)
    if what == "groups" and wanted is None:
        say_beforehand(left, known, enough, _FIRST)
    found, outlying = estimated(left, known, wanted, _FIRST, generator)
    warned = warn_of_k(left, found, outlying, enough, what)
    return elpd_data(left, found, enough, warned, dim, coords)
