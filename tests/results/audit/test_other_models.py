"""Draws of another model are told from those that a subsample made wrong."""

import numpy as np
import xarray as xr

from pymc_subsample.results.audit.other_models import of_other_estimates


def test_what_noise_makes_of_weights_is_not_taken_for_another_model():
    """By recorded noise as large, by a run at another temperature, and where none is recorded."""
    noise = np.random.default_rng(0).normal(0, 4, (2, 100))

    def stats(variance, temperature):
        last = np.full((2, 100), np.nan)
        last[:, -1] = temperature
        both = {"loglik_variance": np.full((2, 100), variance), "check_temperature": last}
        return xr.Dataset({name: (("chain", "draw"), x) for name, x in both.items()})

    assert "where its estimates have one of 0.1" in of_other_estimates(stats(0.01, 1.0), noise)
    assert of_other_estimates(stats(1.0, 1.0), noise) == ""
    assert of_other_estimates(stats(0.01, 3.0), noise) == ""
    assert of_other_estimates(stats(0.01, 1.0)[["check_temperature"]], noise) == ""
    assert of_other_estimates(stats(1e-8, 1.0), noise / 100) == ""
