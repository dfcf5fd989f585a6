"""Short trials from which `advise` projects what a sampler, or NUTS on all rows, would need."""

from dataclasses import dataclass
from time import thread_time
from typing import NamedTuple

import numpy as np
import pymc as pm
from pymc.backends.base import MultiTrace

from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.nuts_cost import NutsOnExpansion, quiet, seconds_per_draw
from pymc_subsample.diagnostics import array_stats
from pymc_subsample.diagnostics.checks import FAILED, MODES, PREFIX, amount, recall

# Draws of a pilot, those of tuning among them, within which its time decides. A choice: 90 draws
# after tuning show an effective size to some 30%; more of them than 900 say nothing that counts.
_FEWEST, _MOST = 150, 1_500
_TUNE_SHARE = 0.4  # The rest says what draws are worth.


@dataclass(frozen=True)
class Pilot:
    """What a short chain of a step showed; seconds are of the processor."""

    ess_per_draw: float  # Smallest bulk one of a parameter, per draw after tuning.
    seconds_per_draw: float  # Through `pm.sample`, the mean after tuning.
    overhead_seconds: float  # Of `pm.sample` before the first draw, and of the checks at the end.
    # Rows read per estimate or decision, and the same as a share: means.
    subsample_size: float
    data_share: float
    gradients_per_draw: float  # Leapfrog steps; nan for a step without any.
    failed: tuple[str, ...]  # The checks that the chain failed, with their numbers.


def run_pilot(
    model: pm.Model,
    step: ChainStep,
    seconds: float,
    seed: int,
    per_draw: float | None = None,
) -> Pilot:
    """Run one tuned chain of a step, which samples all free variables, and look at it.

    It takes about so many seconds, at `per_draw` a draw if that is known, and has from 150 to 1,500
    draws, tuning included.
    """
    with quiet(), model:
        per_draw = per_draw or seconds_per_draw(step, seed)[0]
        total = int(np.clip(seconds / per_draw, _FEWEST, _MOST))
        tune = int(_TUNE_SHARE * total)
        times: list[float] = []
        start = thread_time()
        trace = pm.sample(
            draws=total - tune,
            tune=tune,
            step=step,
            chains=1,
            cores=1,
            progressbar=False,
            random_seed=seed,
            callback=lambda trace, draw: times.append(thread_time()),
            compute_convergence_checks=False,
            return_inferencedata=False,
            # A deterministic of all rows would fill the memory.
            var_names=[v.name for v in model.free_RVs],
            discard_tuned_samples=True,
        )
    spent = np.diff(times)[tune:]
    mean = float(np.mean(spent[:-1]))
    draws = np.column_stack(
        [np.reshape(trace.get_values(v.name), (total - tune, -1)) for v in model.free_RVs]
    )
    return Pilot(
        ess_per_draw=smallest_ess(draws) / len(draws),
        seconds_per_draw=mean,
        overhead_seconds=float(max(times[0] - start + spent[-1] - 2 * mean, 0.0)),
        subsample_size=_mean(trace, "subsample_size", "batch_size", "rows_read"),
        data_share=_mean(trace, "data_share"),
        gradients_per_draw=_mean(trace, "n_steps"),
        failed=_failed(step, trace),
    )


def _mean(trace: MultiTrace, *names: str) -> float:
    found = [name for name in names if name in trace.stat_names]
    return float(np.mean(trace.get_sampler_stats(found[0]))) if found else np.nan


def _failed(step: ChainStep, trace: MultiTrace) -> tuple[str, ...]:
    names = [FAILED, *(PREFIX + rule.name for rule in step.rules)]
    last = {name: np.ravel(trace.get_sampler_stats(name))[-1] for name in names}
    return tuple(
        f"{rule.title} {amount(value)} ("
        + (
            f"{rule.besides[0].lower()}{rule.besides[1:].rstrip('.')})"
            if rule.holds(value)
            else f"should be at {'least' if rule.at_least else 'most'} {rule.bound:g})"
        )
        for rule, value, passed in recall(step.rules, last) or ()
        if not passed and rule is not MODES  # which the other sampler sees no more of
    )


