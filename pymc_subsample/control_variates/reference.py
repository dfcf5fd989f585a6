"""The reference point: where it is, and what is summed over all rows there."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pymc_subsample.blas import one_thread
from pymc_subsample.control_variates.curvature import Sum, add, as_array, empty_sum, sum_of, times
from pymc_subsample.control_variates.expansion import Expansion
from pymc_subsample.kernels.model import Sums
from pymc_subsample.likelihood import TallModelError

# Hessian columns that are computed at once.
_COLUMNS = 128
# Of the power iteration, and its differences in standard deviations.
_POWER_STEPS = 50
_SHIFT = 1e-3
# Units whose derivatives change less when others move are apart.
_APART = 1e-4
# Rows that are named.
_SHOWN = 10


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

    @property
    def is_finite(self) -> bool:
        """Whether the rows have a slope and a curvature there: far out, rates overflow."""
        return bool(np.all(np.isfinite(self.slope)) and np.all(np.isfinite(self.curvature)))

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
    begun = np.array([before.level]), before.slope.copy(), curvature
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
    begun: tuple[np.ndarray, np.ndarray, Sum] | None = None,
    begin: int = 0,
) -> Reference:
    """Sum some batches of rows, or all rows, at theta, each row times `weight`.

    Without curvature if so asked; from row `begin` on, to what was summed before.
    """
    center, _ = expansion.parameters(theta)
    level, slope, curvature = total = begun or _no_sum(expansion, curved)
    size = curvature.nbytes if isinstance(curvature, np.ndarray) else 0
    if batches is None:
        parts = expansion.over(sums_at, center, curved, begin=begin, result_bytes=size)
    else:
        parts = expansion.passes.map(
            lambda rows: sums_at(expansion, [rows], center, curved), batches, size
        )
    for part in parts:
        for whole, some in zip(total, part, strict=True):
            add(whole, some)
    return Reference(
        np.array(theta, dtype=float), center, weight * float(level[0]), weight * slope,
        as_array(curvature, weight),
    )  # fmt: skip


def sums_at(
    expansion: Expansion, batches: Iterable[np.ndarray], center: np.ndarray, curved: bool
) -> tuple[np.ndarray, np.ndarray, Sum]:
    """Sum l*, its gradient and, if so asked, its Hessian over some rows."""
    level, slope, curvature = _no_sum(expansion, curved)
    for rows in batches:
        expansion.anchor(center, rows)
        expansion.sums(center, rows, level, slope, curvature)
    return level, slope, curvature


def refuse_undefined(expansion: Expansion, reference: Reference) -> None:
    """Raise `TallModelError`, which names rows, if some have no derivatives at the reference."""
    if reference.is_finite:
        return
    bad: list[int] = []
    start = 0
    for found, size in expansion.over(_undefined_of, reference.center):
        bad += (start + found).tolist()
        start += size
    if bad:
        raise undefined(expansion, bad)


def undefined(expansion: Expansion, rows: Sequence[int]) -> TallModelError:
    """Return the refusal of rows that have a log-likelihood but no derivatives."""
    more = " and maybe more" * (len(rows) > _SHOWN)
    return TallModelError(
        f"The derivatives of the log-likelihood of {', '.join(map(repr, expansion.observed))} are "
        f"not finite where it is itself, in rows {expansion.store.named(rows[:_SHOWN])}{more}, and "
        "nothing can move by such gradients. Look for infinite or extreme numbers in these rows, "
        "such as open ends of intervals, and write their log-likelihood without them."
    )


def without_derivatives(expansion: Expansion, rows: np.ndarray, center: np.ndarray) -> np.ndarray:
    """Return which of some packed rows have a log-likelihood at `center` but no derivatives."""

    def among(part: np.ndarray) -> list[int]:
        level, slope, curvature = sums_at(
            expansion, [np.ascontiguousarray(rows[:, part])], center, True
        )
        if np.all(np.isfinite(slope)) and np.all(np.isfinite(as_array(curvature, 1.0))):
            return []
        if len(part) == 1:
            return part.tolist() if np.isfinite(level[0]) else []
        return [row for half in np.array_split(part, 2) for row in among(half)]

    with np.errstate(all="ignore"):
        return np.array(among(np.arange(rows.shape[1])), dtype=int)


def _undefined_of(
    expansion: Expansion, batches: Iterable[np.ndarray], center: np.ndarray
) -> tuple[np.ndarray, int]:
    found, start = [np.zeros(0, dtype=int)], 0
    for rows in batches:
        found.append(start + without_derivatives(expansion, rows, center))
        start += rows.shape[1]
    return np.concatenate(found), start


def _no_sum(expansion: Expansion, curved: bool) -> tuple[np.ndarray, np.ndarray, Sum]:
    size = expansion.phi_size
    curvature = empty_sum(expansion.curvature, size) if curved else np.zeros((0, 0))
    return np.zeros(1), np.zeros(size), curvature


def log_posterior(expansion: Expansion, reference: Reference) -> float:
    """Return the (tempered) log posterior at the reference point."""
    return expansion.parameters(reference.theta)[1] + reference.level


def log_density(expansion: Expansion, reference: Reference, theta: np.ndarray) -> float:
    """Log prior plus the quadratic log-likelihood at theta."""
    phi, logprior = expansion.parameters(theta)
    shift = phi - reference.center
    bent = shift @ times(reference.curvature, shift)
    return logprior + reference.level + reference.slope @ shift + 0.5 * bent


def gradient(expansion: Expansion, reference: Reference, theta: np.ndarray) -> np.ndarray:
    """Gradient in theta, shape (d,), of the quadratic log-likelihood plus the prior."""
    phi, _ = expansion.parameters(theta)
    shift = phi - reference.center
    return expansion.pull_back(theta, reference.slope + times(reference.curvature, shift))


@one_thread
def precision(
    expansion: Expansion,
    reference: Reference,
    active: np.ndarray,
    theta: np.ndarray | None = None,
    rough: bool = False,
) -> np.ndarray:
    """Negative Hessian of prior and quadratic log-likelihood, shape (a, a), in elements `active`.

    At the reference, where it is taken unless theta is given, they have the log posterior's own
    derivatives. The Hessian is the difference of their gradient: central or, in half the time, a
    rough one. NaN where the reference's sums are not finite.
    """
    if not reference.is_finite:
        return np.full((len(active), len(active)), np.nan)
    order = np.argsort(active)
    places, blocks = np.zeros((0, 0), dtype=int), None
    for some in sorted(expansion.units, key=np.size)[-1:]:
        if some.size <= len(active) and np.isin(some, active).all():
            places = order[np.searchsorted(active, some, sorter=order)]
            blocks = unit_hessians(expansion, reference, some, theta)
    rest = np.arange(len(active))
    if blocks is not None:
        rest = np.setdiff1d(rest, places)
    columns = hessian_columns(expansion, reference, active[rest], theta, rough)
    matrix = np.zeros((len(active), len(active)))
    matrix[rest] = np.array([column[active] for column in columns]).reshape(len(rest), len(active))
    within = matrix[np.ix_(rest, rest)]
    matrix[:, rest] = matrix[rest].T
    matrix[np.ix_(rest, rest)] = 0.5 * (within + within.T)
    if blocks is not None:
        matrix[places.T[:, :, None], places.T[:, None, :]] = blocks
    return -matrix


def largest_curvature(
    expansion: Expansion,
    reference: Reference,
    active: np.ndarray,
    scale: np.ndarray,
    rng: np.random.Generator,
) -> float:
    """Largest eigenvalue of the precision in units of `scale`, (a,), less a few percent."""
    direction = rng.standard_normal(len(active))
    size = 0.0
    for _ in range(_POWER_STEPS):
        direction /= np.linalg.norm(direction)
        points = np.tile(reference.theta, (2, 1))
        points[:, active] += np.outer([_SHIFT, -_SHIFT], scale * direction)
        forth, back = (gradient(expansion, reference, point)[active] for point in points)
        direction = scale * (back - forth) / (2 * _SHIFT)
        size = float(np.linalg.norm(direction))
    return size


def scales(expansion: Expansion, reference: Reference, active: np.ndarray) -> np.ndarray:
    """Return standard deviations, (a,), by the diagonal of the precision alone; 1 if not known."""
    if not reference.is_finite:
        return np.ones(len(active))
    diagonal = np.zeros(expansion.theta_size)
    rest = active
    for places in expansion.units:
        blocks = unit_hessians(expansion, reference, places)
        if blocks is not None:
            diagonal[places] = np.diagonal(blocks, axis1=1, axis2=2).T
            rest = np.setdiff1d(rest, places)
    columns = hessian_columns(expansion, reference, rest)
    diagonal[rest] = [column[a] for a, column in zip(rest, columns, strict=True)]
    found = np.abs(diagonal[active])
    known = (found > 0) & np.isfinite(found)
    return np.where(known, 1 / np.sqrt(np.where(known, found, 1.0)), 1.0)


def unit_hessians(
    expansion: Expansion, reference: Reference, places: np.ndarray, theta: np.ndarray | None = None
) -> np.ndarray | None:
    """Hessians, shape (J, k, k), in elements places[:, j] of units j that meet in no derivative.

    Of what `hessian_columns` differentiates, by moving all units at once. A second time they move
    by unequal amounts: None where that changes a number, since units meet, as in rows that belong
    to several of them.
    """
    theta = reference.theta if theta is None else theta
    k, units = places.shape
    found = []
    for weight in (np.ones(units), np.random.default_rng(0).uniform(0.5, 1.5, units)):
        blocks = np.empty((units, k, k))
        for b, elements in enumerate(places):
            h = 1e-5 * np.maximum(1.0, np.abs(theta[elements])) * weight
            points = np.array([theta, theta])
            points[:, elements] += h, -h
            forth, back = (gradient(expansion, reference, point)[places] for point in points)
            blocks[:, :, b] = ((forth - back) / (2 * h)).T
        found.append(0.5 * (blocks + blocks.transpose(0, 2, 1)))
    root = np.sqrt(np.abs(np.diagonal(found[0], axis1=1, axis2=2)))
    size = root[:, :, None] * root[:, None, :]
    return found[0] if np.all(np.abs(found[0] - found[1]) <= _APART * size) else None


def hessian_columns(
    expansion: Expansion,
    reference: Reference,
    active: np.ndarray,
    theta: np.ndarray | None = None,
    rough: bool = False,
) -> Iterator[np.ndarray]:
    """Differentiate the quadratic log-likelihood and the prior twice: a column, (d,), at a time.

    The curvature multiplies the differences of many columns at once.
    """
    theta = reference.theta if theta is None else theta
    here = gradient(expansion, reference, theta) if rough else None
    for start in range(0, len(active), _COLUMNS):
        points, widths = [], []
        for a in active[start : start + _COLUMNS]:
            h = 1e-5 * max(1.0, abs(theta[a]))
            widths.append(h if rough else 2 * h)
            for sign in (h,) if rough else (h, -h):
                point = theta.copy()
                point[a] += sign
                points.append(point)
        shifts = np.array([expansion.parameters(point)[0] for point in points]) - reference.center
        slopes = (reference.slope[:, None] + times(reference.curvature, shifts.T)).T
        slopes = np.ascontiguousarray(slopes)
        pulled = [expansion.pull_back(x, slope) for x, slope in zip(points, slopes, strict=True)]
        backs = [here] * len(widths) if rough else pulled[1::2]
        for forth, back, width in zip(pulled[:: 1 if rough else 2], backs, widths, strict=True):
            yield (forth - back) / width
