"""Draws of another model are told from those that a subsample made wrong."""

import numpy as np
import xarray as xr

from pymc_subsample.diagnostics.chain_ends import ChainEnd
from pymc_subsample.results.audit.other_models import of_other_estimates


def test_what_noise_makes_of_weights_is_not_taken_for_another_model():
    """By recorded noise as large, by a run at another temperature, and where none is recorded."""
    noise = np.random.default_rng(0).normal(0, 4, (2, 100))

    def stats(variance):
        return xr.Dataset({"loglik_variance": (("chain", "draw"), np.full((2, 100), variance))})

    def at(temperature):
        return [ChainEnd("HMCECS", "HMCECS", {"temperature": temperature}, (), 100)]

    for ends in (at(1.0), []):
        assert "the run recorded 0.1 for" in of_other_estimates(stats(0.01), ends, noise)
        assert of_other_estimates(stats(1.0), ends, noise) == ""
        assert of_other_estimates(xr.Dataset(), ends, noise) == ""
        assert of_other_estimates(stats(1e-8), ends, noise / 100) == ""
    assert of_other_estimates(stats(0.01), at(3.0), noise) == ""
