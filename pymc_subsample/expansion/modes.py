r"""Other modes of the posterior that hold a share of its mass worth a chain.

Chains near one reference point agree, whatever they leave out. So searches start near the initial
point, at draws of the prior and at images of the mode that is known (mirrored, labels swapped), on
a small subset of the rows. Modes that may compete are polished on all rows, and weighed by
Laplace's approximation of their mass

.. math:: \log m_k = \log p(\theta_k, y) + \tfrac a2 \log 2\pi - \tfrac12 \log\det H_k .

A point counts as a mode if Newton's method has converged there and the curvature is positive
definite: the poles of hierarchies at a scale of zero are none.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.linalg

from pymc_subsample.expansion.curvature import covariance, units
from pymc_subsample.expansion.quadratic import Posterior, Quadratic
from pymc_subsample.expansion.reference import Reference, summed
from pymc_subsample.expansion.search import climb, newton, polish
from pymc_subsample.expansion.symmetric_modes import ThetaPart, images

# Choices. More parameters take a search minutes; a mode with a smaller share of the mass changes no
# mean and no sd that anybody looks at.
MAX_PARAMETERS = 200
LEAST_MASS = 1e-3

# Of a search on a part of the rows: so many, fewer if all have more numbers than this (as units of
# many rows do, each of which tells more), and 20 for each parameter at least.
_ROWS, _FEWEST, _NUMBERS = 1_000, 200, 64_000
_PARTS = 16  # Of these rows, for the standard error of a difference.
# Starts of each kind: at first, and then unless the log posterior was concave all along.
_NEAR, _PRIOR, _IMAGES = (2, 2), (5, 27), (5, 27)
# Steps of one search, and gradients or columns of Hessians of all of them. Choices of time:
# seconds.
_STEPS, _WORK = 60, 20_000
_NEWTON_STEPS = 20
# Modes that are polished on all rows at most.
_POLISHED = 8
# Standard deviations from a mode within which Newton's method should have come to it, per
# parameter, and those beyond that at which a mode is another one.
_CONVERGED, _APART = 0.5, 3.0
# Standard errors that a subset's verdict on all rows may be off.
_DOUBT = 4.0
# A chain crosses a valley of this depth in log density, or in the log mass across, by itself.
_SHALLOW, _POINTS = 3.0, 15
# What a heavier mode's log mass should exceed to become the reference.
_HEAVIER = 1.0


@dataclass(frozen=True)
class Starts:
    """Where searches for modes may start."""

    initial: np.ndarray  # Shape (d,): initial point, in PyMC's unconstrained space.
    # ``prior(rng)`` returns a draw of the prior there, shape (d,).
    prior: Callable[[np.random.Generator], np.ndarray]
    blocks: Sequence[ThetaPart]  # The variables, for images.


@dataclass(frozen=True)
class ModeSearch:
    """What a search for modes found, and how far it looked."""

    # Those that hold more than `LEAST_MASS` of the mass of all that were found; the first is the
    # one to sample around.
    modes: tuple[Reference, ...]
    shares: tuple[float, ...]  # Of that mass, of each of them.
    lighter: int  # Modes that hold less.
    # Starts that led to a mode: near the initial point, at draws of the prior, and at images of the
    # mode.
    near: int
    prior: int
    images: int

    @property
    def starts(self) -> int:
        """Starts of all kinds."""
        return self.near + self.prior + self.images


@dataclass(frozen=True)
class _Peak:
    """A mode, with the Cholesky factor of its precision."""

    at: Quadratic
    active: np.ndarray
    factor: np.ndarray
    log_mass: float

    @property
    def theta(self) -> np.ndarray:
        return self.at.theta

    @cached_property
    def scale(self) -> np.ndarray:
        """A factor of the covariance, shape (a, a)."""
        return scipy.linalg.solve_triangular(self.factor.T, np.eye(len(self.factor)))

    def distance(self, theta: np.ndarray) -> float:
        """Distance of a point in standard deviations."""
        return float(np.linalg.norm(self.factor.T @ (theta - self.theta)[self.active]))

    def apart(self, other: "_Peak") -> bool:
        nearest = min(self.distance(other.theta), other.distance(self.theta))
        return nearest > _APART + 2 * _CONVERGED * np.sqrt(len(self.active))


class _Subset:
    """The log posterior with a few rows for all."""

    def __init__(self, whole: Posterior, active: np.ndarray, rng: np.random.Generator) -> None:
        self.active, n = active, whole.expansion.n_rows
        affordable = np.clip(_NUMBERS // whole.expansion.width, _FEWEST, _ROWS)
        size = min(n, max(int(affordable), 20 * len(active)))
        index = np.arange(n) if size == n else rng.integers(0, n, size)
        self.posterior = replace(whole, rows=whole.expansion.batches(index))
        self._exact = size == n
        self.work = 0
        self.concave = True  # Whether no climb saw another curvature.

    def height(self, theta: np.ndarray) -> float:
        return self.posterior.at(theta, curved=False).height

    def levels(self, theta: np.ndarray) -> np.ndarray:
        """Log-likelihoods of each sixteenth of the rows."""
        expansion, weight, rows = (
            self.posterior.expansion, self.posterior.weight, self.posterior.rows
        )  # fmt: skip
        assert rows is not None
        parts = np.array_split(np.concatenate(rows, axis=1), _PARTS, axis=1)
        parts = [np.ascontiguousarray(part) for part in parts]
        return np.array([summed(expansion, theta, [x], weight, False).level for x in parts])

    def error(self, one: np.ndarray, other: np.ndarray) -> float:
        """Return the standard error of the difference of two log-likelihoods by these rows."""
        if self._exact:
            return 0.0
        return float(np.sqrt(_PARTS) * np.std(self.levels(one) - self.levels(other), ddof=1))

    def climb(self, start: np.ndarray, known: _Peak) -> _Peak | None:
        """Return the mode that a start leads to, if any."""
        home = known.theta
        for share in (1.0, 0.5, 0.2, 0.05):
            theta = home + share * (start - home)
            if np.isfinite(self.height(theta)):
                break
        else:
            self.concave = False
            return None
        # Curvatures of starts are looked at for as long as they may end the search soon.
        scale = None if self.concave else known.scale
        found = climb(self.posterior, theta, self.active, _STEPS, scale)
        self.work += found.work
        self.concave = self.concave and found.concave
        if known.distance(found.theta) < 1.0:
            return known
        peak = None
        if np.isfinite(self.height(found.theta)):
            peak = _peak(self.polished(found.theta), self.active)
        self.concave = self.concave and peak is not None
        return peak

    def polished(self, theta: np.ndarray) -> Quadratic:
        return newton(self.posterior, theta, self.active, _NEWTON_STEPS)


def search_modes(
    whole: Posterior,
    at: Quadratic,
    active: np.ndarray,
    free: np.ndarray,
    starts: Starts,
    rng: np.random.Generator,
    settle: Callable[[Quadratic], Quadratic] | None = None,
) -> ModeSearch | None:
    """Search for modes that compete with the one that is known, on all rows.

    Searches move elements `active` of theta, images change those in `free`: these and, in a
    hierarchy, its hyperparameters, which `settle` moves to where they belong at a mode of the
    others. Returns None where no search is made: for more than 200 parameters, or without second
    derivatives.
    """
    if not 0 < len(active) <= MAX_PARAMETERS or not whole.expansion.has_precision(len(active)):
        return None
    subset = _Subset(whole, active, rng)
    known = _peak(subset.polished(at.theta), active, strict=False)
    if known is None:
        return None
    found = [known]
    counts = dict.fromkeys(("near", "prior", "images"), 0)
    for stage in (0, 1):
        for kind, theta in _candidates(stage, found, starts, active, free, rng):
            peak = subset.climb(theta, known)
            counts[kind] += peak is not None
            if peak is not None:
                _keep(found, peak)
            if subset.work > _WORK:
                break
        if (subset.concave and len(found) == 1) or subset.work > _WORK:
            break
    first = _peak(at, active, strict=False)
    if first is None:
        return None
    modes = [first]
    chosen = _promising(found, subset, settle is not None)
    for theta in chosen[:_POLISHED]:
        candidate = polish(whole, theta, active)
        peak = _peak(candidate if settle is None else settle(candidate), active)
        if peak is None or not all(peak.apart(old) for old in modes):
            continue
        beside = [k for k, old in enumerate(modes) if not _valley(whole, subset, peak, old)]
        if not beside:
            modes.append(peak)
        elif len(beside) == 1 and peak.log_mass > modes[beside[0]].log_mass + _HEAVIER:
            modes[beside[0]] = peak
    return _weighed(modes, len(found) - 1 - len(chosen), counts)


def _keep(found: list[_Peak], new: _Peak) -> None:
    """Add a mode unless it is there; the heavier one stays where hyperparameters differ alone."""
    alike = [k for k, old in enumerate(found) if not new.apart(old)]
    if not alike:
        found.append(new)
    elif 0 not in alike and new.log_mass > found[alike[0]].log_mass:
        found[alike[0]] = new


def _candidates(
    stage: int,
    found: list[_Peak],
    starts: Starts,
    active: np.ndarray,
    free: np.ndarray,
    rng: np.random.Generator,
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield starts, made of PyMC's values, and their kind: a few of each in the first stage."""
    near, prior, mirrored = (kind[stage] for kind in (_NEAR, _PRIOR, _IMAGES))
    expansion, home = found[0].at.expansion, found[0].theta
    values = expansion.values(home).copy()
    for _ in range(near):
        values[active] = starts.initial[active] + rng.uniform(-2, 2, len(active))
        yield "near", expansion.from_values(values, home)
    for _ in range(prior):
        values[active] = starts.prior(rng)[active]
        yield "prior", expansion.from_values(values, home)
    best = max(found, key=lambda peak: peak.log_mass)
    seen = stage * _IMAGES[0] if best is found[0] else 0
    values = expansion.values(best.theta)
    for image in images(starts.blocks, values, free, rng)[seen:][:mirrored]:
        yield "images", expansion.from_values(image, home)


