"""One step for a model: exact draws where these cost little more, by what a set-up knows."""

import inspect
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import thread_time
from typing import Any, Unpack

import pymc as pm

from pymc_subsample.chain import arguments, variables
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.integrating import each
from pymc_subsample.chain.notices import Unsaid, held_back
from pymc_subsample.chain.nuts_cost import (
    COMPILE_SECONDS,
    DRAWS,
    FEW_GRADIENTS,
    seconds_per_draw,
)
from pymc_subsample.chain.nuts_instead import as_written, beside_all_rows, nuts
from pymc_subsample.chain.nuts_trial import Gradients, projection_of
from pymc_subsample.chain.progress import announced, doing
from pymc_subsample.chain.shared_arguments import SharedContinuous, read_arguments, shares
from pymc_subsample.chain.sharing import Shared, ready, undecided
from pymc_subsample.choice.few_rows import DOUBT, few_rows, written_with_jumps
from pymc_subsample.diagnostics.checks import amount
from pymc_subsample.model import JumpError, TallModelError
from pymc_subsample.model.discovery import row_terms
from pymc_subsample.model.own_steps import own_steps
from pymc_subsample.samplers.hmc_ecs.step import HMCECS
from pymc_subsample.samplers.registry import ADVISED
from pymc_subsample.samplers.scalable.sampler import CROWD, crowded
from pymc_subsample.samplers.scalable.step import ScalableMH

_log = logging.getLogger("pymc.subsample")

# Times as long that an effective draw may take if it is exact. A choice, of what that is worth;
# counted ratios of up to 3 were within twice those measured (`tests/benchmarks/auto.py`).
ALIKE = 1.5
# Seconds beyond a run that the set-up of the exact step may take, whatever comes of it: of bounds,
# by a count. A choice of patience.
PATIENCE = 3.0
# Seconds that NUTS may be tried for on the expansion of the rows. A choice: less than a set-up.
_TRIED_SECONDS = 0.5


@dataclass(frozen=True)
class Chosen:
    """A step that was chosen, of two with one set-up."""

    step: ChainStep
    why: str
    unsaid: Unsaid  # What its set-up has to say.
    # The exact one, and how long its effective draws take over those of HMCECS, if it was set up.
    exact: ScalableMH | None = None
    ratio: float = float("nan")


@shares(read_arguments, read_arguments.__doc__)
def auto(
    vars: Sequence | None = None,
    *,
    fallback: bool = False,
    target_accept: float | None = None,
    path_length: float | None = None,
    max_treedepth: int = 10,
    transitions_per_draw: int = 1,
    temperature: float = 1.0,
    **above: Unpack[SharedContinuous],
) -> "ChainStep | pm.NUTS":
    r"""Return a step for a model, set up: `ScalableMH` or `HMCECS`.

    Both share one set-up: the rows, their expansion and the reference. `ScalableMH`, whose draws
    are from the posterior itself, is taken where an effective draw of it takes at most 1.5 times as
    long as one of `HMCECS`: by a count of the rows, gradients and parameters that either reads, and
    of the proposals that rows are predicted to accept. Nothing is run, so that equal models get
    equal steps. The first message says which step was taken and why, and what NUTS on all rows
    would take where that is less. `advise` tries both instead.

    `ScalableMH` is not set up where parameters are too many for the rows, or `HMCECS` reads all of
    them, which is exact too; and it is given up where its bounds take more than 3 s, by a count.

    Parameters
    ----------
    fallback : bool, default False
        Whether to return PyMC's own NUTS, on all rows, where subsampling does not help: where the
        rows are few, where most are read and NUTS is as fast, or where the model is refused. The
        message says why. Without it, few rows are subsampled all the same, and a model that is
        refused raises; so does, with it too, one in whose log-likelihood jumps are found, which
        NUTS does not see.
    target_accept : float, optional
        Acceptance rate that step sizes are tuned to, between 0 and 1. Default: 0.8.
    path_length : float, optional
        Length of a trajectory in units of the mass matrix. Default: pi / 2, and NUTS where the
        chain moves in coordinates of its own.
    max_treedepth : int, default 10
        Doublings of a trajectory at most, up to 20, by NUTS.
    transitions_per_draw : int, default 1
        Iterations per recorded draw.
    temperature : float, default 1
        Divides the log-likelihood of the subsampled rows.

    Returns
    -------
    step : HMCECS, ScalableMH or pymc.NUTS

    Raises
    ------
    TallModelError
        If the model's rows cannot be subsampled, unless `fallback` is true; the message names the
        variable and the reason.
    ValueError, TypeError
        If an argument is out of range or of the wrong kind.

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(step=pms.auto())
    """
    refuse_unknown("auto", above)
    given = {
        "target_accept": target_accept, "path_length": path_length, "max_treedepth": max_treedepth,
        "transitions_per_draw": transitions_per_draw, "temperature": temperature,
    }  # fmt: skip
    model = above["model"] = arguments.model_of_step(above.get("model"), "auto")
    step = subsampling_step(vars, fallback=fallback, **given, **above)
    if step is not None:
        step.asked_by = "pms.auto", tuple(inspect.signature(auto).parameters)
        return step
    alone = own_steps(model)
    moved = [v for v in variables.continuous_vars(vars, model) if v in model.continuous_value_vars]
    moved = [v for v in moved if model.values_to_rvs[v].name not in alone]
    return pm.NUTS(moved, model=model, **_chosen(target_accept=target_accept))


