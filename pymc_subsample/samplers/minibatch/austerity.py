"""Austerity MH as a PyMC step method."""

import logging
from collections.abc import Callable, Sequence
from typing import Unpack

import numpy as np

from pymc_subsample.chain import arguments
from pymc_subsample.compiled.functions import Compiled
from pymc_subsample.samplers.minibatch.decision_errors import AcceptanceErrors
from pymc_subsample.samplers.minibatch.decisions import austerity
from pymc_subsample.samplers.minibatch.evidence import DECIDE
from pymc_subsample.samplers.minibatch.step import MinibatchMH, SharedMH

_log = logging.getLogger("pymc.subsample")


class AusterityMH(MinibatchMH):
    r"""Metropolis-Hastings decided by a sequential t-test on a growing batch.

    Whether the log posterior ratio exceeds log u is tested at level epsilon after every batch;
    the batch grows until the test decides, at most to all n rows, where the decision is exact
    [1]_.

    Parameters
    ----------
    epsilon : float or callable, default 0.05
        Level of the test at every look, from 0 (exact MH: every proposal reads all rows) to 0.5.
        The share of wrong decisions is larger than that where a test looks often. A callable
        ``epsilon(draw)`` gets the number of draws recorded so far, 0 while tuning, and returns
        the level: let it shrink to trade speed for accuracy as draws accumulate.
    batch_size : int, optional
        Rows to start with, from 2 to all, and by which a batch grows. Default: 500, or all rows
        where there are fewer.

    Notes
    -----
    The t-test takes the mean of a batch as normal. Where the rows' log-ratios have heavy tails it
    decides wrongly and often, without a sign of it in its own statistics: the check at the end of
    a chain looks at all rows for that, and names `ConfidenceMH`.

    References
    ----------
    .. [1] A. Korattikara, Y. Chen and M. Welling (2014). Austerity in MCMC land: cutting the
       Metropolis-Hastings budget. ICML, section 4.

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(step=pms.AusterityMH(epsilon=0.01), chains=4)
    """

    name = "austerity_mh"
    _test = Compiled(austerity.decide, DECIDE, None)
    _default_batch = 500

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        epsilon: float | Callable[[int], float] = 0.05,
        **above: Unpack[SharedMH],
    ) -> None:
        self.epsilon = arguments.test_level("epsilon", epsilon)
        super().__init__(vars, **above)

    def _level(self, draw: int) -> float:
        return arguments.level("epsilon", self.epsilon, draw)

    @property
    def _exact(self) -> bool:
        return self._level(self.record.done) == 0

    @property
    def _steady(self) -> bool:  # type: ignore[override]
        return super()._steady and not callable(self.epsilon)

    def _cause(self) -> str:
        return "The t-test cannot decide on fewer: the rows' log-ratios vary too much."

    def _remedies(self) -> list[str]:
        level = self._level(self.record.done)
        return [f"decrease epsilon (now {level:g})", "increase batch_size"]

    def _conclude(self, errors: AcceptanceErrors) -> None:
        """Log the bound of Theorem 1 with what the pilot and the chain show."""
        slowest = self.record.autocorrelation(self.active) ** (1 / self.transitions_per_draw)
        if not len(errors.error):
            return
        bound = min(1.0, errors.limit / max(1 - slowest, 1e-12))
        _log.info(
            f"AusterityMH: on {len(errors.error) // 2} proposals of this chain the acceptance "
            f"probability was off by at most {errors.limit:.2g}, three standard errors of a "
            f"simulation included; with "
            f"the slowest autocorrelation, {slowest:.3g} per transition, as the chain's "
            f"contraction, the total variation distance to the posterior is at most {bound:.2g}."
        )

    def _settings(self) -> np.ndarray:
        return np.array(austerity.Settings(self.batch_size, self._level(self.record.done)))
