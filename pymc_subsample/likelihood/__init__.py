"""The model boundary: from a `pm.Model` to the log-likelihood of a row."""

from pymc_subsample.likelihood.errors import TallModelError
from pymc_subsample.likelihood.tall_model import TallModel

__all__ = ["TallModel", "TallModelError"]
