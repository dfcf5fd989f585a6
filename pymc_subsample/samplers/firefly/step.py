"""Firefly Monte Carlo as a PyMC step method."""

import logging
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, Unpack

import numpy as np
from pymc.blocking import PointType
from pymc.step_methods.state import dataclass_state

from pymc_subsample.bounds.lower_bounds import KINDS, bounded_expansion
from pymc_subsample.chain import arguments, finding_reference, model_compilation, moves
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.integrating import sampled
from pymc_subsample.chain.moves import Proposal, ProposingState
from pymc_subsample.chain.multimodality import warn_of_modes
from pymc_subsample.chain.progress import doing
from pymc_subsample.chain.proposals import Langevin, require_size
from pymc_subsample.chain.setup import Preparation
from pymc_subsample.chain.shared_arguments import SharedTransitions
from pymc_subsample.chain.tuning import ProposalTuning
from pymc_subsample.compiled.functions import address_of, building_graphs
from pymc_subsample.diagnostics import checks
from pymc_subsample.diagnostics.checks import Finding
from pymc_subsample.diagnostics.record import most_thinned
from pymc_subsample.expansion import Expansion, expand
from pymc_subsample.expansion.factors import scaled
from pymc_subsample.expansion.reference import Reference, reference_at
from pymc_subsample.expansion.undefined import refuse_undefined
from pymc_subsample.kernels.proposals import Proposing
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.model.errors import differentiated
from pymc_subsample.samplers.firefly import kernel as kernel
from pymc_subsample.samplers.firefly.checks import LightRecord, brightness, check_lights
from pymc_subsample.samplers.firefly.kernel import EXPLICIT, IMPLICIT, INFO, Lights, transitions
from pymc_subsample.samplers.firefly.sampler import FIREFLY_MC

_log = logging.getLogger("pymc.subsample")

_transitions = transitions.get_overload(transitions.signatures[0])

_BRIGHTNESS = {"explicit": EXPLICIT, "implicit": IMPLICIT}
# By which parameters may change on the way through the model's variables and back. A choice: ten
# thousand times the rounding of doubles, and still far below what bounds notice.
_ROUNDING = 1e-10
# Points around the reference where the set-up counts bright rows, and where it verifies bounds. A
# choice: passes over the rows. Nothing is ten standard deviations away.
_PILOT, _FAR = 4, 10.0
# Dark rows to look at per transition: so many at least, or so many times the bright ones. And the
# share of bright ones that are drawn anew. Choices between lights that stand still and rows that
# are read for nothing.
_LOOKED_AT, _PER_BRIGHT = 2.0, 2.0
_RESAMPLED = 0.1


@dataclass_state
class FireflyMCState(ProposingState):
    """Everything the next draw depends on. The rows themselves are taken anew from the data."""

    bright: np.ndarray
    bright_at: np.ndarray
    bound: str | float = field(metadata={"frozen": True})
    brightness: str = field(metadata={"frozen": True})
    rate: float = field(metadata={"frozen": True})


def _given_rate(
    brightness: str, dark_to_bright: float | None, resample_fraction: float | None
) -> float | None:
    values = {"dark_to_bright": dark_to_bright, "resample_fraction": resample_fraction}
    used = "resample_fraction" if brightness == "explicit" else "dark_to_bright"
    [other] = values.keys() - {used}
    if values[other] is not None:
        raise ValueError(
            f"{other} is not used with brightness={brightness!r}, whose brightness is "
            f"updated at the rate {used}."
        )
    if values[used] is None:
        return None
    return arguments.share(used, values[used])


def _functions(step: "FireflyMC") -> tuple[str | None, ...]:
    return kernel.FUNCTIONS if moves.by_langevin(step) else (*kernel.FUNCTIONS[:-1], None)


def _connected(step: "FireflyMC") -> None:
    step.bright_rows = np.zeros(step.n_rows, dtype=np.uint8)


def _expand(step: "FireflyMC", tall: TallModel) -> Expansion:
    expansion, step.bound_taken = bounded_expansion(tall, step.bound)
    return expansion


# Set-up


