"""Adaptation of mass matrix and reference point from the draws of the tuning phase."""

import numpy as np
from pymc.step_methods.state import DataClassState, WithSamplingState, dataclass_state

from pymc_subsample.estimators import VARIANCE_BOUND

# Fractions of the tuning phase after which its recent draws are looked at.
_LOOKS = (0.15, 0.4, 0.7)
_FEWEST_DRAWS = 20


@dataclass_state
class TuningState(DataClassState):
    """Draws since the last look."""

    total: int
    done: int
    draws: np.ndarray
    variances: np.ndarray


class Tuning(WithSamplingState):
    """Collects tuning draws and decides what to change.

    Parameters
    ----------
    total : int
        Draws of the tuning phase.
    size : int
        Number of parameters.
    """

    _state_class = TuningState

    def __init__(self, total: int, size: int):
        self.total = total
        self.done = 0
        self.draws = np.zeros((0, size))
        self.variances = np.zeros(0)
        self._pending: list[tuple[np.ndarray, float]] = []

    def add(self, theta: np.ndarray, variance: float):
        """Record one draw, shape (a,), and the estimated variance of its log-likelihood."""
        self.done += 1
        self._pending.append((theta.copy(), variance))

    @property
    def sampling_state(self):
        """Draws and counts; pending draws are folded in first."""
        self._fold()
        return WithSamplingState.sampling_state.fget(self)

    @sampling_state.setter
    def sampling_state(self, state):
        self._pending = []
        WithSamplingState.sampling_state.fset(self, state)

    def _fold(self):
        if self._pending:
            thetas, variances = zip(*self._pending, strict=True)
            self.draws = np.concatenate([self.draws, thetas])
            self.variances = np.concatenate([self.variances, variances])
            self._pending = []

    def due(self) -> bool:
        """Whether now is the time to look at the recent draws."""
        if self.done not in {int(f * self.total) for f in _LOOKS}:
            return False
        self._fold()
        return len(self.draws) >= _FEWEST_DRAWS

    def restart(self):
        """Forget the recent draws."""
        self.draws = self.draws[:0]
        self.variances = self.variances[:0]

    def _recent(self) -> np.ndarray:
        """Later half of the draws: the earlier ones may still approach the posterior."""
        return self.draws[len(self.draws) // 2 :]

    def mean(self) -> np.ndarray:
        """Mean of the recent draws, shape (a,)."""
        return self._recent().mean(axis=0)

    def should_recentre(self, reference: np.ndarray, factor: np.ndarray) -> bool:
        """Whether the estimator's variance asks for another reference point.

        It does when the variance of recent draws exceeds a quarter of its bound while the
        chain's centre is more than half a posterior standard deviation per parameter away.
        """
        variance = np.mean(self.variances[len(self.variances) // 2 :])
        shift = self.mean() - reference
        if len(factor) == 1 and len(shift) > 1:
            z = shift / factor[0]
        else:
            z = np.linalg.solve(factor, shift)
        distance = np.sqrt(np.mean(z**2))
        return bool(variance > 0.25 * VARIANCE_BOUND and distance > 0.5)

    def better_factor(self, factor: np.ndarray) -> np.ndarray | None:
        """Return a covariance to replace the curvature's where that fits the draws badly.

        In coordinates where the current mass matrix is the identity, the covariance of
        independent draws has its eigenvalues between (1 -/+ sqrt(a / N))^2. When one lies far
        outside, the draws' covariance, shrunk towards the current one, takes over.
        """
        draws = self._recent()
        n, size = draws.shape
        diagonal = len(factor) == 1 and size > 1
        centred = draws - draws.mean(axis=0)
        if diagonal:
            ratio = np.var(centred / factor[0], axis=0)
            if ratio.max() < 4.0 and ratio.min() > 0.25:
                return None
            return np.diag((n * ratio + 10) / (n + 10) * factor[0] ** 2)
        white = np.linalg.solve(factor, centred.T)
        cov = white @ white.T / n
        edge = np.sqrt(3 * size / n)
        values = np.linalg.eigvalsh(cov)
        too_wide = values[-1] > 2.0 * (1 + edge) ** 2
        too_narrow = values[0] < 0.5 * max(1 - edge, 0.0) ** 2
        if not (too_wide or too_narrow):
            return None
        weight = n / (n + 5 * size)
        shrunk = weight * cov + (1 - weight) * np.eye(size)
        return factor @ shrunk @ factor.T
