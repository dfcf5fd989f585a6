"""What a sampler does in a chain: functions of its step, which `engine.ChainStep` puts together."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
from pymc.blocking import PointType

from pymc_subsample.chain.form import expansion_of_order
from pymc_subsample.chain.starting import read
from pymc_subsample.expansion import Expansion
from pymc_subsample.model import TallModel


def _always(step: Any) -> bool:
    return True


def _nothing(step: Any) -> None:
    pass


def _entered(step: Any, point: PointType) -> np.ndarray:
    return read(step, point)


def _unchanged(step: Any, theta: np.ndarray, info: dict[str, float]) -> None:
    pass


def of_order(step: Any, tall: TallModel) -> Expansion:
    """Expand rows to the order that was asked for."""
    return expansion_of_order(tall, step.asked_order)


def _sampled(step: Any) -> Expansion:
    return step.expansion


@dataclass(frozen=True, kw_only=True, eq=False)
class Method:
    """What tells a sampler from the others where it runs; `step` is its step method.

    Draws are made by `enter`, `transitions` and `statistics`, then `adapt` while tuning or `watch`
    after it, and `check` after the last one.
    """

    # Dataclass of all that the next draw depends on: attributes of the step.
    state: type
    # ``functions(step)`` returns those of the model by name, as the compiled transition takes them.
    functions: Callable[[Any], tuple[str | None, ...]]
    # ``begin(step, tune, draws)`` starts a chain, or what a set-up leaves of one.
    begin: Callable
    # ``enter(step, point)`` reads a point into the chain's vector, or starts elsewhere.
    enter: Callable = _entered
    # ``transitions(step, theta, size)`` makes draws, shape (size, d): these, and what transitions
    # report, an array (size, ...) for each name. In tuning there is one.
    transitions: Callable
    # ``statistics(step, infos)`` returns those of n draws, arrays of shape (n,) or what draws
    # share; those that transitions report by the same names are left out.
    statistics: Callable
    # ``adapt(step, theta, info)`` records a draw of tuning, and changes what it asks for; it
    # returns a `notices.Notice` of what is to be said.
    adapt: Callable = _unchanged
    # ``watch(step, thetas, infos)`` records draws after tuning, and ``check(step)`` checks, after
    # the last one, whether the chain can be trusted.
    watch: Callable
    check: Callable
    # ``steady(step)``: whether successive draws need nothing from Python.
    steady: Callable[[Any], bool] = _always
    # Whether a chain begins once more where tuning is reset.
    resets: bool = True
    # ``by_gradients(step)``: whether it moves by gradients, and needs them to say how the
    # log-likelihood changes; and what to do about one that has none.
    by_gradients: Callable[[Any], bool] = _always
    without_gradient: str = "Use a Metropolis-Hastings step with control_variate_order=None."
    # Whether what expansions leave is estimated, and not bounded, which wants them plain.
    estimates: bool = True
    # Whether it samples binary variables, and not continuous ones.
    binary: bool = False
    # ``expand(step, tall)`` expands the rows, ``taylor(step)`` returns the expansion in which the
    # reference is sought, and ``connected(step)`` makes what else is made from the model.
    expand: Callable[[Any, TallModel], Expansion] = of_order
    taylor: Callable[[Any], Expansion] = _sampled
    connected: Callable[[Any], None] = _nothing
    # Attributes that `connected` makes, wherever a step is unpickled.
    anew: tuple[str, ...] = ()
    # ``forget(step)`` drops what is cached of the state.
    forget: Callable[[Any], None] = _nothing

    def __post_init__(self):
        for name, takes in _PARTS.items():
            part = getattr(self, name)
            found = f"({', '.join(signature(part).parameters)})" if callable(part) else part
            if found != f"({takes})":
                raise TypeError(f"Method: {name} must be a function of ({takes}), and is {found}.")


_PARTS = {
    "functions": "step",
    "begin": "step, tune, draws",
    "enter": "step, point",
    "transitions": "step, theta, size",
    "statistics": "step, infos",
    "adapt": "step, theta, info",
    "watch": "step, thetas, infos",
    "check": "step",
    "steady": "step",
    "by_gradients": "step",
    "expand": "step, tall",
    "taylor": "step",
    "connected": "step",
    "forget": "step",
}
