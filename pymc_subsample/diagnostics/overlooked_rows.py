"""Rows that a sampler overlooked: draws that these make nearly impossible, by all rows' say."""

import numpy as np

from pymc_subsample.diagnostics.checks import Finding, Rule, amount
from pymc_subsample.diagnostics.look import Look

OVERLOOKED = Rule(
    "overlooked",
    "farthest draws: log-density deficit / largest possible",
    1.0,
    "Tune for longer, or use pms.HMCECS or pms.ScalableMH, which look for such rows.",
)
# How far below the median of log densities one may be: so much, and so many times the distance from
# there to the largest. Draws that are overlooked are in the lower half, and widen nothing. Of a
# normal posterior hardly one draw of 10^9 is lower, in any dimension; of -500 Exp(1), as of many
# effects whose scale is not known above, none of 10^10.
_ALLOWED, _WIDTHS = 25.0, 40.0
# Fewest draws that say what is usual. A choice, as for `tails`.
_FEWEST = 8


def depth(logp: np.ndarray, usual: np.ndarray) -> float:
    """Return how far the lowest of log densities is below the `usual` ones, over what is possible.

    Infinite where one is no finite number; 0 where too few are known.
    """
    if not (np.all(np.isfinite(logp)) and np.all(np.isfinite(usual))):
        return np.inf
    if len(usual) < _FEWEST:
        return 0.0
    middle, high = np.median(usual), usual.max()
    below = middle - min(logp.min(initial=middle), usual.min())
    return float(below / (_ALLOWED + _WIDTHS * (high - middle)))


def how_deep(deep: float) -> str:
    """Say of a log density what a `depth` above one is."""
    if not np.isfinite(deep):
        return "not finite"
    return f"{amount(deep)} times as far below the others' as is possible"


def check_overlooked(look: Look | None) -> list[Finding]:
    """Judge whether all rows make the farthest draws all but impossible.

    There is no check beside too few draws, or where no farthest ones were looked at.
    """
    if look is None or len(look.usual) < _FEWEST or not len(look.far):
        return []
    deep = depth(look.logp, look.logp[: len(look.usual)])
    return [
        OVERLOOKED.check(
            deep,
            "Given all rows, some of the draws are all but impossible: their log density is "
            f"{how_deep(deep)}. Either rows matter there that batches hardly ever contained, or "
            f"the chain had not yet converged. {OVERLOOKED.remedy}",
        )
    ]
