"""The reference point: where it is, and what is summed over all rows there."""

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from pymc_subsample.control_variates.expansion import Expansion
from pymc_subsample.estimators import Moments, moments_from_sums
from pymc_subsample.likelihood import TallModelError

# The mass matrix is dense up to this many parameters and diagonal beyond.
MAX_DENSE = 500
# Second-order control variates need a P x P matrix; beyond this P use order 1.
MAX_CURVATURE = 2000

_FIRST_SUBSET = 1_000
_LAST_SUBSET = 100_000
_MAX_POLISH = 8
_POLISHED = 0.1
_SHOWN = 10


@dataclass(frozen=True)
class Reference:
    """Expansion point and full-data sums, tempered: divided by the temperature.

    Attributes
    ----------
    theta : ndarray, shape (d,)
        Point in PyMC's unconstrained space.
    center : ndarray, shape (P,)
        phi at theta.
    level, slope, curvature : float, ndarray (P,), ndarray (P, P)
        Sums over all rows of l*, its gradient and its Hessian in phi.
    """

    theta: np.ndarray
    center: np.ndarray
    level: float
    slope: np.ndarray
    curvature: np.ndarray


def reference_at(expansion: Expansion, theta: np.ndarray, temperature: float = 1.0) -> Reference:
    """Sum over all rows at theta: one pass, in chunks."""
    return _summed(expansion, theta, expansion.chunks(), 1.0 / temperature)


def _summed(expansion: Expansion, theta, batches, weight: float) -> Reference:
    center, _ = expansion.parameters(theta)
    size = expansion.phi_size
    bent = size if size <= MAX_CURVATURE else 0
    level, slope, curvature = np.zeros(1), np.zeros(size), np.zeros((bent, bent))
    for rows in batches:
        expansion.anchor(center, rows)
        expansion.sums(center, rows, level, slope, curvature)
    return Reference(
        np.array(theta, dtype=float), center, weight * float(level[0]), weight * slope,
        weight * curvature,
    )  # fmt: skip


def log_posterior(expansion: Expansion, reference: Reference) -> float:
    """Return the (tempered) log posterior at the reference point."""
    return expansion.parameters(reference.theta)[1] + reference.level


def gradient(expansion: Expansion, reference: Reference, theta: np.ndarray) -> np.ndarray:
    """Gradient in theta, shape (d,), of the quadratic log-likelihood plus the prior."""
    phi, _ = expansion.parameters(theta)
    slope = reference.slope
    if len(reference.curvature):
        slope = slope + reference.curvature @ (phi - reference.center)
    return expansion.pull_back(theta, slope)


def precision(
    expansion: Expansion,
    reference: Reference,
    active: np.ndarray,
    theta: np.ndarray | None = None,
) -> np.ndarray:
    """Negative Hessian of prior and quadratic log-likelihood, shape (a, a), in elements `active`.

    At the reference, where it is taken unless theta is given, they have the log posterior's own
    derivatives. The Hessian is the central difference of their gradient.
    """
    theta = reference.theta if theta is None else theta
    columns = []
    for a in active:
        h = 1e-5 * max(1.0, abs(theta[a]))
        forth, back = theta.copy(), theta.copy()
        forth[a] += h
        back[a] -= h
        difference = gradient(expansion, reference, forth) - gradient(expansion, reference, back)
        columns.append(-difference[active] / (2 * h))
    matrix = np.array(columns).reshape(len(active), len(active))
    return 0.5 * (matrix + matrix.T)


def covariance(matrix: np.ndarray) -> np.ndarray:
    """Invert a precision matrix; directions of negative curvature are taken by their size."""
    scale = np.sqrt(np.abs(np.diag(matrix)))
    scale = np.where(scale > 0, scale, 1.0)
    values, vectors = scipy.linalg.eigh(matrix / np.outer(scale, scale))
    values = np.maximum(np.abs(values), 1e-10 * np.abs(values).max())
    inverse = (vectors / values) @ vectors.T
    return inverse / np.outer(scale, scale)


