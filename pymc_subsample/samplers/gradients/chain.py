"""What a chain of stochastic-gradient steps does."""

from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np
from pymc.blocking import PointType
from pymc.step_methods.state import dataclass_state

from pymc_subsample.chain import arguments, points
from pymc_subsample.chain.guards import row_numbers
from pymc_subsample.chain.method import Method, ReferredState, divergences
from pymc_subsample.compiled.functions import address_of
from pymc_subsample.diagnostics.checks import Finding
from pymc_subsample.diagnostics.record import StepRecord
from pymc_subsample.expansion.factors import stretched
from pymc_subsample.expansion.reference import summed
from pymc_subsample.samplers.gradients import gradient_estimates as gradients
from pymc_subsample.samplers.gradients import kernel as langevin
from pymc_subsample.samplers.gradients.checks import Dynamics, check_steps
from pymc_subsample.samplers.gradients.clusters import clustered_order
from pymc_subsample.samplers.gradients.stationary import rescaled
from pymc_subsample.samplers.gradients.step_size import batches, own_metric

if TYPE_CHECKING:
    from pymc_subsample.samplers.gradients.step import SGMCMC

# A step diverges whose drift exceeds so many standard deviations of its noise, or its kick so
# many of the momenta: it leads 4 to 5 posterior standard deviations away at automatic step sizes.
_MOST_DRIFT = 10.0


@dataclass_state
class SGMCMCState(ReferredState):
    """Everything the next draw depends on. The rows themselves are taken anew from the data."""

    tuned: bool
    near_reference: bool
    row_rng: np.random.Generator
    done: int
    centred: int
    momentum: np.ndarray
    integrator_state: np.ndarray
    origin: np.ndarray
    automatic_step_size: float
    hold: int
    metric_factor: np.ndarray
    sampler_parts: str = field(metadata={"frozen": True})
    control_variate_order: int | None = field(metadata={"frozen": True})
    metric: str = field(metadata={"frozen": True})
    steps_per_batch: int | None = field(metadata={"frozen": True})
    batch_size: int = field(metadata={"frozen": True})
    friction: float = field(metadata={"frozen": True})


def _connected(step: "SGMCMC") -> None:
    # Rows in the order of the data, or of their strata.
    step.permutation = row_numbers(step, step.n_rows, step.likelihood)
    if step.parts.sampling == gradients.STRATIFIED:
        n = arguments.count("n_clusters", step.parts.n_clusters, step.n_rows)
        step.permutation = clustered_order(step.expansion, n, np.random.default_rng(0))


