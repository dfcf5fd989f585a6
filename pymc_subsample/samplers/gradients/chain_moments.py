"""How far means and standard deviations of a chain of integration steps are off, at least."""

import numpy as np
from scipy.special import stdtrit

from pymc_subsample.diagnostics.look import Look
from pymc_subsample.diagnostics.record import StepRecord
from pymc_subsample.diagnostics.scores import (
    SMALLEST,
    best_covariance,
    covariance_of,
    moment_series,
)
from pymc_subsample.samplers.gradients.draw_gradients import REGRESSED

# Of a chain's measured errors, all directions together. A choice: one chain in a thousand.
ERROR_RATE = 0.001
# Times as many kept draws as parameters, from which on their covariance says more than variances. A
# choice: half of `beyond_draws.KNOWN`, as at most some hundreds are kept.
KNOWN = 5
# How many times as far as any other the first batches of draws are, where nothing else says that
# they stand out. A choice: of 32 batches of a settled chain none is.
_BEYOND = 2.0
# Share of a standard deviation below which that of most draws is rounding. A choice: single
# precision has as many digits.
_LOST = 1e-6


def moment_errors(
    record: StepRecord,
    active: np.ndarray,
    look: Look,
    known: np.ndarray | None,
    trusted: bool,
) -> tuple[float, float]:
    """Least errors of a standard deviation and a mean by Stein's identities; see `scores`.

    The look is of elements `active`. `known` is a guess of the posterior's covariance, which is
    `trusted` more than that of draws.
    """
    size, draws = len(active), np.array(record.thinned)[:, active]
    own, dense = covariance_of(draws, KNOWN * size), len(draws) > KNOWN * size
    guesses = [own] if known is None else [known, own]
    if len(look.usual) >= REGRESSED:
        # A regression hides an error that other directions drown; a full step, one that is alone.
        best = best_covariance(look.usual, look.score, guesses)
        tried = [(best, True), (own, False)]
    else:
        tried = [(guesses[0] if trusted or not dense else own, False)]
    # Of the draws' own covariance, whose steps are too long by that share.
    mean_ess, _ = record.effective(active)
    excess = (size + 1) / min(len(draws), max(float(np.nanmedian(mean_ess)), size + 1))
    rate = ERROR_RATE / len(tried)
    # Two sides, of means and of standard deviations.
    noise = _monte_carlo_errors(record, active, rate / (4 * size))
    errors = [
        _errors(
            record, active, look, guess, regressed, excess * (guess is own and dense), noise, rate
        )
        for guess, regressed in tried
    ]
    worst, off = np.max(errors, axis=0)
    return float(worst), float(off)


def _errors(
    record: StepRecord,
    active: np.ndarray,
    look: Look,
    covariance: np.ndarray,
    regressed: bool,
    excess: float,
    noise: tuple[np.ndarray, np.ndarray],
    rate: float,
) -> tuple[float, float]:
    """Least errors by series that a guess of the covariance makes.

    Their means are variances that may be too small by a share `excess` of the guess; `noise` is
    that of the chain's own moments. False alarms have a probability `rate`, of all elements
    together.
    """
    guess = np.diag(covariance)
    means, variances = moment_series(look.usual, look.score @ covariance, guess, regressed)
    scale = np.sqrt(np.maximum(variances.mean(axis=0), SMALLEST * guess))
    mean, sd = record.mean[active], np.sqrt(record.variance[active])
    freedom = len(means) - 1 - regressed
    wide = -stdtrit(freedom, rate / (4 * len(active))) / np.sqrt(freedom)
    mean_noise, own_noise = noise
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
    # As above: 4.
    error = -stdtrit(freedom, rate / 4) * ratios.std() / np.sqrt(freedom)
    low, high = (max(ratios.mean() + x, SMALLEST) for x in (-error, error + excess))
    return float(max(np.sqrt(own / high) - 1, 1 - np.sqrt(own / low), 0.0))


def from_start(record: StepRecord, active: np.ndarray) -> float | None:
    """Return what the first eighth of the draws does to an sd or, halved, to a mean, in sds.

    Beyond Monte Carlo error, where these draws stand out from all later ones. None of few draws.
    """
    batches = len(record.sizes) // 8
    if not batches or record.done < 64:  # a choice: two draws in each of 32
        return None
    rest = record.without(batches)
    level = ERROR_RATE / (4 * len(active))
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
    return float(np.max(np.where(counts, np.maximum(stretch, 0.5 * shift), 0.0), initial=0.0))


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
    bound = -stdtrit(rest - 1, ERROR_RATE / (4 * len(active) * len(firsts)))
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
    sd = np.sqrt(record.variance[active])
    ess, ess_sd = (
        # At least four, so that t has a variance.
        np.clip(e * record.done / len(record.thinned), 4, record.done)
        for e in record.effective(active)
    )
    mean, variance = (error[active] for error in record.errors())
    return (
        np.maximum(wide * mean, -stdtrit(ess - 1, level) * sd / np.sqrt(ess)),
        np.maximum(
            wide * variance / (2 * np.where(sd > 0, sd, 1.0)),
            -stdtrit(ess_sd - 1, level) * sd / np.sqrt(2 * ess_sd),
        ),
    )
