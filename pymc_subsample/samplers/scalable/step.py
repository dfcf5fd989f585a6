"""Scalable Metropolis-Hastings as a PyMC step method."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, ClassVar, Unpack

import numpy as np
from pymc.blocking import PointType
from pymc.step_methods.state import dataclass_state
from pytensor.graph.traversal import toposort

from pymc_subsample.bounds.remainders import BOUNDS, RowBounds
from pymc_subsample.bounds.strata import UnboundedError
from pymc_subsample.bounds.thinning import (
    DRAW,
    GRADIENTS,
    better_acceptance,
    lag_one,
    left_by_a_move,
    most_effective_moves,
)
from pymc_subsample.chain import arguments
from pymc_subsample.chain.beside import NO_SMALL_SHARE
from pymc_subsample.chain.competing import warn_of_modes
from pymc_subsample.chain.declarations import ReferredState, Statistics, statistics
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.progress import doing
from pymc_subsample.chain.setup import Preparation, Problem
from pymc_subsample.chain.signatures import SharedContinuous
from pymc_subsample.chain.sizing import instead_of_bounds
from pymc_subsample.chain.tuning import Tuning, TuningState
from pymc_subsample.compiled.functions import address_of
from pymc_subsample.diagnostics.checks import Check
from pymc_subsample.diagnostics.record import without_crossings
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.reference import Reference, reference_at
from pymc_subsample.kernels.dynamics import Moves
from pymc_subsample.kernels.estimates import PERTURBED
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.samplers.minibatch.moves import given_factor, given_scale, in_own_units
from pymc_subsample.samplers.minibatch.proposals import (
    AdaptiveMetropolis,
    Langevin,
    RandomWalk,
    as_surrogate_proposal,
    require_size,
)
from pymc_subsample.samplers.scalable.checks import RULES, ProposalRecord, check_proposals
from pymc_subsample.samplers.scalable.deciding import Deciding
from pymc_subsample.samplers.scalable.forecast import Forecast
from pymc_subsample.samplers.scalable.kernel import (
    FACTORISED,
    INFO,
    MH_SS,
    PARAMETER_FUNCTIONS,
    Decision,
)
from pymc_subsample.samplers.scalable.kernel import transitions as compiled

_log = logging.getLogger("pymc.subsample")

type Proposal = str | Langevin | AdaptiveMetropolis | RandomWalk
_ACCEPTANCE = {"factorised": FACTORISED, "mh-ss": MH_SS}
_TRAJECTORIES = ("hmc", "nuts")
# Compiled dynamics, and the acceptance rates of many parameters and of one that step sizes are
# tuned to.
_MOVES = {
    "hmc": ("hmc", 0.8, 0.8),
    "nuts": ("nuts", 0.8, 0.8),
    "Langevin": ("hmc", 0.574, 0.574),
    "AdaptiveMetropolis": ("random-walk", 0.234, 0.44),
    "RandomWalk": ("random-walk", 0.234, 0.44),
}
# Of a trajectory; lengths are jittered by 20%.
_MOST_STEPS = 1024
_DEEPEST = 20
_QUARTER = np.pi / 2
# Correlation of draws that a transition of the surrogate leaves, before a chain has shown it.
_LEFT = 0.5
# Predicted acceptance, where rows decide, that is told.
FEW_ACCEPTED = 0.5
# Draws over which their number is averaged.
_REMEMBERED = 50
_BOUNDED = "a bound on the third derivative (with control_variate_order=3 the fourth)"


@dataclass_state
class ScalableMHState(ReferredState):
    """Everything the next draw depends on. Bounds of rows are made anew at the reference."""

    underrated: float
    tuning: TuningState
    surrogate_transitions: int
    gradients: float
    control_variate_order: int = field(metadata={"frozen": True})
    acceptance: str = field(metadata={"frozen": True})
    kind: str = field(metadata={"frozen": True})
    bound: str | float = field(metadata={"frozen": True})
    intensity: float = field(metadata={"frozen": True})
    given_transitions: int | None = field(metadata={"frozen": True})
    max_treedepth: int = field(metadata={"frozen": True})
    target_accept: float = field(metadata={"frozen": True})
    path_length: float = field(metadata={"frozen": True})


class ScalableMH(ChainStep):
    r"""Scalable Metropolis-Hastings: exact draws from a handful of rows.

    Proposals come from Hamiltonian dynamics on a surrogate of the posterior,

    .. math:: \tilde p(\theta) \propto p(\theta) \exp \sum_{i=1}^n q_i(\theta),

    the exact prior with second-order Taylor expansions :math:`q_i` of the rows' log-likelihoods
    around a reference point, which are summed over all rows once: proposing reads no rows.
    What the expansions leave, :math:`d_i = \ell_i - q_i`, decides on a proposal by Poisson
    thinning: bounds :math:`|d_i(\theta') - d_i(\theta)| \le c_i M(\theta, \theta')` say how likely
    each row is to matter, and only rows that are drawn in proportion to them are read. The draws
    are from the posterior itself, without approximation, whatever rows are read [1]_, [2]_.

    Parameters
    ----------
    acceptance : {"auto", "factorised", "mh-ss"}
        How rows decide. "factorised": each may reject, with probability
        :math:`\prod_i \min(1, e^{\Delta_i})` of none, :math:`\Delta_i` its part of the log-ratio
        [1]_. "mh-ss": by a Poisson number of times that each row is drawn, whose probabilities
        in both directions make up the ratio; it accepts more often, and reads all rows that were
        drawn before it decides [2]_. "auto" takes what is predicted to accept more proposals
        in the same time.
    proposal : {"auto", "hmc", "nuts"}, Langevin, AdaptiveMetropolis or RandomWalk
        How the surrogate is moved: along trajectories of fixed length, by the No-U-Turn sampler, or
        as the other steps propose, by single steps of Langevin dynamics or of a random walk;
        each has an acceptance test of its own. "auto" is "nuts" where the chain moves in
        coordinates of its own, as in hierarchical models, unless a path length is given, and else
        "hmc". Gradients are those of the surrogate, which needs no batch.
    surrogate_transitions : int or "auto", default "auto"
        Transitions of the surrogate per proposal, from 1 up. "auto" takes one with "nuts": rows
        accept more of what is near. Otherwise it takes up to 16, as many as make most effective
        draws in the same time, by the correlation of the draws in tuning.
    bound : {"auto", "global", "local"} or float
        Where bounds on third derivatives of the rows' log-likelihoods in their linear predictors
        come from, on fourth ones where control variates are of order 3. "global": over all values
        of the one predictor, where they are bounded (logistic regression, for instance). "local":
        by interval arithmetic for up to ten predictors, within some posterior standard deviations
        of the reference; proposals farther away are decided by all rows. "auto" takes the smaller
        of both for each row. A number is a bound of your own on the derivative of every row in its
        one predictor: the third, or the fourth with ``control_variate_order=3``. All are verified
        on all rows at a few points at set-up, and on every row that is read.
    control_variate_order : {"auto", 2, 3}, default "auto"
        Order of the expansions whose remainders rows decide on; the surrogate's is always 2. Terms
        of order 3 are summed over all rows at set-up, which takes about :math:`n k^3 / 6` products
        where a row sees k parameters, and over the :math:`k^3 / 6` sums of each set of k parameters
        in every decision. What they leave is a small part of what order 2 leaves. For rows with at
        most three linear predictors and simple third derivatives. "auto" takes them where order 2
        reads more than a row per proposal, decisions take little longer, and sums ten seconds or
        so at most.
    intensity : float, default 1
        :math:`\kappa \ge 1`: how many times as many rows are drawn as the bounds ask for. More
        of them bring the acceptance of "mh-ss" nearer to that of all rows.
    reference : dict, step or DataTree, optional
        Where log-likelihoods are expanded: untransformed values by variable name, for every free
        variable, used as given; or an earlier run of the model, by its idata (posterior means; in
        hierarchies those of the scales, and the mode given these) or its step, without a search for
        this or other modes, and moved as others are. Default: the posterior mode, found
        automatically, and moved during tuning if the chain settles elsewhere.
    target_accept : float, optional
        Acceptance rate of the surrogate's own test that the step size is tuned to, between 0 and
        1. Default: 0.8. `Langevin` and `AdaptiveMetropolis` have their own: 0.574; 0.234, or 0.44
        for one parameter.
    path_length : float, optional
        Length of a trajectory in units of the mass matrix, jittered by 20%. Default: pi / 2, a
        quarter period. Used by "hmc" alone.
    max_treedepth : int, default 10
        Doublings of a trajectory at most, up to 20, with "nuts".
    transitions_per_draw : int, default 1
        Proposals per recorded draw, all within one compiled call.
    temperature : float, default 1
        Divides the log-likelihood of the subsampled rows. Anything but 1 samples another
        distribution than the posterior, and warns.

    Attributes
    ----------
    bounds : RowBounds
        Of the rows, at the current reference: their kind, and rows to be expected per proposal.
    predicted_acceptance : float
        Share of the proposals that rows are expected to accept.
    underrated : float
        Share of the posterior's mass, were it normal, where it exceeds its surrogate twentyfold.

    Raises
    ------
    TallModelError
        If the model's rows cannot be subsampled, or their remainders not be bounded; the message
        names the variable and the reason.
    RuntimeError
        While sampling, if a row exceeds its bound: the draws would not be from the posterior.

    Notes
    -----
    Bounds take 16 bytes a row in memory, and three passes over the rows at set-up. Rows whose
    bounds are so large that they would be drawn in most proposals are read always; groups of few
    rows as a whole.

    Where fewer than nine in ten proposals would be accepted even if all rows decided, as with
    groups of a few rows, whose log-likelihoods are no parabolas, the surrogate reads up to 4,096
    rows itself, at each of its gradients: :math:`\tilde p` then has their :math:`d_i` too, and they
    decide nothing. Which ones, two more passes tell, by what those rows cost and how much nearer
    they bring the surrogate to the posterior; none, unless that gains half as much again.

    The number of rows per proposal falls with the number of rows n at fixed numbers of parameters
    d, about as :math:`d^{3} / \sqrt n`; where :math:`d^3` is beyond n, other steps are faster.

    References
    ----------
    .. [1] R. Cornish, P. Vanetti, A. Bouchard-Cote, G. Deligiannidis and A. Doucet (2019). Scalable
       Metropolis-Hastings for exact Bayesian inference with large datasets. ICML, sections 2 to 4.
    .. [2] E. Prado, C. Nemeth and C. Sherlock (2024). Metropolis-Hastings with scalable
       subsampling. arXiv:2407.19602, section 3; R. Zhang, A. F. Cooper and C. De Sa (2020).
       Asymptotically optimal exact minibatch Metropolis-Hastings. NeurIPS.

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(step=pms.ScalableMH(), chains=4)
    >>> idata["sample_stats"]["rows_read"].mean()  # rows that decided on a draw
    """

    name = "scalable_mh"
    _state_class = ScalableMHState
    rules = RULES
    _functions = (*PARAMETER_FUNCTIONS[:2], None)
    _without_gradient = "ScalableMH needs one for its proposals."
    _estimates = False
    reference: Reference
    tuning: Tuning
    _shown = ("divergences", "rows_accepted", "rows_read")
    stats_dtypes_shapes: ClassVar[Statistics] = statistics(
        RULES,
        (
            "acceptance_rate", "accepted", "data_share", "energy", "energy_error", "rows_accepted",
            "rows_read", "step_size", "tightness", "tree_depth",
        ),
        n_steps=np.int64, passes=np.float64, diverging=bool, divergences=int,
    )  # fmt: skip

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        acceptance: str = "auto",
        proposal: Proposal = "auto",
        surrogate_transitions: int | str = "auto",
        bound: str | float = "auto",
        intensity: float = 1.0,
        control_variate_order: int | str = "auto",
        target_accept: float | None = None,
        path_length: float | None = None,
        max_treedepth: int = 10,
        transitions_per_draw: int = 1,
        temperature: float = 1.0,
        **above: Unpack[SharedContinuous],
    ):
        acceptance = arguments.choice("acceptance", acceptance, ("auto", *_ACCEPTANCE))
        proposal = as_surrogate_proposal(proposal, ("auto", *_TRAJECTORIES), target_accept)
        self.given_transitions = arguments.count(
            "surrogate_transitions", surrogate_transitions, auto=True
        )
        self.bound = arguments.derivative_bound(bound, BOUNDS, _BOUNDED, least=0.0)
        self.intensity = arguments.intensity(intensity)
        order = arguments.decisive_order(control_variate_order)
        self.max_treedepth = arguments.count("max_treedepth", max_treedepth, most=_DEEPEST)
        if target_accept is not None:
            arguments.between("target_accept", target_accept, 0.0, 1.0)
        length = _QUARTER if path_length is None else path_length
        self.path_length = arguments.between("path_length", length, 0.0, np.inf)
        self.temperature = arguments.temperature(temperature)
        self.transitions_per_draw = arguments.transitions(transitions_per_draw)
        super().__init__(vars, **above)
        self._form.own &= not in_own_units(proposal)
        self._attach(2)
        require_size(proposal, len(self.active))
        if proposal == "auto":
            curved = self.expansion.effects is not None and path_length is None
            proposal = "nuts" if curved else "hmc"
        self.proposal = proposal
        self.kind = proposal if isinstance(proposal, str) else type(proposal).__name__
        self._dynamics, many, one = _MOVES[self.kind]
        compiled(self._dynamics)  # once, before chains begin
        usual = one if len(self.active) == 1 else many
        given = getattr(proposal, "target_accept", target_accept)
        self.target_accept = usual if given is None else given
        problem, self.prepared = self._found(temperature=self.temperature)
        with doing("bounding what the expansions leave of the rows"):
            self._deciding = Deciding(
                self.expansion, self.active, self.bound, self.intensity, self.temperature,
                operations=len(list(toposort(self.tall.batch.outputs))),
            )  # fmt: skip
            try:
                found = self._deciding.choose(order, self.prepared.at_modes)
            except UnboundedError as error:
                instead = instead_of_bounds(self._as_hmc_ecs(problem, self.prepared))
                raise TallModelError(f"{error} {instead}") from error
        self.control_variate_order = self._deciding.order
        self._compiled = self._deciding.model
        self._underrated = max(share for _, share in found)
        self._choose(acceptance, found[0][0])
        self._begin(tune=0, draws=0)
        self._report()
        warn_of_modes(self)

    # Set-up

    def _connect(self) -> None:
        super()._connect()
        if self.prepared is not None:  # otherwise the set-up goes on
            self._deciding.connect(self.expansion)
            self._compiled = self._deciding.model

    def _as_hmc_ecs(
        self, problem: Problem, prepared: Preparation
    ) -> Iterator[tuple[Problem, Preparation]]:
        """Set up as another step would: on other scales too, after which this step is of no use."""
        self.prepared = None
        yield problem, prepared
        if self._form.rescaled(self.tall, self.expansion, problem, prepared):
            self._connect()
            yield self._solved(self.temperature, PERTURBED)

    def _expand(self, tall: TallModel) -> Expansion:
        expansion = super()._expand(tall)
        if not expansion.n_predictors:
            raise TallModelError(
                f"ScalableMH needs rows of {', '.join(map(repr, tall.observed))} that see the "
                "parameters by at most ten linear predictors each; this model has not. Use HMCECS."
            )
        return expansion

    @property
    def bounds(self) -> RowBounds:
        """Bounds at the current reference."""
        return self._deciding.bounds(self.reference, self._home.factor)

    def _reading_time(self) -> float:
        return self._deciding.bounds(self._home.reference, self._home.factor).reading.time

    def _choose(self, acceptance: str, predicted: Forecast) -> None:
        """Choose how rows decide by what that costs and accepts."""
        factorised, together, _ = predicted.accepted
        self.predicted_acceptance, self.gradients = max(factorised, together), GRADIENTS
        moving = self._moves_per_proposal(_LEFT) * self._deciding.moving_time(self.gradients)
        others = DRAW / self.transitions_per_draw + moving
        better = better_acceptance(factorised, together, self._reading_time(), others)
        self.acceptance = better if acceptance == "auto" else acceptance
        self.predicted_acceptance = predicted.accepted[_ACCEPTANCE[self.acceptance]]

    def _moves_per_proposal(self, left: float) -> int:
        """Transitions of the surrogate per proposal, if each leaves such a correlation of draws."""
        if self.given_transitions is not None:
            return self.given_transitions
        if self.kind == "nuts":
            return 1
        others = self._reading_time() + DRAW / self.transitions_per_draw
        time = self._deciding.moving_time(self.gradients)
        return most_effective_moves(self.predicted_acceptance, left, time, others)

    def _report(self) -> None:
        """Log what is predicted of proposals that rows decide on, and warn of few accepted."""
        bounds, n = self.bounds, self.n_rows
        always = len(bounds.table.always)
        whole = (
            f" and {bounds.passed:,.0f} of groups that are read as a whole" if bounds.passed else ""
        )
        rows = bounds.per_decision
        _log.info(
            f"ScalableMH: {n:,} rows of {', '.join(self.observed)}; about "
            f"{max(bounds.drawn, 0.1):,.3g} rows{whole} ({min(rows / n, 1.0):.2%}) decide on a "
            f"proposal{f', {always:,} of them always' if always else ''}; predicted acceptance "
            f"{self.predicted_acceptance:.0%} ({self.acceptance}, {bounds.kind} bounds)"
            f"{f'; the surrogate reads {len(bounds.exact):,} rows' if len(bounds.exact) else ''}"
            + (
                ". This is no small part of the data: pms.advise() compares other samplers"
                if rows > NO_SMALL_SHARE * n
                else ""
            )
        )
        if self.predicted_acceptance < FEW_ACCEPTED:
            _log.warning(
                f"ScalableMH: rows are predicted to accept only {self.predicted_acceptance:.0%} of "
                f"the proposals, which move all {len(self.active):,} parameters at once: too many "
                "for so few rows. Draws will be right, but few of them effective. HMCECS "
                "does better here."
            )

    # Chains

    def _begin(self, tune: int, draws: int):
        prepared = self._home
        super()._begin(tune, draws)
        self.underrated = self._underrated
        factor = given_factor(self.proposal, len(self.active))
        self.tuning = Tuning(
            tune, self.active, self.expansion.theta_size,
            prepared.factor if factor is None else factor, self.target_accept,
        )  # fmt: skip
        self.record = ProposalRecord(draws=draws, size=self.tall.size)
        self.gradients = GRADIENTS
        self.surrogate_transitions = self._moves_per_proposal(_LEFT)

    def _entered(self, point: PointType) -> np.ndarray:
        theta = self._theta(point)
        self._start(theta, point, self.tuning.factor)
        return theta

    def _extent(self) -> float:
        """Return how far a transition goes: the length of a trajectory, or its doublings."""
        if self.proposal == "hmc":
            return float(min(self.path_length, _MOST_STEPS / 1.2 * self.step_size))
        return float(self.max_treedepth) if self.proposal == "nuts" else 0.0

    def _transitions(
        self, theta: np.ndarray, size: int
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        reference, bounds = self.reference, self.bounds
        thetas, infos = np.empty((size, len(theta))), np.empty((size, len(INFO)))
        thetas[0] = theta
        self.step_size = given_scale(self.proposal) or float(self.tuning.step.current(self.tune))
        extent, form = self._extent(), _ACCEPTANCE[self.acceptance]
        compiled(self._dynamics)(
            address_of(self.rng), self._compiled, reference.sums(2),
            self._deciding.packed(reference), bounds.table,
            Decision(form, float(self.intensity), 1.0 / self.temperature),
            Moves(self.active, self.tuning.factor, self.step_size, extent),
            self.surrogate_transitions, self.transitions_per_draw, thetas, infos,
        )  # fmt: skip
        exceeded = infos[-1, INFO.index("exceeded")]
        if exceeded >= 0:
            self._refuse_row(int(exceeded))
        return thetas, without_crossings(dict(zip(INFO, infos.T, strict=True)))

    def _refuse_row(self, row: int):
        given = "" if isinstance(self.bound, str) else f" with bound={self.bound:g}"
        raise RuntimeError(
            f"ScalableMH: row {row:,} of {', '.join(map(repr, self.observed))} exceeds its bound"
            f"{given}, so that the draws would not be from the posterior. "
            + (
                "Give a larger bound."
                if given
                else "Please report this with the model; HMCECS needs no bounds."
            )
        )

    def _statistics(self, infos: dict[str, np.ndarray]) -> dict[str, Any]:
        exact = 2 * len(self._deciding.exact) * infos["n_steps"].astype(int)
        read, decisions = infos["rows_drawn"] + infos["rows_passed"], infos["decisions"]
        return {
            "divergences": self._divergences(infos["diverging"]),
            "rows_accepted": np.where(decisions > 0, infos["rows_accepted"], np.nan),
            "rows_read": read,
            "passes": infos["rows_passed"] / self.n_rows,
            "n_evaluations": 3 * read.astype(int) + exact,
            "step_size": self.step_size,
            "data_share": read / np.maximum(decisions, 1.0) / self.n_rows,
        }

    def _adapt(self, theta: np.ndarray, info: dict[str, float]) -> None:
        """Adapt to the surrogate, which costs no rows; move the reference if the chain has left."""
        tuning = self.tuning
        moves = self.surrogate_transitions * self.transitions_per_draw
        crossed = info["crossed"] > 0 and info["n_steps"] > moves
        tuning.add(theta, info["acceptance_rate"], 0.0, crossed=crossed)
        self.gradients += (info["n_steps"] / moves - self.gradients) / _REMEMBERED
        if not tuning.due():
            return
        # Of successive draws, and of successive proposals.
        correlation = lag_one(tuning.recent()[:, self.active])
        between = correlation ** (1.0 / self.transitions_per_draw)
        left = left_by_a_move(between, self.predicted_acceptance, self.surrogate_transitions)
        self.surrogate_transitions = self._moves_per_proposal(left)
        better = None
        if not isinstance(self.proposal, RandomWalk):
            # Independent draws that one is worth, of proposals that move by single steps.
            single = self.kind not in _TRAJECTORIES
            worth = (1.0 - correlation) / (1.0 + correlation) if single else 1.0
            better = tuning.better_factor(worth)
        if better is not None:
            tuning.factor = better
        away = self._given_reference is None and tuning.left(self.reference.theta)
        if away:
            self._recentre(self._settled(theta))
        tuning.restart(self.step_size if away or better is not None else None)

    def _recentre(self, theta: np.ndarray) -> None:
        """Take another reference, if rows have bounds there that hold."""
        reference = reference_at(self.expansion, theta, self.temperature)
        try:
            _, share = self._deciding.verify(reference, self._home.factor, self.tuning.factor)
        except TallModelError:
            return
        self.reference, self.underrated = reference, share

    # After tuning

    def _watch(self, thetas: np.ndarray, infos: dict[str, np.ndarray]) -> None:
        n = len(thetas)
        shared = {"loglik_variance": np.zeros(n), "subset_accepted": np.ones(n), "sign": np.ones(n)}
        self.record.add(thetas, infos | shared)
        self.record.add_decisions(infos)

    def _check(self) -> list[Check]:
        return check_proposals(
            self.record,
            active=self.active,
            n_rows=self.n_rows,
            underrated=self.underrated,
            temperature=self.temperature,
            tune=self.tuning.total,
            began=self.began,
            target=self.target_accept if given_scale(self.proposal) is None else 0.0,
        )
