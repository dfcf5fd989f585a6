"""What NUTS on all rows would take of a step's model: the one projection of it that there is.

A gradient of all rows is timed, and NUTS runs on the rows' expansion, which reads none of them, to
see how many gradients it needs.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pymc.exceptions import SamplingError

from pymc_subsample.chain.nuts_cost import (
    COMPILE_SECONDS,
    DRAWS,
    LEAST_SLOWER,
    SLOWER,
    NutsOnExpansion,
    seconds_per_full_gradient,
)
from pymc_subsample.diagnostics import array_stats

if TYPE_CHECKING:
    from pymc_subsample.chain.engine import ChainStep


def smallest_ess(draws: np.ndarray) -> float:
    """Smallest bulk effective sample size of columns, shape (draws, k), that vary at all.

    At least 1, which stands for those of too few draws, or such that are not finite.
    """
    varying = [x for x in draws.T.astype(float) if np.ptp(x) != 0]
    found = [array_stats.ess(x[None, :], method="bulk") for x in varying]
    return max(float(np.min(found)), 1.0) if found and np.all(np.isfinite(found)) else 1.0


# Draws of the trial run, if time allows, and fewest by which it is judged. A choice: step sizes
# settle within some hundred draws.
_TUNE, _DRAWS, _FEWEST_TUNE, _FEWEST_DRAWS = 200, 400, 50, 100
# Ratio of posterior standard deviations, in unconstrained space, from which on NUTS, which starts
# its tuning with one step size for all, spends more of it on finding them than a trial that knows
# them beforehand. A choice: with twice as much fewer projections are called bounds.
_UNITS = 100.0
_TUNE_SHARE = 0.4  # Of the time of a trial; the rest says what draws are worth.
# Shares of draws whose divergences make its effective draws a bound, and of tuning draws from
# which on the expansion is no density. A choice: below it effective draws are hardly fewer than
# they look; half is a majority.
_FEW_DIVERGENCES, _OFTEN = 0.05, 0.5
# Why a projection is a bound.
CUT, _DIVERGED = "its trial was cut short", "many draws of its trial diverged"
_APART = "it has to find scales that are far apart, which its trial was given"


class Gradients(NamedTuple):
    """Gradients of all rows that NUTS needs."""

    # Their numbers.
    per_effective_draw: float
    per_tuning_draw: float
    # Why these are lower bounds, if they are.
    bound: str = ""


class NutsTrial:
    """NUTS on the expansion of a model's rows, which tells how many gradients it needs.

    The step samples all variables, with a reference point.
    """

    def __init__(self, step: "ChainStep", seed: int) -> None:
        self._chain: NutsOnExpansion | None = None
        if step.expansion.curvature != "diagonal":
            try:
                self._chain = NutsOnExpansion(step, _TUNE, _DRAWS, seed)
            except (SamplingError, ValueError):  # not finite where it starts
                self._chain = None
        self._tuned, self._diverging = False, 0
        self._tuning, self._sizes, self._draws = (list[np.ndarray]() for _ in range(3))

    def gradients(self, seconds: float) -> Gradients | None:
        """Go on for some time, while it was too short; return gradients that NUTS needs.

        Until there are 100 draws, an effective one takes the gradients of a draw, at least. None
        where the expansion is no density away from the reference.
        """
        try:
            return self._gradients(seconds)
        except (SamplingError, ValueError):  # not finite where it came
            self._chain = None
            return None

    def _gradients(self, seconds: float) -> Gradients | None:
        chain = self._chain
        if chain is None:
            return None
        if not self._tuned:
            done = sum(map(len, self._tuning))
            sizes, draws, diverging = chain.run(_TUNE - done, _TUNE_SHARE * seconds)
            if chain.astray(draws) or diverging > _OFTEN * len(draws):
                self._chain = None
                return None
            self._tuning.append(sizes)
        tuning = np.concatenate(self._tuning)
        # without the first steps of dual averaging
        later = float(np.mean(tuning[len(tuning) // 3 :]))
        if len(tuning) < _FEWEST_TUNE:
            return Gradients(later, later, CUT)
        if not self._tuned:
            chain.nuts.stop_tuning()
            self._tuned = True
        sizes, draws, diverging = chain.run(_DRAWS, (1 - _TUNE_SHARE) * seconds)
        if chain.astray(draws):
            self._chain = None
            return None
        self._sizes.append(sizes)
        self._draws.append(draws)
        self._diverging += diverging
        sizes, draws = np.concatenate(self._sizes), np.concatenate(self._draws)
        if len(draws) < _FEWEST_DRAWS:
            return Gradients(float(np.mean(sizes)), later, CUT)
        unfit = _DIVERGED if self._diverging > _FEW_DIVERGENCES * len(draws) else ""
        apart = _APART if chain.sd.max() > _UNITS * chain.sd.min() else ""
        return Gradients(float(sizes.sum() / smallest_ess(draws)), later, unfit or apart)


class Projection(NamedTuple):
    """What NUTS on all rows takes; seconds are of the processor."""

    per_gradient: float
    gradients: Gradients

    @property
    def fixed(self) -> float:
        """Seconds before the first draw that counts."""
        return COMPILE_SECONDS + DRAWS * self.gradients.per_tuning_draw * self._each

    @property
    def ess_per_second(self) -> float:
        """Effective draws per second after that."""
        return 1 / (self.gradients.per_effective_draw * self._each)

    @property
    def bound(self) -> str:
        """Why these are bounds, if they are: it takes as long or longer."""
        return self.gradients.bound

    @property
    def _each(self) -> float:
        return self.per_gradient * (LEAST_SLOWER / SLOWER if self.bound else 1.0)

    def seconds(self, effective_draws: float = DRAWS) -> float:
        """Seconds in all."""
        return self.fixed + effective_draws / self.ess_per_second


_UNTRIED = "no trial of it was possible, and it takes the gradients of the step that was tried"


class OnAllRows:
    """NUTS on all rows, projected for whoever asks, and further if that was not enough."""

    def __init__(self, step: "ChainStep") -> None:
        assert step.prepared is not None
        self.reference = step.prepared.reference
        self.per_gradient = seconds_per_full_gradient(step.expansion, self.reference)
        self._trial, self._gradients = NutsTrial(step, 0), Gradients(np.nan, np.nan, CUT)

    def projected(self, seconds: float, own: Gradients) -> Projection:
        """Try for some seconds; gradients of the step's `own` where no trial is possible."""
        if self._gradients.bound == CUT:
            needed = self._trial.gradients(seconds)
            self._gradients = own._replace(bound=_UNTRIED) if needed is None else needed
        return Projection(self.per_gradient, self._gradients)


def projection_of(step: "ChainStep") -> OnAllRows:
    """Return the projection of a step's model, begun where it was not."""
    assert step.prepared is not None
    if step.full is None or step.full.reference is not step.prepared.reference:
        step.full = OnAllRows(step)
    return step.full
