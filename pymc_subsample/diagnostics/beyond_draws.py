r"""What a density holds beyond the farthest draws, along lines.

Draws say nothing of a tail that none of them reached. Where rows hardly tell large values apart, as
of a slope k in tanh(k x), the density falls to a level and stays there as far as the prior reaches:
little mass, but so far out that it makes most of a standard deviation. Along a line through the
most central draw, with t the distance from there in one element and r that of the farthest draw,

.. math:: p = \int_r^\infty \pi(t)\, dt \Big/ \int_{-r'}^\infty \pi(t)\, dt

is the mass beyond it, if the line is like the rest: exact of a single parameter. It counts where so
many effective draws would have met it ten times over.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# Sides of elements that are looked at, the farthest reaching first: at most 33 passes over rows.
# A choice: a heavy tail is the farthest reaching.
_SIDES = 16
# Times the farthest draw's distance at which a line is first looked at, and how much lower the log
# density is there where the tail holds nothing: a normal one is 70 lower at four times three
# standard deviations, and e^-25 times the 4,096-fold width that is looked at is 6e-8.
_FIRST, _LOW = 4.0, 25.0
# Where the bulk and the tail are added up, in units of that distance. A choice: a normal density
# changes by at most a tenth of its peak between two points.
_BULK = np.linspace(0.0, 1.0, 25)
_TAIL = 2.0 ** np.arange(0.0, 12.5, 0.5)
# Draws that should have been in a tail: none is there once in e^10 runs.
_MISSED = 10.0
# Times as many draws as elements, from which on their covariance is known. A choice, as for
# `covariance_of` everywhere: eigenvalues are then good to a factor of two (Marchenko and Pastur
# 1967).
KNOWN = 10


@dataclass(frozen=True)
class Beyond:
    """What lies beyond the farthest draws."""

    stretch: float  # What it adds to a standard deviation, as a share.
    element: int  # Which,
    mass: float  # and its share of the mass.


@dataclass(frozen=True)
class _Line:
    """A line from the most central draw, on one side."""

    element: int
    way: np.ndarray  # Shape (d,), a move of that element by 1 or -1.
    reach: float  # Of the farthest draw,
    behind: float  # and of that on the other side.


def beyond(
    log_density: Callable[[np.ndarray], np.ndarray], draws: np.ndarray, effective: np.ndarray
) -> tuple[Beyond, int]:
    """Return the tail that matters most, and how many densities were asked for.

    `log_density` is of vectors, (n, d), `draws` are (k, d), and `effective`, (d,), says how many
    independent draws those are, element by element.
    """
    center, lines = _lines(draws)
    nothing, asked = Beyond(0.0, 0, 0.0), len(lines) + 1
    if not lines:
        return nothing, 0

    def heights(line: _Line, at: np.ndarray) -> np.ndarray:
        return log_density(center + np.outer(at, line.way))

    first = np.array([center, *(center + _FIRST * x.reach * x.way for x in lines)])
    height, *found = log_density(first).tolist()
    worst = nothing
    for line, low in zip(lines, found, strict=True):
        if not low > height - _LOW:  # nothing is a number there, perhaps
            continue
        bulk = np.concatenate([-line.behind * _BULK[:0:-1], line.reach * _BULK])
        tail = line.reach * _TAIL
        found = np.nan_to_num(heights(line, np.append(bulk, tail)), nan=-np.inf, posinf=-np.inf)
        density = np.exp(found - max(found.max(), height))
        asked += len(density)
        inside, outside = np.split(density, [len(bulk)])
        held = np.trapezoid(inside, bulk)
        mass = np.trapezoid(outside * tail, np.log(tail))
        # x^2 over log x: a power more.
        square = np.trapezoid(outside * tail**3, np.log(tail))
        share = mass / (held + mass)
        if share * effective[line.element] > _MISSED:
            variance = draws[:, line.element].var()
            stretch = np.sqrt(1 - share + square / (held + mass) / variance) - 1
            if stretch > worst.stretch:
                worst = Beyond(float(stretch), line.element, float(share))
    return worst, asked


def _lines(draws: np.ndarray) -> tuple[np.ndarray, list[_Line]]:
    """Return the most central draw, and lines from there: of an element alone, and with others."""
    low, middle, high = np.quantile(draws, [0.25, 0.5, 0.75], axis=0)  # quartiles
    scale = high - low
    moved = np.flatnonzero(scale > 0)
    if not len(moved):
        return draws[0], []
    size = draws.shape[1]
    away = np.abs(draws - middle)[:, moved] / scale[moved]
    center = draws[np.argmin(away.sum(axis=1))]
    ahead, behind = (draws - center).max(axis=0), (center - draws).max(axis=0)
    sides = [
        (r / scale[e], e, s) for e in moved for s, r in ((1, ahead[e]), (-1, behind[e])) if r > 0
    ]
    sides.sort(reverse=True)
    lines = []
    for _, e, sign in sides[:_SIDES]:
        reach, other = (ahead[e], behind[e]) if sign > 0 else (behind[e], ahead[e])
        alone = np.zeros(size)
        alone[e] = 1.0
        ways = [alone]
        if 1 < size < len(draws) / KNOWN:
            x = draws[:, e] - draws[:, e].mean()
            ways.append(x @ (draws - draws.mean(axis=0)) / (x @ x))
        lines += [_Line(int(e), sign * way, float(reach), float(max(other, 0.0))) for way in ways]
    return center, lines
