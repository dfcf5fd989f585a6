"""Samplers that propose moves: how these are made and tuned, whatever decides about them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
from pymc.blocking import PointType
from pymc.step_methods.state import dataclass_state

from pymc_subsample.chain import arguments, points
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.method import Method, ReferredState
from pymc_subsample.chain.proposals import (
    AdaptiveMetropolis,
    Langevin,
    RandomWalk,
    as_proposal,
    proposed,
)
from pymc_subsample.chain.shared_arguments import SharedContinuous, SharedTransitions, shares
from pymc_subsample.chain.tuning import ProposalTuning, TuningState, settled
from pymc_subsample.diagnostics.checks import check_accepted, check_temperature
from pymc_subsample.diagnostics.record import MoveRecord, most_thinned
from pymc_subsample.expansion.factors import factor, scaled
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.kernels.proposals import GIVEN, LANGEVIN, RANDOM_WALK

Proposal = RandomWalk | AdaptiveMetropolis | Langevin | Callable
# Rows to read for the check of a chain, at this many draws at least and at most. A choice of time;
# fewer than two draws say nothing of their spread.
_PILOT_ROWS, _FEWEST_PILOTS, _MOST_PILOTS = 8_000_000, 2, 8


class Aims(NamedTuple):
    """What proposals are tuned to."""

    # Acceptance rates: of random walks in one dimension and in many, and of Langevin proposals
    # (Roberts and Rosenthal 2001).
    one: float = 0.44
    many: float = 0.234
    drifting: float = 0.574
    scale: float = 2.38  # Of a random walk in one dimension; over the root of their number in many.


USUAL = Aims()


def in_own_units(proposal: Any) -> bool:
    """Whether a proposal is meant in the model's own variables."""
    return (
        isinstance(proposal, RandomWalk)
        or callable(proposal)
        or getattr(proposal, "covariance", None) is not None
    )


def given_factor(proposal: Any, size: int) -> np.ndarray | None:
    """Return the factor of a proposal's own covariance."""
    given = getattr(proposal, "covariance", None)
    if given is not None:
        return np.sqrt(given)[None, :] if given.ndim == 1 else factor(given)
    return np.ones((1, size)) if isinstance(proposal, RandomWalk) else None


def given_scale(proposal: Any) -> float | None:
    """Return a proposal's own scale or step size."""
    given = getattr(proposal, "scale", getattr(proposal, "step_size", None))
    return None if given is None else float(given)


class SharedProposing(SharedTransitions, total=False):
    """Arguments of all steps that propose moves."""

    proposal: Proposal | None


@dataclass_state
class ProposingState(ReferredState):
    """Of chains that propose moves."""

    row_rng: np.random.Generator
    tuning: TuningState


@shares(ChainStep.__init__, ChainStep.__doc__)
def set_up(
    step: Any,
    vars: Sequence | None = None,
    *,
    proposal: Proposal | None = None,
    temperature: float = 1.0,
    transitions_per_draw: int = 10,  # A choice: Python takes as long as one or some of them.
    **above: Unpack[SharedContinuous],
) -> None:
    """Begin the set-up of a step that proposes moves, with proposals that adapt in tuning.

    Parameters
    ----------
    proposal : RandomWalk, AdaptiveMetropolis, Langevin or callable, optional
        How moves are proposed. A callable ``proposal(point, rng)`` gets a dict of value variables
        (PyMC's unconstrained space) and returns ``(new_point, log_factor)``, where `new_point` may
        hold only what changed and `log_factor` is ``log q(point | new) - log q(new | point)``.
        Default: `AdaptiveMetropolis()`.
    temperature : float, default 1
        Divides the log-likelihood of the subsampled rows. Anything but 1 samples another
        distribution than the posterior, and warns.
    transitions_per_draw : int, default 10
        Transitions per recorded draw, all within one compiled call.
    """
    step.temperature = arguments.temperature(temperature)
    step.transitions_per_draw = arguments.transitions(transitions_per_draw)
    step.proposal, step.aims = as_proposal(proposal), USUAL
    ChainStep.__init__(step, vars, **above)
    step.form.own &= not in_own_units(step.proposal)


def method(
    run: Callable,
    *,
    together: Callable = lambda step, infos: together(step, infos),
    recentre: Callable = lambda step, theta: recentred(step, theta),
    one_by_one: Callable[[Any], bool] = lambda step: callable(step.proposal),
    **parts: Any,
) -> Method:
    """Return the method of a sampler that proposes moves, of which `parts` are its own.

    `run`, `together` and ``one_by_one(step)`` are as `made` takes them, and `recentre` as `adapted`
    does. A run reports whether moves were "accepted" and how many rows were read ("rows_read"), or
    `statistics` and `watch` are given too.
    """
    usual: dict[str, Any] = {
        "state": ProposingState,
        "begin": begin,
        "enter": entered,
        "transitions": lambda step, theta, size: made(
            step, theta, size, run, together, one_by_one(step)
        ),
        "adapt": lambda step, theta, info: adapted(step, theta, info, recentre),
        "statistics": _statistics,
        "watch": lambda step, thetas, infos: step.record.add(
            thetas, infos["accepted"], _share(step, infos)
        ),
        "check": lambda step: [check_accepted(step.record), check_temperature(step.temperature)],
        "steady": lambda step: not one_by_one(step),
        "by_gradients": by_langevin,
    }
    return Method(**usual | parts)


