"""Steps that are tried one after the other, while that costs little beside the run it is for."""

from dataclasses import replace
from functools import cached_property
from time import thread_time
from typing import Any

import numpy as np
import pymc as pm

from pymc_subsample.chain import nuts_cost
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.integrating import each
from pymc_subsample.chain.notices import silenced
from pymc_subsample.chain.nuts_instead import OutgrownError, as_written, nuts, pays
from pymc_subsample.chain.nuts_trial import CUT, Gradients, projection_of
from pymc_subsample.chain.sharing import Shared
from pymc_subsample.choice.auto import ALIKE, PATIENCE, time_of_exact_draws
from pymc_subsample.choice.few_rows import DOUBT, USUAL, written_with_jumps
from pymc_subsample.graph.concrete import UNDIFFERENTIABLE
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.model import JumpError, TallModelError
from pymc_subsample.results.advise.decision import (
    AllRows,
    code,
    compared,
    exact_may_take,
    on_all_rows,
    preferred,
)
from pymc_subsample.results.advise.pilot import Pilot, run_pilot
from pymc_subsample.results.advise.result import EXACT, Advice, Option
from pymc_subsample.samplers.hmc_ecs.step import HMCECS
from pymc_subsample.samplers.registry import ADVISED, step_of
from pymc_subsample.samplers.scalable.sampler import CROWD, crowded
from pymc_subsample.samplers.scalable.step import ScalableMH
from pymc_subsample.units.choosing import sums_over_all

# Tried unless others are named: the one whose set-up is the shorter before the other.
_FIRST = [name for name, advised in ADVISED.items() if advised.unasked]
# Of a run, what its pilot and the projection beside it may take, and seconds that nobody minds. A
# choice: who asks for advice gains more than a tenth where it is another step.
_SHARE, _LEAST = 0.1, 0.2
# Share of that for a pilot's draws. A choice: the rest is for set-ups and compiling.
_OF_DRAWS = 0.4
_DEAR = "its set-up would take too long beside the run"


