"""What functions that take a model share: the model of the context, and random numbers."""

import numpy as np
import pymc as pm
from pymc.model import modelcontext
from pymc.util import get_random_generator

from pymc_subsample.validation import shown


def generator(rng: int | np.random.Generator | None) -> np.random.Generator:
    """Return the generator for `rng`, which None, a seed or a generator may give."""
    try:
        if isinstance(rng, bool | np.random.RandomState):
            raise TypeError
        return get_random_generator(0 if rng is None else rng)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"rng must be None, an integer seed of at least 0 or a numpy Generator, got "
            f"{shown(rng)}."
        ) from None


def model_of_step(model: pm.Model | None, step: str) -> pm.Model:
    """Return the model of a step: `model`, or that of the `with` block."""
    later = (
        " Where a package makes the model itself, as Bambi does before build(), call its fit "
        "without step=, inside `with pms.subsampling():`."
    )
    return model_in_context(model, f"create {step}", later)


def model_in_context(model: pm.Model | None, said: str, otherwise: str = "") -> pm.Model:
    """Return `model`, or that of the `with` block; `said` is what was to be done with it."""
    if model is not None and not isinstance(model, pm.Model):
        kind = type(model)
        hint = " Pass its .backend.model, once built." if hasattr(model, "backend") else ""
        raise TypeError(f"model must be a pymc.Model, got {kind.__module__}.{kind.__name__}.{hint}")
    try:
        return modelcontext(model)
    except TypeError as error:
        raise TypeError(
            f"There is no model in context: {said} inside `with model:`, or pass model=.{otherwise}"
        ) from error
