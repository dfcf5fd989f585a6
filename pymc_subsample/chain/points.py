"""Points of PyMC's and the chain's vector: layout, reading, and where a chain starts."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pymc.blocking import PointType

from pymc_subsample.chain import guards
from pymc_subsample.chain.pm_sample import given_start
from pymc_subsample.expansion.factors import scaled
from pymc_subsample.model import TallModel
from pymc_subsample.model.binding import quoted
from pymc_subsample.model.support import impossible

if TYPE_CHECKING:
    from pymc_subsample.chain.engine import ChainStep


class ThetaLayout:
    """Places in PyMC's vector theta, shape (d,), of a model's value variables, and a step's own.

    What a chain moves, and all else calls theta, is that vector or `Coordinates` of its own.
    """

    def __init__(self, tall: TallModel, own: Sequence[Any]) -> None:
        names = {v.name for v in own}
        every = list(zip(tall.names, tall.slices, tall.shapes, strict=True))
        self.every: list[tuple[str, slice]] = [(name, part) for name, part, _ in every]
        self.own: list[tuple[str, slice, tuple[int, ...]]] = [x for x in every if x[0] in names]
        self.discrete = tall.discrete
        self._kinds = {v.name: v.type.dtype for v in own if v.name in tall.discrete}

    def places(self, names: Collection[str]) -> np.ndarray:
        """Positions of variables."""
        found = [np.r_[part] for name, part in self.every if name in names]
        return np.concatenate([np.zeros(0, dtype=int), *found])

    def continuous(self) -> np.ndarray:
        """Positions of continuous variables."""
        return self.places({name for name, _ in self.every} - set(self.discrete))

    def called(self, element: int) -> str:
        """Name an element of the step's own variables."""
        for name, part, shape in self.own:
            if part.start <= element < part.stop:
                index = ", ".join(map(str, np.unravel_index(element - part.start, shape)))
                return f"{quoted(name)}[{index}]" if shape else quoted(name)
        raise IndexError(element)

    def points(self, point: Mapping[str, np.ndarray], values: np.ndarray) -> list[PointType]:
        """Return `point` with the step's variables as in vectors of values, shape (n, d)."""
        n, columns = len(values), {}
        for name, part, shape in self.own:
            column = values[:, part].reshape(n, *shape)
            columns[name] = column.astype(self._kinds.get(name, column.dtype), copy=False)
        return [{**point, **{name: x[i, ...] for name, x in columns.items()}} for i in range(n)]


# How many times as wide as the posterior chains start around the reference. Starts have to be
# overdispersed for R-hat to mean something (Gelman and Rubin 1992).
WIDER = 1.5
# Points at which they may start, around one that may be at an edge of the support: at a distance
# that is halved after each few of them. A choice: 2^-9 of the distance at last.
_TRIES, _AT_EACH = 200, 20
# How far out they start at most, over the distance that they are confined to. A choice: a start
# at the border itself would be rejected by rounding.
_WITHIN = 0.9


def read(step: "ChainStep", point: PointType) -> np.ndarray:
    """Read a point of value variables into the chain's vector."""
    theta = np.empty(step.tall.size)
    for name, part in step.layout.every:
        theta[part] = np.ravel(point[name])
    left = None if step.thread is None else step.left
    guards.refuse_company(step, left, theta[step.active])
    like = None if step.reference is None else step.reference.theta
    return step.expansion.from_values(theta, like, step.own)


def log_prior(step: "ChainStep", theta: np.ndarray) -> float:
    """Log of the prior, and of every term that is not subsampled."""
    return step.expansion.parameters(theta)[1]


def start(
    step: "ChainStep",
    theta: np.ndarray,
    point: PointType,
    factor: np.ndarray,
    inside: bool = False,
    most: float = np.inf,
) -> bool:
    """Move a chain's first theta to the reference, unless `initvals` say where to start.

    With `inside` whatever they say, and less than `most` away, in units of the factor.
    """
    first, step.start_at_reference = step.start_at_reference, False
    if not step.began:
        given = given_start(step, point)
        step.began = "at initvals" if given else "at the model's initial point"
    if not first or step.reference is None or (not inside and given_start(step, point)):
        return False
    found = theta.copy()
    for k in range(_TRIES):
        z = WIDER * step.rng.standard_normal(len(step.active))
        z *= min(1.0, _WITHIN * most / np.linalg.norm(z)) / 2 ** (k // _AT_EACH)
        found[step.active] = step.reference.theta[step.active] + scaled(factor, z[None])[0]
        if np.isfinite(log_prior(step, found)):
            theta[:], step.began = found, "around the reference"
            return True
    if not np.isfinite(log_prior(step, theta)):
        values = step.tall.unravel(step.expansion.values(theta))
        at = {v.name: values.get(v.name, point.get(v.name)) for v in step.sampled_model.value_vars}
        raise ValueError(
            f"{type(step).__name__}: the chain has nowhere to start: the log prior is not "
            f"finite at {_TRIES} points around the reference, nor at the given point: "
            f"{impossible(step.sampled_model, at, step.tall.likelihood)}. Give initvals= inside "
            "the support."
        )
    return False
