"""HMC with energy-conserving subsampling as a PyMC step method."""

import logging
from collections.abc import Sequence
from typing import Any, Unpack

from pymc_subsample.chain import arguments, finding_reference
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.integrating import each, sampled
from pymc_subsample.chain.model_compilation import attach
from pymc_subsample.chain.multimodality import warn_of_modes
from pymc_subsample.chain.nuts_instead import Beside, beside_all_rows
from pymc_subsample.chain.shared_arguments import SharedContinuous
from pymc_subsample.chain.sharing import ready
from pymc_subsample.chain.sizing import Choice, check_blocks, choose, predicted_variance
from pymc_subsample.chain.tuning import Tuning
from pymc_subsample.diagnostics.checks import amount, remedies, sentence
from pymc_subsample.diagnostics.record import ChainRecord
from pymc_subsample.expansion.estimators import (
    FEWEST_BLOCKS,
    MOST_BLOCKS,
    VARIANCE_BOUND,
    ResidualMoments,
)
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.kernels.estimates import BLOCK_POISSON, PERTURBED
from pymc_subsample.kernels.model import MINIBATCH
from pymc_subsample.model import TallModelError
from pymc_subsample.samplers.hmc_ecs.adaptation import Pace, also
from pymc_subsample.samplers.hmc_ecs.chain import DYNAMICS, METHOD
from pymc_subsample.samplers.hmc_ecs.checks import TARGET_ACCEPT
from pymc_subsample.samplers.hmc_ecs.sampler import HMCECS as SAMPLER
from pymc_subsample.samplers.hmc_ecs.subsample import ESTIMATORS, Subsample

_log = logging.getLogger("pymc.subsample")