def smallest_ess(draws: np.ndarray) -> float:
    """Smallest bulk effective sample size of columns, shape (draws, k), that vary at all.

    At least 1, which stands for those of too few draws, or such that are not finite.
    """
    varying = [x for x in draws.T.astype(float) if np.ptp(x) != 0]
    found = [array_stats.ess(x[None, :], method="bulk") for x in varying]
    return max(float(np.min(found)), 1.0) if found and np.all(np.isfinite(found)) else 1.0


# Draws of the trial run, if time allows, and fewest by which it is judged. A choice: step sizes
# settle within some hundred draws.
_TUNE, _DRAWS, _FEWEST_TUNE, _FEWEST_DRAWS = 200, 400, 50, 100
# Ratio of posterior standard deviations, in unconstrained space, from which on NUTS, which starts
# its tuning with one step size for all, spends more of it on finding them than a trial that knows
# them beforehand. A choice: with twice as much fewer projections are called bounds.
_UNITS = 100.0
# Shares of draws whose divergences make its effective draws a bound, and of tuning draws from
# which on the expansion is no density. A choice: below it effective draws are hardly fewer than
# they look; half is a majority.
_FEW_DIVERGENCES, _OFTEN = 0.05, 0.5
# Why a projection is a bound.
CUT, _DIVERGED = "its trial was cut short", "many draws of its trial diverged"
_APART = "it has to find scales that are far apart, which its trial knew"


class Gradients(NamedTuple):
    """Gradients of all rows that NUTS needs."""

    # Their numbers.
    per_effective_draw: float
    per_tuning_draw: float
    # Why these are lower bounds, if they are.
    bound: str = ""


class NutsTrial:
    """NUTS on the expansion of a model's rows, which tells how many gradients it needs.

    The step samples all variables, with a reference point.
    """

    def __init__(self, step: ChainStep, seed: int) -> None:
        diagonal = step.expansion.curvature == "diagonal"
        self._chain = None if diagonal else NutsOnExpansion(step, _TUNE, _DRAWS, seed)
        self._tuned, self._diverging = False, 0
        self._tuning, self._sizes, self._draws = (list[np.ndarray]() for _ in range(3))

    def gradients(self, seconds: float) -> Gradients | None:
        """Go on for some time, while it was too short; return gradients that NUTS needs.

        Until there are 100 draws, an effective one takes the gradients of a draw, at least. None
        where the expansion is no density away from the reference.
        """
        chain = self._chain
        if chain is None:
            return None
        if not self._tuned:
            done = sum(map(len, self._tuning))
            sizes, draws, diverging = chain.run(_TUNE - done, _TUNE_SHARE * seconds)
            if chain.astray(draws) or diverging > _OFTEN * len(draws):
                self._chain = None
                return None
            self._tuning.append(sizes)
        tuning = np.concatenate(self._tuning)
        # without the first steps of dual averaging
        later = float(np.mean(tuning[len(tuning) // 3 :]))
        if len(tuning) < _FEWEST_TUNE:
            return Gradients(later, later, CUT)
        if not self._tuned:
            chain.nuts.stop_tuning()
            self._tuned = True
        sizes, draws, diverging = chain.run(_DRAWS, (1 - _TUNE_SHARE) * seconds)
        if chain.astray(draws):
            self._chain = None
            return None
        self._sizes.append(sizes)
        self._draws.append(draws)
        self._diverging += diverging
        sizes, draws = np.concatenate(self._sizes), np.concatenate(self._draws)
        if len(draws) < _FEWEST_DRAWS:
            return Gradients(float(np.mean(sizes)), later, CUT)
        unfit = _DIVERGED if self._diverging > _FEW_DIVERGENCES * len(draws) else ""
        apart = _APART if chain.sd.max() > _UNITS * chain.sd.min() else ""
        return Gradients(float(sizes.sum() / smallest_ess(draws)), later, unfit or apart)
