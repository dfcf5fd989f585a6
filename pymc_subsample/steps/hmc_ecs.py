"""HMC with energy-conserving subsampling as a PyMC step method."""

import logging
from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar, Unpack

import numpy as np
from pymc.blocking import PointType, StatsType
from pymc.stats.convergence import SamplerWarning
from pymc.step_methods.compound import StepMethodState
from pymc.step_methods.state import dataclass_state

from pymc_subsample.all_rows import DRAWS, compare, nuts, pays
from pymc_subsample.compile import address_of
from pymc_subsample.control_variates.factors import scaled
from pymc_subsample.control_variates.reference import (
    Reference,
    reference_at,
)
from pymc_subsample.control_variates.residuals import residuals_around
from pymc_subsample.diagnostics.checks import Check, amount, remedies, sentence, statistics
from pymc_subsample.diagnostics.hmc import RULES, check_hmc
from pymc_subsample.diagnostics.record import ChainRecord
from pymc_subsample.estimators import (
    FEWEST_BLOCKS,
    MOST_BLOCKS,
    VARIANCE_AIM,
    VARIANCE_BOUND,
    Moments,
)
from pymc_subsample.kernels.dynamics import trajectory, tree
from pymc_subsample.kernels.estimates import BLOCK_POISSON, FUNCTIONS, PERTURBED, PRODUCT_FUNCTIONS
from pymc_subsample.kernels.hmc import INFO, transitions
from pymc_subsample.kernels.model import MINIBATCH
from pymc_subsample.likelihood import TallModelError
from pymc_subsample.progress import doing
from pymc_subsample.steps import arguments, guards
from pymc_subsample.steps.base import SubsampledStep
from pymc_subsample.steps.modes import warn_of_modes
from pymc_subsample.steps.notices import Notice
from pymc_subsample.steps.setup import (
    Preparation,
    choose_always,
    choose_subsample,
    far_points,
    predicted_variance,
    radius,
)
from pymc_subsample.steps.signatures import SharedContinuous
from pymc_subsample.steps.subsample import ESTIMATORS, Subsample, SubsampleState
from pymc_subsample.steps.tuning import Tuning, TuningState

_log = logging.getLogger("pymc.subsample")

# Of a trajectory; lengths are jittered by 20%.
_MOST_STEPS = 1024
_DEEPEST = 20
# Of the subsample, in one look at a chain.
_MOST_GROWTH = 4.0
# Of the rows, from which reading all of them may be faster, and from which it is tried.
_NO_SMALL_SHARE, _LARGE_SHARE = 0.1, 0.25
_DYNAMICS = {"hmc": trajectory, "nuts": tree}
# Of a period of a normal posterior.
_QUARTER = np.pi / 2


@dataclass_state
class HMCECSState(StepMethodState):
    """Everything the next draw depends on. The rows themselves are taken anew from the data."""

    tune: bool
    draws_left: int
    start_at_reference: bool
    mode: int
    reference: Reference
    moments: Moments
    subsample_size: int
    n_blocks: int
    subsample: SubsampleState
    tuning: TuningState
    record: ChainRecord
    n_rows: int = field(metadata={"frozen": True})
    fingerprint: str = field(metadata={"frozen": True})
    observed: tuple[str, ...] = field(metadata={"frozen": True})
    estimator: str = field(metadata={"frozen": True})
    kernel: str = field(metadata={"frozen": True})
    max_treedepth: int = field(metadata={"frozen": True})
    control_variate_order: int = field(metadata={"frozen": True})
    target_accept: float = field(metadata={"frozen": True})
    path_length: float = field(metadata={"frozen": True})
    transitions_per_draw: int = field(metadata={"frozen": True})
    temperature: float = field(metadata={"frozen": True})
    given: dict[str, Any] = field(metadata={"frozen": True})