def refuse_unknown(called: str, given: Iterable[str]) -> None:
    """Refuse arguments that `auto` does not take, and name the sampler that does."""
    for name in given:
        if name in inspect.signature(auto).parameters:
            continue
        takes = [
            s.__name__ for s in (HMCECS, ScalableMH) if name in inspect.signature(s).parameters
        ]
        one = f" It is one of {takes[0]}: step=pms.{takes[0]}({name}=...)." if takes else ""
        raise TypeError(f"{called}: got an unexpected keyword argument {name!r}.{one}")


def subsampling_step(
    vars: Sequence | None = None,
    *,
    model: pm.Model,
    fallback: bool = False,
    target_accept: float | None = None,
    **given: Any,
) -> ChainStep | None:
    """Return the step of `auto`, set up; None where that is PyMC's NUTS. Say which and why."""
    arguments.truth("fallback", fallback)
    given |= _chosen(target_accept=target_accept) | {"vars": vars, "model": model}
    with announced("auto"):
        start, few = thread_time(), None
        try:
            few = few_rows(model, row_terms(model, given.get("likelihood")), given.get("data"))
            if few and fallback:
                _say_nuts(few.said)
                return None
            first, unsaid = _quietly(HMCECS, given)
        except TallModelError as refusal:
            if not fallback or isinstance(refusal, JumpError):
                raise
            _say_nuts(f"HMCECS refuses the model. {refusal}")
            if written_with_jumps(model):
                _log.warning(DOUBT)
            return None
        if fallback and (beside := beside_all_rows(first)).as_good:
            _say_nuts(f"HMCECS would save nothing{beside.said}")
            return None
        choice = chosen(first, given, unsaid)
        ready(choice.step)
        kind = type(choice.step).__name__
        instead = _less(choice.step, start)
        if instead and few:
            instead += ": fallback=True takes it"
        _log.info(f"auto takes {kind}, {choice.why}{instead}")
        choice.unsaid.say()
        return choice.step


def chosen(first: HMCECS, given: Mapping[str, Any], unsaid: Unsaid) -> Chosen:
    """Choose between a step and the exact one, made of its set-up with the arguments `given`."""
    exact, ratio, why = None, float("nan"), unfit(first)
    if not why:
        try:
            shared = {**given, "reference": Shared(first, PATIENCE)}
            exact, said = _quietly(ScalableMH, shared)
        except TallModelError as refusal:
            [reason, *_] = str(refusal).split(" Use HMCECS")
            why = f"does not take this model: {reason.rstrip('.')}"
    if exact is not None:
        exact.full, ratio = first.full, time_of_exact_draws(first, exact)
        times = f"about {ratio:.2g} times as long as with HMCECS"
        if ratio <= ALIKE:
            integrals = exact.units is not None and exact.units.approximate
            but = " except for the error of integrals" if integrals else ""
            why = f"whose draws are exact{but}; an effective draw takes {times}"
            return Chosen(exact, why, said.after(unsaid, "HMCECS", "ScalableMH"), exact, ratio)
        why = f"would take about {ratio:.2g} times as long for an effective draw"
    return Chosen(first, f"since ScalableMH, which is exact, {why}", unsaid, exact, ratio)


def unfit(step: HMCECS) -> str:
    """Say why no exact step is set up, where that is known before."""
    if step.exact:
        return "is not needed: all rows are read, without approximation"
    if step.expansion.order != 2:
        return (
            f"needs expansions of order 2, and those of these rows are of order "
            f"{step.expansion.order}"
        )
    if crowded(len(step.active), step.n_rows):
        return f"accepts little with {CROWD}"
    return ""


def time_of_exact_draws(first: HMCECS, exact: ScalableMH) -> float:
    """Return how long an effective draw of the exact step takes, over one of the other."""
    times = [ADVISED[type(s).__name__].effective_time for s in (exact, first)]
    return times[0](exact) / times[1](first)  # type: ignore[misc]


def _chosen(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _quietly[Step: ChainStep](kind: type[Step], given: Mapping[str, Any]) -> tuple[Step, Unsaid]:
    with held_back() as unsaid, undecided():
        step = kind(**given)
    return step, unsaid


def _say_nuts(why: str) -> None:
    _log.info(f"auto takes PyMC's NUTS on all rows. {why}")


def _less(step: ChainStep, start: float) -> str:
    """Say what NUTS on all rows takes, if that is less than this set-up and its draws."""
    alike = len(step.active) == step.tall.size and step.temperature == 1.0
    if not alike or not _log.isEnabledFor(logging.INFO):
        return ""
    spent = thread_time() - start
    name, code = nuts(units=step.units is not None and step.units.integrates)
    with doing(f"comparing it with {name}"):
        per_draw, steps = seconds_per_draw(step, 0)
        ours, full = spent + 2 * DRAWS * per_draw, projection_of(step)
        took = f". {DRAWS:,} draws take about {amount(ours)} s in all"
        if step.units is not None and (written := as_written(step)) < ours:
            own = f"{' and '.join(step.units.names)} sampled too"
            return f"{took}, and with {nuts()[1]}, {own}, about {amount(written)} s"
        if COMPILE_SECONDS + 2 * DRAWS * FEW_GRADIENTS * full.per_gradient > 2 * ours:
            return ""
        found = full.projected(_TRIED_SECONDS, Gradients(steps, steps))
    if found.bound or found.seconds() >= ours:
        return ""
    return f"{took}, and with {code}, on all {each(step)}, about {amount(found.seconds())} s"
