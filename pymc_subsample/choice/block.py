"""A `with` block in which `pm.sample` takes our step by itself, for clients that call it."""

import inspect
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import pymc as pm
from pymc.blocking import PointType, StatsType
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.compound import BlockedStep, Competence
from pytensor.graph.basic import Variable

from pymc_subsample.chain.notices import held_back
from pymc_subsample.chain.pm_sample import (
    assigning,
    calling_sample,
    refuse_settings_of_nuts,
)
from pymc_subsample.choice.auto import auto, refuse_unknown, subsampling_step
from pymc_subsample.compiled.process import shared
from pymc_subsample.model.own_steps import own_steps
from pymc_subsample.units.choosing import sums_over_all

_log = logging.getLogger("pymc.subsample")


class _Block:
    """A block: its arguments of `auto`, and the step of the run that PyMC assigns steps of."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.arguments = arguments
        self._assigning: Any = None  # PyMC's list of methods, a new one for each run.
        self.step: BlockedStep | None = None
        self.asked = False  # Whether PyMC had a step to choose inside.
        self._error: Exception | None = None

    def takes(self, rv: Variable, assigned: Mapping[str, Any]) -> bool:
        """Whether the block's step samples a variable; the first of a run has the step made."""
        self.asked = True
        if self._assigning is not assigned["methods_list"]:
            self._assigning, self.step, self._error = assigned["methods_list"], None, None
            try:
                self.step = self._made(assigned["model"], assigned["assigned_vars"])
            except Exception as error:
                self._error = error
        if self._error is not None:  # of each variable: PyMC asks again where this is a TypeError
            raise self._error
        return self.step is not None and assigned["model"].rvs_to_values[rv] in self.step.vars

    def _made(self, model: pm.Model, others: Collection[Variable]) -> BlockedStep | None:
        vars = _samplable(model, others)
        if not vars:
            _log.info("subsampling: no variable of this model is left to sample: PyMC samples it")
            return None
        parameters, by = inspect.signature(auto).parameters, "pms.subsampling"
        refuse_settings_of_nuts(f"the step of {by}()", by, parameters, vars)
        whole = len(vars) == len(model.value_vars)
        quiet = (calling_sample() or {}).get("quiet")
        with held_back() if quiet else nullcontext():
            return subsampling_step(None if whole else vars, model=model, **self.arguments)


def _samplable(model: pm.Model, others: Collection[Variable]) -> list[Variable]:
    """Return the value variables that a step may take, given those that others have."""
    alone = own_steps(model)
    left = [v for v in model.value_vars if model.values_to_rvs[v].name not in alone]
    left = [v for v in left if v not in others]
    if len(left) == len(model.value_vars) and model.continuous_value_vars and sums_over_all(model):
        return left
    return [v for v in left if v in model.continuous_value_vars]


# Of this thread, or task: the block that it is in, if any.
_block: ContextVar[_Block | None] = ContextVar("subsampling", default=None)


class Subsampling(BlockedStep):
    """What PyMC's registry holds in the place of a step, which depends on the model."""

    name = "subsampling"

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return the step that was made when PyMC asked for competence."""
        block = _block.get()
        assert block is not None
        step, block.step = block.step, None
        return step

    def step(self, point: PointType) -> tuple[PointType, StatsType]:
        """Do nothing: there are no instances."""
        raise AssertionError

    @staticmethod
    def competence(rv: Variable, has_grad: bool = True) -> Competence:
        """Ideal for what the step of this thread's block takes."""
        block, assigned = _block.get(), assigning()
        if block is None or assigned is None:
            return Competence.INCOMPATIBLE
        token = _block.set(None)  # what is made, or run, meanwhile is no business of the block
        try:
            taken = block.takes(rv, assigned)
        finally:
            _block.reset(token)
        return Competence.IDEAL if taken else Competence.INCOMPATIBLE


@shared
@contextmanager
def _registered() -> Iterator[None]:
    """Have PyMC know the entry while some thread is inside of a block."""
    STEP_METHODS.insert(0, Subsampling)
    try:
        yield
    finally:
        STEP_METHODS.remove(Subsampling)


@contextmanager
def subsampling(**arguments: Any) -> Iterator[None]:
    """Have `pm.sample` take the step of `auto` by itself, in a `with` block.

    For packages that make a model, or change its data, and call `pm.sample` themselves: a step
    needs the model as it is sampled. In the block each `pm.sample` gets a step that `auto` sets up
    for its model. Variables that no subsampling step takes, as discrete ones that all rows share,
    are left to PyMC's steps, and those that are given a step, to that. Other threads are not
    affected, and nothing is left behind.

    Parameters
    ----------
    **arguments
        Those of `auto`, but `vars` and `model`.

    Raises
    ------
    TypeError
        If there is an argument that `auto` does not take.
    TallModelError
        In `pm.sample`, if the model's rows cannot be subsampled; with ``fallback=True`` PyMC
        samples such a model as it does outside of the block, unless its log-likelihood has jumps.
    ValueError
        In `pm.sample`, if it is given what is meant for PyMC's NUTS: ``target_accept=0.9`` is an
        argument of the block.

    Notes
    -----
    PyMC chooses steps by their `competence` for a variable, from a list that is
    ``pymc.step_methods.STEP_METHODS``. The block puts an entry first there, whose competence is
    that of the thread, or task, that is inside: a thread that is begun within a block is outside.

    Examples
    --------
    >>> import bambi as bmb
    >>> import pandas as pd
    >>> flights = pd.DataFrame({"late": late.astype(int), "miles": miles, "hour": hour})
    >>> with pms.subsampling():
    ...     idata = bmb.Model("late ~ miles + hour", flights, family="bernoulli").fit()
    """
    refuse_unknown("subsampling", arguments)
    for name in ("vars", "model"):
        if name in arguments:
            raise TypeError(f"subsampling: {name}= is an argument of the pm.sample in the block.")
    with _registered():
        own = _Block(arguments)
        token = _block.set(own)
        try:
            yield
        finally:
            _block.reset(token)
    if not own.asked:
        _log.warning(
            "subsampling: the block had no effect: no pm.sample inside it had a step to choose. A "
            "run with step= of its own, or one that does not call pm.sample, is not subsampled."
        )