def _share(step: Any, infos: dict[str, np.ndarray]) -> np.ndarray:
    return infos["rows_read"] / (step.n_rows * step.transitions_per_draw)


def _statistics(step: Any, infos: dict[str, np.ndarray]) -> dict[str, Any]:
    return {
        "n_evaluations": infos["rows_read"].astype(int),
        "data_share": _share(step, infos),
        "scaling": scaling(step),
    }


def by_langevin(step: Any) -> bool:
    """Whether moves follow gradients."""
    return isinstance(step.proposal, Langevin)


def made(
    step: Any, theta: np.ndarray, size: int, run: Callable, together: Callable, one_by_one: bool
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Make draws: these, and what their transitions report.

    ``run(step, thetas, kind, given, log_factor, k)`` makes draws of k compiled transitions each, in
    place, from the first of `thetas`. With `one_by_one` Python takes part in every transition, and
    ``together(step, infos)`` returns what several of them report as one draw's.
    """
    k, thetas = step.transitions_per_draw, np.empty((size, len(theta)))
    thetas[0] = theta
    if one_by_one:
        infos = []
        for _ in range(k):
            given, log_factor = moved_from(step, thetas[0], step.rng)
            infos.append(run(step, thetas, GIVEN, given, float(log_factor), 1))
        return thetas, together(step, infos)
    kind = LANGEVIN if by_langevin(step) else RANDOM_WALK
    return thetas, run(step, thetas, kind, theta, 0.0, k)


def together(step: Any, infos: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return what single transitions report as one draw's: means, and totals of rows."""
    totals = {name: np.sum([info[name] for info in infos], axis=0) for name in infos[0]}
    k = len(infos)
    return {name: v if name.startswith("rows") else v / k for name, v in totals.items()}


def begin(step: Any, tune: int, draws: int) -> None:
    """Start a chain."""
    step.record = MoveRecord(draws=draws, most=most_thinned(step.expansion.theta_size))
    size, aims = len(step.active), step.aims
    found = given_factor(step.proposal, size)
    if found is None:
        found = np.ones((1, size)) if step.prepared is None else step.home.factor
    target = getattr(step.proposal, "target_accept", None)
    if target is None:
        target = aims.drifting if by_langevin(step) else aims.one if size == 1 else aims.many
    step.tuning = ProposalTuning(
        tune, step.active, step.expansion.theta_size, found, target, _first_scale(step)
    )


def _first_scale(step: Any) -> float:
    size, given = len(step.active), given_scale(step.proposal)
    if given is not None:
        return given
    # 1.65: Roberts and Rosenthal 1998.
    return 1.65 / size ** (1 / 6) if by_langevin(step) else step.aims.scale / np.sqrt(size)


def entered(step: Any, point: PointType) -> np.ndarray:
    """Read a point, or start at the reference."""
    theta = points.read(step, point)
    if step.start_at_reference:
        points.start(step, theta, point, step.home.factor)
    return theta


def moved_from(step: Any, theta: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Propose from theta; a Langevin proposal without its drift."""
    if callable(step.proposal):
        new, log_factor = proposed(step.proposal, step.tall, theta, rng)
        own = {name for name, _, _ in step.layout.own}
        moved = [name for name, part in step.layout.every if np.any(new[part] != theta[part])]
        if others := [name for name in moved if name not in own]:
            raise ValueError(
                f"proposal moved {others}, but this step samples {sorted(own)} alone. Return "
                "values for these, or give the step all of vars."
            )
        return new, log_factor
    new = theta.copy()
    z = rng.standard_normal(len(step.active))
    new[step.active] += scaling(step) * scaled(step.tuning.factor, z[None])[0]
    return new, 0.0


def scaling(step: Any) -> float:
    """Scale of the proposal, or its step size."""
    fixed = not _adapts(step) or given_scale(step.proposal) is not None
    return _first_scale(step) if fixed else float(step.tuning.step.current(step.tune))


def _adapts(step: Any) -> bool:
    return isinstance(step.proposal, AdaptiveMetropolis | Langevin)


def adapted(step: Any, theta: np.ndarray, info: dict[str, float], recentre: Callable) -> None:
    """Adapt proposals, and the reference by ``recentre(step, theta)`` if the chain has left it."""
    if not _adapts(step):
        return
    tuning = step.tuning
    tuning.add(theta, info["acceptance_rate"], info.get("loglik_ratio_variance", 0.0))
    if not tuning.due():
        return
    better = tuning.better_factor()
    if better is not None:
        tuning.factor = better
    at = step.reference
    if at is not None and not step.given_reference and tuning.left(at.theta):
        recentre(step, settled(step, theta))
    tuning.restart(None if better is None else scaling(step))


def recentred(step: Any, theta: np.ndarray) -> None:
    """Take another reference."""
    step.reference = reference_at(step.expansion, theta, step.temperature)


def pilots(step: Any) -> list[np.ndarray]:
    """Draws at which to check the chain: fewer where a pass over the rows takes long."""
    count = np.clip(_PILOT_ROWS // step.n_rows, _FEWEST_PILOTS, _MOST_PILOTS)
    draws = step.record.thinned
    places = np.linspace(0, len(draws), _MOST_PILOTS + 1)[1:].astype(int)
    return [draws[at - 1] for at in np.unique(places[places > 0])][-int(count) :]
