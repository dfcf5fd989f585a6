"""Adaptation of step size, mass matrix and reference point in the tuning phase of a chain."""

from typing import Any, ClassVar

import numpy as np
from pymc.step_methods.state import DataClassState, WithSamplingState, dataclass_state
from pymc.step_methods.step_sizes import DualAverageAdaptation, StepSizeState

from pymc_subsample.compiled.process import one_thread
from pymc_subsample.expansion.curvature import MAX_DENSE
from pymc_subsample.expansion.estimators import VARIANCE_BOUND
from pymc_subsample.expansion.factors import Kind, factor, kind, reshaped, stretched, whiten
from pymc_subsample.kernels.dynamics import JITTER

# Of a look at recent ones, for means and variances of them. A choice: standard deviations are
# then good to a sixth.
_FEWEST_DRAWS = 20
_INITIAL_STEP = 0.5  # In standard deviations; dual averaging moves it within some draws.
# At each of which all rows are evaluated. A choice: their largest noise is that of the worst
# tenth.
_PILOT_DRAWS = 8
# Of the moves that were not accepted, where some diverge: from 0.8 to 0.95, then nearly to 0.99,
# as Stan and PyMC advise. Where more of them diverge, as nearly all do at an edge of the support
# (0.17 to 0.21 of the draws beside a constraint, 0.008 to 0.016 beside walls), smaller steps do not
# help.
_CALMER = 0.25


# Standard deviations per parameter from which on a chain, or a posterior, has left a reference. A
# choice: terms of the rows that order 2 leaves are an eighth of those at one standard deviation.
AWAY = 0.5
# Draws that the current factor is worth beside those of a look: for each parameter of a covariance,
# as Stan shrinks by 5 in all; and for a variance. Choices.
_PRIOR, _PRIOR_DIAGONAL = 5, 10
# Steps of a trajectory at most: those of the ten doublings that PyMC's NUTS and Stan allow.
_MOST_STEPS = 2**10


def extent(path_length: float, step_size: float) -> float:
    """Return how long trajectories are on average: `path_length`, within `_MOST_STEPS`."""
    return float(min(path_length, _MOST_STEPS / (1.0 + JITTER) * step_size))


@dataclass_state
class TuningState(DataClassState):
    """Draws since the last look, and what they have led to."""

    total: int
    done: int
    thetas: np.ndarray
    variances: np.ndarray
    diverging: np.ndarray
    target_accept: float
    factor: np.ndarray
    step: StepSizeState


