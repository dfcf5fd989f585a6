r"""Bounds on what control variates of order 2 or 3 leave of each row.

A row sees k elements of phi, the same ones as all rows of its stratum s, by E linear predictors.
With :math:`r_s = \|W_s (\phi - \phi^*)\|` in these elements, predictor e moves by
:math:`a_e r_s` at most, :math:`a_e = \|W_s^{-T} x_e\|`. With :math:`c_{efg}` the largest size of a
third derivative of the row's log-likelihood meanwhile, Taylor's theorem gives, for order 2,

.. math:: |l_i - q_i| \le c_i r_s^3, \qquad c_i = \frac{1}{3!} \sum_{efg} c_{efg} a_e a_f a_g,

and likewise for order 3, :math:`c_i r_s^4` by fourth derivatives.

Any :math:`W_s` will do; the inverse of the posterior covariance's Cholesky factor makes r_s about
:math:`\sqrt k`, and a_e a standard deviation. Derivatives are bounded everywhere, as those of
logistic rows, or while r_s is within a limit, by interval arithmetic.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_subsample.bounds.kernel import StratumBounds, cubic_sum, distances
from pymc_subsample.bounds.strata import SINGLE, Strata, UnboundedError
from pymc_subsample.bounds.thinning import RowsRead
from pymc_subsample.compiled.process import one_thread
from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.graph.intervals import WORK
from pymc_subsample.model import TallModelError

BOUNDS = ("auto", "global", "local")
_NAMED = {3: "third", 4: "fourth"}

# Limits of r_s beyond its typical size, and everywhere, and by how much at most bounds are larger
# than within the first: sharper ones are made as large. A choice between the work of a walk
# through the graph for each pair and rows that are drawn in vain, which grow with the bound.
_BEYOND = (2.0, 5.0, 15.0)
_LARGER = (1.0, 3.0, 10.0, 30.0)
# Rows of which so many times all would be read always have no useful bounds. A choice: other rows
# have to be cheaper than those.
_MOST_ALWAYS = 0.25
# Of the processor for an interval: 9 to 13 ns in six models of 20,000 rows. Time is counted like
# this so that no decision depends on what else the machine does.
_SECONDS = 1.2e-8
# Per decision: no sharper bounds are looked for. A choice: with fewer draws are hardly faster.
_FEW_ROWS = 3.0
_SMALLEST = np.float32(1e-30)  # What divides nothing by zero.


@dataclass(frozen=True, repr=False)
class RowBounds:
    """Bounds of all rows at a reference."""

    table: StratumBounds  # As compiled transitions take them, at temperature 1; see `kernel`.
    kind: str  # {"global", "local"}: whether they hold everywhere.
    # Integers, shape (e,): rows without bounds, in order: those that the surrogate reads.
    exact: np.ndarray
    # Rows to be expected per decision: candidates and those that are read always, and those of
    # strata that are read whole.
    drawn: float
    passed: float

    def __repr__(self) -> str:
        return f"RowBounds(kind={self.kind!r}, drawn={self.drawn:.3g}, passed={self.passed:.3g})"

    @property
    def per_decision(self) -> float:
        """Rows to be expected per decision."""
        return self.drawn + self.passed

    @property
    def order(self) -> int:
        """Order of the control variates that leave the remainders."""
        return self.table.power - 1

    @property
    def reading(self) -> RowsRead:
        """What a decision reads."""
        strata, seen = self.table.elements.shape
        return RowsRead(self.per_decision, strata, seen, self.table.cubes.size)

    def distances(self, phi: np.ndarray, center: np.ndarray) -> np.ndarray:
        """Return r_s of all strata, shape (S,)."""
        found = np.empty(len(self.table.total))
        distances(self.table.elements, self.table.metric, len(found), phi, center, found)
        return found

    def known(self, phi: np.ndarray, center: np.ndarray) -> float:
        """Return the sum over all rows of their terms of order 3, where these are summed."""
        table = self.table
        return cubic_sum(table.elements, table.metric, table.cubes, phi, center)


@one_thread
def bound_rows(
    expansion: Expansion,
    reference: Reference,
    points: np.ndarray,
    kind: str | float = "auto",
    *,
    temperature: float = 1.0,
    intensity: float = 1.0,
    exact: np.ndarray | tuple = (),
    seconds: float = np.inf,
    limit: str = "about as long as NUTS on all rows",
) -> RowBounds:
    """Bound all rows' remainders around a reference, in three passes over the rows.

    Control variates are of order 2 or 3; `points`, values of phi, shape (N, P), are spread as the
    posterior is. `kind`, "auto", "global", "local" or a number, says where bounds of derivatives
    come from; a number bounds those of every row in its predictor. `intensity` is kappa, see
    `samplers.scalable.kernel`. Rows `exact`, in order, do not decide. Interval arithmetic may take
    so many `seconds` of the processor, by a count of intervals; `limit` says why.

    Raises
    ------
    UnboundedError
        If there are none, or they take longer; the message says why.
    """
    if kind == "auto" and expansion.slope() is not None:
        # Where these are sharp enough, intervals are not worth their time.
        scale: dict[str, Any] = {"temperature": temperature, "intensity": intensity}
        found = bound_rows(expansion, reference, points, "global", **scale, exact=exact)
        if found.per_decision <= _FEW_ROWS:
            return found
    strata = Strata(expansion, points)
    power = expansion.order + 1
    remainder = _Remainder(expansion, reference.center, kind, strata.size, (seconds, limit))
    sizes, sharpest = [], []
    without, at = np.asarray(exact, dtype=np.int64), 0
    for rows in expansion.chunks():
        expansion.anchor(reference.center, rows)
        stratum = strata.of(rows)
        every = range(expansion.n_predictors)
        gradients = np.array([strata.whitened(rows, stratum, e) for e in every])
        first, last = np.searchsorted(without, [at, at + rows.shape[1]])
        strata.add_cubes(rows, stratum, list(gradients), without[first:last] - at)
        at += rows.shape[1]
        sizes.append(stratum.astype(np.int32))
        with np.errstate(over="ignore"):
            sharpest.append(remainder.bounds(rows, gradients).astype(np.float32))
    stratum, bounds = np.concatenate(sizes), np.concatenate(sharpest, axis=1)
    raised = np.mean(strata.distances(reference.center) ** power, axis=0)
    rate = 2.0 * intensity / temperature * raised
    count = np.bincount(stratum, minlength=len(raised))
    for wider, larger in zip(bounds[1:], _LARGER[1:], strict=False):
        np.maximum(bounds[0], np.where(np.isfinite(wider), wider, 0.0) / larger, out=bounds[0])
    bound, finite = bounds[0], np.isfinite(bounds[0])
    if np.mean(~finite) > _MOST_ALWAYS:
        raise UnboundedError(remainder.refusal())
    candidates = np.where(finite, np.minimum(bound * rate[stratum], 1.0), 1.0)
    candidates[without] = 0.0
    # Strata that will be read whole need no rows that are read always.
    whole = np.bincount(stratum, candidates, len(raised)) >= 0.5 * count
    always = ~finite | ((candidates == 1.0) & ~whole[stratum])
    always[without] = True  # or they decide nothing at all
    table = strata.table(stratum, bound, always, power, without)
    if not np.all(np.isfinite(table.cubes)):
        raise TallModelError(
            "Third derivatives of the log-likelihood of "
            f"{', '.join(map(repr, expansion.likelihood))} are not finite at the reference in some "
            "rows. Use control_variate_order=2."
        )
    beyond = np.ones((len(raised), len(bounds)))
    for j, wider in enumerate(bounds[1:], 1):
        with np.errstate(over="ignore", invalid="ignore"):
            ratio = np.where(always, 1.0, wider / np.maximum(bound, _SMALLEST))
        np.maximum.at(beyond[:, j], stratum, np.where(np.isnan(ratio), np.inf, ratio))
    beyond *= np.where(beyond > 1.0, 1.0 + SINGLE, 1.0)
    table = table._replace(limits=remainder.limits, beyond=beyond)
    thinned, left = table.total * rate, np.diff(table.start)
    few = thinned < left
    drawn = np.where(few, thinned, 0.0).sum() + len(table.always)
    passed = float(np.where(few, 0, left).sum())
    return RowBounds(table, remainder.kind, without, float(drawn), passed)


class _Remainder:
    """Bounds on the rows' remainders while their predictors move."""

    def __init__(
        self,
        expansion: Expansion,
        center: np.ndarray,
        kind: str | float,
        size: int,
        patience: tuple[float, str],
    ):
        (self._seconds, self._limit), self._began, self._done = patience, WORK.elements, 0.0
        self._n_rows = expansion.n_rows
        self._observed = ", ".join(map(repr, expansion.likelihood))
        self._power, self._flat, self._center = expansion.order + 1, expansion.sums.flat, center
        self._slope = None
        if not isinstance(kind, str):
            self._slope, self.kind = float(kind), "global"
        elif kind != "local":
            self._slope = expansion.slope()
        if kind == "global" and self._slope is None:
            raise TallModelError(
                f'bound="global" needs rows of {self._observed} with one linear predictor each and '
                f"a {_NAMED[self._power]} derivative that is bounded everywhere (logistic "
                'regression, for instance); this model has none. Use bound="auto".'
            )
        near = expansion.remainder(center) if isinstance(kind, str) and kind != "global" else None
        self._near: Callable[[np.ndarray, np.ndarray, float], np.ndarray] | None = near
        if self._slope is None and near is None:
            raise UnboundedError(self.refusal())
        self.kind = "local" if self._slope is None else "global"
        limits = [] if near is None else [math.sqrt(size) + more for more in _BEYOND]
        self.limits = np.array(limits + ([] if self._slope is None else [np.inf]))

    def refusal(self) -> str:
        """Say that rows have no bounds."""
        return (
            f"ScalableMH needs bounds on the {_NAMED[self._power]} derivatives of the "
            f"log-likelihood of {self._observed} in at most ten linear predictors per row, and "
            "found none near the posterior mode."
        )

    def _spend(self, rows: int) -> None:
        """Refuse to go on if all rows would take more seconds than there are, as these did."""
        self._done += rows / np.count_nonzero(np.isfinite(self.limits))
        spent = _SECONDS * (WORK.elements - self._began)
        needed = spent * self._n_rows / self._done
        if needed > self._seconds:
            raise UnboundedError(
                f"Bounds on the {_NAMED[self._power]} derivatives of the log-likelihood of "
                f"{self._observed} would take about {needed:,.1f} s of the processor; the limit "
                f"is {self._seconds:,.0f} s, {self._limit}: the log-likelihood is too complex "
                "for interval arithmetic."
            )

    def bounds(self, rows: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        """Return c_i for each of the limits, shape (L, m), of anchored rows.

        `gradients` are those of predictors in u, shape (E, m, k).
        """
        found = []
        everywhere = np.full(rows.shape[1], np.inf)
        if self._slope is not None:
            move = np.linalg.norm(gradients[0], axis=1)
            everywhere = self._slope / math.factorial(self._power) * move**self._power
            everywhere[self._flat(rows, self._center)] = np.inf
        for limit in self.limits:
            near = everywhere
            if np.isfinite(limit):
                assert self._near is not None
                near = np.minimum(self._near(rows, gradients, limit), everywhere)
                self._spend(rows.shape[1])
            found.append(near)
        return np.array(found)