def _promising(found: list[_Peak], subset: _Subset, movable: bool) -> list[np.ndarray]:
    """Modes of the subset, but for the known one, that may compete on all rows; best first.

    Where the prior is `movable`, by hyperparameters, the likelihood alone counts.
    """
    known, others = found[0], sorted(found[1:], key=lambda peak: -peak.log_mass)
    chosen = []
    for peak in others:
        doubt = _DOUBT * subset.error(known.theta, peak.theta)
        lead = peak.log_mass - known.log_mass
        if movable:
            lead = peak.at.reference.level - known.at.reference.level
        if lead + doubt > np.log(LEAST_MASS):
            chosen.append(peak.theta)
    return chosen


def _peak(at: Quadratic, active: np.ndarray, strict: bool = True) -> _Peak | None:
    """Measure a mode; None where there is none or, unless strict, no finite density."""
    height, matrix = at.height, at.precision(active)
    if not (np.isfinite(height) and np.all(np.isfinite(matrix))):
        return None
    if not strict:
        scale = np.outer(units(matrix), units(matrix))
        matrix = scipy.linalg.inv(covariance(matrix / scale)) * scale
    try:
        lower = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return None
    ascent = scipy.linalg.solve_triangular(lower, at.ascent[active], lower=True)
    with np.errstate(over="ignore"):  # then it is far from a mode
        slope = np.sqrt(np.mean(ascent**2))
    if strict and not slope < _CONVERGED:
        return None
    volume = 0.5 * len(active) * np.log(2 * np.pi) - np.log(np.diag(lower)).sum()
    return _Peak(at, active, lower, height + volume)