class Tuning(WithSamplingState):
    """Collects draws of a tuning phase and decides what to change.

    `active`, shape (a,), are the elements of theta that the step moves; `factor`, of shape (a, a),
    (1, a) or (3, k), is that of the inverse mass matrix to start with, see
    `expansion.factors`.
    """

    _state_class = TuningState
    # Fractions of the tuning phase after which its recent draws are looked at.
    # A choice: the first soon, as starts are far out; the last leaves draws to adapt step sizes.
    looks: ClassVar[tuple[float, ...]] = (0.15, 0.4, 0.7)

    def __init__(
        self,
        total: int,
        active: np.ndarray,
        size: int,
        factor: np.ndarray,
        target_accept: float,
        step_size: float | None = None,
    ) -> None:
        self.total = total
        self.done = 0
        self.thetas = np.zeros((0, size))
        self.variances, self.diverging = np.zeros(0), np.zeros(0)
        self.factor = factor
        self.active = active
        self.target_accept = target_accept
        self._starts_full = len(active) > 1 and kind(factor) is not Kind.DIAGONAL
        self._pending: list[tuple[np.ndarray, float, float]] = []
        self._looks = {int(f * total) for f in self.looks}
        self.restart(_INITIAL_STEP if step_size is None else step_size)

    def add(
        self,
        theta: np.ndarray,
        acceptance: float,
        variance: float,
        diverging: float = 0.0,
        crossed: bool = False,
    ) -> None:
        """Record one draw: its acceptance, its log-likelihood's variance and its divergences.

        Where it crossed an edge of the support after some steps, their size is no cause of that,
        and stays.
        """
        if not crossed:
            self.step.update(acceptance, True)
        self.done += 1
        self._pending.append((theta.copy(), variance, diverging))

    @property
    def sampling_state(self) -> Any:
        """Draws and counts; pending draws are folded in first."""
        self._fold()
        return WithSamplingState.sampling_state.fget(self)

    @sampling_state.setter
    def sampling_state(self, state: DataClassState) -> None:
        WithSamplingState.sampling_state.fset(self, state)
        self._pending = []
        self._looks = {int(f * self.total) for f in self.looks}

    def _fold(self) -> None:
        if self._pending:
            thetas, variances, diverging = zip(*self._pending, strict=True)
            self.thetas = np.concatenate([self.thetas, thetas])
            self.variances = np.concatenate([self.variances, variances])
            self.diverging = np.concatenate([self.diverging, diverging])
            self._pending = []

    def due(self) -> bool:
        """Whether now is the time to look at the recent draws."""
        if self.done not in self._looks:
            return False
        self._fold()
        return len(self.thetas) >= _FEWEST_DRAWS

    @property
    def is_last_look(self) -> bool:
        """Whether no look follows."""
        return self.done == max(self._looks)

    def restart(self, step_size: float | None = None) -> None:
        """Forget the recent draws; with a step size, adapt it again from there."""
        self.thetas = self.thetas[:0]
        self.variances, self.diverging = self.variances[:0], self.diverging[:0]
        if step_size is not None:
            # Hoffman and Gelman 2014: gamma, kappa and t0.
            self.step = DualAverageAdaptation(step_size, self.target_accept, 0.05, 0.75, 10)

    def calm(self) -> bool:
        """Aim at a higher acceptance from now on, if recent draws diverged; whether they did.

        Where the posterior ends in a wall, most moves are accepted at steps that are too large for
        it: the acceptance that suits a normal posterior says nothing of the wall. At an edge of the
        support steps of any size diverge.
        """
        recent = self.diverging[len(self.diverging) // 2 :]
        share = float(np.mean(recent)) if len(recent) else 0.0
        diverged = 0.0 < share <= _CALMER * (1.0 - self.target_accept)
        if diverged:
            self.target_accept = 1.0 - _CALMER * (1.0 - self.target_accept)
        return diverged

    def recent(self) -> np.ndarray:
        """Later half of the draws, shape (k, d): the earlier ones may still be on their way."""
        return self.thetas[len(self.thetas) // 2 :]

    def pilot(self) -> np.ndarray:
        """Return a few draws spread over the recent ones, shape (k, d)."""
        recent = self.recent()
        return recent[np.linspace(0, len(recent) - 1, _PILOT_DRAWS).astype(int)]

    def noisiest(self) -> np.ndarray:
        """Return the few recent draws at which the estimate was noisiest, shape (k, d).

        Every other one first: the first half of the points chooses outlying rows.
        """
        order = np.argsort(-self._noise(), kind="stable")
        few = order[:_PILOT_DRAWS]
        return self.recent()[np.concatenate([few[::2], few[1::2]])]

    def _noise(self) -> np.ndarray:
        return self.variances[len(self.variances) // 2 :]

    def peak(self) -> float:
        """Return the largest variance of the log-likelihood estimate at recent draws."""
        return float(np.max(self._noise()))

    def noise(self) -> float:
        """Return the mean variance of the log-likelihood estimate at recent draws."""
        return float(np.mean(self._noise()))

    def should_recentre(self, reference: np.ndarray) -> bool:
        """Whether the estimator's variance asks for another reference point, shape (d,).

        It does when the variance of recent draws exceeds a quarter of its bound while the chain's
        centre is more than half a posterior standard deviation per parameter away. Parameters
        that other step methods move count by the largest such distance.
        """
        if self.noise() <= 0.25 * VARIANCE_BOUND:  # a choice; see above
            return False
        recent, others = self.recent(), np.delete(np.arange(len(reference)), self.active)
        shift = np.abs(recent.mean(axis=0) - reference)[others]
        rounding = 1e-9 * np.abs(reference[others])  # of means of equal numbers
        beyond = shift > AWAY * recent[:, others].std(axis=0) + rounding
        return self.left(reference) or bool(np.any(beyond))

    def left(self, reference: np.ndarray) -> bool:
        """Whether recent draws have settled half a standard deviation per parameter away."""
        shift = (self.recent().mean(axis=0) - reference)[self.active]
        return bool(np.sqrt(np.mean(whiten(self.factor, shift) ** 2)) > AWAY)

    @one_thread
    def better_factor(self, worth: float = 1.0) -> np.ndarray | None:
        """Return a factor to replace the current one where that fits the draws badly.

        Each counts as `worth` independent ones. In coordinates where the current mass matrix is the
        identity, the covariance of independent draws has its eigenvalues between
        (1 -/+ sqrt(a / N))^2. When one lies far outside, the draws' covariance, shrunk towards the
        current one, takes over; of a factor that is not dense, their variances alone. None also
        where the draws are so wide in some directions that others are lost to rounding.
        """
        draws = self.recent()[:, self.active]
        size, n = draws.shape[1], worth * len(draws)
        centred = draws - draws.mean(axis=0)
        white = whiten(self.factor, centred.T)
        if kind(self.factor) is not Kind.FULL:
            ratio = np.var(white, axis=1)
            # A choice: standard deviations within a factor of two hardly slow a chain.
            if ratio.max() < 4.0 and ratio.min() > 0.25:
                return None
            return stretched(self.factor, (n * ratio + _PRIOR_DIAGONAL) / (n + _PRIOR_DIAGONAL))
        cov = white @ white.T / len(draws)
        # A choice: three times as many draws as there are, since they are not independent.
        edge = np.sqrt(3 * size / n)
        values = np.linalg.eigvalsh(cov)
        # A choice: eigenvalues twice as far out as chance has them.
        too_wide = values[-1] > 2.0 * (1 + edge) ** 2
        too_narrow = values[0] < 0.5 * max(1 - edge, 0.0) ** 2
        if not (too_wide or too_narrow):
            return None
        weight = n / (n + _PRIOR * size)
        shrunk = weight * cov + (1 - weight) * np.eye(size)
        return reshaped(self.factor, shrunk)


class ProposalTuning(Tuning):
    """Adaptation of a Metropolis proposal: its scale at every draw, its covariance now and then."""

    # A choice: each sees about as many draws as all before, and the last quarter adapts the scale
    # alone.
    looks: ClassVar[tuple[float, ...]] = (0.1, 0.2, 0.35, 0.55, 0.75)

    @one_thread
    def better_factor(self, worth: float = 0.1) -> np.ndarray | None:  # a choice
        """Factor of the covariance of the recent draws (Haario et al. 2001), shrunk.

        Towards the current covariance where the first was a full matrix, such as the inverse
        curvature at the reference, because a few draws of a random walk know little of strong
        correlations; else towards the draws' own variances. None where the draws have hardly
        moved. Correlated draws are worth fewer independent ones: a tenth.
        """
        draws = self.recent()[:, self.active]
        n, size = worth * len(draws), draws.shape[1]
        variance = draws.var(axis=0)
        if not np.all(variance > 0):
            return None
        if kind(self.factor) is Kind.SPARSE:
            ratio = np.var(whiten(self.factor, (draws - draws.mean(axis=0)).T), axis=1)
            return stretched(self.factor, (n * ratio + _PRIOR_DIAGONAL) / (n + _PRIOR_DIAGONAL))
        if size > MAX_DENSE:
            return np.sqrt(variance)[None, :]
        if self._starts_full:
            white = whiten(self.factor, (draws - draws.mean(axis=0)).T)
            weight = n / (n + _PRIOR * size)
            shrunk = weight * (white @ white.T) / len(draws) + (1 - weight) * np.eye(size)
            return reshaped(self.factor, shrunk)
        weight = n / (n + size)
        return factor(weight * np.atleast_2d(np.cov(draws.T)) + (1 - weight) * np.diag(variance))


def settled(step: Any, theta: np.ndarray) -> np.ndarray:
    """Return theta with the mean of recent draws of tuning where it is continuous."""
    center, free = theta.copy(), step.layout.continuous()
    center[free] = step.tuning.recent()[:, free].mean(axis=0)
    return center
