"""The modes of a model: where searches start, which one is a chain's, what is said of others."""

import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pymc as pm
from pymc.distributions.transforms import LogExpM1, ZeroSumTransform
from pymc.initial_point import make_initial_point_fn
from pymc.logprob.transforms import (
    CircularTransform,
    IntervalTransform,
    LogOddsTransform,
    LogTransform,
)

from pymc_subsample.compiled.functions import without_c
from pymc_subsample.diagnostics.checks import MODES, number
from pymc_subsample.expansion.modes import Starts
from pymc_subsample.expansion.symmetric_modes import ThetaPart
from pymc_subsample.model import TallModel

if TYPE_CHECKING:
    from pymc_subsample.chain.engine import ChainStep

_log = logging.getLogger("pymc.subsample")

MOST_SEEDS = 2**31  # Seeds of NumPy's are 32 bits, here without a sign.
# Transforms, if any, under which a change of sign mirrors a variable, or an element is its own.
_MIRRORS = (IntervalTransform, ZeroSumTransform)
_ELEMENTWISE = (
    CircularTransform, IntervalTransform, LogExpM1, LogOddsTransform, LogTransform,
)  # fmt: skip


def starts(model: pm.Model, tall: TallModel) -> Starts:
    """Return starts for a model; its prior is compiled when it is first drawn."""
    initial = tall.ravel(tall.initial_point)

    @cache
    def compiled() -> tuple[Draw, list[str]]:
        return prior_draws(model)

    def prior(rng: np.random.Generator) -> np.ndarray:
        draw, drawn = compiled()
        theta = initial + rng.uniform(-2, 2, len(initial))
        with np.errstate(all="ignore"):
            point = draw(int(rng.integers(MOST_SEEDS)))
        for name, part in zip(tall.names, tall.slices, strict=True):
            if name in drawn:
                theta[part] = np.ravel(point[name])
        return np.where(np.isfinite(theta), theta, initial)

    transforms = {
        model.rvs_to_values[rv].name: transform for rv, transform in model.rvs_to_transforms.items()
    }
    blocks = [
        ThetaPart(
            name, part, shape,
            signed=transforms[name] is None or isinstance(transforms[name], _MIRRORS),
            labelled=transforms[name] is None or isinstance(transforms[name], _ELEMENTWISE),
        )
        for name, part, shape in zip(tall.names, tall.slices, tall.shapes, strict=True)
    ]  # fmt: skip
    return Starts(initial, prior, blocks)


def number_of_chain(rng: np.random.Generator) -> int:
    """Return a number that differs by one from chain to chain of a run.

    PyMC spawns the generators of chains one after the other, and a `CompoundStep` those of its
    steps from them.
    """
    return sum(getattr(rng.bit_generator.seed_seq, "spawn_key", ()))


def warn_of_modes(step: "ChainStep") -> None:
    """Say so where other modes compete, and in which variables they differ."""
    prepared = step.prepared
    if prepared is None or prepared.search is None or len(prepared.search.modes) < 2:
        return
    search = prepared.search
    here, *others = [step.expansion.values(mode.theta) for mode in search.modes]
    names = [
        name
        for name, part in step.layout.every
        # A choice: names are of variables that differ visibly.
        if not all(np.allclose(here[part], x[part], rtol=0.1, atol=0.1) for x in others)
    ]
    shares = ", ".join(f"{share:.2g}" for share in search.shares[: 1 + len(others)])
    begun = len(prepared.at_modes)
    starts = (
        f"start in {begun} of them and hardly ever change: R-hat will be large"
        if begun > 1
        else "start in the first, and hardly ever see the others"
    )
    _log.warning(
        f"{type(step).__name__}: the posterior has at least {number(len(search.modes))} modes that "
        f"differ in {', '.join(names)} and hold about {shares} of the mass that was found. Chains "
        f"{starts}. {MODES.remedy}"
    )


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
