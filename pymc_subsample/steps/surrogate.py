"""How a surrogate is moved between decisions of rows: by what, how often, and what tunes it."""

import logging
from typing import Any

import numpy as np

from pymc_subsample.control_variates.forecast import Forecast
from pymc_subsample.control_variates.reference import Reference, reference_at
from pymc_subsample.control_variates.row_bounds import RowBounds
from pymc_subsample.kernels.scalable import FACTORISED, MH_SS
from pymc_subsample.likelihood import TallModelError
from pymc_subsample.proposals import AdaptiveMetropolis, Langevin, RandomWalk
from pymc_subsample.steps.chains import ChainStep
from pymc_subsample.steps.deciding import Deciding
from pymc_subsample.steps.sizing import NO_SMALL_SHARE
from pymc_subsample.steps.tuning import Tuning
from pymc_subsample.thinning import (
    DRAW,
    GRADIENTS,
    better_acceptance,
    gradient_time,
    lag_one,
    left_by_a_move,
    most_effective_moves,
)

_log = logging.getLogger("pymc.subsample")

type Proposal = str | Langevin | AdaptiveMetropolis | RandomWalk
ACCEPTANCE = {"factorised": FACTORISED, "mh-ss": MH_SS}
TRAJECTORIES = ("hmc", "nuts")
# Compiled dynamics, and the acceptance rates of many parameters and of one that step sizes are
# tuned to.
MOVES = {
    "hmc": ("hmc", 0.8, 0.8),
    "nuts": ("nuts", 0.8, 0.8),
    "Langevin": ("hmc", 0.574, 0.574),
    "AdaptiveMetropolis": ("random-walk", 0.234, 0.44),
    "RandomWalk": ("random-walk", 0.234, 0.44),
}
# Of a trajectory; lengths are jittered by 20%.
_MOST_STEPS = 1024
# Correlation of draws that a transition of the surrogate leaves, before a chain has shown it.
LEFT = 0.5
# Predicted acceptance, where rows decide, that is told.
FEW_ACCEPTED = 0.5
# Draws over which their number is averaged.
_REMEMBERED = 50


class SurrogateMoves(ChainStep):
    """Moves a surrogate of the posterior between decisions of rows, and tunes that."""

    proposal: Any
    kind: str
    acceptance: str
    predicted_acceptance: float
    given_transitions: int | None
    surrogate_transitions: int
    gradients: float
    transitions_per_draw: int
    max_treedepth: int
    path_length: float
    step_size: float
    temperature: float
    reference: Reference
    underrated: float
    tuning: Tuning
    _deciding: Deciding

    def _bounds_at(self, reference: Reference) -> RowBounds:
        return self._deciding.bounds(reference, self._home.factor)

    @property
    def bounds(self) -> RowBounds:
        """Bounds at the current reference."""
        return self._bounds_at(self.reference)

    def _extent(self) -> float:
        """Return how far a transition goes: the length of a trajectory, or its doublings."""
        if self.proposal == "hmc":
            return float(min(self.path_length, _MOST_STEPS / 1.2 * self.step_size))
        return float(self.max_treedepth) if self.proposal == "nuts" else 0.0

    def _choose(self, acceptance: str, predicted: Forecast) -> None:
        """Choose how rows decide by what that costs and accepts."""
        factorised, together, _ = predicted.accepted
        self.predicted_acceptance, self.gradients = max(factorised, together), GRADIENTS
        others = DRAW / self.transitions_per_draw + self._moves_per_proposal(LEFT) * self._time()
        better = better_acceptance(factorised, together, self._reading_time(), others)
        self.acceptance = better if acceptance == "auto" else acceptance
        self.predicted_acceptance = predicted.accepted[ACCEPTANCE[self.acceptance]]

    def _moves_per_proposal(self, left: float) -> int:
        """Transitions of the surrogate per proposal, if each leaves such a correlation of draws."""
        if self.given_transitions is not None:
            return self.given_transitions
        if self.kind == "nuts":
            return 1
        others = self._reading_time() + DRAW / self.transitions_per_draw
        return most_effective_moves(self.predicted_acceptance, left, self._time(), others)

    def _adapt(self, theta: np.ndarray, info: dict[str, float]) -> None:
        """Adapt to the surrogate, which costs no rows; move the reference if the chain has left."""
        tuning = self.tuning
        tuning.add(theta, info["acceptance_rate"], 0.0)
        moves = self.surrogate_transitions * self.transitions_per_draw
        self.gradients += (info["n_steps"] / moves - self.gradients) / _REMEMBERED
        if not tuning.due():
            return
        self.surrogate_transitions = self._moves_per_proposal(self._persistence())
        fixed = isinstance(self.proposal, RandomWalk)
        better = None if fixed else tuning.better_factor(self._independent())
        if better is not None:
            tuning.factor = better
        left = self._given_reference is None and tuning.left(self.reference.theta)
        if left:
            self._recentre(self._settled(theta))
        tuning.restart(self.step_size if left or better is not None else None)

    def _recentre(self, theta: np.ndarray) -> None:
        """Take another reference, if rows have bounds there that hold."""
        reference = reference_at(self._expansion, theta, self.temperature)
        try:
            _, share = self._deciding.verify(reference, self._home.factor, self.tuning.factor)
        except TallModelError:
            return
        self.reference, self.underrated = reference, share

    def _reading_time(self) -> float:
        return self._bounds_at(self._home.reference).reading.time

    def _time(self) -> float:
        exact = len(self._deciding.exact)
        return self.gradients * gradient_time(len(self._active), self._expansion.phi_size, exact)

    def _correlation(self) -> float:
        """Correlation of successive draws of late."""
        return lag_one(self.tuning.recent()[:, self._active])

    def _independent(self) -> float:
        """How many independent draws one is worth, of proposals that move by single steps."""
        correlation = 0.0 if self.kind in TRAJECTORIES else self._correlation()
        return (1.0 - correlation) / (1.0 + correlation)

    def _persistence(self) -> float:
        """Correlation that one transition of the surrogate leaves, by the recent draws."""
        between = self._correlation() ** (1.0 / self.transitions_per_draw)  # successive proposals
        return left_by_a_move(between, self.predicted_acceptance, self.surrogate_transitions)

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
                f"the proposals, which move all {len(self._active):,} parameters at once: too many "
                "for so few rows. Draws will be right, but few of them effective. HMCECS "
                "does better here."
            )
