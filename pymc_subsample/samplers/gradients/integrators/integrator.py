r"""What an integrator of stochastic-gradient MCMC consists of.

Positions :math:`\theta = F z` and momenta r are in coordinates where the metric is the identity,
:math:`\hat g` is a stochastic gradient there (see `samplers.gradients.gradient_estimates`), h the
step size, :math:`\gamma` the friction, T the temperature and :math:`\xi \sim N(0, I)`.
"""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from types import NoneType
from typing import Literal, NamedTuple

import numpy as np

from pymc_subsample.compiled.functions import inlined
from pymc_subsample.kernels.vectors import scale_up

# Compiles a part: to hand over a `Chain` costs as much as what most of them do.

# Where a chain is, and what its steps depend on; arrays are overwritten.
#
# n : rows of the data
# friction, temperature : gamma and T
# averaging, floor : of a preconditioner
# active : elements of theta that move
# factor : F
# theta, momentum : position and r
# state : whatever else the integrator remembers, shape (a,)
# force : the gradient, last evaluated
# change, scratch : to write in, shape (a,)
Chain = namedtuple(
    "Chain",
    "n friction temperature averaging floor active factor theta momentum state force change "
    "scratch",
)

# Arguments of `SGMCMC` for all with momenta.
_OF_MOMENTA = ("friction", "resample_every")


class LinearMap(NamedTuple):
    r"""A step on a normal posterior, direction by direction: :math:`x' = M x + u \xi + v \eta`.

    x is the position, or position and momentum, :math:`\xi` the noise of the dynamics and
    :math:`\eta` that of the gradient.
    """

    matrix: np.ndarray  # M, shape (a, k, k); k is 1, or 2 where there are momenta.
    # u and v, shape (a, k).
    own: np.ndarray
    gradient: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Integrator:
    """What tells an integrator from the others: none of it can be left out.

    `start`, `drift`, `kick`, `drift_ratio` and `expectation` are called in compiled code
    (`inlined`) and write into the arrays of a `Chain`; the others are Python's.
    """

    name: str  # What users call it.
    # {"given", "adapted", None}: whether users choose the friction of its momenta, or the step
    # adapts it until they have the temperature, or there are none.
    friction: Literal["given", "adapted"] | None
    reuses_gradient: bool  # Whether `drift` moves along the gradient of the step before.
    # Arguments of `SGMCMC` that are for some integrators alone, and this one takes, beyond those of
    # all with momenta.
    options: tuple[str, ...]
    # ``start(friction, state)`` writes the integrator state of a chain that begins, or begins again
    # after a divergence.
    start: Callable
    # ``drift(rng, chain, h)`` does what comes before the gradient of a step, and ``kick(rng, chain,
    # h)`` what comes after.
    drift: Callable
    kick: Callable
    # ``drift_ratio(chain, h)`` returns the largest drift of the step in one direction in units of
    # its noise, or its kick in units of momenta. T is above 0.
    drift_ratio: Callable
    # ``expectation(chain, h, stop, x)`` writes where exponential weights expect the noise of a step
    # to go, with the momenta going on as before or, if `stop`, to a stop, and returns that noise's
    # standard deviation over the root of h; or why such weights, which are for one kick with noise
    # of one size, do not fit.
    expectation: Callable | str
    # ``linear_map(h, friction, curvature)`` returns the `LinearMap` of a step at curvatures of
    # shape (a,).
    linear_map: Callable
    # ``noise_variance(h, friction, temperature)`` returns the variance of the map's own noise.
    noise_variance: Callable
    # ``momentum_variance(h, friction, temperature, curvature, noise, covariance)`` returns the
    # variance of momenta at the end of steps, shape (a,), given that of the gradient and the
    # stationary covariance of the map, shape (a, 2, 2), which may be cut elsewhere.
    momentum_variance: Callable | None
    # ``own_metric(floor, n, square)`` returns the root of what multiplies h, element by element,
    # given mean squares of the gradient. They are n**2 times the integrator state.
    own_metric: Callable | None

    def __post_init__(self):
        for name, (takes, other) in _PARTS.items():
            part = getattr(self, name)
            if isinstance(part, other):
                continue
            found = f"one of ({', '.join(signature(part).parameters)})" if callable(part) else part
            if found != f"one of ({takes})":
                raise TypeError(
                    f"Integrator {self.name!r}: {name} must be a function of ({takes}), and is "
                    f"{found}."
                )
        if self.friction not in ("given", "adapted", None):
            raise TypeError(
                f"Integrator {self.name!r}: friction must be 'given', 'adapted' or None, and is "
                f"{self.friction!r}."
            )
        if self.has_momenta != (self.momentum_variance is not None):
            raise TypeError(
                f"Integrator {self.name!r}: momentum_variance must be given where there are "
                f"momenta, and only there; friction is {self.friction!r}."
            )
        if self.reuses_gradient and self.weighted:
            raise TypeError(
                f"Integrator {self.name!r}: reuses_gradient does not go with expectation, since "
                "weights are for one kick per gradient. Say why they do not fit instead."
            )

    @property
    def has_momenta(self) -> bool:
        """Whether there are momenta."""
        return self.friction is not None

    @property
    def takes(self) -> tuple[str, ...]:
        """Arguments that are for some integrators alone, and this one takes."""
        return (*(_OF_MOMENTA if self.has_momenta else ()), *self.options)

    @property
    def weighted(self) -> bool:
        """Whether exponential weights fit it."""
        return callable(self.expectation)


# Parameters of the functions, and what may stand in their place.
_PARTS: dict[str, tuple[str, tuple[type, ...]]] = {
    "start": ("friction, state", ()),
    "drift": ("rng, chain, h", ()),
    "kick": ("rng, chain, h", ()),
    "drift_ratio": ("chain, h", ()),
    "expectation": ("chain, h, stop, x", (str,)),
    "linear_map": ("h, friction, curvature", ()),
    "noise_variance": ("h, friction, temperature", ()),
    "momentum_variance": ("h, friction, temperature, curvature, noise, covariance", (NoneType,)),
    "own_metric": ("floor, n, square", (NoneType,)),
}


@inlined
def shift(chain):
    """Move theta by `change` of z."""
    scale_up(chain.factor, chain.change, chain.scratch)
    for a in range(chain.active.shape[0]):
        chain.theta[chain.active[a]] += chain.scratch[a]
