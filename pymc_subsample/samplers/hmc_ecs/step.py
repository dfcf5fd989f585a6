"""HMC with energy-conserving subsampling as a PyMC step method."""

from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar, Unpack

import numpy as np
from pymc.blocking import PointType
from pymc.step_methods.state import dataclass_state

from pymc_subsample.chain import arguments
from pymc_subsample.chain.declarations import ReferredState, Statistics, statistics
from pymc_subsample.chain.ellipsoid import radius
from pymc_subsample.chain.signatures import SharedContinuous
from pymc_subsample.chain.sizing import Choice, check_blocks, choose
from pymc_subsample.chain.tuning import Tuning, TuningState
from pymc_subsample.compiled.functions import address_of
from pymc_subsample.diagnostics.checks import Check
from pymc_subsample.diagnostics.record import ChainRecord, without_crossings
from pymc_subsample.expansion.estimators import ResidualMoments
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.kernels.dynamics import Moves, trajectory, tree
from pymc_subsample.kernels.estimates import (
    BLOCK_POISSON,
    FUNCTIONS,
    PERTURBED,
    PRODUCT_FUNCTIONS,
    Estimate,
)
from pymc_subsample.kernels.model import MINIBATCH
from pymc_subsample.samplers.hmc_ecs.adaptation import AdaptiveSubsample, Pace
from pymc_subsample.samplers.hmc_ecs.checks import RULES, check_hmc
from pymc_subsample.samplers.hmc_ecs.kernel import INFO, transitions
from pymc_subsample.samplers.hmc_ecs.kernel import Subsample as Drawn
from pymc_subsample.samplers.hmc_ecs.remarks import report
from pymc_subsample.samplers.hmc_ecs.subsample import ESTIMATORS, Subsample, SubsampleState

# Of a trajectory; lengths are jittered by 20%.
_MOST_STEPS = 1024
_DEEPEST = 20
_DYNAMICS = {"hmc": trajectory, "nuts": tree}
# Of a period of a normal posterior.
_QUARTER = np.pi / 2


@dataclass_state
class HMCECSState(ReferredState):
    """Everything the next draw depends on. The rows themselves are taken anew from the data."""

    row_rng: np.random.Generator
    moments: ResidualMoments
    subsample_size: int
    n_blocks: int
    subsample: SubsampleState
    tuning: TuningState
    record: ChainRecord
    estimator: str = field(metadata={"frozen": True})
    kernel: str = field(metadata={"frozen": True})
    max_treedepth: int = field(metadata={"frozen": True})
    control_variate_order: int = field(metadata={"frozen": True})
    target_accept: float = field(metadata={"frozen": True})
    path_length: float = field(metadata={"frozen": True})
    given: dict[str, Any] = field(metadata={"frozen": True})


