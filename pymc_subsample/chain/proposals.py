"""Proposals of the minibatch Metropolis-Hastings steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_subsample.model import TallModel
from pymc_subsample.validation import between, choice, count, numbers, positive, takes

_LARGEST = 1e100  # Its square is still a finite double.


def _covariance(value: object, of: str) -> np.ndarray | None:
    """Return a covariance given as variances, shape (a,), or as a matrix, shape (a, a)."""
    if value is None:
        return None
    cov = numbers(f"{of}: covariance", value)
    if cov.ndim not in (1, 2) or (cov.ndim == 2 and cov.shape[0] != cov.shape[1]) or not cov.size:
        raise ValueError(
            f"{of}: covariance must be a vector of variances or a square matrix, got shape "
            f"{cov.shape}."
        )
    # Products of larger numbers overflow.
    valid = bool(np.all(np.abs(cov) < _LARGEST))
    if cov.ndim == 1:
        valid = valid and bool(np.all(cov > 0))
    else:
        valid = valid and bool(np.allclose(cov, cov.T, rtol=1e-8, atol=0))  # the root of rounding
        valid = valid and bool(np.linalg.eigvalsh(cov)[0] > 0)
    if not valid:
        raise ValueError(f"{of}: covariance must be symmetric and positive definite, got {cov}.")
    return cov


class _Proposal:
    """A proposal with a covariance, and maybe an acceptance rate that its scale is tuned to."""

    covariance: Sequence | np.ndarray | None

    def __post_init__(self) -> None:
        of, rate = type(self).__name__, getattr(self, "target_accept", None)
        if rate is not None:
            between(f"{of}: target_accept", rate, 0.0, 1.0)
        object.__setattr__(self, "covariance", _covariance(self.covariance, of))


@dataclass(frozen=True)
class RandomWalk(_Proposal):
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

    Examples
    --------
    Steps of known size in each of three parameters:

    >>> proposal = pms.proposals.RandomWalk(covariance=[0.01, 1e-8, 1e-6])
    >>> with model:
    ...     idata = pm.sample(step=pms.AusterityMH(proposal=proposal))
    """

    scale: float = 1.0
    covariance: Sequence | np.ndarray | None = None

    def __post_init__(self) -> None:
        positive("RandomWalk: scale", self.scale)
        super().__post_init__()


@dataclass(frozen=True)
class AdaptiveMetropolis(_Proposal):
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

    Examples
    --------
    >>> proposal = pms.proposals.AdaptiveMetropolis(target_accept=0.3)
    >>> with model:
    ...     idata = pm.sample(step=pms.AusterityMH(proposal=proposal))
    """

    target_accept: float | None = None
    covariance: Sequence | np.ndarray | None = None


@dataclass(frozen=True)
class Langevin(_Proposal):
    r"""Langevin proposal with a gradient estimated on a minibatch.

    .. math:: \theta' = \theta + \tfrac12 h^2 L L' \hat g(\theta) + h L z

    The rows behind the gradient are drawn for this purpose, apart from those that decide on
    acceptance, and the proposal's densities in both directions are taken given those rows: the
    kernel is a mixture of valid ones (Korattikara et al. 2014, section 6.2).

    Parameters
    ----------
    step_size : float, optional
        h. Default: tuned.
    batch_size : int, optional
        Rows per gradient. Default: 100, or all where there are fewer. Not used by `FireflyMC`,
        whose gradient is exact.
    covariance : array_like, shape (a,) or (a, a), optional
        :math:`L L'`. Default: the inverse curvature at the reference, where there is one, and
        else the identity; it adapts during tuning, and only then.
    target_accept : float, optional
        Acceptance rate that h is tuned to. Default: 0.574, or 0.4 where the test is Barker's.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> proposal = pms.proposals.Langevin(batch_size=200)
    >>> with model:
    ...     idata = pm.sample(step=pms.AusterityMH(proposal=proposal))
    """

    step_size: float | None = None
    batch_size: int | None = None
    covariance: Sequence | np.ndarray | None = None
    target_accept: float | None = None

    def __post_init__(self) -> None:
        if self.step_size is not None:
            positive("Langevin: step_size", self.step_size)
        if self.batch_size is not None:
            count("Langevin: batch_size", self.batch_size)
        super().__post_init__()


def as_proposal(value: Any) -> Any:
    """Return a proposal: None stands for adaptive Metropolis."""
    if value is None:
        return AdaptiveMetropolis()
    if isinstance(value, type) or not (
        isinstance(value, RandomWalk | AdaptiveMetropolis | Langevin) or callable(value)
    ):
        raise TypeError(
            "proposal must be an instance of RandomWalk, AdaptiveMetropolis or Langevin of "
            "pms.proposals, or a function proposal(point, rng) -> (new_point, log_factor); got "
            f"{value!r}."
        )
    return takes("proposal", value, "point", "rng") if callable(value) else value


def as_surrogate_proposal(value: Any, choices: Sequence[str], target_accept: Any) -> Any:
    """Return a proposal that moves a surrogate, which has gradients of its own."""
    if isinstance(value, str):
        return choice("proposal", value, choices)
    if not isinstance(value, RandomWalk | AdaptiveMetropolis | Langevin):
        raise TypeError(
            f"proposal must be one of {', '.join(map(repr, choices))}, or an instance of "
            f"Langevin, AdaptiveMetropolis or RandomWalk of pms.proposals; got {value!r}."
        )
    if isinstance(value, Langevin) and value.batch_size is not None:
        raise ValueError(
            f"proposal: batch_size={value.batch_size} has no meaning here: the surrogate's "
            "gradient reads no rows. Leave it out."
        )
    if target_accept is not None:
        raise ValueError(
            f"target_accept={target_accept} is for trajectories. Give it to the proposal, "
            f"pms.{type(value).__name__}, if it is tuned."
        )
    return value


def require_size(value: Any, size: int, n_rows: int | None = None) -> None:
    """Check the proposal's covariance, and its batch where it has one, against the model."""
    covariance = getattr(value, "covariance", None)
    if covariance is not None and len(covariance) != size:
        raise ValueError(
            f"proposal: covariance has shape {covariance.shape}, but the step samples {size} "
            "unconstrained values."
        )
    batch = getattr(value, "batch_size", None)
    if batch is not None and n_rows is not None and batch > n_rows:
        raise ValueError(
            f"proposal: batch_size={batch} is larger than the number of rows, {n_rows}."
        )


def proposed(
    function: Callable, tall: TallModel, theta: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, float]:
    """Call a user's proposal; return theta', shape (d,), and its log factor."""
    point = {name: np.array(value) for name, value in tall.unravel(theta).items()}
    result = function(point, rng)
    try:
        new, log_factor = result
        log_factor = float(log_factor)
        given = tall.ravel({**point, **new})
    except (TypeError, ValueError) as error:
        raise TypeError(
            "proposal must return (new_point, log_factor): a dict of values by the names "
            f"{tall.names} and a number; got {result!r}."
        ) from error
    unknown = set(new) - set(tall.names)
    if unknown or given.shape != theta.shape:
        raise ValueError(
            f"proposal returned values for {sorted(map(str, new))}; expected names among "
            f"{tall.names} with shapes {tall.shapes}."
        )
    if not log_factor < np.inf or not np.all(np.isfinite(given)):
        raise ValueError(
            f"proposal returned values that are not finite: {new}, log_factor {log_factor}."
        )
    return given, log_factor
