"""Which variables a run integrated out, and the model without them, made again."""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import xarray as xr

from pymc_subsample.diagnostics.integrals import INTEGRATED
from pymc_subsample.units.accuracy import Marginal
from pymc_subsample.units.choosing import chosen
from pymc_subsample.units.marginal import kept_of, without_local
from pymc_subsample.units.reading import read

# As steps have it.
_SEED = 0


def integrated_in(idata: xr.DataTree, model: pm.Model) -> list[str]:
    """Return names of the free variables that a step of this package integrated out, if any."""
    if "sample_stats" not in idata.children or INTEGRATED not in idata["sample_stats"]:
        return []
    bits = int(np.max(idata["sample_stats"].to_dataset()[INTEGRATED].to_numpy()))
    return [rv.name for i, rv in enumerate(model.free_RVs) if bits >> i & 1]


def without_units(
    model: pm.Model, names: Sequence[str], n_nodes: int | None = None
) -> tuple[pm.Model, Marginal]:
    """Return a model without some local variables, as a step samples it, and what it keeps."""
    reading = read(model)
    return without_local(reading, chosen(reading, names), n_nodes, np.random.default_rng(_SEED))


def marginal_of_run(idata: xr.DataTree, model: pm.Model) -> Marginal:
    """Return what of a model was integrated out for a run of it, or of what `marginalize` made."""
    found = kept_of(model)
    if found is None and (names := integrated_in(idata, model)):
        found = without_units(model, names)[1]
    if found is None:
        raise TypeError(
            "model must be what pms.marginalize returned, which keeps the units that it has "
            "integrated out (copies of it do not), or one of which a step integrated local "
            "variables out in this run, as idata.sample_stats.integrated says."
        )
    return found
