r"""On which scales expansions of the rows leave least: measured on some rows, before they are made.

In :math:`u = g(p)` in the place of an element p of phi, with :math:`p^*` at the reference, the
second-order control variate of a row is the one in phi at moves
:math:`\delta_p = (g(p) - g(p^*)) / g'(p^*)`, with
:math:`\partial_p^2 l - \partial_p l\, g''(p^*) / g'(p^*)` for the second derivative in p. Along a
move both are known from log-likelihoods at and around the reference.
"""

from collections.abc import Mapping

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_subsample.compiled.process import one_thread
from pymc_subsample.expansion import Expansion, linear_predictors
from pymc_subsample.expansion.estimators import ROW_BOUND, SMALLEST_SUBSAMPLE, VARIANCE_AIM
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.model import TallModel
from pymc_subsample.model.scales import SCALES, Scale, fitting

# Rows that are looked at, and the share of them that may be read always.
_MOST_ROWS, _READ_ALWAYS = 20_000, 0.1
# Share of the rows that a subsample may take before scales are looked at, and by how much another
# one must make it smaller: compiling the rows again takes seconds.
_LARGE_SHARE, _WORTHWHILE = 0.1, 0.5
# Elements of a parameter, such as log(1 - psi) beside log(psi); larger ones are coefficients.
_FEW = 4
# Of differences, relative to a parameter or a move.
_STEP = 1e-3


@one_thread
@np.errstate(all="ignore")  # what is not finite on a scale is not better there
def better_scales(
    tall: TallModel,
    expansion: Expansion,
    reference: Reference,
    thetas: np.ndarray,
    far: np.ndarray,
    temperature: float = 1.0,
) -> dict[int, str]:
    """Return on which scales rows should see parameters, by their numbers in `tall.phi_graphs`.

    Empty where residuals at points theta, shape (k, d), and far ones, (j, d), are small already, or
    no scale makes a subsample half as large, which has 100 rows at least.
    """
    n, center = expansion.n_rows, reference.center
    many = min(n, _MOST_ROWS)
    rows = expansion.take(np.sort(np.random.default_rng(0).choice(n, many, replace=False)))
    points = np.array([expansion.parameters(theta)[0] for theta in [*thetas, *far]])

    def size(left: np.ndarray) -> float:
        """Rows that are read, by residuals, shape (k + j, m); see `choose_subsample_size`."""
        inside, outside = np.split(left, [len(thetas)])
        outside = np.nan_to_num(outside, posinf=0.0, neginf=0.0)
        if not np.all(np.isfinite(inside)):
            return np.inf
        order = np.argsort(-np.abs([*inside, *outside]).max(axis=0), kind="stable")
        found = []
        for share in (0.0, _READ_ALWAYS):
            others = order[int(share * many) :]
            spread = np.var(inside[:, others], axis=1).max() * (n / temperature) ** 2 / VARIANCE_AIM
            alone = np.abs(outside[:, others]).max(initial=0.0) * n / temperature / ROW_BOUND
            found.append(share * n + max(spread, alone, SMALLEST_SUBSAMPLE))
        return float(min(found))

    before = size(expansion.residuals(rows, center, points))
    if before <= max(_LARGE_SHARE * n, SMALLEST_SUBSAMPLE):
        return {}
    places, bent = list(tall.phi_slices.values()), _Bent(expansion, rows, center, points)
    found, best = dict[int, str](), before
    for number in _bendable(tall, expansion):
        for name in fitting(tall.phi_graphs[number], tall.theta):
            tried = found | {number: name}
            scales = {
                element: SCALES[name]
                for k, name in tried.items()
                for element in range(places[k].start, places[k].stop)
            }
            if (now := size(bent.left(scales))) < best:
                found, best = tried, now
    return found if best < _WORTHWHILE * before else {}


def _bendable(tall: TallModel, expansion: Expansion) -> list[int]:
    """Return numbers of parameters of few elements that no predictor of a row is linear in."""
    blocked: set[Variable] = set()
    if expansion.linear:
        blocked = set(ancestors([p.var for p in linear_predictors(tall) or () if not p.shared]))
    places = tall.phi_slices.items()
    return [
        number
        for number, (var, place) in enumerate(places)
        if place.stop - place.start <= _FEW and var not in blocked
    ]


class _Bent:
    """Residuals of some rows at some points, were the rows expanded on other scales."""

    def __init__(
        self, expansion: Expansion, rows: np.ndarray, center: np.ndarray, points: np.ndarray
    ) -> None:
        self.expansion, self._rows = expansion, rows
        self._center, self._points = center, points
        self._here = self._loglik(center)
        self._there = [self._loglik(phi) for phi in points]
        self._slopes: dict[int, np.ndarray] = {}

    def left(self, scales: Mapping[int, Scale]) -> np.ndarray:
        """Return residuals, shape (k, m), with scales of some elements of phi."""
        return np.array(
            [there - self._expanded(phi, scales)
             for phi, there in zip(self._points, self._there, strict=True)]
        )  # fmt: skip

    def _expanded(self, phi: np.ndarray, scales: Mapping[int, Scale]) -> np.ndarray:
        """Return the control variates at a point."""
        move = phi - self._center
        more = np.zeros_like(self._here)
        for j, scale in scales.items():
            p = self._center[j]
            move[j] = (scale.value(phi[j]) - scale.value(p)) / scale.slope(p)
            more -= 0.5 * self._slope(j) * scale.bend(p) * move[j] ** 2
        forth, back = (self._loglik(self._center + s * _STEP * move) for s in (1.0, -1.0))
        straight = (forth - back) / (2 * _STEP)
        curved = (forth + back - 2 * self._here) / _STEP**2
        return self._here + straight + 0.5 * curved + more

    def _slope(self, j: int) -> np.ndarray:
        if j not in self._slopes:
            h = _STEP * max(abs(self._center[j]), _STEP)
            shift = h * (np.arange(len(self._center)) == j)
            forth, back = (self._loglik(self._center + s * shift) for s in (1.0, -1.0))
            self._slopes[j] = (forth - back) / (2 * h)
        return self._slopes[j]

    def _loglik(self, phi: np.ndarray) -> np.ndarray:
        value = np.empty(self._rows.shape[1])
        self.expansion.loglik(phi, self._rows, value)
        return value
