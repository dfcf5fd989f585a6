"""Chains of stochastic-gradient samplers as PyMC step methods."""

from dataclasses import field
from typing import Any, ClassVar

import numpy as np
from pymc.blocking import PointType
from pymc.step_methods.state import dataclass_state

from pymc_subsample import arguments
from pymc_subsample.clusters import clustered_order
from pymc_subsample.compile import address_of
from pymc_subsample.control_variates.factors import stretched
from pymc_subsample.control_variates.reference import summed
from pymc_subsample.diagnostics.checks import Check
from pymc_subsample.diagnostics.record import StepRecord
from pymc_subsample.diagnostics.stochastic import RULES, Dynamics, check_steps
from pymc_subsample.kernels import gradients
from pymc_subsample.kernels.langevin import INFO, Settings, State, integrate
from pymc_subsample.stationary import rescaled
from pymc_subsample.steps.declarations import ReferredState, Statistics, statistics
from pymc_subsample.steps.guards import row_numbers
from pymc_subsample.steps.step_size import AutomaticStepSize

# A step diverges whose drift exceeds so many standard deviations of its noise, or its kick so many
# of the momenta: it leads 4 to 5 posterior standard deviations away at automatic step sizes.
_MOST_DRIFT = 10.0


@dataclass_state
class StochasticGradientState(ReferredState):
    """Everything the next draw depends on. The rows themselves are taken anew from the data."""

    tuned: bool
    near_reference: bool
    row_rng: np.random.Generator
    done: int
    centred: int
    momentum: np.ndarray
    integrator_state: np.ndarray
    origin: np.ndarray
    automatic_step_size: float
    hold: int
    metric_factor: np.ndarray
    record: StepRecord
    sampler: str = field(metadata={"frozen": True})
    control_variate_order: int | None = field(metadata={"frozen": True})
    metric: str = field(metadata={"frozen": True})
    steps_per_batch: int | None = field(metadata={"frozen": True})
    batch_size: int = field(metadata={"frozen": True})
    friction: float = field(metadata={"frozen": True})


