"""What rows decide on in exact steps: remainders of an expansion, and bounds on them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pymc_subsample.bounds.remainders import RowBounds, bound_rows
from pymc_subsample.bounds.thinning import DRAW, EXACT, GRADIENTS, gradient_time
from pymc_subsample.chain.nuts_cost import DRAWS, FEW_GRADIENTS, counted_gradient
from pymc_subsample.chain.nuts_instead import SAVED_SECONDS
from pymc_subsample.chain.points import WIDER
from pymc_subsample.chain.setup import Preparation
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.factors import scaled
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.kernels.model import Model
from pymc_subsample.model import TallModelError
from pymc_subsample.samplers.scalable.forecast import Forecast, exact_rows, forecast, underrated
from pymc_subsample.samplers.scalable.kernel import PARAMETER_FUNCTIONS, ROW_FUNCTIONS

# Values of phi by which metrics are made: so many, or so many times its elements. A choice of time:
# in metrics that are a little off bounds are a little larger.
_FEWEST_POINTS, _POINTS, _MOST_POINTS = 500, 100, 20_000
# References whose bounds are kept besides the last: of modes, and before one moved. A choice of
# memory.
_MOST_TABLES = 4
# Points between which the set-up compares bounds with all rows. A choice: passes over the rows.
_FEWEST_PAIRED, _MOST_PAIRED = 5, 17
# Points at which the surrogate is compared with the posterior, and rows to be read for it. A
# choice of time; a share of 16 points is good to an eighth.
_FEWEST_COMPARED, _MOST_COMPARED, _COMPARED_ROWS = 16, 400, 4_000_000
# Share of the proposals that all rows together accept, from which on the surrogate reads none;
# and points at which those that it should read are looked for. A choice: there is little to gain
# above it.
_ACCEPTED, _FEWEST_TRIED, _MOST_TRIED, _TRIED_ROWS = 0.9, 32, 200, 40_000_000
# Per decision: fewer are not worth looking for. A choice.
_FEW_ROWS = 1.0
# What sharper decisions, of which more accept, may take: of the time of others, and of a draw's.
# A choice: what pays for itself within a few draws.
_DEARER, _SHARE = 1.25, 0.25
# Products of three coefficients that are worth summing over the rows, and their sums that are
# worth keeping. A choice of time, and 32 MB.
_MOST_TERMS, _MOST_CUBES = 3e10, 4_000_000
# Seconds that bounds on fourth derivatives may take, where nobody asked for them: as such sums
# do. A choice of patience.
_OF_THIRD = 10.0


class Deciding:
    """Control variates whose remainders rows decide on, and bounds; see `row_bounds.bound_rows`."""

    def __init__(
        self,
        expansion: Expansion,
        active: np.ndarray,
        bound: str | float,
        intensity: float,
        temperature: float,
        operations: int,
        patience: float = np.inf,
    ):
        self.patience = patience  # Seconds that the choice may take, by a count.
        self.active, self._bound, self._operations = active, bound, operations
        self._scale = {"temperature": temperature, "intensity": intensity}
        self._tables: list[tuple[Reference, RowBounds]] = []
        self._seconds: float | None = None  # That bounds may take, and why.
        self._limit = "about as long as NUTS on all rows"
        self._second = self.expansion = expansion
        self.order = expansion.order  # Of the control variates.
        # Rows that the surrogate reads, and what they are at some reference.
        self.exact = np.zeros(0, dtype=np.int64)
        self._packed: tuple[Reference, np.ndarray] | None = None

    def __getstate__(self) -> dict[str, Any]:
        unkept = ("_second", "expansion", "_packed")
        return {k: v for k, v in vars(self).items() if k not in unkept}

    def connect(self, expansion: Expansion) -> None:
        """Take the model's compiled functions again, where this was unpickled."""
        third = expansion.third() if self.order == 3 else expansion
        assert third is not None  # it was there when the step was made
        self._second, self.expansion, self._packed = expansion, third, None

    @property
    def model(self) -> Model:
        """As compiled transitions take it."""
        names = PARAMETER_FUNCTIONS if len(self.exact) else (*PARAMETER_FUNCTIONS[:2], None)
        parameters = self._second.model(*names).functions
        rows = self.expansion.model(*ROW_FUNCTIONS)
        return rows._replace(functions=np.concatenate([parameters, rows.functions]))

    def packed(self, reference: Reference) -> np.ndarray:
        """Return the rows that the surrogate reads, shape (width, e), anchored at a reference."""
        if self._packed is None or self._packed[0] is not reference:
            rows = self._second.take(self.exact)
            if len(self.exact):
                self._second.anchor(reference.center, rows)
            self._packed = reference, rows
        return self._packed[1]

    def choose(
        self, order: int | str, modes: Sequence[Preparation]
    ) -> list[tuple[Forecast, float]]:
        """Choose rows for the surrogate, and the order, or take that one; `verify` at all modes."""
        found = self._chosen(order, modes)
        self._seconds = np.inf  # a chain's references have bounds whatever they take
        return found

    def _chosen(
        self, order: int | str, modes: Sequence[Preparation]
    ) -> list[tuple[Forecast, float]]:
        found = self._ordered(order, modes)
        if min(f.accepted[2] for f, _ in found) >= _ACCEPTED:
            return found
        at = modes[0].reference
        count = int(np.clip(_TRIED_ROWS / self._second.n_rows, _FEWEST_TRIED, _MOST_TRIED))
        # As wide as starts of chains: a surrogate that lacks mass in a tail holds chains there.
        self.exact = exact_rows(
            self._second, at, self._points(at, modes[0].factor, count, WIDER),
            temperature=self._scale["temperature"], gradients=GRADIENTS, row=EXACT,
            others=DRAW + self.moving_time(GRADIENTS) + self._tables[-1][1].reading.time,
        )  # fmt: skip
        if not len(self.exact):
            return found
        self._tables = []
        return self._ordered(order, modes)

    def moving_time(self, gradients: float) -> float:
        """Time of a move of the surrogate that takes so many gradients."""
        size = self._second.phi_size
        return gradients * gradient_time(len(self.active), size, len(self.exact))

    def _ordered(
        self, order: int | str, modes: Sequence[Preparation]
    ) -> list[tuple[Forecast, float]]:
        third = self._third(order, modes[0])
        for expansion in [self._second] if third is None else [third, self._second]:
            self.expansion, self.order = expansion, expansion.order
            self._tables = [t for t in self._tables if t[1].order == expansion.order]
            try:
                return [self.verify(p.reference, modes[0].factor, p.factor) for p in modes]
            except TallModelError:
                if expansion.order in (2, order):
                    raise
        raise AssertionError

    def _third(self, order: int | str, home: Preparation) -> Expansion | None:
        """Return control variates of order 3, if they are asked for or worth their sums."""
        if order == 3:
            third = self._second.third()
            if third is None:
                raise TallModelError(
                    "control_variate_order=3 needs rows of "
                    f"{', '.join(map(repr, self._second.likelihood))} with at most three linear "
                    "predictors each, and third derivatives that compile (not those of gamma "
                    "functions) in seconds; these have "
                    f'{self._second.n_predictors} predictors. Use control_variate_order="auto".'
                )
            return third
        if order == 2 or not isinstance(self._bound, str):
            return None
        bounds = self.bounds(home.reference, home.factor)
        strata, seen = bounds.table.elements.shape
        terms = math.comb(seen + 2, 3) * self._second.n_predictors**2
        most = _MOST_TERMS * min(1.0, self.patience / _OF_THIRD)
        costly = self._second.n_rows * terms > most or strata * terms > _MOST_CUBES
        if bounds.per_decision <= _FEW_ROWS or costly or self._sharp(bounds, home):
            return None
        third = self._second.third()
        try:
            seconds = min(_OF_THIRD, self.patience)
            sharper = third and self._bounds(third, home.reference, home.factor, seconds)
        except TallModelError:
            return None
        affordable = _DEARER * bounds.reading.time + _SHARE * DRAW
        return third if sharper and sharper.reading.time < affordable else None

    def _sharp(self, bounds: RowBounds, home: Preparation) -> bool:
        """Whether decisions take little of a draw and accept nearly all, as they are."""
        if bounds.reading.time >= _SHARE * DRAW:
            return False
        found = self._forecast(home.reference, home.factor, bounds)
        return found.excess <= 1.0 and max(found.accepted[:2]) >= _ACCEPTED

    def bounds(self, reference: Reference, factor: np.ndarray) -> RowBounds:
        """Return bounds at a reference, made where they are first asked for.

        Their metrics are of points spread by `factor`.
        """
        return self._bounds(self.expansion, reference, factor)

    def _bounds(
        self,
        expansion: Expansion,
        reference: Reference,
        factor: np.ndarray,
        seconds: float = np.inf,
    ) -> RowBounds:
        for at, bounds in self._tables:
            same = at is reference or np.array_equal(at.theta, reference.theta)
            if same and bounds.order == expansion.order:
                return bounds
        size = expansion.phi_size
        count = min(max(_FEWEST_POINTS, _POINTS * size), _MOST_POINTS)
        points = self._points(reference, factor, count)
        if self._seconds is None:
            gradient = counted_gradient(self._operations, self._second.n_rows)
            nuts = SAVED_SECONDS + 2 * DRAWS * FEW_GRADIENTS * gradient
            self._seconds = min(nuts, self.patience)
            if self.patience < nuts:
                self._limit = "the longest that pms.auto() waits for them"
        bounds = bound_rows(
            expansion, reference, points, self._bound, **self._scale, exact=self.exact,
            seconds=min(seconds, self._seconds), limit=self._limit,
        )  # fmt: skip
        self._tables = [*self._tables[-_MOST_TABLES:], (reference, bounds)]
        return bounds

    def _points(
        self, reference: Reference, factor: np.ndarray, count: int, wider: float = 1.0
    ) -> np.ndarray:
        """Values of phi, (N, P), spread as the posterior is, or wider; the same for a reference."""
        z = np.random.default_rng(0).standard_normal((count, len(self.active)))
        theta = reference.theta.copy()
        found = np.empty((count, self._second.phi_size))
        for shift, out in zip(scaled(factor, z), found, strict=True):
            theta[self.active] = reference.theta[self.active] + wider * shift
            out[:] = self._second.parameters(theta)[0]
        return found

    def verify(
        self, reference: Reference, metric: np.ndarray, factor: np.ndarray
    ) -> tuple[Forecast, float]:
        """Compare bounds and surrogate with all rows at a few points spread by `factor`.

        Return what decisions will be like, and what share of points the surrogate underrates.
        Raises `TallModelError` if a row exceeds its bound.
        """
        bounds = self.bounds(reference, metric)
        found = self._forecast(reference, factor, bounds)
        if not found.excess <= 1.0:
            given = "" if isinstance(self._bound, str) else f" by bound={self._bound:g}"
            raise TallModelError(
                f"What was taken{given} for a bound on the remainder of the log-likelihood of "
                f"{', '.join(map(repr, self._second.likelihood))} is exceeded {found.excess:.3g} "
                f"times in row {found.row:,}. "
                + ("Give a larger one, or use" if given else "Use")
                + " another step (HMCECS, pm.NUTS)."
            )
        points = self._points(reference, factor, self._affordable(_FEWEST_COMPARED, _MOST_COMPARED))
        temperature = self._scale["temperature"]
        return found, underrated(self.expansion, reference, bounds, points, temperature)

    def _forecast(self, reference: Reference, factor: np.ndarray, bounds: RowBounds) -> Forecast:
        pairs = self._points(reference, factor, self._affordable(_FEWEST_PAIRED, _MOST_PAIRED))
        return forecast(self.expansion, reference, bounds, pairs, **self._scale)

    def _affordable(self, fewest: int, most: int) -> int:
        """Points at which all rows may be read at set-up."""
        return int(np.clip(_COMPARED_ROWS / self._second.n_rows, fewest, most))
