"""Rows that see the same elements of phi, metrics in these, and tables to draw rows by."""

import math
from collections.abc import Sequence

import numpy as np

from pymc_subsample.bounds.kernel import StratumBounds, add_cubes, alias_table, distances, whiten
from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.expansion.sums import LinearSums
from pymc_subsample.model import TallModelError


class UnboundedError(TallModelError):
    """Rows have no bounds that serve; who asked for them says what to use instead."""


# Elements of all strata's metrics, and of phi that all rows see. A choice: 32 MB, of which a metric
# of 500 elements takes 2.
_MOST_METRICS, _MOST_COMMON = 4_000_000, 500
# Sums of terms of order 3: 200 MB.
_MOST_CUBES = 25_000_000
# Of a bound, over the mean of its stratum: below it, single precision would tell. It has three of
# the six digits left.
_LEAST = 1e-3
# What rounding to single precision may do to a bound. Its unit is 6e-8, and sums have some ten
# terms. Of the diagonal, added to metrics that have no inverse: below what single precision sees;
# and what divides nothing by zero.
SINGLE = 1e-6
_RIDGE, _TINY = 1e-10, 1e-300
# a! b! c! of exponents, by how many pairs of three elements are equal.
_BY_EQUAL_PAIRS = np.array([1.0, 2.0, np.nan, 6.0])