def _valley(whole: Posterior, subset: _Subset, one: _Peak, other: _Peak) -> bool:
    """Whether the way between two modes leads through a valley that keeps chains apart.

    Where the subset's log posterior has none, the mass across the way on all rows decides: a way
    may be level and narrow, such as that of scales from much pooling to little.
    """
    here, there = one.theta, other.theta
    way = [here + t * (there - here) for t in np.linspace(0, 1, _POINTS + 2)]
    if _deep(map(subset.height, way[1:-1]), min(subset.height(here), subset.height(there))):
        return True
    active = one.active
    units = 1 / np.sqrt(np.diag(one.factor @ one.factor.T))
    across = np.linalg.qr(((there - here)[active] / units)[:, None], mode="complete")[0][:, 1:]

    def mass(at: Quadratic) -> float:
        matrix = at.precision(active) * np.outer(units, units)
        if not np.all(np.isfinite(matrix)):
            return -np.inf
        sizes = np.abs(np.linalg.eigvalsh(across.T @ matrix @ across))
        return at.height - 0.5 * np.log(np.maximum(sizes, 1e-300)).sum()

    # Every pass over all rows may be the last: from the middle outwards.
    inner = sorted(way[2:-1:2], key=lambda theta: abs(np.linalg.norm(theta - (here + there) / 2)))
    masses = (mass(whole.at(theta)) for theta in inner)
    return _deep(masses, min(mass(one.at), mass(other.at)))


def _deep(levels: Iterable[float], ends: float) -> bool:
    return any(not level > ends - _SHALLOW for level in levels)


def _weighed(modes: list[_Peak], lighter: int, counts: dict[str, int]) -> ModeSearch:
    log_mass = np.array([peak.log_mass for peak in modes])
    shares = np.exp(log_mass - np.logaddexp.reduce(log_mass))
    order = np.argsort(-shares, kind="stable")
    if log_mass[order[0]] - log_mass[0] < _HEAVIER:
        order = np.array([0, *(k for k in order if k)])
    heavy = [k for k in order if shares[k] > LEAST_MASS]
    return ModeSearch(
        tuple(modes[k].at.reference for k in heavy),
        tuple(float(shares[k]) for k in heavy),
        lighter + len(modes) - len(heavy),
        **counts,
    )
