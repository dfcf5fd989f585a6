"""What PyMC does not tell a step: what `pm.sample` was given, and which other steps there are."""

import multiprocessing
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import numpy as np
import pymc as pm
from pymc.backends.ndarray import NDArray
from pymc.step_methods.compound import BlockedStep, CompoundStep, flatten_steps


def _callers() -> Iterator[FrameType]:
    """Yield the frames of who calls, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def calling_sample() -> Mapping[str, Any] | None:
    """Return the local variables of the `pm.sample` that calls; None where none does."""
    return next((f.f_locals for f in _callers() if f.f_code is pm.sample.__code__), None)


def is_sampling() -> bool:
    """Whether `pm.sample` calls, in this process or from that of which this is a worker."""
    return calling_sample() is not None or multiprocessing.parent_process() is not None


def has_draws() -> bool:
    """Whether a chain of the `pm.sample` that calls may have draws after tuning."""
    known = calling_sample() or {}
    traces = known.get("traces") or [None]
    if not all(isinstance(t, NDArray) for t in traces):
        return True
    return max(map(len, traces)) > known["tune"]


def is_called_by(package: str) -> bool:
    """Whether a function of another package is among the callers."""
    return any(str(f.f_globals.get("__name__")).split(".")[0] == package for f in _callers())


def steps_beside(step: BlockedStep) -> list[BlockedStep]:
    """Return the other steps that take turns with one, where PyMC calls it in a chain."""
    found: list[BlockedStep] = []
    for frame in _callers():  # the outermost holds all of them
        if frame.f_code is CompoundStep.step.__code__:
            found = [other for other in flatten_steps(frame.f_locals["self"]) if other is not step]
    return found


def given_start(step: BlockedStep, point: Mapping[str, np.ndarray]) -> bool:
    """Whether a point is another one than where PyMC starts chains by itself: `initvals`."""
    model = step.model
    if any(isinstance(v, str) for v in model.rvs_to_initial_values.values()):
        return False  # drawn at random
    usual = model.initial_point()
    return any(not np.array_equal(usual[v.name], point[v.name]) for v in step.vars)


def refuse_init(step: str) -> None:
    """Refuse what PyMC would ignore in a run without its own NUTS."""
    known = calling_sample()
    if known is None or known.get("selected_steps"):
        return
    if any(isinstance(other, pm.NUTS) for other in known.get("provided_steps") or ()):
        return
    if (init := known.get("init", "auto")) != "auto":
        raise ValueError(
            f"pm.sample(init={init!r}) chooses where PyMC's NUTS starts, and this run has none: "
            f"{step} finds its own reference point and mass matrix. Leave it out, or give "
            "initvals= to start elsewhere."
        )
