"""Models whose rows are so few that no sampler of some of them could save time."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pymc as pm
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.distributions.distribution import SymbolicRandomVariable
from pytensor.graph.op import Op
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type import continuous_dtypes

from pymc_subsample.chain.nuts_cost import COMPILE_SECONDS, DRAWS, seconds_as_written
from pymc_subsample.chain.nuts_instead import SAVED_SECONDS, nuts
from pymc_subsample.diagnostics.checks import amount
from pymc_subsample.graph.concrete import root_array
from pymc_subsample.graph.piecewise import may_jump
from pymc_subsample.model.binding import require_rows
from pymc_subsample.rows import Rows
from pymc_subsample.units.choosing import may_pay

# Seconds per row and gradient, up to ten parameters, that few models exceed; gradients per draw of
# NUTS that are many, and that are usual: trees of a depth of nearly seven, and of four. A choice
# of an upper limit: a larger one only tries where less can be gained.
_PER_ROW, _TEN, _MANY, USUAL = 5e-8, 10, 100, 15


class FewRows(NamedTuple):
    """What NUTS on all rows takes where they are few."""

    rows: int | None  # None where their number is not known before a model is read.
    seconds: float

    @property
    def takes(self) -> str:
        """Their number, and what is taken, in words."""
        rows = "" if self.rows is None else f" ({self.rows:,})"
        mostly = ", most of which is compilation" if self.seconds < 2 * COMPILE_SECONDS else ""
        return f"{rows} take {{}}about {amount(self.seconds)} s{mostly}"

    @property
    def said(self) -> str:
        """The same of the NUTS that takes it."""
        name, code = nuts()
        return f"So few rows{self.takes.format(f'{name} ')} ({code})"


def few_rows(
    model: pm.Model, terms: Iterable[str], data: Rows | Sequence[Rows] | None
) -> FewRows | None:
    """Say so where NUTS on all rows takes 10 s at most; None too where that is not known.

    By a count of many gradients per draw. Where units may have variables of their own, of which a
    row reads few, by the elements that the model's log density computes. Not known either where
    the log-likelihood may have jumps, which NUTS does not see.
    """
    if written_with_jumps(model):
        return None
    rows = _number(model, terms, data)
    if rows is not None:
        gradient = rows * _PER_ROW * max(1.0, size(model) / _TEN)
        if 2 * DRAWS * _MANY * gradient <= SAVED_SECONDS:
            return FewRows(rows, COMPILE_SECONDS + 2 * DRAWS * USUAL * gradient)
    if data is not None or not may_pay(model):
        return None
    seconds = seconds_as_written(model)
    return FewRows(rows, seconds) if seconds <= COMPILE_SECONDS + SAVED_SECONDS else None


# What is said where NUTS is left a model that may have jumps.
DOUBT = (
    "The log-likelihood rounds or chooses by a parameter: if that makes it jump, NUTS samples a "
    "wrong posterior, and pm.Metropolis or pm.DEMetropolisZ are to be taken."
)


def written_with_jumps(model: pm.Model) -> bool:
    """Whether a log-likelihood rounds or chooses by a parameter; where that meets, it is smooth."""
    moving = [v for v in model.free_RVs if v.type.dtype in continuous_dtypes]
    given = list(model.observed_RVs)
    for v in model.observed_RVs:
        if not isinstance(v.owner.op, CustomDistRV):
            continue
        with suppress(NotImplementedError):  # of which there is no density, as is said elsewhere
            given.append(pm.logp(v, model.rvs_to_values[v]))
    return may_jump([*given, *model.potentials], moving, _of_pymc)


def _of_pymc(op: Op) -> bool:
    """Whether an Op is one of PyMC's distributions."""
    symbolic = isinstance(op, SymbolicRandomVariable) and not isinstance(op, CustomSymbolicDistRV)
    return symbolic or isinstance(op, RandomVariable)


def _number(
    model: pm.Model, terms: Iterable[str], data: Rows | Sequence[Rows] | None
) -> int | None:
    """Return the number of rows, if it is known before the model is read."""
    if data is not None:
        return len(require_rows(data))
    sizes = []
    for name in terms:
        variable = model[name]
        observed = variable in model.observed_RVs
        array = root_array(model.rvs_to_values[variable]) if observed else None
        if array is None or not np.ndim(array):
            return None
        sizes.append(len(array))
    return max(sizes)


def size(model: pm.Model) -> int:
    """Return the number of unconstrained parameters."""
    point = model.initial_point()
    return int(sum(np.size(point[v.name]) for v in model.value_vars))
