"""Discrete local variables: a unit's density is summed over all their states.

That is its integral, and exact, where it has no continuous ones.
"""

from collections.abc import Sequence

import numpy as np
from pymc.distributions.discrete import DiscreteUniformRV
from pymc.pytensorf import constant_fold
from pytensor.graph.basic import Variable
from pytensor.tensor.random.basic import (
    BernoulliRV,
    BetaBinomialRV,
    BinomialRV,
    CategoricalRV,
)
from pytensor.tensor.type import discrete_dtypes

from pymc_subsample.model import TallModelError
from pymc_subsample.units.reading import Reading

# Values of each element, None for those that are continuous.
States = Sequence[np.ndarray | None]

# Beyond so many, a unit's rows are evaluated more often than samplers need to visit its states:
# as many as nodes of continuous variables at most.
MOST_STATES = 1_000


class Endless(Exception):
    """A discrete variable has no finite set of values, for a reason."""


def is_discrete(value: Variable) -> bool:
    """Whether a variable has integers, or is true or false."""
    return value.type.dtype in discrete_dtypes


def values_of(reading: Reading, name: str) -> np.ndarray:
    """Return the values that an element of a discrete variable may take; raise `Endless`."""
    rv = reading.model[name]
    op, parameters = rv.owner.op, rv.owner.op.dist_params(rv.owner)
    match op:
        case BernoulliRV():
            return np.arange(2)
        case CategoricalRV():
            return np.arange(int(_known(parameters[0].shape[-1], "a number of categories")))
        case BinomialRV() | BetaBinomialRV():
            return np.arange(int(np.max(_known(parameters[0], "an n"))) + 1)
        case DiscreteUniformRV():
            lower, upper = (_known(p, "a bound") for p in parameters)
            return np.arange(int(np.min(lower)), int(np.max(upper)) + 1)
    raise Endless(
        "is discrete without a finite set of values: sums are over those of Bernoulli, "
        "Categorical, Binomial and DiscreteUniform variables. Give it one of these, with bounds "
        "that it does not reach"
    )


def states_of(
    reading: Reading, names: Sequence[str], sizes: Sequence[int], active: np.ndarray | None
) -> States | None:
    """Return the values that each element of a unit may have, or None if all are continuous.

    `sizes` are elements of each variable that a unit has, or may have: those that are `active`.
    """
    discrete = [is_discrete(reading.values[name]) for name in names]
    if not any(discrete):
        return None
    known = [values_of(reading, n) if d else None for n, d in zip(names, discrete, strict=True)]
    values = [v for v, k in zip(known, sizes, strict=True) for _ in range(k)]
    logs = np.log([1.0 if v is None else float(len(v)) for v in values])
    number = np.exp(logs.sum() if active is None else (active @ logs).max())
    if number > MOST_STATES * (1 + 1e-9):
        raise TallModelError(
            f"{' and '.join(repr(n) for n, d in zip(names, discrete, strict=True) if d)} have "
            f"{number:,.0f} states together in each level "
            f"(at most {MOST_STATES:,}). Index fewer elements by a level, or sum over them by hand."
        )
    return values


def _known(graph: Variable, what: str) -> np.ndarray:
    [found] = constant_fold([graph], raise_not_constant=False)
    if isinstance(found, Variable):
        raise Endless(f"is discrete, with {what} that depends on other variables")
    return np.asarray(found)
