"""The search for the reference point: the posterior mode."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pymc_subsample.expansion.curvature import MAX_DENSE, covariance, covariance_factor, units
from pymc_subsample.expansion.quadratic import Posterior, Quadratic
from pymc_subsample.expansion.quasi_newton import descend

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

# Rows on which the search begins, and ends before all are read; bytes of these. Choices of time:
# the mode of 100,000 rows is near enough for Newton's method on all.
_FIRST_SUBSET = 1_000
_LAST_SUBSET = 100_000
_SUBSET_BYTES = 2**28
_MAX_POLISH = 8  # Steps of Newton's on all rows: they converge quadratically.
_POLISHED = 0.1  # Distance from the mode, in standard deviations of the posterior.
_BY_GRADIENTS = {"gtol": _POLISHED, "ftol": 0.0, "maxfun": 50}
# Of the trust region, in standard deviations at its start; its gradient is per one of those.
# Choices: a hundredth is far below what `_POLISHED` asks for.
_TRUST = {"initial_trust_radius": 10.0, "max_trust_radius": 1e9, "gtol": 0.01}
_QUASI = {"longest": 10.0, "tolerance": 0.01}
# The negative log posterior of impossible parameters.
_IMPOSSIBLE = 1e100
# Of negative eigenvalues, in units of the diagonal: second derivatives are differences.
_ROUNDING = 1e-4


def find_mode(
    posterior: Posterior, start: np.ndarray, active: np.ndarray, rng: np.random.Generator
) -> Quadratic:
    """Find the posterior mode: on growing random subsets, then polished on all rows.

    Elements `active` of theta move. Ends within about 0.1 posterior standard deviations of the mode
    where Newton's method converges in 8 passes over the data, or L-BFGS in 50 where there are too
    many parameters for Newton's; at the best point found otherwise.
    """
    expansion = posterior.expansion
    n = expansion.n_rows
    start = theta = np.array(start, dtype=float)
    last = max(_FIRST_SUBSET, min(_LAST_SUBSET, _SUBSET_BYTES // (8 * expansion.width)))
    size = min(n, max(_FIRST_SUBSET, min(20 * len(active), last)))
    while True:
        whole = size == n
        rows = list(expansion.chunks()) if whole else expansion.batches(rng.integers(0, n, size))
        theta = climb(replace(posterior, rows=rows), theta, active).theta
        if whole or size >= min(last, n // 2):
            break
        size = min(size * 10, last, n // 2)
    found = polish(posterior, theta, active)
    if whole:
        return found
    before = posterior.at(start, curved=False).height
    if not np.isfinite(before) or found.height >= before:
        return found
    # A subset may have one row of a small group, weighed like many, whose scale has no mode.
    again = polish(posterior, climb(posterior, start, active).theta, active)
    return max(found, again, key=lambda at: np.nan_to_num(at.height, nan=-np.inf))


class _Objective:
    """Negative log posterior at ``theta = origin + scale x``, summed once per point."""

    def __init__(
        self, posterior: Posterior, origin: Quadratic, active: np.ndarray, scale: np.ndarray,
        *, curved: bool = False,
    ) -> None:  # fmt: skip
        self._posterior, self._origin, self.active = posterior, origin, active
        self._scale, self._curved = scale, curved
        self._x, self._at = np.zeros(len(active)), origin
        self.concave = True

    def theta(self, x: np.ndarray) -> np.ndarray:
        theta = self._origin.theta.copy()
        theta[self.active] += self._scale @ x if self._scale.ndim == 2 else self._scale * x
        return theta

    def _evaluate(self, x: np.ndarray) -> Quadratic:
        if not np.array_equal(x, self._x):
            self._x, self._at = x.copy(), self._posterior.at(self.theta(x), self._curved)
        return self._at

    def value(self, x: np.ndarray) -> float:
        found = self._evaluate(x)
        value = -found.height
        # Curvatures overflow first: beyond, finite slopes may be wrong, and hold the search there.
        known = found.reference.is_smooth or not self._origin.reference.is_smooth
        return value if known and np.isfinite(value) else _IMPOSSIBLE

    def gradient(self, x: np.ndarray) -> np.ndarray:
        grad = _finite(self._evaluate(x).ascent[self.active])
        return -_finite(grad @ self._scale if self._scale.ndim == 2 else self._scale * grad)

    def hessian(self, x: np.ndarray) -> np.ndarray:
        matrix = _finite(self._evaluate(x).precision(self.active, rough=True))
        self.concave = self.concave and _positive(matrix)
        return _finite(self._scale.T @ matrix @ self._scale)


def _finite(x: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x), x, 0.0)


@dataclass(frozen=True)
class Climb:
    """Where a search on some rows ended."""

    theta: np.ndarray  # Shape (d,): the mode, or the best point found.
    concave: bool  # Whether the log posterior was concave wherever its curvature was looked at.
    work: int  # Gradients, and columns of Hessians.


def _positive(matrix: np.ndarray) -> bool:
    """Whether a matrix has no negative eigenvalue, but for rounding."""
    scale = units(matrix)
    rounding = _ROUNDING * np.eye(len(matrix))
    try:
        np.linalg.cholesky(matrix / np.outer(scale, scale) + rounding)
    except np.linalg.LinAlgError:
        return False
    return True


def climb(
    posterior: Posterior,
    theta: np.ndarray,
    active: np.ndarray,
    most_steps: int = 200,
    scale: np.ndarray | None = None,
) -> Climb:
    """Find the mode from a theta that may be far from it; elements `active` move.

    If a Hessian takes a product for each parameter, by gradients, in the units of `scale`, shape
    (a, a), or of the curvature at the start.
    """
    expansion, size = posterior.expansion, len(active)
    newton = size <= MAX_DENSE and expansion.has_precision(size)
    quasi = newton and not expansion.linear
    curved = newton and not (quasi and scale is not None)
    origin = posterior.at(theta, curved=curved)
    if not size:
        return Climb(origin.theta, True, 0)
    concave = False
    with np.errstate(all="ignore"):
        # In units of the curvature at the start, columns may have any units and offsets.
        if curved:
            matrix = _finite(origin.precision(active, rough=True))
            scale, concave = covariance_factor(matrix), _positive(matrix)
        elif scale is None:
            scale = origin.scales(active)
        objective = _Objective(posterior, origin, active, scale, curved=newton and not quasi)
        if quasi:
            end = descend(objective.value, objective.gradient, np.zeros(size),
                          most_steps=most_steps, **_QUASI)  # fmt: skip
            work = end.evaluations + curved * size
            return Climb(objective.theta(end.x), concave and end.convex, work)
        hessian = objective.hessian if newton else None
        options = {"maxiter": most_steps}
        found = _minimum(objective.value, objective.gradient, hessian, size, options)
    if found is None:
        return Climb(origin.theta, False, size)
    concave = newton and objective.concave
    return Climb(objective.theta(found.x), concave, (int(found.nit) + 1) * size)


def quadratic_mode(quadratic: Quadratic, active: np.ndarray) -> np.ndarray:
    """Return theta at the mode of the prior and the quadratic log-likelihood: no rows are read."""
    origin = quadratic.theta
    newton = len(active) <= MAX_DENSE and quadratic.expansion.has_precision(len(active))
    scale = quadratic.scales(active)

    def at(x: np.ndarray) -> np.ndarray:
        theta = origin.copy()
        theta[active] += scale * x
        return theta

    def value(x: np.ndarray) -> float:
        found = -quadratic.log_density(at(x))
        return found if np.isfinite(found) else _IMPOSSIBLE

    def slope(x: np.ndarray) -> np.ndarray:
        return -_finite(scale * quadratic.gradient(at(x))[active])

    def hessian(x: np.ndarray) -> np.ndarray:
        matrix = quadratic.precision(active, at(x))
        return _finite(matrix * np.outer(scale, scale))

    found = _minimum(value, slope, hessian if newton else None, len(active), {"maxiter": 200})
    return origin if found is None else at(found.x)


def _minimum(
    value: Callable[[np.ndarray], float],
    slope: Callable[[np.ndarray], np.ndarray],
    hessian: Callable[[np.ndarray], np.ndarray] | None,
    size: int,
    options: Mapping[str, float],
) -> "OptimizeResult | None":
    """Search from zero, by L-BFGS without second derivatives; None where SciPy finds no step."""
    if not size:
        return None
    import scipy.optimize  # takes a third of a second to import, and only the search needs it

    try:
        return scipy.optimize.minimize(
            value,
            np.zeros(size),
            jac=slope,
            hess=hessian,
            method="L-BFGS-B" if hessian is None else "trust-exact",
            options={**options, **({} if hessian is None else _TRUST)},
        )
    # A quadratic that overflows, or, without a message of its own, one that it can't factorise.
    except (ValueError, np.linalg.LinAlgError, UnboundLocalError):
        return None


def polish(posterior: Posterior, theta: np.ndarray, active: np.ndarray) -> Quadratic:
    """Find the posterior mode near theta.

    By Newton's method with step halving or, without a matrix of second derivatives, by L-BFGS in
    units of the standard deviations that the diagonal gives, until no element has a gradient of
    more than 0.1 per standard deviation.
    """
    if posterior.expansion.has_precision(len(active)):
        return newton(posterior, theta, active)
    at = posterior.at(theta)
    objective = _Objective(posterior, at, active, at.scales(active))
    found = _minimum(objective.value, objective.gradient, None, len(active), _BY_GRADIENTS)
    return at if found is None else posterior.at(objective.theta(found.x))


@np.errstate(all="ignore")  # of steps without any curvature
def newton(
    posterior: Posterior, theta: np.ndarray, active: np.ndarray, most_steps: int = _MAX_POLISH
) -> Quadratic:
    """Find the mode near theta by Newton's method with step halving; elements `active` move."""
    best = posterior.at(theta)
    for _ in range(most_steps):
        matrix = best.precision(active)
        if not np.all(np.isfinite(matrix)):
            break
        cov = covariance(matrix)
        ascent = best.ascent[active]
        step = cov @ ascent
        distance = np.sqrt(max(step @ ascent, 0.0) / len(active))
        if distance < _POLISHED:
            break
        for _ in range(6):
            trial = best.theta.copy()
            trial[active] += step
            candidate = posterior.at(trial)
            if np.isfinite(candidate.height) and candidate.height > best.height:
                best = candidate
                break
            step = 0.25 * step
        else:
            break
    return best
