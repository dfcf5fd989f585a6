r"""Whether a posterior has the standard deviations that are read off its draws.

Where rows say nothing far out, as of a column that separates outcomes, the prior alone ends a
parameter's posterior, and a heavy one, as a Cauchy, hardly does: the density falls like
:math:`|\theta|^{-p}`, a tail of Pareto shape :math:`k = 1 / (p - 1)`. It has no standard deviation
from k = 1/2 on and no mean from k = 1 on, and chains take very long to reach its outer quantiles
and to come back, which effective sample sizes of the draws that are there do not tell.
"""

from collections.abc import Callable

import numpy as np

from pymc_subsample.diagnostics.checks import Finding, Rule
from pymc_subsample.diagnostics.look import MOST_ROWS

_LIGHTER = (
    "Give it a prior with lighter tails, such as Normal, or report only its median and central "
    "intervals."
)
TAIL = Rule(
    "tail",
    "Pareto shape of the heaviest tail",
    # The largest shape of a finite variance is 0.5, but for rounding.
    0.499,
    f"The chain's warning names the parameter. {_LIGHTER}",
    severity="warn",
)
# Of robust standard deviations from the median, how far out draws are looked at: one normal draw
# of 16,000 is as far; a chain that never was that far misses a tenth of a Cauchy. 1 / (2 *
# 0.6745), of the quartiles of a normal distribution.
_FAR = 4.0
_OF_QUARTILES = 0.7413
# Fewest draws that tell what is usual: as many as minibatch tests keep.
_FEWEST = 8
# Times the farthest draw's distance where the density is looked at, and how much powers from one of
# them to the next may differ: an exponential tail's are a multiple of each other. Choices between
# the two, which differ fourfold.
_TIMES = np.array([4.0, 16.0, 64.0, 256.0])
_SAME = 0.2
# Power from the first to the second place from which on the others are not looked at: that of a
# normal distribution is 1,385 from there on, and shapes matter from a power of 3 down.
_STEEP = 6.0
# What is a power of 1, of which the shape is infinite, and what rounding leaves of one. A choice:
# twice the error of such powers.
_PROPER = 1.02


def check_tails(
    log_density: Callable[[np.ndarray], np.ndarray],
    n_rows: int,
    thetas: np.ndarray,
    active: np.ndarray,
    called: Callable[[int], str],
) -> list[Finding]:
    """Look how the density falls beyond the farthest of draws, (k, d), that are very far out.

    `log_density` is of vectors theta, (n, d), to a constant; ``called(i)`` names element i. The
    farthest are looked at while rows are not too many. There is no check of few draws, where none
    is very far out, or where the density falls like no power.
    """
    if len(thetas) < _FEWEST:
        return []
    center, ways = _farthest(thetas, active)
    ways = ways[: MOST_ROWS // (n_rows * len(_TIMES))]
    if not ways:
        return []
    near = _densities(log_density, center, ways, _TIMES[:2])
    with np.errstate(all="ignore"):
        flat = np.flatnonzero(-np.diff(near)[:, 0] / np.log(_TIMES[1] / _TIMES[0]) < _STEEP)
        ways = [ways[i] for i in flat]
        logp = np.hstack([near[flat], _densities(log_density, center, ways, _TIMES[2:])])
        powers = -np.diff(logp, axis=1) / np.diff(np.log(_TIMES))
        alike = np.ptp(powers, axis=1) <= _SAME
    found = [(powers[i, -1], ways[i][0]) for i in np.flatnonzero(alike)]
    if not found:
        return []
    power, element = min(found)
    shape = 1 / (power - 1) if power > _PROPER else np.inf
    return [TAIL.check(float(shape), _said(called(element), power))]


def _densities(
    log_density: Callable[[np.ndarray], np.ndarray],
    center: np.ndarray,
    ways: list[tuple[int, np.ndarray]],
    times: np.ndarray,
) -> np.ndarray:
    """Return log densities at multiples of ways, shape (ways, times)."""
    points = [center + t * way for _, way in ways for t in times]
    with np.errstate(all="ignore"):
        found = log_density(np.array(points)) if points else np.zeros(0)
    return found.reshape(len(ways), len(times))


def _farthest(
    thetas: np.ndarray, active: np.ndarray
) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
    """Return the most central draw, and ways from there to draws very far out in an element.

    That element moves alone, or all of them do. The farthest stand first.
    """
    low, middle, high = np.quantile(thetas[:, active], [0.25, 0.5, 0.75], axis=0)  # quartiles
    scale = _OF_QUARTILES * (high - low)
    z = np.abs(thetas[:, active] - middle) / np.where(scale > 0, scale, np.inf)
    center, ways = thetas[np.argmin(z.sum(axis=1))], []
    for place, element in enumerate(active.tolist()):
        x = thetas[:, element] - center[element]
        for most in (int(np.argmin(x)), int(np.argmax(x))):
            if z[most, place] > _FAR:
                alone, all_of = np.zeros(len(center)), np.zeros(len(center))
                alone[element], all_of[active] = x[most], (thetas[most] - center)[active]
                ways += [(z[most, place], element, alone), (z[most, place], element, all_of)]
    ways.sort(key=lambda way: -way[0])
    return center, [(element, way) for _, element, way in ways]


def _said(name: str, power: float) -> str:
    if power <= _PROPER:
        return (
            f"The posterior is improper: far out along {name} its density falls like "
            f"distance^-{max(power, 0.0):.1f}, which has no finite mass, and no draws are from it. "
            "The rows carry no information there, for example because a column separates the "
            "outcomes. Give it a proper prior, such as Normal."
        )
    without = "mean and no standard deviation" if power <= 2 * _PROPER else "standard deviation"
    return (
        f"The posterior of {name} has no {without}: far out its density falls like "
        f"distance^-{power:.1f}, as a wide prior does where the rows carry no information (a "
        "column separates the outcomes, or a level's outcomes are all alike). Chains take very "
        f"long to reach its outer quantiles. {_LIGHTER}"
    )
