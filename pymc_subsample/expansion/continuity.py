r"""Whether the gradient of a log-likelihood says how it changes.

Between two points, for the log-likelihood l of some rows,

.. math:: l(\theta') - l(\theta) = \int_0^1 \nabla l(\theta + t v)^\top v \, dt,
          \qquad v = \theta' - \theta

where l has no steps: kinks (Laplace, rectifiers, Huber) integrate, `switch(x @ b > 0, ...)` and
`floor` do not, whose gradient is zero wherever there is one. What is missing of the difference is
searched by halving the way. Around a kink, or where l is steep, it goes to zero faster than the
difference does; around a step, or where the gradient is wrong, it never does.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from pymc.util import is_transformed_name

from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.model import JumpError, TallModel
from pymc_subsample.model.binding import quoted

# Lengths of the segments and the distance of the other variables from the start: in unconstrained
# space, or so that the log-likelihood of a row changes by about as much where columns are large.
_SCALES = (0.03, 0.3, 3.0, 30.0)
_NEAR = 2  # Of these, where only near points say anything.
# A logarithm or a logit moves no farther: beyond a factor of 20 densities underflow and powers
# overflow, and so do their gradients, which are then wrong where they are finite.
_WIDEST_TRANSFORMED = 3.0
_AROUND = 0.3
# Variables move one by one, or where there are more in so many blocks. Groups of rows that are
# integrated, and rows of each. Choices of time: some hundred rows along some dozen segments.
_BLOCKS = 8
_GROUPS, _ROWS = 32, 8
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
# Of the whole change, the share that may be missing; of that along a piece, what is resolved. The
# first is a choice, above the error of 16 nodes for smooth rows; halving pieces of a smooth
# function leaves far less than the second, and of one with a step all of it.
_MISSING = 0.02
_RESOLVED = 0.25
# Changes beyond which a curvature may overflow, and a slope be wrong.
_ENORMOUS = 1e50
# A change of the log-likelihood that is none.
_NOTHING = 1e-6
# Times this the rows' gradient drowns that of the prior, far out where the prior's is enormous.
_LOUD = 2.0**500
# The groups of rows that are followed, and how often their pieces are halved.
_FOLLOWED, _HALVINGS = 8, 20
# Points within rounding of each other, and times their spread what may be due to it.
_JITTERED, _ROUNDING, _NOISY = 8, 1e-14, 10.0
# Parameters of which curvatures are looked at as well.
_SMALL = 100


@dataclass(frozen=True)
class Gap:
    """A segment along which the gradient does not integrate to the change."""

    names: tuple[str, ...]  # Value variables that move, by their names in the model.
    length: float  # Of the segment, in unconstrained space.
    missing: float  # Share of the change of the log-likelihood that its gradient does not explain.
    jump: float  # Largest change that is left along one piece of the segment,
    width: float  # of this share of its length.


class Continuity:
    """Of the log-likelihood of random rows where elements `active` of theta move.

    Those that are integrals by quadrature, `near`, move little: they hold around the reference.
    """

    def __init__(
        self, model: TallModel, expansion: Expansion, active: np.ndarray, near: bool = False
    ) -> None:
        self.model, self.expansion, self.active, self.near = model, expansion, active, near
        self._rng = np.random.default_rng(3)
        rows = self._rng.integers(0, model.n_rows, (_GROUPS, min(_ROWS, model.n_rows)))
        self._groups = [expansion.take(index) for index in rows]
        size = expansion.phi_size
        full = expansion.order == 2 and expansion.curvature == "full"
        self._curved = full and size <= _SMALL

    @cached_property
    def _flat(self) -> list[float]:
        """How many rows of each group have no curvature at the start."""
        theta = self.model.ravel(self.model.initial_point)
        phi, _ = self.expansion.parameters(theta)
        with np.errstate(all="ignore"):
            return [float(self.expansion.totals([rows], phi, True)[3][0]) for rows in self._groups]

    def require(self, advice: str, points: np.ndarray | None = None) -> None:
        """Raise `JumpError` where there is a gap; `advice` is what remains to be done."""
        gap = self.gap(points)
        if gap is None:
            return
        moved = ", ".join(map(quoted, gap.names))
        raise JumpError(
            f"The gradient of the log-likelihood of {', '.join(map(repr, self.model.likelihood))} "
            f"does not describe how it changes with {moved}: integrated along a line of length "
            f"{gap.length:.2g} (in unconstrained space), it misses {gap.missing:.0%} of the "
            f"changes of random rows; the largest part that it misses, {gap.jump:.2g}, lies within "
            f"{gap.width:.0e} of the line. The log-likelihood has a step there (floor, round, a "
            "comparison, a switch between branches that do not meet), or its gradient is wrong. "
            f"{advice}"
        )

    def gap(self, points: np.ndarray | None = None) -> Gap | None:
        """Return a segment along which the gradient does not integrate to the change, if any.

        Segments also join random pairs of `points`, shape (k, d).
        """
        for names, start, end in self._segments(points):
            segment, curved = (
                _Segment(partial(self._along, start, end - start, curved), len(self._groups))
                for curved in (False, self._curved)
            )
            found = curved.gap() if segment.doubtful() else None
            if found is not None:
                return Gap(names, float(np.linalg.norm(end - start)), *found)
        return None

    def _segments(
        self, points: np.ndarray | None
    ) -> Iterator[tuple[tuple[str, ...], np.ndarray, np.ndarray]]:
        model, rng = self.model, self._rng
        scales = _SCALES[:_NEAR] if self.near else _SCALES
        moved = np.zeros(model.size)
        moved[self.active] = 1.0
        moved *= model.units > 0
        parts = [
            (name, place)
            for name, place in zip(model.names, model.slices, strict=True)
            if moved[place].any()
        ]
        start = model.ravel(model.initial_point)
        everything = tuple(name for name, _ in parts)
        blocks, widest = [], np.zeros(model.size)
        for chosen in np.array_split(np.arange(len(parts)), min(_BLOCKS, len(parts))):
            part = np.zeros(model.size)
            for k in chosen:
                name, place = parts[k]
                part[place] = moved[place] * model.units[place]
                widest[place] = _WIDEST_TRANSFORMED if is_transformed_name(name) else np.inf
            blocks.append((tuple(parts[k][0] for k in chosen), part))
        for names, part in blocks:
            for scale in scales:
                around = start + _AROUND * model.units * rng.normal(size=model.size)
                begin, end = (
                    around + part * np.clip(scale * rng.normal(size=model.size), -widest, widest)
                    for _ in range(2)
                )
                yield names, begin, end
        if points is not None and len(points) > 1:
            for _ in _SCALES:
                one, other = points[rng.choice(len(points), 2, replace=False)]
                yield everything, one, np.where(moved > 0, other, one)

    def _along(
        self, start: np.ndarray, way: np.ndarray, curved: bool, t: float, chosen: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Log-likelihoods of groups and their derivatives along a segment, at start + t way."""
        expansion, theta = self.expansion, start + t * way
        phi, _ = expansion.parameters(theta)
        values, slopes = np.zeros(len(chosen)), np.zeros(len(chosen))
        for k, group in enumerate(chosen):
            slope = np.zeros(expansion.phi_size)
            expansion.anchor(phi, self._groups[group])
            curvature = np.zeros((expansion.phi_size,) * 2 if curved else (0, 0))
            flat = np.zeros(1)
            expansion.sums(phi, self._groups[group], (values[k : k + 1], slope, curvature, flat))
            slopes[k] = expansion.pull_back(theta, _LOUD * slope) @ way / _LOUD
            # Curvatures overflow first: beyond, slopes may be wrong where they are finite.
            if curved and (flat[0] > self._flat[group] or not np.all(np.isfinite(curvature))):
                slopes[k] = np.nan
        return values, slopes


