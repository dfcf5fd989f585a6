"""Leave-one-out cross-validation of tall models, from a few hundred rows."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from arviz_stats.utils import ELPDData, ELPDDataLOO, ELPDDataLOOSubsample

from pymc_subsample.chain import arguments
from pymc_subsample.compiled.functions import building_graphs
from pymc_subsample.diagnostics import array_stats
from pymc_subsample.diagnostics.data_trees import signs_of
from pymc_subsample.diagnostics.drift import (
    SOME,
    Drift,
    drift_of,
    drift_of_scores,
    refuse_other_observed,
    require_same_data,
)
from pymc_subsample.diagnostics.reading_draws import (
    group,
    require_free_variables,
    require_same_rows,
    spread,
    to_theta,
)
from pymc_subsample.diagnostics.weights import good_k
from pymc_subsample.expansion import expand
from pymc_subsample.expansion.verification import Agreement
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.model.bambi import of_intercepts
from pymc_subsample.model.binding import require_rows
from pymc_subsample.model.discovery import row_terms
from pymc_subsample.model.evaluation import Vector
from pymc_subsample.results.loo.doubts import say_beforehand, warn_of_k
from pymc_subsample.results.loo.estimate import Estimate, LeftOut, estimated
from pymc_subsample.results.loo.expanded import Approximation, approximate
from pymc_subsample.results.loo.groups import Groups, read_groups
from pymc_subsample.results.loo.units import UnitsLeftOut, term_of
from pymc_subsample.rows import Rows
from pymc_subsample.units.accuracy import Marginal
from pymc_subsample.units.of_run import integrated_in, refuse_moved, without_units
from pymc_subsample.units.reference import log_posterior
from pymc_subsample.validation import is_whole, positive, shown

_SAID = "pms.loo"
# Rows, or groups, that are left out first; half as many that matter most come in addition.
_FIRST = 400
_FEWEST = 25
# Rows whose compiled log-likelihood is compared with the model as it was written.
_COMPARED = 200
# Elements of a variable whose effective draws are counted, 0.2 ms each: their mean is within a few
# percent of that of all, where weights are smoothed by its square root.
_ELEMENTS = 1_000


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
    passes: Any = None,
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
    passes : int, concurrent.futures.Executor or dask.distributed.Client, optional
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
    made_by = arguments.passes(passes)
    given = None if data is None else require_rows(data)
    wanted = _observations(observations)
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
    row_terms(model, names)
    _refuse_signs(idata)
    _warn_of_others(posterior, model)
    if reff is not None:
        reff = positive("reff", reff)
    if integrated := integrated_in(idata, model):
        refuse_other_observed(idata, model, _SAID)
        of, told, labelled = _of_units(posterior, model, integrated, names, groups, reff)
        what = "rows" if groups is None else "groups"
        return _estimated(of, told, wanted, generator, what, *labelled)
    require_free_variables(posterior, model, _SAID)

    with building_graphs(), made_by.in_use():
        tall = TallModel(model, names, dim, data=given)
        _require_one(tall, names)
        expansion = expand(tall, 0)
        expansion.addresses("forward", "loglik")
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
    _refuse_others(model, tall, drift_of(expansion, thetas))
    phis = np.array([expansion.parameters(theta)[0] for theta in thetas])
    left = LeftOut(
        expansion, phis, relative_efficiency(posterior) if reff is None else reff, leaving
    )
    known = approximate(expansion, phis, leaving)
    what = "rows" if leaving is None else "groups"
    labelled = _labels(model, tall.observed[0], groups, leaving)
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
    wanted, enough = _within(wanted, left.n, what), good_k(left.draws)
    if what == "groups" and wanted is None:
        say_beforehand(left, known, enough, _FIRST)
    found, outlying = estimated(left, known, wanted, _FIRST, generator)
    warned = warn_of_k(left, found, outlying, enough, what)
    return _result(left, found, left.draws, enough, warned, dim, coords)


def _of_units(
    posterior: xr.Dataset,
    model: pm.Model,
    integrated: list[str],
    names: list[str] | None,
    groups: Any,
    reff: float | None,
) -> tuple[UnitsLeftOut, Approximation, tuple[str, np.ndarray | None]]:
    """Return rows of a run that integrated local variables out, and what is known of them."""
    marginal, kept = without_units(model, integrated)
    require_free_variables(posterior, marginal, _SAID)
    refuse_moved(kept, model, posterior, _SAID)
    term = term_of(kept, names)
    rows = kept.functions.parts[term].index
    leaving = read_groups(groups, len(rows), model, None)
    own = posterior[list(kept.functions.values)]
    vector = Vector({v.name: kept.functions.start[v.name] for v in kept.functions.values.values()})
    thetas = to_theta(marginal, vector, own, _SAID).reshape(-1, vector.size)
    _refuse_others(marginal, vector, _drift_of_units(kept, thetas))
    reff = relative_efficiency(own) if reff is None else reff
    left = UnitsLeftOut(kept, term, thetas, reff, leaving)
    graphs = kept.functions.graphs
    observed = graphs.reading.terms[list(graphs.grouping.index)[term - 1]].name
    return left, left.known(), _labels(model, observed, groups, leaving)


def _drift_of_units(kept: Marginal, thetas: np.ndarray) -> Drift:
    some = thetas[spread(len(thetas), 1, SOME)]
    counted = np.ones(len(kept.functions.levels))
    nodes = kept.integral.per_dimension
    own = kept.functions
    scores = [log_posterior(own, x, kept.modes_at(own, x), nodes, counted)[1] for x in some]
    return drift_of_scores(thetas, np.array(scores))


def _refuse_others(model: pm.Model, vector: Vector, found: Drift) -> None:
    if found.is_large:
        raise ValueError(
            f"{_SAID}: idata holds no sample of this model's posterior: "
            f"{found.said(model, vector)}. Pass the model and the data that were sampled."
            f"{of_intercepts(model)}"
        )


def relative_efficiency(posterior: xr.Dataset) -> float:
    """Return effective draws over draws, as `arviz.loo` has them: the mean over all elements.

    Of a large variable, such as fitted values of all rows, the mean over some of its elements.
    """
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    if chains == 1:
        return 1.0
    total, size = 0.0, 0.0
    for v in posterior.data_vars.values():
        elements = v.values.reshape(chains, draws, -1)
        step = -(-elements.shape[2] // _ELEMENTS) or 1
        ess = array_stats.ess(elements[..., ::step], chain_axis=0, draw_axis=1, method="mean")
        known = np.ravel(ess)[np.isfinite(np.ravel(ess))]
        if len(known):
            count = elements.shape[2] * len(known) / np.size(ess)
            total, size = total + known.mean() * count, size + count
    return float(total / (chains * draws * size)) if size else 1.0


# Arguments


def _observations(value: Any) -> int | np.ndarray | None:
    if isinstance(value, str) or is_whole(value):
        return arguments.count("observations", value, auto=True, smallest=2)
    index = np.asarray(value)
    if index.dtype.kind not in "iu" or index.ndim != 1 or len(index) < 2:
        raise ValueError(
            'observations must be "auto", an integer of at least 2, or row numbers, two or more; '
            f"got {shown(value)}."
        )
    return index.astype(np.int64)


def _within(wanted: int | np.ndarray | None, n: int, of: str) -> int | np.ndarray | None:
    if isinstance(wanted, np.ndarray):
        if wanted.min() < 0 or wanted.max() >= n or len(np.unique(wanted)) < len(wanted):
            raise ValueError(
                f"observations must be different numbers from 0 to {n - 1}, those of {of}; got "
                f"{shown(wanted)}."
            )
        return wanted
    return None if wanted is None else arguments.count("observations", wanted, n, of)


def _refuse_signs(idata: xr.DataTree) -> None:
    if signs_of(idata, "posterior", None) is not None:
        raise ValueError(
            f"{_SAID}: some draws carry a negative sign, and importance weights of signed draws "
            "cannot be smoothed. Sample with pms.HMCECS(), whose draws have none, or with a larger "
            "subsample until no estimate is negative."
        )


def _warn_of_others(posterior: xr.Dataset, model: pm.Model) -> None:
    known = {v.name for v in [*model.free_RVs, *model.deterministics]}
    known |= {v.name for v in model.value_vars}
    others = [str(name) for name in posterior.data_vars if name not in known]
    if others:
        warnings.warn(
            f"{_SAID}: idata.posterior holds {', '.join(map(repr, others))}, which the model does "
            "not have. If another model was sampled, pass that one: the draws of one model say "
            "nothing of what another predicts.",
            stacklevel=3,
        )


def _require_one(tall: TallModel, names: list[str] | None) -> None:
    """Refuse rows of which it is not clear what is left out."""
    listed = ", ".join(map(repr, tall.observed))
    if names is None and len(tall.observed) > 1:
        raise TallModelError(
            f"{_SAID}: {listed} have rows. Say whose are left out: "
            f"var_name={tall.observed[0]!r}, or several names, whose rows go together."
        )
    if len(tall.rows.names) > 1:
        raise TallModelError(
            f"{_SAID}: {listed} have different numbers of rows ({tall.rows.counted}), which cannot "
            "be left out together. Name one of them as var_name."
        )


# Results


def _labels(
    model: pm.Model, observed: str, given: Any, leaving: Groups | None
) -> tuple[str, np.ndarray | None]:
    """Return the dimension of what is left out, and its coordinates if it has any."""
    if leaving is not None:
        return (given if isinstance(given, str) else "group"), leaving.labels
    dims = model.named_vars_to_dims.get(observed, ())
    return (dims[0] if len(dims) == 1 else f"{observed}_dim_0"), None


def _result(
    left: LeftOut,
    found: Estimate,
    draws: int,
    good_k: float,
    warned: bool,
    dim: str,
    coords: np.ndarray | None,
) -> ELPDData:
    def array(values: np.ndarray, name: str) -> xr.DataArray:
        return xr.DataArray(values, {} if coords is None else {dim: coords}, [dim], name)

    read = np.where(np.isnan(left.elpd), found.approx, left.elpd)
    common: dict[str, Any] = {
        "elpd": found.elpd,
        "se": found.se,
        "p": found.p,
        "n_samples": draws,
        "n_data_points": left.n,
        "scale": "log",
        "warning": warned,
        "good_k": good_k,
        "elpd_i": array(read, "elpd_i"),
        "pareto_k": array(left.k, "pareto_k"),
    }
    if len(found.sample) == left.n:
        return ELPDDataLOO(**common)
    return ELPDDataLOOSubsample(
        **common,
        subsample_size=len(found.sample),
        subsampling_se=found.subsampling_se,
        loo_subsample_observations=found.sample,
        elpd_loo_approx=array(found.approx, "elpd_loo_approx"),
    )
