"""The reference point: where it is, and what is summed over all rows there."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pymc_subsample.compiled.process import one_thread
from pymc_subsample.expansion.curvature import Totals, add, as_array, sum_of
from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.kernels.model import Sums


@dataclass(frozen=True)
class Reference:
    """Expansion point and full-data sums, tempered: divided by the temperature."""

    theta: np.ndarray  # Point in PyMC's unconstrained space, shape (d,).
    center: np.ndarray  # phi at theta, shape (P,).
    # Of shapes (), (P,), (P, P) or (3, k): sums over all rows of l*, its gradient and its Hessian
    # in phi. Of the Hessian, k elements (row, column and value) where the others are zero, or not
    # known, as beyond the diagonal of a large model without linear predictors.
    level: float
    slope: np.ndarray
    curvature: np.ndarray
    # How many rows have a slope but no curvature: their control variates are of order 1.
    flat: int = 0

    @property
    def is_finite(self) -> bool:
        """Whether the sums of slopes and curvatures are finite: far out, rates overflow."""
        return bool(np.all(np.isfinite(self.slope)) and np.all(np.isfinite(self.curvature)))

    @property
    def is_smooth(self) -> bool:
        """Whether they are, and all rows have a curvature."""
        return self.is_finite and not self.flat

    def sums(self, order: int) -> Sums:
        """As compiled transitions take them, with control variates of some order."""
        return Sums(self.center, self.level, self.slope, self.curvature, order)


def no_sums(size: int) -> Sums:
    """Return the sums of no control variates of `size` elements of phi."""
    return Sums(np.zeros(size), 0.0, np.zeros(size), np.zeros((0, 0)), 0)


def reference_at(expansion: Expansion, theta: np.ndarray, temperature: float = 1.0) -> Reference:
    """Sum over all rows at theta: one pass."""
    return summed(expansion, theta, None, 1.0 / temperature)


def extended(expansion: Expansion, before: Reference, n_rows: int) -> Reference:
    """Add rows from `n_rows` on to what a reference has summed over those before: no temperature.

    The expansion's coordinates may be others than then.
    """
    curvature = sum_of(before.curvature, expansion.curvature, expansion.phi_size)
    begun = np.array([before.level]), before.slope.copy(), curvature, np.array([float(before.flat)])
    return summed(expansion, before.theta, None, 1.0, begun=begun, begin=n_rows)


@one_thread
@np.errstate(all="ignore")  # what is not finite shows in the sums
def summed(
    expansion: Expansion,
    theta: np.ndarray,
    batches: Sequence[np.ndarray] | None,
    weight: float,
    curved: bool = True,
    *,
    begun: Totals | None = None,
    begin: int = 0,
) -> Reference:
    """Sum some batches of rows, or all rows, at theta, each row times `weight`.

    Without curvature if so asked; from row `begin` on, to what was summed before.
    """
    center, _ = expansion.parameters(theta)
    level, slope, curvature, flat = total = begun or expansion.empty_totals(curved)
    size = curvature.nbytes if isinstance(curvature, np.ndarray) else 0
    if batches is None:
        parts = expansion.over(Expansion.totals, center, curved, begin=begin, result_bytes=size)
    else:
        parts = expansion.workers.map(
            lambda rows: expansion.totals([rows], center, curved), batches, size
        )
    for part in parts:
        for whole, some in zip(total, part, strict=True):
            add(whole, some)
    return Reference(
        np.array(theta, dtype=float), center, weight * float(level[0]), weight * slope,
        as_array(curvature, weight), int(flat[0]),
    )  # fmt: skip
