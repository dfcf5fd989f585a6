"""Stochastic-gradient MCMC of free parts: integrator, gradient, batches and step size."""

from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar, Unpack

import numpy as np
from pymc.blocking import PointType
from pymc.step_methods.state import dataclass_state

from pymc_subsample.chain import arguments
from pymc_subsample.chain.competing import warn_of_modes
from pymc_subsample.chain.declarations import ReferredState, Statistics, statistics
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.guards import row_numbers
from pymc_subsample.chain.progress import doing
from pymc_subsample.chain.signatures import SharedContinuous, SharedTransitions
from pymc_subsample.compiled.functions import address_of
from pymc_subsample.diagnostics.checks import Check
from pymc_subsample.diagnostics.record import StepRecord
from pymc_subsample.expansion.factors import stretched
from pymc_subsample.expansion.reference import summed
from pymc_subsample.samplers.gradients import estimate as gradients
from pymc_subsample.samplers.gradients import kernel as langevin
from pymc_subsample.samplers.gradients.checks import RULES, Dynamics, check_steps
from pymc_subsample.samplers.gradients.clusters import clustered_order
from pymc_subsample.samplers.gradients.parts import chosen_parts
from pymc_subsample.samplers.gradients.schedules import Cyclical, PolynomialDecay, as_schedule
from pymc_subsample.samplers.gradients.stationary import rescaled
from pymc_subsample.samplers.gradients.step_size import find_step_size

StepSize = float | str | PolynomialDecay | Cyclical

_METRICS = ("curvature", "identity")
_BATCH = 100
# A step diverges whose drift exceeds so many standard deviations of its noise, or its kick so many
# of the momenta: it leads 4 to 5 posterior standard deviations away at automatic step sizes.
_MOST_DRIFT = 10.0


class SharedCore(SharedTransitions, total=False):
    """Arguments of all stochastic-gradient samplers."""

    batch_size: int | None
    step_size: StepSize
    metric: str


class SharedSG(SharedCore, total=False):
    """Arguments of those whose batches may be held, and whose control variates be chosen."""

    steps_per_batch: int | str
    control_variate_order: int | str | None


@dataclass_state
class SGMCMCState(ReferredState):
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
    sampler: str = field(metadata={"frozen": True})
    control_variate_order: int | None = field(metadata={"frozen": True})
    metric: str = field(metadata={"frozen": True})
    steps_per_batch: int | None = field(metadata={"frozen": True})
    batch_size: int = field(metadata={"frozen": True})
    friction: float = field(metadata={"frozen": True})


