"""Where a chain goes on from: points read into its vector, and its first draw."""

from typing import TYPE_CHECKING

import numpy as np
from pymc.blocking import PointType

from pymc_subsample.chain import guards
from pymc_subsample.chain.pm_sample import given_start
from pymc_subsample.expansion.factors import scaled
from pymc_subsample.model.support import impossible

if TYPE_CHECKING:
    from pymc_subsample.chain.engine import ChainStep

# How many times as wide as the posterior chains start around the reference.
_WIDER = 1.5
# Points at which they may start, around one that may be at an edge of the support: at a distance
# that is halved after each few of them.
_TRIES, _AT_EACH = 200, 20
# How far out they start at most, over the distance that they are confined to.
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
        z = _WIDER * step.rng.standard_normal(len(step.active))
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
            f"{impossible(step.sampled_model, at, step.tall.observed)}. Give initvals= inside the "
            "support."
        )
    return False