def _begin(step: "SGMCMC", tune: int, draws: int) -> None:
    size = len(step.active)
    step.tuned = tune > 0
    step.near_reference = False
    step.automatic_step_size, step.hold = step.steps.size, step.steps.hold
    whitened = step.metric == "curvature" and step.prepared is not None
    step.metric_factor = step.home.factor if whitened else np.ones((1, size))
    step.done = step.passes_made = 0
    step.refresh_period = step.parts.refresh_period or max(1, step.n_rows // step.batch_size)
    step.centred = -step.refresh_period if step.parts.gradient == "svrg" else 0
    step.momentum = np.sqrt(step.temperature) * step.rng.standard_normal(size)
    step.integrator_state = np.zeros(size)
    step.parts.dynamics.start(step.friction, step.integrator_state)
    step.origin = np.zeros(0)
    step.record = StepRecord(draws=draws)


def _entered(step: "SGMCMC", point: PointType) -> np.ndarray:
    theta = points.read(step, point)
    if step.start_at_reference:
        step.near_reference = points.start(step, theta, point, step.home.factor)
    if not len(step.origin):
        step.origin = theta.copy()
        if step.near_reference and step.prepared is not None:
            step.origin[step.active] = step.home.reference.theta[step.active]
    return theta


def _steady(step: "SGMCMC") -> bool:
    return step.parts.gradient != "svrg"


def _transitions(
    step: "SGMCMC", theta: np.ndarray, size: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    reports, left = [], step.transitions_per_draw
    while left:
        count = left if _steady(step) else min(left, _until_centring(step, theta))
        steps = step.done + np.arange(size * count)
        sizes = step.schedule.sizes(steps, step.automatic_step_size).reshape(size, count)
        thetas, sizes, noise, infos = _integrate(step, theta, sizes)
        reports.append((count, sizes, noise, infos))
        theta, left = thetas[-1], left - count
    return thetas, _reported(step, reports)


def _reported(
    step: "SGMCMC", reports: list[tuple[int, np.ndarray, np.ndarray, dict]]
) -> dict[str, Any]:
    """Put together what pieces of draws report: steps, their total size, noise and counts."""
    k, n = step.transitions_per_draw, len(reports[0][1])
    noise, evaluations = np.zeros((n, len(step.active))), np.zeros(n, dtype=int)
    divergences, total = np.zeros(n), np.zeros(n)
    for count, length, piece, infos in reports:
        noise += count / k * piece
        divergences += infos["divergences"]
        total += length
        read = infos["batches"] if step.control_variate_order else 0
        gradients = 2 * step.batch_size * (infos["gradients"] + read)
        evaluations += np.rint(gradients).astype(int)
    momenta = infos["kinetic_temperature"]
    passes, step.passes_made = step.passes_made, 0
    return {
        "noise": noise,
        "diverging": divergences > 0,
        "kinetic_temperature": momenta if step.parts.dynamics.has_momenta else momenta * np.nan,
        "n_evaluations": evaluations + 2 * passes * step.n_rows,
        "step_size": total / k,
    }


def _statistics(step: "SGMCMC", infos: dict[str, np.ndarray]) -> dict[str, Any]:
    return {
        "batch_size": float(step.batch_size),
        "data_share": step.batch_size / step.n_rows,
        "divergences": divergences(step, infos["diverging"]),
        "gradient_variance": infos["noise"].sum(axis=1),
        "temperature": step.temperature,
    }


def _watch(step: "SGMCMC", thetas: np.ndarray, infos: dict[str, np.ndarray]) -> None:
    step.record.add(thetas, infos)


def _until_centring(step: "SGMCMC", theta: np.ndarray) -> int:
    """Centre the control variates if it is time, and return how many steps they serve."""
    if step.parts.gradient != "svrg":
        return step.transitions_per_draw
    if step.done - step.centred >= step.refresh_period:
        step.reference = summed(step.expansion, theta, None, 1.0, curved=False)
        step.centred = step.done
        step.passes_made += 1
    return step.centred + step.refresh_period - step.done


def _integrate(
    step: "SGMCMC", theta: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Make draws of some steps each: positions, total step sizes, noise and counts."""
    n, size, parts = len(sizes), len(step.active), step.parts
    thetas, infos = np.empty((n, len(theta))), np.empty((n, len(langevin.INFO)))
    noise, squares = np.empty((n, size)), np.empty((n, size))
    # Tuning ends the preconditioner's moving average, in which the old has this share.
    averaging = parts.averaging if step.tune or not step.tuned else 1.0
    settings = np.array(
        langevin.DynamicsSettings(
            step.friction, step.temperature, averaging, parts.floor, parts.index_chain,
            parts.rule, parts.resample, step.done, step.hold,
            _MOST_DRIFT if step.near_reference else np.inf,
        ),
        dtype=float,
    )  # fmt: skip
    langevin.integrate(parts.dynamics)(
        address_of(step.rng), address_of(step.row_rng), step.compiled, step.sums(),
        batches(step),
        langevin.State(theta, step.origin, step.momentum, step.integrator_state),
        settings, sizes, thetas, noise, squares, infos,
    )  # fmt: skip
    step.done += sizes.size
    return thetas, sizes.sum(axis=1), noise, dict(zip(langevin.INFO, infos.T, strict=True))


# After tuning


def _check(step: "SGMCMC") -> list[Finding]:
    factor, record, at_reference = step.metric_factor, step.record, step.steps.precision
    curvature = step.steps.curvature
    scale = own_metric(step, np.maximum(step.integrator_state, 0.0) * step.n_rows**2)
    if scale is not None:
        factor, record = stretched(factor, scale**2), record.rescaled(scale)
        known = at_reference if curvature is None else curvature
        at_reference, curvature = None if known is None else rescaled(known, scale), None
    dynamics = Dynamics(
        step.parts.dynamics, step.friction, step.temperature, step.active, factor, curvature,
        at_reference, step.parts.index_chain > 0, step.hold,
    )  # fmt: skip
    return check_steps(record, dynamics, step.expansion, _remedies(step))


def _remedies(step: "SGMCMC") -> list[str]:
    """Return what makes gradients less noisy."""
    left = [] if step.control_variate_order == 2 else ["use control_variate_order=2"]
    if step.parts.gradient == "svrg":
        left = [f"decrease refresh_period (now {step.refresh_period})"]
    if step.given_reference:
        left.append("give another reference, or none")
    if step.batch_size < step.n_rows:
        left.append(f"increase batch_size (now {step.batch_size})")
    return left


METHOD = Method(
    # PyMC resets tuning where a chain has just begun, and in its own process alone: to begin once
    # more would draw other momenta than a chain in a worker process has.
    state=SGMCMCState, functions=lambda step: gradients.FUNCTIONS, begin=_begin, enter=_entered,
    transitions=_transitions, statistics=_statistics, watch=_watch, check=_check, steady=_steady,
    resets=False, connected=_connected, anew=("permutation",),
)  # fmt: skip
