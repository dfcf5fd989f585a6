r"""Whether a chain can be trusted: the checks behind the warnings at the end of sampling.

What a chain samples differs from the posterior by a factor :math:`e^{b(\theta)}`, where

.. math:: b(\theta) = \log E_u\, e^{\hat\ell - \hat\sigma^2 / 2} - \ell(\theta).

Rows are drawn independently, so b is a sum over rows: it needs no normality and no small variance.
`estimate_errors` computes it at chosen draws, most of them where the estimate is noisiest, and
reweighting those by :math:`e^{-b}` shows how far means and standard deviations are off.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from pymc_subsample.control_variates import Expansion
from pymc_subsample.control_variates.reference import Reference
from pymc_subsample.estimators import VARIANCE_BOUND, Moments

SUBSET_ACCEPTANCE_BOUND = 0.5
# The share of draws that may exceed twice the variance bound.
EXCESS_BOUND = 0.05
ACCEPTANCE_BOUND = 0.3
DIVERGENCE_BOUND = 0.01
SHIFT_BOUND = 0.1
STRETCH_BOUND = 0.05

_FOLD = 256
# Draws among which those to check are chosen: evenly spread ones, and the noisiest.
_KEPT = 512
_NOISIEST = 16
# Rows of the first look at the estimate; where that leaves a doubt, all are read, at fewer draws.
_FIRST_LOOK = 5_000
_FIRST_DRAWS = 16
_SECOND_DRAWS = 4
# Mean squared distance per parameter up to which the set-up's residual moments hold.
_PREDICTED = 2.0


@dataclass
class ChainRecord:
    """What a chain did after tuning.

    Attributes
    ----------
    draws, done : int
        Draws to come in all, and so far.
    divergences : int
        Divergent draws.
    variance, acceptance, subset_accepted : float
        Sums of the estimated variance of the log-likelihood, of the acceptance rate and of the
        share of accepted refreshes.
    excess : int
        Draws whose estimated variance exceeds twice its bound.
    mean, square : ndarray, shape (d,), (d, d)
        Mean of the draws and sum of squared deviations from it.
    kept : list of (float, int, ndarray)
        Evenly spread draws: estimated variance, number, theta.
    noisiest : list of (float, int, ndarray)
        The draws of largest estimated variance, in increasing order.
    pending : list of ndarray
        Draws not yet part of `mean` and `square`.
    """

    draws: int = 0
    done: int = 0
    divergences: int = 0
    variance: float = 0.0
    acceptance: float = 0.0
    subset_accepted: float = 0.0
    excess: int = 0
    mean: np.ndarray = field(default_factory=lambda: np.zeros(0))
    square: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    kept: list[tuple[float, int, np.ndarray]] = field(default_factory=list)
    noisiest: list[tuple[float, int, np.ndarray]] = field(default_factory=list)
    pending: list[np.ndarray] = field(default_factory=list)

    def add(self, theta: np.ndarray, info: dict[str, float]):
        """Add a draw, shape (d,), and what its transition reported."""
        variance = info["loglik_variance"]
        self.variance += variance
        self.acceptance += info["acceptance_rate"]
        self.subset_accepted += info["subset_accepted"]
        self.excess += not variance <= 2 * VARIANCE_BOUND
        self.pending.append(theta)
        entry = (variance, self.done, theta)
        self.done += 1
        if self.done * _KEPT // max(self.draws, 1) > len(self.kept):
            self.kept.append(entry)
        if len(self.noisiest) < _NOISIEST or variance > self.noisiest[0][0]:
            insort(self.noisiest, entry, key=lambda e: e[0])
            del self.noisiest[:-_NOISIEST]
        if len(self.pending) == _FOLD:
            self.fold()

    def fold(self):
        """Merge pending draws into mean and squares."""
        if not self.pending:
            return
        new = np.array(self.pending)
        self.pending = []
        before, count = self.done - len(new), len(new)
        mean = new.mean(axis=0)
        centred = new - mean
        if not before:
            self.mean, self.square = mean, centred.T @ centred
            return
        shift = mean - self.mean
        self.mean = self.mean + shift * count / (before + count)
        between = np.outer(shift, shift) * (before * count / (before + count))
        self.square = self.square + centred.T @ centred + between

    def chosen(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Draws to check, shape (k, d), and the share of all draws each stands for, shape (k,).

        They are the `size` noisiest of all draws and, of the evenly spread ones, the `size`
        noisiest, every sixth or so of the next ones, and a few of the rest.
        """
        top = self.noisiest[-size:]
        taken = {number for _, number, _ in top}
        spread = sorted((e for e in self.kept if e[1] not in taken), key=lambda e: -e[0])
        strata = [spread[:size], spread[size : 4 * size], spread[4 * size :]]
        entries, shares = list(top), [1 / self.done] * len(top)
        for stratum, most in zip(strata, (size, size // 2, 3 * size // 2), strict=True):
            if not stratum:
                continue
            places = np.unique(np.linspace(0, len(stratum) - 1, most).astype(int))
            entries += [stratum[i] for i in places]
            share = (1 - len(top) / self.done) * len(stratum) / len(spread) / len(places)
            shares += [share] * len(places)
        return np.array([theta for *_, theta in entries]), np.array(shares) / np.sum(shares)

    def standardise(self, thetas: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Return draws, shape (k, d), less the mean and over the standard deviation, (k, a)."""
        sd = np.sqrt(np.diag(self.square)[active] / max(self.done - 1, 1))
        return (thetas - self.mean)[:, active] / np.where(sd > 0, sd, 1.0)

    def distance(self, reference: np.ndarray, active: np.ndarray) -> float:
        """Distance of the mean from the reference, in posterior standard deviations."""
        self.fold()
        cov = self.square[np.ix_(active, active)] / max(self.done - 1, 1)
        scale = np.sqrt(np.diag(cov))
        scale = np.where(scale > 0, scale, 1.0)
        shift = (self.mean - reference)[active] / scale
        solved = np.linalg.lstsq(cov / np.outer(scale, scale), shift, rcond=1e-10)[0]
        return float(np.sqrt(max(shift @ solved, 0.0)))


def whiten(factor: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Divide by a factor, shape (a, a), or a diagonal, shape (1, a), along the first axis."""
    if len(factor) == 1 and len(x) > 1:
        return (x.T / factor[0]).T
    return np.linalg.solve(factor, x)


@dataclass(frozen=True)
class EstimateErrors:
    """Errors of the log-likelihood estimate at some points.

    Attributes
    ----------
    variance : ndarray, shape (k,)
        Variance of the estimate.
    bias : ndarray, shape (k,)
        b: log of the mean likelihood estimate minus the log-likelihood.
    """

    variance: np.ndarray
    bias: np.ndarray


def perturbation(bias: np.ndarray, shares: np.ndarray, z: np.ndarray) -> tuple[float, float]:
    """Estimate how far posterior means and standard deviations are off.

    Parameters
    ----------
    bias : ndarray, shape (k,)
        b at some draws.
    shares : ndarray, shape (k,)
        Share of all draws that each stands for.
    z : ndarray, shape (k, a)
        The draws, standardised.

    Returns
    -------
    shift, stretch : float
        Largest error of a mean, in standard deviations, and largest relative error of a standard
        deviation.
    """
    if not np.all(np.isfinite(bias)):
        return np.inf, np.inf
    weights = shares * np.exp(np.min(bias) - bias)
    weights = weights / weights.sum()
    change = (weights - shares) @ np.column_stack([z, z**2])
    shift, square = np.split(change, 2)
    return float(np.max(np.abs(shift))), float(np.max(np.abs(square - shift**2)) / 2)


def estimate_errors(
    expansion: Expansion,
    reference: Reference,
    thetas: np.ndarray,
    batches: Iterable[np.ndarray],
    subsample_size: int,
    temperature: float,
) -> EstimateErrors:
    r"""Variance and bias of the log-likelihood estimate at points theta, shape (k, d).

    With x = w d, centred over all rows, and m rows drawn with replacement,

    .. math:: b = m \log \frac1n \sum_i e^{x_i - x_i^2 / 2} + \frac{\sigma^2 + \sigma^4}{2 m}.

    The last term stands for the subsample's own mean in the estimated variance.

    Parameters
    ----------
    expansion, reference
        Compiled model and expansion point.
    thetas : ndarray, shape (k, d)
        Points.
    batches : iterable of ndarray, shape (width, rows)
        Packed rows: all of them, or a random sample.
    subsample_size : int
        Rows per estimate.
    temperature : float
        Divides the log-likelihood.
    """
    m = subsample_size
    weight = expansion.n_rows / (m * temperature)
    points = [expansion.parameters(theta)[0] for theta in thetas]
    gradient = np.zeros(expansion.phi_size)
    shift: np.ndarray | None = None
    sums = np.zeros((5, len(points)))
    total = 0
    for rows in batches:
        expansion.anchor(reference.center, rows)
        x = np.empty((len(points), rows.shape[1]))
        for out, phi in zip(x, points, strict=True):
            expansion.difference(phi, rows, reference.center, 1.0, 0.0, out, gradient)
        x *= weight
        if shift is None:
            shift = x.mean(axis=1)
        x -= shift[:, None]
        exponent = x - 0.5 * x * x
        tilted = np.exp(exponent)
        for total_of, values in zip(
            sums, (x, x * x, np.expm1(exponent), x * tilted, x * x * tilted), strict=True
        ):
            total_of += values.sum(axis=1)
        total += rows.shape[1]
    first, second, zero, one, two = sums / total
    variance = m * np.maximum(second - first**2, 0.0)
    # Move the centre from the first batch's mean to that of all: exactly but for O(first^3).
    centred = zero + first * one + 0.5 * first**2 * two
    with np.errstate(invalid="ignore"):
        bias = m * (np.log1p(centred) - first - 0.5 * first**2)
    return EstimateErrors(variance, bias + (variance + variance**2) / (2 * m))


@dataclass(frozen=True)
class Check:
    """One number against its bound.

    Attributes
    ----------
    name : str
        What was checked.
    value, bound : float
        The number and where it fails.
    passed : bool
        Whether the number is within its bound.
    advice : str
        What was found and what to change, as a sentence.
    """

    name: str
    value: float
    bound: float
    passed: bool
    advice: str


def check_chain(
    record: ChainRecord,
    *,
    expansion: Expansion,
    reference: Reference,
    active: np.ndarray,
    predicted: Moments,
    factor: np.ndarray,
    subsample_size: int,
    temperature: float,
    given_reference: bool,
) -> list[Check]:
    """Check one HMC-ECS chain.

    Parameters
    ----------
    record : ChainRecord
        What the chain did.
    expansion, reference
        Compiled model and expansion point.
    active : ndarray, shape (a,)
        Elements of theta that the chain moved.
    predicted : Moments
        Residual moments over all rows around the reference.
    factor : ndarray, shape (a, a) or (1, a)
        Of the covariance within which `predicted` holds.
    subsample_size : int
        Rows per estimate.
    temperature : float
        Divides the log-likelihood.
    given_reference : bool
        Whether the user chose the reference: a distant one is then reported even where the other
        checks pass. One that was found fails only together with them.

    Returns
    -------
    list of Check
        Variance of the estimate, acceptance of the subsample's refreshes, perturbation of the
        posterior, distance from the reference point, divergences and acceptance of the moves.
    """
    record.fold()
    n, size = record.done, len(active)

    def look(size, batches):
        thetas, shares = record.chosen(size)
        errors = estimate_errors(expansion, reference, thetas, batches, subsample_size, temperature)
        off = perturbation(errors.bias, shares, record.standardise(thetas, active))
        return float(shares @ errors.variance), *off

    if expansion.n_rows <= _FIRST_LOOK:
        variance, shift, stretch = look(_FIRST_DRAWS, expansion.chunks())
    else:
        index = np.random.default_rng(0).integers(0, expansion.n_rows, _FIRST_LOOK)
        variance, shift, stretch = look(_FIRST_DRAWS, [expansion.take(index)])
        kept = np.array([theta for *_, theta in record.kept])
        z = whiten(factor, (kept - reference.theta)[:, active].T)
        clear = (
            variance < VARIANCE_BOUND / 2
            and shift < SHIFT_BOUND / 2
            and stretch < STRETCH_BOUND / 2
            and np.max(predicted.variance(subsample_size, temperature)) < VARIANCE_BOUND
            and np.max(predicted.perturbation(subsample_size, temperature)) < SHIFT_BOUND
            and np.mean(z**2) < _PREDICTED
        )
        if not clear:
            variance, shift, stretch = look(_SECOND_DRAWS, expansion.chunks())
    remedies = [f"increase subsample_size (now {subsample_size})"]
    remedies += ["use control_variate_order=2"] if expansion.order < 2 else []
    remedies += ["give a better reference"] if given_reference else []
    checks = [
        *_noise_checks(record, variance, _sentence(remedies)),
        _perturbation_check(shift, stretch, _sentence([*remedies, "look for outlying rows"])),
    ]
    if n > 2 * size:
        harmless = not given_reference and all(check.passed for check in checks)
        checks.append(_distance_check(record, reference, active, harmless, given_reference))
    return [*checks, *_dynamics_checks(record)]


def _sentence(remedies: list[str]) -> str:
    *first, last = remedies
    text = f"{', '.join(first)} or {last}." if first else f"{last}."
    return text[0].upper() + text[1:]


def _noise_checks(record: ChainRecord, measured: float, advice: str) -> list[Check]:
    n = record.done
    variance, excess = max(record.variance / n, measured), record.excess / n
    accepted = record.subset_accepted / n
    return [
        Check(
            "loglik_variance",
            variance,
            VARIANCE_BOUND,
            variance <= VARIANCE_BOUND and excess <= EXCESS_BOUND,
            f"The log-likelihood estimate is too noisy: its variance is {variance:.3g} on average "
            f"(should be at most {VARIANCE_BOUND:g}) and above {2 * VARIANCE_BOUND:g} in "
            f"{excess:.0%} of the draws, so the posterior can be wrong. {advice}",
        ),
        Check(
            "subset_accepted",
            accepted,
            SUBSET_ACCEPTANCE_BOUND,
            accepted >= SUBSET_ACCEPTANCE_BOUND,
            f"Only {accepted:.0%} of the subsample's refreshes were accepted (should be at least "
            f"{SUBSET_ACCEPTANCE_BOUND:.0%}): the chain may be stuck on one subsample. Increase "
            "subsample_size or n_blocks.",
        ),
    ]


def _distance_check(record, reference, active, harmless: bool, given: bool) -> Check:
    """Say whether the reference is distant, unless that is known to do no harm."""
    distance, bound = record.distance(reference.theta, active), 3 + np.sqrt(len(active))
    return Check(
        "reference_distance",
        distance,
        bound,
        harmless or distance <= bound,
        f"The reference point is stale: it lies {distance:.3g} posterior standard deviations from "
        f"the mean of the draws (should be at most {bound:.3g}), and the error of the control "
        "variates grows with that distance. "
        + ("Leave reference=None, or give" if given else "Tune for longer, or give as reference=")
        + " a point nearer the posterior mean.",
    )


def _perturbation_check(shift: float, stretch: float, advice: str) -> Check:
    value = max(shift / SHIFT_BOUND, stretch / STRETCH_BOUND)
    return Check(
        "perturbation",
        value,
        1.0,
        value <= 1.0,
        "The subsample perturbs the posterior: the rows' residuals are skewed or heavy-tailed, and "
        f"posterior means are off by about {shift:.2g} standard deviations (should be at most "
        f"{SHIFT_BOUND:g}), standard deviations by about {stretch:.0%} (at most "
        f"{STRETCH_BOUND:.0%}). {advice}",
    )


def _dynamics_checks(record: ChainRecord) -> list[Check]:
    diverging, accepted = record.divergences / record.done, record.acceptance / record.done
    return [
        Check(
            "divergences",
            diverging,
            DIVERGENCE_BOUND,
            diverging <= DIVERGENCE_BOUND,
            f"{diverging:.0%} of the trajectories diverged (should be at most "
            f"{DIVERGENCE_BOUND:.0%}): regions of high curvature may be missed. Increase "
            "target_accept or tune, or reparameterise (a non-centred hierarchy, for instance).",
        ),
        Check(
            "acceptance_rate",
            accepted,
            ACCEPTANCE_BOUND,
            accepted >= ACCEPTANCE_BOUND,
            f"Only {accepted:.0%} of the moves were accepted (should be at least "
            f"{ACCEPTANCE_BOUND:.0%}): the step size does not fit. Increase tune.",
        ),
    ]
