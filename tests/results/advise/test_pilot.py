"""What short chains are worth."""

import numpy as np

from pymc_subsample.results.advise.pilot import smallest_ess


def test_only_varying_parameters_count():
    draws = np.random.default_rng(6).normal(size=(500, 2))
    constant = np.zeros((500, 1))
    walk = np.cumsum(draws[:, :1], axis=0)
    assert smallest_ess(np.hstack([draws, constant])) > 250
    assert smallest_ess(np.hstack([draws, walk])) < 50
    assert smallest_ess(constant) == 1
    assert (
        smallest_ess(np.hstack([draws, np.full((500, 1), np.nan)])) == 1
    )  # of which none is known
