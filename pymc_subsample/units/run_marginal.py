"""Which variables a run integrated out, and the model without them, made again."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pymc as pm
import xarray as xr

from pymc_subsample.diagnostics.data_trees import SAMPLE_DIMS
from pymc_subsample.diagnostics.integrals import effects_in, rows_of_units
from pymc_subsample.diagnostics.reading_draws import refuse_other_shape, sample_stats
from pymc_subsample.model import TallModel
from pymc_subsample.model.bambi import may_be_moved, refuse_intercept
from pymc_subsample.rows import Rows
from pymc_subsample.units.accuracy import Marginal
from pymc_subsample.units.choosing import chosen
from pymc_subsample.units.graphs import UnitGraphs
from pymc_subsample.units.groupings import Grouping
from pymc_subsample.units.marginal import integrals_of, integrated, without_local
from pymc_subsample.units.modes import find_modes
from pymc_subsample.units.reading import Reading, read_bound
from pymc_subsample.units.reference import few_nodes, integrals, sampled, searched, start_of
from pymc_subsample.units.stored_tables import StoredTables
from pymc_subsample.units.unit_densities import UnitFunctions
from pymc_subsample.units.unread import without_unread
from pymc_subsample.validation import shown

# As steps have it.
_SEED = 0


def integrated_in(idata: xr.DataTree, model: pm.Model) -> list[str]:
    """Return names of the free variables that a step of this package integrated out, if any."""
    effects = effects_in(sample_stats(idata))
    unknown = sorted(name for name in effects if name not in model.named_vars)
    if unknown:
        raise ValueError(
            f"The run integrated {' and '.join(map(repr, unknown))} out, which the model does not "
            "have; it has "
            f"{shown([v.name for v in model.free_RVs])}. Pass the model that was sampled."
        )
    return [rv.name for rv in model.free_RVs if rv.name in effects]


def without_units(
    model: pm.Model,
    names: Sequence[str],
    n_nodes: int | None = None,
    stored: StoredTables | None = None,
    data: Rows | None = None,
) -> tuple[pm.Model, Marginal | None]:
    """Return a model without some local variables, as a step samples it, and what it keeps.

    That is None if nothing observed depends on any of them. Units of `data`, rows on disk in the
    place of those that the model holds, are `stored`.
    """
    model, reading, grouping = _grouping(model, names, data)
    if grouping is None:
        return model, None
    return without_local(reading, grouping, n_nodes, np.random.default_rng(_SEED), stored)


def _grouping(
    model: pm.Model, names: Sequence[str], data: Rows | None
) -> tuple[pm.Model, Reading, Grouping | None]:
    """Return a model without what nothing observed depends on, and the grouping of other names."""
    model, unread = without_unread(model)
    if data is not None:
        TallModel(model, data=data)
    reading = read_bound(model, data)
    names = [name for name in names if name not in unread]
    return model, reading, chosen(reading, names) if names else None


def marginal_of_run(
    idata: xr.DataTree, model: pm.Model, said: str, data: Rows | None = None
) -> Marginal | None:
    """Return what of a model was integrated out for a run of it, or of what `marginalize` made.

    None if these are variables that nothing observed depends on. `data` are rows on disk that take
    the place of those that the model holds.
    """
    found = integrals_of(model)
    names = integrated_in(idata, model) if found is None else []
    if names:
        _, reading, grouping = _grouping(model, names, data)
        if grouping is not None:
            rng = np.random.default_rng(_SEED)
            refuse_other_rows(idata, grouping.rows, said)
            found = integrated(reading, grouping, None, rng)
    if found is None and not names:
        raise TypeError(
            "model must be the model that pms.marginalize returned, which keeps the units that it "
            "has integrated out (copies of it do not), or the model whose local variables a step "
            "integrated out in this run, recorded in idata.sample_stats as effect_axis_<name>."
        )
    if found is not None:
        refuse_moved(found, model, idata["posterior"].to_dataset(), said)
    return found


def refuse_other_rows(idata: xr.DataTree, n_rows: int, said: str) -> None:
    """Refuse a model whose units have another number of rows than those of a run."""
    known = rows_of_units(sample_stats(idata))
    if known not in (None, n_rows):
        raise ValueError(
            f"{said}: units of the run have {known:,} rows in all, and those of the model "
            f"{n_rows:,}. Pass the model and the data that were sampled, rows on disk as data= if "
            "there is such an argument. If there is none, keep draws of local variables in the run."
        )


def shared_draws(graphs: UnitGraphs, posterior: xr.Dataset) -> np.ndarray:
    """Return draws of shared variables, one vector each."""
    missing = [name for name in graphs.shared if name not in posterior]
    if missing:
        raise ValueError(
            f"idata.posterior lacks {', '.join(map(repr, missing))}, which the draws of local "
            "variables depend on. Sample without var_names, or keep them."
        )
    posterior = posterior.transpose(*SAMPLE_DIMS, ...)
    n = posterior.sizes["chain"] * posterior.sizes["draw"]
    parts = []
    for name, v in graphs.shared.items():
        refuse_other_shape(posterior, name, v.type.shape, "")
        parts.append(posterior[name].to_numpy().reshape(n, -1).astype(float))
    return np.concatenate([np.zeros((n, 0)), *parts], axis=1)


def refuse_moved(marginal: Marginal, model: pm.Model, posterior: xr.Dataset, said: str) -> None:
    """Refuse draws of Bambi's with an intercept that is not the model's, by its marginal."""
    graphs, rng = marginal.functions.graphs, np.random.default_rng(_SEED)
    moved = [name for name in may_be_moved(model, posterior) if name in graphs.shared]
    if not moved:
        return
    functions = UnitFunctions(graphs, as_recorded=True)
    some, counted = sampled(functions, searched(functions), rng)
    draws = shared_draws(graphs, posterior)
    center, sds = draws.mean(axis=0), functions.split(draws.std(axis=0))

    def heights(name: str, moves: np.ndarray) -> np.ndarray:
        found = []
        for move in moves:
            values = zip(functions.values, functions.split(center), strict=True)
            theta = np.concatenate([np.ravel(x + move * (n == name)) for n, x in values])
            with np.errstate(all="ignore"):
                modes = find_modes(some, theta, start_of(some))
                each, _ = integrals(some, theta, modes, few_nodes(functions))
            found.append(counted @ each)
        return np.array(found)

    for name, sd in zip(functions.values, sds, strict=True):
        if name in moved:
            refuse_intercept(name, sd, partial(heights, name), said)
