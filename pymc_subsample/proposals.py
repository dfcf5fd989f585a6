"""Proposals of the minibatch Metropolis-Hastings steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def positive(name: str, value, of: str) -> float | None:
    """Return a positive finite number, or None; refuse anything else."""
    if value is None:
        return None
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not 0 < value < np.inf:
        raise ValueError(f"{of}: {name} must be a positive finite number, got {value!r}.")
    return float(value)


def _covariance(value, of: str) -> np.ndarray | None:
    """Return a covariance given as variances, shape (a,), or as a matrix, shape (a, a)."""
    if value is None:
        return None
    cov = np.asarray(value, dtype=float)
    if cov.ndim not in (1, 2) or (cov.ndim == 2 and cov.shape[0] != cov.shape[1]) or not cov.size:
        raise ValueError(
            f"{of}: covariance must be a vector of variances or a square matrix, got shape "
            f"{cov.shape}."
        )
    if cov.ndim == 1:
        valid = bool(np.all(np.isfinite(cov)) and np.all(cov > 0))
    else:
        valid = bool(np.all(np.isfinite(cov)) and np.allclose(cov, cov.T, rtol=1e-8, atol=0))
        valid = valid and bool(np.linalg.eigvalsh(cov)[0] > 0)
    if not valid:
        raise ValueError(f"{of}: covariance must be symmetric and positive definite.")
    return cov


@dataclass(frozen=True)
class RandomWalk:
    r"""Gaussian random walk: :math:`\theta' = \theta + h L z`, :math:`z \sim N(0, I)`.

    Steps are taken in PyMC's unconstrained space, in the order of the step's variables.

    Parameters
    ----------
    scale : float, default 1
        h.
    covariance : array_like, shape (a,) or (a, a), optional
        :math:`L L'`: variances, or the full matrix. Default: the identity.

    Raises
    ------
    ValueError
        If the scale is not positive or the covariance not positive definite.
    """

    scale: float = 1.0
    covariance: Sequence | np.ndarray | None = None

    def __post_init__(self):
        positive("scale", self.scale, "RandomWalk")
        object.__setattr__(self, "covariance", _covariance(self.covariance, "RandomWalk"))


@dataclass(frozen=True)
class AdaptiveMetropolis:
    """Gaussian random walk whose scale and covariance adapt during tuning, and only then.

    The covariance follows the draws (Haario et al. 2001); the scale is tuned to an acceptance
    rate by dual averaging.

    Parameters
    ----------
    target_accept : float, optional
        Default: the rate that is best for many parameters, or for one: 0.234 or 0.44, and 0.158
        or 0.27 where the test is Barker's (Agrawal et al. 2023).
    covariance : array_like, shape (a,) or (a, a), optional
        To start with. Default: the inverse curvature at the reference, where there is one, and
        else the identity.

    Raises
    ------
    ValueError
        If `target_accept` is not between 0 and 1 or the covariance not positive definite.
    """

    target_accept: float | None = None
    covariance: Sequence | np.ndarray | None = None

    def __post_init__(self):
        _target("AdaptiveMetropolis", self.target_accept)
        object.__setattr__(self, "covariance", _covariance(self.covariance, "AdaptiveMetropolis"))


@dataclass(frozen=True)
class Langevin:
    r"""Langevin proposal with a gradient estimated on a minibatch.

    .. math:: \theta' = \theta + \tfrac12 h^2 L L' \hat g(\theta) + h L z

    The rows behind the gradient are drawn for this purpose, apart from those that decide on
    acceptance, and the proposal's densities in both directions are taken given those rows: the
    kernel is a mixture of valid ones (Korattikara et al. 2014, section 6.2).

    Parameters
    ----------
    step_size : float, optional
        h. Default: tuned.
    batch_size : int, default 100
        Rows per gradient. Not used by `FireflyMC`, whose gradient is exact.
    covariance : array_like, shape (a,) or (a, a), optional
        :math:`L L'`. Default: the inverse curvature at the reference, where there is one, and
        else the identity; it adapts during tuning, and only then.
    target_accept : float, optional
        Acceptance rate that h is tuned to. Default: 0.574, or 0.4 where the test is Barker's.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """

    step_size: float | None = None
    batch_size: int = 100
    covariance: Sequence | np.ndarray | None = None
    target_accept: float | None = None

    def __post_init__(self):
        positive("step_size", self.step_size, "Langevin")
        _target("Langevin", self.target_accept)
        size = self.batch_size
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise ValueError(f"Langevin: batch_size must be a positive integer, got {size!r}.")
        object.__setattr__(self, "covariance", _covariance(self.covariance, "Langevin"))


def _target(of: str, value):
    if value is not None and not positive("target_accept", value, of) < 1:  # type: ignore[operator]
        raise ValueError(f"{of}: target_accept must be between 0 and 1, got {value!r}.")