class Trials:
    """Steps of one model as they are tried, given arguments of all, and what is known before."""

    def __init__(
        self, model: pm.Model, given: dict[str, Any], empty: Advice, seconds: float, seed: int
    ) -> None:
        self.model, self.given, self.empty = model, given, empty
        self.seconds, self.seed = seconds, seed
        self.found: list[Advice] = []
        self.others: dict[str, Option] = {}
        self._refusals: dict[str, Exception] = {}
        # The first step that was set up whole, its seconds, and all rows beside it.
        self._first: ChainStep | None = None
        self._set_up: dict[str, ChainStep] = {}
        self._setup = 0.0
        self._full: AllRows | None = None

    @cached_property
    def discrete(self) -> bool:
        """Whether a variable is discrete, and of those that no step sums over."""
        return not sums_over_all(self.model)

    def advice(self, chosen: list[str] | None) -> Advice:
        """Try some steps, or those that it takes, and choose."""
        for name in chosen or _FIRST:
            if chosen is None and self.found and (note := self._unworthy(name)):
                self.others[name] = Option(name, name in EXACT, "untried", note=note)
                continue
            try:
                self._try(name, asked=chosen is not None)
            except (TallModelError, OutgrownError) as refusal:
                self._refuse(name, refusal)
                if isinstance(refusal, JumpError) or isinstance(
                    refusal.__cause__, UNDIFFERENTIABLE
                ):
                    refuse_bad_start(self.model, refusal)
                    if chosen is None:
                        without = [x for x, advised in ADVISED.items() if not advised.by_gradients]
                        for other in ADVISED:
                            if other not in without:
                                self._refuse(other, refusal)
                        self._try(without[0], asked=True, control_variate_order=None)
                        break
        if not self.found:
            name, error = next(iter(self._refusals.items()))
            refuse_bad_start(self.model, error)
            reason = f"{name} refuses the model. {error}"
            instead = self._metropolis if self._jumps else None
            if instead is None and written_with_jumps(self.model):
                reason = f"{reason} {DOUBT}"
            return self._with_options(on_all_rows(self.empty, reason, instead))
        advice, said = preferred(self.found), []
        exact = self.others.get("ScalableMH")
        if exact is not None and advice.recommendation == "HMCECS":
            untried = f"ScalableMH, which is exact, was not tried: {exact.note}."
            refused, *_ = exact.note.split(" Use HMCECS")
            said += [refused if exact.status == "refused" else untried]
        said += self._beside_auto(advice)
        if len(self._modes) > 1:
            said += [
                "The posterior has at least two modes, and a chain of any sampler may see only one."
            ]
        return self._with_options(replace(advice, reason=" ".join([advice.reason, *said])))

    def _beside_auto(self, advice: Advice) -> list[str]:
        """Say which step `pms.auto` takes, if it is another one, and why."""
        first, exact = (self._set_up.get(name) for name in ("HMCECS", "ScalableMH"))
        if not isinstance(first, HMCECS):
            return []
        counted = isinstance(exact, ScalableMH) and time_of_exact_draws(first, exact) <= ALIKE
        taken = "ScalableMH" if counted else "HMCECS"
        if advice.recommendation == taken:
            return []
        if advice.recommendation != advice.tried:
            return [f"pms.auto() subsamples all the same, with {taken}."]
        return [f"pms.auto() takes {taken}: it counts what draws read, and runs no pilots."]

    @cached_property
    def _jumps(self) -> bool:
        """Whether `HMCECS` finds jumps of the log-likelihood, which NUTS does not see."""
        if any(isinstance(refusal, JumpError) for refusal in self._refusals.values()):
            return True
        if {"HMCECS", "ScalableMH"} & {*self._set_up, *self._refusals}:
            return False
        try:
            made(HMCECS, self.model, self.given)
        except TallModelError as refusal:
            return isinstance(refusal, JumpError)
        return False

    @property
    def _metropolis(self) -> tuple[str, str]:
        """What takes no gradients, and its code: PyMC's own choice would be NUTS for jumps."""
        if self._jumps:
            return "pm.Metropolis", "pm.sample(step=pm.Metropolis())"
        return "pm.sample", "pm.sample()"

    @property
    def _modes(self) -> list:
        search = None if self._first is None else self._first.search
        return [] if search is None else list(search.modes)

    def _refuse(self, name: str, refusal: Exception) -> None:
        self._refusals[name] = refusal
        self.others[name] = Option(name, name in EXACT, "refused", note=str(refusal))

    def _unworthy(self, name: str) -> str:
        """Say why a sampler is not worth its set-up, if it is not, by how the first step did."""
        [first] = self.found
        assert self._first is not None
        full, setup = first.full_seconds, self._setup
        if not pays(setup, full, first.full_bound):
            return "no step could save enough"
        usually, at_most = ADVISED[name].dearer
        best = min(full, first.seconds) if first.passed else np.inf
        if crowded(len(self._first.active), first.rows):
            return CROWD if at_most * setup > _SHARE * best else ""
        most = max(exact_may_take(best), best + PATIENCE)
        return _DEAR if usually * setup > most else ""

    def _try(self, name: str, asked: bool, **options: Any) -> None:
        """Make a step, run its pilot, and keep what it comes to."""
        first, given = self._first, self.given | options
        shared: dict[str, Any] = {}
        if isinstance(first, HMCECS) and name == "ScalableMH":
            shared = {"reference": Shared(first)}
        elif first is not None and len(self._modes) <= 1:
            shared = {"reference": first}
        step, setup = made(step_of(name), self.model, given, **shared)
        self._set_up[name] = step
        if first is None:
            self._first, self._setup = step, setup
        elif shared and step.prepared is not None:  # it need not search what the first one found
            setup += first.seconds_to_reference - step.seconds_to_reference
            step.prepared = replace(step.prepared, search=first.search)
            step.full = first.full
        advised = ADVISED[name]
        if not asked and (note := advised.unworthy(step)):
            self.others[name] = Option(name, advised.exact, "untried", note=note)
            return
        with nuts_cost.quiet():
            per_draw = nuts_cost.seconds_per_draw(step, self.seed)[0]
        spare = max(_SHARE * (setup + 2 * nuts_cost.DRAWS * per_draw), _LEAST)
        seconds = min(self.seconds, _OF_DRAWS * spare)
        pilot = run_pilot(self.model, step, seconds, self.seed, per_draw)
        if self._full is None:
            self._full = self._projected(step, pilot, setup, (1 - _OF_DRAWS) * spare)
        known: dict[str, Any] = {"tried": name, "rows": step.n_rows, "of": each(step)}
        known |= advised.foreseen(step)
        found = compared(replace(self.empty, **known), pilot, given, setup, self._full)
        ready = step if found.recommendation == found.tried else None
        self.found.append(replace(found, step=ready))

    def _projected(self, step: ChainStep, pilot: Pilot, setup: float, spare: float) -> AllRows:
        """NUTS on all rows, of which a bound is enough where the step pays by that already.

        Metropolis, with one pass per transition, in place of a step that has no gradients.
        """
        if step.prepared is None or self._jumps:
            each = step.transitions_per_draw * nuts_cost.seconds_per_evaluation(step)
            fixed = nuts_cost.COMPILE_SECONDS + nuts_cost.DRAWS * each
            rate = pilot.ess_per_draw / each
            return AllRows("pm.Metropolis", self._metropolis, rate, fixed)
        start = thread_time()
        full = projection_of(step)
        spare -= thread_time() - start
        wanted = self.empty.effective_draws
        seconds = setup + nuts_cost.DRAWS * pilot.seconds_per_draw
        seconds += wanted * pilot.seconds_per_draw / pilot.ess_per_draw
        steps = pilot.gradients_per_draw if pilot.gradients_per_draw > 0 else float(USUAL)
        own = Gradients(steps / pilot.ess_per_draw, steps)
        for more in (min(spare, self.seconds), 2 * self.seconds):
            found = full.projected(more, own)
            if found.bound != CUT or pays(seconds, found.seconds(wanted), CUT):
                break
        written = as_written(step)
        if step.units is not None and written < found.seconds(wanted):
            names = " and ".join(step.units.names)
            bound = f"with {names} sampled too, draws can be worth less than effective ones"
            each = (written - nuts_cost.COMPILE_SECONDS) / (2 * nuts_cost.DRAWS)
            fixed = nuts_cost.COMPILE_SECONDS + nuts_cost.DRAWS * each
            return AllRows(nuts()[0], nuts(), 1 / each, fixed, bound)
        code = nuts(units=step.units is not None and step.units.integrates)
        return AllRows(nuts()[0], code, found.ess_per_second, found.fixed, found.bound)

    def binary(self) -> Advice:
        """Try Gibbs sampling of binary variables, on a growing batch and on all rows."""
        gibbs = step_of("AusterityGibbs")
        try:
            step, setup = made(gibbs, self.model, self.given)
        except TallModelError as refusal:
            refuse_bad_start(self.model, refusal)
            self._refuse("AusterityGibbs", refusal)
            reason = f"AusterityGibbs refuses the model. {refusal}"
            return self._with_options(on_all_rows(self.empty, reason, ("pm.sample", "pm.sample()")))
        exact, _ = made(gibbs, self.model, self.given, epsilon=0.0)
        pilot, whole = (run_pilot(self.model, s, self.seconds, self.seed) for s in (step, exact))
        against = "AusterityGibbs(epsilon=0)"
        full = AllRows(
            against,
            (against, code("AusterityGibbs", {"epsilon": 0} | self.given)),
            whole.ess_per_draw / whole.seconds_per_draw,
            setup + nuts_cost.DRAWS * whole.seconds_per_draw,
        )
        empty = replace(self.empty, tried="AusterityGibbs", rows=step.n_rows)
        found = compared(empty, pilot, self.given, setup, full)
        self.found = [found]
        chosen = step if found.recommendation == found.tried else exact
        return self._with_options(replace(found, step=chosen))

    def _with_options(self, advice: Advice) -> Advice:
        """Add a line for every sampler."""
        known = {found.tried: _option(found) for found in self.found} | self.others
        for name in ADVISED if not self.discrete else ():
            known.setdefault(name, Option(name, name in EXACT, "untried"))
        first = self.found[0] if self.found else advice
        full = Option(
            first.against or advice.recommendation,
            True,
            "projected" if self.found else "",
            first.full_seconds,
            bool(first.full_bound),
            rows=first.rows or np.nan,
            ess_per_second=first.full_ess_per_second,
            note=first.full_bound and f"a lower bound, {first.full_bound}",
        )
        order = {name: k for k, name in enumerate(ADVISED)}
        listed = sorted(known.values(), key=lambda o: order.get(o.sampler, -1))
        return replace(advice, options=(*listed, full))


def _option(found: Advice) -> Option:
    return Option(
        found.tried,
        found.tried in EXACT,
        "passed" if found.passed else "failed",
        found.seconds,
        setup_seconds=found.setup_seconds,
        rows=found.subsample_size,
        ess_per_second=found.ess_per_second,
        note="" if found.passed else found.reason.split("checks: ")[-1],
    )


def made[Step: ChainStep](
    kind: type[Step], model: pm.Model, given: dict[str, Any], **more: Any
) -> tuple[Step, float]:
    """Make a step; return it and the seconds that took. It says in a run what it has to say."""
    start = thread_time()
    with silenced() as unsaid:
        step = kind(model=model, **given, **more)
    step.unsaid = unsaid
    return step, thread_time() - start


def refuse_bad_start(model: pm.Model, refusal: Exception) -> None:
    """Raise a refusal again where no sampler could run: the start is impossible."""
    point, names = model.initial_point(), [v.name for v in model.value_vars]
    try:
        logp = numpy_function(model.value_vars, [model.logp()])(*map(point.get, names))
    except Exception as error:
        raise refusal from error
    if not np.all(np.isfinite(logp)):
        raise refusal
