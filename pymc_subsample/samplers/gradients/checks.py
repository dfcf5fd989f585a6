"""Whether a chain of stochastic-gradient steps can be trusted: the checks behind its warnings."""

from dataclasses import dataclass

import numpy as np

from pymc_subsample.diagnostics import array_stats, checks
from pymc_subsample.diagnostics.checks import MODES, Finding, Rule, amount, sentence
from pymc_subsample.diagnostics.divergences import check_divergences, divergence_rules
from pymc_subsample.diagnostics.look import Look, evenly_spread
from pymc_subsample.diagnostics.overlooked_rows import OVERLOOKED, check_overlooked
from pymc_subsample.diagnostics.record import StepRecord
from pymc_subsample.diagnostics.stein_boundaries import jumps_near, prior_of
from pymc_subsample.diagnostics.tails import TAIL
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.curvature import MAX_DENSE
from pymc_subsample.expansion.factors import Kind, kind, whiten
from pymc_subsample.samplers.gradients.chain_moments import (
    ERROR_RATE,
    KNOWN,
    from_start,
    moment_errors,
)
from pymc_subsample.samplers.gradients.draw_gradients import (
    least_curvature,
    least_mean_error,
    looked,
)
from pymc_subsample.samplers.gradients.integrators import Integrator
from pymc_subsample.samplers.gradients.stationary import sd_error, spectrum, variances

SD_BOUND, MEAN_BOUND, _HEAT_BOUND = checks.STRETCH_BOUND, checks.SHIFT_BOUND, 0.1

_SMALLER = "Use a smaller step_size."
_STAYING = (
    "Use a smaller step_size, another parametrisation, such as the centred or the non-centred form "
    "of group effects, or pms.HMCECS."
)
_QUIETER = (
    "Use a smaller step_size, control variates if there are none, or a larger batch_size (up to "
    "all rows)."
)
_OTHER = (
    "Sample for longer, use a smaller step_size if its predicted errors are large, control "
    "variates if there are none, or pms.HMCECS."
)
_TUNED = "Tune for longer: draws made during tuning are discarded."
_AUDIT = "Check the run with pms.audit, or use another step."

DIVERGED, HIDDEN = divergence_rules("diverged", _STAYING)
STEP = Rule("step_error", "predicted error of an sd from the step size", SD_BOUND, _SMALLER)
NOISE = Rule("noise_error", "predicted error of an sd from gradient noise", SD_BOUND, _QUIETER)
STRETCH = Rule("stretch", "error of an sd on all rows, net of Monte Carlo error", SD_BOUND, _OTHER)
SHIFT = Rule(
    "shift", "error of a mean in sds on all rows, net of Monte Carlo error", MEAN_BOUND, _OTHER
)
HEAT = Rule(
    "heat", "error of the kinetic temperature, net of Monte Carlo error", _HEAT_BOUND, _QUIETER
)
START = Rule(
    "start",
    "error of an sd from the start of the chain, net of Monte Carlo error",
    SD_BOUND,
    _TUNED,
)
UNMEASURED = Rule("unmeasured", "errors that no check could measure", 0.0, _AUDIT, severity="warn")
TEMPERATURE = Rule(
    "temperature", "temperature of the posterior", 1.0, "Use temperature=1.", equal=True,
    mean_of="temperature",
)  # fmt: skip
RULES = (
    DIVERGED, HIDDEN, START, STEP, NOISE, STRETCH, SHIFT, HEAT, OVERLOOKED, UNMEASURED, TEMPERATURE,
    TAIL, MODES,
)  # fmt: skip


# Draws beside which jumps of the prior are looked for. A choice of time.
_LOOKED_AT = 100


@dataclass(frozen=True)
class Dynamics:
    """How a chain moved."""

    integrator: Integrator  # Its steps.
    # Of the dynamics.
    friction: float
    temperature: float
    active: np.ndarray  # Elements of theta that move, shape (a,).
    factor: np.ndarray  # Of the metric, shape (a, a), (1, a) or (3, k).
    # Shape (a,): of the posterior in that metric, direction by direction, where the metric is made
    # of it.
    curvature: np.ndarray | None
    # Shape (a, a) or (a,): of the posterior at the reference in any other metric; a vector is a
    # diagonal.
    precision: np.ndarray | None
    # Whether gradients are weighted exponentially, which are less noisy than uniform ones.
    weighted: bool
    held: int = 1  # Steps that a batch serves; its noise counts as often.