class HMCECS(SubsampledStep):
    r"""Hamiltonian Monte Carlo with energy-conserving subsampling.

    Each iteration refreshes one block of a subsample of rows by a pseudo-marginal step and then
    moves the parameters by Hamiltonian dynamics on the log posterior estimated from that
    subsample, in dynamics and acceptance alike. The perturbed estimate is

    .. math:: \log\hat L_m(\theta) = \sum_{i=1}^n q_i(\theta)
              + \frac{n}{m} \sum_{u} (\ell_u - q_u)(\theta) - \tfrac12 \hat\sigma^2_m(\theta)

    with Taylor control variates q around a reference point, summed over all rows once. The
    stationary distribution differs from the posterior by terms of order :math:`1/(n m^2)` [1]_.
    The block-Poisson estimate, of :math:`\lambda` expected factors with 30 rows each,

    .. math:: \hat L = e^{\sum_i q_i + a + \lambda}
              \prod_b \frac{\hat d_b - a}{\lambda}

    is unbiased, so that no such error remains, but may be negative: its absolute value is sampled,
    and expectations are taken with the sign of each draw [2]_.

    Parameters
    ----------
    estimator : {"perturbed", "block-poisson"}
        Of the likelihood. With "block-poisson" posterior expectations are exact but for Monte
        Carlo error; statistic `sign` of a draw is 1 or -1, and `pymc_subsample.summary`,
        `expectation` and `quantile` take it into account.
    kernel : {"auto", "hmc", "nuts"}
        How parameters move: along trajectories of fixed length, or by the No-U-Turn sampler.
        "auto" is "nuts" where the chain moves in coordinates of its own, as in hierarchical models,
        unless a path length is given: their scales need longer trajectories than the rest.
    subsample_size : int or "auto", default "auto"
        Rows m per estimate, from 2 up, drawn with replacement. "auto" takes the smallest m, at
        least 100, that keeps the variance of the log-likelihood estimate at or below 1 and its
        perturbation at or below 0.05 on the 95% ellipsoid around the reference. With
        "block-poisson" their expected number, a multiple of 30, and "auto" minimises the
        computational time of an effective draw under the same bound on the variance.
    n_blocks : int or "auto", default "auto"
        Blocks G of the subsample, one refreshed per iteration; must divide `subsample_size`, or,
        with "block-poisson", the number :math:`\lambda` of minibatches of 30 rows. "auto" takes
        10 to 100, for an acceptance of the refresh near 0.9.
    control_variate_order : {"auto", 2, 1, 0}
        Order of the Taylor expansion. "auto" is 2 where the sum of the rows' curvatures can be
        kept, that is for up to 5,000 parameters that meet the data, or for more where groups
        leave most of it zero; and 1 beyond, which takes as many rows per draw as half the square
        of the number of parameters. 2 raises where it cannot be had.
    reference : dict, optional
        Reference point: untransformed values by variable name, for every free variable. It is
        used as given. Default: the posterior mode, found on growing random subsets, polished on
        all rows and moved during tuning if the chain settles elsewhere.
    target_accept : float, default 0.8
        Acceptance rate that the step size is tuned to, between 0 and 1.
    path_length : float, optional
        Length of a trajectory in units of the mass matrix, jittered by 20%. Default: pi / 2, a
        quarter period, which makes successive draws from a normal posterior independent. Not used
        by "nuts".
    max_treedepth : int, default 10
        Doublings of a trajectory at most, up to 20, with ``kernel="nuts"``.
    transitions_per_draw : int, default 1
        Iterations per recorded draw, all within one compiled call.
    temperature : float, default 1
        Divides the log-likelihood of the subsampled rows.

    Attributes
    ----------
    n_rows : int
        Rows of the data.
    subsample_size, n_blocks : int
        As chosen at set-up, or for the current chain.

    Raises
    ------
    TallModelError
        If the model's rows cannot be subsampled, or no subsample of "auto" size is large enough;
        the message names the variable and the reason.
    ValueError
        If an argument is out of range.

    Notes
    -----
    Chains start from draws around the reference point, not from `pm.sample(initvals=...)`, unless
    they run without tuning. Arguments of `pm.sample` that are meant for its own NUTS, such as
    `target_accept` or `compile_kwargs`, don't reach this step: give `target_accept` here.

    With other step methods on other variables, those see the full-data posterior while this one
    sees its estimate: exact up to the same perturbation.

    References
    ----------
    .. [1] K.-D. Dang, M. Quiroz, R. Kohn, M.-N. Tran and M. Villani (2019). Hamiltonian Monte
       Carlo with energy conserving subsampling. Journal of Machine Learning Research 20(100),
       sections 3 and 4.
    .. [2] The same, section 5, and A.-M. Lyne et al. (2015). On Russian roulette estimates for
       Bayesian inference with doubly-intractable likelihoods. Statistical Science 30(4).
    """

    name = "hmc_ecs"
    default_blocked = True
    _state_class = HMCECSState
    _rules = RULES
    _shown: ClassVar[dict[str, tuple[str, str]]] = {
        "divergences": ("Divergences", "d"),
        "step_size": ("Step size", "0.3f"),
        "data_share": ("Data", "0.3%"),
    }
    # 1 subtracts half the estimated variance; tests set 0 to see that leaving it out is noticed.
    _correction = 1.0

    stats_dtypes_shapes: ClassVar[dict[str, tuple[type, list[int] | None]]] = {
        "acceptance_rate": (np.float64, []),
        "accepted": (np.float64, []),
        "diverging": (bool, []),
        "divergences": (int, []),  # as PyMC's NUTS has it
        "energy": (np.float64, []),
        "energy_error": (np.float64, []),
        "loglik_variance": (np.float64, []),
        "model_logp": (np.float64, []),
        "n_evaluations": (np.int64, []),
        "n_steps": (np.int64, []),
        "step_size": (np.float64, []),
        "subsample_size": (np.int64, []),
        "sign": (np.int64, []),
        "subset_accepted": (np.float64, []),
        "tree_depth": (np.float64, []),
        "tune": (bool, []),
        "data_share": (np.float64, []),
        "warning": (SamplerWarning, None),
    } | statistics(RULES)

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        estimator: str = "perturbed",
        kernel: str = "auto",
        subsample_size: int | str = "auto",
        n_blocks: int | str = "auto",
        control_variate_order: int | str = "auto",
        target_accept: float = 0.8,
        path_length: float | None = None,
        max_treedepth: int = 10,
        transitions_per_draw: int = 1,
        temperature: float = 1.0,
        **above: Unpack[SharedContinuous],
    ):
        self.estimator = arguments.choice("estimator", estimator, tuple(ESTIMATORS))
        kernel = arguments.choice("kernel", kernel, ("auto", *_DYNAMICS))
        self.max_treedepth = arguments.count("max_treedepth", max_treedepth, most=_DEEPEST)
        order = arguments.order(control_variate_order, "HMCECS", plain=False)
        self.target_accept = arguments.between("target_accept", target_accept, 0.0, 1.0)
        length = _QUARTER if path_length is None else path_length
        self.path_length = arguments.between("path_length", length, 0.0, np.inf)
        self.temperature = arguments.temperature(temperature)
        self.transitions_per_draw = arguments.transitions(
            "transitions_per_draw", transitions_per_draw
        )
        m = arguments.count("subsample_size", subsample_size, auto=True, smallest=2)
        blocks = arguments.count("n_blocks", n_blocks, m, "rows of the subsample", auto=True)
        _check_blocks(self.estimator, m, blocks)
        super().__init__(vars, **above)
        self._attach(order)
        self.control_variate_order = self._expansion.order
        if kernel == "auto":
            curved = self._expansion.coordinates is not None and path_length is None
            kernel = "nuts" if curved else "hmc"
        self.kernel = kernel
        transitions(self._kind, _DYNAMICS[kernel])  # compiled once, before chains begin
        arguments.count("subsample_size", m or 1, self.n_rows)
        arguments.count("n_blocks", blocks or 1, self.n_rows)
        self.given = {
            "reference": self._given_reference is not None,
            "subsample_size": m,
            "n_blocks": blocks,
        }
        self._prepared: Preparation = self._prepared_at(
            self._expansion,
            subsample_size=m,
            n_blocks=blocks,
            temperature=self.temperature,
            kind=self._kind,
        )
        self._begin(tune=0, draws=0)
        self._report()

    @property
    def _kind(self) -> int:
        return ESTIMATORS[self.estimator]

    @property
    def _functions(self) -> tuple[str, ...]:  # type: ignore[override]
        return PRODUCT_FUNCTIONS if self._kind == BLOCK_POISSON else FUNCTIONS

    def _forget(self):
        self.subsample.rows = self.subsample.exact = None

    def _report(self):
        """Log what the set-up chose, and warn of what it could not achieve."""
        m, n = self.subsample_size, self.n_rows
        variance = predicted_variance(self._kind, self.moments, m, self.temperature)
        path = "linear predictors" if self._expansion.linear else "general path"
        if self._expansion.highest_order < 2:
            path += f", control variates of order {self.control_variate_order}: too many parameters"
        blocks = "1 block" if self.n_blocks == 1 else f"{self.n_blocks} blocks"
        may_change = self.given["subsample_size"] is None and not self.given["reference"]
        large = self._share > _LARGE_SHARE
        _log.info(
            f"HMCECS: {n:,} rows of {', '.join(self.observed)} ({path}); subsample of "
            f"{'about ' * (self._kind == BLOCK_POISSON)}{m:,} rows "
            f"({m / n:.2%}) in {blocks}{self._also()}{' to start with' if may_change else ''}; "
            f"predicted variance of the log-likelihood estimate {amount(variance)}"
            f"{self._beside_all_rows() if large else self._saves()}"
        )
        few = min(FEWEST_BLOCKS, m // MINIBATCH if self._kind == BLOCK_POISSON else m)
        if self.given["n_blocks"] is None and self.n_blocks < few:
            near = min(round(m / 10), n // 10) * 10
            _log.info(
                f"HMCECS: subsample_size={m} has no divisor from {FEWEST_BLOCKS} to {MOST_BLOCKS}, "
                f"so {m // self.n_blocks} rows are refreshed at once, which is accepted less "
                f"often. subsample_size={near} divides well."
            )
        warn_of_modes("HMCECS", self._prepared, self._read, self._expansion.values)
        if not variance <= VARIANCE_BOUND:
            _log.warning(
                f"HMCECS: the log-likelihood estimate is predicted to be too noisy, with a "
                f"variance of {amount(variance)} (should be at most {VARIANCE_BOUND:g}). "
                + sentence(
                    remedies(m, self._largest, self._expansion.raisable, self.given["reference"])
                )
            )

    def _also(self) -> str:
        """Say how many rows are read always."""
        e = len(self.subsample.always)
        return f" and {e:,} outlying rows that are read always" if e else ""

    @property
    def _largest(self) -> int:
        """The largest subsample that there is."""
        n = self.n_rows - len(self.subsample.always)
        return n // MINIBATCH * MINIBATCH if self._kind == BLOCK_POISSON else n

    @property
    def _share(self) -> float:
        """Of the rows, that an estimate reads."""
        return (self.subsample_size + len(self.subsample.always)) / self.n_rows

    def _saves(self) -> str:
        """Say so where a subsample saves little, for the end of a log message."""
        if self._share < _NO_SMALL_SHARE:
            return ""
        return ". This is no small part of the data: pm.NUTS or nutpie on all rows may be faster"

    def _beside_all_rows(self) -> str:
        """Say how long a run takes, and NUTS on all rows, for the end of a log message."""
        # nutpie neither takes turns with other steps nor tempers.
        alike = len(self._active) == self._tall.size and self.temperature == 1.0
        if not alike or not _log.isEnabledFor(logging.INFO):
            return self._saves()
        name, code = nuts()
        with doing(f"comparing it with {name}"):
            found = compare(self._model, self)
        said = f". An estimate reads {self._share:.0%} of the rows"
        each = f"{amount(1000 * found.per_gradient)} ms"
        if np.isnan(found.seconds):
            return f"{said}, and a gradient of all of them takes about {each}: try {code}"
        times = (
            f"{said}: {DRAWS:,} draws after as many of tuning take a chain about "
            f"{amount(found.seconds)} s, and with {name} on all rows about "
            f"{amount(found.full_seconds)} s, at {found.gradients:.0f} gradients per draw and "
            f"{each} each"
        )
        if pays(found.seconds, found.full_seconds):
            return f"{times}. HMCECS is the faster one"
        return f"{times}. Use {code}, which is exact"

    # Chains

    def setup_chain(self, rng, tune: int, draws: int) -> None:
        """Reset all that belongs to one chain; PyMC calls this right before it starts."""
        super().setup_chain(rng, tune, draws)
        self._begin(tune, draws)

    def reset_tuning(self):
        """Start the adaptation of step size, mass matrix and reference again."""
        self._begin(self.tuning.total, self.draws_left)

    def _begin(self, tune: int, draws: int):
        prepared = self._home
        self.tune = tune > 0
        self.draws_left = draws
        self.start_at_reference = tune > 0
        self.reference = prepared.reference
        self.moments = prepared.moments
        self.subsample_size = prepared.subsample_size
        self.n_blocks = prepared.n_blocks
        self.subsample = Subsample(self._kind, self.subsample_size, self.n_blocks, prepared.always)
        self.tuning = Tuning(
            tune, self._active, self._expansion.theta_size, prepared.factor, self.target_accept
        )
        self.record = ChainRecord(draws=draws, size=self._tall.size)

    def step(self, point: PointType) -> tuple[PointType, StatsType]:
        """Run `transitions_per_draw` iterations from a point of value variables."""
        theta = self._theta(point)
        if self.start_at_reference:
            inside = self._kind == BLOCK_POISSON or self.tuning.done > 0
            if inside or not self._given_start(point):
                theta[self._active] = self._start()
            self.start_at_reference = False
        if not len(self.subsample.index):
            self.subsample.draw(self.rng, self.n_rows)
        if self.subsample.rows is None:
            self.subsample.pack(self._expansion, self.reference.center)
        info = self._transitions(theta)
        stats = self._statistics(info)
        notice = self._adapt(theta, info) if self.tune else None
        self._judge(stats, None if self.tune else self._watch(theta, info))
        if notice is not None:
            stats["warning"] = notice
        return self._point(point, theta), [stats]

    def _start(self) -> np.ndarray:
        """Draw around the reference, wider than the posterior."""
        z = self.rng.standard_normal(len(self._active))
        return self.reference.theta[self._active] + 1.5 * scaled(self.tuning.factor, z[None])[0]

    def _transitions(self, theta: np.ndarray) -> dict[str, float]:
        k, sample, reference = self.transitions_per_draw, self.subsample, self.reference
        new_index, new_rows, new_counts = sample.propose(self.rng, self._expansion, k)
        info = np.empty(len(INFO))
        self.step_size = float(self.tuning.step.current(self.tune))
        extent = min(self.path_length, _MOST_STEPS / 1.2 * self.step_size)
        size, setting = sample.size, self._correction
        others = self.n_rows - len(sample.always)
        if self._kind == BLOCK_POISSON:
            size = MINIBATCH
            setting = float(np.mean(self.moments.total)) / self.temperature - sample.products
        transitions(self._kind, _DYNAMICS[self.kernel])(
            address_of(self.rng), self._addresses, theta, sample.index, sample.rows,
            sample.counts, sample.group, reference.center, reference.level, reference.slope,
            reference.curvature, self.control_variate_order, self._active, self.tuning.factor,
            others / (size * self.temperature), setting, sample.products, self._expansion.width,
            reference.theta, radius(len(self._active)), self.step_size,
            self.max_treedepth if self.kernel == "nuts" else extent,
            new_index, new_rows, new_counts, sample.exact, 1.0 / self.temperature, info,
        )  # fmt: skip
        sample.group = (sample.group + k) % sample.n_groups
        found = dict(zip(INFO, info.tolist(), strict=True))
        if self._expansion.coordinates is not None:  # the density is that of the model's variables
            found["log_posterior"] -= self._expansion.coordinates.to_theta(theta)[1]
        return found

    def _statistics(self, info: dict[str, float]) -> dict[str, Any]:
        m = self.subsample_size
        diverging = info["diverging"] > 0
        if not self.tune:
            self.record.divergences += diverging
        return {
            "acceptance_rate": info["acceptance_rate"],
            "accepted": info["accepted"],
            "diverging": diverging,
            "divergences": self.record.divergences,
            "energy": info["energy"],
            "energy_error": info["energy_error"],
            "loglik_variance": info["loglik_variance"],
            "model_logp": info["log_posterior"],
            "n_evaluations": 2 * int(info["rows_moved"] + info["rows_refreshed"]),
            "n_steps": int(info["n_steps"]),
            "sign": int(info["sign"]),
            "step_size": self.step_size,
            "subsample_size": m + len(self.subsample.always),
            "subset_accepted": info["subset_accepted"],
            "tree_depth": info["tree_depth"],
            "tune": self.tune,
            "data_share": self._share,
        }

    # Tuning

    def _adapt(self, theta: np.ndarray, info: dict[str, float]) -> Notice | None:
        tuning, notice = self.tuning, None
        tuning.add(theta, info["acceptance_rate"], info["loglik_variance"])
        if not tuning.due():
            return None
        better = tuning.better_factor()
        moved = not self.given["reference"] and tuning.should_recentre(self.reference.theta)
        if better is not None:
            tuning.factor = better
        if moved:
            notice = self._recentre(theta)
        elif self._may_resize and tuning.noise() > 0.9 * VARIANCE_BOUND:
            notice = self._enlarge(tuning.noise() / VARIANCE_AIM)
        changed = moved or better is not None
        if changed and self._kind == BLOCK_POISSON:
            self.start_at_reference = True  # inside the new ellipsoid
        tuning.restart(self.step_size if changed else None)
        return notice

    def _recentre(self, theta: np.ndarray) -> Notice | None:
        """Move the reference to the mean of recent draws and choose the subsample size again."""
        center, free = theta.copy(), self._continuous()
        center[free] = self.tuning.recent()[:, free].mean(axis=0)
        reference = reference_at(self._expansion, center, self.temperature)
        far = far_points(self._kind, center, self.tuning.factor, self._active, self.rng)
        try:
            residuals = residuals_around(self._expansion, reference, self.tuning.pilot(), far)
        except TallModelError:
            return None  # impossible rows on the way: stay, and let the end of the chain judge
        always, self.moments = choose_always(
            self._kind, residuals, self.temperature, self.given["subsample_size"]
        )
        self.reference, before = reference, self.subsample_size
        if self.given["subsample_size"] is None:
            self.subsample_size, self.n_blocks = choose_subsample(
                self._kind, self.moments, self.temperature, None, self.given["n_blocks"]
            )
            self.subsample = Subsample(self._kind, self.subsample_size, self.n_blocks, always)
        self._forget()
        if self.subsample_size == before:
            return None
        return self._changed("the chain settled away from the reference point", before)

    @property
    def _may_resize(self) -> bool:
        own = self.given["subsample_size"] is None and not self.given["reference"]
        return self._kind == PERTURBED and own

    def _enlarge(self, ratio: float) -> Notice | None:
        """Take more rows: the variance was predicted at a few points, and is larger on the way."""
        unit, before = self.given["n_blocks"] or 10, self.subsample_size
        wanted = before * min(ratio, _MOST_GROWTH) if np.isfinite(ratio) else 0.0
        wanted = min(-int(-wanted // unit), self._largest // unit) * unit
        if wanted <= before:
            return None
        self.subsample_size, self.n_blocks = choose_subsample(
            self._kind, self.moments, self.temperature, wanted, self.given["n_blocks"]
        )
        always = self.subsample.always
        self.subsample = Subsample(self._kind, self.subsample_size, self.n_blocks, always)
        self._forget()
        return self._changed("the estimate is noisier on the way than was predicted", before)

    def _changed(self, cause: str, before: int) -> Notice:
        """Say why the subsample has another size now, and which other steps have a part in it."""
        company = guards.company(self)
        why = f"while {company}, {cause}" if company else cause
        return Notice(
            cause,
            f"HMCECS: {why}; a chain's subsample changed from {before:,} to "
            f"{self.subsample_size:,} rows ({self.subsample_size / self.n_rows:.2%})"
            f"{self._also()}{self._saves()}",
        )

    # After tuning

    def _watch(self, theta: np.ndarray, info: dict[str, float]) -> list[Check] | None:
        """Record a draw, and after the last one check whether the chain can be trusted."""
        self.record.add(theta, info)
        self.draws_left -= 1
        if self.draws_left != 0:
            return None
        return check_hmc(
            self.record,
            expansion=self._expansion,
            reference=self.reference,
            active=self._active,
            predicted=self.moments,
            factor=self._home.factor,
            subsample_size=self.subsample_size,
            always=self.subsample.always,
            n_blocks=self.n_blocks,
            temperature=self.temperature,
            given_reference=bool(self.given["reference"]),
            tune=self.tuning.total,
            kind=self._kind,
            confined=self.tuning.factor if self._kind == BLOCK_POISSON else None,
        )


def _check_blocks(estimator: str, m: int | None, blocks: int | None):
    """Refuse sizes that don't divide."""
    signed = ESTIMATORS[estimator] == BLOCK_POISSON
    if signed and m and m % MINIBATCH:
        raise ValueError(
            f"subsample_size={m} is not a multiple of {MINIBATCH}, the size of a minibatch of the "
            f'block-Poisson estimate. Use {max(m // MINIBATCH, 1) * MINIBATCH}, or "auto".'
        )
    parts = m // MINIBATCH if signed and m else m
    if parts and blocks and parts % blocks:
        of = f"the {parts} minibatches of " if signed else ""
        raise ValueError(
            f"n_blocks={blocks} does not divide {of}subsample_size={m}. Choose a divisor, or leave "
            'n_blocks="auto".'
        )
