"""What an HMC-ECS chain changes while it tunes: mass matrix, reference point and subsample."""

from time import thread_time
from typing import TYPE_CHECKING

import numpy as np

from pymc_subsample.chain.ellipsoid import far_points
from pymc_subsample.chain.guards import company
from pymc_subsample.chain.integrating import each
from pymc_subsample.chain.notices import Notice
from pymc_subsample.chain.nuts_instead import Outgrown, OutgrownError, beside_all_rows
from pymc_subsample.chain.pm_sample import is_sampling
from pymc_subsample.chain.sizing import all_rows, choose_always, choose_subsample, sized
from pymc_subsample.chain.tuning import settled
from pymc_subsample.diagnostics.checks import amount, excess
from pymc_subsample.diagnostics.estimate_errors import Estimator, errors_by_few, read_few
from pymc_subsample.diagnostics.look import evenly_spread
from pymc_subsample.diagnostics.perturbation import perturbation, standardised
from pymc_subsample.diagnostics.record import most_thinned
from pymc_subsample.expansion.estimators import VARIANCE_AIM, VARIANCE_BOUND, ResidualMoments
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.expansion.residuals import residuals_around
from pymc_subsample.kernels.estimates import BLOCK_POISSON, PERTURBED
from pymc_subsample.model import TallModelError
from pymc_subsample.samplers.hmc_ecs.subsample import Subsample

if TYPE_CHECKING:
    from pymc_subsample.samplers.hmc_ecs.step import HMCECS

# Of the subsample, in one look at a chain. A choice: there are three looks, so that 64 times as
# many rows can be reached, and one noisy draw costs four times as much at the most.
_MOST_GROWTH = 4.0
# Variance at a draw from which on it is looked at, over the bound: few draws perturb much. A
# choice: the variance of those beside it is within the bound.
_COVERED = 0.5
# Of the perturbation that is tolerable. A choice: perturbations go with the square of the size,
# so that this takes 1.4 times as many rows as the bound itself.
_PERTURBED_AIM = 0.5


def forget(step: "HMCECS") -> None:
    """Drop what is packed of the subsample's rows."""
    step.subsample.rows = step.subsample.exact = None


def adapt(step: "HMCECS", theta: np.ndarray, info: dict[str, float]) -> Notice | None:
    """Record a draw, and change what recent ones ask for; return what is to be said of it."""
    tuning, before, cause = step.tuning, step.subsample_size, ""
    always = len(step.subsample.always)
    tuning.add(
        theta, info["acceptance_rate"], info["loglik_variance"], info["diverging"],
        info["crossed"] > 0 and info["n_steps"] > step.transitions_per_draw,
    )  # fmt: skip
    step.pace.add(info["n_steps"])
    if not tuning.due():
        return None
    better = tuning.better_factor()
    moved = not step.given["reference"] and tuning.should_recentre(step.reference.theta)
    if better is not None:
        tuning.factor = better
    try:
        if moved:
            cause = "the chain settled away from the reference point"
            recentre(step, theta)
        # a choice: before the bound
        elif step.may_resize and tuning.noise() > 0.9 * VARIANCE_BOUND:
            cause = "the estimate is noisier on the way than was predicted"
            enlarge(step, tuning.noise() / VARIANCE_AIM)
        elif step.may_cover and tuning.peak() > _COVERED * VARIANCE_BOUND:
            cause = "the estimate is noisier in the tails than was predicted"
            cover(step)
    except TallModelError:
        cause = "recent draws make rows impossible that the subsample was without"
        _read_all(step)
    if step.may_resize and tuning.is_last_look:
        ratio = np.sqrt(measured_perturbation(step) / _PERTURBED_AIM)  # it falls like m^-2
        if ratio > 1:
            cause = "the estimate perturbs the posterior by more than was predicted"
            enlarge(step, ratio)
    changed = moved or better is not None
    calmer = tuning.calm()
    if changed and step.kind == BLOCK_POISSON:
        step.start_at_reference = True  # inside the new ellipsoid
    tuning.restart(step.step_size if changed or calmer else None)
    same = step.subsample_size == before and len(step.subsample.always) == always
    notice = None if same else _changed(step, cause, before, always)
    step.pace = Pace()
    return notice


def recentre(step: "HMCECS", theta: np.ndarray) -> None:
    """Move the reference to the mean of recent draws and choose the subsample size again."""
    center = settled(step, theta)
    reference = reference_at(step.expansion, center, step.temperature)
    far = far_points(step.kind, center, step.tuning.factor, step.active, step.rng)
    residuals = residuals_around(step.expansion, reference, step.tuning.pilot(), far)
    step.reference = reference
    _take(
        step, *sized(
            step.kind, residuals, step.temperature,
            step.given["subsample_size"], step.given["n_blocks"],
        )
    )  # fmt: skip


def cover(step: "HMCECS") -> None:
    """Choose the subsample for the draws where the estimate was noisiest, if that takes more.

    The moments are those at these draws from then on: more than at usual ones.
    """
    at = step.reference.theta
    far = far_points(step.kind, at, step.tuning.factor, step.active, step.rng)
    residuals = residuals_around(step.expansion, step.reference, step.tuning.noisiest(), far)
    given = step.given["subsample_size"]
    always, moments = choose_always(step.kind, residuals, step.temperature)
    subsample_size, _ = choose_subsample(
        step.kind, moments, step.temperature, given, step.given["n_blocks"]
    )
    subsample_size = min(
        subsample_size, int(_MOST_GROWTH) * step.subsample_size
    )  # one draw may be anywhere
    if subsample_size + len(always) > step.subsample_size + len(step.subsample.always):
        _resize(step, subsample_size, always, moments)


