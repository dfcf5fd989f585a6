r"""Whether a chain can be trusted: the checks behind the warnings at the end of sampling.

What a chain samples differs from the posterior by a factor :math:`e^{b(\theta)}`, where

.. math:: b(\theta) = \log E_u\, e^{\hat\ell - \hat\sigma^2 / 2} - \ell(\theta).

Draws reweighted by :math:`w = e^{-b}` follow the posterior, so that by the Cauchy-Schwarz
inequality means are off by at most sd(w) / mean(w) standard deviations, and variances by about
:math:`\sqrt2` times that share. Rows are drawn independently, so b is a sum over rows: it needs no
normality and no small variance. `estimate_errors` computes it at a few draws.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from pymc_subsample.control_variates import Expansion
from pymc_subsample.control_variates.reference import Reference
from pymc_subsample.estimators import VARIANCE_BOUND, Moments

SUBSET_ACCEPTANCE_BOUND = 0.5
# The share of draws that may exceed twice the variance bound.
EXCESS_BOUND = 0.05
PERTURBATION_BOUND = 0.1

_FOLD = 256
# Draws at which the estimate is checked, and rows of the first look at it.
_KEPT = 32
_FIRST_LOOK = 10_000
# Where that leaves a doubt, all rows are read at these draws.
_SECOND_LOOK = 8
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
    variance, subset_accepted : float
        Sums of the estimated variance of the log-likelihood and of accepted refreshes.
    excess : int
        Draws whose estimated variance exceeds twice its bound.
    mean, square : ndarray, shape (d,), (d, d)
        Mean of the draws and sum of squared deviations from it.
    kept : list of ndarray
        A few draws, evenly spread.
    """

    draws: int = 0
    done: int = 0
    divergences: int = 0
    variance: float = 0.0
    subset_accepted: float = 0.0
    excess: int = 0
    mean: np.ndarray = field(default_factory=lambda: np.zeros(0))
    square: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    kept: list[np.ndarray] = field(default_factory=list)
    pending: list[np.ndarray] = field(default_factory=list)

    def add(self, theta: np.ndarray, info: dict[str, float]):
        """Add a draw, shape (d,), and what its transition reported."""
        self.done += 1
        variance = info["loglik_variance"]
        self.variance += variance
        self.subset_accepted += info["subset_accepted"]
        self.excess += not variance <= 2 * VARIANCE_BOUND
        self.pending.append(theta)
        if self.done * _KEPT // max(self.draws, 1) > len(self.kept):
            self.kept.append(theta)
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

    @property
    def perturbation(self) -> float:
        """Bound on the error of posterior means, in standard deviations: sd(w) / mean(w)."""
        if not np.all(np.isfinite(self.bias)):
            return np.inf
        weights = np.exp(np.min(self.bias) - self.bias)
        return float(np.std(weights) / np.mean(weights))


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

    Returns
    -------
    list of Check
        Variance of the estimate, acceptance of the subsample's refreshes, perturbation of the
        posterior, and distance from the reference point.
    """
    record.fold()
    n, size = record.done, len(active)
    kept = np.array(record.kept)

    def errors_at(thetas, batches):
        return estimate_errors(expansion, reference, thetas, batches, subsample_size, temperature)

    if expansion.n_rows <= _FIRST_LOOK:
        errors, doubt = errors_at(kept, expansion.chunks()), False
    else:
        index = np.random.default_rng(0).integers(0, expansion.n_rows, _FIRST_LOOK)
        errors = errors_at(kept, [expansion.take(index)])
        z = whiten(factor, (kept - reference.theta)[:, active].T)
        doubt = (
            np.max(errors.variance) > VARIANCE_BOUND / 2
            or errors.perturbation > PERTURBATION_BOUND / 2
            or np.max(predicted.variance(subsample_size, temperature)) > VARIANCE_BOUND
            or np.max(predicted.perturbation(subsample_size, temperature)) > PERTURBATION_BOUND
            or np.mean(z**2) > _PREDICTED
        )
    if doubt:
        chosen = np.linspace(0, len(kept) - 1, _SECOND_LOOK).astype(int)
        errors = errors_at(kept[np.unique(chosen)], expansion.chunks())
    checks = [
        *_noise_checks(record, float(np.mean(errors.variance)), subsample_size),
        _perturbation_check(errors.perturbation, subsample_size),
    ]
    if n > 2 * size:
        harmless = all(check.passed for check in checks)
        checks.append(_distance_check(record, reference, active, harmless))
    return checks


def _noise_checks(record: ChainRecord, measured: float, subsample_size: int) -> list[Check]:
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
            f"{excess:.0%} of the draws, so the posterior can be wrong. Increase subsample_size "
            f"(now {subsample_size}), use control_variate_order=2, or give a better reference.",
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


def _distance_check(record, reference, active, harmless: bool) -> Check:
    """Say whether a distant reference is why other checks fail; by itself it does no harm."""
    distance, bound = record.distance(reference.theta, active), 3 + np.sqrt(len(active))
    return Check(
        "reference_distance",
        distance,
        bound,
        harmless or distance <= bound,
        f"The reference point is stale: it lies {distance:.3g} posterior standard deviations from "
        f"the mean of the draws (should be at most {bound:.3g}), and the error of the control "
        "variates grows with that distance. Leave reference=None, or give a point nearer the "
        "posterior mean.",
    )


def _perturbation_check(value: float, subsample_size: int) -> Check:
    return Check(
        "perturbation",
        value,
        PERTURBATION_BOUND,
        value <= PERTURBATION_BOUND,
        "The subsample perturbs the posterior: skewed or heavy-tailed residuals of the rows may "
        f"move posterior means by up to {value:.2g} standard deviations (should be at most "
        f"{PERTURBATION_BOUND:g}). Increase subsample_size (now {subsample_size}), use "
        "control_variate_order=2, or look for outlying rows.",
    )
