"""Whether subsampling pays for a model: projections from a short pilot."""

from pymc_subsample.advice.advising import advise
from pymc_subsample.advice.result import Advice

__all__ = ["Advice", "advise"]
