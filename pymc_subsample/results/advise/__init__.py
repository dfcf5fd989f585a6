"""Whether subsampling pays for a model: projections from a short pilot."""

from pymc_subsample.results.advise.advising import advise
from pymc_subsample.results.advise.result import Advice

__all__ = ["Advice", "advise"]
