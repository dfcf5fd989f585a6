"""Whether a chain of stochastic-gradient steps can be trusted: the checks behind its warnings."""

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from pymc_subsample import array_stats
from pymc_subsample.control_variates import Expansion
from pymc_subsample.control_variates.curvature import MAX_DENSE
from pymc_subsample.control_variates.factors import whiten
from pymc_subsample.diagnostics import checks
from pymc_subsample.diagnostics.checks import MODES, Check, Rule, amount, sentence
from pymc_subsample.diagnostics.divergences import check_divergences, divergence_rules
from pymc_subsample.diagnostics.record import StepRecord
from pymc_subsample.diagnostics.scores import (
    SMALLEST,
    best_covariance,
    covariance_of,
    estimated_scores,
    least_curvature,
    log_posteriors,
    moment_series,
)
from pymc_subsample.kernels.integrators import Integrator
from pymc_subsample.stationary import sd_error, spectrum, variances

SD_BOUND, MEAN_BOUND, _HEAT_BOUND = checks.STRETCH_BOUND, checks.SHIFT_BOUND, 0.1
# Of a chain's measured errors, all directions together.
_ERROR_RATE = 0.001
# Rows to read for the check of a chain, one after the other or at random, and draws to read them
# at: as many as are independent of each other, or a few of any; and from how many regressions have
# errors that are known.
_PILOT_ROWS, _RANDOM_ROWS = 20_000_000, 4_000_000
_DEPENDENT, _MOST = 32, 200
_REGRESSED = 100

_SMALLER = "Use a smaller step_size."
# How many times as far as any other the first batches of draws are, where nothing else says that
# they stand out.
_BEYOND = 2.0
# Share of a standard deviation below which that of most draws is rounding.
_LOST = 1e-6

_STAYING = (
    "Use a smaller step_size, another parametrisation, such as the centred or the non-centred form "
    "of group effects, or pms.HMCECS."
)
_QUIETER = (
    "Use a smaller step_size, control variates where there are none or a larger batch_size (up to "
    "all rows)."
)
_OTHER = (
    "Sample for longer, use a smaller step_size where its predicted errors are large, control "
    "variates where there are none, or pms.HMCECS."
)
_TUNED = "Tune for longer: what a chain draws while tuning is left out."
_AUDIT = "Check the run with pms.audit, or use another step."

DIVERGED, HIDDEN = divergence_rules("diverged", _STAYING)
STEP = Rule("step_error", "predicted error of an sd, by the step size", SD_BOUND, _SMALLER)
NOISE = Rule("noise_error", "predicted error of an sd, by noise of gradients", SD_BOUND, _QUIETER)
STRETCH = Rule("stretch", "error of an sd on all rows, beyond its error", SD_BOUND, _OTHER)
SHIFT = Rule("shift", "error of a mean in sds on all rows, beyond its error", MEAN_BOUND, _OTHER)
HEAT = Rule("heat", "error of the kinetic temperature, beyond its error", _HEAT_BOUND, _QUIETER)
START = Rule(
    "start", "error of an sd by the way from the start, beyond its error", SD_BOUND, _TUNED
)
UNMEASURED = Rule("unmeasured", "errors that no check could measure", 0.0, _AUDIT, severity="warn")
TEMPERATURE = Rule(
    "temperature", "temperature of the posterior", 1.0, "Use temperature=1.", equal=True
)
RULES = (DIVERGED, HIDDEN, START, STEP, NOISE, STRETCH, SHIFT, HEAT, UNMEASURED, TEMPERATURE, MODES)


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
) -> list[Check]:
    """Check one chain; `remedies` make its gradients less noisy."""
    active = dynamics.active
    h = record.step_size / record.done
    advice = f"step_size (now {h:.3g}) is too large for where it went. {DIVERGED.remedy}"
    found = check_divergences(DIVERGED, HIDDEN, record, active, advice)
    found += _from_start(record, active)
    smaller = ["use a smaller step_size"]
    if dynamics.temperature > 0:
        pilot = _pilot(record, dynamics, expansion)
        predicted, temperature = _predicted(record, dynamics, pilot, smaller, remedies)
        found += predicted
        causes = [*smaller, *remedies]
        if all(check.passed for check in predicted):
            causes = ["tune and sample for longer", *remedies]
        found += _measured(record, dynamics, pilot, causes)
        found += _heat(record, temperature, [*smaller, *remedies])
        seen = {check.rule.name for check in found} & {NOISE.name, STRETCH.name}
        found.append(
            UNMEASURED.check(
                float(not seen),
                "Neither the noise of the gradients nor the errors of means and standard "
                f"deviations could be looked at. {UNMEASURED.remedy}",
            )
        )
    instead = "its density to the power of one over that"
    return [*found, checks.check_temperature(dynamics.temperature, TEMPERATURE, instead)]


