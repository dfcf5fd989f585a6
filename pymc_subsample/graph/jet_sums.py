r"""Logarithms of sums of exponentials over intervals.

The coefficients of :math:`\log \sum_s e^{T_s}` along a direction are means and cumulants of those
of the terms, :math:`X_s, Y_s, \ldots` of order 1, 2, ..., under weights
:math:`p_s \propto e^{T_s}`: of order 2 :math:`E Y + \tfrac12 \mathrm{Var} X`, of order 3
:math:`E Z + \mathrm{Cov}(X, Y) + \tfrac16 \kappa_3(X)`, and so on. Cumulants are bounded by ranges,
whatever the weights are, and by moments about the mean at the center, with the largest weights
that the terms' intervals allow: of classes that are nearly certain, or nodes far out, little is
left.
"""

from collections.abc import Sequence

import numpy as np

from pymc_subsample.graph.interpreter import NoForm
from pymc_subsample.graph.intervals import Enclosure
from pymc_subsample.graph.jet_arithmetic import LEVEL, ZERO, Jet, Slope, added, hull

# Largest sizes of the third and the fourth cumulant of a variable with values from 0 to 1.
_THIRD, _FOURTH = np.sqrt(3.0) / 18.0, 1.0 / 8.0


def log_of_sum(terms: Sequence[Jet], limit: float) -> Jet:
    """Return the logarithm of the sum of exponentials, while directions go on by `limit`.

    Raises `NoForm` of a sum of nothing.
    """
    if not terms:
        raise NoForm
    value, center = (
        Enclosure(*(_log_sum([getattr(getattr(t, of), end) for t in terms]) for end in ends))
        for of, ends in (("value", ("low", "high")), ("center", ("low", "high")))
    )
    if len(terms) == 1 or all(t.fixed for t in terms):
        return terms[0] if len(terms) == 1 else Jet(value, *terms[0].others)
    orders = list(zip(*(t.others for t in terms), strict=True))
    shares = _Shares(terms, limit)
    means = [hull(*parts) for parts in orders]
    one, two, three = (
        np.zeros(1) if m is None else m.high - m.low for m in [*means, None, None, None][:3]
    )
    found = means[:1]
    x, v = shares.deviation, np.fmin(shares.mean([s**2 for s in shares.apart]), one**2 / 4)
    about = [shares.about(parts, m) for parts, m in zip(orders[1:], means[1:], strict=True)]
    if about:
        mean, y = about[0]
        found.append(added(mean, Enclosure(np.zeros(1), v / 2)))
    if len(about) > 1:
        mean, z = about[1]
        third = np.fmin(_THIRD * one**3, shares.mean([a**3 for a in x])) / 6
        third += np.fmin(one * two / 4, shares.mean([a * b for a, b in zip(x, y, strict=True)]))
        found.append(added(mean, Enclosure(-third, third)))
    if len(about) > 2:
        mean, _ = about[2]
        pairs = list(zip(x, y, z, strict=True))
        kurtosis = np.maximum(shares.mean([a**4 for a in x]), 2 * v**2)
        fourth = np.fmin(_FOURTH * one**4, kurtosis) / 24
        fourth += np.fmin(one**2 * two / 8, shares.mean([(a**2 + v) * b for a, b, _ in pairs]) / 2)
        fourth += np.fmin(one * three / 4, shares.mean([a * c for a, _, c in pairs]))
        # Half the variance of coefficients of order 2 is not negative.
        own = np.fmin(two**2 / 8, shares.mean([b**2 for b in y]) / 2)
        found.append(added(mean, Enclosure(-fourth, fourth + own)))
    return Jet(value, *found, slope=shares.slope).narrowed(center, limit)


def _log_sum(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.logaddexp.reduce(np.broadcast_arrays(*arrays))


class _Shares:
    """Weights of terms: those at the center, and the largest that there may be.

    `apart` bounds how far a term's coefficient of order 1 is from the mean by the weights at the
    center, `deviation` how far it is from any mean.
    """

    def __init__(self, terms: Sequence[Jet], limit: float):
        middle = [_number((t.center.low + t.center.high) / 2, -np.inf) for t in terms]
        total = _log_sum(middle)
        known, alike = np.isfinite(total), 1.0 / len(terms)
        self._at = [np.where(known, np.exp(m - total), alike) for m in middle]
        slopes = [t.slope for t in terms]
        weighted = [s.times(Enclosure(w, w)) for s, w in zip(slopes, self._at, strict=True)]
        mean = LEVEL.plus(*weighted)
        self.apart = [s.plus(Slope(-mean.gradient, mean.rest)).size for s in slopes]
        low, high = (
            sum(_times(w, getattr(t.center, end)) for w, t in zip(self._at, terms, strict=True))
            for end in ("low", "high")
        )
        gaps = [
            Enclosure(t.center.low - high - limit * a, t.center.high - low + limit * a)
            for t, a in zip(terms, self.apart, strict=True)
        ]
        largest = np.maximum.reduce(np.broadcast_arrays(*(g.high for g in gaps)))
        least, most = ([np.exp(getattr(g, end) - largest) for g in gaps] for end in ("low", "high"))
        all_least, all_most = sum(least), sum(most)
        self._most = [
            _number(h / (h + np.maximum(all_least - e, 0.0)), 1.0)
            for e, h in zip(least, most, strict=True)
        ]
        fewest = [
            _number(e / (e + np.maximum(all_most - h, 0.0)), 0.0)
            for e, h in zip(least, most, strict=True)
        ]
        changed = [
            np.maximum(h - w, w - e) for e, w, h in zip(fewest, self._at, self._most, strict=True)
        ]
        moved = sum(_times(c, a) for c, a in zip(changed, self.apart, strict=True))
        self.deviation = [a + moved for a in self.apart]
        self.slope = Slope(mean.gradient, mean.rest + moved)

    def mean(self, sizes: Sequence[np.ndarray]) -> np.ndarray:
        """Return the largest mean of what is at most of these sizes."""
        return np.asarray(sum(_times(w, s) for w, s in zip(self._most, sizes, strict=True)))

    def about(
        self, parts: Sequence[Enclosure | None], within: Enclosure | None
    ) -> tuple[Enclosure | None, list[np.ndarray]]:
        """Return a mean that is `within`, and how far terms are from one number near it."""
        full = [ZERO if p is None else p for p in parts]
        if within is None:
            return None, [np.zeros(1) for _ in full]
        middle = [_number((p.low + p.high) / 2, 0.0) for p in full]
        about = sum(w * m for w, m in zip(self._at, middle, strict=True))
        far = [np.maximum(p.high - about, about - p.low) for p in full]
        spread = self.mean(far)
        mean = Enclosure(np.fmax(within.low, about - spread), np.fmin(within.high, about + spread))
        return mean, far


def _number(x: np.ndarray, otherwise: float) -> np.ndarray:
    return np.where(np.isnan(x), otherwise, x)


def _times(weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Weigh what may not be finite: nothing is left of it where there is no weight."""
    return np.where(weight > 0, weight * x, 0.0)