class SGMCMC(ChainStep):
    r"""Stochastic-gradient MCMC of freely combined parts.

    Langevin dynamics along :math:`\hat g(\theta)`, the gradient of the log posterior estimated on a
    batch of rows, without an acceptance test [1]_. `SGLD`, `PSGLD`, `SVRGLD`, `SGHMC`, `SGNHT`,
    `ClusteredSGHMC` and `EWSG` are presets; with its defaults this is `SGHMC`, and
    ``SGMCMC(integrator="overdamped", batches="clustered")`` is `SGLD` on clustered batches.

    Parameters
    ----------
    integrator : {"baoab", "symplectic", "euler", "thermostat", "overdamped", "preconditioned"}
        How parameters move. With momenta: "baoab", "symplectic" and "euler" as for `SGHMC`, or
        "thermostat" as for `SGNHT`. Without: "overdamped" as for `SGLD`, or "preconditioned" as for
        `PSGLD`.
    gradient : {"batch", "svrg", "ewsg"}, default "batch"
        "batch": of a batch, less control variates around the reference. "svrg": of a batch, less
        control variates around a position of the chain, as for `SVRGLD`. "ewsg": of a batch that is
        drawn with exponential weights, as for `EWSG`, with the integrators "euler", "symplectic"
        and "overdamped".
    batches : {"uniform", "clustered"}, default "uniform"
        All batches alike, or those that hold rows of each cluster, as for `ClusteredSGHMC`; the
        latter needs scikit-learn (``pip install "pymc-subsample[clusters]"``).
    batch_size : int, optional
        Rows per gradient, drawn without replacement, at most all. Default: 100, or all rows where
        there are fewer.
    steps_per_batch : int or "auto", default "auto"
        Integration steps that a batch serves before the next one is drawn, within a draw. Their
        noise is the same, which counts like that many times its variance. "auto" takes up to 10
        where that adds at most 0.2% to the predicted errors of standard deviations, as with
        control variates, and 1 where there is no such prediction.
    step_size : float, "auto", PolynomialDecay or Cyclical, default "auto"
        h, in units of the metric; 0 does not move. "auto" takes the largest at which posterior
        standard deviations are predicted to be off by at most 2%, from the curvature at the
        reference and the noise of the gradients around it.
    friction : float, optional
        :math:`\gamma`, in units of one over time as the step size is one of time. Default: 2,
        critical damping, in the metric of the curvature; to be given with ``metric="identity"``.
    resample_every : int, optional
        Integration steps after which momenta are drawn anew. Default: never; friction does.
    averaging : float, optional
        :math:`\alpha` of the preconditioner, between 0 and 1. Default: 0.99.
    floor : float, optional
        :math:`\lambda` of the preconditioner. Default: 1e-5.
    refresh_period : int, optional
        Integration steps between passes over all rows, with "svrg". Default: as many as read all
        rows once, n / b.
    index_chain : int, optional
        M, the steps of the chain over batches of "ewsg". Default: 1.
    expected : {"momentum", "zero", "one", "stop"}, optional
        x: where the dynamics are expected to go, with "ewsg". Default: "momentum".
    n_clusters : int, optional
        Clusters of rows. Default: 10.
    control_variate_order : {"auto", 2, 1, None}, default "auto"
        Order of the Taylor control variates: the gradient of their sum over all rows is exact and
        a batch estimates the remainder alone. "auto" is the highest there is, or 1 with "svrg";
        None takes plain batches.
    reference : dict, step or DataTree, optional
        Expansion point, and centre of metric and automatic step size: untransformed values by
        variable name, for every free variable, or an earlier run of the model, by its idata
        (posterior means) or its step. Default: the posterior mode, found automatically.
    metric : {"curvature", "identity"}, default "curvature"
        Units in which steps are taken: of the posterior's inverse curvature at the reference, or
        of PyMC's unconstrained space.
    temperature : float, default 1
        T of the noise: the draws are from the posterior to the power 1/T. Anything but 1 warns; 0
        descends to a mode.
    transitions_per_draw : int, default 10
        Integration steps per recorded draw, all within one compiled call.

    Raises
    ------
    TallModelError
        If the model's rows cannot be subsampled; the message names the variable and the Op.
    ValueError, TypeError
        If an argument is out of range or of the wrong kind, or belongs to a part that was not
        chosen, or if parts don't go together; the message says why.

    Attributes
    ----------
    parts : Parts
        Integrator, gradient and batches by name, and their options.

    References
    ----------
    .. [1] Y.-A. Ma, T. Chen and E. B. Fox (2015). A complete recipe for stochastic gradient MCMC.
       NeurIPS.

    Examples
    --------
    The thermostat, on gradients of batches of 500 rows without control variates:

    >>> with model:
    ...     step = pms.SGMCMC(integrator="thermostat", batch_size=500, control_variate_order=None)
    ...     idata = pm.sample(step=step)
    """

    name = "sgmcmc"
    _state_class = SGMCMCState
    _connected = (*ChainStep._connected, "_permutation")
    _functions = gradients.FUNCTIONS
    rules = RULES
    _shown = ("divergences", "step_size", "data_share")
    stats_dtypes_shapes: ClassVar[Statistics] = statistics(
        RULES,
        (
            "batch_size", "data_share", "gradient_variance", "kinetic_temperature", "step_size",
            "temperature",
        ),
        diverging=bool, divergences=int,
    )  # fmt: skip

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        integrator: str = "baoab",
        gradient: str = "batch",
        batches: str = "uniform",
        batch_size: int | None = None,
        steps_per_batch: int | str = "auto",
        step_size: StepSize = "auto",
        friction: float | None = None,
        resample_every: int | None = None,
        averaging: float | None = None,
        floor: float | None = None,
        refresh_period: int | None = None,
        index_chain: int | None = None,
        expected: str | None = None,
        n_clusters: int | None = None,
        control_variate_order: int | str | None = "auto",
        metric: str = "curvature",
        temperature: float = 1.0,
        transitions_per_draw: int = 10,
        **above: Unpack[SharedContinuous],
    ) -> None:
        self.parts = chosen_parts(
            integrator, gradient, batches, friction=friction, resample_every=resample_every,
            averaging=averaging, floor=floor, refresh_period=refresh_period,
            index_chain=index_chain, expected=expected, n_clusters=n_clusters,
        )  # fmt: skip
        order = arguments.order(control_variate_order, type(self).__name__, plain=True)
        arguments.optional_batch(batch_size)
        hold = arguments.count("steps_per_batch", steps_per_batch, auto=True)
        self.schedule = as_schedule(step_size)
        self.metric = arguments.choice("metric", metric, _METRICS)
        if friction is None and metric == "identity" and self.parts.dynamics.has_momenta:
            raise ValueError(
                'metric="identity" leaves the scale of the parameters open: give friction, in units'
                ' of one over time as step_size is one of time, or use metric="curvature".'
            )
        self.temperature = arguments.temperature(temperature, zero=True)
        self.transitions_per_draw = arguments.transitions(transitions_per_draw)
        order, self.steps_per_batch = self.parts.order_and_hold(order, hold, self.temperature)
        super().__init__(vars, **above)
        needed = order is not None or metric == "curvature" or self.schedule.automatic
        if self._reference_asked_for and not needed:
            raise ValueError(
                "reference is not used: there are no control variates, and metric and step_size "
                "are given. Leave it out."
            )
        # A step size and a metric that are given are those of the model's own variables.
        self._form.own &= metric == "curvature" or self.schedule.automatic
        self._attach(order)
        with doing("compiling the integrator"):
            langevin.integrate(self.parts.dynamics)
        self.control_variate_order = None if order is None else self.expansion.order
        self.batch_size = arguments.batch_size(batch_size, self.n_rows, _BATCH)
        self.row_rng = self.rng.spawn(1)[0]
        if needed:
            problem, found = self._found()
            self.prepared = problem.possible(found)
        warn_of_modes(self)
        self._chosen_step_size, self._chosen_hold = np.nan, self.steps_per_batch or 1
        self._curvature: np.ndarray | None = None
        self._precision: np.ndarray | None = None
        self._begin(tune=0, draws=0)
        find_step_size(self)

    @property
    def friction(self) -> float:
        """As given, or the default."""
        return self.parts.friction

    @property
    def sampler(self) -> str:
        """What a state belongs to."""
        return f"{type(self).__name__} {self.parts}"

    def _connect(self) -> None:
        super()._connect()
        # Rows in the order of the data, or of their strata.
        self._permutation = row_numbers(self, self.n_rows, self.observed)
        if self.parts.sampling == gradients.STRATIFIED:
            n = arguments.count("n_clusters", self.parts.n_clusters, self.n_rows)
            self._permutation = clustered_order(self.expansion, n, np.random.default_rng(0))

    def _batches(self) -> gradients.Batches:
        sampling, size = self.parts.sampling, self.batch_size
        return gradients.Batches(self._permutation, sampling, size, self.active, self.metric_factor)

    def _own_metric(self, square: np.ndarray) -> np.ndarray | None:
        """Root of what multiplies the step size, given mean squares of the gradient, (a,)."""
        own = self.parts.dynamics.own_metric
        return None if own is None else own(self.parts.floor, self.n_rows, square)

    # Chains

    def reset_tuning(self) -> None:
        """Do nothing: PyMC calls this where a chain has just begun, and in its own process alone.

        To begin once more would draw other momenta than a chain in a worker process has.
        """

    def _begin(self, tune: int, draws: int) -> None:
        size = len(self.active)
        super()._begin(tune, draws)
        self.tuned = tune > 0
        self.near_reference = False
        self.automatic_step_size, self.hold = self._chosen_step_size, self._chosen_hold
        whitened = self.metric == "curvature" and self.prepared is not None
        self.metric_factor = self._home.factor if whitened else np.ones((1, size))
        self.done = self._passes = 0
        self.refresh_period = self.parts.refresh_period or max(1, self.n_rows // self.batch_size)
        self.centred = -self.refresh_period if self.parts.gradient == "svrg" else 0
        self.momentum = np.sqrt(self.temperature) * self.rng.standard_normal(size)
        self.integrator_state = np.zeros(size)
        self.parts.dynamics.start(self.friction, self.integrator_state)
        self.origin = np.zeros(0)
        self.record = StepRecord(draws=draws)

    def _entered(self, point: PointType) -> np.ndarray:
        theta = self._theta(point)
        if self.start_at_reference:
            self.near_reference = self._start(theta, point, self._home.factor)
        if not len(self.origin):
            self.origin = theta.copy()
            if self.near_reference and self.prepared is not None:
                self.origin[self.active] = self._home.reference.theta[self.active]
        return theta

    @property
    def _steady(self) -> bool:  # type: ignore[override]
        return self.parts.gradient != "svrg"

    def _transitions(
        self, theta: np.ndarray, size: int
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        reports, left = [], self.transitions_per_draw
        while left:
            count = left if self._steady else min(left, self._until_centring(theta))
            steps = self.done + np.arange(size * count)
            sizes = self.schedule.sizes(steps, self.automatic_step_size).reshape(size, count)
            thetas, sizes, noise, infos = self._integrate(theta, sizes)
            reports.append((count, sizes, noise, infos))
            theta, left = thetas[-1], left - count
        return thetas, self._reported(reports)

    def _reported(self, reports: list[tuple[int, np.ndarray, np.ndarray, dict]]) -> dict[str, Any]:
        """Put together what pieces of draws report: steps, their total size, noise and counts."""
        k, n = self.transitions_per_draw, len(reports[0][1])
        noise, evaluations = np.zeros((n, len(self.active))), np.zeros(n, dtype=int)
        divergences, total = np.zeros(n), np.zeros(n)
        for count, length, piece, infos in reports:
            noise += count / k * piece
            divergences += infos["divergences"]
            total += length
            read = infos["batches"] if self.control_variate_order else 0
            gradients = 2 * self.batch_size * (infos["gradients"] + read)
            evaluations += np.rint(gradients).astype(int)
        momenta = infos["kinetic_temperature"]
        passes, self._passes = self._passes, 0
        return {
            "noise": noise,
            "diverging": divergences > 0,
            "kinetic_temperature": momenta if self.parts.dynamics.has_momenta else momenta * np.nan,
            "n_evaluations": evaluations + 2 * passes * self.n_rows,
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
        if self.parts.gradient != "svrg":
            return self.transitions_per_draw
        if self.done - self.centred >= self.refresh_period:
            self.reference = summed(self.expansion, theta, None, 1.0, curved=False)
            self.centred = self.done
            self._passes += 1
        return self.centred + self.refresh_period - self.done

    def _integrate(
        self, theta: np.ndarray, sizes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Make draws of some steps each: positions, total step sizes, noise and counts."""
        n, size, parts = len(sizes), len(self.active), self.parts
        thetas, infos = np.empty((n, len(theta))), np.empty((n, len(langevin.INFO)))
        noise, squares = np.empty((n, size)), np.empty((n, size))
        # Tuning ends the preconditioner's moving average, in which the old has this share.
        averaging = parts.averaging if self.tune or not self.tuned else 1.0
        settings = np.array(
            langevin.Settings(
                self.friction, self.temperature, averaging, parts.floor, parts.index_chain,
                parts.rule, parts.resample, self.done, self.hold,
                _MOST_DRIFT if self.near_reference else np.inf,
            ),
            dtype=float,
        )  # fmt: skip
        langevin.integrate(parts.dynamics)(
            address_of(self.rng), address_of(self.row_rng), self._compiled, self._sums(),
            self._batches(),
            langevin.State(theta, self.origin, self.momentum, self.integrator_state),
            settings, sizes, thetas, noise, squares, infos,
        )  # fmt: skip
        self.done += sizes.size
        return thetas, sizes.sum(axis=1), noise, dict(zip(langevin.INFO, infos.T, strict=True))

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
            self.parts.dynamics, self.friction, self.temperature, self.active, factor, curvature,
            at_reference, self.parts.index_chain > 0, self.hold,
        )  # fmt: skip
        return check_steps(record, dynamics, self.expansion, self._remedies())

    def _remedies(self) -> list[str]:
        """Return what makes gradients less noisy."""
        left = [] if self.control_variate_order == 2 else ["use control_variate_order=2"]
        if self.parts.gradient == "svrg":
            left = [f"decrease refresh_period (now {self.refresh_period})"]
        if self._given_reference:
            left.append("give another reference, or none")
        if self.batch_size < self.n_rows:
            left.append(f"increase batch_size (now {self.batch_size})")
        return left
