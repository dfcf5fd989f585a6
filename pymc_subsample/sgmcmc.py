"""Stochastic-gradient MCMC: `SGMCMC`, its presets of the literature, and schedules of step sizes.

Steps without an acceptance test, as ``pm.sample(step=pms.sgmcmc.SGHMC())``: draws are off by what
the step size and the noise of the gradients do to them.
"""

from pymc_subsample.samplers.gradients.presets import (
    EWSG,
    PSGLD,
    SGHMC,
    SGLD,
    SGNHT,
    SVRGLD,
    ClusteredSGHMC,
)
from pymc_subsample.samplers.gradients.schedules import Cyclical, PolynomialDecay
from pymc_subsample.samplers.gradients.step import SGMCMC

__all__ = [
    "EWSG", "PSGLD", "SGHMC", "SGLD", "SGMCMC", "SGNHT", "SVRGLD", "ClusteredSGHMC", "Cyclical",
    "PolynomialDecay",
]  # fmt: skip
