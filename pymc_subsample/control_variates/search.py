"""The search for the reference point: the posterior mode."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pymc_subsample.control_variates.curvature import (
    MAX_CURVATURE,
    MAX_DENSE,
    covariance,
    covariance_factor,
    units,
)
from pymc_subsample.control_variates.expansion import Expansion
from pymc_subsample.control_variates.quadratic import Quadratic
from pymc_subsample.control_variates.reference import (
    Reference,
    reference_at,
    summed,
)

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

_FIRST_SUBSET = 1_000
_LAST_SUBSET = 100_000
_SUBSET_BYTES = 2**28
_MAX_POLISH = 8
_POLISHED = 0.1
_BY_GRADIENTS = {"gtol": _POLISHED, "ftol": 0.0, "maxfun": 50}
# Of the trust region, in standard deviations at its start; its gradient is per one of those.
_TRUST = {"initial_trust_radius": 10.0, "max_trust_radius": 1e9, "gtol": 0.01}
# The negative log posterior of impossible parameters.
_IMPOSSIBLE = 1e100
# Of negative eigenvalues, in units of the diagonal: second derivatives are differences.
_ROUNDING = 1e-4


def has_precision(expansion: Expansion, size: int) -> bool:
    """Whether the precision of `size` parameters is known and small enough to form."""
    return expansion.curvature != "diagonal" and size <= MAX_CURVATURE


def find_reference(
    expansion: Expansion,
    start: np.ndarray,
    active: np.ndarray,
    rng: np.random.Generator,
    temperature: float = 1.0,
) -> Reference:
    """Find the posterior mode: on growing random subsets, then polished on all rows.

    Elements `active` of theta move. Ends within about 0.1 posterior standard deviations of the mode
    where Newton's method converges in 8 passes over the data, or L-BFGS in 50 where there are too
    many parameters for Newton's; at the best point found otherwise.
    """
    n = expansion.n_rows
    start = theta = np.array(start, dtype=float)
    last = max(_FIRST_SUBSET, min(_LAST_SUBSET, _SUBSET_BYTES // (8 * expansion.width)))
    size = min(n, max(_FIRST_SUBSET, min(20 * len(active), last)))
    while True:
        whole = size == n
        rows = list(expansion.chunks()) if whole else expansion.batches(rng.integers(0, n, size))
        weight = n / (size * temperature)
        theta = mode_of_rows(expansion, theta, active, rows, weight).theta
        if whole or size >= min(last, n // 2):
            break
        size = min(size * 10, last, n // 2)
    found = polish(expansion, theta, active, temperature)
    if whole:
        return found
    begun = summed(expansion, start, None, 1.0 / temperature, curved=False)
    before = Quadratic(expansion, begun).height
    if not np.isfinite(before) or Quadratic(expansion, found).height >= before:
        return found
    # A subset may have one row of a small group, weighed like many, whose scale has no mode.
    theta = mode_of_rows(expansion, start, active, None, 1.0 / temperature).theta
    again = polish(expansion, theta, active, temperature)
    return max(
        found, again, key=lambda at: np.nan_to_num(Quadratic(expansion, at).height, nan=-np.inf)
    )


class _Objective:
    """Negative log posterior of weighted rows at ``theta = origin + scale x``, once per point."""

    def __init__(
        self,
        expansion: Expansion,
        origin: Reference,
        active: np.ndarray,
        batches: Sequence[np.ndarray] | None,
        weight: float,
        scale: np.ndarray,
        *,
        curved: bool = False,
    ) -> None:
        self._expansion, self._origin, self._active = expansion, origin.theta, active
        self._batches, self._weight = batches, weight
        self._scale, self._curved = scale, curved
        self._at, self._summed = np.zeros(len(active)), origin
        self._known = origin.is_finite
        self.concave = True

    def theta(self, x: np.ndarray) -> np.ndarray:
        theta = self._origin.copy()
        theta[self._active] += self._scale @ x if self._scale.ndim == 2 else self._scale * x
        return theta

    def _evaluate(self, x: np.ndarray) -> Reference:
        if not np.array_equal(x, self._at):
            self._at = x.copy()
            self._summed = summed(
                self._expansion, self.theta(x), self._batches, self._weight, self._curved
            )
        return self._summed

    def value(self, x: np.ndarray) -> float:
        found = self._evaluate(x)
        value = -Quadratic(self._expansion, found).height
        # Curvatures overflow first: beyond, finite slopes may be wrong, and hold the search there.
        known = found.is_finite or not self._known
        return value if known and np.isfinite(value) else _IMPOSSIBLE

    def gradient(self, x: np.ndarray) -> np.ndarray:
        found = self._evaluate(x)
        grad = _finite(self._expansion.pull_back(found.theta, found.slope)[self._active])
        return -_finite(grad @ self._scale if self._scale.ndim == 2 else self._scale * grad)

    def hessian(self, x: np.ndarray) -> np.ndarray:
        quadratic = Quadratic(self._expansion, self._evaluate(x))
        matrix = _finite(quadratic.precision(self._active, rough=True))
        self.concave = self.concave and _positive(matrix)
        return _finite(self._scale.T @ matrix @ self._scale)


def _finite(x: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x), x, 0.0)


@dataclass(frozen=True)
class Climb:
    """Where a search on some rows ended."""

    theta: np.ndarray  # Shape (d,): the mode, or the best point found.
    concave: bool  # Whether the log posterior was concave wherever its curvature was looked at.
    steps: int  # Of the search.


def _positive(matrix: np.ndarray) -> bool:
    """Whether a matrix has no negative eigenvalue, but for rounding."""
    scale = units(matrix)
    rounding = _ROUNDING * np.eye(len(matrix))
    try:
        np.linalg.cholesky(matrix / np.outer(scale, scale) + rounding)
    except np.linalg.LinAlgError:
        return False
    return True


def mode_of_rows(
    expansion: Expansion,
    theta: np.ndarray,
    active: np.ndarray,
    batches: Sequence[np.ndarray] | None,
    weight: float,
    most_steps: int = 200,
) -> Climb:
    """Find the mode of the posterior that weighs each of some rows by `weight`, n / (m T).

    Elements `active` of theta move. `batches` of packed rows are anchored anew at every step; None
    for all rows.
    """
    newton = len(active) <= MAX_DENSE and has_precision(expansion, len(active))
    origin = summed(expansion, theta, batches, weight, newton)
    if not len(active):
        return Climb(origin.theta, True, 0)
    with np.errstate(all="ignore"):
        # In units of the curvature at the start, columns may have any units and offsets.
        if newton:
            matrix = _finite(Quadratic(expansion, origin).precision(active, rough=True))
            scale = covariance_factor(matrix)
        else:
            scale = Quadratic(expansion, origin).scales(active)
        objective = _Objective(expansion, origin, active, batches, weight, scale, curved=newton)
        hessian = objective.hessian if newton else None
        options = {"maxiter": most_steps}
        found = _minimum(objective.value, objective.gradient, hessian, len(active), options)
    if found is None:
        return Climb(origin.theta, False, 0)
    return Climb(objective.theta(found.x), newton and objective.concave, int(found.nit))


def quadratic_mode(quadratic: Quadratic, active: np.ndarray) -> np.ndarray:
    """Return theta at the mode of the prior and the quadratic log-likelihood: no rows are read."""
    origin = quadratic.reference.theta
    newton = len(active) <= MAX_DENSE and has_precision(quadratic.expansion, len(active))
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


def polish(
    expansion: Expansion, theta: np.ndarray, active: np.ndarray, temperature: float = 1.0
) -> Reference:
    """Find the posterior mode near theta on all rows.

    By Newton's method with step halving or, without a matrix of second derivatives, by L-BFGS in
    units of the standard deviations that the diagonal gives, until no element has a gradient of
    more than 0.1 per standard deviation.
    """
    if not has_precision(expansion, len(active)):
        at = reference_at(expansion, theta, temperature)
        scale = Quadratic(expansion, at).scales(active)
        objective = _Objective(expansion, at, active, None, 1.0 / temperature, scale)
        found = _minimum(objective.value, objective.gradient, None, len(active), _BY_GRADIENTS)
        if found is None:
            return at
        return reference_at(expansion, objective.theta(found.x), temperature)
    return newton(
        expansion, lambda theta: reference_at(expansion, theta, temperature), theta, active
    )


def newton(
    expansion: Expansion,
    sum_at: Callable[[np.ndarray], Reference],
    theta: np.ndarray,
    active: np.ndarray,
    most_steps: int = _MAX_POLISH,
) -> Reference:
    """Find the mode near theta by Newton's method with step halving.

    Elements `active` move; ``sum_at(theta)`` sums the rows there, of all or of some.
    """
    best = sum_at(theta)
    best_value = Quadratic(expansion, best).height
    for _ in range(most_steps):
        matrix = Quadratic(expansion, best).precision(active)
        if not np.all(np.isfinite(matrix)):
            break
        cov = covariance(matrix)
        ascent = expansion.pull_back(best.theta, best.slope)[active]
        step = cov @ ascent
        distance = np.sqrt(max(step @ ascent, 0.0) / len(active))
        if distance < _POLISHED:
            break
        for _ in range(6):
            trial = best.theta.copy()
            trial[active] += step
            candidate = sum_at(trial)
            value = Quadratic(expansion, candidate).height
            if np.isfinite(value) and value > best_value:
                best, best_value = candidate, value
                break
            step = 0.25 * step
        else:
            break
    return best
