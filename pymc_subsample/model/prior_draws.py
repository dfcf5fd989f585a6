"""Draws of the prior in PyMC's unconstrained space: where a search for modes starts."""

from collections.abc import Callable, Mapping

import numpy as np
import pymc as pm
from pymc.initial_point import make_initial_point_fn

from pymc_subsample.compiled.functions import without_c

Draw = Callable[[int], Mapping[str, np.ndarray]]


def prior_draws(model: pm.Model) -> tuple[Draw, list[str]]:
    """Draw the prior forward, as PyMC does, and transform the draw.

    Returns ``draw(seed)``, values of value variables by name, and the names of those that are
    drawn: variables without forward draws, such as `pymc.Flat` and some custom distributions, are
    at the model's initial point. Draws are not weighed by potentials and data.
    """
    drawable = list(model.free_RVs)
    draw = _working(model, drawable)
    if draw is None:
        drawable = [rv for rv in drawable if _working(model, [rv]) is not None]
        draw = _working(model, drawable)
    if draw is None:  # they can be drawn one by one, but not given each other's draws
        drawable = []
        draw = make_initial_point_fn(model=model)
    return draw, [model.rvs_to_values[rv].name for rv in drawable]


def _working(model: pm.Model, drawn: list) -> Draw | None:
    """Return a function that draws some variables; None if it raises, whatever the user's code."""
    try:
        with without_c():
            draw = make_initial_point_fn(model=model, overrides=dict.fromkeys(drawn, "prior"))
        draw(0)
    except Exception:
        return None
    return draw