@dataclass(frozen=True)
class Pilot:
    """Some draws of a chain with gradients of the log posterior; elements that move alone."""

    theta: np.ndarray  # Shape (k, a).
    scores: np.ndarray  # Shape (2, k, a): two independent estimates, or twice the same.

    @property
    def score(self) -> np.ndarray:
        """Gradients, or the better estimates of them, shape (k, a)."""
        return self.scores.mean(axis=0)


def _pilot(record: StepRecord, dynamics: Dynamics, expansion: Expansion) -> Pilot | None:
    """Evaluate gradients at draws, of as many rows as may be read; None of too many parameters."""
    active, kept = dynamics.active, np.array(record.kept)
    if len(active) > MAX_DENSE or len(kept) < 20 or dynamics.temperature != 1.0:
        return None
    _, sd_ess = _effective(kept[None, :, active])
    independent = int(np.nanmin(sd_ess, initial=_MOST))
    most = min(max(independent, _DEPENDENT), len(kept))
    full = _PILOT_ROWS // expansion.n_rows
    count = min(most, max(full, _REGRESSED))
    chosen = kept[np.linspace(0, len(kept) - 1, count).astype(int)]
    if count <= full:
        scores = np.array([log_posteriors(expansion, chosen)[1]] * 2)
    else:
        rows = _RANDOM_ROWS // count
        scores = estimated_scores(expansion, chosen, rows, np.random.default_rng(0))
    return Pilot(chosen[:, active], scores[:, :, active])


def _predicted(
    record: StepRecord,
    dynamics: Dynamics,
    pilot: Pilot | None,
    smaller: list[str],
    remedies: list[str],
) -> tuple[list[Check], float]:
    """Errors of sds by step size and noise of gradients, and the kinetic temperature without it."""
    h, noise = record.step_size / record.done, dynamics.held * record.noise / record.done
    active = dynamics.active
    if not h:
        advice = 'step_size=0: the chain does not move. Use a positive one, or "auto".'
        return [STEP.check(np.inf, advice)], np.inf
    curvature, precision = dynamics.curvature, dynamics.precision
    if curvature is None:
        if precision is None:
            z = whiten(dynamics.factor, np.array(record.kept)[:, active].T)
            precision = _precision(z.T, dynamics.temperature)
        curvature, noise = spectrum(precision, noise)
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
    if pilot is not None:
        z, scores = _in_metric(dynamics, precision, pilot)
        met = least_curvature(z, scores, _ERROR_RATE / (2 * len(active)))
        if len(met := met[met > 0]):  # where draws tell
            position, _ = variances(*shared, met, np.zeros_like(met))
            step = max(step, float(np.abs(sd_error(position, 1.0, met)).max()))
        if not dynamics.integrator.has_momenta:
            moved = _mean_error(pilot.theta, scores, h / 2)
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


def _in_metric(
    dynamics: Dynamics, precision: np.ndarray | None, pilot: Pilot
) -> tuple[np.ndarray, np.ndarray]:
    """Draws, (k, a), and gradients, (2, k, a), in the metric, along principal directions."""
    factor = dynamics.factor
    z = whiten(factor, pilot.theta.T).T
    scores = pilot.scores * factor[0] if len(factor) == 1 else pilot.scores @ factor
    if dynamics.curvature is None and precision is not None and precision.ndim == 2:
        _, directions = np.linalg.eigh(precision)
        z, scores = z @ directions, scores @ directions
    return z, scores


def _mean_error(theta: np.ndarray, scores: np.ndarray, unit: float) -> float:
    r"""Least error of a mean, in standard deviations, by the step size of overdamped dynamics.

    To first order such dynamics have the invariant density

    .. math:: \pi_h \propto \pi \, \bigl(1 + \tfrac{\epsilon}{2} (2 \Delta \log \pi + |g|^2)\bigr)

    in their metric, with :math:`\epsilon`, `unit`, the error of a variance where the curvature is
    1. By parts, the mean of :math:`\theta_j` is off by
    :math:`-\epsilon \, cov(\theta_j, |g|^2) / 2`.
    """
    scores = scores - scores.mean(axis=1, keepdims=True)
    square = np.sum(scores[0] * scores[1], axis=1)
    sd = theta.std(axis=0)
    z = (theta - theta.mean(axis=0)) / np.where(sd > 0, sd, np.inf)
    series = -unit / 2 * z * (square - square.mean())[:, None]
    error = (
        -stdtrit(len(z) - 1, _ERROR_RATE / (2 * z.shape[1])) * series.std(axis=0) / np.sqrt(len(z))
    )
    return float(np.max(np.abs(series.mean(axis=0)) - error, initial=0.0))


