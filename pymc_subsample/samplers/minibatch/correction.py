r"""The correction that turns a noisy log-ratio into a Barker test, and the error of that test.

Barker's test accepts with probability :math:`F(\Delta) = 1 / (1 + e^{-\Delta})`: it accepts if
:math:`\Delta + X_{\log} > 0` for a standard logistic variable. From b rows only an estimate
:math:`\Delta^*` with standard deviation s is known, estimated by :math:`\hat s`. The test of Seita
et al. (2017) accepts if

.. math:: \Delta^* + X_{nc} + X_{corr} > 0, \qquad X_{nc} \sim N(0, \sigma^2 - \hat s^2), \qquad
          N(0, \sigma^2) + X_{corr} \approx X_{\log}.

`barker_correction` finds :math:`X_{corr}`. What remains is the error of the normal approximation.
With e the error of the estimate, D = d / d Delta, and as long as :math:`\hat s < \sigma`,

.. math:: P(accept) = E\, e^{e D - \hat s^2 D^2 / 2} F(\Delta)
          = F + \left(\tfrac{\kappa_3(e)}{6} - \tfrac{cov(e, \hat s^2)}{2}\right) F''' + O(1/b),

because :math:`e^{-v D^2 / 2}` takes a normal variable of variance v out again. For rows drawn with
replacement the covariance equals the third cumulant, so that the two add up to
:math:`-\kappa_3 / 3`: twice the size, and the other sign, of what a known s would leave. This needs
:math:`\hat s^2` unbiased (divisor b - 1); divisor b adds :math:`s^2 F'' / (2 b)`. It also needs a b
that was not chosen by looking at :math:`\hat s^2`: a batch that grows until
:math:`\hat s < \sigma` stops where :math:`\hat s^2` is too small by some :math:`\epsilon` on
average, which adds :math:`\epsilon F'' / 2`, up to 3e-3 for normal summands and steps of 50 rows.

Of a share f of all rows, drawn without replacement, :math:`(1 - f) (2 - f) K_3 / (2 b^2)` takes
the place of :math:`\kappa_3`, with :math:`K_3` the third cumulant of the rows' terms. The error is
largest at a log-ratio of zero, :math:`|\kappa_3| / 24`.

The probability of acceptance does not depend on :math:`\sigma`. The rows a test reads go with
:math:`1 / \sigma^2`.
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linprog
from scipy.special import expit, ndtr

from pymc_subsample.validation import is_number, shown

# 15% fewer rows than 1.2 asks for, (1.2 / 1.3)^2, with an error of 1e-4.
DEFAULT_SIGMA = 1.3
# Beyond it the best error exceeds 0.4%; at 1.81 the variance of a logistic variable is used up.
LARGEST_SIGMA = 1.6

# Half-width of the mass points: the logistic tail beyond it is 3e-10. A choice of time: a programme
# of half as fine a grid has half as many unknowns.
_HALF_WIDTH = 22.0
_SPACING = 0.1
# Constraints per mass point of the linear programme, and measured points per constraint. A choice
# between its time, once for each sigma, and what lies between constraints.
_CONSTRAINTS = 2
_FINER = 10
# Below it the error is rounding, and corrections are made from the one of `_BASE_SIGMA`, on a grid
# that is at most so many times as fine: choices, of time.
_SMALLEST_SOLVED = 0.6
_BASE_SIGMA = 0.8
_LARGEST_REFINEMENT = 100
# The normal kernel ends here: its tail is below rounding. It is 1e-19 there.
_KERNEL_WIDTH = 9.0
_TABLES = "tables/barker_correction.csv"


@dataclass(frozen=True, eq=False)
class BarkerCorrection:
    """A discrete distribution that completes N(0, sigma^2) to a standard logistic variable.

    Attributes
    ----------
    sigma : float
        Standard deviation of the normal variable, in units of the log-ratio.
    support : ndarray, shape (K,)
        Mass points, increasing and symmetric about zero, in units of the log-ratio.
    probabilities : ndarray, shape (K,)
        Their probabilities: positive, symmetric, summing to one.
    error : float
        Largest distance, over the whole line, between the CDF of N(0, sigma^2) plus the correction
        and the logistic CDF: what the correction adds to the error of an acceptance probability.

    Examples
    --------
    >>> from pymc_subsample.samplers.minibatch.correction import barker_correction
    >>> correction = barker_correction(sigma=1.0)
    >>> correction.cdf([-30.0, 30.0])
    array([0., 1.])
    >>> float(correction.total_cdf(0.0).round(6))  # as the logistic distribution
    0.5
    """

    sigma: float
    support: np.ndarray
    probabilities: np.ndarray
    error: float

    def cdf(self, x: ArrayLike) -> np.ndarray:
        """CDF of the correction at x, a step function, in the shape of x."""
        below = np.searchsorted(self.support, x, side="right")
        return np.concatenate(([0.0], np.cumsum(self.probabilities)))[below]

    def total_cdf(self, x: ArrayLike) -> np.ndarray:
        """CDF of N(0, sigma^2) plus the correction at x, in the shape of x."""
        return _total_cdf(np.asarray(x, dtype=float), self.support, self.probabilities, self.sigma)

    def rvs(
        self,
        size: int | tuple[int, ...] | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> np.ndarray:
        """Draw from the correction.

        Parameters
        ----------
        size : int or tuple of int, optional
            Shape of the draws; a single float without it.
        random_state : int, numpy.random.Generator or None
            Seed or generator; fresh entropy if None.

        Returns
        -------
        float or ndarray
            Draws, in units of the log-ratio.
        """
        u = np.random.default_rng(random_state).random(size)
        edges = np.cumsum(self.probabilities)[:-1]
        return self.support[np.searchsorted(edges, u, side="right")]


def barker_correction(sigma: float = DEFAULT_SIGMA) -> BarkerCorrection:
    r"""Return the correction variable of the Barker test for noise of standard deviation sigma.

    The distribution C that solves

    .. math:: \min_C \sup_x \left| (\Phi_\sigma * C)(x) - \frac{1}{1 + e^{-x}} \right|

    (Seita et al. 2017, eq. 14) over all symmetric distributions on a grid of mass points. With
    :math:`C \ge 0` that is a linear programme, and its solution has no negative density to be cut
    off, unlike the ridge regression of the paper's eq. 15: at sigma = 0.9 and 0.8 the error is
    6e-10 and 5e-11 where the paper's Table 1 has 1e-4 and 5e-6. The solution has few mass points,
    39 at sigma = 1 and 17 at 1.2.

    The error grows about as :math:`e^{-2 \pi^2 / \sigma^2}`: 5e-8 at sigma = 1, 2e-5 at 1.2, 1e-4
    at 1.3, 4e-3 at 1.6. For sigma < 0.6 the correction is that of 0.8 plus a normal variable on a
    lattice, which approximates as well; below 0.001 the lattice is felt, up to 1e-4 at zero.

    Parameters
    ----------
    sigma : float, default 1.3
        Standard deviation of the noise the correction is made for, in units of the log-ratio:
        positive, and not larger than 1.6.

    Returns
    -------
    BarkerCorrection
        Mass points, probabilities and the error, measured ten times finer than it was solved.

    Raises
    ------
    ValueError
        If sigma is not positive, not finite, or larger than 1.6.

    Examples
    --------
    >>> from pymc_subsample.samplers.minibatch.correction import barker_correction
    >>> correction = barker_correction(sigma=1.0)
    >>> correction.error < 1e-6
    True
    >>> noise = correction.rvs(size=1_000, random_state=1)
    """
    if not is_number(sigma) or not 0 < sigma <= LARGEST_SIGMA:
        raise ValueError(
            f"sigma is {shown(sigma)}; expected a number above 0, at most {LARGEST_SIGMA}: a "
            "logistic variable, whose standard deviation is 1.81, holds no larger normal one. Use "
            f"{DEFAULT_SIGMA}, and read enough rows for the noise to be below it."
        )
    return _barker_correction(float(sigma))


@cache
def _barker_correction(sigma: float) -> BarkerCorrection:
    shipped = _shipped_tables()
    if sigma in shipped:
        return _measured(sigma, *shipped[sigma], _SPACING / _CONSTRAINTS)
    return solve_correction(sigma)


def solve_correction(sigma: float) -> BarkerCorrection:
    """Return the correction for sigma, computed afresh; see `barker_correction`."""
    if sigma >= _SMALLEST_SOLVED:
        return _measured(sigma, *_solve_minimax(sigma), _SPACING / _CONSTRAINTS)
    # A choice: points are two thirds of a standard deviation apart.
    refinement = min(int(np.ceil(1.5 * _SPACING / sigma)), _LARGEST_REFINEMENT)
    base = _spread(*_solve_minimax(_BASE_SIGMA), np.sqrt(_BASE_SIGMA**2 - sigma**2), refinement)
    return _measured(sigma, *base, _SPACING / refinement / _CONSTRAINTS)


def _solve_minimax(sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Return mass points and probabilities of the minimax solution, those of zero left out.

    By symmetry only the half line of negative x is constrained, where both CDFs are small. The
    solver's tolerance, 1e-9, is near the errors sought: a second programme for the change of the
    solution, in units of the first one's error, takes it out.
    """
    points = _SPACING * np.arange(round(_HALF_WIDTH / _SPACING) + 1)
    x = -_half_line(sigma, _SPACING / _CONSTRAINTS)
    matrix = (ndtr((x[:, None] - points) / sigma) + ndtr((x[:, None] + points) / sigma)) / 2
    target = expit(x)
    ones = np.ones((len(x), 1))
    constraints = np.block([[matrix, -ones], [-matrix, -ones]])
    cost = np.append(np.zeros(len(points)), 1.0)
    probabilities, scale = np.zeros(len(points)), 1.0
    for _ in range(2):
        rest = (target - matrix @ probabilities) / scale
        lower = np.append(-probabilities / scale, 0.0)
        found = _solve(
            cost,
            A_ub=constraints,
            b_ub=np.concatenate((rest, -rest)),
            A_eq=1 - cost[None],
            b_eq=[(1 - probabilities.sum()) / scale],
            bounds=np.column_stack((lower, np.full_like(lower, np.inf))),
        )
        probabilities = np.maximum(probabilities + scale * found[:-1], 0.0)
        probabilities[probabilities < 1e-15] = 0.0  # rounding
        probabilities /= probabilities.sum()
        scale = np.max(np.abs(target - matrix @ probabilities))
    both = np.concatenate((-points[:0:-1], points))
    halves = np.concatenate((probabilities[:0:-1] / 2, probabilities[:1], probabilities[1:] / 2))
    return both[halves > 0], halves[halves > 0]