class HMCECS(AdaptiveSubsample):
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
        Rows m per estimate, from 2 up, drawn with replacement beside the few of the largest
        residuals, which are read always whatever m is. "auto" takes the smallest m, at
        least 100, that keeps the variance of the log-likelihood estimate at or below 1 and its
        perturbation at or below 0.05 on the 95% ellipsoid around the reference, or all rows,
        without approximation, where none is large enough and the log-likelihood is smooth. With
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
    reference : dict, step or DataTree, optional
        Reference point: untransformed values by variable name, for every free variable, used as
        given; or an earlier run of the model, by its idata (posterior means; in hierarchies those
        of the scales, and the mode given these) or its step, without a search for this or other
        modes, and moved as others are. Default: the posterior mode, found on growing random
        subsets, polished on all rows and moved during tuning if the chain settles elsewhere.
    target_accept : float, default 0.8
        Acceptance rate that the step size is tuned to, between 0 and 1. Where draws still diverge
        late in tuning it is raised: 0.8 to 0.95, and to 0.9875 if they go on.
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
        If the model's rows cannot be subsampled, or no subsample of "auto" size is large enough and
        NUTS on all rows is much faster; the message names the variable and the reason.
    RuntimeError
        While tuning, if the subsample has to grow until NUTS on all rows is much faster.
    ValueError
        If an argument is out of range.

    Notes
    -----
    Chains start from draws around the reference point, or where `pm.sample(initvals=...)` says.
    With ``tune=0`` they start at the model's initial point, unless one of these is given. Arguments
    of `pm.sample` that are meant for its own NUTS, such as `target_accept` or `compile_kwargs`,
    don't reach this step: give `target_accept` here.

    `ScalableMH` draws from the posterior itself, without perturbation or signs, where rows see the
    parameters by few linear predictors and the parameters are few beside the rows.

    With other step methods on other variables, those see the full-data posterior while this one
    sees its estimate: exact up to the same perturbation.

    References
    ----------
    .. [1] K.-D. Dang, M. Quiroz, R. Kohn, M.-N. Tran and M. Villani (2019). Hamiltonian Monte
       Carlo with energy conserving subsampling. Journal of Machine Learning Research 20(100),
       sections 3 and 4.
    .. [2] The same, section 5, and A.-M. Lyne et al. (2015). On Russian roulette estimates for
       Bayesian inference with doubly-intractable likelihoods. Statistical Science 30(4).

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(step=pms.HMCECS(), chains=4)
    >>> print(pms.report(idata))

    A larger subsample than the automatic one, drawn anew in smaller blocks, and smaller steps:

    >>> with model:
    ...     idata = pm.sample(step=pms.HMCECS(subsample_size=500, n_blocks=50, target_accept=0.9))
    """

    name = "hmc_ecs"
    _state_class = HMCECSState
    rules = RULES
    reference: Reference
    control_variate_order: int
    _shown = ("divergences", "step_size", "data_share")
    stats_dtypes_shapes: ClassVar[Statistics] = statistics(
        RULES,
        (
            "acceptance_rate", "accepted", "data_share", "energy", "energy_error",
            "loglik_variance", "model_logp", "step_size", "subset_accepted", "tree_depth",
        ),
        n_steps=np.int64, sign=np.int64, subsample_size=np.int64, diverging=bool, divergences=int,
    )  # fmt: skip

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
    ) -> None:
        self.estimator = arguments.choice("estimator", estimator, tuple(ESTIMATORS))
        kernel = arguments.choice("kernel", kernel, ("auto", *_DYNAMICS))
        self.max_treedepth = arguments.count("max_treedepth", max_treedepth, most=_DEEPEST)
        order = arguments.order(control_variate_order, "HMCECS", plain=False)
        self.target_accept = arguments.between("target_accept", target_accept, 0.0, 1.0)
        length = _QUARTER if path_length is None else path_length
        self.path_length = arguments.between("path_length", length, 0.0, np.inf)
        self.temperature = arguments.temperature(temperature)
        self.transitions_per_draw = arguments.transitions(transitions_per_draw)
        m = arguments.count("subsample_size", subsample_size, auto=True, smallest=2)
        blocks = arguments.count("n_blocks", n_blocks, m, "rows of the subsample", auto=True)
        check_blocks(self._kind, m, blocks)
        super().__init__(vars, **above)
        self._attach(order)
        self.control_variate_order = self.expansion.order
        if kernel == "auto":
            curved = self.expansion.effects is not None and path_length is None
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
        found = self._found(temperature=self.temperature, kind=self._kind)
        self.prepared = choose(*found, m, blocks)
        self.row_rng = self.rng.spawn(1)[0]
        self._begin(tune=0, draws=0)
        report(self)

    @property
    def _functions(self) -> tuple[str, ...]:  # type: ignore[override]
        return PRODUCT_FUNCTIONS if self._kind == BLOCK_POISSON else FUNCTIONS

    def _forget(self) -> None:
        self.subsample.rows = self.subsample.exact = None

    # Chains

    def _begin(self, tune: int, draws: int) -> None:
        prepared = self._home
        assert isinstance(prepared, Choice)
        super()._begin(tune, draws)
        self.moments = prepared.moments
        self.subsample_size = prepared.subsample_size
        self.n_blocks = prepared.n_blocks
        self.subsample = Subsample(self._kind, self.subsample_size, self.n_blocks, prepared.always)
        self.tuning = Tuning(
            tune, self.active, self.expansion.theta_size, prepared.factor, self.target_accept
        )
        self.record = ChainRecord(draws=draws, size=self.tall.size)
        self._pace = Pace()

    def _entered(self, point: PointType) -> np.ndarray:
        theta = self._theta(point)
        confined = self._kind == BLOCK_POISSON
        inside, most = confined or self.tuning.done > 0, np.inf
        if confined:
            most = radius(len(self.active))
        self._start(theta, point, self.tuning.factor, inside, most)
        if not len(self.subsample.index):
            self.subsample.draw(self.row_rng, self.n_rows)
        if self.subsample.rows is None:
            self.subsample.pack(self.expansion, self.reference.center)
        return theta

    def _transitions(
        self, theta: np.ndarray, size: int
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        sample, reference = self.subsample, self.reference
        thetas, infos = np.empty((size, len(theta))), np.empty((size, len(INFO)))
        thetas[0], refreshes = theta, size * self.transitions_per_draw
        fresh = sample.propose(self.row_rng, self.expansion, refreshes)
        self.step_size = float(self.tuning.step.current(self.tune))
        extent = float(min(self.path_length, _MOST_STEPS / 1.2 * self.step_size))
        rows = MINIBATCH if self._kind == BLOCK_POISSON else sample.size
        others = self.n_rows - len(sample.always)
        transitions(self._kind, _DYNAMICS[self.kernel])(
            address_of(self.rng), self._compiled, reference.sums(self.control_variate_order),
            Estimate(
                others / (rows * self.temperature), self._setting(), float(sample.products),
                reference.theta, radius(len(self.active)), sample.exact, 1.0 / self.temperature,
            ),
            Moves(
                self.active, self.tuning.factor, self.step_size,
                float(self.max_treedepth) if self.kernel == "nuts" else extent,
            ),
            Drawn(sample.index, sample.rows, sample.counts, sample.group),
            fresh, thetas, infos,
        )  # fmt: skip
        sample.group = (sample.group + refreshes) % sample.n_groups
        return thetas, without_crossings(dict(zip(INFO, infos.T, strict=True)))

    def _setting(self) -> float:
        """How much of half its variance an estimate is less, or the a of the block-Poisson one."""
        if self._kind == PERTURBED:
            return 1.0
        return float(np.mean(self.moments.total)) / self.temperature - self.subsample.products

    def _statistics(self, infos: dict[str, np.ndarray]) -> dict[str, Any]:
        rows = (infos["rows_moved"] + infos["rows_refreshed"]).astype(int)
        return {
            "divergences": self._divergences(infos["diverging"]),
            "model_logp": infos["log_posterior"] - infos["volume"],  # of the model's variables
            "n_evaluations": 2 * rows,
            "step_size": self.step_size,
            "subsample_size": self._rows_read,
            "data_share": self._share,
        }

    # After tuning

    def _watch(self, thetas: np.ndarray, infos: dict[str, np.ndarray]) -> None:
        self.record.add(thetas, infos)

    def _check(self) -> list[Check]:
        return check_hmc(
            self.record,
            expansion=self.expansion,
            reference=self.reference,
            active=self.active,
            predicted=self.moments,
            factor=self._home.factor,
            subsample_size=self.subsample_size,
            always=self.subsample.always,
            n_blocks=self.n_blocks,
            temperature=self.temperature,
            given_reference=bool(self.given["reference"]),
            tune=self.tuning.total,
            began=self.began,
            kind=self._kind,
            confined=self.tuning.factor if self._kind == BLOCK_POISSON else None,
            positive=self._positive,
        )

    def _positive(self, thetas: np.ndarray) -> np.ndarray:
        """Return variables of which theta, shape (k, d), holds logarithms, shape (k, l)."""
        values, _ = self.expansion.written(thetas)
        logs = self._places([v.name for v in self.vars if v.name.endswith("_log__")])
        with np.errstate(over="ignore"):
            return np.exp(values[:, logs])
