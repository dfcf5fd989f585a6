"""Chebyshev MH as a PyMC step method."""

from collections.abc import Sequence
from typing import Unpack

import numpy as np

from pymc_subsample.chain import arguments
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.compiled.functions import Compiled
from pymc_subsample.samplers.minibatch.decisions import DECIDE, chebyshev
from pymc_subsample.samplers.minibatch.sampler import deciding
from pymc_subsample.samplers.minibatch.step import METHOD, Decision, SharedMH, set_up

DECISION = Decision(
    test=Compiled(chebyshev.decide, DECIDE, None),
    settings=lambda step: np.array(chebyshev.Settings(step.batch_size, step.delta)),
    cause=lambda step: "Chebyshev's inequality cannot decide on fewer: log-ratios vary too much.",
    remedies=lambda step: [f"decrease delta (now {step.delta:g})", "increase batch_size"],
)


class ChebyshevMH(ChainStep, shares=set_up):
    r"""Metropolis-Hastings decided by Chebyshev's inequality on a growing batch.

    Parameters
    ----------
    delta : float, default 0.05
        Probability of a wrong decision at each look, at most, between 0 and 1.
    """

    name = "chebyshev_mh"
    sampler, method, decision = deciding("ChebyshevMH"), METHOD, DECISION

    def __init__(
        self, vars: Sequence | None = None, *, delta: float = 0.05, **above: Unpack[SharedMH]
    ):
        self.delta = arguments.between("delta", delta, 0.0, 1.0)
        set_up(self, vars, **above)