def _solve(cost: np.ndarray, **programme: Any) -> np.ndarray:
    """Return the solution of a linear programme; where a method gives up, try the next."""
    # A hundredth of HiGHS's defaults.
    options = {"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9}
    for method in ("highs-ds", "highs-ipm", "highs"):
        found = linprog(cost, method=method, options=options, **programme)
        if found.success:
            return found.x
    raise RuntimeError(f"The linear programme of the correction failed: {found.message}")


def _spread(
    support: np.ndarray, probabilities: np.ndarray, sd: float, refinement: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of the correction and a normal variable, on a lattice of finer spacing."""
    spacing = _SPACING / refinement
    reach = int(np.ceil(_KERNEL_WIDTH * sd / spacing))
    normal = np.exp(-0.5 * (spacing / sd * np.arange(-reach, reach + 1)) ** 2)
    half = round(support[-1] / spacing)
    sums = np.zeros(2 * (half + reach) + 1)
    for point, probability in zip(support, probabilities, strict=True):
        start = round(point / spacing) + half
        sums[start : start + len(normal)] += probability * normal
    sums = (sums + sums[::-1]) / 2
    return spacing * np.arange(-half - reach, half + reach + 1), sums / sums.sum()


def _half_line(sigma: float, spacing: float) -> np.ndarray:
    """Grid from 0 to where both tails are below rounding or the logistic one is."""
    return spacing * np.arange(int((_HALF_WIDTH + _KERNEL_WIDTH * sigma) / spacing) + 1)


def _measured(
    sigma: float, support: np.ndarray, probabilities: np.ndarray, spacing: float
) -> BarkerCorrection:
    """Return the correction with its error, on a grid ten times finer than `spacing`.

    Both distributions are symmetric. Beyond the grid the error is at most the larger tail.
    """
    x = -_half_line(sigma, spacing / _FINER)
    total, target = _total_cdf(x, support, probabilities, sigma), expit(x)
    error = max(np.max(np.abs(total - target)), total[-1], target[-1])
    for array in (support, probabilities):
        array.flags.writeable = False
    return BarkerCorrection(sigma, support, probabilities, float(error))


def _total_cdf(
    x: np.ndarray, support: np.ndarray, probabilities: np.ndarray, sigma: float
) -> np.ndarray:
    """CDF of normal plus correction. Points beyond the kernel's reach count as zero or one."""
    below = np.concatenate(([0.0], np.cumsum(probabilities)))
    first = np.searchsorted(support, x - _KERNEL_WIDTH * sigma)
    last = np.searchsorted(support, x + _KERNEL_WIDTH * sigma)
    total = below[first]
    for offset in range(int(np.max(last - first, initial=0))):
        i = np.minimum(first + offset, len(support) - 1)
        part = probabilities[i] * ndtr((x - support[i]) / sigma)
        total = total + np.where(first + offset < last, part, 0.0)
    return total


@cache
def _shipped_tables() -> dict[float, tuple[np.ndarray, np.ndarray]]:
    """Return mass points and probabilities by sigma, as `scripts/make_tables.py` wrote them."""
    with (files("pymc_subsample") / _TABLES).open() as lines:
        table = np.loadtxt(lines, delimiter=",", skiprows=1)
    return {
        float(sigma): (table[table[:, 0] == sigma, 1].copy(), table[table[:, 0] == sigma, 2].copy())
        for sigma in np.unique(table[:, 0])
    }
