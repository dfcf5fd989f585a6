"""Step sizes of stochastic-gradient samplers as functions of the integration step."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_subsample.validation import count, number, positive, share


@dataclass(frozen=True)
class PolynomialDecay:
    r"""Step sizes that shrink: :math:`h_t = h_0 (1 + t / \tau)^{-p}`.

    Parameters
    ----------
    initial : float, optional
        :math:`h_0`. Default: the automatic step size.
    offset : float, default 1000
        :math:`\tau`, in integration steps, those of tuning included.
    power : float, default 1/3
        p. A bias of first order in h and the error of a chain of length t are balanced at 1/3
        [1]_; at most 1, for the chain to reach any place.

    Raises
    ------
    ValueError
        If a number is not positive, or `power` above 1.

    References
    ----------
    .. [1] Y. W. Teh, A. H. Thiery and S. J. Vollmer (2016). Consistency and fluctuations for
       stochastic gradient Langevin dynamics. Journal of Machine Learning Research 17(7).

    Examples
    --------
    >>> decay = pms.sgmcmc.PolynomialDecay(offset=500)
    >>> with model:
    ...     idata = pm.sample(step=pms.sgmcmc.SGLD(step_size=decay))
    """

    initial: float | None = None
    offset: float = 1000.0
    power: float = 1 / 3

    def __post_init__(self) -> None:
        if self.initial is not None:
            positive("PolynomialDecay: initial", self.initial)
        positive("PolynomialDecay: offset", self.offset)
        share("PolynomialDecay: power", self.power)

    @property
    def automatic(self) -> bool:
        """Whether it is a multiple of the automatic step size."""
        return self.initial is None

    def sizes(self, steps: np.ndarray, automatic: float) -> np.ndarray:
        """Return the step sizes of integration steps, shape (k,)."""
        return _chosen(self.initial, automatic) * (1 + steps / self.offset) ** -self.power


@dataclass(frozen=True)
class Cyclical:
    r"""Step sizes in cycles: :math:`h_t = \frac{h_0}{2} (1 + \cos(\pi (t \bmod L) / L))`.

    Large steps at the start of a cycle look for other modes, small ones at its end sample one
    [1]_.

    Parameters
    ----------
    largest : float, optional
        :math:`h_0`. Default: the automatic step size.
    length : int, default 1000
        L, in integration steps.

    Raises
    ------
    ValueError
        If a number is not positive.

    References
    ----------
    .. [1] R. Zhang, C. Li, J. Zhang, C. Chen and A. G. Wilson (2020). Cyclical stochastic gradient
       MCMC for Bayesian deep learning. ICLR.

    Examples
    --------
    >>> cycles = pms.sgmcmc.Cyclical(length=200)
    >>> with model:
    ...     idata = pm.sample(step=pms.sgmcmc.SGHMC(step_size=cycles))
    """

    largest: float | None = None
    length: int = 1000

    def __post_init__(self) -> None:
        if self.largest is not None:
            positive("Cyclical: largest", self.largest)
        count("Cyclical: length", self.length)

    @property
    def automatic(self) -> bool:
        """Whether it is a multiple of the automatic step size."""
        return self.largest is None

    def sizes(self, steps: np.ndarray, automatic: float) -> np.ndarray:
        """Return the step sizes of integration steps, shape (k,)."""
        phase = (steps % self.length) / self.length
        return _chosen(self.largest, automatic) / 2 * (1 + np.cos(np.pi * phase))


@dataclass(frozen=True)
class Fixed:
    """One step size; None for the automatic one."""

    size: float | None = None

    @property
    def automatic(self) -> bool:
        """Whether it is a multiple of the automatic step size."""
        return self.size is None

    def sizes(self, steps: np.ndarray, automatic: float) -> np.ndarray:
        """Return the step sizes of integration steps, shape (k,)."""
        return np.full(len(steps), _chosen(self.size, automatic))


def _chosen(given: float | None, automatic: float) -> float:
    return automatic if given is None else given


StepSizeSchedule = Fixed | PolynomialDecay | Cyclical


def as_schedule(value: Any) -> StepSizeSchedule:
    """Return the schedule of a step size: a number, "auto" or a schedule."""
    if isinstance(value, PolynomialDecay | Cyclical):
        return value
    if isinstance(value, str) and value == "auto":
        return Fixed()
    wanted = '"auto", a finite number of at least 0, PolynomialDecay or Cyclical of pms.sgmcmc'
    return Fixed(number("step_size", value, wanted, lambda x: x >= 0))