def _precision(draws: np.ndarray, temperature: float) -> np.ndarray:
    """Inverse covariance of draws, shape (k, a), times T; a diagonal where they are few."""
    count, size = draws.shape
    if size > MAX_DENSE or count < 5 * size:
        variance = draws.var(axis=0)
        return temperature / np.where(variance > 0, variance, np.inf)
    return temperature * np.linalg.pinv(np.cov(draws.T).reshape(size, size))


def _measured(
    record: StepRecord, dynamics: Dynamics, pilot: Pilot | None, remedies: list[str]
) -> list[Check]:
    """Errors of means and standard deviations by Stein's identities; see `diagnostics.scores`."""
    if pilot is None:
        return []
    active, kept = dynamics.active, np.array(record.kept)
    size, theta, score, count = len(active), pilot.theta, pilot.score, len(pilot.theta)
    mean_ess, _ = _effective(kept[None, :, active])
    known, own = _covariances(dynamics, kept[:, active])
    if count >= _REGRESSED:
        # A regression hides an error that other directions drown; a full step, one that is alone.
        tried = [(best_covariance(theta, score, [*known, own]), True), (own, False)]
    elif known and (dynamics.curvature is not None or len(kept) <= 5 * size):
        tried = [(known[0], False)]
    else:
        tried = [(own, False)]
    # Of the draws' own covariance, whose steps are too long by that share.
    excess = (size + 1) / min(len(kept), max(float(np.nanmedian(mean_ess)), size + 1))
    excess *= len(kept) > 5 * size
    errors = [
        _errors(record, active, moment_series(theta, score, guess, regressed), guess, regressed,
                excess * (guess is own), _ERROR_RATE / len(tried))
        for guess, regressed in tried
    ]  # fmt: skip
    worst, off = (float(x) for x in np.max(errors, axis=0))
    return [
        STRETCH.check(
            worst,
            "By gradients of all rows, a posterior standard deviation is wrong by at least "
            f"{_percent(worst)} (should be at most {SD_BOUND:.0%}). "
            f"{sentence([*remedies, 'use pms.HMCECS'])}",
        ),
        SHIFT.check(
            off,
            f"By gradients of all rows, a posterior mean is off by at least {amount(off)} "
            f"standard deviations (should be at most {MEAN_BOUND:g}). "
            f"{sentence([*remedies, 'use pms.HMCECS'])}",
        ),
    ]


