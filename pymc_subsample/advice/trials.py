"""Steps that are tried one after the other, while that costs little beside the run it is for."""

from collections.abc import Iterable
from dataclasses import replace
from time import thread_time
from typing import Any

import numpy as np
import pymc as pm

from pymc_subsample.advice.decision import compared, on_all_rows, preferred
from pymc_subsample.advice.pilot import Pilot, run_pilot
from pymc_subsample.advice.result import EXACT, NO_PILOT, Advice, Option
from pymc_subsample.all_rows import (
    COMPILE_SECONDS,
    DRAWS,
    SAVED_SECONDS,
    SLOWER,
    Gradients,
    nuts,
    nuts_gradients,
    pays,
    quiet,
    seconds_per_draw,
    seconds_per_full_gradient,
    seconds_per_pass,
)
from pymc_subsample.data import Rows
from pymc_subsample.likelihood import TallModelError
from pymc_subsample.steps.austerity import AusterityMH
from pymc_subsample.steps.barker import MinibatchBarkerMH
from pymc_subsample.steps.base import SubsampledStep
from pymc_subsample.steps.confidence import ConfidenceMH
from pymc_subsample.steps.firefly import FireflyMC
from pymc_subsample.steps.gibbs import AusterityGibbs
from pymc_subsample.steps.hmc_ecs import HMCECS
from pymc_subsample.steps.presets import SGHMC, SGLD
from pymc_subsample.steps.remarks import FEW_ACCEPTED
from pymc_subsample.steps.scalable import ScalableMH
from pymc_subsample.symbolic.graph import UNDIFFERENTIABLE, numpy_function, root_array

_KINDS: tuple[type[SubsampledStep], ...] = (
    ScalableMH, HMCECS, FireflyMC, SGHMC, MinibatchBarkerMH, AusterityMH, ConfidenceMH, SGLD,
)  # fmt: skip
AVAILABLE = {kind.__name__: kind for kind in _KINDS}
# Tried first, and what is tried while none of those pays.
_FIRST, _FURTHER = ("ScalableMH", "HMCECS"), ("FireflyMC", "SGHMC", "MinibatchBarkerMH")
# Of a run, what its pilot and the projection beside it may take, and seconds that nobody minds.
_SHARE, _LEAST = 0.1, 0.2
# Share of that for a pilot's draws.
_OF_DRAWS = 0.4
# Seconds per row and gradient, up to ten parameters, that few models exceed; gradients per draw of
# NUTS that are many, and usual.
_PER_ROW, _MANY, _USUAL = 5e-8, 100, 15
_TEN = 10
_FEW = "accept only about {:.0%} of its proposals: too many parameters for so few rows"
_UNDECIDED = f"{NO_PILOT}trying them would take too long beside the run"
_ENOUGH = f"{NO_PILOT}another step pays"