def _prepare(step: "FireflyMC") -> Preparation:
    """Find the mode with the log-likelihood's own curvature, and sum the bounds there."""
    with building_graphs(), differentiated(step.tall, METHOD.without_gradient):
        problem, found = finding_reference.find(step, temperature=step.temperature)
        return _bounded(step, problem.possible(found))


def _taylor(step: "FireflyMC") -> Expansion:
    with doing("compiling the log-likelihood"), step.workers.in_use():
        taylor = expand(step.tall, 2)
    model_compilation.refuse_steps(step, taylor)
    taylor.move_as(step.expansion)
    return taylor


def _bounded(step: "FireflyMC", prepared: Preparation) -> Preparation:
    """Sum the bounds, in place of the log-likelihoods, at the modes."""
    at = reference_at(step.expansion, prepared.reference.theta, step.temperature)
    refuse_undefined(step.expansion, at)
    others = tuple(_bounded(step, other) for other in prepared.others)
    return replace(prepared, reference=at, others=others)


@doing("verifying the bounds on all rows")
def _verify(step: "FireflyMC", prepared: Preparation) -> float:
    """Verify the bounds on all rows at some points; return how many rows will be bright."""
    z = step.rng.standard_normal((2 * _PILOT, len(step.active)))
    z[_PILOT:] *= _FAR
    points = np.tile(prepared.reference.theta, (len(z), 1))
    points[:, step.active] += scaled(prepared.factor, z)
    found = brightness(step.expansion, prepared.reference, points, step.temperature)
    if not found.excess <= 1.0:
        raise TallModelError(
            f"What was taken for a lower bound on the log-likelihood of "
            f"{', '.join(map(repr, step.likelihood))} ({step.bound_taken}) exceeds it in row "
            f"{found.row}. Give another bound, or use another step (HMCECS, pm.NUTS)."
        )
    expected = float(found.expected[:_PILOT].mean())
    _log.info(
        f"FireflyMC: {sampled(step)}; bounds of the kind "
        f"{step.bound_taken!r}; about {expected:.3g} rows will be bright"
    )
    return expected


# Chains


def _begin(step: "FireflyMC", tune: int, draws: int) -> None:
    moves.begin(step, tune, draws)
    step.record = LightRecord(draws=draws, most=most_thinned(step.expansion.theta_size))
    _darken(step)


def _darken(step: "FireflyMC") -> None:
    """Forget the brightness: it is drawn anew before the next transition."""
    step.bright, step.bright_at = np.empty(0, dtype=np.int64), np.empty(0)


def _recentre(step: "FireflyMC", theta: np.ndarray) -> None:
    moves.recentred(step, theta)
    _darken(step)


def _enter(step: "FireflyMC", point: PointType) -> np.ndarray:
    theta = moves.entered(step, point)
    # Brightness belongs to parameters that meet the data: another step may have moved those.
    phi, at = step.expansion.parameters(theta)[0], step.bright_at
    if len(phi) != len(at) or not np.allclose(phi, at, _ROUNDING, _ROUNDING):
        _darken(step)
    return theta