class StochasticGradient(AutomaticStepSize):
    """A chain of Langevin dynamics on gradients of batches of rows; its subclass says which."""

    _state_class = StochasticGradientState
    _connected = (*AutomaticStepSize._connected, "_permutation")
    _rules = RULES
    _shown = ("divergences", "step_size", "data_share")
    stats_dtypes_shapes: ClassVar[Statistics] = statistics(
        RULES,
        (
            "batch_size", "data_share", "gradient_variance", "kinetic_temperature", "step_size",
            "temperature",
        ),
        diverging=bool, divergences=int,
    )  # fmt: skip

    gradient: str
    batches: str
    n_clusters: int
    # Integration steps between passes over all rows, and as given; None for as many as read them.
    refresh_period: int
    _given_period: int | None
    # Of the preconditioner.
    _averaging: float
    # Steps after which momenta are drawn anew; 0 for never.
    _resample: int
    # Where exponential weights expect the dynamics to go.
    _expected: int

    @property
    def sampler(self) -> str:
        """What a state belongs to."""
        return f"{type(self).__name__} {self.integrator} {self.gradient} {self.batches}"

    @property
    def _functions(self) -> tuple[str, ...]:  # type: ignore[override]
        return gradients.FUNCTIONS

    def _connect(self) -> None:
        """Trace and compile the model (also after unpickling in another process)."""
        super()._connect()
        self._permutation = self._ordered()

    def _ordered(self) -> np.ndarray:
        """Rows in the order of their strata, or of the data."""
        numbers = row_numbers(self, self.n_rows, self.observed)
        if self._sampling == gradients.UNIFORM:
            return numbers
        arguments.count("n_clusters", self.n_clusters, self.n_rows)
        return clustered_order(self._expansion, self.n_clusters, np.random.default_rng(0))

    def _averages(self) -> float:
        """Share of the old in the preconditioner's moving average, which tuning ends."""
        return self._averaging if self.tune or not self.tuned else 1.0

    def _first_factor(self) -> np.ndarray:
        if self._whitened and self._prepared is not None:
            return self._home.factor
        return np.ones((1, len(self._active)))

    # Chains

    def reset_tuning(self) -> None:
        """Do nothing: PyMC calls this where a chain has just begun, and in its own process alone.

        To begin once more would draw other momenta than a chain in a worker process has.
        """

    def _begin(self, tune: int, draws: int) -> None:
        size = len(self._active)
        super()._begin(tune, draws)
        self.tuned = tune > 0
        self.near_reference = False
        self.automatic_step_size, self.metric_factor = self._chosen_step_size, self._first_factor()
        self.hold = self._chosen_hold
        self.done = self._passes = 0
        self.refresh_period = self._given_period or max(1, self.n_rows // self.batch_size)
        self.centred = -self.refresh_period if self.gradient == "svrg" else 0
        self.momentum = np.sqrt(self.temperature) * self.rng.standard_normal(size)
        self.integrator_state = np.zeros(size)
        self._integrator.start(self.friction, self.integrator_state)
        self.origin = np.zeros(0)
        self.record = StepRecord(draws=draws)

    def _entered(self, point: PointType) -> np.ndarray:
        theta = self._theta(point)
        if self.start_at_reference:
            self.near_reference = self._start(theta, point, self._home.factor)
        if not len(self.origin):
            self.origin = theta.copy()
            if self.near_reference and self._prepared is not None:
                self.origin[self._active] = self._home.reference.theta[self._active]
        return theta

    @property
    def _steady(self) -> bool:  # type: ignore[override]
        return self.gradient != "svrg"

    def _transitions(
        self, theta: np.ndarray, size: int
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        reports, left = [], self.transitions_per_draw
        while left:
            count = left if self._steady else min(left, self._until_centring(theta))
            thetas, sizes, noise, infos = self._integrate(theta, self._sizes(size, count))
            reports.append((count, sizes, noise, infos))
            theta, left = thetas[-1], left - count
        return thetas, self._reported(reports)

    def _sizes(self, size: int, k: int) -> np.ndarray:
        """Step sizes of the next draws of k steps each, shape (size, k)."""
        steps = self.done + np.arange(size * k)
        return self.schedule.sizes(steps, self.automatic_step_size).reshape(size, k)

    def _reported(self, reports: list[tuple[int, np.ndarray, np.ndarray, dict]]) -> dict[str, Any]:
        """Put together what pieces of draws report: steps, their total size, noise and counts."""
        k, n = self.transitions_per_draw, len(reports[0][1])
        noise, evaluations = np.zeros((n, len(self._active))), np.zeros(n, dtype=int)
        divergences, total = np.zeros(n), np.zeros(n)
        for count, length, piece, infos in reports:
            noise += count / k * piece
            divergences += infos["divergences"]
            total += length
            read = infos["batches"] if self.control_variate_order else 0
            gradients = 2 * self.batch_size * (infos["gradients"] + read)
            evaluations += np.rint(gradients).astype(int)
        momenta = infos["kinetic_temperature"]
        return {
            "noise": noise,
            "diverging": divergences > 0,
            "kinetic_temperature": momenta if self._integrator.has_momenta else momenta * np.nan,
            "n_evaluations": evaluations + self._centring_cost(),
            "step_size": total / k,
        }

    def _statistics(self, infos: dict[str, np.ndarray]) -> dict[str, Any]:
        return {
            "batch_size": float(self.batch_size),
            "data_share": self.batch_size / self.n_rows,
            "divergences": self._divergences(infos["diverging"]),
            "gradient_variance": infos["noise"].sum(axis=1),
            "temperature": self.temperature,
        }

    def _watch(self, thetas: np.ndarray, infos: dict[str, np.ndarray]) -> None:
        self.record.add(thetas, infos)

    def _until_centring(self, theta: np.ndarray) -> int:
        """Centre the control variates if it is time, and return how many steps they serve."""
        if self.gradient != "svrg":
            return self.transitions_per_draw
        if self.done - self.centred >= self.refresh_period:
            self.reference = summed(self._expansion, theta, None, 1.0, curved=False)
            self.centred = self.done
            self._passes += 1
        return self.centred + self.refresh_period - self.done

    def _centring_cost(self) -> int:
        """Row evaluations of the last draw's centring."""
        passes, self._passes = self._passes, 0
        return 2 * passes * self.n_rows

    def _integrate(
        self, theta: np.ndarray, sizes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Make draws of some steps each: positions, total step sizes, noise and counts."""
        n, size = len(sizes), len(self._active)
        thetas, infos = np.empty((n, len(theta))), np.empty((n, len(INFO)))
        noise, squares = np.empty((n, size)), np.empty((n, size))
        settings = np.array(
            Settings(
                self.friction, self.temperature, self._averages(), self._floor, self._index_chain,
                self._expected, self._resample, self.done, self.hold,
                _MOST_DRIFT if self.near_reference else np.inf,
            ),
            dtype=float,
        )  # fmt: skip
        integrate(self._integrator)(
            address_of(self.rng), address_of(self.row_rng), self._compiled, self._sums(),
            self._batches(), State(theta, self.origin, self.momentum, self.integrator_state),
            settings, sizes, thetas, noise, squares, infos,
        )  # fmt: skip
        self.done += sizes.size
        return thetas, sizes.sum(axis=1), noise, dict(zip(INFO, infos.T, strict=True))

    # After tuning

    def _check(self) -> list[Check]:
        factor, record, at_reference = self.metric_factor, self.record, self._precision
        curvature = self._curvature
        scale = self._own_metric(np.maximum(self.integrator_state, 0.0) * self.n_rows**2)
        if scale is not None:
            factor, record = stretched(factor, scale**2), record.rescaled(scale)
            known = at_reference if curvature is None else curvature
            at_reference, curvature = None if known is None else rescaled(known, scale), None
        dynamics = Dynamics(
            self._integrator, self.friction, self.temperature, self._active, factor, curvature,
            at_reference, self._index_chain > 0, self.hold,
        )  # fmt: skip
        return check_steps(record, dynamics, self._expansion, self._remedies())

    def _remedies(self) -> list[str]:
        """Return what makes gradients less noisy."""
        left = [] if self.control_variate_order == 2 else ["use control_variate_order=2"]
        if self.gradient == "svrg":
            left = [f"decrease refresh_period (now {self.refresh_period})"]
        if self._given_reference:
            left.append("give another reference, or none")
        if self.batch_size < self.n_rows:
            left.append(f"increase batch_size (now {self.batch_size})")
        return left
