"""Rows that a sampler overlooked: draws that these make nearly impossible, by all rows' say."""

import numpy as np

from pymc_subsample.control_variates import Expansion
from pymc_subsample.diagnostics.perturbation import farthest, standardised
from pymc_subsample.diagnostics.scores import log_posteriors

# How far below the first quartile of log densities one may be: so much, and so many times the
# distance of the quartiles. Of 10^9 draws of a normal posterior hardly one is lower, in any
# dimension, nor in hierarchies, where that distance is wide.
_ALLOWED, _WIDTHS = 25.0, 10.0
# Draws that say what is usual, and fewest of which quartiles say something.
_USUAL, _FEWEST = 16, 8


def depth(logp: np.ndarray, usual: np.ndarray) -> float:
    """Return how far the lowest of log densities is below the `usual` ones, over what is possible.

    Infinite where one is -inf; 0 where too few are known.
    """
    usual = usual[np.isfinite(usual)]
    if len(usual) < _FEWEST:
        return 0.0
    low, high = np.quantile(usual, [0.25, 0.75])
    below = low - np.min(np.nan_to_num(logp, nan=-np.inf), initial=low)
    return float(below / (_ALLOWED + _WIDTHS * (high - low)))


def depth_of_farthest(expansion: Expansion, thetas: np.ndarray, active: np.ndarray) -> float:
    """Return the `depth` of the farthest draws in single elements, by all rows at 24 or more."""
    shares = np.full(len(thetas), 1 / len(thetas))
    far = farthest(standardised(thetas[:, active], shares))
    usual = np.linspace(0, len(thetas) - 1, min(_USUAL, len(thetas))).astype(int)
    logp, _ = log_posteriors(expansion, thetas[np.concatenate([far, usual])])
    return depth(logp[: len(far)], logp[len(far) :])