class Trials:
    """Steps of one model, as they are tried.

    Parameters
    ----------
    model : pymc.Model
    given : dict
        Arguments of all steps.
    empty : Advice
        What is known beforehand.
    seconds : float
        For a pilot's draws, at most.
    seed : int
    """

    def __init__(
        self, model: pm.Model, given: dict[str, Any], empty: Advice, seconds: float, seed: int
    ) -> None:
        self.model, self.given, self.empty = model, given, empty
        self.seconds, self.seed = seconds, seed
        self.found: list[Advice] = []
        self.refused: list[Option] = []
        self.said: list[str] = []
        self._refusals: dict[str, TallModelError] = {}
        # The first step that was set up whole, its seconds, and what they took.
        self._first: SubsampledStep | None = None
        self._setup = 0.0
        self._full: dict[str, Any] | None = None

    def advice(self, chosen: list[str] | None) -> Advice:
        """Try some steps, or those that it takes, and choose."""
        smooth = True
        for name in chosen or (*_FIRST, *_FURTHER):
            if chosen is None and self.found and not self._worth(name):
                continue
            try:
                self._try(AVAILABLE[name], asked=chosen is not None)
            except TallModelError as refusal:
                if smooth and isinstance(refusal.__cause__, UNDIFFERENTIABLE):
                    refuse_bad_start(self.model, refusal)
                    smooth = False
                    if chosen is None:
                        return self._without_gradient(refusal)
                self._refusals[name] = refusal
                self.refused.append(Option(name, name in EXACT, "refused", note=str(refusal)))
            if chosen is None and not self.found and name == _FIRST[-1]:
                break
        if not self.found:
            return self._none(chosen)
        advice = preferred(self.found)
        said = [advice.reason, *self.said]
        if advice.tried != "ScalableMH" and "ScalableMH" in self._refusals:
            said += [str(self._refusals["ScalableMH"]).removesuffix(" Use HMCECS.")]
        search = None if self._first is None else self._first._search
        if search is not None and len(search.modes) > 1:
            said += [
                "The posterior has at least two modes, and a chain of any sampler may see only one."
            ]
        return self._with_options(replace(advice, reason=" ".join(filter(None, said))))

    def _none(self, chosen: list[str] | None) -> Advice:
        name, refusal = list(self._refusals.items())[-1] if self._refusals else ("", None)
        if refusal is None:
            return self._with_options(on_all_rows(self.empty, " ".join(self.said)))
        refuse_bad_start(self.model, refusal)
        advice = on_all_rows(self.empty, " ".join([f"{name} refuses the model. {refusal}"]))
        return self._with_options(advice)

    def _worth(self, name: str) -> bool:
        """Whether to try another step: where it costs little beside the best run so far."""
        trying = self._setup + min(self.seconds, _SHARE * self._best)
        passed = [a for a in self.found if a.passed]
        if name in _FURTHER and any(a.recommendation == a.tried for a in passed):
            return False
        needed = not passed and pays(self._setup, self.found[0].full_seconds)
        if name in _FIRST and needed:
            return True
        return trying <= _SHARE * self._best and pays(self._setup, self.found[0].full_seconds)

    @property
    def _best(self) -> float:
        """Seconds of the best run so far."""
        return min([self.found[0].full_seconds, *(a.seconds for a in self.found if a.passed)])

    def _try(self, kind: type[SubsampledStep], asked: bool) -> None:
        """Make a step, run its pilot, and keep what it comes to."""
        name = kind.__name__
        shared = {} if self._first is None else {"reference": self._first}
        step, setup = made(kind, self.model, self.given, **shared)
        if self._first is None:
            self._first, self._setup = step, setup
        advice = replace(self.empty, tried=name, against=nuts()[0], rows=step.n_rows)
        if isinstance(step, HMCECS):
            moments, m = step.moments, step.subsample_size
            advice = replace(
                advice,
                loglik_variance=float(np.max(moments.variance(m))),
                perturbation=float(np.max(moments.perturbation(m))),
            )
        if isinstance(step, ScalableMH) and not asked:
            share = step.predicted_acceptance
            if share < FEW_ACCEPTED:
                self.said.append(f"ScalableMH, which is exact, would {_FEW.format(share)}.")
                self.refused.append(
                    Option(name, True, "untried", note=f"would {_FEW.format(share)}")
                )
                return
        setup = max(setup, self._setup)
        with quiet():
            per_draw = seconds_per_draw(self.model, step, self.seed)[0]
        spare = max(_SHARE * (setup + 2 * DRAWS * per_draw), _LEAST)
        pilot = run_pilot(
            self.model, step, min(self.seconds, _OF_DRAWS * spare), self.seed, per_draw
        )
        if self._full is None:
            self._full = self._projected(step, pilot, setup, (1 - _OF_DRAWS) * spare)
        found = compared(advice, pilot, self.given, setup, **self._full, instead=nuts())
        ready = found.recommendation == name and not shared
        self.found.append(replace(found, step=step) if ready else found)

    def _projected(
        self, step: SubsampledStep, pilot: Pilot, setup: float, spare: float
    ) -> dict[str, Any]:
        """Effective draws per second of NUTS on all rows, and its seconds before them.

        A bound is enough where the step pays by that already.
        """
        assert step._prepared is not None
        start = thread_time()
        each = seconds_per_full_gradient(
            step._expansion, step._prepared.reference, min(0.1, 0.2 * spare)
        )
        spare -= thread_time() - start
        wanted = self.empty.effective_draws
        seconds = setup + DRAWS * pilot.seconds_per_draw
        seconds += wanted * pilot.seconds_per_draw / pilot.ess_per_draw
        for trial in (min(spare, self.seconds), 2 * self.seconds):
            gradients = nuts_gradients(self.model, step, trial, self.seed)
            if gradients is None:
                own = pilot.gradients_per_draw if pilot.gradients_per_draw > 0 else float(_USUAL)
                gradients = Gradients(own / pilot.ess_per_draw, own, True)
            least = each / SLOWER if gradients.at_least else each  # as fast as our own
            found = {
                "full_ess_per_second": 1 / (gradients.per_effective_draw * least),
                "full_fixed": COMPILE_SECONDS + DRAWS * gradients.per_tuning_draw * least,
                "full_at_least": gradients.at_least,
            }
            full = found["full_fixed"] + wanted / found["full_ess_per_second"]
            if not gradients.at_least or pays(seconds, full):
                break
        return found

    def _without_gradient(self, refusal: TallModelError) -> Advice:
        step, setup = made(MinibatchBarkerMH, self.model, self.given, control_variate_order=None)
        pilot = run_pilot(self.model, step, self.seconds, self.seed)
        expansion = step._expansion
        phi, _ = expansion.parameters(step._tall.ravel(step._tall.initial_point))

        def evaluate(rows: np.ndarray) -> None:
            expansion.change(phi, phi, phi, rows, np.empty(rows.shape[1]))

        # `change` evaluates every row twice, Metropolis once.
        transition = 0.5 * seconds_per_pass(expansion, evaluate)
        full_ess = pilot.ess_per_draw / (step.transitions_per_draw * transition)
        name = "MinibatchBarkerMH"
        found = compared(
            replace(self.empty, tried=name, against="pm.Metropolis", rows=step.n_rows),
            pilot,
            self.given,
            setup,
            full_ess_per_second=full_ess,
            full_fixed=COMPILE_SECONDS + DRAWS * step.transitions_per_draw * transition,
            instead=("pm.sample", "pm.sample()"),
        )
        self.found = [replace(found, step=step) if found.recommendation == name else found]
        self.refused += [
            Option(kind, kind in EXACT, "refused", note=str(refusal))
            for kind in (*_FIRST, "FireflyMC", "SGHMC", "SGLD")
        ]
        return self._with_options(self.found[0])

    def binary(self, code: str) -> Advice:
        """Try Gibbs sampling of binary variables, on a growing batch and on all rows."""
        try:
            step, setup = made(AusterityGibbs, self.model, self.given)
        except TallModelError as refusal:
            refuse_bad_start(self.model, refusal)
            reason = f"AusterityGibbs refuses the model. {refusal}"
            self.refused = [Option("AusterityGibbs", False, "refused", note=str(refusal))]
            found = on_all_rows(self.empty, reason, ("pm.sample", "pm.sample()"))
            return self._with_options(found)
        pilot = run_pilot(self.model, step, self.seconds, self.seed)
        exact, _ = made(AusterityGibbs, self.model, self.given, epsilon=0.0)
        full = run_pilot(self.model, exact, self.seconds, self.seed)
        name = "AusterityGibbs"
        against = f"{name}(epsilon=0)"
        found = compared(
            replace(self.empty, tried=name, against=against, rows=step.n_rows),
            pilot,
            self.given,
            setup,
            full_ess_per_second=full.ess_per_draw / full.seconds_per_draw,
            full_fixed=setup + DRAWS * full.seconds_per_draw,
            instead=(against, code),
        )
        ready = step if found.recommendation == name else exact
        self.found = [replace(found, step=ready)]
        return self._with_options(found if found.step else self.found[0])

    def _with_options(self, advice: Advice) -> Advice:
        """Add a line for every sampler."""
        tried = [_option(found) for found in self.found]
        known = {option.sampler for option in (*tried, *self.refused)}
        enough = any(found.recommendation == found.tried for found in self.found)
        others = (
            []
            if self.model.discrete_value_vars
            else [
                Option(name, name in EXACT, "untried", note=_ENOUGH if enough else _UNDECIDED)
                for name in AVAILABLE
                if name not in known
            ]
        )
        first = self.found[0] if self.found else advice
        full = Option(
            first.against or advice.recommendation,
            True,
            "projected" if self.found else "",
            first.full_seconds,
            first.full_at_least,
            rows=first.rows or np.nan,
            ess_per_second=first.full_ess_per_second,
        )
        order = {name: k for k, name in enumerate(AVAILABLE)}
        listed = sorted((*tried, *self.refused, *others), key=lambda o: order.get(o.sampler, -1))
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


