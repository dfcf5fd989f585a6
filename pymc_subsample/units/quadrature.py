"""Nodes of integrals over the variables of a unit, around its mode."""

from functools import lru_cache
from itertools import product

import numpy as np
from scipy.special import gammaincinv, gammaln, ndtri
from scipy.stats import qmc

# Beyond, products of nodes are more than points that fill the space.
_PRODUCTS = 3
# Share of the largest weight below which a node of a product is dropped: its terms are below what
# an integral is accurate to wherever a node of one dimension more would change it.
_NEGLIGIBLE = 1e-7
# Degrees of freedom of points in more dimensions: heavier tails than a posterior of few rows has.
_DEGREES = 8.0


@lru_cache
def nodes(size: int, per_dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes nu, shape (K, size), and the logarithms of their weights, shape (K,).

    ``int f(nu) dnu ~= sum_k exp(log_weight_k) f(nu_k)``, for an f that is about normal with mean
    zero and variance one: of Gauss and Hermite in one dimension, products of these without
    negligible nodes in two and three, and in more Sobol points of a Student-t distribution.

    References
    ----------
    Naylor, J. C., and Smith, A. F. M. (1982). Applications of a method for the efficient
    computation of posterior distributions. Applied Statistics 31, 214-225.
    """
    if size > _PRODUCTS:
        return _filling(size, per_dimension)
    x, w = np.polynomial.hermite_e.hermegauss(per_dimension)
    points = np.array(list(product(x, repeat=size)))
    with np.errstate(divide="ignore"):
        log_w = np.log(np.array(list(product(w, repeat=size)))).sum(axis=1)
    kept = log_w > log_w.max() + np.log(_NEGLIGIBLE) if size > 1 else np.isfinite(log_w)
    points, log_w = points[kept], log_w[kept]
    return points, log_w + 0.5 * (points**2).sum(axis=1)


def _filling(size: int, per_dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 2**k points, as many as ``per_dimension**3`` or more."""
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