def _read_all(step: "HMCECS") -> None:
    """Read all rows from now on, and start again: the chain may be where some are impossible.

    Where the user chose the subsample, the chain's end judges.
    """
    if step.may_resize and not step.exact:
        blocks, temperature = step.given["n_blocks"], step.temperature
        _take(step, *all_rows(step.kind, step.n_rows, temperature, blocks))
        step.start_at_reference = True


def estimator(step: "HMCECS") -> Estimator:
    """Return how a step estimates the log-likelihood now."""
    return Estimator(
        expansion=step.expansion,
        reference=step.reference,
        subsample_size=step.subsample_size,
        temperature=step.temperature,
        always=step.subsample.always,
    )


def measured_perturbation(step: "HMCECS") -> float:
    """Return errors of means and standard deviations at recent draws, over what is tolerable.

    By some thousands of random rows, as the check at the chain's end begins.
    """
    recent = step.tuning.recent()
    thetas = evenly_spread(recent, most_thinned(recent.shape[1]))
    shares, by = np.full(len(thetas), 1 / len(thetas)), estimator(step)
    errors = errors_by_few(by, read_few(by, thetas), shares)
    off = perturbation(errors.weights(), shares, standardised(thetas[:, step.active], shares))
    return excess(off.shift, off.stretch)


def enlarge(step: "HMCECS", ratio: float) -> None:
    """Take more rows, if the ratio says so: what was predicted at a few points is larger."""
    # 10: sizes that divide well.
    unit, before = step.given["n_blocks"] or 10, step.subsample_size
    wanted = before * min(ratio, _MOST_GROWTH) if np.isfinite(ratio) else 0.0
    wanted = -int(-wanted // unit) * unit
    if wanted > before:
        _resize(step, wanted, step.subsample.always, step.moments)


def _resize(
    step: "HMCECS", subsample_size: int, always: np.ndarray, moments: ResidualMoments
) -> None:
    """Take m rows beside those that are read always; all rows if that is as many."""
    blocks, temperature = step.given["n_blocks"], step.temperature
    if step.kind == PERTURBED and subsample_size + len(always) >= step.n_rows:
        _take(step, *all_rows(step.kind, step.n_rows, temperature, blocks))
    else:
        size = choose_subsample(step.kind, moments, temperature, subsample_size, blocks)
        _take(step, always, moments, *size)


def _take(
    step: "HMCECS", always: np.ndarray, moments: ResidualMoments, subsample_size: int, n_blocks: int
) -> None:
    step.moments, step.subsample_size, step.n_blocks = moments, subsample_size, n_blocks
    step.subsample = Subsample(step.kind, step.subsample_size, step.n_blocks, always)
    forget(step)


def _changed(step: "HMCECS", cause: str, before: int, always: int) -> Notice:
    """Say why the subsample has another size now, and which other steps have a part in it.

    A run that has become so slow that NUTS on all rows saves most of its time ends, unless a chain
    has draws after tuning.
    """
    others = company(step)
    why = f"while {others}, {cause}" if others else cause
    now, were = step.subsample_size, len(step.subsample.always) != always
    drawn = step.pace.per_draw(step.rows_read / (before + always))
    beside = beside_all_rows(step, drawn)
    size = (
        f"{now:,} {each(step)} ({now / step.n_rows:.2%}; {before:,} before){also(step)}"
        f"{f' ({always:,} before)' * were}"
    )
    if step.exact:
        size = f"all {step.n_rows:,} {each(step)} ({before + always:,} before)"
    if beside.use and step.may_resize:
        said = (
            f"HMCECS: {why}; an estimate has to read {size}, and a draw takes about "
            f"{amount(drawn[0])} s{beside.said}. To continue with fewer {each(step)} "
            "and an estimate that is too noisy, use HMCECS(subsample_size=...). If no chain has "
            "draws yet, the run ends here. Otherwise it continues, and you can interrupt it and "
            "keep its draws."
        )
        if not is_sampling():
            raise OutgrownError(said)
        return Outgrown(cause, said)
    reads = "reads" if step.exact else "draws"
    return Notice(
        cause, f"HMCECS: {why}; a chain's subsample changed: it {reads} {size}{beside.said}"
    )


def also(step: "HMCECS") -> str:
    """Say how many rows, or units, are read at every draw."""
    e = len(step.subsample.always)
    return f" plus {e:,} outlying {each(step)} read at every draw" if e else ""


class Pace:
    """Time and gradients of the draws since it was made."""

    def __init__(self) -> None:
        self._began, self._spent = thread_time(), 0.0
        self._draws, self._gradients = 0, 0.0

    def add(self, gradients: float) -> None:
        """Count a draw that has just been made; what is adapted after it is no part of its time."""
        self._spent = thread_time() - self._began
        self._draws, self._gradients = self._draws + 1, self._gradients + gradients

    def per_draw(self, growth: float) -> tuple[float, float]:
        """Seconds and gradients per draw, were that many times as many rows read."""
        return max(growth, 1.0) * self._spent / self._draws, self._gradients / self._draws