@np.errstate(all="ignore")  # of chains that left all bounds
def check_steps(
    record: StepRecord, dynamics: Dynamics, expansion: Expansion, remedies: list[str]
) -> list[Finding]:
    """Check one chain; `remedies` make its gradients less noisy."""
    active = dynamics.active
    h = record.step_size / record.done
    advice = f"step_size (now {h:.3g}) is too large for where the chain went. {DIVERGED.remedy}"
    found = check_divergences(DIVERGED, HIDDEN, record, active, advice)
    if (moved := from_start(record, active)) is not None:
        found.append(
            START.check(
                moved,
                "The first draws are still on the way from where the chain started, which "
                f"makes a posterior standard deviation wrong by {_percent(moved)} or a mean by "
                f"{moved:.2g} standard deviations or more. {START.remedy}",
            )
        )
    smaller = ["use a smaller step_size"]
    if dynamics.temperature > 0:
        exact = dynamics.temperature == 1.0 and len(active) <= MAX_DENSE
        look = looked(record, active, expansion) if exact else None
        gradients = None if look is None else look.along(active)
        predicted, temperature = _predicted(record, dynamics, gradients, smaller, remedies)
        found += predicted
        causes = [*smaller, *remedies]
        if all(x.passed for x in predicted):
            causes = ["tune and sample for longer", *remedies]
        if gradients is not None:
            found += _measured(record, dynamics, gradients, causes)
            found += check_overlooked(look)
        found += _heat(record, temperature, [*smaller, *remedies])
        seen = {x.name for x in found} & {NOISE.name, STRETCH.name}
        if len(active) > MAX_DENSE:
            unmeasured = UNMEASURED.check(
                1.0,
                f"This step moves {len(active):,} parameters, and for more than {MAX_DENSE} no "
                "gradients check whether means and standard deviations are right: predicted errors "
                f"hold only around the reference. {UNMEASURED.remedy}",
            )
        elif jump := jumps_near(
            prior_of(expansion), evenly_spread(np.array(record.thinned), _LOOKED_AT), active
        ):
            unmeasured = UNMEASURED.check(
                1.0,
                f"A prior or a potential jumps by {amount(jump)} beside the draws (a switch, a "
                "comparison). Gradients do not see that, and this step has no acceptance test: the "
                "draws are those of a density without the jump. Write a smooth function in its "
                "place (a sigmoid), or use pms.MinibatchBarkerMH or pms.HMCECS.",
            )
        else:
            unmeasured = UNMEASURED.check(
                float(not seen),
                "Neither the noise of the gradients nor the errors of means and standard "
                f"deviations could be measured. {UNMEASURED.remedy}",
            )
        found.append(unmeasured)
    instead = "its density to the power of one over that"
    return [*found, checks.check_temperature(dynamics.temperature, TEMPERATURE, instead)]


