"""How many gradients of all rows NUTS needs, by a trial on their expansion, which reads none."""

from typing import NamedTuple

import numpy as np

from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.nuts_cost import NutsOnExpansion
from pymc_subsample.results.advise.pilot import smallest_ess

# Draws of the trial run, if time allows, and fewest by which it is judged.
_TUNE, _DRAWS, _FEWEST_TUNE, _FEWEST = 200, 400, 50, 100
# Ratio of posterior standard deviations, in unconstrained space, from which on NUTS, which starts
# its tuning with one step size for all, spends more of it on finding them than a trial that knows
# them beforehand.
_UNITS = 100.0
# Tuning's share of a trial of NUTS; shares of draws whose divergences make its effective draws a
# bound, and of tuning draws from which on the expansion is no density.
_TUNING_SHARE, _FEW_DIVERGENCES, _OFTEN = 0.4, 0.05, 0.5
# Why a projection is a bound.
CUT, _DIVERGED = "its trial was cut short", "many draws of its trial diverged"
_APART = "it has to find scales that are far apart, which its trial knew"


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

    def __init__(self, step: ChainStep, seed: int) -> None:
        diagonal = step.expansion.curvature == "diagonal"
        self._chain = None if diagonal else NutsOnExpansion(step, _TUNE, _DRAWS, seed)
        self._tuned, self._diverging = False, 0
        self._tuning, self._sizes, self._draws = (list[np.ndarray]() for _ in range(3))

    def gradients(self, seconds: float) -> Gradients | None:
        """Go on for some time, while it was too short; return gradients that NUTS needs.

        Until there are 100 draws, an effective one takes the gradients of a draw, at least. None
        where the expansion is no density away from the reference.
        """
        chain = self._chain
        if chain is None:
            return None
        if not self._tuned:
            done = sum(map(len, self._tuning))
            sizes, draws, diverging = chain.run(_TUNE - done, _TUNING_SHARE * seconds)
            if chain.astray(draws) or diverging > _OFTEN * len(draws):
                self._chain = None
                return None
            self._tuning.append(sizes)
        tuning = np.concatenate(self._tuning)
        later = float(np.mean(tuning[len(tuning) // 3 :]))
        if len(tuning) < _FEWEST_TUNE:
            return Gradients(later, later, CUT)
        if not self._tuned:
            chain.nuts.stop_tuning()
            self._tuned = True
        sizes, draws, diverging = chain.run(_DRAWS, (1 - _TUNING_SHARE) * seconds)
        if chain.astray(draws):
            self._chain = None
            return None
        self._sizes.append(sizes)
        self._draws.append(draws)
        self._diverging += diverging
        sizes, draws = np.concatenate(self._sizes), np.concatenate(self._draws)
        if len(draws) < _FEWEST:
            return Gradients(float(np.mean(sizes)), later, CUT)
        unfit = _DIVERGED if self._diverging > _FEW_DIVERGENCES * len(draws) else ""
        apart = _APART if chain.sd.max() > _UNITS * chain.sd.min() else ""
        return Gradients(float(sizes.sum() / smallest_ess(draws)), later, unfit or apart)
