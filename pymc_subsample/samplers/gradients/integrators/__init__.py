"""Integrators of stochastic-gradient MCMC, a module each; see `integrator.Integrator`."""

from importlib import import_module

from pymc_subsample.samplers.gradients.integrators.integrator import Integrator

_MODULES = ("baoab", "symplectic", "euler", "thermostat", "overdamped", "preconditioned")

INTEGRATORS: dict[str, Integrator] = {
    name: import_module(f"{__name__}.{name}").INTEGRATOR for name in _MODULES
}
