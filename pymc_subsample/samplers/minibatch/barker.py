"""Minibatch Barker MH as a PyMC step method."""

from collections.abc import Sequence
from typing import ClassVar, Unpack

import numpy as np

from pymc_subsample.chain import arguments
from pymc_subsample.compiled.functions import Compiled
from pymc_subsample.samplers.minibatch.correction import DEFAULT_SIGMA, barker_correction
from pymc_subsample.samplers.minibatch.decision_errors import barker as barker_test
from pymc_subsample.samplers.minibatch.decisions import barker
from pymc_subsample.samplers.minibatch.evidence import DECIDE
from pymc_subsample.samplers.minibatch.step import MinibatchMH, SharedMH


class MinibatchBarkerMH(MinibatchMH):
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
    _test = Compiled(barker.decide, DECIDE, None)
    _error = "clt_error"
    _targets: ClassVar[tuple[float, float, float]] = (0.27, 0.158, 0.4)
    _scale: ClassVar[float] = 2.46

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
        self._table = np.concatenate([correction.support, np.cumsum(correction.probabilities)])
        self._floor = correction.error
        if not self.max_error > self._floor:
            raise ValueError(
                f"max_error={self.max_error:g} cannot be met: the correction at sigma="
                f"{self.sigma:g} has an error of {self._floor:.2g} itself. Increase max_error or "
                "decrease sigma."
            )
        super().__init__(vars, **above)

    _with_all_rows = staticmethod(barker_test)

    def _cause(self) -> str:
        return (
            "The variance of the log-ratio, estimated from fewer rows, cannot be brought below "
            f"sigma^2 = {self.sigma**2:.3g}."
        )

    def _remedies(self) -> list[str]:
        return [f"decrease max_error (now {self.max_error:g})", "increase batch_size"]

    def _settings(self) -> np.ndarray:
        numbers = barker.Settings(
            self.batch_size, self.max_error, self.sigma, self._floor, len(self._table) // 2
        )
        return np.concatenate([numbers, self._table])
