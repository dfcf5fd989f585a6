"""Control variates: Taylor expansions of the row log-likelihoods and their full-data sums."""

import logging
from functools import partial

import numpy as np
from pymc.util import get_untransformed_name, is_transformed_name

from pymc_subsample.control_variates.continuity import find_gap
from pymc_subsample.control_variates.expansion import Expansion
from pymc_subsample.control_variates.general import general_expansion
from pymc_subsample.control_variates.linear import is_small, linear_expansion
from pymc_subsample.control_variates.reference import undefined, without_derivatives
from pymc_subsample.control_variates.verification import agrees, gradient_agrees
from pymc_subsample.likelihood import TallModel, TallModelError
from pymc_subsample.likelihood.identity import extremes
from pymc_subsample.likelihood.predictors import Predictor, find_predictors
from pymc_subsample.likelihood.verification import probes

__all__ = [
    "Expansion", "agrees", "expand", "linear_predictors", "refuse_steps", "verify_gradient",
]  # fmt: skip

_log = logging.getLogger("pymc.subsample")


def expand(model: TallModel, order: int = 2, *, linear: bool | None = None) -> Expansion:
    """Compile control variates of order 0, 1 or 2 for a model, and check them on some rows.

    `linear` forces the linear-predictor path (True) or the general one (False). Default: the linear
    one where a row has at most ten predictors and reads few columns beside them.

    Raises
    ------
    TallModelError
        If what was compiled is not the log-likelihood of the model as it was written.
    """
    predictors = None if linear is False else linear_predictors(model)
    if predictors is not None:
        expansion = linear_expansion(model, predictors, order)
        if agrees(model, expansion):
            return expansion
    if linear:
        if predictors is not None:
            raise TallModelError(_MISREAD)
        raise ValueError("The model has no linear predictors; use linear=None.")
    expansion = general_expansion(model, order)
    if not agrees(model, expansion):
        for theta, index in probes(model):
            center, _ = expansion.parameters(theta)
            bad = without_derivatives(expansion, expansion.take(index), center)
            if len(bad):
                raise undefined(expansion, np.unique(index[bad]).tolist())
        raise TallModelError(_MISREAD)
    if predictors is not None:
        _log.warning(
            "The linear predictors of this model do not give its log-likelihood: they were "
            "misread, or have columns that are not finite. It takes the slower general path, "
            "which agrees. Please report the model if its columns are finite."
        )
    return expansion


def verify_gradient(model: TallModel, expansion: Expansion) -> None:
    """Raise `TallModelError` where `Expansion.gradient` is not that of the model on some rows."""
    if not gradient_agrees(model, expansion):
        raise TallModelError(_MISREAD)


def refuse_steps(
    model: TallModel,
    expansion: Expansion,
    active: np.ndarray,
    advice: str,
    points: np.ndarray | None = None,
) -> None:
    """Raise `TallModelError` where `continuity.find_gap` finds one; `advice` is what remains."""
    gap = find_gap(model, expansion, active, points)
    if gap is None:
        return
    moved = ", ".join(
        repr(get_untransformed_name(name) if is_transformed_name(name) else name)
        for name in gap.names
    )
    raise TallModelError(
        f"The gradient of the log-likelihood of {', '.join(map(repr, model.observed))} does not "
        f"say how it changes with {moved}: added up along a line of length {gap.length:.2g} (in "
        f"unconstrained space) it misses {gap.missing:.0%} of the changes of random rows, and "
        f"where most is missing {gap.jump:.2g} is left within {gap.width:.0e} of the line. The "
        "log-likelihood has a step there (floor, round, a comparison, a switch between branches "
        f"that do not meet), or its gradient is wrong. {advice}"
    )


def linear_predictors(model: TallModel) -> list[Predictor] | None:
    """Return the linear predictors of a model's rows; None where they are not few."""
    starts = {v: part.start for v, part in model.phi_slices.items()}
    predictors = find_predictors(model.batch, starts, partial(extremes, model))
    if predictors is None or not is_small(model, predictors):
        return None
    return predictors if model.qr is None else model.qr.applied(predictors)


_MISREAD = (
    "The compiled log-likelihood is not that of the model: its graph was misread. Please report "
    "the model, and sample it with pm.NUTS."
)
