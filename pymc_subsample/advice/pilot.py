"""Short chains and timings from which `advise` projects what a sampler would need."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import thread_time

import numpy as np
import pymc as pm
from pymc.step_methods.hmc.quadpotential import QuadPotentialDiagAdapt

from pymc_subsample.control_variates import Expansion
from pymc_subsample.control_variates.curvature import covariance_factor
from pymc_subsample.control_variates.factors import deviations
from pymc_subsample.control_variates.reference import Reference, precision
from pymc_subsample.diagnostics import array_stats
from pymc_subsample.diagnostics.checks import FAILED, MODES, PREFIX, amount, recall
from pymc_subsample.steps.base import SubsampledStep
from pymc_subsample.steps.hmc_ecs import HMCECS

# Time that PyTensor's own log density and gradient of all rows take over that of the compiled
# expansion: 1.4 to 4.5 times for logistic and linear regressions, BLAS on one thread.
SLOWER = 2.5
_TIMED_ROWS = 200_000
_TIMED_SECONDS = 0.1

_PROBE = 12
_FEWEST, _MOST = 150, 1_500
_TUNE_SHARE = 0.4

_NUTS_TUNE, _NUTS_DRAWS, _NUTS_FEWEST = 200, 400, 100
# A draw so far out, in standard deviations, shows an expansion that is no density.
_ASTRAY = 12.0


@dataclass(frozen=True)
class Pilot:
    """What a short chain of a step showed.

    Attributes
    ----------
    ess_per_draw : float
        Smallest bulk effective sample size of a parameter, per draw after tuning.
    seconds_per_draw : float
        Processor time of a draw through `pm.sample`, its mean after tuning.
    overhead_seconds : float
        The same of `pm.sample` before the first draw, and of the checks after the last.
    subsample_size, data_share : float
        Rows read per estimate or decision, and the same as a share: means.
    gradients_per_draw : float
        Leapfrog steps per draw; nan for a step without any.
    failed : tuple of str
        The checks that the chain failed, with their numbers.
    """

    ess_per_draw: float
    seconds_per_draw: float
    overhead_seconds: float
    subsample_size: float
    data_share: float
    gradients_per_draw: float
    failed: tuple[str, ...]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep PyMC, its steps and the numerics of a pilot from talking to the user."""
    logger = logging.getLogger("pymc")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def run_pilot(model: pm.Model, step: SubsampledStep, seconds: float, seed: int) -> Pilot:
    """Run one tuned chain of a step through `pm.sample` and look at it.

    Parameters
    ----------
    model : pymc.Model
        The model that the step was made for.
    step : SubsampledStep
        Samples all free variables.
    seconds : float
        Time that the chain should take. It has from 150 to 1,500 draws, tuning included.
    seed : int
        Of the chain.
    """
    with quiet(), model:
        total = int(np.clip(seconds / _probe(model, step, seed), _FEWEST, _MOST))
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
        subsample_size=_mean(trace, "subsample_size", "batch_size"),
        data_share=_mean(trace, "data_share"),
        gradients_per_draw=_mean(trace, "n_steps"),
        failed=_failed(step, trace),
    )


