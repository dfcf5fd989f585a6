"""Chebyshev MH as a PyMC step method."""

from collections.abc import Sequence
from typing import Unpack

import numpy as np

from pymc_subsample.chain import arguments
from pymc_subsample.compiled.functions import Compiled
from pymc_subsample.samplers.minibatch.decisions import chebyshev
from pymc_subsample.samplers.minibatch.evidence import DECIDE
from pymc_subsample.samplers.minibatch.step import MinibatchMH, SharedMH


class ChebyshevMH(MinibatchMH):
    r"""Metropolis-Hastings decided by Chebyshev's inequality on a growing batch.

    Parameters
    ----------
    delta : float, default 0.05
        Probability of a wrong decision at each look, at most, between 0 and 1.
    """

    name = "chebyshev_mh"
    _test = Compiled(chebyshev.decide, DECIDE, None)

    def __init__(
        self, vars: Sequence | None = None, *, delta: float = 0.05, **above: Unpack[SharedMH]
    ):
        self.delta = arguments.between("delta", delta, 0.0, 1.0)
        super().__init__(vars, **above)

    def _settings(self) -> np.ndarray:
        return np.array(chebyshev.Settings(self.batch_size, self.delta))

    def _cause(self) -> str:
        return "Chebyshev's inequality cannot decide on fewer: the log-ratios vary too much."

    def _remedies(self) -> list[str]:
        return [f"decrease delta (now {self.delta:g})", "increase batch_size"]
