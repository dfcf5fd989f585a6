"""How large the integration steps of a stochastic-gradient sampler are, and what they will cost."""

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pymc_subsample.chain.integrating import each, sampled
from pymc_subsample.chain.setup import Preparation
from pymc_subsample.compiled.functions import address_of
from pymc_subsample.compiled.process import one_thread
from pymc_subsample.diagnostics.checks import amount, sentence
from pymc_subsample.expansion.curvature import MAX_DENSE
from pymc_subsample.expansion.factors import Kind, deviations, kind, scaled
from pymc_subsample.expansion.quadratic import Quadratic
from pymc_subsample.samplers.gradients import gradient_estimates as gradients
from pymc_subsample.samplers.gradients.stationary import (
    autocorrelation_time,
    choose_step_size,
    rescaled,
    sd_error,
    spectrum,
    variances,
)

if TYPE_CHECKING:
    from pymc_subsample.samplers.gradients.step import SGMCMC

_log = logging.getLogger("pymc.subsample")

_forces = gradients.forces.get_overload(gradients.forces.signatures[0])

# Points and batches by which the noise of gradients is measured at set-up. A choice: a variance
# from 512 batches is good to 6%.
_POINTS, _BATCHES = 8, 64
# Steps that a batch may serve, and the error of standard deviations that this may add. A choice:
# a tenth of `TOLERATED`.
_HOLDS = (1, 2, 5, 10)
_HELD_ERROR = 0.002
# Integration steps per effective draw above which a chain hardly moves. A choice: ten million
# steps for 1,000 effective draws.
_SLOW = 10_000
# A given step size that is so small beside the automatic one is most likely of other units. A
# choice: a step size per row instead of one in all is off by thousands.
_TINY = 0.1
# Passes over the rows per effective draw above which noise makes subsampling useless. A choice:
# NUTS on all rows takes about as many, `nuts_cost.FEW_GRADIENTS` for a draw.
_MANY_PASSES = 10


@dataclass(frozen=True)
class Steps:
    """The integration steps of a sampler, and what they were chosen by."""

    size: float  # The automatic one.
    hold: int  # How many a batch serves.
    # Of the posterior at the reference, in the metric made of it, shape (a,), or in any other,
    # shape (a, a) or (a,); see `checks.Dynamics`.
    curvature: np.ndarray | None = None
    precision: np.ndarray | None = None


def batches(step: "SGMCMC") -> gradients.Batches:
    """Say how batches are drawn."""
    return gradients.Batches(
        step.permutation, step.parts.sampling, step.batch_size, step.active, step.metric_factor
    )


def own_metric(step: "SGMCMC", square: np.ndarray) -> np.ndarray | None:
    """Root of what multiplies the step size, given mean squares of the gradient, (a,)."""
    own = step.parts.dynamics.own_metric
    return None if own is None else own(step.parts.floor, step.n_rows, square)


@one_thread
def find_step_size(step: "SGMCMC") -> Steps:
    """Choose a step size where it is automatic, and say what the chain will cost.

    By the posterior's curvature and the gradients' noise at the reference.
    """
    prepared, name, integrator = step.prepared, type(step).__name__, step.parts.dynamics
    share = step.batch_size / step.n_rows
    rows = f"{name}: {sampled(step)}; batches of "
    rows += f"{step.batch_size:,} {each(step)} ({share:.2%})"
    if prepared is None:
        _log.info(rows)
        return step.steps
    friction = step.parts.friction
    curvature, noise, found = _spectrum(step, prepared)
    chosen = choose_step_size(integrator, friction, curvature, noise)
    if step.schedule.automatic:
        found = replace(found, size=chosen)
    h = float(step.schedule.sizes(np.zeros(1), found.size)[0])
    if not h or not step.temperature:
        _log.info(f"{rows}; step size {h:.2g}")
        return found

    def predicted(held: int) -> float:
        """Error of standard deviations where the noise of `held` steps is the same."""
        position, _ = variances(integrator, h, friction, 1.0, curvature, held * noise)
        return float(np.abs(sd_error(position, 1.0, curvature)).max())

    if step.steps_per_batch is None and not step.parts.index_chain:
        most = predicted(1) + _HELD_ERROR
        hold = max(held for held in _HOLDS if held == 1 or predicted(held) <= most)
        found = replace(found, hold=hold)
    error = predicted(found.hold)
    if not error < np.inf:
        _log.warning(
            f"{name}: at step_size {h:.2g} the dynamics are unstable around the reference. Use "
            'a smaller one, or step_size="auto".'
        )
        return found
    steps = autocorrelation_time(integrator, h, friction, curvature)
    served = min(found.hold, step.transitions_per_draw)
    _log.info(
        f"{rows}{f' for {served} steps each' if served > 1 else ''}; step size {h:.2g}; "
        f"predicted error of standard deviations {amount(100 * error)}%, {amount(steps)} steps "
        "per effective draw"
    )
    if step.schedule.automatic:
        quiet = choose_step_size(integrator, friction, curvature, np.zeros_like(noise))
        best = autocorrelation_time(integrator, quiet, friction, curvature)
        _warn_if_slow(step, h, steps, best)
    elif steps > _slow(step) and h < _TINY * chosen:
        _log.warning(
            f"{name}: step_size {h:.2g} is so small, in units of the metric, that an effective "
            f'draw takes {steps:,.0f} steps. Use a larger one, or step_size="auto", which is '
            f"{chosen:.2g} here."
        )
    return found


