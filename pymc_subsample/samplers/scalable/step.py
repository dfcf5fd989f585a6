"""Scalable Metropolis-Hastings as a PyMC step method."""

import logging
from collections.abc import Iterator, Sequence
from typing import Unpack

from pytensor.graph.traversal import toposort

from pymc_subsample.bounds.remainders import BOUNDS, RowBounds
from pymc_subsample.bounds.strata import UnboundedError
from pymc_subsample.bounds.thinning import DRAW, GRADIENTS, better_acceptance
from pymc_subsample.chain import arguments, finding_reference
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.integrating import each, sampled
from pymc_subsample.chain.model_compilation import attach, connect
from pymc_subsample.chain.moves import USUAL, in_own_units
from pymc_subsample.chain.multimodality import warn_of_modes
from pymc_subsample.chain.nuts_instead import NO_SMALL_SHARE
from pymc_subsample.chain.progress import doing
from pymc_subsample.chain.proposals import (
    AdaptiveMetropolis,
    Langevin,
    RandomWalk,
    as_surrogate_proposal,
    require_size,
)
from pymc_subsample.chain.setup import Preparation, Problem
from pymc_subsample.chain.shared_arguments import SharedContinuous
from pymc_subsample.chain.sharing import ready
from pymc_subsample.chain.sizing import instead_of_bounds
from pymc_subsample.chain.tuning import Tuning
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.kernels.estimates import PERTURBED
from pymc_subsample.model import TallModelError
from pymc_subsample.samplers.hmc_ecs.checks import TARGET_ACCEPT
from pymc_subsample.samplers.scalable.chain import (
    ACCEPTANCE,
    LEFT,
    METHOD,
    TRAJECTORIES,
    moves_per_proposal,
    reading_time,
)
from pymc_subsample.samplers.scalable.checks import ProposalRecord
from pymc_subsample.samplers.scalable.deciding import Deciding
from pymc_subsample.samplers.scalable.forecast import Forecast
from pymc_subsample.samplers.scalable.sampler import FEW_ACCEPTED, SCALABLE_MH

_log = logging.getLogger("pymc.subsample")

type SurrogateProposal = str | Langevin | AdaptiveMetropolis | RandomWalk
# Compiled dynamics, and the acceptance rates of many parameters and of one that step sizes are
# tuned to.
_MOVES = {
    "hmc": ("hmc", TARGET_ACCEPT, TARGET_ACCEPT),
    "nuts": ("nuts", TARGET_ACCEPT, TARGET_ACCEPT),
    "Langevin": ("hmc", USUAL.drifting, USUAL.drifting),
    "AdaptiveMetropolis": ("random-walk", USUAL.many, USUAL.one),
    "RandomWalk": ("random-walk", USUAL.many, USUAL.one),
}
_BOUNDED = "a bound on the third derivative (with control_variate_order=3 the fourth)"


def _choose(step: "ScalableMH", acceptance: str, predicted: Forecast) -> None:
    """Choose how rows decide by what that costs and accepts."""
    factorised, together, _ = predicted.accepted
    step.predicted_acceptance, step.gradients = max(factorised, together), GRADIENTS
    moving = moves_per_proposal(step, LEFT) * step.deciding.moving_time(step.gradients)
    others = DRAW / step.transitions_per_draw + moving
    better = better_acceptance(factorised, together, reading_time(step), others)
    step.acceptance = better if acceptance == "auto" else acceptance
    step.predicted_acceptance = predicted.accepted[ACCEPTANCE[step.acceptance]]


