"""HMC with energy-conserving subsampling as a PyMC step method."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import pymc as pm
from pymc.blocking import PointType, StatsType
from pymc.initial_point import make_initial_point_fn
from pymc.model import modelcontext
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods.compound import BlockedStep, StepMethodState
from pymc.step_methods.state import WithSamplingState, dataclass_state
from pymc.step_methods.step_sizes import DualAverageAdaptation, StepSizeState
from pymc.util import get_random_generator, get_value_vars_from_user_vars
from rich.progress import TextColumn
from rich.table import Column

from pymc_subsample.control_variates import expand
from pymc_subsample.control_variates.reference import MAX_CURVATURE, Reference, factor, reference_at
from pymc_subsample.diagnostics import ChainRecord, check_chain
from pymc_subsample.estimators import Moments, choose_n_blocks, choose_subsample_size
from pymc_subsample.kernels.hmc import INFO, transitions
from pymc_subsample.likelihood import TallModel, TallModelError
from pymc_subsample.steps.setup import Preparation, pilot_moments, prepare, scaled
from pymc_subsample.steps.tuning import Tuning, TuningState

_log = logging.getLogger("pymc.subsample")

_INITIAL_STEP = 0.5


@dataclass_state
class HMCECSState(StepMethodState):
    """Everything the next draw depends on. The rows themselves are taken anew from the data."""

    tune: bool
    index: np.ndarray
    block: int
    n_blocks: int
    reference_theta: np.ndarray
    center: np.ndarray
    level: float
    slope: np.ndarray
    curvature: np.ndarray
    factor: np.ndarray
    moments: Moments
    step_adapt: StepSizeState
    tuning: TuningState
    start_at_reference: bool
    record: ChainRecord
    draws_left: int
    control_variate_order: int = field(metadata={"frozen": True})
    temperature: float = field(metadata={"frozen": True})
    path_length: float = field(metadata={"frozen": True})
    transitions_per_draw: int = field(metadata={"frozen": True})
    n_rows: int = field(metadata={"frozen": True})


class HMCECS(BlockedStep):
    r"""Hamiltonian Monte Carlo with energy-conserving subsampling (perturbed).

    Each iteration refreshes one block of a subsample of rows by a pseudo-marginal step and then
    moves the parameters by Hamiltonian dynamics on the log posterior estimated from that
    subsample, in dynamics and acceptance alike. The estimate is

    .. math:: \log\hat L_m(\theta) = \sum_{i=1}^n q_i(\theta)
              + \frac{n}{m} \sum_{u} (\ell_u - q_u)(\theta) - \tfrac12 \hat\sigma^2_m(\theta)

    with Taylor control variates q around a reference point, summed over all rows once. The
    stationary distribution differs from the posterior by terms of order :math:`1/(n m^2)` [1]_.

    Parameters
    ----------
    vars : sequence of variables, optional
        Continuous free variables to sample. Default: all of the model.
    model : pymc.Model, optional
        Default: the model on the context stack.
    observed : sequence of str or variable, optional
        Observed variables and potentials whose rows are subsampled. Default: all that share the
        longest row axis; the others are evaluated in full at every gradient.
    dim : str, optional
        Name of the rows' dimension, where lengths leave it ambiguous.
    subsample_size : int or "auto", default "auto"
        Rows m per estimate, drawn with replacement. "auto" takes the smallest m, at least 100,
        that keeps the variance of the log-likelihood estimate at or below 1 and its perturbation
        at or below 0.05 on the 95% ellipsoid around the reference.
    n_blocks : int or "auto", default "auto"
        Blocks G of the subsample, one refreshed per iteration; must divide `subsample_size`.
        "auto" takes 10 to 100, for an acceptance of the refresh near 0.9.
    control_variate_order : {2, 1, 0}
        Order of the Taylor expansion.
    reference : dict, optional
        Reference point: untransformed values by variable name, for every free variable. It is
        used as given. Default: the posterior mode, found on growing random subsets, polished on
        all rows and moved during tuning if the chain settles elsewhere.
    target_accept : float, default 0.8
        Acceptance rate that the step size is tuned to, between 0 and 1.
    path_length : float, default pi / 2
        Length of a trajectory in units of the mass matrix; a quarter period makes successive
        draws from a normal posterior independent. Jittered by 20%.
    transitions_per_draw : int, default 1
        Iterations per recorded draw, all within one compiled call.
    temperature : float, default 1
        Divides the log-likelihood of the subsampled rows.
    rng : int, RandomState or Generator, optional
        Random numbers of the set-up; a chain's own come from `pm.sample(random_seed=...)`.
        Default: a fixed seed, so that equal chains follow from equal seeds.
    initial_point : dict, optional
        Values of value variables where the search for the reference starts. Default: the
        model's initial point.
    compile_kwargs : dict, optional
        Not used by this step, which always compiles with numba: anything but
        ``{"mode": "NUMBA"}`` raises.
    blocked : bool, default True
        Must be true: the variables are sampled jointly.

    Attributes
    ----------
    n_rows : int
        Rows of the data.
    subsample_size, n_blocks : int
        As chosen at set-up, or for the current chain.

    Raises
    ------
    TallModelError
        If the model's rows cannot be subsampled; the message names the variable and the Op.
    ValueError
        If an argument is out of range.

    Notes
    -----
    Chains start from draws around the reference point, not from `pm.sample(initvals=...)`, unless
    they run without tuning. With other step methods on other variables, those see the full-data
    posterior while this one sees its estimate: exact up to the same perturbation.

    References
    ----------
    .. [1] K.-D. Dang, M. Quiroz, R. Kohn, M.-N. Tran and M. Villani (2019). Hamiltonian Monte
       Carlo with energy conserving subsampling. Journal of Machine Learning Research 20(100),
       sections 3 and 4.
    """

    name = "hmc_ecs"
    default_blocked = True
    _state_class = HMCECSState
    # 1 subtracts half the estimated variance; tests set 0 to see that leaving it out is noticed.
    _correction = 1.0

    stats_dtypes_shapes = {
        "acceptance_rate": (np.float64, []),
        "accepted": (np.float64, []),
        "diverging": (bool, []),
        "divergences": (np.int64, []),
        "energy": (np.float64, []),
        "energy_error": (np.float64, []),
        "loglik_variance": (np.float64, []),
        "model_logp": (np.float64, []),
        "n_evaluations": (np.int64, []),
        "n_steps": (np.int64, []),
        "step_size": (np.float64, []),
        "subsample_size": (np.int64, []),
        "subset_accepted": (np.float64, []),
        "tune": (bool, []),
        "data_share": (np.float64, []),
        "warning": (SamplerWarning, None),
    }

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        model: pm.Model | None = None,
        observed: Sequence[str] | None = None,
        dim: str | None = None,
        subsample_size: int | str = "auto",
        n_blocks: int | str = "auto",
        control_variate_order: int = 2,
        reference: Mapping[str, Any] | None = None,
        target_accept: float = 0.8,
        path_length: float = np.pi / 2,
        transitions_per_draw: int = 1,
        temperature: float = 1.0,
        rng=None,
        initial_point: PointType | None = None,
        compile_kwargs: dict | None = None,
        blocked: bool = True,
    ):
        model = modelcontext(model)
        _check_choice("control_variate_order", control_variate_order, (0, 1, 2))
        _check_open("target_accept", target_accept, 0.0, 1.0)
        _check_open("path_length", path_length, 0.0, np.inf)
        _check_open("temperature", temperature, 0.0, np.inf)
        transitions_per_draw = _count("transitions_per_draw", transitions_per_draw)
        if not blocked:
            raise ValueError("HMCECS samples its variables jointly: blocked must be True.")
        if compile_kwargs and compile_kwargs != {"mode": "NUMBA"}:
            raise ValueError(
                f"HMCECS compiles with numba only; compile_kwargs={compile_kwargs!r} cannot be "
                'honoured. Leave it out or pass {"mode": "NUMBA"}.'
            )
        self._model = model
        self.vars = _continuous(vars, model)
        self._arguments = {"observed": observed, "dim": dim}
        self.control_variate_order = control_variate_order
        self.target_accept = target_accept
        self.path_length = float(path_length)
        self.transitions_per_draw = transitions_per_draw
        self.temperature = float(temperature)
        self.rng = get_random_generator(0 if rng is None else rng)
        self._fixed_reference = reference is not None
        self._connect()

        n = self.n_rows = self._tall.n_rows
        self._fixed_size = subsample_size != "auto"
        self._fixed_blocks = n_blocks != "auto"
        m = _count("subsample_size", subsample_size, n) if self._fixed_size else None
        blocks = _count("n_blocks", n_blocks, m or n) if self._fixed_blocks else None
        if m and blocks and m % blocks:
            raise ValueError(
                f"n_blocks={blocks} does not divide subsample_size={m}. Choose a divisor, or leave "
                'n_blocks="auto".'
            )
        start = self._tall.ravel({**self._tall.initial_point, **(initial_point or {})})
        self._prepared: Preparation = prepare(
            self._expansion,
            start,
            self._active,
            self.rng,
            reference=None if reference is None else _reference_theta(model, self._tall, reference),
            subsample_size=m,
            n_blocks=blocks,
            temperature=self.temperature,
        )
        self._begin(tune=0, draws=0)
        _log.info(self._summary())

    def _connect(self):
        """Trace and compile the model (also after unpickling in another process)."""
        self._tall = TallModel(self._model, **self._arguments)
        if self._tall.phi_size > MAX_CURVATURE:
            raise TallModelError(
                f"{self._tall.phi_size} parameters meet the data in this model; control variates "
                f"and mass matrix need their full-data curvature, which is limited to "
                f"{MAX_CURVATURE} parameters. Sample this model with pm.NUTS."
            )
        self._expansion = expand(self._tall, self.control_variate_order)
        names = {v.name for v in self.vars}
        active = [
            np.arange(part.start, part.stop)
            for name, part in zip(self._tall.names, self._tall.slices, strict=True)
            if name in names
        ]
        self._active = np.concatenate(active)
        self._moved = [
            (name, part, shape)
            for name, part, shape in zip(
                self._tall.names, self._tall.slices, self._tall.shapes, strict=True
            )
            if name in names
        ]

    def __getstate__(self):
        state = self.__dict__.copy()
        for compiled in ("_tall", "_expansion", "_rows", "_buffers"):
            state.pop(compiled, None)
        return state

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._connect()
        self._rows = None

    def _summary(self) -> str:
        m, n = self.subsample_size, self.n_rows
        variance = float(np.max(self._prepared.moments.variance(m, self.temperature)))
        path = "linear predictors" if self._expansion.linear else "general path"
        saves = (
            ""
            if m < n / 10
            else ". This is no small part of the data: pm.NUTS or nutpie on all rows may be faster"
        )
        return (
            f"HMCECS: {n:,} rows of {', '.join(self._tall.observed)} ({path}); subsample of {m:,} "
            f"rows ({m / n:.2%}) in {self.n_blocks} blocks; predicted variance of the "
            f"log-likelihood estimate {variance:.2g}{saves}"
        )

    # Chains

    def setup_chain(self, rng, tune: int, draws: int) -> None:
        """Reset all that belongs to one chain; PyMC calls this right before it starts."""
        super().setup_chain(rng, tune, draws)
        self._begin(tune, draws)

    def _begin(self, tune: int, draws: int):
        prepared = self._prepared
        self.tune = tune > 0
        self.start_at_reference = tune > 0
        self.n_blocks = prepared.n_blocks
        self._use(prepared.reference)
        self.factor = prepared.factor.copy()
        self.moments = prepared.moments
        self.index = np.zeros(0, dtype=np.int64)
        self.block = 0
        self._rows = None
        self._new_subsample_size = prepared.subsample_size
        self.step_adapt = DualAverageAdaptation(_INITIAL_STEP, self.target_accept, 0.05, 0.75, 10)
        self.tuning = Tuning(tune, len(self._active))
        self.record = ChainRecord()
        self.draws_left = draws

    def _use(self, reference: Reference):
        self.center = reference.center.copy()
        self.level = reference.level
        self.slope = reference.slope.copy()
        self.curvature = reference.curvature.copy()
        self.reference_theta = reference.theta.copy()

    @property
    def subsample_size(self) -> int:
        """Rows per estimate."""
        return len(self.index) or self._new_subsample_size

    def reset_tuning(self):
        """Start the adaptation of step size, mass matrix and reference again."""
        self._begin(self.tuning.total, self.draws_left)

    def step(self, point: PointType) -> tuple[PointType, StatsType]:
        """Run `transitions_per_draw` iterations from a point of value variables."""
        theta = self._tall.ravel(point)
        if self.start_at_reference:
            theta[self._active] = self._start()
            self.start_at_reference = False
        if not len(self.index):
            self.index = self.rng.integers(0, self.n_rows, self._new_subsample_size)
        if self._rows is None:
            self._rows = self._anchored(self.index)
        info = self._transitions(theta)
        stats = self._statistics(theta, info)
        if self.tune:
            self._adapt(theta, info)
        new = dict(point)
        for name, part, shape in self._moved:
            new[name] = theta[part].reshape(shape)
        return new, [stats]

    def _start(self) -> np.ndarray:
        """Draw around the reference, wider than the posterior."""
        z = self.rng.standard_normal(len(self._active))
        return self.reference_theta[self._active] + 1.5 * scaled(self.factor, z[None])[0]

    def _anchored(self, index: np.ndarray) -> np.ndarray:
        """Rows of the subsample with their star terms, block by block as the kernel does."""
        rows = self._expansion.take(index)
        size = len(index) // self.n_blocks
        for start in range(0, len(index), size):
            block = np.ascontiguousarray(rows[:, start : start + size])
            self._expansion.anchor(self.center, block)
            rows[:, start : start + size] = block
        return rows

    def _transitions(self, theta: np.ndarray) -> dict[str, float]:
        ex, k, m = self._expansion, self.transitions_per_draw, len(self.index)
        b = m // self.n_blocks
        new_index = self.rng.integers(0, self.n_rows, (k, b))
        taken = ex.take(new_index.ravel())
        new_rows = np.ascontiguousarray(taken.reshape(len(taken), k, b).transpose(1, 0, 2))
        info = np.empty(len(INFO))
        self.step_size = float(self.step_adapt.current(self.tune))
        transitions(
            self.rng, ex.addresses, theta, self.index,
            self._rows, self.block, self.center, self.level, self.slope, self.curvature,
            self.control_variate_order == 2, self._active, self.factor,
            self.n_rows / (m * self.temperature), self._correction, self.step_size, self.path_length,
            new_index, new_rows, info,
        )  # fmt: skip
        self.block = (self.block + k) % self.n_blocks
        return dict(zip(INFO, info.tolist(), strict=True))

    def _statistics(self, theta: np.ndarray, info: dict[str, float]) -> dict[str, Any]:
        m, k = len(self.index), self.transitions_per_draw
        b = m // self.n_blocks
        steps = int(info["n_steps"])
        diverging = info["diverging"] > 0
        gradients = steps + int(round(k * info["subset_accepted"])) + 1
        if not self.tune:
            self.record.add(theta[self._active], info)
            self.draws_left -= 1
        warning = None
        if not self.tune and self.draws_left == 0:
            warning = self._judge()
        return {
            "acceptance_rate": info["acceptance_rate"],
            "accepted": info["accepted"],
            "diverging": diverging,
            "divergences": self.record.divergences,
            "energy": info["energy"],
            "energy_error": info["energy_error"],
            "loglik_variance": info["loglik_variance"],
            "model_logp": info["log_posterior"],
            "n_evaluations": 2 * (m * gradients + 2 * b * k),
            "n_steps": steps,
            "step_size": self.step_size,
            "subsample_size": m,
            "subset_accepted": info["subset_accepted"],
            "tune": self.tune,
            "data_share": m / self.n_rows,
            "warning": warning,
        }

    # Tuning

    def _adapt(self, theta: np.ndarray, info: dict[str, float]):
        self.step_adapt.update(info["acceptance_rate"], True)
        self.tuning.add(theta[self._active], info["loglik_variance"])
        if not self.tuning.due():
            return
        new_factor = self.tuning.better_factor(self.factor)
        moved = not self._fixed_reference and self.tuning.should_recentre(
            self.reference_theta[self._active], self.factor
        )
        if new_factor is not None:
            self.factor = factor(new_factor)
        if moved:
            self._recentre(theta)
        if moved or new_factor is not None:
            self.step_adapt = DualAverageAdaptation(
                self.step_size, self.target_accept, 0.05, 0.75, 10
            )
        self.tuning.restart()

    def _recentre(self, theta: np.ndarray):
        """Move the reference to the mean of recent draws and choose the subsample size again."""
        theta = theta.copy()
        theta[self._active] = self.tuning.mean()
        reference = reference_at(self._expansion, theta, self.temperature)
        self._use(reference)
        self.moments = pilot_moments(
            self._expansion, reference, self.factor, self._active, self.rng
        )
        if not self._fixed_size:
            m = choose_subsample_size(self.moments, self.temperature)
            variance = float(np.max(self.moments.variance(m, self.temperature)))
            m = -(-m // self.n_blocks) * self.n_blocks if self._fixed_blocks else -(-m // 10) * 10
            if not self._fixed_blocks:
                self.n_blocks = choose_n_blocks(m, variance)
            self.index = self.rng.integers(0, self.n_rows, m)
            self.block = 0
        self._rows = None

    def _judge(self) -> SamplerWarning | None:
        """Say after the last draw whether the chain can be trusted."""
        checks = check_chain(
            self.record,
            reference=self.reference_theta[self._active],
            predicted=self.moments,
            subsample_size=len(self.index),
            temperature=self.temperature,
        )
        failed = [check.advice for check in checks if not check.passed]
        if not failed:
            return None
        return SamplerWarning(WarningType.BAD_PARAMS, "HMCECS: " + " ".join(failed), "warn")

    # State

    @property
    def sampling_state(self):
        """Everything the next draw depends on."""
        return WithSamplingState.sampling_state.fget(self)

    @sampling_state.setter
    def sampling_state(self, state):
        WithSamplingState.sampling_state.fset(self, state)
        self._rows = None

    # Progress bar

    @staticmethod
    def _progressbar_config(n_chains=1):
        columns = [
            TextColumn("{task.fields[divergences]}", table_column=Column("Divergences", ratio=1)),
            TextColumn("{task.fields[step_size]:0.3f}", table_column=Column("Step size", ratio=1)),
            TextColumn("{task.fields[data_share]:0.3%}", table_column=Column("Data", ratio=1)),
        ]
        fields = ("divergences", "step_size", "data_share")
        return columns, {name: [0] * n_chains for name in fields}

    @staticmethod
    def _make_progressbar_update_functions():
        def update(stats):
            shown = {key: stats[key] for key in ("divergences", "step_size", "data_share")}
            return shown | {"failing": stats["divergences"] > 0}

        return (update,)


def _continuous(vars, model) -> list:
    """Return the value variables to sample, all of them continuous."""
    if vars is None:
        chosen = model.value_vars
    else:
        chosen = get_value_vars_from_user_vars(vars, model)
    discrete = [v for v in chosen if v in model.discrete_value_vars]
    if discrete:
        names = ", ".join(repr(model.values_to_rvs[v].name) for v in discrete)
        rest = [model.values_to_rvs[v].name for v in model.continuous_value_vars]
        raise TallModelError(
            f"{names} is discrete and has no gradient: HMCECS samples continuous variables only. "
            f"Marginalise it, or give the continuous ones (vars={rest}) and leave the discrete ones "
            "to another step method."
        )
    if not chosen:
        raise ValueError("The model has no free variable to sample.")
    return list(chosen)


def _reference_theta(model, tall: TallModel, reference: Mapping[str, Any]) -> np.ndarray:
    """Transform a reference point given as untransformed values to theta."""
    if not isinstance(reference, Mapping):
        raise TypeError(
            f"reference must be a dict of untransformed values by variable name, got "
            f"{type(reference).__name__}."
        )
    names = [rv.name for rv in model.free_RVs]
    missing = [n for n in names if n not in reference]
    unknown = [n for n in reference if n not in names]
    if missing or unknown:
        raise ValueError(
            f"reference must give a value for each free variable {names}: missing {missing}, "
            f"unknown {unknown}."
        )
    values = {}
    for rv in model.free_RVs:
        value = np.asarray(reference[rv.name], dtype=float)
        if not np.all(np.isfinite(value)):
            raise ValueError(f"reference[{rv.name!r}] is not finite: {value}.")
        values[rv.name] = value
    point = make_initial_point_fn(model=model, overrides=values)(0)
    for name, shape in zip(tall.names, tall.shapes, strict=True):
        if np.shape(point[name]) != tuple(shape):
            raise ValueError(
                f"reference gives {name!r} the shape {np.shape(point[name])}, expected {tuple(shape)}."
            )
    theta = tall.ravel(point)
    if not np.all(np.isfinite(theta)) or not np.isfinite(tall.logprior(theta)):
        raise ValueError("reference lies outside the support of the prior.")
    return theta


def _check_choice(name, value, choices):
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {value!r}.")


def _check_open(name, value, low, high):
    if not (isinstance(value, int | float | np.number) and low < value < high):
        raise ValueError(f"{name} must lie strictly between {low} and {high}, got {value!r}.")


def _count(name, value, largest=None) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f'{name} must be a positive integer (or "auto"), got {value!r}.')
    if largest is not None and value > largest:
        raise ValueError(f"{name}={value} is larger than the {largest} rows there are.")
    return int(value)
