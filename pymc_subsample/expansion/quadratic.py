"""The log posterior of rows, and around a reference with the log-likelihood to second order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_subsample.compiled.process import one_thread
from pymc_subsample.expansion.curvature import times
from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.expansion.reference import Reference, summed

# Hessian columns that are computed at once.
_COLUMNS = 128
# Of the power iteration, and its differences in standard deviations. Choices: the size is wanted to
# a few percent, and third derivatives add a millionth at such a shift.
_POWER_STEPS = 50
_SHIFT = 1e-3
# Of differences, near the cubic root of the precision.
STEP = 1e-5
# Units whose derivatives change less when others move are apart.
_APART = 1e-4


def steps(theta: Any) -> Any:
    """Return by how much to move elements of theta, of any shape, for differences of gradients."""
    return STEP * np.maximum(1.0, np.abs(theta))


@dataclass(frozen=True)
class Quadratic:
    """The prior, and the log-likelihood of rows to second order around a reference: reads none.

    At the reference, where it is taken unless theta is given, it has the log posterior's own
    value and derivatives.
    """

    expansion: Expansion
    reference: Reference

    @property
    def theta(self) -> np.ndarray:
        """The reference point, shape (d,)."""
        return self.reference.theta

    @property
    def height(self) -> float:
        """The (tempered) log posterior at the reference point."""
        return self.expansion.parameters(self.theta)[1] + self.reference.level

    @property
    def ascent(self) -> np.ndarray:
        """Its gradient in theta there, shape (d,)."""
        return self.expansion.pull_back(self.theta, self.reference.slope)

    def log_density(self, theta: np.ndarray) -> float:
        """Log prior plus the quadratic log-likelihood at theta."""
        phi, logprior = self.expansion.parameters(theta)
        shift = phi - self.reference.center
        bent = shift @ times(self.reference.curvature, shift)
        return logprior + self.reference.level + self.reference.slope @ shift + 0.5 * bent

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        """Gradient in theta, shape (d,), of the quadratic log-likelihood plus the prior."""
        phi, _ = self.expansion.parameters(theta)
        shift = phi - self.reference.center
        slope = self.reference.slope + times(self.reference.curvature, shift)
        return self.expansion.pull_back(theta, slope)

    @one_thread
    @np.errstate(all="ignore")  # what is not finite shows in the matrix
    def precision(
        self, active: np.ndarray, theta: np.ndarray | None = None, rough: bool = False
    ) -> np.ndarray:
        """Negative Hessian, shape (a, a), in elements `active`.

        The difference of the gradient: central or, in half the time, a rough one. NaN where the
        reference's sums are not finite.
        """
        if not self.reference.is_finite:
            return np.full((len(active), len(active)), np.nan)
        order = np.argsort(active)
        places, blocks = np.zeros((0, 0), dtype=int), None
        for some in sorted(self.expansion.units, key=np.size)[-1:]:
            if some.size <= len(active) and np.isin(some, active).all():
                places = order[np.searchsorted(active, some, sorter=order)]
                blocks = self.unit_hessians(some, theta)
        rest = np.arange(len(active))
        if blocks is not None:
            rest = np.setdiff1d(rest, places)
        columns = self.hessian_columns(active[rest], theta, rough)
        matrix = np.zeros((len(active), len(active)))
        found = np.array([column[active] for column in columns])
        matrix[rest] = found.reshape(len(rest), len(active))
        within = matrix[np.ix_(rest, rest)]
        matrix[:, rest] = matrix[rest].T
        matrix[np.ix_(rest, rest)] = 0.5 * (within + within.T)
        if blocks is not None:
            matrix[places.T[:, :, None], places.T[:, None, :]] = blocks
        return -matrix

    def largest_curvature(
        self, active: np.ndarray, scale: np.ndarray, rng: np.random.Generator
    ) -> float:
        """Largest eigenvalue of the precision in units of `scale`, (a,), less a few percent."""
        direction = rng.standard_normal(len(active))
        size = 0.0
        for _ in range(_POWER_STEPS):
            direction /= np.linalg.norm(direction)
            points = np.tile(self.theta, (2, 1))
            points[:, active] += np.outer([_SHIFT, -_SHIFT], scale * direction)
            forth, back = (self.gradient(point)[active] for point in points)
            direction = scale * (back - forth) / (2 * _SHIFT)
            size = float(np.linalg.norm(direction))
        return size

    @np.errstate(all="ignore")
    def scales(self, active: np.ndarray) -> np.ndarray:
        """Return standard deviations, (a,), by the precision's diagonal alone; 1 if not known."""
        if not self.reference.is_finite:
            return np.ones(len(active))
        diagonal = np.zeros(self.expansion.theta_size)
        rest = active
        for places in self.expansion.units:
            blocks = self.unit_hessians(places)
            if blocks is not None:
                diagonal[places] = np.diagonal(blocks, axis1=1, axis2=2).T
                rest = np.setdiff1d(rest, places)
        columns = self.hessian_columns(rest)
        diagonal[rest] = [column[a] for a, column in zip(rest, columns, strict=True)]
        found = np.abs(diagonal[active])
        known = (found > 0) & np.isfinite(found)
        return np.where(known, 1 / np.sqrt(np.where(known, found, 1.0)), 1.0)

    def unit_hessians(
        self, places: np.ndarray, theta: np.ndarray | None = None
    ) -> np.ndarray | None:
        """Hessians, shape (J, k, k), in elements places[:, j] of units j that do not meet.

        By moving all units at once. A second time they move by unequal amounts: None where that
        changes a number, since units meet, as in rows that belong to several of them.
        """
        theta = self.theta if theta is None else theta
        k, units = places.shape
        found = []
        for weight in (np.ones(units), np.random.default_rng(0).uniform(0.5, 1.5, units)):
            blocks = np.empty((units, k, k))
            for b, elements in enumerate(places):
                h = steps(theta[elements]) * weight
                points = np.array([theta, theta])
                points[:, elements] += h, -h
                forth, back = (self.gradient(point)[places] for point in points)
                blocks[:, :, b] = ((forth - back) / (2 * h)).T
            found.append(0.5 * (blocks + blocks.transpose(0, 2, 1)))
        root = np.sqrt(np.abs(np.diagonal(found[0], axis1=1, axis2=2)))
        size = root[:, :, None] * root[:, None, :]
        return found[0] if np.all(np.abs(found[0] - found[1]) <= _APART * size) else None

    def hessian_columns(
        self, active: np.ndarray, theta: np.ndarray | None = None, rough: bool = False
    ) -> Iterator[np.ndarray]:
        """Columns of the Hessian, (d,), one at a time.

        The curvature multiplies the differences of many columns at once.
        """
        theta = self.theta if theta is None else theta
        here = self.gradient(theta) if rough else None
        for start in range(0, len(active), _COLUMNS):
            points, widths = [], []
            for a in active[start : start + _COLUMNS]:
                h = steps(theta[a])
                widths.append(h if rough else 2 * h)
                for sign in (h,) if rough else (h, -h):
                    point = theta.copy()
                    point[a] += sign
                    points.append(point)
            phis = np.array([self.expansion.parameters(point)[0] for point in points])
            bent = times(self.reference.curvature, (phis - self.reference.center).T)
            slopes = np.ascontiguousarray((self.reference.slope[:, None] + bent).T)
            pull = self.expansion.pull_back
            pulled = [pull(x, slope) for x, slope in zip(points, slopes, strict=True)]
            backs = [here] * len(widths) if rough else pulled[1::2]
            for forth, back, width in zip(pulled[:: 1 if rough else 2], backs, widths, strict=True):
                yield (forth - back) / width


@dataclass(frozen=True)
class Posterior:
    """The prior, and the log-likelihood of all rows or of some that stand for them, tempered."""

    expansion: Expansion
    temperature: float = 1.0
    # Batches of packed rows, which are anchored anew at every point; None for all rows.
    rows: Sequence[np.ndarray] | None = None

    @property
    def weight(self) -> float:
        """How much each row counts: n / (m T) of m rows."""
        if self.rows is None:
            return 1.0 / self.temperature
        m = sum(part.shape[1] for part in self.rows)
        return self.expansion.n_rows / (m * self.temperature)

    def at(self, theta: np.ndarray, curved: bool = True) -> Quadratic:
        """Sum the rows at theta, by a pass over them; without curvature if so asked."""
        found = summed(self.expansion, theta, self.rows, self.weight, curved)
        return Quadratic(self.expansion, found)
