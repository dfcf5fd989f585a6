r"""Whether a chain can be trusted: the checks behind the warnings at the end of sampling.

What a chain samples differs from the posterior by a factor :math:`e^{b(\theta)}`, where

.. math:: b(\theta) = \log E_u\, e^{\hat\ell - \hat\sigma^2 / 2} - \ell(\theta).

To first order the mean of a function f then moves by :math:`\mathrm{Cov}(f, b)`: means by at most
sd(b) posterior standard deviations, variances by at most :math:`\sqrt2\,\mathrm{sd}(b)` of
themselves. With rows drawn independently b is a sum over rows, so it needs no normality and no
small variance; `estimate_errors` computes it at a few draws.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from pymc_subsample.control_variates import Expansion
from pymc_subsample.control_variates.reference import Reference
from pymc_subsample.estimators import VARIANCE_BOUND

SUBSET_ACCEPTANCE_BOUND = 0.5
# The share of draws that may exceed twice the variance bound.
EXCESS_BOUND = 0.05
PERTURBATION_BOUND = 0.1

_FOLD = 256
_KEPT = 8
# Rows of the first look; all rows are read when it leaves a doubt.
_FIRST_LOOK = 20_000


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
        """Standard deviation of b over the points."""
        return float(np.std(self.bias, ddof=1)) if len(self.bias) > 1 else 0.0


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
    subsample_size : int
        Rows per estimate.
    temperature : float
        Divides the log-likelihood.

    Returns
    -------
    list of Check
        Variance of the estimate, acceptance of the subsample's refreshes, distance from the
        reference point, perturbation of the posterior.
    """
    record.fold()
    n, size = record.done, len(active)
    errors = _errors_at_draws(record, expansion, reference, subsample_size, temperature)
    variance = max(record.variance / n, float(np.mean(errors.variance)))
    excess = record.excess / n
    accepted = record.subset_accepted / n
    checks = [
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
    if n > 2 * size:
        distance, bound = record.distance(reference.theta, active), 3 + np.sqrt(size)
        checks.append(
            Check(
                "reference_distance",
                distance,
                bound,
                distance <= bound,
                f"The reference point is stale: it lies {distance:.3g} posterior standard "
                f"deviations from the mean of the draws (should be at most {bound:.3g}), and the "
                "error of the control variates grows with that distance. Leave reference=None, "
                "or give a point nearer the posterior mean.",
            )
        )
    perturbation = errors.perturbation
    checks.append(
        Check(
            "perturbation",
            perturbation,
            PERTURBATION_BOUND,
            perturbation <= PERTURBATION_BOUND,
            f"The subsample perturbs the posterior: skewness and heavy tails of the rows' "
            f"residuals change the log posterior by {perturbation:.3g} over the draws (should be "
            f"at most {PERTURBATION_BOUND:g}), and may move means by as many standard deviations. "
            f"Look for outlying rows, increase subsample_size (now {subsample_size}), or use "
            "control_variate_order=2.",
        )
    )
    return checks


def _errors_at_draws(record, expansion, reference, subsample_size, temperature) -> EstimateErrors:
    """Errors at the kept draws: from some rows, or from all where those leave a doubt."""

    def errors(batches):
        return estimate_errors(
            expansion, reference, np.array(record.kept), batches, subsample_size, temperature
        )

    n = expansion.n_rows
    if n > _FIRST_LOOK:
        index = np.random.default_rng(0).integers(0, n, _FIRST_LOOK)
        found = errors([expansion.take(index)])
        if _clear(found):
            return found
    return errors(expansion.chunks())


def _clear(errors: EstimateErrors) -> bool:
    return bool(
        np.max(errors.variance) < VARIANCE_BOUND / 2
        and errors.perturbation < PERTURBATION_BOUND / 4
    )
