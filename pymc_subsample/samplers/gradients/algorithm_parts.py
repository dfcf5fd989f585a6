"""The parts of stochastic-gradient samplers: what each of them takes, and which go together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_subsample.chain import arguments
from pymc_subsample.samplers.gradients import gradient_estimates as gradients
from pymc_subsample.samplers.gradients import kernel as langevin
from pymc_subsample.samplers.gradients.integrators import INTEGRATORS, Integrator

_GRADIENTS = ("batch", "svrg", "ewsg")
_SAMPLING = {"uniform": gradients.UNIFORM, "clustered": gradients.STRATIFIED}
_EXPECTED = {
    "momentum": langevin.MOMENTUM,
    "zero": langevin.ZERO,
    "one": langevin.ONE,
    "stop": langevin.STOP,
}
# What each option belongs to, but for those of integrators.
_OPTIONS = {
    "refresh_period": ("gradient", ("svrg",)),
    "index_chain": ("gradient", ("ewsg",)),
    "expected": ("gradient", ("ewsg",)),
    "n_clusters": ("batches", ("clustered",)),
}
# Friction is critical damping where the posterior has unit curvature.
_DEFAULTS = {
    "friction": 2.0, "averaging": 0.99, "floor": 1e-5, "index_chain": 1, "expected": "momentum",
    "n_clusters": 10,
}  # fmt: skip


@dataclass(frozen=True)
class Parts:
    """Integrator, gradient and batches by name, and what they were told, or their defaults."""

    integrator: str
    gradient: str
    batches: str
    friction: float
    has_friction: bool  # Whether it was given.
    averaging: float
    floor: float
    n_clusters: int
    index_chain: int  # 0 without exponential weights.
    expected: str
    resample: int  # 0 where momenta are kept.
    refresh_period: int | None  # None where it is left open.

    def __str__(self) -> str:
        return f"{self.integrator} {self.gradient} {self.batches}"

    @property
    def dynamics(self) -> Integrator:
        """The integrator itself."""
        return INTEGRATORS[self.integrator]

    @property
    def sampling(self) -> int:
        """How compiled code draws batches."""
        return _SAMPLING[self.batches]

    @property
    def rule(self) -> int:
        """Where exponential weights expect the dynamics to go, for compiled code."""
        return _EXPECTED[self.expected]

    def order_and_hold(
        self, order: int | str | None, hold: int | None, temperature: float
    ) -> tuple[int | str | None, int | None]:
        """Return control variates' order and steps per batch that the gradient goes with.

        Raises `ValueError` if it does not go with those that were given, with the integrator, or
        with the temperature.
        """
        if self.gradient == "svrg":
            if order not in ("auto", 1):
                raise ValueError(
                    f'control_variate_order={order} does not go with gradient="svrg", whose '
                    "control variates around a position of the chain are of order 1. Leave it out."
                )
            return 1, hold
        if self.gradient != "ewsg":
            return order, hold
        if not self.dynamics.weighted:
            *others, last = (f'"{name}"' for name in integrators(lambda found: found.weighted))
            raise ValueError(
                f'gradient="ewsg" does not go with integrator={self.integrator!r}: '
                f"{self.dynamics.expectation}, and exponential weights match one kick of the "
                f"gradient with noise of one size. Use integrator={', '.join(others)} or {last}."
            )
        if self.expected == "stop" and not self.dynamics.has_momenta:
            raise ValueError('expected="stop" needs momenta, and overdamped dynamics have none.')
        if hold not in (None, 1):
            raise ValueError(
                f'steps_per_batch={hold} does not go with gradient="ewsg", which '
                "draws batches to fit a step. Leave it out."
            )
        if not temperature:
            raise ValueError(
                "temperature must be above 0: exponential weights match the noise of the dynamics, "
                "which have none at 0."
            )
        return order, 1


def chosen_parts(
    integrator: str = "baoab", gradient: str = "batch", batches: str = "uniform", **options: Any
) -> Parts:
    """Check parts and their options; refuse what none of these parts takes."""
    parts = {
        "integrator": arguments.choice("integrator", integrator, tuple(INTEGRATORS)),
        "gradient": arguments.choice("gradient", gradient, _GRADIENTS),
        "batches": arguments.choice("batches", batches, tuple(_SAMPLING)),
    }
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        part, used = _takes(name)
        if parts[part] not in used:
            raise ValueError(
                f"{name} is not used with {part}={parts[part]!r}, but with "
                f"{' and '.join(map(repr, used))}. Leave it out."
            )
    chosen: dict[str, Any] = _DEFAULTS | given
    friction = arguments.between("friction", chosen["friction"], 0.0, np.inf)
    averaging = arguments.between("averaging", chosen["averaging"], 0.0, 1.0)
    floor = arguments.between("floor", chosen["floor"], 0.0, np.inf)
    n_clusters = arguments.count("n_clusters", chosen["n_clusters"], smallest=2)
    chain = arguments.transitions(chosen["index_chain"], "index_chain")
    expected = arguments.choice("expected", chosen["expected"], tuple(_EXPECTED))
    resample, period = (
        arguments.count(name, chosen[name]) if name in chosen else None
        for name in ("resample_every", "refresh_period")
    )
    return Parts(
        **parts, friction=friction, has_friction="friction" in given, averaging=averaging,
        floor=floor, n_clusters=n_clusters,
        index_chain=chain if gradient == "ewsg" else 0, expected=expected, resample=resample or 0,
        refresh_period=period,
    )  # fmt: skip


def integrators(which: Callable[[Integrator], bool]) -> tuple[str, ...]:
    """Return the names of some."""
    return tuple(name for name, found in INTEGRATORS.items() if which(found))


def underdamped() -> tuple[str, ...]:
    """Return the names of integrators of which users choose the friction."""
    return integrators(lambda found: found.friction == "given")


def _takes(name: str) -> tuple[str, tuple[str, ...]]:
    """Return what kind of part takes an option, and which do."""
    if name in _OPTIONS:
        return _OPTIONS[name]
    return "integrator", integrators(lambda found: name in found.takes)
