"""Pictures of what draws cost and risked, made with arviz-plots."""

from pymc_subsample.plots.audit import plot_audit
from pymc_subsample.plots.batches import plot_batch_sizes
from pymc_subsample.plots.evaluations import plot_evaluations
from pymc_subsample.plots.subsample import plot_subsample

__all__ = ["plot_audit", "plot_batch_sizes", "plot_evaluations", "plot_subsample"]