def _slow(step: "SGMCMC") -> int:
    return max(_SLOW, 100 * step.transitions_per_draw)


def _warn_if_slow(step: "SGMCMC", h: float, steps: float, best: float) -> None:
    """Say why an effective draw takes many steps; without noise it would take `best`."""
    name, passes = type(step).__name__, steps * step.batch_size / step.n_rows
    slow = steps > _slow(step)
    if steps > 2 * best and (slow or passes > _MANY_PASSES):
        quieter = [] if step.control_variate_order == 2 else ["use control_variate_order=2"]
        _log.warning(
            f"{name}: the gradients of {step.batch_size:,} {each(step)} are so noisy that only a "
            f"tiny step size ({h:.2g}) gives the right standard deviations, at which an effective "
            f"draw takes {steps:,.0f} steps, or {passes:,.0f} passes over the {each(step)}; "
            f"larger batches take as many. {sentence([*quieter, 'use pms.HMCECS'])}"
        )
    elif slow:
        _log.warning(
            f"{name}: the posterior is so much narrower in some directions than in others, in "
            f"units of the metric, that an effective draw takes {steps:,.0f} steps, or "
            f"{passes:,.0f} passes over the {each(step)}, whatever the size of the batch. Use "
            'metric="curvature", scale the columns alike, or use pms.HMCECS.'
        )


def _spectrum(step: "SGMCMC", prepared: Preparation) -> tuple[np.ndarray, np.ndarray, Steps]:
    """Curvature of the posterior and noise of the gradients, in units of the metric.

    And the steps so far, with what is known of the posterior.
    """
    reference, active = prepared.reference, step.active
    size = len(active)
    z = step.rng.standard_normal((_POINTS, size))
    thetas = np.tile(reference.theta, (_POINTS, 1))
    thetas[:, active] += scaled(prepared.factor, z)
    forces = np.empty((_POINTS, _BATCHES, size))
    for theta, out in zip(thetas, forces, strict=True):
        _forces(address_of(step.row_rng), step.compiled, step.sums(), batches(step), theta, out)
    centred = forces - forces.mean(axis=1, keepdims=True)
    freedom = _POINTS * (_BATCHES - 1)
    noise = np.sum(centred**2, axis=(0, 1)) / freedom
    if size <= MAX_DENSE:
        noise = np.einsum("pbi,pbj->ij", centred, centred) / freedom
    scale = own_metric(step, np.mean(forces**2, axis=(0, 1)))
    if step.metric == "curvature":
        curvature = _whitened_curvature(step, prepared)
        found = replace(step.steps, curvature=curvature)
    else:
        curvature = posterior_precision(step, prepared, scale)
        found = replace(step.steps, precision=curvature)
    if scale is not None:
        curvature, noise = rescaled(curvature, scale), rescaled(noise, scale)
    return *spectrum(curvature, noise)[:2], found


def posterior_precision(
    step: "SGMCMC", prepared: Preparation, scale: np.ndarray | None
) -> np.ndarray:
    """Precision at the reference, shape (a, a), or of many parameters its diagonal, (a,).

    Of a diagonal the largest element, in units of the preconditioner, is the largest curvature.
    """
    quadratic = Quadratic(step.expansion, prepared.reference)
    active, size = step.active, len(step.active)
    if step.expansion.has_precision(size) and size <= MAX_DENSE:
        return quadratic.precision(active)
    found = deviations(prepared.factor, size) ** -2.0
    units = np.ones(size) if scale is None else scale
    steepest = int(np.argmax(rescaled(found, units)))
    largest = quadratic.largest_curvature(active, units, step.rng)
    found[steepest] = max(found[steepest], largest / units[steepest] ** 2)
    return found


def _whitened_curvature(step: "SGMCMC", prepared: Preparation) -> np.ndarray:
    """Curvature in units of the metric: one, but for the largest where that is diagonal."""
    curvature = np.ones(len(step.active))
    if kind(prepared.factor) is Kind.DIAGONAL:
        quadratic = Quadratic(step.expansion, prepared.reference)
        curvature[0] = quadratic.largest_curvature(step.active, prepared.factor[0], step.rng)
    return curvature
