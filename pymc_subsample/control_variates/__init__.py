"""Control variates: Taylor expansions of the row log-likelihoods and their full-data sums."""

from pymc_subsample.control_variates.expansion import Expansion
from pymc_subsample.control_variates.general import general_expansion
from pymc_subsample.control_variates.linear import MAX_PREDICTORS, linear_expansion
from pymc_subsample.likelihood import TallModel
from pymc_subsample.likelihood.predictors import find_predictors

__all__ = ["Expansion", "expand"]


def expand(model: TallModel, order: int = 2, *, linear: bool | None = None) -> Expansion:
    """Compile control variates of order 0, 1 or 2 for a model.

    Parameters
    ----------
    model : TallModel
        The model.
    order : {0, 1, 2}
        Order of the Taylor expansion in phi.
    linear : bool, optional
        Force the linear-predictor path (True) or the general one (False). Default: the linear
        one where the graph has at most ten predictors per row.
    """
    predictors = None
    if linear is not False:
        starts = {v: part.start for v, part in model.phi_slices.items()}
        predictors = find_predictors(model.batch, starts, model.column_minimum)
        if predictors is not None and sum(p.forms.size for p in predictors) > MAX_PREDICTORS:
            predictors = None
    if predictors is None:
        if linear:
            raise ValueError("The model has no linear predictors; use linear=None.")
        return general_expansion(model, order)
    return linear_expansion(model, predictors, order)
