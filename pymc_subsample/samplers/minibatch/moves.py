"""Metropolis-Hastings steps: what proposals need, whatever decides about them."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Unpack

import numpy as np
from pymc.blocking import PointType
from pymc.step_methods.state import dataclass_state

from pymc_subsample.chain import arguments
from pymc_subsample.chain.declarations import ReferredState
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.signatures import SharedContinuous, SharedTransitions
from pymc_subsample.chain.tuning import ProposalTuning, TuningState
from pymc_subsample.diagnostics.record import MoveRecord, most_kept
from pymc_subsample.expansion.factors import factor, scaled
from pymc_subsample.expansion.reference import reference_at
from pymc_subsample.kernels.proposals import GIVEN, LANGEVIN, RANDOM_WALK
from pymc_subsample.samplers.minibatch.proposals import (
    AdaptiveMetropolis,
    Langevin,
    RandomWalk,
    as_proposal,
    proposed,
)

Proposal = RandomWalk | AdaptiveMetropolis | Langevin | Callable
# Rows to read for the check of a chain, at this many draws at least and at most.
_PILOT_ROWS, _FEWEST_PILOTS, _MOST_PILOTS = 8_000_000, 2, 8


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


class ProposingStep(ChainStep):
    """A step that proposes moves, with proposals that adapt in tuning.

    Subclasses run the transitions, and say what is recorded and checked.

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

    # Optimal acceptance rates: random walk in one dimension and in many, Langevin.
    _targets: ClassVar[tuple[float, float, float]] = (0.44, 0.234, 0.574)
    _scale: ClassVar[float] = 2.38

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        proposal: Proposal | None = None,
        temperature: float = 1.0,
        transitions_per_draw: int = 10,
        **above: Unpack[SharedContinuous],
    ) -> None:
        self.temperature = arguments.temperature(temperature)
        self.transitions_per_draw = arguments.transitions(transitions_per_draw)
        self.proposal: Proposal = as_proposal(proposal)
        super().__init__(vars, **above)
        self._form.own &= not in_own_units(self.proposal)

    def _transitions(
        self, theta: np.ndarray, size: int
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        k, thetas = self.transitions_per_draw, np.empty((size, len(theta)))
        thetas[0] = theta
        if self._one_by_one:
            infos = []
            for _ in range(k):
                given, log_factor = self._moved_from(thetas[0], self.rng)
                infos.append(self._run(thetas, GIVEN, given, float(log_factor), 1))
            return thetas, self._together(infos)
        kind = LANGEVIN if isinstance(self.proposal, Langevin) else RANDOM_WALK
        return thetas, self._run(thetas, kind, theta, 0.0, k)

    def _run(
        self, thetas: np.ndarray, kind: int, given: np.ndarray, log_factor: float, k: int
    ) -> dict[str, np.ndarray]:
        """Make draws of k compiled transitions each, in place, from the first of `thetas`."""
        raise NotImplementedError

    def _together(self, infos: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Return what single transitions report as one draw's: means, and totals of rows."""
        totals = {name: np.sum([info[name] for info in infos], axis=0) for name in infos[0]}
        k = len(infos)
        return {name: v if name.startswith("rows") else v / k for name, v in totals.items()}

    # Chains

    def _begin(self, tune: int, draws: int) -> None:
        super()._begin(tune, draws)
        self.record = MoveRecord(draws=draws, most=most_kept(self.expansion.theta_size))
        size, langevin = len(self.active), isinstance(self.proposal, Langevin)
        factor = given_factor(self.proposal, size)
        if factor is None:
            factor = np.ones((1, size)) if self.prepared is None else self._home.factor
        one, many, drifting = self._targets
        target = getattr(self.proposal, "target_accept", None)
        if target is None:
            target = drifting if langevin else one if size == 1 else many
        self.tuning = ProposalTuning(
            tune, self.active, self.expansion.theta_size, factor, target, self._first_scale()
        )

    def _first_scale(self) -> float:
        size, given = len(self.active), given_scale(self.proposal)
        if given is not None:
            return given
        langevin = isinstance(self.proposal, Langevin)
        return 1.65 / size ** (1 / 6) if langevin else self._scale / np.sqrt(size)

    @property
    def _adapts(self) -> bool:
        return isinstance(self.proposal, AdaptiveMetropolis | Langevin)

    def _entered(self, point: PointType) -> np.ndarray:
        theta = self._theta(point)
        if self.start_at_reference:
            self._start(theta, point, self._home.factor)
        return theta

    @property
    def _one_by_one(self) -> bool:
        """Whether Python code takes part in every transition."""
        return callable(self.proposal)

    @property
    def _steady(self) -> bool:  # type: ignore[override]
        return not self._one_by_one

    def _moved_from(self, theta: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """Propose from theta; a Langevin proposal without its drift."""
        if callable(self.proposal):
            new, log_factor = proposed(self.proposal, self.tall, theta, rng)
            own = {name for name, _, _ in self._moved}
            moved = [name for name, part in self._read if np.any(new[part] != theta[part])]
            if others := [name for name in moved if name not in own]:
                raise ValueError(
                    f"proposal moved {others}, but this step samples {sorted(own)} alone. Return "
                    "values for these, or give the step all of vars."
                )
            return new, log_factor
        new = theta.copy()
        z = rng.standard_normal(len(self.active))
        new[self.active] += self.scaling * scaled(self.tuning.factor, z[None])[0]
        return new, 0.0

    @property
    def scaling(self) -> float:
        """Scale of the proposal, or its step size."""
        fixed = not self._adapts or given_scale(self.proposal) is not None
        return self._first_scale() if fixed else float(self.tuning.step.current(self.tune))

    def _adapt(self, theta: np.ndarray, info: dict[str, float]) -> None:
        if not self._adapts:
            return
        tuning = self.tuning
        tuning.add(theta, info["acceptance_rate"], info["loglik_ratio_variance"])
        if not tuning.due():
            return
        better = tuning.better_factor()
        if better is not None:
            tuning.factor = better
        at = self.reference
        if at is not None and not self._given_reference and tuning.left(at.theta):
            self._recentre(self._settled(theta))
        tuning.restart(None if better is None else self.scaling)

    @property
    def _pilots(self) -> list[np.ndarray]:
        """Draws at which to check the chain: fewer where a pass over the rows takes long."""
        count = np.clip(_PILOT_ROWS // self.n_rows, _FEWEST_PILOTS, _MOST_PILOTS)
        kept = self.record.kept
        places = np.linspace(0, len(kept), _MOST_PILOTS + 1)[1:].astype(int)
        return [kept[at - 1] for at in np.unique(places[places > 0])][-int(count) :]

    def _recentre(self, theta: np.ndarray) -> None:
        """Take another reference."""
        self.reference = reference_at(self.expansion, theta, self.temperature)
