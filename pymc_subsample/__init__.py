"""Bayesian inference on tall data: PyMC step methods that look at a subsample of rows."""

from importlib import import_module
from typing import TYPE_CHECKING

from pymc_subsample.collection import without_collection
from pymc_subsample.progress import announced, doing

if TYPE_CHECKING:
    from pymc_subsample.advice import Advice, advise
    from pymc_subsample.correction import BarkerCorrection, barker_correction
    from pymc_subsample.diagnostics.audit import audit
    from pymc_subsample.diagnostics.audited import Audit
    from pymc_subsample.diagnostics.efficiency import efficiency
    from pymc_subsample.diagnostics.report import Report, report
    from pymc_subsample.expectations import expectation, quantile, summary
    from pymc_subsample.likelihood import TallModelError
    from pymc_subsample.plots import (
        plot_audit,
        plot_batch_sizes,
        plot_evaluations,
        plot_subsample,
    )
    from pymc_subsample.proposals import AdaptiveMetropolis, Langevin, RandomWalk
    from pymc_subsample.schedules import Cyclical, PolynomialDecay
    from pymc_subsample.steps.austerity import AusterityMH
    from pymc_subsample.steps.barker import MinibatchBarkerMH
    from pymc_subsample.steps.confidence import ConfidenceMH
    from pymc_subsample.steps.firefly import FireflyMC
    from pymc_subsample.steps.gibbs import AusterityGibbs
    from pymc_subsample.steps.hmc_ecs import HMCECS
    from pymc_subsample.steps.presets import (
        EWSG,
        PSGLD,
        SGHMC,
        SGLD,
        SGNHT,
        SVRGLD,
        ClusteredSGHMC,
    )
    from pymc_subsample.steps.scalable import ScalableMH
    from pymc_subsample.steps.sgmcmc import SGMCMC

__all__ = [
    "EWSG",
    "HMCECS",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SGMCMC",
    "SGNHT",
    "SVRGLD",
    "AdaptiveMetropolis",
    "Advice",
    "Audit",
    "AusterityGibbs",
    "AusterityMH",
    "BarkerCorrection",
    "ClusteredSGHMC",
    "ConfidenceMH",
    "Cyclical",
    "FireflyMC",
    "Langevin",
    "MinibatchBarkerMH",
    "PolynomialDecay",
    "RandomWalk",
    "Report",
    "ScalableMH",
    "TallModelError",
    "advise",
    "audit",
    "barker_correction",
    "efficiency",
    "expectation",
    "plot_audit",
    "plot_batch_sizes",
    "plot_evaluations",
    "plot_subsample",
    "quantile",
    "report",
    "summary",
]
__version__ = "0.1.0"

# A step's compiled transition is loaded with the step, which takes a tenth of a second.
_HOMES = {
    "EWSG": "steps.presets",
    "HMCECS": "steps.hmc_ecs",
    "PSGLD": "steps.presets",
    "SGHMC": "steps.presets",
    "SGLD": "steps.presets",
    "SGMCMC": "steps.sgmcmc",
    "SGNHT": "steps.presets",
    "SVRGLD": "steps.presets",
    "AdaptiveMetropolis": "proposals",
    "Advice": "advice",
    "Audit": "diagnostics.audited",
    "AusterityGibbs": "steps.gibbs",
    "AusterityMH": "steps.austerity",
    "BarkerCorrection": "correction",
    "ClusteredSGHMC": "steps.presets",
    "ConfidenceMH": "steps.confidence",
    "Cyclical": "schedules",
    "FireflyMC": "steps.firefly",
    "Langevin": "proposals",
    "MinibatchBarkerMH": "steps.barker",
    "PolynomialDecay": "schedules",
    "RandomWalk": "proposals",
    "Report": "diagnostics.report",
    "ScalableMH": "steps.scalable",
    "TallModelError": "likelihood",
    "advise": "advice",
    "audit": "diagnostics.audit",
    "barker_correction": "correction",
    "efficiency": "diagnostics.efficiency",
    "expectation": "expectations",
    "plot_audit": "plots",
    "plot_batch_sizes": "plots",
    "plot_evaluations": "plots",
    "plot_subsample": "plots",
    "quantile": "expectations",
    "report": "diagnostics.report",
    "summary": "expectations",
}


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with announced(name), doing("loading what it needs, or compiling it"), without_collection():
        module = import_module(f"{__name__}.{_HOMES[name]}")
    return getattr(module, name)


def __dir__():
    return sorted([*globals(), *__all__])
