"""Control variates: Taylor expansions of the row log-likelihoods and their full-data sums."""

import logging
from functools import partial

import numpy as np

from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.expansion.general import general_expansion
from pymc_subsample.expansion.linear import is_small, linear_expansion
from pymc_subsample.expansion.undefined import undefined, without_derivatives
from pymc_subsample.expansion.verification import MISREAD, Agreement
from pymc_subsample.graph.interpreter import NoForm
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.model.identity import extremes
from pymc_subsample.model.minimum_cut import fewest_predictors
from pymc_subsample.model.predictors import Predictor, find_predictors
from pymc_subsample.model.verification import probes

__all__ = ["Expansion", "expand", "linear_predictors"]

_log = logging.getLogger("pymc.subsample")


def expand(model: TallModel, order: int = 2, *, linear: bool | None = None) -> Expansion:
    """Compile control variates of order 0, 1 or 2 for a model, and check them on some rows.

    `linear` forces the linear-predictor path (True) or the general one (False). Default: the linear
    one where a row has at most ten predictors, or fewer second derivatives than it reads numbers,
    and reads few columns beside them.

    Raises
    ------
    TallModelError
        If what was compiled is not the log-likelihood of the model as it was written.
    """
    predictors = None if linear is False else linear_predictors(model)
    if predictors is not None:
        expansion = linear_expansion(model, predictors, order)
        try:
            if Agreement(model, expansion).of_posterior():
                return expansion
        except NoForm:  # too much of a row to compile
            predictors = None
    if linear:
        if predictors is not None:
            raise TallModelError(MISREAD)
        raise ValueError("The model has no linear predictors; use linear=None.")
    expansion = general_expansion(model, order)
    if not Agreement(model, expansion).of_posterior():
        for theta, index in probes(model):
            center, _ = expansion.parameters(theta)
            bad = without_derivatives(expansion, expansion.take(index), center)
            if len(bad):
                raise undefined(expansion, np.unique(index[bad]).tolist(), center)
        raise TallModelError(MISREAD)
    if predictors is not None:
        _log.warning(
            "The linear predictors of this model do not give its log-likelihood: they were "
            "misread, or have columns that are not finite. The slower general path, which agrees "
            "with it, is used. Please report the model if its columns are finite."
        )
    return expansion


def linear_predictors(model: TallModel) -> list[Predictor] | None:
    """Return the linear predictors of a model's rows; None where they are not few."""
    starts = {v: part.start for v, part in model.phi_slices.items()}
    for find in (find_predictors, fewest_predictors):
        predictors = find(model.batch, starts, partial(extremes, model))
        if predictors is not None and is_small(model, predictors):
            return predictors if model.qr is None else model.qr.applied(predictors)
    return None
