"""Subsampling MCMC for PyMC: Bayesian inference on tall data."""

from pymc_subsample.correction import BarkerCorrection, barker_correction
from pymc_subsample.likelihood import TallModelError
from pymc_subsample.steps.hmc_ecs import HMCECS

__all__ = ["HMCECS", "BarkerCorrection", "TallModelError", "barker_correction"]
__version__ = "0.1.0"
