"""Whether a chain of stochastic-gradient steps can be trusted: the checks behind its warnings."""

from dataclasses import dataclass

import numpy as np
import scipy.stats
from arviz_stats.base import array_stats

from pymc_subsample.control_variates import Expansion
from pymc_subsample.control_variates.curvature import MAX_DENSE
from pymc_subsample.control_variates.reference import whiten
from pymc_subsample.diagnostics.checks import Check, Rule, amount, sentence
from pymc_subsample.diagnostics.full_data import log_posteriors
from pymc_subsample.diagnostics.record import StepRecord
from pymc_subsample.stationary import sd_error, spectrum, variances

SD_BOUND = 0.05
MEAN_BOUND = 0.1
_HEAT_BOUND = 0.1
# Of a chain's measured errors, all directions together.
_ERROR_RATE = 0.001
# Rows to read for the check of a chain, and draws to read them at.
_PILOT_ROWS = 8_000_000
_FEWEST, _MOST = 4, 32

_SMALLER = "Use a smaller step_size."
_STAYING = "Use a smaller step_size, or pms.SVRGLD, whose control variates go along with the chain."
_QUIETER = "Use a smaller step_size, control_variate_order=2 or a larger batch_size."
_OTHER = (
    "Sample for longer, use a smaller step_size where its predicted errors are large, "
    "control_variate_order=2, or pms.HMCECS."
)

DIVERGED = Rule("diverged", "draws that left all bounds", 0.0, _STAYING)
STEP = Rule("step_error", "predicted error of an sd, by the step size", SD_BOUND, _SMALLER)
NOISE = Rule("noise_error", "predicted error of an sd, by noise of gradients", SD_BOUND, _QUIETER)
STRETCH = Rule("stretch", "error of an sd on all rows, beyond its error", SD_BOUND, _OTHER)
SHIFT = Rule("shift", "error of a mean in sds on all rows, beyond its error", MEAN_BOUND, _OTHER)
HEAT = Rule("heat", "error of the kinetic temperature, beyond its error", _HEAT_BOUND, _QUIETER)
TEMPERATURE = Rule(
    "temperature", "temperature of the posterior", 1.0, "Use temperature=1.", equal=True
)
RULES = (DIVERGED, STEP, NOISE, STRETCH, SHIFT, HEAT, TEMPERATURE)


@dataclass(frozen=True)
class Dynamics:
    """How a chain moved.

    Attributes
    ----------
    kind : int
        Of `kernels.langevin`.
    friction, temperature : float
        Of the dynamics.
    factor : ndarray, shape (a, a) or (1, a)
        Of the metric.
    curvature : ndarray, shape (a,), or None
        Of the posterior in that metric, direction by direction, where the metric is made of it.
    precision : ndarray, shape (a, a) or (a,), or None
        Of the posterior at the reference in any other metric; a vector is a diagonal.
    weighted : bool
        Whether gradients are weighted exponentially, which are less noisy than uniform ones.
    held : int
        Steps that a batch serves; its noise counts as often.
    """

    kind: int
    friction: float
    temperature: float
    factor: np.ndarray
    curvature: np.ndarray | None
    precision: np.ndarray | None
    weighted: bool
    held: int = 1


