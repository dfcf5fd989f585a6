"""Pictures of what draws cost and risked, made with arviz-plots."""

from pymc_subsample.results.plots.advice import plot_advice
from pymc_subsample.results.plots.audit import plot_audit
from pymc_subsample.results.plots.costs import plot_error_against_cost, plot_evaluations
from pymc_subsample.results.plots.report import plot_report
from pymc_subsample.results.plots.subsamples import plot_batch_sizes, plot_subsample

__all__ = [
    "plot_advice",
    "plot_audit",
    "plot_batch_sizes",
    "plot_error_against_cost",
    "plot_evaluations",
    "plot_report",
    "plot_subsample",
]
