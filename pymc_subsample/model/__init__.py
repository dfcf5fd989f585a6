"""The model boundary: from a `pm.Model` to the log-likelihood of a row."""

from pymc_subsample.model.errors import JumpError, TallModelError
from pymc_subsample.model.tall_model import TallModel

__all__ = ["JumpError", "TallModel", "TallModelError"]