@np.errstate(all="ignore")  # of chains that left all bounds
def check_steps(
    record: StepRecord,
    dynamics: Dynamics,
    expansion: Expansion,
    active: np.ndarray,
    remedies: list[str],
) -> list[Check]:
    """Check one chain.

    Parameters
    ----------
    record : StepRecord
        What the chain did.
    dynamics : Dynamics
        How it moved.
    expansion : Expansion
        Compiled model.
    active : ndarray of int
        Elements of theta that it moved.
    remedies : list of str
        What makes its gradients less noisy.

    Returns
    -------
    list of Check
        Divergences; errors of standard deviations predicted from step size and noise; errors of
        means and standard deviations measured by gradients of all rows; kinetic temperature;
        temperature.
    """
    left = record.divergences
    found = [
        Check(
            DIVERGED,
            left,
            left == 0,
            f"The chain left all bounds in {left} of {record.done} draws and started again: "
            f"step_size (now {record.step_size / record.done:.3g}) is too large for where it "
            f"went. {DIVERGED.remedy}",
        )
    ]
    smaller = ["use a smaller step_size"]
    if dynamics.temperature > 0:
        predicted, temperature = _predicted(record, dynamics, active, smaller, remedies)
        found += predicted
        causes = [*smaller, *remedies]
        if all(check.passed for check in predicted):
            causes = ["tune and sample for longer", *remedies]
        found += _measured(record, dynamics, expansion, active, causes)
        found += _heat(record, temperature, [*smaller, *remedies])
    found.append(
        Check(
            TEMPERATURE,
            dynamics.temperature,
            dynamics.temperature == 1.0,
            f"temperature={dynamics.temperature:g}: the draws are not from the posterior but from "
            "its density to the power of one over that.",
        )
    )
    return found


def _predicted(record, dynamics, active, smaller, remedies) -> tuple[list[Check], float]:
    """Errors of standard deviations that the step size and the gradient's noise would make.

    The second result is the kinetic temperature without such noise.
    """
    h, noise = record.step_size / record.done, dynamics.held * record.noise / record.done
    curvature = dynamics.curvature
    if curvature is None:
        z = whiten(dynamics.factor, np.array(record.kept)[:, active].T)
        precision = dynamics.precision
        if precision is None:
            precision = _precision(z.T, dynamics.temperature)
        curvature, noise = spectrum(precision, noise)
    shared = dynamics.kind, h, dynamics.friction, dynamics.temperature, curvature
    position, momentum = variances(*shared, np.zeros_like(noise))
    noisy, _ = variances(*shared, noise)
    step, both = (
        float(np.abs(sd_error(variance, dynamics.temperature, curvature)).max())
        for variance in (position, noisy)
    )
    temperature = float(np.mean(momentum))
    found = [
        Check(
            STEP,
            step,
            STEP.holds(step),
            f"step_size {h:.3g} is too large: it makes a posterior standard deviation wrong by "
            f"{_percent(step)} (should be at most {SD_BOUND:.0%}). {sentence(smaller)}",
        )
    ]
    if dynamics.weighted or not step < np.inf:
        return found, temperature
    more = max(both - step, 0.0)
    found.append(
        Check(
            NOISE,
            more,
            NOISE.holds(more),
            f"The noise of the gradients makes a posterior standard deviation wrong by "
            f"{_percent(more)} (should be at most {SD_BOUND:.0%}). "
            f"{sentence([*smaller, *remedies])}",
        )
    )
    return found, temperature


def _precision(draws: np.ndarray, temperature: float) -> np.ndarray:
    """Inverse covariance of draws, shape (k, a), times T; a diagonal where they are few."""
    count, size = draws.shape
    if size > MAX_DENSE or count < 5 * size:
        variance = draws.var(axis=0)
        return temperature / np.where(variance > 0, variance, np.inf)
    return temperature * np.linalg.pinv(np.cov(draws.T).reshape(size, size))


