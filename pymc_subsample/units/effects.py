"""`pms.effects`: draws of local variables given draws of what units share."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_subsample.compiled.functions import without_c
from pymc_subsample.diagnostics.data_trees import SAMPLE_DIMS
from pymc_subsample.model.binding import require_rows
from pymc_subsample.model.context import generator, model_in_context
from pymc_subsample.rows import Rows, Several
from pymc_subsample.units.accuracy import TOLERABLE, Marginal, error_at
from pymc_subsample.units.drawing import EXCESS, drawer_of
from pymc_subsample.units.graphs import UnitGraphs
from pymc_subsample.units.marginal import integrals_of
from pymc_subsample.units.quantities import Quantity, quantities_of
from pymc_subsample.units.run_marginal import integrated_in, marginal_of_run, shared_draws
from pymc_subsample.units.states import is_discrete, values_of
from pymc_subsample.units.unit_code import UnitCode, code_of
from pymc_subsample.units.unit_densities import UnitFunctions
from pymc_subsample.units.unread import unread
from pymc_subsample.validation import name_list, probabilities, shown, warn

# Numbers kept at a time.
_NUMBERS = 2**23
# Levels drawn at a time, so that arrays stay within a processor's cache.
_LEVELS = 2_000
_SEEDS = 2**31  # Of NumPy's, which are 32 bits, here without a sign.
# Draws at which integrals are looked at, and as many of the farthest.
_JUDGED = 10


def effects(
    idata: xr.DataTree,
    model: pm.Model | None = None,
    var_names: str | Sequence[str] | None = None,
    *,
    levels: Any = None,
    quantiles: Sequence[float] = (0.055, 0.945),
    data: Rows | None = None,
    rng: int | np.random.Generator | None = None,
) -> xr.Dataset:
    r"""Draw what `marginalize` has integrated out, or summarise it.

    For each draw of the shared variables theta, those of a unit are drawn from
    :math:`p(u \mid \theta, y)`, independently and exactly: proposals from a Student-t
    distribution around the unit's mode, accepted or not. Discrete ones are drawn by their
    probabilities, which are known. Together they are draws of the joint posterior.

    Parameters
    ----------
    idata : xarray.DataTree
        Result of sampling the marginal model, by any sampler, or the model itself by a step that
        integrated local variables out.
    model : pymc.Model, optional
        What `marginalize` returned, or the model of which a step integrated local variables out.
        Default: that of the context.
    var_names : str or sequence of str, optional
        Local variables, and deterministics with their levels, or with rows. Default: all of these
        that have levels.
    levels : sequence, optional
        Labels of levels if the model has coords for them, else their numbers, from 0. Default: all,
        summarised. Of what is missing in some rows these are the missing values, one by one, and of
        deterministics rows.
    quantiles : sequence of float, default (0.055, 0.945)
        Of the summary.
    data : Rows, optional
        Rows on disk, of which the model holds a sample, if the step had them.
    rng : int or numpy.random.Generator, optional
        Default: 0.

    Returns
    -------
    xarray.Dataset
        With `levels`, draws of them, with dimensions chain and draw, as in ``idata.posterior``.
        Without, of all levels "mean", "sd" and the quantiles along a dimension "statistic", and of
        a discrete variable ``c`` also ``c_probability``, of each of its values along ``c_value``.

    Raises
    ------
    ValueError
        If a draw's proposals are not accepted, or were not bounded, for a level: by name.

    Warns
    -----
    UserWarning
        If integrals were off by more than 0.1 at draws of the run, by doubling the nodes there.

    References
    ----------
    Caffo, B. S., Booth, J. G., and Davis, A. C. (2002). Empirical supremum rejection sampling.
    Biometrika 89, 745-754.

    Examples
    --------
    >>> routes, route = np.unique(miles, return_inverse=True)
    >>> with pm.Model() as by_route:
    ...     mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 1)
    ...     effect = pm.Normal("effect", mu, tau, shape=len(routes))
    ...     pm.Bernoulli("late", logit_p=effect[route], observed=late)
    >>> with pms.marginalize(by_route, "effect") as marginal:
    ...     shared = pm.sample()
    >>> draws = pms.effects(shared, marginal, levels=[0, 1, 2])
    """
    model = model_in_context(model, "Call pms.effects(idata)")
    posterior = idata["posterior"].to_dataset().transpose(*SAMPLE_DIMS, ...)
    probs, random = probabilities("quantiles", quantiles), generator(rng)
    wanted = name_list("var_names", var_names)
    afterwards = unread_in(idata, model, wanted)
    result = unread_draws(model, posterior, afterwards, levels, random, probs)
    if wanted is not None and set(wanted) == set(afterwards):
        return result
    rows = None if data is None else require_rows(data)
    if isinstance(rows, Several):
        raise TypeError("data must be the rows of one folder, as units of rows on disk are.")
    marginal = marginal_of_run(idata, model, "pms.effects", rows)
    if marginal is None:
        if unknown := sorted(set(wanted or ()) - set(afterwards)):
            raise ValueError(
                f"var_names holds {unknown[0]!r}, which is no variable that this run left out and "
                f"drew afterwards. Those are {integrated_in(idata, model)}."
            )
        return result
    graphs = marginal.functions.graphs
    found = quantities_of(graphs)
    # Of deterministics with rows that have no level, those alone that are asked for.
    usual = graphs.grouping.names if graphs.grouping.partial else list(found)
    names = list(usual) if wanted is None else [n for n in wanted if n not in afterwards]
    for name in names:
        if name not in found:
            raise ValueError(
                f"var_names holds {name!r}, which is not made of local variables level by level. "
                f"Those are {list(found)}."
            )
    theta = shared_draws(graphs, posterior)
    quantities = [found[name] for name in names]
    entries = [_entries(graphs, q, levels) for q in quantities]
    functions = UnitFunctions(graphs, as_recorded=True)
    _warn_of_integrals(marginal, functions, theta, random)
    sampled, draws, code = levels is not None, len(theta), code_of(functions)
    pieces: dict[str, list[np.ndarray]] = {name: [] for name in names}
    states = {
        name: values_of(graphs.reading, name)
        for name in names
        if name in graphs.grouping.names and is_discrete(graphs.reading.values[name])
    }
    shares: dict[str, list[np.ndarray]] = {name: [] for name in states}
    apart = graphs.grouping.partial and not sampled
    every = list(range(len(names)))
    for together in [[k] for k in every] if apart else [every]:
        own = [quantities[k] for k in together]
        size = max(sum(int(np.prod(q.shape, dtype=int)) for q in own), 1)
        n = max(len(entries[k][0]) for k in together)
        step = n if sampled else max(1, min(_LEVELS, _NUMBERS // (draws * size)))
        for start in range(0, n, max(step, 1)):
            some = [entries[k][0][start : start + step] for k in together]
            drawn = _drawn(marginal, functions, code, own, theta, some, random)
            for q, values in zip(own, drawn, strict=True):
                name = q.name
                pieces[name].append(values if sampled else _summary(values, probs))
                if not sampled and name in states:
                    each = [np.mean(values == x, axis=0) for x in states[name]]
                    shares[name].append(np.stack(each))
    labels = {name: own for name, (_, own) in zip(names, entries, strict=True)}
    new = _dataset(graphs, posterior, quantities, pieces, labels, None if sampled else probs)
    for name, parts in shares.items():
        if parts:
            like, value = new[name].isel(statistic=0, drop=True), f"{name}_value"
            by_value = like.expand_dims({value: states[name]})
            axis = by_value.dims.index(like.dims[graphs.grouping.own[name]])
            new[f"{name}_probability"] = by_value.copy(data=np.concatenate(parts, axis=axis))
    return xr.merge([result, new]) if afterwards else new


def drawn_levels(
    marginal: Marginal, posterior: xr.Dataset, names: Sequence[str], rng: np.random.Generator
) -> xr.Dataset:
    """Return draws of local variables, of all levels, given each of some draws."""
    graphs = marginal.functions.graphs
    functions, found = UnitFunctions(graphs, as_recorded=True), quantities_of(graphs)
    quantities, theta = [found[name] for name in names], shared_draws(graphs, posterior)
    entries = [_entries(graphs, q, None) for q in quantities]
    some = [chosen for chosen, _ in entries]
    drawn = _drawn(marginal, functions, code_of(functions), quantities, theta, some, rng)
    pieces = {name: [values] for name, values in zip(names, drawn, strict=True)}
    labels = {name: own for name, (_, own) in zip(names, entries, strict=True)}
    return _dataset(graphs, posterior, quantities, pieces, labels, None)


def _warn_of_integrals(
    marginal: Marginal, functions: UnitFunctions, theta: np.ndarray, rng: np.random.Generator
) -> None:
    """Warn if nodes did not serve at some of the draws, the farthest of them among others."""
    scale = np.maximum(theta.std(axis=0), 1e-300)
    farthest = np.argsort(np.abs((theta - theta.mean(axis=0)) / scale).max(axis=1))[-_JUDGED:]
    some = rng.choice(len(theta), min(_JUDGED, len(theta)), replace=False)
    error = error_at(marginal, functions, theta[np.union1d(farthest, some)], rng)
    if error > TOLERABLE:
        warn(
            f"The integrals over {' and '.join(map(repr, functions.graphs.grouping.names))} are "
            f"off by {error:.2g} at draws of this run (at most {TOLERABLE:g}), which lie "
            "outside the region where they were measured. Sample again with twice as many nodes, "
            f"pms.marginalize(..., n_nodes={2 * marginal.integral.per_dimension})."
        )


def labels_of(graphs: UnitGraphs) -> tuple[str, list | None]:
    """Return the dimension of levels, and its coords, None if the model gives none."""
    grouping, model = graphs.grouping, graphs.reading.model
    for name in grouping.names:
        place = grouping.own[name]
        for dim in model.named_vars_to_dims.get(name, ())[place : place + 1]:
            if model.coords.get(dim) is not None:
                return str(dim), np.asarray(model.coords[dim]).tolist()
    return "", None


def _entries(graphs: UnitGraphs, quantity: Quantity, levels: Any) -> tuple[np.ndarray, Any]:
    """Return numbers of levels, or of entries of a quantity, and their labels."""
    if quantity.levels is None:
        dim, coords = labels_of(graphs)
        labels = list(range(graphs.grouping.levels)) if coords is None else coords
        return chosen_of(dim, labels, coords is None, levels)
    dim = quantity.dims[quantity.axis] or ""
    coords = graphs.reading.model.coords.get(dim)
    labels = list(range(quantity.length)) if coords is None else np.asarray(coords).tolist()
    return chosen_of(dim, labels, coords is None, levels)


def chosen_of(dim: str, labels: list, numbered: bool, levels: Any) -> tuple[np.ndarray, Any]:
    """Return numbers and labels of those of some levels that are asked for, None for all."""
    if levels is None:
        return np.arange(len(labels)), np.asarray(labels)
    given = [levels] if np.ndim(levels) == 0 else list(levels)
    position = {label: i for i, label in enumerate(labels)}
    unknown = [x for x in given if x not in position]
    if unknown or not given:
        of = "numbers, since the model has no coords for them," if numbered else (
            f"labels, the model's coords of {dim!r},")  # fmt: skip
        raise ValueError(
            f"levels holds {shown(unknown[0]) if unknown else 'nothing'}. Levels are {of} from "
            f"{labels[0]!r} to {labels[-1]!r}, {len(labels):,} in all."
        )
    chosen = np.array([position[x] for x in given])
    return chosen, np.asarray(labels)[chosen]


def _drawn(
    marginal: Marginal,
    functions: UnitFunctions,
    code: UnitCode | None,
    quantities: Sequence[Quantity],
    theta: np.ndarray,
    entries: Sequence[np.ndarray],
    rng: np.random.Generator,
) -> Iterator[np.ndarray]:
    """Yield draws of quantities at some levels, or entries, of shape (draws, entries, ...)."""
    levels = [
        some if q.levels is None else q.levels[some]
        for q, some in zip(quantities, entries, strict=True)
    ]
    unique = np.unique(np.concatenate(levels))
    unique = unique[unique >= 0]
    graphs = functions.graphs
    own = marginal.functions.of(unique)
    at = own, marginal.reference
    u = np.zeros((len(theta), 1, graphs.size))
    if len(unique):
        drawer = drawer_of(functions.of(unique), at, marginal.integral.steps, code)
        u = np.array([drawer.draw(x, rng) for x in theta])
        missed = drawer.missed
        lost = np.flatnonzero(~(missed < EXCESS))
        if len(lost):
            raise ValueError(
                f"Level {unique[lost[0]]:,} of {' and '.join(map(repr, graphs.grouping.names))} "
                f"cannot be drawn by proposals around its mode: a share of {missed[lost[0]]:.2g} "
                "of its probability lies where they do not reach, or all of it in some draws. It "
                "has several modes or moves far with the shared variables. Sample the model that "
                "was not marginalised."
            )
    for quantity, some, own_levels in zip(quantities, entries, levels, strict=True):
        # Entries without a level read none of it.
        back = np.minimum(np.searchsorted(unique, own_levels), max(len(unique) - 1, 0))
        yield quantity.at(functions, theta, u[:, back], some)


def unread_in(idata: xr.DataTree, model: pm.Model, wanted: Sequence[str] | None) -> list[str]:
    """Return variables of a run that nothing observed depends on, of those that are wanted."""
    if integrals_of(model) is not None:
        return []
    own = set(integrated_in(idata, model))
    return [n for n in unread(model) if n in own and (wanted is None or n in wanted)]


def unread_draws(
    model: pm.Model,
    posterior: xr.Dataset,
    names: Sequence[str],
    levels: Any,
    rng: np.random.Generator,
    probs: np.ndarray,
) -> xr.Dataset:
    """Return draws of variables that nothing observed depends on, or a summary of these.

    Those that the run stored, or others, from their distribution.
    """
    left, found = [n for n in names if n not in posterior], posterior
    if left:
        with without_c():
            drawn = pm.sample_posterior_predictive(
                xr.DataTree.from_dict({"posterior": posterior}), model=model, var_names=left,
                random_seed=int(rng.integers(_SEEDS)), progressbar=False,
            )  # fmt: skip
        found = drawn["posterior_predictive"].to_dataset().transpose(*SAMPLE_DIMS, ...)
    arrays = {}
    for name in names:
        values = (posterior if name in posterior else found)[name]
        dim = values.dims[2] if values.ndim > 2 else None
        if levels is not None and dim is not None:
            own = values.get_index(dim).tolist()
            values = values.isel(
                {dim: chosen_of(str(dim), own, dim not in model.coords, levels)[0]}
            )
        if levels is None:
            flat = values.to_numpy().reshape(-1, *values.shape[2:])
            labels = ["mean", "sd", *(f"{100 * p:g}%" for p in probs)]
            coords = {d: values[d] for d in values.dims[2:] if d in values.coords}
            dims = ["statistic", *values.dims[2:]]
            values = xr.DataArray(_summary(flat, probs), {"statistic": labels, **coords}, dims)
        arrays[name] = values
    return xr.Dataset(arrays)


def _summary(values: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """Return mean, sd and quantiles of draws along the first axis."""
    return np.stack([
        values.mean(axis=0), values.std(axis=0, ddof=1), *np.quantile(values, probs, axis=0)
    ])  # fmt: skip


def _dataset(
    graphs: UnitGraphs,
    posterior: xr.Dataset,
    quantities: Sequence[Quantity],
    pieces: Mapping[str, list[np.ndarray]],
    labels: Mapping[str, np.ndarray],
    probs: np.ndarray | None,
) -> xr.Dataset:
    model = graphs.reading.model
    arrays = {}
    for q in quantities:
        values = np.concatenate(pieces[q.name], axis=1)
        dims = [d or f"{q.name}_dim_{i}" for i, d in enumerate(q.dims)]
        coords: dict[str, Any] = {
            d: model.coords[d] for i, d in enumerate(dims) if i != q.axis and model.coords.get(d)
        }
        coords[dims[q.axis]] = labels[q.name]
        values = np.moveaxis(values, 1, 1 + q.axis)
        if probs is None:
            values = values.reshape(*(posterior.sizes[d] for d in SAMPLE_DIMS), *values.shape[1:])
            coords |= {d: posterior[d].to_numpy() for d in SAMPLE_DIMS if d in posterior.coords}
            dims = [*SAMPLE_DIMS, *dims]
        else:
            coords["statistic"] = ["mean", "sd", *(f"{100 * p:g}%" for p in probs)]
            dims = ["statistic", *dims]
        arrays[q.name] = xr.DataArray(values, coords=coords, dims=dims, name=q.name)
    return xr.Dataset(arrays)
