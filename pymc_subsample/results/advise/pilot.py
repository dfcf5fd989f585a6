"""Short trials from which `advise` projects what a sampler would need."""

from dataclasses import dataclass
from itertools import chain
from time import thread_time

import numpy as np
import pymc as pm
from pymc.backends.base import MultiTrace

from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.nuts_cost import quiet, seconds_per_draw
from pymc_subsample.chain.nuts_trial import smallest_ess
from pymc_subsample.diagnostics.chain_ends import of_trace
from pymc_subsample.diagnostics.checks import MODES, Finding
from pymc_subsample.diagnostics.integrals import UNIT_RULES

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
        [
            np.reshape(trace.get_values(v.name), (total - tune, -1))
            for v in step.sampled_model.free_RVs  # others are drawn given these
        ]
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
    rules = {rule.name: rule for rule in (*step.sampler.rules, *UNIT_RULES)}
    failed = [
        (rules[name], end.values[name])
        for end in chain(*of_trace(trace))
        for name in end.failed
        if name != MODES.name  # which the other sampler sees no more of
    ]
    return tuple(Finding(rule, value, passed=False).in_words for rule, value in failed)
