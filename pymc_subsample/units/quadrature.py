"""Nodes of integrals over the variables of a unit, around its mode."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import product

import numpy as np
from scipy.special import gammaincinv, gammaln, ndtri

from pymc_subsample.units.graphs import UnitGraphs

# Beyond, products of nodes are more than points that fill the space.
MOST_PRODUCTS = 3
# From so many on, nodes are evenly spaced: measured, on units of one and two binary rows and large
# scales. Where they end grows with the cube root of their number (Trefethen), and so far that what
# lies beyond is less than what lies between them.
_EVEN, _REACH = 45, 2.3
# Share of the largest weight from which on a node of a product is kept, wherever it is: where few
# nodes come, those in the corners count.
_NEGLIGIBLE = 1e-7
# Of nodes, rounding moves the one in the middle.
_ZERO = 1e-9
# Degrees of freedom of points in more dimensions: heavier tails than a posterior of few rows has.
_DEGREES = 8.0


def nodes_of(
    graphs: UnitGraphs, per_dimension: int, active: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes nu of units, and the logarithms of their weights: those of `nodes`, and states.

    States are where they are, as around a mode of zero with a spread of one. Where units have some
    elements of all, those that are `active`, (units, size), nodes are of shape (K, units, size),
    and weights of (K, units); else nodes of (K, size).
    """
    if active is None:
        return _of_elements(graphs, per_dimension, range(graphs.size))
    patterns, which = np.unique(active, axis=0, return_inverse=True)
    each = [_of_elements(graphs, per_dimension, np.flatnonzero(p).tolist()) for p in patterns]
    most = max(len(log_w) for _, log_w in each)
    nu, log_weights = np.zeros((most, *active.shape)), np.full((most, len(active)), -np.inf)
    for i, (points, log_w) in enumerate(each):
        units, elements = np.flatnonzero(which.ravel() == i), np.flatnonzero(patterns[i])
        nu[: len(points), units[:, None], elements] = points[:, None, :]
        log_weights[: len(points), units] = log_w[:, None]
    return nu, log_weights


def _of_elements(
    graphs: UnitGraphs, per_dimension: int, elements: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    if graphs.states is None:
        return nodes(len(elements), per_dimension)
    values = [graphs.states[i] for i in elements]
    discrete = graphs.discrete[list(elements)]
    states = np.array(list(product(*(v for v in values if v is not None))))
    points, log_weights = nodes(int(np.sum(~discrete)), per_dimension)
    found = np.zeros((len(states), len(points), len(elements)))
    found[:, :, discrete], found[:, :, ~discrete] = states[:, None], points
    size = len(states) * len(points)
    return found.reshape(size, len(elements)), np.tile(log_weights, len(states))


@lru_cache
def nodes(size: int, per_dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes nu, shape (K, size), and the logarithms of their weights, shape (K,).

    ``int f(nu) dnu ~= sum_k exp(log_weight_k) f(nu_k)``, for an f that is about normal with mean
    zero and variance one: of Gauss and Hermite in one dimension, from 45 on evenly spaced ones,
    which serve better where densities are nearly steps (Trefethen, 2022), products of these in two
    and three, without negligible ones that are farther out than any on an axis (Jäckel, 2005), and
    in more Sobol points of a Student-t distribution.

    References
    ----------
    Naylor, J. C., and Smith, A. F. M. (1982). Applications of a method for the efficient
    computation of posterior distributions. Applied Statistics 31, 214-225.

    Trefethen, L. N. (2022). Exactness of quadrature formulas. SIAM Review 64, 132-150.

    Jäckel, P. (2005). A note on multivariate Gauss-Hermite quadrature. Manuscript.
    """
    if size > MOST_PRODUCTS:
        return _filling(size, per_dimension)
    x, w = _on_a_line(per_dimension)
    points = np.array(list(product(x, repeat=size)))
    with np.errstate(divide="ignore"):
        log_w = np.log(np.array(list(product(w, repeat=size)))).sum(axis=1)
        end, middle = np.log(w.min()), np.log(w.max())
    least = min(end - middle, np.log(_NEGLIGIBLE)) + size * middle
    # Rounding must not tell nodes on the axes apart.
    large = log_w >= least - 1e-9 if size > 1 else np.isfinite(log_w)
    points, log_w = points[large], log_w[large]
    return points, log_w + 0.5 * (points**2).sum(axis=1)


def centred(size: int, per_dimension: int) -> bool:
    """Whether nodes of fewer variables are among those of `size`, where others are zero."""
    return size <= MOST_PRODUCTS and per_dimension % 2 == 1


def of_fewer(size: int, per_dimension: int, fewer: int) -> np.ndarray:
    """Return logarithms of weights with which these are nodes of the first `fewer` variables."""
    points, log_weights = nodes(size, per_dimension)
    middle = nodes(1, per_dimension)[1][per_dimension // 2] if fewer < size else 0.0
    others = np.abs(points[:, fewer:]).max(axis=1, initial=0.0)
    return np.where(others > _ZERO, -np.inf, log_weights - (size - fewer) * middle)


def _on_a_line(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n nodes, and weights of integrals over a function times ``exp(-x**2 / 2)``."""
    if n < _EVEN:
        return np.polynomial.hermite_e.hermegauss(n)
    x = np.linspace(-1.0, 1.0, n) * _REACH * n ** (1 / 3)
    return x, (x[1] - x[0]) * np.exp(-(x**2) / 2)


def _filling(size: int, per_dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 2**k points, as many as ``per_dimension**3`` or more."""
    from scipy.stats import qmc  # takes half a second to import, and few groupings need it

    power = int(np.ceil(3 * np.log2(per_dimension)))
    uniform = qmc.Sobol(size + 1, scramble=True, seed=0).random_base2(power)
    uniform = np.clip(uniform, 1e-12, 1 - 1e-12)
    normal = ndtri(uniform[:, :size])
    scale = np.sqrt(_DEGREES / (2 * gammaincinv(_DEGREES / 2, uniform[:, size])))
    points = normal * scale[:, None]
    squared = (points**2).sum(axis=1)
    log_density = (
        gammaln((_DEGREES + size) / 2)
        - gammaln(_DEGREES / 2)
        - 0.5 * size * np.log(_DEGREES * np.pi)
        - 0.5 * (_DEGREES + size) * np.log1p(squared / _DEGREES)
    )
    return points, -log_density - np.log(len(points))
