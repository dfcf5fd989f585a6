"""Local variables of predictions: those that a run did not store, and those of new levels."""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.graph.traversal import ancestors

from pymc_subsample.chain.multimodality import MOST_SEEDS
from pymc_subsample.compiled.functions import without_c
from pymc_subsample.diagnostics.data_trees import SAMPLE_DIMS
from pymc_subsample.results.predict.quantity import SAID, Predicted
from pymc_subsample.units.accuracy import Marginal
from pymc_subsample.units.effects import drawn_levels, labels_of
from pymc_subsample.units.run_marginal import integrated_in, marginal_of_run
from pymc_subsample.validation import shown


def with_local(
    idata: xr.DataTree,
    model: pm.Model,
    posterior: xr.Dataset,
    what: Predicted,
    new_levels: int | Sequence[str],
    rng: np.random.Generator,
) -> tuple[xr.Dataset, list[str], dict[str, list[str]]]:
    """Return draws with the local variables of a quantity, and names of those with new levels.

    Levels that are new have draws of their prior given each draw of what units share. Their labels,
    if they have some, come by the dimension that they are of.
    """
    names = integrated_in(idata, model)
    if new_levels and not names:
        raise ValueError(
            f"{SAID}: new_levels={shown(new_levels)}, and the run integrated no local variable "
            "out: there is no prior from which to draw new levels."
        )
    read = set(ancestors(what.graphs))
    names = [name for name in names if model[name] in read]
    missing = [name for name in names if name not in posterior]
    if not missing and not (names and new_levels):
        return posterior, [], {}
    marginal = marginal_of_run(idata, model, SAID)
    if marginal is None:
        raise ValueError(
            f"{SAID}: nothing observed depends on {' and '.join(map(repr, names))}. Predict what "
            "it is made of, or read its draws from the posterior."
        )
    if missing:
        posterior = posterior.assign(drawn_levels(marginal, posterior, missing, rng))
    if not new_levels:
        return posterior, [], {}
    grouping = marginal.functions.graphs.grouping
    if grouping.by_row or grouping.partial:
        raise ValueError(
            f"{SAID}: new_levels={shown(new_levels)}, and {' and '.join(map(repr, names))} has an "
            "element for each row: rows of data get new elements anyway. Leave out new_levels."
        )
    _refuse_unlike(marginal, names)
    new, labels = new_levels, {}
    if not isinstance(new, int):
        dim, known = labels_of(marginal.functions.graphs)
        labels, new = {dim: _labels(new, dim, known)}, len(new)
    return _longer(marginal, model, posterior, names, new, rng), names, labels


def _labels(given: Sequence[str], dim: str, known: Sequence[str] | None) -> list[str]:
    """Return labels of new levels, which those of the model are not."""
    if known is None:
        raise ValueError(
            f"{SAID}: new_levels={shown(list(given))}, and levels of the model have no coords: "
            "they are numbers from 0. Pass how many are new."
        )
    if twice := set(given) & set(known):
        raise ValueError(
            f"{SAID}: new_levels holds {shown(sorted(twice))}, levels of {dim!r} for which there "
            "are draws already. Name only levels that the model does not know."
        )
    return list(given)


def _refuse_unlike(marginal: Marginal, names: Sequence[str]) -> None:
    """Refuse new levels of variables whose prior reads what each level has."""
    columns = marginal.functions.graphs.prior.columns.values()
    if any(np.ptp(c.array, axis=c.axis).any() for c in columns):
        raise ValueError(
            f"{SAID}: new_levels: the prior of {' and '.join(map(repr, names))} reads numbers of "
            "each level, such as its group, and new levels have none. Write the model with these "
            "levels, without rows, and draw them with pms.effects."
        )


def _longer(
    marginal: Marginal,
    model: pm.Model,
    posterior: xr.Dataset,
    names: Sequence[str],
    new: int,
    rng: np.random.Generator,
) -> xr.Dataset:
    graphs = marginal.functions.graphs
    levels, shared = graphs.grouping.levels, posterior[list(graphs.shared)]
    parts = []
    for _ in range(-(-new // levels)):
        with without_c():
            found = pm.sample_posterior_predictive(
                xr.DataTree.from_dict({"posterior": shared}),
                model=model,
                var_names=list(names),
                random_seed=int(rng.integers(MOST_SEEDS)),
                progressbar=False,
            )
        parts.append(found["posterior_predictive"].to_dataset().transpose(*SAMPLE_DIMS, ...))
    result = shared
    for name in names:
        axis = 2 + graphs.grouping.own[name]
        old = posterior[name].transpose(*SAMPLE_DIMS, ...)
        drawn = np.concatenate([part[name].to_numpy() for part in parts], axis=axis)
        values = np.concatenate([old.to_numpy(), np.take(drawn, range(new), axis=axis)], axis=axis)
        result[name] = old.dims, values
    return result
