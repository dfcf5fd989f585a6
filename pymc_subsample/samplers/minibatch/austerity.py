"""Austerity MH as a PyMC step method."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np

from pymc_subsample.chain import arguments
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.compiled.functions import Compiled
from pymc_subsample.samplers.minibatch.decision_errors import AcceptanceErrors
from pymc_subsample.samplers.minibatch.decisions import DECIDE, austerity
from pymc_subsample.samplers.minibatch.sampler import AUSTERITY_MH
from pymc_subsample.samplers.minibatch.step import METHOD, Decision, SharedMH, set_up

_log = logging.getLogger("pymc.subsample")


def _level(step: Any) -> float:
    return arguments.level("epsilon", step.epsilon, step.record.done)


def _settings(step: Any) -> np.ndarray:
    return np.array(austerity.AusteritySettings(step.batch_size, _level(step)))


def _cause(step: Any) -> str:
    return "The t-test cannot decide on fewer: the rows' log-ratios vary too much."


def _remedies(step: Any) -> list[str]:
    return [f"decrease epsilon (now {_level(step):g})", "increase batch_size"]


def _conclude(step: Any, errors: AcceptanceErrors) -> None:
    """Log the bound of Theorem 1 with what the pilot and the chain show."""
    slowest = step.record.autocorrelation(step.active) ** (1 / step.transitions_per_draw)
    if not len(errors.error):
        return
    bound = min(1.0, errors.limit / max(1 - slowest, 1e-12))  # divides nothing by zero
    _log.info(
        f"AusterityMH: on {len(errors.error) // 2} proposals of this chain the acceptance "
        f"probability was off by at most {errors.limit:.2g}, three standard errors of a "
        f"simulation included; with "
        f"the slowest autocorrelation, {slowest:.3g} per transition, as the chain's "
        f"contraction, the total variation distance to the posterior is at most {bound:.2g}."
    )


class AusterityMH(ChainStep, shares=set_up):
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
    sampler, method = AUSTERITY_MH, METHOD
    decision = Decision(
        test=Compiled(austerity.decide, DECIDE, None),
        settings=_settings,
        cause=_cause,
        remedies=_remedies,
        batch_size=austerity.BATCH,
        exact=lambda step: _level(step) == 0,
        changes=lambda step: callable(step.epsilon),
        conclude=_conclude,
    )

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        epsilon: float | Callable[[int], float] = 0.05,
        **above: Unpack[SharedMH],
    ) -> None:
        self.epsilon = arguments.test_level("epsilon", epsilon)
        set_up(self, vars, **above)