def _covariances(dynamics: Dynamics, draws: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Guesses of the posterior's covariance: that of the metric, if any, and that of draws."""
    factor, precision = dynamics.factor, dynamics.precision
    own = covariance_of(draws, 5 * draws.shape[1])
    if dynamics.curvature is not None:
        return [np.diag(factor[0] ** 2) if len(factor) == 1 else factor @ factor.T], own
    if precision is None or precision.ndim < 2:
        return [], own
    return [factor[0][:, None] * np.linalg.pinv(precision, hermitian=True) * factor[0]], own


def _errors(
    record: StepRecord,
    active: np.ndarray,
    series: tuple[np.ndarray, np.ndarray],
    covariance: np.ndarray,
    regressed: bool,
    excess: float,
    rate: float,
) -> tuple[float, float]:
    """Least errors of a standard deviation and a mean, by series of `scores.moment_series`.

    Their means are variances that may be too small by a share `excess` of the guess. False alarms
    have a probability `rate`, of all elements together.
    """
    means, variances = series
    size, guess = len(active), np.diag(covariance)
    scale = np.sqrt(np.maximum(variances.mean(axis=0), SMALLEST * guess))
    mean, sd = record.mean[active], np.sqrt(record.variance[active])
    freedom, level = len(means) - 1 - regressed, rate / (4 * size)
    wide = -stdtrit(freedom, level) / np.sqrt(freedom)
    mean_noise, own_noise = _monte_carlo_errors(record, active, level)
    shift_error = np.hypot(wide * means.std(axis=0), mean_noise) / scale
    sd_error = np.hypot(wide * variances.std(axis=0) / (2 * scale), own_noise) / scale
    shift = np.maximum(np.abs(mean - means.mean(axis=0)) / scale - shift_error, 0.0)
    widest = np.sqrt(scale**2 + excess * guess)
    stretch = np.maximum(sd / widest - 1, 1 - sd / scale) - sd_error
    ratios = np.mean(variances / guess, axis=1)
    together = _pooled_stretch(ratios, freedom, np.mean(sd**2 / guess), excess, rate)
    together -= float(np.mean(own_noise / np.where(sd > 0, sd, 1.0)))
    return max(float(np.max(stretch)), together, 0.0), float(np.max(shift))


def _pooled_stretch(
    ratios: np.ndarray, freedom: int, own: float, excess: float, rate: float
) -> float:
    """Least error of a standard deviation that all directions share.

    `ratios`, shape (k,), of the posterior's variance to a guess, are means over directions, of
    which each alone may be too noisy; `own` is that of the draws' variance.
    """
    error = -stdtrit(freedom, rate / 4) * ratios.std() / np.sqrt(freedom)
    low, high = (max(ratios.mean() + x, SMALLEST) for x in (-error, error + excess))
    return float(max(np.sqrt(own / high) - 1, 1 - np.sqrt(own / low), 0.0))


def _from_start(record: StepRecord, active: np.ndarray) -> list[Check]:
    """Look at what the first eighth of the draws does to means and standard deviations."""
    batches = len(record.sizes) // 8
    if not batches or record.done < 64:
        return []
    rest = record.without(batches)
    level = _ERROR_RATE / (4 * len(active))
    # Of the difference between averages of all draws and of most of them.
    part = np.sqrt(record.done / rest.done - 1)
    mean_noise, own_noise = (part * e for e in _monte_carlo_errors(rest, active, level))
    scale, sd = (np.sqrt(r.variance[active]) for r in (rest, record))
    moved = sd > 0
    # Beyond that, differences from so distant a first draw have no digits left.
    lost = moved & (scale <= _LOST * sd)
    scale = np.where(moved & ~lost, scale, 1.0)
    stretch = np.where(lost, np.inf, (np.abs(sd - scale) - own_noise) / scale)
    shift = (np.abs(record.mean - rest.mean)[active] - mean_noise) / scale
    counts = moved & (lost | _stand_out(record, batches, active, rest.mean[active]))
    error = float(np.max(np.where(counts, np.maximum(stretch, 0.5 * shift), 0.0), initial=0.0))
    return [
        START.check(
            error,
            "The first of the draws are still on the way from where the chain started, which makes "
            f"a posterior standard deviation wrong by {_percent(error)} or a mean by {error:.2g} "
            f"standard deviations or more. {START.remedy}",
        )
    ]


def _stand_out(
    record: StepRecord, batches: int, active: np.ndarray, center: np.ndarray
) -> np.ndarray:
    """Whether the first of the batches of draws, at most so many, stand out from all others.

    Shape (a,), around a center, (a,). Where tails are heavy any batch may hold far draws, which no
    standard error of squares tells: the first ones are far beyond the farthest, or their logarithms
    or means are many standard deviations away.
    """
    sizes = record.sizes[:, None]
    sums, squares = (x[:, active] / sizes for x in (record.sums, record.squares))
    away = center - record.origin[active]
    mean = sums - away
    square = np.maximum(squares - 2 * away * sums + away**2, np.finfo(float).tiny)
    firsts = {*(2**k for k in range(batches.bit_length())), batches}
    rest = len(sizes) - batches
    bound = -stdtrit(rest - 1, _ERROR_RATE / (4 * len(active) * len(firsts)))
    found = np.zeros(len(active), dtype=bool)
    for x, size, beyond in (
        (np.log(square), square, _BEYOND**2),
        (mean, np.abs(mean), _BEYOND),
    ):
        found |= size[:batches].max(axis=0) > beyond * size[batches:].max(axis=0)
        spread, usual = x[batches:].std(axis=0, ddof=1), x[batches:].mean(axis=0)
        for k in firsts:
            wide = bound * spread * np.sqrt(1 / k + 1 / rest)
            found |= np.abs(x[:k].mean(axis=0) - usual) > wide
    return found


def _monte_carlo_errors(
    record: StepRecord, active: np.ndarray, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """How far means and standard deviations of all draws may be off by chance, at a level.

    By batches of successive draws. Where a chain is slow its batches are too short, and the
    effective sample size of the draws that were kept, which see no faster motion, says more.
    """
    wide = -stdtrit(len(record.sizes) - 1, level)
    kept = np.array(record.kept)[None, :, active]
    sd = np.sqrt(record.variance[active])
    ess, ess_sd = (
        np.clip(e * record.done / kept.shape[1], 4, record.done) for e in _effective(kept)
    )
    mean, variance = (error[active] for error in record.errors())
    return (
        np.maximum(wide * mean, -stdtrit(ess - 1, level) * sd / np.sqrt(ess)),
        np.maximum(
            wide * variance / (2 * np.where(sd > 0, sd, 1.0)),
            -stdtrit(ess_sd - 1, level) * sd / np.sqrt(2 * ess_sd),
        ),
    )


def _effective(kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Effective sample sizes of means and standard deviations of draws, shape (1, k, a)."""
    mean, sd = (
        np.asarray(array_stats.ess(kept, chain_axis=0, draw_axis=1, method=method))
        for method in ("mean", "sd")
    )
    return mean, np.fmin(mean, sd)


def _heat(record: StepRecord, temperature: float, remedies: list[str]) -> list[Check]:
    """Kinetic temperature against that of the dynamics without noise of gradients."""
    found = np.array(record.temperatures)
    if np.isnan(found).any() or len(found) < 8 or not temperature < np.inf:
        return []
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