def _measured(record, dynamics, expansion, active, remedies) -> list[Check]:
    """Errors of means and standard deviations by Stein's identities; see `diagnostics.scores`."""
    size = len(active)
    kept = np.array(record.kept)
    if size > MAX_DENSE or len(kept) < 20 or dynamics.temperature != 1.0:
        return []
    if dynamics.curvature is not None:
        covariance = dynamics.factor @ dynamics.factor.T
        if len(dynamics.factor) == 1:
            covariance = np.diag(dynamics.factor[0] ** 2)
    elif len(kept) >= 5 * size:
        covariance = np.cov(kept[:, active].T).reshape(size, size)
    else:
        return []
    count = int(np.clip(_PILOT_ROWS // expansion.n_rows, _FEWEST, min(_MOST, len(kept))))
    chosen = kept[np.linspace(0, len(kept) - 1, count).astype(int)]
    _, score = log_posteriors(expansion, chosen)
    theta = chosen[:, active]
    r = theta + score[:, active] @ covariance
    mean, sd = record.mean[active], np.sqrt(record.variance[active])
    guess = np.diag(covariance)
    products = (theta - theta.mean(axis=0)) * (r - r.mean(axis=0)) / guess
    ratio = np.maximum(1 + products.mean(axis=0), 0.01)  # of the posterior's variance to the guess
    scale = np.sqrt(guess * ratio)

    level = _ERROR_RATE / (4 * size)
    wide = scipy.stats.t.isf(level, count - 1)
    mean_noise, own_noise = _monte_carlo_errors(record, active, level)
    shift_error = np.hypot(
        wide * r.std(axis=0, ddof=1) / scale / np.sqrt(count), mean_noise / scale
    )
    sd_noise = np.hypot(
        wide * products.std(axis=0, ddof=1) / (2 * ratio * np.sqrt(count)), own_noise / scale
    )
    shift = np.maximum(np.abs(mean - r.mean(axis=0)) / scale - shift_error, 0.0)
    stretch = np.maximum(np.abs(sd / scale - 1) - sd_noise, 0.0)
    off, worst = float(np.max(shift)), float(np.max(stretch))
    return [
        Check(
            STRETCH,
            worst,
            STRETCH.holds(worst),
            "By gradients of all rows, a posterior standard deviation is wrong by at least "
            f"{_percent(worst)} (should be at most {SD_BOUND:.0%}). "
            f"{sentence([*remedies, 'use pms.HMCECS'])}",
        ),
        Check(
            SHIFT,
            off,
            SHIFT.holds(off),
            f"By gradients of all rows, a posterior mean is off by at least {amount(off)} "
            f"standard deviations (should be at most {MEAN_BOUND:g}). "
            f"{sentence([*remedies, 'use pms.HMCECS'])}",
        ),
    ]


def _monte_carlo_errors(
    record: StepRecord, active: np.ndarray, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """How far means and standard deviations of all draws may be off by chance, at a level.

    By batches of successive draws. Where a chain is slow its batches are too short, and the
    effective sample size of the draws that were kept, which see no faster motion, says more.
    """
    narrow, wide = scipy.stats.norm.isf(level), scipy.stats.t.isf(level, len(record.sizes) - 1)
    kept = np.array(record.kept)[None, :, active]
    sd = np.sqrt(record.variance[active])
    ess, ess_sd = (
        np.asarray(array_stats.ess(kept, chain_axis=0, draw_axis=1, method=method))
        for method in ("mean", "sd")
    )
    ess, ess_sd = (
        np.clip(np.fmin(ess, e) * record.done / kept.shape[1], 4, record.done)
        for e in (ess, ess_sd)
    )
    mean, variance = (error[active] for error in record.errors())
    return (
        np.maximum(wide * mean, narrow * sd / np.sqrt(ess)),
        np.maximum(
            wide * variance / (2 * np.where(sd > 0, sd, 1.0)), narrow * sd / np.sqrt(2 * ess_sd)
        ),
    )


def _heat(record, temperature, remedies) -> list[Check]:
    """Kinetic temperature against that of the dynamics without noise of gradients."""
    found = np.array(record.temperatures)
    if np.isnan(found).any() or len(found) < 8 or not temperature < np.inf:
        return []
    error = 3 * float(array_stats.mcse(found[None], chain_axis=0, draw_axis=1))
    ratio = float(found.mean()) / temperature
    error = error / temperature if np.isfinite(error) else 0.0
    off = max(abs(ratio - 1) - error, 0.0)
    return [
        Check(
            HEAT,
            off,
            HEAT.holds(off),
            f"The kinetic temperature is {ratio:.3g} times what it should be: step size and noise "
            f"of the gradients heat the dynamics. {sentence(remedies)}",
        )
    ]


def _percent(value: float) -> str:
    return f"{value:.0%}" if value < 10 else "more than 1000%"