class Strata:
    """Rows that see the same k elements of phi, S sets of them, and metrics in these elements.

    `points`, values of phi, shape (N, P), are spread as the posterior is. `elements`, shape (S, k),
    says which; `factor` and `metric`, shape (S, k, k), are the inverses of W_s, and W_s; see
    `kernel`. Raises `UnboundedError` if there are too many.
    """

    def __init__(self, expansion: Expansion, points: np.ndarray):
        sums = expansion.sums
        assert isinstance(sums, LinearSums)
        self.sums, self._points = sums, points
        self.size = len(sums.common) + len(sums.slots)
        self._keys = np.zeros((1, len(sums.slots)), dtype=np.int64)
        if sums.slots:
            found = (np.unique(sums.levels(rows).T, axis=0) for rows in expansion.chunks())
            self._keys = np.unique(np.concatenate(list(found)), axis=0)
        count = len(self._keys)
        self._levels = [np.unique(column) for column in self._keys.T]
        codes = math.prod(map(len, self._levels))
        crowded = count * self.size**2 > _MOST_METRICS or codes > np.iinfo(np.int64).max
        if crowded or len(sums.common) > _MOST_COMMON:
            raise UnboundedError(
                f"ScalableMH keeps a metric for each set of parameters that a row depends on: "
                f"{count:,} sets of {self.size} parameters in this model, too many to use in every "
                "draw."
            )
        cubes = math.comb(self.size + 2, 3) if expansion.order == 3 else 0
        if count * cubes > _MOST_CUBES:
            raise TallModelError(
                f"Control variates of order 3 of {self.size} parameters that a row depends on, in "
                f"{count:,} such sets, are {count * cubes:,} sums, too many to use in every draw "
                f"(at most {_MOST_CUBES:,}). Use control_variate_order=2."
            )
        self._known = self._code(self._keys.T)
        common = np.tile(sums.common, (count, 1))
        self.elements = np.concatenate([common, self._keys], axis=1)
        self.factor = np.array([self._factor(points[:, e]) for e in self.elements])
        self.metric = np.linalg.inv(self.factor) if self.size else self.factor
        # Inverses of triangular matrices are triangular but for rounding.
        self.metric = np.ascontiguousarray(np.tril(self.metric))
        self._repeated = _repeated(self.size if expansion.order == 3 else 0)
        self._cubes = np.zeros((count, len(self._repeated)))

    @staticmethod
    def _factor(points: np.ndarray) -> np.ndarray:
        cov = np.atleast_2d(np.cov(points.T))
        scale = np.sqrt(np.diag(cov))
        scale = np.where(scale > 0, scale, 1.0)
        corr = cov / np.outer(scale, scale) + _RIDGE * np.eye(len(scale))
        values, vectors = np.linalg.eigh(corr)
        root = vectors * np.sqrt(np.maximum(values, _RIDGE))
        # The triangular factor of root root'.
        upper = np.linalg.qr(root.T, mode="r")
        lower = upper.T * np.where(np.diag(upper) < 0, -1.0, 1.0)
        return np.ascontiguousarray(scale[:, None] * lower)

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the stratum of each packed row."""
        return np.searchsorted(self._known, self._code(self.sums.levels(rows)))

    def _code(self, levels: np.ndarray) -> np.ndarray:
        """Return numbers of combinations of levels, shape (k, m), that sort as these do."""
        code = np.zeros(levels.shape[1], dtype=np.int64)
        for known, column in zip(self._levels, levels, strict=True):
            code = code * len(known) + np.searchsorted(known, column)
        return code

    def whitened(self, rows: np.ndarray, stratum: np.ndarray, predictor: int) -> np.ndarray:
        """Return the gradient of a predictor of packed rows in u, shape (m, k)."""
        found = np.empty((rows.shape[1], self.size))
        whiten(self.factor, stratum, self.sums.local_design(rows, predictor), found)
        return found

    def add_cubes(
        self,
        rows: np.ndarray,
        stratum: np.ndarray,
        gradients: Sequence[np.ndarray],
        without: np.ndarray,
    ) -> None:
        """Add the terms of order 3 of anchored rows but some, where the expansion has them."""
        if not self._cubes.size:
            return
        order = np.argsort(stratum, kind="stable")
        order = order[~np.isin(order, without)]
        for parts in self.sums.thirds(rows, gradients):
            add_cubes(*(x[order] for x in parts), stratum[order], self._cubes)

    def distances(self, center: np.ndarray) -> np.ndarray:
        """Return r_s at some of the points, shape (k, S)."""
        # A choice: 200 points show what is typical to 4%.
        found = np.empty((min(len(self._points), 200), len(self.elements)))
        for point, out in zip(self._points, found, strict=False):
            distances(self.elements, self.metric, len(out), point, center, out)
        return found

    def table(
        self,
        stratum: np.ndarray,
        bound: np.ndarray,
        always: np.ndarray,
        power: int,
        without: np.ndarray,
    ) -> StratumBounds:
        """Sort rows by strata, and make the alias tables of those that are drawn."""
        decisive = np.ones(len(always), dtype=bool)
        decisive[without] = False
        drawn = np.flatnonzero(~always & decisive)
        drawn = drawn[np.argsort(stratum[drawn], kind="stable")]
        count = len(self.elements)
        start = np.concatenate([[0], np.cumsum(np.bincount(stratum[drawn], minlength=count))])
        threshold = np.empty(len(drawn), dtype=np.float32)
        alias = np.empty(len(drawn), dtype=np.int32)
        sizes, total = np.empty(len(drawn), dtype=np.float32), np.zeros(count)
        for s in range(count):
            part = slice(start[s], start[s + 1])
            own = bound[drawn[part]].astype(float)
            if not len(own):
                continue
            least = max(_LEAST * own.mean(), _TINY)
            own = np.maximum(own, least)
            alias_table(own / own.mean(), threshold[part], alias[part])
            # The tables' own probabilities are what bounds are proportional to.
            share = threshold[part].astype(float)
            np.add.at(share, alias[part], 1.0 - threshold[part])
            share /= len(own)
            total[s] = (1.0 + SINGLE) * np.max(own / share)
            sizes[part] = total[s] * share
        return StratumBounds(
            np.ascontiguousarray(self.elements), self.metric, power, self._cubes / self._repeated,
                np.zeros(0), np.ones((count, 0)),
            total, start.astype(np.int64), drawn.astype(np.int32), sizes, threshold, alias,
            np.flatnonzero(always & decisive).astype(np.int32),
        )  # fmt: skip


def _repeated(size: int) -> np.ndarray:
    """Return what divides derivatives in a >= b >= c as Taylor coefficients, shape (K,)."""
    b, c = np.tril_indices(size)
    pairs = (np.add(b == a, c == a, dtype=int) + (b == c) for a in range(size))
    found = [_BY_EQUAL_PAIRS[p[: (a + 1) * (a + 2) // 2]] for a, p in enumerate(pairs)]
    return np.concatenate([np.zeros(0), *found])
