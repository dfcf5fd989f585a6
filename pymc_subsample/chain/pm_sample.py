"""What PyMC does not tell a step: what `pm.sample` was given, and which other steps there are."""

import multiprocessing
import sys
from collections.abc import Collection, Iterator, Mapping
from types import FrameType
from typing import Any

import numpy as np
import pymc as pm
from pymc.backends.ndarray import NDArray
from pymc.sampling import mcmc
from pymc.step_methods.compound import BlockedStep, CompoundStep, flatten_steps
from pymc.step_methods.hmc.base_hmc import BaseHMC
from pytensor.compile.mode import get_mode
from pytensor.graph.basic import Variable

from pymc_subsample.diagnostics.chain_ends import with_chain_ends

# PyMC turns traces into a result by this, which has no place of its own for what is known once of a
# chain.
pm.to_inference_data = with_chain_ends(pm.to_inference_data)


def _callers() -> Iterator[FrameType]:
    """Yield the frames of who calls, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def calling_sample() -> Mapping[str, Any] | None:
    """Return the local variables of the `pm.sample` that calls; None where none does."""
    # Not what `pm.sample` is at present: others may have put a function around it.
    code = mcmc.sample.__code__
    return next((f.f_locals for f in _callers() if f.f_code is code), None)


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


def assigning() -> Mapping[str, Any] | None:
    """Return the local variables of PyMC's assignment of steps; None where it does not call."""
    code = mcmc.assign_step_methods.__code__
    return next((f.f_locals for f in _callers() if f.f_code is code), None)


def is_asked_by_pymc() -> bool:
    """Whether PyMC, assigning steps, is what calls who asks this."""
    return sys._getframe(2).f_code is mcmc.assign_step_methods.__code__


def refuse_settings_of_nuts(
    step: str, asked_by: str, known: Collection[str], taken: Collection[Variable]
) -> None:
    """Refuse arguments of `pm.sample` for PyMC's NUTS in a run that has none, before it begins.

    `taken` are the value variables that a step takes; it is `asked_by` a call, whose arguments are
    `known`.
    """
    sampling, assigned = calling_sample(), assigning()
    if sampling is None or assigned is None:
        return
    others = [x for given in assigned["provided_steps"] for x in flatten_steps(given)]
    moved = {*taken, *(v for other in others for v in other.vars)}
    if any(isinstance(other, BaseHMC) for other in others):
        return
    if not moved.issuperset(assigned["model"].continuous_value_vars):
        return
    if (init := sampling["init"]) != "auto":
        raise ValueError(
            f"pm.sample(init={init!r}) chooses where PyMC's NUTS starts, and this run has none: "
            f"{step} finds its own reference point and mass matrix. Leave it out, or give "
            "initvals= to start elsewhere."
        )
    if (sampler := sampling["nuts_sampler"]) not in (None, "pymc"):
        raise ValueError(
            f"pm.sample(nuts_sampler={sampler!r}) chooses who runs NUTS on all rows, and {step} "
            f"samples in its place. Leave one out: nuts_sampler=, or {asked_by}()."
        )
    _refuse_backend(step, sampling)
    given = dict(sampling["kwargs"])
    if given:
        raise ValueError(_only_for_nuts(step, asked_by, known, given))


def _refuse_backend(step: str, sampling: Mapping[str, Any]) -> None:
    mode = sampling["compile_kwargs"].get("mode")
    numba = type(get_mode("NUMBA").linker)
    if mode is None or isinstance(get_mode(mode).linker, numba):
        return
    backend = sampling["backend"]
    said = f"backend={backend!r}" if backend else f"compile_kwargs={{'mode': {mode!r}}}"
    raise ValueError(
        f"pm.sample({said}) says how PyMC compiles its log density, and this run has none of that: "
        f"{step} compiles the log-likelihood of a row, with numba. Leave it out."
    )


def _only_for_nuts(step: str, asked_by: str, known: Collection[str], given: dict[str, Any]) -> str:
    options = given.pop("nuts", {}) | given
    said = ", ".join(f"{name}={value!r}" for name, value in options.items())
    fit = ", ".join(f"{name}={value!r}" for name, value in options.items() if name in known)
    unfit = ", ".join(f"{name}=" for name in options if name not in known)
    do = [f"write {asked_by}({fit})"] if fit else []
    do += [f"leave out {unfit or 'nuts='}"] if unfit or not options else []
    return (
        f"pm.sample({said or 'nuts={}'}) is for PyMC's own steps, and {step} samples in their "
        f"place: {', and '.join(do)}."
    )
