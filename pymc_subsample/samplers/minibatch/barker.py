"""Minibatch Barker MH as a PyMC step method."""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from pymc_subsample.chain import arguments
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.moves import Aims
from pymc_subsample.compiled.functions import Compiled
from pymc_subsample.samplers.minibatch.correction import DEFAULT_SIGMA, barker_correction
from pymc_subsample.samplers.minibatch.decision_errors import barker as barker_test
from pymc_subsample.samplers.minibatch.decisions import DECIDE, barker
from pymc_subsample.samplers.minibatch.sampler import MINIBATCH_BARKER_MH
from pymc_subsample.samplers.minibatch.step import METHOD, Decision, SharedMH, set_up


def _cause(step: Any) -> str:
    return (
        "The variance of the log-ratio, estimated from fewer rows, cannot be brought below "
        f"sigma^2 = {step.sigma**2:.3g}."
    )


def _remedies(step: Any) -> list[str]:
    return [f"decrease max_error (now {step.max_error:g})", "increase batch_size"]


def _settings(step: Any) -> np.ndarray:
    numbers = barker.BarkerSettings(
        step.batch_size, step.max_error, step.sigma, step.floor, len(step.table) // 2
    )
    return np.concatenate([numbers, step.table])


class MinibatchBarkerMH(ChainStep, shares=set_up):
    r"""Metropolis-Hastings with Barker's acceptance function, decided on a minibatch.

    A proposal is accepted with probability :math:`1 / (1 + e^{-\Delta})`, Delta the log posterior
    ratio. The noise of its estimate from a batch takes the place of random numbers that the test
    would draw anyway, so that the batch need not grow with n but only until the estimate's
    variance falls below :math:`\sigma^2` [1]_.

    Parameters
    ----------
    max_error : float, default 0.02
        The batch also grows until the estimated error of the acceptance probability is below
        this (leading term, from the skewness of the rows' log-ratios).
    sigma : float, default 1.3
        Standard deviation of the noise that the test absorbs; see `barker_correction`.

    References
    ----------
    .. [1] D. Seita, X. Pan, H. Chen and J. Canny (2017). An efficient minibatch acceptance test for
       Metropolis-Hastings. UAI, sections 3 to 5.

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(step=pms.MinibatchBarkerMH(), chains=4)
    >>> pc = pms.plot_batch_sizes({"Barker": idata})
    """

    name = "minibatch_barker_mh"
    sampler, method = MINIBATCH_BARKER_MH, METHOD
    decision = Decision(
        test=Compiled(barker.decide, DECIDE, None),
        settings=_settings,
        cause=_cause,
        remedies=_remedies,
        error="clt_error",
        # Agrawal et al. 2023; of Langevin proposals a choice.
        aims=Aims(one=0.27, many=0.158, drifting=0.4, scale=2.46),
        with_all_rows=lambda step: barker_test,
    )

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        max_error: float = 0.02,
        sigma: float = DEFAULT_SIGMA,
        **above: Unpack[SharedMH],
    ) -> None:
        self.max_error = arguments.between("max_error", max_error, 0.0, np.inf)
        self.sigma = arguments.between("sigma", sigma, 0.0, np.inf)
        correction = barker_correction(self.sigma)
        self.table = np.concatenate([correction.support, np.cumsum(correction.probabilities)])
        self.floor = correction.error
        if not self.max_error > self.floor:
            raise ValueError(
                f"max_error={self.max_error:g} cannot be met: the correction at sigma="
                f"{self.sigma:g} has an error of {self.floor:.2g} itself. Increase max_error or "
                "decrease sigma."
            )
        set_up(self, vars, **above)
