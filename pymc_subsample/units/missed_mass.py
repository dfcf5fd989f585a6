"""Whether a unit has probability where no node and no proposal around its mode comes."""

import numpy as np
from scipy.special import ndtri

from pymc_subsample.model import TallModelError
from pymc_subsample.units.modes import Modes, find_modes
from pymc_subsample.units.reference import sampled
from pymc_subsample.units.unit_densities import UnitFunctions

# Units that are looked at, and at how many points of a normal distribution with such a standard
# deviation: in one dimension, where variables are standardised, a tenth of one apart and more.
_UNITS, _POWER, _SPREAD = 500, 7, 2.5
# From so many of these points another mode is looked for, which may be too narrow for any to meet:
# the farthest on the left, the middle, and a third of the way on each side.
_STARTS = 4
# Nearer to a mode than so many standard deviations quadrature is made for.
_FAR = 5.0
# A share of probability that draws would not have, or integrals would be off by.
_SHARE = 0.01


def share_elsewhere(
    functions: UnitFunctions, theta: np.ndarray, modes: Modes, reach: float
) -> np.ndarray:
    """Return about which share of each unit's probability is farther from its mode than `reach`.

    That is how far nodes come, or points at which the density has been looked at. Of probability
    that is spread out random points tell, and of a narrow mode what is around it as if normal.
    """
    from scipy.stats import qmc  # takes half a second to import, and only set-ups of units need it

    if functions.graphs.exact:
        return np.zeros(len(modes.m))
    size = functions.graphs.size
    uniform = qmc.Sobol(size, scramble=False).random_base2(_POWER) + 0.5 / 2**_POWER
    points = _SPREAD * ndtri(uniform)
    log_proposal = -0.5 * ((points / _SPREAD) ** 2).sum(axis=1) - size * np.log(_SPREAD)
    peak = functions.log_density(theta, modes.m) + modes.log_volume
    inverse, total = np.linalg.inv(modes.S), np.zeros(len(modes.m))
    for point, log_q in zip(points, log_proposal, strict=True):
        distance = np.linalg.norm(np.einsum("gij,gj->gi", inverse, point - modes.m), axis=1)
        log_p = functions.log_density(theta, np.broadcast_to(point, modes.m.shape))
        with np.errstate(over="ignore"):
            ratio = np.exp(np.nan_to_num(log_p - peak - log_q, nan=-np.inf))
        total += np.where(distance > max(_FAR, reach), ratio, 0.0)
    mass = total / len(points)
    for point in points[:_STARTS]:
        other = find_modes(functions, theta, np.tile(point, (len(modes.m), 1)))
        distance = np.linalg.norm(np.einsum("gij,gj->gi", inverse, other.m - modes.m), axis=1)
        height = functions.log_density(theta, other.m) + other.log_volume
        with np.errstate(over="ignore"):
            ratio = np.exp(np.nan_to_num(height - peak, nan=-np.inf))
        far = other.found & (distance > max(_FAR, reach))
        mass = np.maximum(mass, np.where(far, ratio, 0.0))
    return np.where(np.isinf(mass), 1.0, mass / (1.0 + mass))


def refuse_other_modes(
    functions: UnitFunctions,
    theta: np.ndarray,
    modes: Modes,
    reach: float,
    rng: np.random.Generator,
) -> None:
    """Raise if a unit, of some, has another mode, or if none was found."""
    names = " and ".join(map(repr, functions.graphs.grouping.names))
    lost = np.flatnonzero(~modes.found)
    if len(lost):
        raise TallModelError(
            f"The density of level {functions.levels[lost[0]]:,} of {names} given its rows has no "
            f"mode that Newton's method finds (so {len(lost):,} of {len(modes.m):,} levels): it "
            "is not smooth, or does not fall. Sample this model with pm.NUTS."
        )
    some, _ = sampled(functions, _UNITS, rng, modes)
    own = modes.of(np.searchsorted(functions.levels, some.levels))
    share = share_elsewhere(some, theta, own, reach)
    worst = int(np.argmax(share))
    if share[worst] > _SHARE:
        raise TallModelError(
            f"Level {some.levels[worst]:,} of {names} has about {share[worst]:.0%} of "
            "its probability given its rows far from its mode: integrals around one mode do not "
            "suffice. Sample this model with pm.NUTS."
        )
