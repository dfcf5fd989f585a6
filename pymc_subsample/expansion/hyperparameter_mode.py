r"""A reference point for hierarchical models, whose joint mode may lie far from all the mass.

In :math:`\alpha_j \sim N(\mu, \tau^2)` the joint density has a pole at :math:`\tau = 0`, where all
:math:`\alpha_j` are equal. Parameters h that meet the data only through others, such as
:math:`\mu` and :math:`\tau`, are therefore set to the mode of their own marginal density, by
Laplace's approximation over the others v [1]_:

.. math:: \log p(h) \approx \max_v \log p(v, h) - \tfrac12 \log \det H_{vv}(h).

The log-likelihood is replaced by its quadratic at the reference, so that no data are read.

References
----------
.. [1] L. Tierney and J. B. Kadane (1986). Accurate approximations for posterior moments and
   marginal densities. Journal of the American Statistical Association 81(393), section 2.
"""

import numpy as np
import scipy.linalg

from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.expansion.quadratic import Quadratic

# The search over h is a simplex search; each of its steps takes a few dense Hessians in v.
# Choices of time. Newton's method ends where another step would gain less, as log density.
MAX_OUTER = 8
MAX_INNER = 200
_NEWTON_STEPS = 20
_SMALL = 1e-3


def split_hierarchy(
    expansion: Expansion, theta: np.ndarray, free: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Split elements of theta into (v, h): those that phi depends on, and the others."""
    phi, _ = expansion.parameters(theta)
    found = []
    for a in free:
        moved = theta.copy()
        moved[a] += 0.1
        found.append(not np.array_equal(expansion.parameters(moved)[0], phi))
    meets = np.array(found, dtype=bool)
    return free[meets], free[~meets]


def settle(quadratic: Quadratic, inner: np.ndarray, outer: np.ndarray) -> np.ndarray:
    """Return theta at the marginal mode of `outer` and the mode of `inner` given that.

    For more than 200 of `inner`, at the mode of `outer` given `inner` of the reference, which
    should be their mode at a vague `outer`, such as the model's start: they then hardly shrink, and
    are as spread as the groups. Where the search fails, theta of the reference.
    """
    import scipy.optimize  # takes a third of a second to import

    many = len(inner) > MAX_INNER
    best, least = quadratic.reference.theta.copy(), np.inf

    def objective(h: np.ndarray) -> float:
        nonlocal best, least
        trial = best.copy()
        trial[outer] = h
        found = (
            (trial, -quadratic.log_density(trial))
            if many
            else _conditional_mode(quadratic, trial, inner)
        )
        if found is None or not np.isfinite(found[1]):
            return 1e10
        if found[1] < least:
            best, least = found
        return found[1]

    start = best[outer]
    simplex = np.vstack([start, start + 0.5 * np.eye(len(outer))])
    rough = {"initial_simplex": simplex, "xatol": 0.05, "fatol": 0.05, "maxfev": 60 * len(outer)}
    options = {} if many else rough
    scipy.optimize.minimize(objective, start, method="Nelder-Mead", options=options)
    return best


def _conditional_mode(
    quadratic: Quadratic, theta: np.ndarray, inner: np.ndarray
) -> tuple[np.ndarray, float] | None:
    """Newton's method in `inner`; returns theta and minus Laplace's log marginal density."""
    value = quadratic.log_density(theta)
    for _ in range(_NEWTON_STEPS):
        hessian = quadratic.precision(inner, theta)
        try:
            cholesky = scipy.linalg.cho_factor(hessian)
        except (scipy.linalg.LinAlgError, ValueError):
            return None
        ascent = quadratic.gradient(theta)[inner]
        step = scipy.linalg.cho_solve(cholesky, ascent)
        if step @ ascent < _SMALL:
            log_det = 2 * np.log(np.diag(cholesky[0])).sum()
            return theta, float(0.5 * log_det - value)
        for _ in range(10):
            trial = theta.copy()
            trial[inner] += step
            new = quadratic.log_density(trial)
            if np.isfinite(new) and new > value:
                break
            step = 0.3 * step
        else:
            return None
        theta, value = trial, new
    return None
