"""The log posterior of all rows at many points, in chunks."""

import numpy as np

from pymc_subsample.control_variates import Expansion


def log_posteriors(expansion: Expansion, thetas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log posterior and its gradient at points theta, shape (k, d): k passes over the rows.

    Memory does not grow with the rows: a chunk of them is read once and visited by all points.

    Returns
    -------
    logp : ndarray, shape (k,)
        Prior, with Jacobians, and log-likelihood of all rows.
    gradient : ndarray, shape (k, d)
        Of `logp`, in PyMC's unconstrained space.
    """
    points = [expansion.parameters(theta) for theta in thetas]
    level = np.zeros((len(points), 1))
    slope = np.zeros((len(points), expansion.phi_size))
    no_curvature = np.zeros((0, 0))
    with np.errstate(all="ignore"):
        for rows in expansion.chunks():
            for (phi, _), total, grad in zip(points, level, slope, strict=True):
                expansion.anchor(phi, rows)
                expansion.sums(phi, rows, total, grad, no_curvature)
    prior = np.array([logprior for _, logprior in points])
    gradient = [expansion.pull_back(t, g) for t, g in zip(thetas, slope, strict=True)]
    return prior + level[:, 0], np.array(gradient).reshape(len(points), expansion.theta_size)