def made[Step: SubsampledStep](
    kind: type[Step], model: pm.Model, given: dict[str, Any], **more: Any
) -> tuple[Step, float]:
    """Make a step; return it and the seconds that took."""
    start = thread_time()
    with quiet():
        step = kind(model=model, **given, **more)
    return step, thread_time() - start


def few_rows(
    model: pm.Model, terms: Iterable[str], data: Rows | None, parameters: int
) -> tuple[int, float] | None:
    """Return the number of rows, and usual seconds of NUTS, if these are few for any sampler.

    Not even many gradients of all rows per draw would take 10 s.
    """
    sizes = [] if data is None else [len(data)]
    for name in terms if data is None else ():
        variable = model[name]
        observed = variable in model.observed_RVs
        array = root_array(model.rvs_to_values[variable]) if observed else None
        if array is None or not np.ndim(array):
            return None
        sizes.append(len(array))
    gradient = max(sizes) * _PER_ROW * max(1.0, parameters / _TEN)
    if 2 * DRAWS * _MANY * gradient > SAVED_SECONDS:
        return None
    return max(sizes), COMPILE_SECONDS + 2 * DRAWS * _USUAL * gradient


def refuse_bad_start(model: pm.Model, refusal: TallModelError) -> None:
    """Raise a refusal again where no sampler could run: the start is impossible."""
    point, names = model.initial_point(), [v.name for v in model.value_vars]
    try:
        logp = numpy_function(model.value_vars, [model.logp()])(*map(point.get, names))
    except Exception as error:
        raise refusal from error
    if not np.all(np.isfinite(logp)):
        raise refusal