def _probe(model: pm.Model, step: SubsampledStep, seed: int) -> float:
    """Seconds per draw of a few tuning draws, the first of them left out."""
    step.setup_chain(np.random.default_rng(seed), _PROBE, 0)
    point = model.initial_point()
    times = []
    for _ in range(_PROBE):
        start = thread_time()
        point, _ = step.step(point)
        times.append(thread_time() - start)
    return float(np.mean(times[_PROBE // 3 :]))


def smallest_ess(draws: np.ndarray) -> float:
    """Smallest bulk effective sample size of columns, shape (draws, k), that vary at all."""
    varying = [x for x in draws.T.astype(float) if np.ptp(x) > 0]
    if not varying:
        return 1.0
    return float(min(array_stats.ess(x[None, :], method="bulk") for x in varying))


def _mean(trace, *names: str) -> float:
    found = [name for name in names if name in trace.stat_names]
    return float(np.mean(trace.get_sampler_stats(found[0]))) if found else np.nan


def _failed(step: SubsampledStep, trace) -> tuple[str, ...]:
    names = [FAILED, *(PREFIX + rule.name for rule in step._rules)]
    last = {name: np.ravel(trace.get_sampler_stats(name))[-1] for name in names}
    return tuple(
        f"{rule.title} {amount(value)} (should be at {'least' if rule.at_least else 'most'} "
        f"{rule.bound:g})"
        for rule, value, passed in recall(step._rules, last) or ()
        if not passed and rule is not MODES  # which the other sampler sees no more of
    )


def seconds_per_pass(expansion: Expansion, evaluate: Callable[[np.ndarray], None]) -> float:
    """Seconds that a function of packed rows, shape (width, m), takes for all rows.

    Up to 200,000 of them are packed once and timed, several times over.
    """
    chunks: list[np.ndarray] = []
    for rows in expansion.chunks():
        chunks.append(rows)
        if sum(c.shape[1] for c in chunks) >= _TIMED_ROWS:
            break
    evaluate(chunks[0])
    passes, start = 0, thread_time()
    while (spent := thread_time() - start) < _TIMED_SECONDS or not passes:
        for rows in chunks:
            evaluate(rows)
        passes += 1
    return spent / passes * expansion.n_rows / sum(c.shape[1] for c in chunks)


def seconds_per_full_gradient(expansion: Expansion, reference: Reference) -> float:
    """Seconds of one log density and gradient of all rows, as PyTensor compiles it: an estimate.

    The expansion's own function of value and gradient is timed and multiplied by `SLOWER`.
    """
    center = reference.center
    gradient = np.empty(expansion.phi_size)

    def evaluate(rows):
        expansion.difference(center, rows, center, 1.0, 0.0, np.empty(rows.shape[1]), gradient)

    return SLOWER * seconds_per_pass(expansion, evaluate)


class _Expanded:
    """Log posterior whose rows are replaced by their expansion, as `pm.NUTS` takes a density."""

    _raveled_inputs = True
    _extra_vars_shared: dict = {}  # noqa: RUF012  as PyMC reads it
    dtype = "float64"

    def __init__(self, expansion: Expansion, reference: Reference):
        self._expansion, self._reference = expansion, reference

    def _pytensor_function(self, theta: np.ndarray):
        at = self._reference
        phi, logprior = self._expansion.parameters(theta)
        shift = phi - at.center
        bend = at.curvature @ shift
        value = logprior + at.level + at.slope @ shift + 0.5 * shift @ bend
        return np.float64(value), self._expansion.pull_back(theta, at.slope + bend)


def nuts_gradients(
    model: pm.Model, step: HMCECS, seconds: float, seed: int
) -> tuple[float, float] | None:
    """Gradients that NUTS needs: per effective draw, and per draw of its tuning phase.

    PyMC's NUTS, with the diagonal mass matrix that it adapts, samples the exact prior and the
    rows' second-order expansion, which reads no rows.

    Returns
    -------
    tuple of float, or None
        None where the expansion is no density away from the reference, or `seconds` were over.
    """
    tall, expansion = step._tall, step._expansion.as_written()
    reference, scale = step._prepared.reference, step._prepared.factor
    if len(reference.curvature) != len(reference.center):
        return None
    if step.centring:  # NUTS moves in the model's own variables
        reference = replace(reference, theta=step._expansion.values(reference.theta))
        scale = covariance_factor(precision(expansion, reference, step._continuous()))
    variance = deviations(scale, len(reference.theta[step._continuous()])) ** 2
    potential = QuadPotentialDiagAdapt(
        len(variance), reference.theta.copy(), variance.copy(), 10,
        rng=np.random.default_rng(seed),
    )  # fmt: skip
    point = {**model.initial_point(), **tall.unravel(reference.theta)}
    with quiet(), np.errstate(all="ignore"):
        nuts = pm.NUTS(
            model=model,
            logp_dlogp_func=_Expanded(expansion, reference),
            potential=potential,
        )
        nuts.setup_chain(np.random.default_rng(seed), _NUTS_TUNE, _NUTS_DRAWS)
        tuning, _, _ = _trees(nuts, point, tall, _NUTS_TUNE, seconds)
        if len(tuning) < _NUTS_TUNE:
            return None
        nuts.stop_tuning()
        sizes, draws, diverging = _trees(nuts, tuning[-1][1], tall, _NUTS_DRAWS, seconds)
    thetas = np.array(draws)
    if len(thetas) < _NUTS_FEWEST or diverging > 0.05 * len(thetas):
        return None
    z = (thetas - reference.theta) / np.sqrt(variance)
    if not np.all(np.abs(z) < _ASTRAY):
        return None
    effective = smallest_ess(thetas)
    return sum(s for s, _ in sizes) / effective, float(np.mean([s for s, _ in tuning]))


def _trees(nuts, point, tall, most: int, seconds: float):
    """Run NUTS for some draws, or some time; sizes of its trees and points, draws, divergences."""
    start = thread_time()
    sizes, draws, diverging = [], [], 0
    for _ in range(most):
        point, [stats] = nuts.step(point)
        sizes.append((stats["tree_size"], point))
        draws.append(tall.ravel(point))
        diverging += bool(stats["diverging"])
        if thread_time() - start > seconds:
            break
    return sizes, draws, diverging