def _report(step: "HMCECS") -> None:
    """Log what the set-up chose, and warn of what it could not achieve."""
    subsample_size, n = step.subsample_size, step.n_rows
    variance = predicted_variance(step.kind, step.moments, subsample_size, step.temperature)
    path = [] if step.expansion.linear else ["no linear predictors"]
    if (limited := step.expansion.limited) is not None:
        path += [f"control variates of order {step.control_variate_order}: {limited}"]
    blocks = "1 block" if step.n_blocks == 1 else f"{step.n_blocks} blocks"
    may_change = step.given["subsample_size"] is None and not step.given["reference"]
    told = step.exact or _log.isEnabledFor(logging.INFO)
    beside = beside_all_rows(step) if told else Beside()
    if step.exact and beside.use:
        raise TallModelError(
            f"No subsample of the {sampled(step)} is large enough: what their expansions leave "
            f"takes all of them{beside.said}."
        )
    subsample = (
        f"{'starting with a ' * may_change}subsample of "
        f"{'about ' * (step.kind == BLOCK_POISSON)}{subsample_size:,} {each(step)} "
        f"({subsample_size / n:.2%}) in {blocks}{also(step)}; "
        f"predicted variance of the log-likelihood estimate {amount(variance)} (at most "
        f"{VARIANCE_BOUND:g} is good)"
    )
    if step.exact:
        why = f" ({found.why})" if isinstance(found := step.home, Choice) and found.why else ""
        subsample = (
            f"no subsample is large enough{why}: all {each(step)} are read, without approximation"
        )
    how = f" ({', '.join(path)})" if path else ""
    _log.info(f"HMCECS: {sampled(step)}{how}; {subsample}{beside.said}")
    parts = subsample_size // MINIBATCH if step.kind == BLOCK_POISSON else subsample_size
    few = min(FEWEST_BLOCKS, parts)
    if step.given["n_blocks"] is None and step.n_blocks < few:
        # Multiples of ten have divisors.
        near = min(round(subsample_size / 10), n // 10) * 10
        _log.info(
            f"HMCECS: subsample_size={subsample_size} has no divisor from {FEWEST_BLOCKS} to "
            f"{MOST_BLOCKS}, so {subsample_size // step.n_blocks} {each(step)} are refreshed at "
            f"once, which is accepted less often. subsample_size={near} divides well."
        )
    warn_of_modes(step)
    if not variance <= VARIANCE_BOUND:
        _log.warning(
            f"HMCECS: the log-likelihood estimate is predicted to be too noisy, with a "
            f"variance of {amount(variance)} (should be at most {VARIANCE_BOUND:g}). "
            + sentence(
                remedies(
                    subsample_size,
                    step.largest,
                    step.expansion.raisable,
                    step.given["reference"],
                )
            )
        )


class HMCECS(ChainStep):
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
    sampler, method = SAMPLER, METHOD
    reference: Reference
    control_variate_order: int
    tuning: Tuning
    record: ChainRecord
    moments: ResidualMoments
    subsample: Subsample
    subsample_size: int
    n_blocks: int
    step_size: float
    pace: Pace
    given: dict[str, Any]  # What the user chose.

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        estimator: str = "perturbed",
        kernel: str = "auto",
        subsample_size: int | str = "auto",
        n_blocks: int | str = "auto",
        control_variate_order: int | str = "auto",
        target_accept: float = TARGET_ACCEPT,
        path_length: float | None = None,
        max_treedepth: int = 10,
        transitions_per_draw: int = 1,
        temperature: float = 1.0,
        **above: Unpack[SharedContinuous],
    ) -> None:
        self.estimator = arguments.choice("estimator", estimator, tuple(ESTIMATORS))
        kernel = arguments.choice("kernel", kernel, ("auto", *DYNAMICS))
        self.max_treedepth = arguments.treedepth(max_treedepth)
        order = arguments.order(control_variate_order, "HMCECS", plain=False)
        self.target_accept = arguments.between("target_accept", target_accept, 0.0, 1.0)
        self.path_length = arguments.path_length(path_length)
        self.temperature = arguments.temperature(temperature)
        self.transitions_per_draw = arguments.transitions(transitions_per_draw)
        given = arguments.count("subsample_size", subsample_size, auto=True, smallest=2)
        blocks = arguments.count("n_blocks", n_blocks, given, "rows of the subsample", auto=True)
        check_blocks(self.kind, given, blocks)
        super().__init__(vars, **above)
        attach(self, order)
        self.control_variate_order = self.expansion.order
        if kernel == "auto":
            curved = self.expansion.effects is not None and path_length is None
            kernel = "nuts" if curved else "hmc"
        self.kernel = kernel
        ready(self)
        arguments.count("subsample_size", given or 1, self.n_rows)
        arguments.count("n_blocks", blocks or 1, self.n_rows)
        self.given = {
            "reference": self.given_reference is not None,
            "subsample_size": given,
            "n_blocks": blocks,
        }
        found = finding_reference.find(self, temperature=self.temperature, kind=self.kind)
        self.prepared = choose(*found, given, blocks)
        self.begin(tune=0, draws=0)
        _report(self)

    @property
    def kind(self) -> int:
        """The estimator, by its number."""
        return ESTIMATORS[self.estimator]

    @property
    def largest(self) -> int:
        """The largest subsample that there is."""
        n = self.n_rows - len(self.subsample.always)
        return n // MINIBATCH * MINIBATCH if self.kind == BLOCK_POISSON else n

    @property
    def exact(self) -> bool:
        """Whether all rows are read; see `sizing.all_rows`."""
        return len(self.subsample.always) == self.n_rows - 1

    @property
    def rows_read(self) -> int:
        """Rows that an estimate reads."""
        return self.n_rows if self.exact else self.subsample_size + len(self.subsample.always)

    @property
    def share(self) -> float:
        """Share of the rows that an estimate reads."""
        return self.rows_read / self.n_rows

    @property
    def may_cover(self) -> bool:
        """Whether tuning may take more rows for draws in the tails."""
        return self.kind == PERTURBED and not self.given["reference"]

    @property
    def may_resize(self) -> bool:
        """Whether tuning may change the number of rows."""
        return self.may_cover and self.given["subsample_size"] is None
