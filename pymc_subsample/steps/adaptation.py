"""What an HMC-ECS chain changes while it tunes: mass matrix, reference point and subsample."""

from typing import TYPE_CHECKING

import numpy as np

from pymc_subsample.control_variates.reference import reference_at
from pymc_subsample.control_variates.residuals import residuals_around
from pymc_subsample.estimators import VARIANCE_AIM, VARIANCE_BOUND
from pymc_subsample.kernels.estimates import BLOCK_POISSON
from pymc_subsample.likelihood import TallModelError
from pymc_subsample.steps import remarks
from pymc_subsample.steps.notices import Notice
from pymc_subsample.steps.setup import far_points
from pymc_subsample.steps.sizing import choose_always, choose_subsample
from pymc_subsample.steps.subsample import Subsample

if TYPE_CHECKING:
    from pymc_subsample.steps.hmc_ecs import HMCECS

# Of the subsample, in one look at a chain.
_MOST_GROWTH = 4.0


def adapt(step: "HMCECS", theta: np.ndarray, info: dict[str, float]) -> Notice | None:
    """Record a draw, and change what recent ones ask for; return what is to be said of it."""
    tuning, before, cause = step.tuning, step.subsample_size, ""
    always = len(step.subsample.always)
    tuning.add(theta, info["acceptance_rate"], info["loglik_variance"])
    if not tuning.due():
        return None
    better = tuning.better_factor()
    moved = not step.given["reference"] and tuning.should_recentre(step.reference.theta)
    if better is not None:
        tuning.factor = better
    if moved:
        cause = "the chain settled away from the reference point"
        recentre(step, theta)
    elif step._may_resize and tuning.noise() > 0.9 * VARIANCE_BOUND:
        cause = "the estimate is noisier on the way than was predicted"
        enlarge(step, tuning.noise() / VARIANCE_AIM)
    elif step._may_resize and tuning.peak() > 2 * VARIANCE_BOUND:
        cause = "the estimate is noisier in the tails than was predicted"
        cover(step)
    changed = moved or better is not None
    if changed and step._kind == BLOCK_POISSON:
        step.start_at_reference = True  # inside the new ellipsoid
    tuning.restart(step.step_size if changed else None)
    same = step.subsample_size == before and len(step.subsample.always) == always
    return None if same else remarks.changed(step, cause, before)


def recentre(step: "HMCECS", theta: np.ndarray) -> None:
    """Move the reference to the mean of recent draws and choose the subsample size again."""
    center = step._settled(theta)
    reference = reference_at(step._expansion, center, step.temperature)
    far = far_points(step._kind, center, step.tuning.factor, step._active, step.rng)
    try:
        residuals = residuals_around(step._expansion, reference, step.tuning.pilot(), far)
    except TallModelError:
        return  # impossible rows on the way: stay, and let the end of the chain judge
    m = step.given["subsample_size"]
    always, step.moments = choose_always(step._kind, residuals, step.temperature, m)
    step.reference = reference
    if m is None:
        _resize(step, None, always)
    step._forget()


def cover(step: "HMCECS") -> None:
    """Choose the subsample for the draws where the estimate was noisiest, if that takes more.

    The moments are those at these draws from then on: more than at usual ones.
    """
    at = step.reference.theta
    far = far_points(step._kind, at, step.tuning.factor, step._active, step.rng)
    try:
        residuals = residuals_around(step._expansion, step.reference, step.tuning.noisiest(), far)
    except TallModelError:
        return
    always, moments = choose_always(step._kind, residuals, step.temperature, None)
    m, _ = choose_subsample(step._kind, moments, step.temperature, None, step.given["n_blocks"])
    m = min(m, int(_MOST_GROWTH) * step.subsample_size)  # one draw may be anywhere
    if m + len(always) > step.subsample_size + len(step.subsample.always):
        step.moments = moments
        _resize(step, m, always)


def enlarge(step: "HMCECS", ratio: float) -> None:
    """Take more rows: the variance was predicted at a few points, and is larger on the way."""
    unit, before = step.given["n_blocks"] or 10, step.subsample_size
    wanted = before * min(ratio, _MOST_GROWTH) if np.isfinite(ratio) else 0.0
    wanted = min(-int(-wanted // unit), step._largest // unit) * unit
    if wanted > before:
        _resize(step, wanted, step.subsample.always)


def _resize(step: "HMCECS", m: int | None, always: np.ndarray) -> None:
    """Take a subsample of m rows, or of as many as the moments ask for."""
    step.subsample_size, step.n_blocks = choose_subsample(
        step._kind, step.moments, step.temperature, m, step.given["n_blocks"]
    )
    step.subsample = Subsample(step._kind, step.subsample_size, step.n_blocks, always)
    step._forget()
