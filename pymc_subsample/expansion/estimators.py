r"""The difference estimator of a log-likelihood, its error and its subsample size.

With residuals :math:`d_i = l_i - q_i`, a subsample u of m rows drawn with replacement and
:math:`w = n / (m T)`,

.. math:: \hat\ell = \sum_i q_i / T + w \sum_u d_u, \qquad
          \hat\sigma^2 = w^2 \sum_u (d_u - \bar d)^2, \qquad
          \log \hat L = \hat\ell - \hat\sigma^2 / 2

(Dang et al. 2019, eqs. 4.1 to 4.5). Were the estimator normal and its variance known, exp of it
would be unbiased. With :math:`\mu_k` the central moments of the residuals and v the variance of
the estimate, its log expectation is off by

.. math:: -\frac{n^3 \mu_3}{3 m^2} + \frac{v + v^2}{2 m} - \frac{n^4 \mu_4}{12 m^3}

up to terms of higher order in 1/m at constant v. The first is :math:`\kappa_3 / 6` less the
covariance :math:`\kappa_3` of estimate and estimated variance over 2; the others collect the
m - 1 of m in the expectation of :math:`\hat\sigma^2` and all cumulants of fourth order.
`perturbation` is the sum of the three sizes.
"""

from dataclasses import dataclass, field

import numpy as np

# Below it more rows cost more than they gain (Pitt et al. 2012; Quiroz et al. 2018).
VARIANCE_BOUND = 1.0
# What a size is chosen for, by predictions at a few points: a chain of many parameters, where all
# points are alike, has this variance on average, and not less.
VARIANCE_AIM = 0.75
# What the log posterior may be off by within the ellipsoid. A choice: probabilities then change by
# a twentieth of themselves.
PERTURBATION_BOUND = 0.05
# What one row may add to the log-likelihood estimate, four standard deviations out. Drawn with
# weight w, a row that adds x shifts log E[exp(lhat - s2 / 2)] by (exp(x - x^2 / 2) - 1 - x) / w:
# by 0.05 / w at a half, seven times as much at 1 and forty times at 2, where a skewed posterior
# may be further out.
ROW_BOUND = 0.5
# Choices: fewer rows take no less time beside the rest of a draw; fewer blocks refresh too much of
# the subsample at once, and twice as many as are ever wanted leave divisors to choose from.
SMALLEST_SUBSAMPLE = 100
FEWEST_BLOCKS = 5
MOST_BLOCKS = 200


@dataclass(frozen=True)
class ResidualMoments:
    """Central moments of the residuals over all rows, one entry per parameter point."""

    # Mean powers of d_i - mean d, shape (k,).
    second: np.ndarray
    third: np.ndarray
    fourth: np.ndarray
    n_rows: int
    # Largest size of a residual where a direction is four standard deviations out.
    largest: float = 0.0
    # Sum of the residuals, shape (k,).
    total: np.ndarray = field(default_factory=lambda: np.zeros(1))
    lowest: float = 0.0  # The least such sum, also at the outer points.

    def variance(self, subsample_size: int, temperature: float = 1.0) -> np.ndarray:
        """Variance of the log-likelihood estimate from m rows, shape (k,)."""
        return self.n_rows**2 * self.second / (subsample_size * temperature**2)

    def perturbation(self, subsample_size: int, temperature: float = 1.0) -> np.ndarray:
        """Size of the error of log E[exp(lhat - s2 / 2)], shape (k,)."""
        n = self.n_rows / temperature
        variance = self.variance(subsample_size, temperature)
        third = n**3 * np.abs(self.third) / subsample_size**2
        fourth = n**4 * self.fourth / subsample_size**3
        return third / 3 + (variance + variance**2) / (2 * subsample_size) + fourth / 12


def moments_from_sums(
    sums: np.ndarray, n_rows: int, largest: float = 0.0, lowest: float = np.inf
) -> ResidualMoments:
    """Return central moments from sums of powers 1 to 4, shape (4, k)."""
    mean, second, third, fourth = sums / n_rows
    return ResidualMoments(
        second=np.maximum(second - mean**2, 0.0),
        third=third - 3 * mean * second + 2 * mean**3,
        fourth=np.maximum(fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4, 0.0),
        n_rows=n_rows,
        largest=largest,
        total=sums[0],
        lowest=min(lowest, float(np.min(sums[0]))),
    )


def choose_subsample_size(moments: ResidualMoments, temperature: float = 1.0) -> int:
    r"""Return the smallest m whose estimator can be trusted at every point.

    The evaluations for one effective draw grow with m once :math:`\hat\sigma^2 \le 1` (Pitt et al.
    2012; Quiroz et al. 2018), so the smallest m that keeps the variance below 1, at 0.75 as
    predicted, and the perturbation at or below 0.05 is the cheapest one. A single row, such as one
    of a small group, must not add more than 0.5 to the estimate where its own predictor is a few
    standard deviations out: else a subsample that holds it bends the trajectory until it diverges.
    Not fewer than 100 rows, for which the cost of a transition no longer depends on m, and not
    more than n.
    """
    n = moments.n_rows
    largest = float(np.nan_to_num(np.max(moments.variance(1, temperature)), nan=np.inf))
    alone = n * moments.largest / temperature / ROW_BOUND
    least = int(np.ceil(min(max(largest / VARIANCE_AIM, alone), n)))
    subsample_size = max(SMALLEST_SUBSAMPLE, least)
    off = moments.perturbation
    while subsample_size < n and np.max(off(subsample_size, temperature)) > PERTURBATION_BOUND:
        subsample_size = int(np.ceil(1.1 * subsample_size))
    return min(subsample_size, n)


def choose_n_blocks(parts: int, variance: float) -> int:
    r"""Return the number of blocks G that divides parts and keeps the refresh step accepting.

    Parts are rows, or minibatches of the block-Poisson estimate.

    Refreshing one of G blocks changes :math:`\log\hat L` by about :math:`N(0, 2\sigma^2/G)`; G
    keeps that standard deviation near 0.25, for an acceptance near 0.9. At least 10 blocks, since
    larger refreshes cost as much as the move itself, and at most 100 (rho = 0.99). Of the divisors
    up to 200 the nearest to that is taken, and one below 5 only where there is no other.
    """
    wanted = float(np.clip(33 * variance, 10, 100))
    divisors = np.array([g for g in range(1, min(parts, MOST_BLOCKS) + 1) if parts % g == 0])
    if divisors[-1] >= FEWEST_BLOCKS:
        divisors = divisors[divisors >= FEWEST_BLOCKS]
    return int(divisors[np.argmin(np.abs(np.log(divisors / wanted)))])
