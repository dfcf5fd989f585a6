"""Pictures of what draws cost and risked, made with arviz-plots."""

from pymc_subsample.plots.advice import plot_advice
from pymc_subsample.plots.audit import plot_audit
from pymc_subsample.plots.batches import plot_batch_sizes
from pymc_subsample.plots.costs import plot_error_against_cost, plot_evaluations
from pymc_subsample.plots.report import plot_report
from pymc_subsample.plots.subsample import plot_subsample

__all__ = [
    "plot_advice",
    "plot_audit",
    "plot_batch_sizes",
    "plot_error_against_cost",
    "plot_evaluations",
    "plot_report",
    "plot_subsample",
]