def factor(cov: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factor or, for many parameters, standard deviations (1, a)."""
    if len(cov) > MAX_DENSE:
        return np.sqrt(np.diag(cov))[None, :]
    return np.ascontiguousarray(np.linalg.cholesky(cov))


def whiten(factor: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Divide by a factor, shape (a, a), or a diagonal, shape (1, a), along the first axis."""
    if len(factor) == 1 and len(x) > 1:
        return (x.T / factor[0]).T
    return np.linalg.solve(factor, x)


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
        converges in 8 passes over the data; the best point found otherwise.
    """
    n = expansion.n_rows
    theta = np.array(start, dtype=float)
    size = min(n, max(_FIRST_SUBSET, 20 * len(active)))
    while size < n:
        rows = expansion.take(rng.integers(0, n, size))
        theta, _ = mode_of_rows(expansion, theta, active, rows, n / (size * temperature))
        if size >= min(_LAST_SUBSET, n // 2):
            break
        size = min(size * 10, _LAST_SUBSET, n // 2)
    else:
        rows = np.concatenate(list(expansion.chunks()), axis=1)
        theta, _ = mode_of_rows(expansion, theta, active, rows, 1.0 / temperature)
    return polish(expansion, theta, active, temperature)


class _SubsetObjective:
    """Negative log posterior of a weighted subset per row, with derivatives, evaluated once."""

    def __init__(self, expansion, theta, active, rows, weight):
        self._expansion, self._theta, self._active = expansion, theta.copy(), active
        self._rows, self._weight = rows, weight
        self._scale = 1.0 / (weight * rows.shape[1])
        self._at: np.ndarray | None = None

    def _evaluate(self, x):
        if self._at is None or not np.array_equal(x, self._at):
            self._at = x.copy()
            self._theta[self._active] = x
            self._summed = _summed(self._expansion, self._theta, [self._rows], self._weight)
        return self._summed

    def value(self, x):
        summed = self._evaluate(x)
        value = -self._scale * log_posterior(self._expansion, summed)
        return value if np.isfinite(value) else 1e10

    def gradient(self, x):
        summed = self._evaluate(x)
        grad = self._expansion.pull_back(summed.theta, summed.slope)[self._active]
        return -self._scale * np.nan_to_num(grad)

    def hessian(self, x):
        summed = self._evaluate(x)
        return self._scale * np.nan_to_num(precision(self._expansion, summed, self._active))


def mode_of_rows(expansion, theta, active, rows, weight) -> tuple[np.ndarray, float]:
    """Find the mode of the posterior that weighs each of some rows by `weight`.

    Parameters
    ----------
    expansion : Expansion
        Compiled model.
    theta : ndarray, shape (d,)
        Start.
    active : ndarray of int, shape (a,)
        Elements of theta that may move.
    rows : ndarray, shape (width, m)
        Packed rows; anchored anew at every step.
    weight : float
        Weight of a row, n / (m T).

    Returns
    -------
    ndarray, shape (d,)
        The mode.
    float
        The log posterior there, divided by `weight` times m.
    """
    import scipy.optimize  # takes a third of a second to import, and only the search needs it

    objective = _SubsetObjective(expansion, theta, active, rows, weight)
    newton = len(active) <= MAX_DENSE and expansion.phi_size <= MAX_CURVATURE
    found = scipy.optimize.minimize(
        objective.value,
        theta[active],
        jac=objective.gradient,
        hess=objective.hessian if newton else None,
        method="trust-exact" if newton else "L-BFGS-B",
        options={"maxiter": 200},
    )
    theta = theta.copy()
    theta[active] = found.x
    return theta, -float(found.fun)


def polish(
    expansion: Expansion, theta: np.ndarray, active: np.ndarray, temperature: float = 1.0
) -> Reference:
    """Find the posterior mode near theta by Newton's method on all rows, with step halving."""
    best = reference_at(expansion, theta, temperature)
    best_value = log_posterior(expansion, best)
    for _ in range(_MAX_POLISH):
        matrix = precision(expansion, best, active)
        cov = covariance(matrix)
        ascent = expansion.pull_back(best.theta, best.slope)[active]
        step = cov @ ascent
        distance = np.sqrt(max(step @ ascent, 0.0) / len(active))
        if distance < _POLISHED:
            break
        for _ in range(6):
            trial = best.theta.copy()
            trial[active] += step
            candidate = reference_at(expansion, trial, temperature)
            value = log_posterior(expansion, candidate)
            if np.isfinite(value) and value > best_value:
                best, best_value = candidate, value
                break
            step = 0.25 * step
        else:
            break
    return best


def residual_moments(
    expansion: Expansion,
    reference: Reference,
    thetas: np.ndarray,
    far: np.ndarray | tuple = (),
) -> Moments:
    """Moments over all rows of the residuals at points theta, shape (k, d), in one pass.

    At the points `far`, shape (j, d), only the largest residual and their sum count.

    Raises
    ------
    TallModelError
        If a residual is not finite at one of the points `thetas`.
    """
    points = [expansion.parameters(theta)[0] for theta in [*thetas, *far]]
    sums = np.zeros((4, len(thetas)))
    largest, far_total = 0.0, np.zeros(len(far))
    grad = np.zeros(expansion.phi_size)
    bad: set[int] = set()
    start = 0
    for rows in expansion.chunks():
        expansion.anchor(reference.center, rows)
        d = np.empty(rows.shape[1])
        for k, phi in enumerate(points):
            expansion.difference(phi, rows, reference.center, 1.0, 0.0, d, grad)
            if k >= len(thetas):
                finite = d[np.isfinite(d)]
                largest = max(largest, float(np.abs(finite).max(initial=0.0)))
                far_total[k - len(thetas)] += finite.sum()
                continue
            bad.update((start + np.flatnonzero(~np.isfinite(d))[:_SHOWN]).tolist())
            power = np.ones_like(d)
            for p in range(4):
                power *= d
                sums[p, k] += power.sum()
        start += len(d)
    if bad:
        raise _not_finite(expansion, sorted(bad))
    lowest = float(np.min(far_total, initial=np.inf))
    return moments_from_sums(sums, expansion.n_rows, largest, lowest)


def _not_finite(expansion: Expansion, rows: list[int]) -> TallModelError:
    shown = ", ".join(map(str, rows[:_SHOWN]))
    return TallModelError(
        f"The log-likelihood of {', '.join(map(repr, expansion.observed))} is not finite within "
        f"the spread of the posterior, in rows {shown}{' and maybe more' * (len(rows) >= _SHOWN)}: "
        "some likely parameters make these data impossible, and control variates need a smooth "
        "log-likelihood. Use a link that keeps parameters in range for every row (exp or softplus "
        "for a rate or a scale, sigmoid for a probability), or sample this model with pm.NUTS."
    )
