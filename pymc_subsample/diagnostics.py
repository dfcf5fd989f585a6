"""Whether a chain can be trusted: the checks behind the warnings at the end of sampling."""

from dataclasses import dataclass, field

import numpy as np

from pymc_subsample.estimators import VARIANCE_BOUND, Moments

SUBSET_ACCEPTANCE_BOUND = 0.5
# The share of draws that may exceed twice the variance bound.
EXCESS_BOUND = 0.05
NORMALITY_BOUND = 0.1


@dataclass
class ChainRecord:
    """Running sums over the draws after tuning.

    Attributes
    ----------
    draws, divergences : int
        Counts.
    variance, skew, subset_accepted : float
        Sums of the estimated variance and third cumulant of the log-likelihood estimate, and of
        accepted refreshes.
    excess : int
        Draws whose estimated variance exceeds twice its bound.
    mean, square : ndarray, shape (a,), (a, a)
        Mean of the draws and sum of squared deviations from it.
    """

    draws: int = 0
    divergences: int = 0
    variance: float = 0.0
    skew: float = 0.0
    subset_accepted: float = 0.0
    excess: int = 0
    mean: np.ndarray = field(default_factory=lambda: np.zeros(0))
    square: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    def add(self, theta: np.ndarray, info: dict[str, float]):
        """Add a draw, shape (a,), and what its transition reported."""
        if not self.draws:
            self.mean = np.zeros(len(theta))
            self.square = np.zeros((len(theta), len(theta)))
        self.draws += 1
        self.divergences += int(info["diverging"] > 0)
        self.variance += info["loglik_variance"]
        self.skew += info["loglik_skew"]
        self.subset_accepted += info["subset_accepted"]
        self.excess += int(not info["loglik_variance"] <= 2 * VARIANCE_BOUND)
        delta = theta - self.mean
        self.mean += delta / self.draws
        self.square += np.outer(delta, theta - self.mean)

    def distance(self, reference: np.ndarray) -> float:
        """Distance of the mean from the reference, in posterior standard deviations."""
        cov = self.square / max(self.draws - 1, 1)
        shift = self.mean - reference
        solved = np.linalg.lstsq(cov, shift, rcond=1e-10)[0]
        return float(np.sqrt(max(shift @ solved, 0.0)))


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
    reference: np.ndarray,
    predicted: Moments,
    subsample_size: int,
    temperature: float,
) -> list[Check]:
    """Check one HMC-ECS chain.

    Parameters
    ----------
    record : ChainRecord
        What the chain did.
    reference : ndarray, shape (a,)
        Reference point in the sampled parameters.
    predicted : Moments
        Residual moments over all rows around the reference.
    subsample_size : int
        Rows per estimate.
    temperature : float
        Divides the log-likelihood.

    Returns
    -------
    list of Check
        Variance of the estimate, acceptance of the subsample's refreshes, distance from the
        reference point, normality of the estimate.
    """
    n, size = record.draws, len(reference)
    variance = record.variance / n
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
        distance, bound = record.distance(reference), 3 + np.sqrt(size)
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
    third = abs(record.skew) / n / 3
    rare = float(np.median(predicted.perturbation(subsample_size, temperature)))
    normality = max(third, rare)
    checks.append(
        Check(
            "normality",
            normality,
            NORMALITY_BOUND,
            normality <= NORMALITY_BOUND,
            f"The log-likelihood estimate is not normal enough: skewness and heavy tails of the "
            f"rows' residuals shift the log posterior by about {normality:.3g} (should be at most "
            f"{NORMALITY_BOUND:g}). Look for outlying rows, or increase subsample_size (now "
            f"{subsample_size}).",
        )
    )
    return checks
