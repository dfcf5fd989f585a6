"""The search for the reference point: the posterior mode."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from pymc_subsample.control_variates.curvature import MAX_CURVATURE, MAX_DENSE, covariance
from pymc_subsample.control_variates.expansion import Expansion
from pymc_subsample.control_variates.reference import (
    Reference,
    log_posterior,
    precision,
    reference_at,
    scales,
    summed,
)

_FIRST_SUBSET = 1_000
_LAST_SUBSET = 100_000
_SUBSET_BYTES = 2**28
_MAX_POLISH = 8
_POLISHED = 0.1
_MAX_PASSES = 50
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

    Parameters
    ----------
    expansion : Expansion
        Compiled model.
    start : ndarray, shape (d,)
        Where the search starts.
    active : ndarray, shape (a,)
        Elements of theta that may move.
    rng : numpy.random.Generator
        Draws the subsets.
    temperature : float, default 1
        Divides the log-likelihood.

    Returns
    -------
    Reference
        Within about 0.1 posterior standard deviations of the mode where Newton's method
        converges in 8 passes over the data, or L-BFGS in 50 where there are too many parameters
        for Newton's; the best point found otherwise.
    """
    n = expansion.n_rows
    theta = np.array(start, dtype=float)
    last = max(_FIRST_SUBSET, min(_LAST_SUBSET, _SUBSET_BYTES // (8 * expansion.width)))
    size = min(n, max(_FIRST_SUBSET, min(20 * len(active), last)))
    while size < n:
        rows = expansion.batches(rng.integers(0, n, size))
        theta = mode_of_rows(expansion, theta, active, rows, n / (size * temperature)).theta
        if size >= min(last, n // 2):
            break
        size = min(size * 10, last, n // 2)
    else:
        rows = list(expansion.chunks())
        theta = mode_of_rows(expansion, theta, active, rows, 1.0 / temperature).theta
    return polish(expansion, theta, active, temperature)


class _Objective:
    """Negative log posterior of weighted rows, in units of `scale`; evaluated once per point.

    `batches` is called for each evaluation. It is divided by `height`.
    """

    def __init__(
        self,
        expansion: Expansion,
        theta: np.ndarray,
        active: np.ndarray,
        batches: Callable[[], Iterable[np.ndarray]],
        weight: float,
        *,
        height: float = 1.0,
        scale: np.ndarray | float = 1.0,
        curved: bool = False,
    ):
        self._expansion, self._origin, self._active = expansion, theta.copy(), active
        self._batches, self._weight, self._height = batches, weight, height
        self._scale, self._curved = scale, curved
        self._at: np.ndarray | None = None
        self.concave = True

    def theta(self, x):
        theta = self._origin.copy()
        theta[self._active] = self._scale * x
        return theta

    def _evaluate(self, x):
        if self._at is None or not np.array_equal(x, self._at):
            self._at = x.copy()
            self._summed = summed(
                self._expansion, self.theta(x), self._batches(), self._weight, self._curved
            )
        return self._summed

    def value(self, x):
        value = -log_posterior(self._expansion, self._evaluate(x)) / self._height
        return value if np.isfinite(value) else 1e10

    def gradient(self, x):
        found = self._evaluate(x)
        grad = self._expansion.pull_back(found.theta, found.slope)[self._active]
        return -np.nan_to_num(self._scale * grad) / self._height

    def hessian(self, x):
        matrix = precision(self._expansion, self._evaluate(x), self._active)
        matrix = np.nan_to_num(matrix) / self._height
        self.concave = self.concave and _positive(matrix)
        return matrix


@dataclass(frozen=True)
class Climb:
    """Where a search on some rows ended.

    Attributes
    ----------
    theta : ndarray, shape (d,)
        The mode, or the best point found.
    concave : bool
        Whether the log posterior was concave wherever its curvature was looked at.
    steps : int
        Of the search.
    """

    theta: np.ndarray
    concave: bool
    steps: int


def _positive(matrix: np.ndarray) -> bool:
    """Whether a matrix has no negative eigenvalue, but for rounding."""
    scale = np.sqrt(np.abs(np.diag(matrix)))
    scale = np.where(scale > 0, scale, 1.0)
    rounding = _ROUNDING * np.eye(len(matrix))
    try:
        np.linalg.cholesky(matrix / np.outer(scale, scale) + rounding)
    except np.linalg.LinAlgError:
        return False
    return True


def mode_of_rows(expansion, theta, active, rows, weight, most_steps: int = 200) -> Climb:
    """Find the mode of the posterior that weighs each of some rows by `weight`.

    Parameters
    ----------
    expansion : Expansion
        Compiled model.
    theta : ndarray, shape (d,)
        Start.
    active : ndarray of int, shape (a,)
        Elements of theta that may move.
    rows : list of ndarray, shape (width, m)
        Batches of packed rows; anchored anew at every step.
    weight : float
        Weight of a row, n / (m T).
    most_steps : int, default 200
        Of the search.
    """
    import scipy.optimize  # takes a third of a second to import, and only the search needs it

    newton = len(active) <= MAX_DENSE and has_precision(expansion, len(active))
    height = weight * sum(batch.shape[1] for batch in rows)
    objective = _Objective(
        expansion, theta, active, lambda: rows, weight, height=height, curved=newton
    )
    found = scipy.optimize.minimize(
        objective.value,
        theta[active],
        jac=objective.gradient,
        hess=objective.hessian if newton else None,
        method="trust-exact" if newton else "L-BFGS-B",
        options={"maxiter": most_steps},
    )
    return Climb(objective.theta(found.x), newton and objective.concave, int(found.nit))


def polish(
    expansion: Expansion, theta: np.ndarray, active: np.ndarray, temperature: float = 1.0
) -> Reference:
    """Find the posterior mode near theta on all rows.

    By Newton's method with step halving or, without a matrix of second derivatives, by L-BFGS in
    units of the standard deviations that the diagonal gives.
    """
    if not has_precision(expansion, len(active)):
        best = reference_at(expansion, theta, temperature)
        return _polish_by_gradients(expansion, best, active, temperature)
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

    Parameters
    ----------
    expansion : Expansion
        Compiled model.
    sum_at : callable
        ``sum_at(theta)`` sums the rows there, of all or of some.
    theta : ndarray, shape (d,)
        Start.
    active : ndarray of int, shape (a,)
        Elements of theta that may move.
    most_steps : int, default 8
        Steps at most.
    """
    best = sum_at(theta)
    best_value = log_posterior(expansion, best)
    for _ in range(most_steps):
        matrix = precision(expansion, best, active)
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
            value = log_posterior(expansion, candidate)
            if np.isfinite(value) and value > best_value:
                best, best_value = candidate, value
                break
            step = 0.25 * step
        else:
            break
    return best


def _polish_by_gradients(expansion, reference, active, temperature) -> Reference:
    """L-BFGS until no element has a gradient of more than 0.1 per standard deviation."""
    import scipy.optimize

    if not len(active):
        return reference
    scale = scales(expansion, reference, active)
    objective = _Objective(
        expansion, reference.theta, active, expansion.chunks, 1.0 / temperature, scale=scale
    )
    found = scipy.optimize.minimize(
        objective.value,
        reference.theta[active] / scale,
        jac=objective.gradient,
        method="L-BFGS-B",
        options={"gtol": _POLISHED, "ftol": 0.0, "maxfun": _MAX_PASSES},
    )
    return reference_at(expansion, objective.theta(found.x), temperature)
