"""What a sampler does in a chain, and its state: `engine.ChainStep` puts functions together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import numpy as np
from pymc.step_methods.compound import StepMethodState
from pymc.step_methods.state import dataclass_state

from pymc_subsample.chain.model_compilation import expansion_of_order
from pymc_subsample.chain.points import read
from pymc_subsample.chain.sampler import Statistics
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.model import TallModel


@dataclass_state
class ChainState(StepMethodState):
    """Of all chains; with what subclasses add, everything the next draw depends on.

    The rows themselves are taken anew from the data. `own` is the last draw in coordinates of the
    chain's own, where it has some: found anew from the draw, its last bits would be others.
    """

    tune: bool
    draws_left: int
    own: np.ndarray | None
    record: Any
    n_rows: int = field(metadata={"frozen": True})
    fingerprint: str = field(metadata={"frozen": True})
    observed: tuple[str, ...] = field(metadata={"frozen": True})


@dataclass_state
class ReferredState(ChainState):
    """Of chains that may start at a reference."""

    start_at_reference: bool
    mode: int
    reference: Reference | None
    transitions_per_draw: int = field(metadata={"frozen": True})
    temperature: float = field(metadata={"frozen": True})


def of_order(step: Any, tall: TallModel) -> Expansion:
    """Expand rows to the order that was asked for."""
    return expansion_of_order(tall, step.asked_order)


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
    enter: Callable = lambda step, point: read(step, point)
    # ``transitions(step, theta, size)`` makes draws, shape (size, d): these, and what transitions
    # report, an array (size, ...) for each name. In tuning there is one.
    transitions: Callable
    # ``statistics(step, infos)`` returns those of n draws, arrays of shape (n,) or what draws
    # share; those that transitions report by the same names are left out.
    statistics: Callable
    # ``adapt(step, theta, info)`` records a draw of tuning, and changes what it asks for; it
    # returns a `notices.Notice` of what is to be said.
    adapt: Callable = lambda step, theta, info: None
    # ``watch(step, thetas, infos)`` records draws after tuning, and ``check(step)`` checks, after
    # the last one, whether the chain can be trusted.
    watch: Callable
    check: Callable
    # ``steady(step)``: whether successive draws need nothing from Python.
    steady: Callable[[Any], bool] = lambda step: True
    # Whether a chain begins once more where tuning is reset.
    resets: bool = True
    # ``by_gradients(step)``: whether it moves by gradients, and needs them to say how the
    # log-likelihood changes; and what to do about one that has none.
    by_gradients: Callable[[Any], bool] = lambda step: True
    without_gradient: str = "Use a Metropolis-Hastings step with control_variate_order=None."
    # Whether what expansions leave is estimated, and not bounded, which wants them plain.
    estimates: bool = True
    # Whether it samples binary variables, and not continuous ones.
    binary: bool = False
    # ``expand(step, tall)`` expands the rows, ``taylor(step)`` returns the expansion in which the
    # reference is sought, and ``connected(step)`` makes what else is made from the model.
    expand: Callable[[Any, TallModel], Expansion] = of_order
    taylor: Callable[[Any], Expansion] = lambda step: step.expansion
    connected: Callable[[Any], None] = lambda step: None
    # Attributes that `connected` makes, wherever a step is unpickled.
    anew: tuple[str, ...] = ()
    # ``compile(step)`` compiles transitions, where that takes long.
    compile: Callable[[Any], None] = lambda step: None
    # ``forget(step)`` drops what is cached of the state.
    forget: Callable[[Any], None] = lambda step: None

    def __post_init__(self):
        require_parts(self, _PARTS)


_PARTS = {
    "step": (
        "functions",
        "check",
        "steady",
        "by_gradients",
        "taylor",
        "connected",
        "compile",
        "forget",
    ),
    "step, point": ("enter",),
    "step, tune, draws": ("begin",),
    "step, theta, size": ("transitions",),
    "step, theta, info": ("adapt",),
    "step, thetas, infos": ("watch",),
    "step, infos": ("statistics",),
    "step, tall": ("expand",),
}


def require_parts(record: Any, parts: Mapping[str, Sequence[str]]) -> None:
    """Refuse a record whose functions, named by the arguments that they take, take others."""
    for takes, names in parts.items():
        for name in names:
            part = getattr(record, name)
            found = f"({', '.join(signature(part).parameters)})" if callable(part) else part
            if found != f"({takes})":
                raise TypeError(
                    f"{type(record).__name__}: {name} must be a function of ({takes}), and is "
                    f"{found}."
                )


def named_alike(declared: Statistics, infos: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return statistics that transitions report by the names, and in the types, declared."""
    return {
        name: found.astype(declared[name][0], copy=False)
        for name, found in infos.items()
        if name in declared
    }


def divergences(step: Any, diverging: np.ndarray) -> Any:
    """Return how many draws had diverged by each of the next ones, none of them in tuning."""
    return 0 if step.tune else step.record.divergences + np.cumsum(diverging > 0)