def _together(step: "FireflyMC", infos: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    darkened = np.sum([i["darkened"] for i in infos], axis=0)
    lowest = np.min([i["lowest"] for i in infos], axis=0)
    return moves.together(step, infos) | {"darkened": darkened, "lowest": lowest}


def run(
    step: "FireflyMC", thetas: np.ndarray, kind: int, given: np.ndarray, log_factor: float, k: int
) -> dict[str, np.ndarray]:
    """Make draws of k compiled transitions each, in place, from the first of `thetas`."""
    infos, at = np.empty((len(thetas), len(INFO))), step.reference
    step.bright = _transitions(
        address_of(step.rng), address_of(step.row_rng), step.compiled, at.sums(2),
        Lights(
            step.bright_rows, step.bright, int(not len(step.bright_at)),
            _BRIGHTNESS[step.brightness], float(step.rate),
        ),
        Proposing(kind, step.active, step.tuning.factor, moves.scaling(step), 0, given, log_factor),
        1.0 / step.temperature, thetas, k, infos,
    )  # fmt: skip
    step.bright_at = step.expansion.parameters(thetas[-1])[0]
    return dict(zip(INFO, infos.T, strict=True))


def _statistics(step: "FireflyMC", infos: dict[str, np.ndarray]) -> dict[str, Any]:
    # A row that is looked at is evaluated three times, once of them for its bound; a bright one
    # once for each proposal, or with gradients at both ends four times.
    per_move = 4 if moves.by_langevin(step) else 1
    rows = infos["n_bright"] + infos["rows_read"] / step.transitions_per_draw
    evaluations = 3 * infos["rows_read"] + per_move * infos["rows_moved"]
    return {
        "batch_size": rows,
        "n_evaluations": evaluations.astype(int),
        "scaling": moves.scaling(step),
        "data_share": rows / step.n_rows,
    }


# After tuning


def _watch(step: "FireflyMC", thetas: np.ndarray, infos: dict[str, np.ndarray]) -> None:
    step.record.add(thetas, infos["accepted"], infos["rows_read"] / step.n_rows)
    step.record.add_lights(infos)


def _check(step: "FireflyMC") -> list[Finding]:
    found = brightness(step.expansion, step.reference, moves.pilots(step), step.temperature)
    return check_lights(
        step.record, found, temperature=step.temperature, n_rows=step.n_rows,
        saving=checks.sentence(_savings(step)),
    )  # fmt: skip


def _savings(step: "FireflyMC") -> list[str]:
    left = ['use brightness="implicit"'] if step.brightness == "explicit" else []
    left += ['use bound="auto"'] if step.bound != "auto" else []
    left += ["leave reference=None"] if step.given_reference else []
    partly = len(step.active) < step.tall.size
    left += ["sample all variables with this step"] if partly else []
    return [*left, "use pms.ScalableMH(), which is exact too", "use HMCECS, pm.NUTS or nutpie"]


METHOD = moves.method(
    # It has gradients of its bounds; those of the rows' log-likelihoods are looked at in `_taylor`.
    run, together=_together, recentre=_recentre, state=FireflyMCState, functions=_functions,
    begin=_begin, enter=_enter, statistics=_statistics, watch=_watch, check=_check,
    by_gradients=lambda step: False, without_gradient="FireflyMC needs one for its bounds.",
    estimates=False, expand=_expand, taylor=_taylor, connected=_connected, anew=("bright_rows",),
)  # fmt: skip


class FireflyMC(ChainStep, shares=moves.set_up):
    r"""Firefly Monte Carlo: exact, with rows that are read only while they are bright.

    Row i has a likelihood :math:`L_i` and a lower bound :math:`B_i` of it whose product over rows
    is known beforehand. A binary variable per row, its brightness, is added to the model such that

    .. math:: p(\theta, z) \propto p(\theta) \prod_i B_i(\theta)
              \prod_{i:\,z_i = 1} \Bigl(\frac{L_i(\theta)}{B_i(\theta)} - 1\Bigr)

    whose marginal in theta is the posterior, without approximation; given the brightness, only
    bright rows are read [1]_. Bounds touch the likelihoods at the posterior mode ("MAP-tuned"), so
    that few rows are bright.

    Parameters
    ----------
    vars : sequence of variables, optional
        Continuous free variables to sample. Default: all of the model. Where other steps move
        parameters that meet the data, all brightness is drawn anew at every draw, from all rows.
    bound : {"auto", "tangent", "softmax", "curvature"} or float
        The lower bounds, quadratic in a row's linear predictors. "tangent": Jaakkola and Jordan's
        for logistic rows (Bernoulli, Binomial), and the tangent in the squared residual for
        Student-t rows of known nu and scale. "softmax": Böhning's, for Categorical and Multinomial
        rows, sets of choices, and logistic rows summed over states. "curvature": from the least
        second derivative in the predictor, where that is bounded. "auto" takes the first of these
        that the model has.
        A number c is a lower bound of your own on the second derivative of every row's
        log-likelihood in its linear predictor (on all eigenvalues, where it has several). All are
        verified on some rows at set-up, on all rows at a few points, and at the end of a chain.
    brightness : {"implicit", "explicit"}
        How it is updated. "implicit": by Metropolis-Hastings; every bright row is proposed to
        go dark, a dark one to become bright with a small probability, so that few are read.
        "explicit": a random share of all rows is drawn from its conditional distribution.
    dark_to_bright : float, optional
        Probability that a dark row is proposed to become bright, for implicit updates. Default:
        twice as many proposals per transition as there are bright rows, at least two.
    resample_fraction : float, optional
        Share of all rows whose brightness is drawn per transition, for explicit updates.
        Default: 0.1.
    proposal : RandomWalk, AdaptiveMetropolis, Langevin or callable, optional
        How moves are proposed. The gradient of `Langevin` is exact, given the brightness; its
        `batch_size` is not used. A callable ``proposal(point, rng)`` gets a dict of value variables
        (PyMC's unconstrained space) and returns ``(new_point, log_factor)``, where `new_point` may
        hold only what changed and `log_factor` is ``log q(point | new) - log q(new | point)``.
        Default: `Langevin()`, since gradients cost no more rows than there are bright ones.
    reference : dict, step or DataTree, optional
        Where the bounds touch the likelihoods: untransformed values by variable name, for every
        free variable, or an earlier run of the model, by its idata (posterior means) or its step.
        Default: the posterior mode, found automatically.
    transitions_per_draw : int, default 10
        Transitions per recorded draw, all within one compiled call. Each updates brightness,
        then parameters.

    Attributes
    ----------
    bound_taken : str
        Which of the bounds was taken; "given" for a number.
    expected_bright : float
        Number of bright rows to be expected at draws from the posterior.
    rate : float
        `dark_to_bright` or `resample_fraction`, as given or chosen.

    Raises
    ------
    TallModelError
        If the model's rows cannot be subsampled, or have no lower bound; the message names the
        variable and the bounds that there are.
    ValueError, TypeError
        If an argument is out of range or of the wrong kind, or a given bound is none.

    Notes
    -----
    Residuals :math:`d = \log L - \log B` of about 1e-16 may come out negative by rounding. Such a
    row stays dark, and a proposal at which a bright row would have one is rejected: its density
    there is zero but for that rounding.

    References
    ----------
    .. [1] D. Maclaurin and R. P. Adams (2014). Firefly Monte Carlo: exact MCMC with subsets of
       data. UAI, sections 2 and 3.

    Examples
    --------
    >>> with model:
    ...     idata = pm.sample(step=pms.FireflyMC(), chains=4)
    >>> idata["sample_stats"]["n_bright"].mean()  # rows that were read
    """

    name = "firefly_mc"
    sampler, method = FIREFLY_MC, METHOD
    proposal: Proposal
    transitions_per_draw: int
    reference: Reference
    prepared: Preparation
    tuning: ProposalTuning
    record: LightRecord
    bright_rows: np.ndarray
    bright: np.ndarray
    bright_at: np.ndarray
    bound_taken: str

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        bound: str | float = "auto",
        brightness: str = "implicit",
        dark_to_bright: float | None = None,
        resample_fraction: float | None = None,
        proposal: Proposal | None = None,
        **above: Unpack[SharedTransitions],
    ) -> None:
        self.bound = arguments.derivative_bound(
            bound, ("auto", *KINDS), "a lower bound on the second derivative"
        )
        self.brightness = arguments.choice("brightness", brightness, tuple(_BRIGHTNESS))
        given = _given_rate(self.brightness, dark_to_bright, resample_fraction)
        moves.set_up(self, vars, proposal=Langevin() if proposal is None else proposal, **above)
        model_compilation.attach(self, 2)
        require_size(self.proposal, len(self.active))
        self.prepared = _prepare(self)
        warn_of_modes(self)
        self.expected_bright = _verify(self, self.prepared)
        looked_at = max(_LOOKED_AT, _PER_BRIGHT * self.expected_bright) / self.n_rows
        automatic = _RESAMPLED if self.brightness == "explicit" else min(looked_at, 0.5)
        self.rate = automatic if given is None else given
        self.begin(tune=0, draws=0)
