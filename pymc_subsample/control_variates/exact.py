"""Where an exact step is a remedy for what an approximation does to the posterior."""

import numpy as np

from pymc_subsample.control_variates.expansion import Expansion
from pymc_subsample.control_variates.reach import metric
from pymc_subsample.control_variates.reference import Reference
from pymc_subsample.control_variates.sums import LinearSums

# As rules say it, which know no model.
ELSE = (
    "Where rows see the parameters by at most ten linear predictors, pms.ScalableMH() is exact at "
    "a few rows per draw."
)
# Rows looked at and the share of them that must have bounds; parameters that meet them at most.
_ROWS, _SHARE, _SIZE = 200, 0.75, 500
# Standard deviations beyond the usual distance, and the smallest curvature over the largest.
_BEYOND, _FLAT = 2.0, 1e-6


def exact_step(expansion: Expansion, reference: Reference) -> list[str]:
    """Return advice to use `ScalableMH`, if it would take the model, for lists of remedies.

    Its control variates are of order 2 in few linear predictors per row, and most of some rows have
    bounds on what these leave as far as a posterior without its prior reaches.
    """
    few = expansion.n_predictors > 0 and expansion.phi_size <= _SIZE
    if expansion.order < 2 or not few or expansion.curvature != "full":
        return []
    near, sums = expansion.remainder(reference.center), expansion.sums
    if near is None or not np.all(np.isfinite(reference.curvature)):
        return []
    assert isinstance(sums, LinearSums)
    chosen = np.linspace(0, expansion.n_rows - 1, min(_ROWS, expansion.n_rows)).astype(np.int64)
    rows = expansion.take(chosen)
    expansion.anchor(reference.center, rows)
    _, inverse = metric(reference.curvature, _FLAT)
    designs = [sums.design(rows, e) for e in range(expansion.n_predictors)]
    moves = np.array([np.linalg.norm(inverse @ x, axis=0) for x in designs])
    with np.errstate(all="ignore"):
        bounds = near(rows, moves, np.sqrt(expansion.phi_size) + _BEYOND)
    if np.mean(np.isfinite(bounds)) < _SHARE:
        return []
    return ["use pms.ScalableMH(), which is exact"]
