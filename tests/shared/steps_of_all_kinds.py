"""All step methods that are public, by what they have in common."""

from typing import Any, NamedTuple

import numpy as np

import pymc_subsample as pms
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.samplers.minibatch.sampler import SAMPLERS

_PUBLIC = [getattr(pms, name) for name in sorted(pms.__all__)]
_PUBLIC += [getattr(pms.sgmcmc, name) for name in sorted(pms.sgmcmc.__all__)]
STEPS = [x for x in _PUBLIC if isinstance(x, type) and issubclass(x, ChainStep)]
# One of each kind that has a reference point.
KINDS = [pms.HMCECS, pms.ScalableMH, pms.MinibatchBarkerMH, pms.sgmcmc.SGLD, pms.FireflyMC]


class Deciding(NamedTuple):
    """What tests ask of a step that decides on growing batches."""

    rate: float  # of acceptance, that proposals are tuned to in two dimensions
    limit: float  # of its error, by default
    bad: list[tuple[dict[str, Any], str]]  # arguments of its own, and what is said of them


TESTS = {
    pms.AusterityMH: Deciding(
        rate=0.234,
        limit=0.05,
        bad=[
            ({"epsilon": -0.1}, "epsilon .*-0.1"),
            ({"epsilon": 0.5}, "epsilon .*below 0.5"),
            ({"epsilon": np.nan}, "epsilon .*nan"),
            ({"epsilon": lambda draw: "low"}, r"epsilon\(0\) .*'low'"),
        ],
    ),
    pms.ConfidenceMH: Deciding(
        rate=0.234,
        limit=0.01,
        bad=[
            ({"delta": 0}, "delta .*between 0 and 1"),
            ({"delta": 1}, "delta"),
            ({"p": 1.0}, "p must be .*above 1"),
            ({"gamma": 1.0}, "gamma must be .*above 1"),
            ({"inequality": "markov"}, "inequality must be one of .*'markov'"),
            ({"bound": 3.0}, "bound must be one of .*3.0"),
            ({"bound": min, "proposal": pms.proposals.Langevin()}, "bound: .*Langevin"),
        ],
    ),
    pms.MinibatchBarkerMH: Deciding(
        rate=0.158,
        limit=0.02,
        bad=[
            ({"max_error": 0}, "max_error .*above 0"),
            ({"max_error": "small"}, "max_error .*'small'"),
            ({"sigma": 0}, "sigma"),
            ({"sigma": 1.7}, "sigma .*1.7"),
        ],
    ),
}
assert set(TESTS) == {step for step in STEPS if step.sampler in SAMPLERS}
