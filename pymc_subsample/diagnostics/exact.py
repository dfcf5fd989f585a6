"""Where an exact step is a remedy for what an approximation does to the posterior."""

import numpy as np

from pymc_subsample.control_variates import Expansion
from pymc_subsample.control_variates.reference import Reference

# As rules say it, which know no model.
ELSE = (
    "Where rows see the parameters by at most ten linear predictors, pms.ScalableMH() is exact at "
    "a few rows per draw."
)
# Rows looked at, how far their predictors move meanwhile, and the share that must have bounds.
_ROWS, _NEAR, _MOST = 200, 1e-9, 0.75


def exact_step(expansion: Expansion, reference: Reference) -> list[str]:
    """Return advice to use `ScalableMH`, if it would take the model, for lists of remedies.

    Its control variates are of order 2 in few linear predictors per row, and most of some rows have
    bounds on what these leave, at least at the reference.
    """
    if expansion.order < 2 or not expansion.n_predictors or expansion.curvature != "full":
        return []
    near = expansion.remainder(reference.center)
    if near is None:
        return []
    chosen = np.linspace(0, expansion.n_rows - 1, min(_ROWS, expansion.n_rows)).astype(np.int64)
    rows = expansion.take(chosen)
    expansion.anchor(reference.center, rows)
    with np.errstate(all="ignore"):
        bounds = near(rows, np.full((expansion.n_predictors, rows.shape[1]), _NEAR), 1.0)
    if np.mean(np.isfinite(bounds)) < _MOST:
        return []
    return ["use pms.ScalableMH(), which is exact"]