def _predicted(
    record: StepRecord,
    dynamics: Dynamics,
    look: Look | None,
    smaller: list[str],
    remedies: list[str],
) -> tuple[list[Finding], float]:
    """Errors of sds by step size and noise of gradients, and the kinetic temperature without it."""
    h, noise = record.step_size / record.done, dynamics.held * record.noise / record.done
    active = dynamics.active
    if not h:
        advice = 'step_size=0: the chain does not move. Use a positive one, or "auto".'
        return [STEP.check(np.inf, advice)], np.inf
    curvature, directions = dynamics.curvature, None
    if curvature is None:
        precision = dynamics.precision
        if precision is None:
            z = whiten(dynamics.factor, np.array(record.thinned)[:, active].T)
            precision = _precision(z.T, dynamics.temperature)
        curvature, noise, directions = spectrum(precision, noise)
    shared = dynamics.integrator, h, dynamics.friction, dynamics.temperature
    position, momentum = variances(*shared, curvature, np.zeros_like(noise))
    noisy, _ = variances(*shared, curvature, noise)
    step, both = (
        float(np.abs(sd_error(variance, dynamics.temperature, curvature)).max())
        for variance in (position, noisy)
    )
    temperature = float(np.mean(momentum))
    more = max(both - step, 0.0)
    moved = 0.0
    if look is not None:
        level, factor = ERROR_RATE / (2 * len(active)), dynamics.factor
        z = whiten(factor, look.usual.T).T
        scores = look.scores * factor[0] if kind(factor) is Kind.DIAGONAL else look.scores @ factor
        if directions is not None:
            z, scores = z @ directions, scores @ directions
        met = least_curvature(z, scores, level)
        if len(met := met[met > 0]):  # where draws tell
            position, _ = variances(*shared, met, np.zeros_like(met))
            step = max(step, float(np.abs(sd_error(position, 1.0, met)).max()))
        if not dynamics.integrator.has_momenta:
            moved = least_mean_error(look.usual, scores, h, level)
    wrong = f"makes a posterior standard deviation wrong by {_percent(step)}", f"{SD_BOUND:.0%}"
    if moved / MEAN_BOUND > step / SD_BOUND:
        wrong = f"moves a posterior mean by {amount(moved)} standard deviations", f"{MEAN_BOUND:g}"
    found = [
        STEP.check(
            max(step, moved * SD_BOUND / MEAN_BOUND),
            f"step_size {h:.3g} is too large: it {wrong[0]} (should be at most {wrong[1]}). "
            f"{sentence(smaller)}",
        )
    ]
    if dynamics.weighted or not step < np.inf:
        return found, temperature
    found.append(
        NOISE.check(
            more,
            f"The noise of the gradients makes a posterior standard deviation wrong by "
            f"{_percent(more)} (should be at most {SD_BOUND:.0%}). "
            f"{sentence([*smaller, *remedies])}",
        )
    )
    return found, temperature


def _precision(draws: np.ndarray, temperature: float) -> np.ndarray:
    """Inverse covariance of draws, shape (k, a), times T; a diagonal where they are few."""
    count, size = draws.shape
    if size > MAX_DENSE or count < KNOWN * size:
        variance = draws.var(axis=0)
        return temperature / np.where(variance > 0, variance, np.inf)
    return temperature * np.linalg.pinv(np.cov(draws.T).reshape(size, size))


def _measured(
    record: StepRecord, dynamics: Dynamics, look: Look, remedies: list[str]
) -> list[Finding]:
    """Errors of means and standard deviations by Stein's identities."""
    worst, off = moment_errors(record, dynamics.active, look, *_covariance(dynamics))
    remedy = sentence([*remedies, "use pms.HMCECS"])
    return [
        STRETCH.check(
            worst,
            "By the gradients along the chain, a posterior standard deviation is wrong by at "
            f"least {_percent(worst)} (should be at most {SD_BOUND:.0%}). {remedy}",
        ),
        SHIFT.check(
            off,
            f"By the gradients along the chain, a posterior mean is off by at least {amount(off)} "
            f"standard deviations (should be at most {MEAN_BOUND:g}). {remedy}",
        ),
    ]


def _covariance(dynamics: Dynamics) -> tuple[np.ndarray | None, bool]:
    """Return the covariance that the metric takes for the posterior's, and whether it is made so.

    That of the curvature at a reference is no more than a guess where draws are few.
    """
    factor, precision = dynamics.factor, dynamics.precision
    if dynamics.curvature is not None:
        return (
            np.diag(factor[0] ** 2) if kind(factor) is Kind.DIAGONAL else factor @ factor.T
        ), True
    if precision is None or precision.ndim < 2:
        return None, False
    return factor[0][:, None] * np.linalg.pinv(precision, hermitian=True) * factor[0], False


def _heat(record: StepRecord, temperature: float, remedies: list[str]) -> list[Finding]:
    """Kinetic temperature against that of the dynamics without noise of gradients."""
    found = np.array(record.temperatures)
    # Fewer than eight have no error that is known.
    if np.isnan(found).any() or len(found) < 8 or not temperature < np.inf:
        return []
    # three standard errors
    error = 3 * float(array_stats.mcse(found[None], chain_axis=0, draw_axis=1))
    ratio = float(found.mean()) / temperature
    error = error / temperature if np.isfinite(error) else 0.0
    off = max(ratio - 1 - error, 0.0)  # momenta that are too cold have not been exchanged yet
    return [
        HEAT.check(
            off,
            f"The kinetic temperature is {ratio:.3g} times what it should be: step size and noise "
            f"of the gradients heat the dynamics. {sentence(remedies)}",
        )
    ]


def _percent(value: float) -> str:
    return f"{value:.0%}" if value < 10 else "more than 1000%"
