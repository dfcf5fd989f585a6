"""Models whose rows are so few that no sampler of some of them could save time."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pymc as pm

from pymc_subsample.chain.nuts_cost import COMPILE_SECONDS, DRAWS
from pymc_subsample.chain.nuts_instead import SAVED_SECONDS, nuts
from pymc_subsample.diagnostics.checks import amount
from pymc_subsample.graph.concrete import root_array
from pymc_subsample.model.binding import require_rows
from pymc_subsample.rows import Rows

# Seconds per row and gradient, up to ten parameters, that few models exceed; gradients per draw of
# NUTS that are many, and that are usual: trees of a depth of nearly seven, and of four. A choice
# of an upper limit: a larger one only tries where less can be gained.
_PER_ROW, _TEN, _MANY, USUAL = 5e-8, 10, 100, 15


class FewRows(NamedTuple):
    """How many they are, and what NUTS on all of them takes: with its compilation, mostly."""

    rows: int
    seconds: float

    @property
    def said(self) -> str:
        """The same in words."""
        name, code = nuts()
        takes = f"about {amount(self.seconds)} s, most of which is compilation"
        return f"So few rows ({self.rows:,}) take {name} {takes} ({code})"


def few_rows(
    model: pm.Model, terms: Iterable[str], data: Rows | Sequence[Rows] | None
) -> FewRows | None:
    """Say so where many gradients per draw would not take 10 s; None too where it is not known."""
    sizes = [] if data is None else [len(require_rows(data))]
    for name in terms if data is None else ():
        variable = model[name]
        observed = variable in model.observed_RVs
        array = root_array(model.rvs_to_values[variable]) if observed else None
        if array is None or not np.ndim(array):
            return None
        sizes.append(len(array))
    rows = max(sizes)
    gradient = rows * _PER_ROW * max(1.0, size(model) / _TEN)
    if 2 * DRAWS * _MANY * gradient > SAVED_SECONDS:
        return None
    return FewRows(rows, COMPILE_SECONDS + 2 * DRAWS * USUAL * gradient)


def size(model: pm.Model) -> int:
    """Return the number of unconstrained parameters."""
    point = model.initial_point()
    return int(sum(np.size(point[v.name]) for v in model.value_vars))