def _report(step: "ScalableMH") -> None:
    """Log what is predicted of proposals that rows decide on, and warn of few accepted."""
    bounds, n = step.bounds, step.n_rows
    always = len(bounds.table.always)
    whole = f" and {bounds.passed:,.0f} of groups that are read as a whole" if bounds.passed else ""
    rows, exact = bounds.per_decision, len(bounds.exact)
    share = f" ({min(rows / n, 1.0):.2%})" if rows > 1e-4 * n else ""
    read = f"about {bounds.drawn:,.3g}{whole} on average{share}"
    if rows < 1.0:
        read = f"fewer than one on average ({max(rows, 0.01):.1g})"
    _log.info(
        f"ScalableMH: {sampled(step)}; a proposal reads {read}"
        f"{f', {always:,} of them always' if always else ''}; the {each(step)} are predicted to "
        f"accept {step.predicted_acceptance:.0%} of the proposals ({step.acceptance}, "
        f"{bounds.kind} bounds)"
        f"{f'; the surrogate reads {exact:,} {each(step)}' if exact else ''}"
        + (
            ". This is a large part of the data: pms.advise() compares other samplers"
            if rows > NO_SMALL_SHARE * n
            else ""
        )
    )
    if step.predicted_acceptance < FEW_ACCEPTED:
        _log.warning(
            f"ScalableMH: rows are predicted to accept only {step.predicted_acceptance:.0%} of "
            f"the proposals, which move all {len(step.active):,} parameters at once: too many "
            "for so few rows. The draws are exact, but few of them will be effective. Use HMCECS."
        )


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
        reads more than a row per proposal, unless decisions are quick and accept nine proposals
        in ten as they are; where decisions take little longer; and where the sums take ten seconds
        or so at most.
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
    sampler, method = SCALABLE_MH, METHOD
    reference: Reference
    tuning: Tuning
    record: ProposalRecord
    step_size: float
    underrated: float
    gradients: float
    surrogate_transitions: int

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        acceptance: str = "auto",
        proposal: SurrogateProposal = "auto",
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
        acceptance = arguments.choice("acceptance", acceptance, ("auto", *ACCEPTANCE))
        proposal = as_surrogate_proposal(proposal, ("auto", *TRAJECTORIES), target_accept)
        self.given_transitions = arguments.count(
            "surrogate_transitions", surrogate_transitions, auto=True
        )
        self.bound = arguments.derivative_bound(bound, BOUNDS, _BOUNDED, least=0.0)
        self.intensity = arguments.intensity(intensity)
        order = arguments.decisive_order(control_variate_order)
        self.max_treedepth = arguments.treedepth(max_treedepth)
        if target_accept is not None:
            arguments.between("target_accept", target_accept, 0.0, 1.0)
        self.path_length = arguments.path_length(path_length)
        self.temperature = arguments.temperature(temperature)
        self.transitions_per_draw = arguments.transitions(transitions_per_draw)
        super().__init__(vars, **above)
        self.form.own &= not in_own_units(proposal)
        attach(self, 2)
        require_size(proposal, len(self.active))
        if proposal == "auto":
            curved = self.expansion.effects is not None and path_length is None
            proposal = "nuts" if curved else "hmc"
        self.proposal = proposal
        self.kind = proposal if isinstance(proposal, str) else type(proposal).__name__
        self.dynamics, many, one = _MOVES[self.kind]
        ready(self)
        usual = one if len(self.active) == 1 else many
        given = getattr(proposal, "target_accept", target_accept)
        self.target_accept = usual if given is None else given
        beside = self.like  # a step that needs no bounds
        problem, self.prepared = finding_reference.find(self, temperature=self.temperature)
        with doing("bounding what the expansions leave of the rows"):
            self.deciding = Deciding(
                self.expansion, self.active, self.bound, self.intensity, self.temperature,
                operations=len(list(toposort(self.tall.batch.outputs))), patience=self.patience,
            )  # fmt: skip
            try:
                found = self.deciding.choose(order, self.prepared.at_modes)
            except UnboundedError as error:
                instead = "Use HMCECS."
                if beside is None:
                    instead = instead_of_bounds(_as_hmc_ecs(self, problem, self.prepared))
                raise TallModelError(f"{error} {instead}") from error
        self.control_variate_order = self.deciding.order
        self.compiled = self.deciding.model
        self.found_underrated = max(share for _, share in found)
        _choose(self, acceptance, found[0][0])
        self.begin(tune=0, draws=0)
        _report(self)
        warn_of_modes(self)

    @property
    def bounds(self) -> RowBounds:
        """Bounds at the current reference."""
        return self.deciding.bounds(self.reference, self.home.factor)


def _as_hmc_ecs(
    step: ScalableMH, problem: Problem, prepared: Preparation
) -> Iterator[tuple[Problem, Preparation]]:
    """Set up as another step would: on other scales too, after which this step is of no use."""
    step.prepared = None
    yield problem, prepared
    if step.form.rescaled(step.tall, step.expansion, problem, prepared):
        connect(step)
        yield finding_reference.solved(step, step.temperature, PERTURBED)