def _is_missing(missing: np.ndarray, size: np.ndarray) -> bool:
    return bool(missing.sum() > max(_MISSING * size.sum(), _NOTHING))


class _Segment:
    """Groups of rows along a line: ``at(t, chosen)`` returns log-likelihoods and derivatives."""

    def __init__(self, at: Callable, n_groups: int) -> None:
        self._at, self._n_groups = at, n_groups

    def _piece(
        self, low: float, high: float, chosen: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what the integral misses of the change of each group, and that change's size."""
        half = 0.5 * (high - low)
        slopes = np.array([self._at(low + half * (1 + x), chosen)[1] for x in _NODES])
        change = self._at(high, chosen)[0] - self._at(low, chosen)[0]
        missing = np.abs(change - half * (_WEIGHTS @ slopes))
        return missing, np.maximum(np.abs(change), half * (_WEIGHTS @ np.abs(slopes)))

    def _whole(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what is missing of which groups, and sizes of changes, where these are finite."""
        with np.errstate(all="ignore"):
            missing, size = self._piece(0.0, 1.0, range(self._n_groups))
        known = np.isfinite(missing) & np.isfinite(size)
        return missing[known], size[known], known

    def doubtful(self) -> bool:
        """Whether something is missing, or changes are so enormous that others hide behind them."""
        missing, size, _ = self._whole()
        return _is_missing(missing, size) or bool(np.any(size > _ENORMOUS))

    def gap(self) -> tuple[float, float, float] | None:
        """Return `missing`, `jump`, `width` of a gap, if steps or wrong gradients make one."""
        missing, size, known = self._whole()
        if not _is_missing(missing, size):
            return None
        with np.errstate(all="ignore"):
            worst = np.argsort(-missing)[:_FOLLOWED]
            left = [self._narrowed(np.flatnonzero(known)[k]) for k in worst]
        unresolved = np.array([change is not None for change, _ in left])
        if not missing[worst][unresolved].sum() > 0.5 * missing[worst].sum():
            return None
        jump, width = max((x, w) for x, w in left if x is not None)
        return float(missing.sum() / size.sum()), jump, width

    def _narrowed(self, group: int) -> tuple[float | None, float]:
        """Follow what is missing by halving; return what is left of it, None if explained."""
        low, high = 0.0, 1.0
        left = 0.0
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            pieces = [(low, middle), (middle, high)]
            found = [self._piece(*piece, [group]) for piece in pieces]
            missing = [float(m[0]) if np.isfinite(m[0]) else 0.0 for m, _ in found]
            worse = int(np.argmax(missing))
            left = missing[worse]
            if not left > _RESOLVED * found[worse][1][0]:
                return None, 0.0
            low, high = pieces[worse]
        return (None, 0.0) if left <= self._rounding(low, group) else (left, high - low)

    def _rounding(self, t: float, group: int) -> float:
        """How much the log-likelihood of a group changes within rounding of a point.

        That of a difference of enormous terms is noise, at every point; a step is at one.
        """
        around = [self._at(t * (1 + k * _ROUNDING), [group])[0][0] for k in range(_JITTERED)]
        return _NOISY * float(np.ptp(around))
