"""The log posterior of all rows at many points, in chunks."""

from collections.abc import Iterable, Sequence

import numpy as np

from pymc_subsample.blas import one_thread
from pymc_subsample.control_variates import Expansion
from pymc_subsample.control_variates.reference import sums_at


@one_thread
def log_posteriors(expansion: Expansion, thetas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log posterior and gradient at points theta, (k, d): chunks of rows are read once for all."""
    points = [expansion.parameters(theta) for theta in thetas]
    level, slope = np.zeros((len(points), 1)), np.zeros((len(points), expansion.phi_size))
    for levels, slopes in expansion.over(_at_points, [phi for phi, _ in points]):
        level += levels
        slope += slopes
    prior = np.array([logprior for _, logprior in points])
    gradient = [expansion.pull_back(t, g) for t, g in zip(thetas, slope, strict=True)]
    return prior + level[:, 0], np.array(gradient).reshape(len(points), expansion.theta_size)


def _at_points(
    expansion: Expansion, batches: Iterable[np.ndarray], points: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    [rows] = batches
    found = [sums_at(expansion, [rows], phi, curved=False) for phi in points]
    return np.array([level for level, _, _ in found]), np.array([slope for _, slope, _ in found])
