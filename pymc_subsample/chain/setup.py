"""What a step prepares once: reference point, mass matrix, modes."""

import logging
from dataclasses import dataclass, replace

import numpy as np

from pymc_subsample.chain.ellipsoid import as_wide, far_points, on_ellipsoid, shape
from pymc_subsample.chain.progress import doing
from pymc_subsample.chain.tuning import AWAY
from pymc_subsample.compiled.process import one_thread
from pymc_subsample.coordinates.fit import fitted, locate
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.curvature import MAX_DENSE, rounded
from pymc_subsample.expansion.factors import whiten
from pymc_subsample.expansion.hyperparameter_mode import MAX_OUTER, settle, split_hierarchy
from pymc_subsample.expansion.modes import ModeSearch, Starts, search_modes
from pymc_subsample.expansion.quadratic import Posterior, Quadratic
from pymc_subsample.expansion.reference import Reference, extended
from pymc_subsample.expansion.residual_causes import distance_to_mode, is_far
from pymc_subsample.expansion.residuals import Residuals, residuals_around
from pymc_subsample.expansion.search import find_mode, polish
from pymc_subsample.expansion.stored_sums import Archive
from pymc_subsample.expansion.undefined import refuse_undefined
from pymc_subsample.kernels.estimates import PERTURBED
from pymc_subsample.model import TallModelError

_log = logging.getLogger("pymc.subsample")

# What rounding may change in the precision of the posterior along some direction, as a share, and
# from where columns are taken apart, if that is possible. A posterior's standard deviation is
# then off by 5%, the bound of checks (`STRETCH_BOUND`); a tenth of it is no loss.
_ROUNDED, NEARLY = 0.1, 0.01
# Modes in which chains start: how many at most, and the share of the mass from which. A choice:
# `pm.sample` runs four chains where it has the cores; a mode of less mass changes no number by more
# than that.
_MODES, _STARTED = 4, 0.01


@dataclass(frozen=True)
class Preparation:
    """Where chains start and what is known there, shared by all of them and never changed."""

    reference: Reference  # Expansion point and full-data sums.
    # Shape (a, a), (1, a) or (3, k): of the covariance of the sampled parameters, or its diagonal.
    factor: np.ndarray
    # Points around the reference by which a subsample is chosen, shape (k, d), (j, d).
    pilot: np.ndarray
    far: np.ndarray
    # What other modes were found; None where none were looked for.
    search: ModeSearch | None = None
    # The same at other modes, in which some of the chains start.
    others: tuple["Preparation", ...] = ()
    # At pilot and far points, where they are known from an earlier run.
    residuals: Residuals | None = None

    @property
    def at_modes(self) -> tuple["Preparation", ...]:
        """At each of the modes in which chains start."""
        return self, *self.others


@dataclass(frozen=True)
class Problem:
    """What a set-up is of."""

    expansion: Expansion  # Compiled model.
    starts: Starts  # Where the search for the reference starts, and those for other modes.
    # Integers: elements of theta that the step moves, and that are continuous: other steps may move
    # those, so the reference and the pilot take all of them into account.
    active: np.ndarray
    free: np.ndarray
    rng: np.random.Generator  # Draws subsets and pilot points.
    temperature: float = 1.0  # Divides the log-likelihood.
    kind: int = PERTURBED  # {PERTURBED, BLOCK_POISSON}: the estimate.
    given: np.ndarray | None = None  # A reference to be used as it is, shape (d,).
    archive: Archive | None = None  # Where sums are stored; None where they are not.
    # Whether the reference is that of an earlier run, for which another one nearby may stand.
    earlier: bool = False
    each: str = "rows"  # What is subsampled, as messages call it.

    @property
    def posterior(self) -> Posterior:
        """Of all rows."""
        return Posterior(self.expansion, self.temperature)

    @one_thread
    def prepare(self) -> Preparation:
        """Find the reference point, or take the one that was given, and what is known there."""
        expansion, search = self.expansion, None
        if (earlier := self._taken_over()) is not None:
            return earlier
        found = None if self.given is None else self._at_given(self.given)
        if found is None:
            found, search = self._automatic_reference()
        refuse_undefined(expansion, found.reference)
        if self.archive is not None:
            self.archive.write(expansion, found.reference)
        first = self.prepared(found, search)
        modes = zip(search.modes[1:_MODES], search.shares[1:_MODES], strict=True) if search else ()
        others = [
            self.prepared(fitted(Quadratic(expansion, mode)), search)
            for mode, share in modes
            if share >= _STARTED
        ]
        return replace(first, others=tuple(others))

    def prepared(self, at: Quadratic, search: ModeSearch | None = None) -> Preparation:
        """Return what is known around a mode, with points at random."""
        free, rng = self.free, self.rng
        scale, spread = shape(at, self.active, free)
        pilot = on_ellipsoid(at.theta, spread, free, rng)
        far = far_points(self.kind, at.theta, spread, free, rng)
        return Preparation(at.reference, scale, pilot, far, search)

    def _at_given(self, theta: np.ndarray) -> Quadratic | None:
        """Return the reference that was given; None of an earlier run that is far from the mode.

        In hierarchies rows see products of scales and effects, and know these far better than each
        factor: the product of a run's means may be many standard deviations away from the mean of
        the products. There the mode given the scales takes their place.
        """
        posterior, effects = self.posterior, self.expansion.effects
        found, moved = fitted(posterior.at(theta)), self.free
        if effects is not None and self.earlier:
            moved = np.setdiff1d(moved, effects.scales)

        def off(at: Quadratic) -> float:
            return distance_to_mode(at, shape(at, moved, moved)[1], moved)

        distance = off(found) if found.reference.is_finite else np.inf
        if effects is not None and self.earlier and AWAY < distance < np.inf:
            found = fitted(polish(posterior, found.theta, moved))
            distance = off(found)
        if not is_far(distance):
            return found
        if self.earlier:
            _log.warning(
                "The earlier run that reference= names is about %.3g standard deviations per "
                "parameter (by the curvature there) from the mode of this model's posterior, so "
                "the mode is searched for again. The run is of another model, of other rows, or of "
                "Bambi's fit, which moves the intercept if its model centres predictors.",
                distance,
            )
            return None
        if found.reference.is_finite:
            _log.warning(
                "The given reference is about %.3g standard deviations per parameter (by the "
                "curvature there) from the mode of this model's posterior. It is used as given: "
                "control variates, metric and automatic step sizes then fit this point, not the "
                "region of the draws. Leave out reference=, or give the values of a mode.",
                distance,
            )
        return found

    def _taken_over(self) -> Preparation | None:
        """Complete what an earlier run stored by the rows that came since, where it serves."""
        expansion, given, free = self.expansion, self.given, self.free
        if self.archive is None or not self.earlier or given is None:
            return None
        known = self.archive.known(expansion)
        if known is None:
            return None
        at = fitted(Quadratic(expansion, known.reference))
        _, spread = shape(at, self.active, free)
        shift = expansion.from_values(expansion.values(given), at.theta) - at.theta
        if not np.sqrt(np.mean(whiten(spread, shift[free]) ** 2)) <= AWAY:
            return None
        at = fitted(Quadratic(expansion, extended(expansion, known.reference, known.n_rows)))
        scale, spread = shape(at, self.active, free)
        if not distance_to_mode(at, spread, free) <= AWAY:
            return None
        _log.info(
            "Sums of %s rows are those of an earlier run; %s were read",
            f"{known.n_rows:,}", f"{expansion.n_rows - known.n_rows:,}",
        )  # fmt: skip
        pilot, far = (
            np.reshape([expansion.from_values(x, at.theta) for x in points], (-1, len(at.theta)))
            for points in (known.pilot, known.far)
        )
        if known.residuals is None or not as_wide(spread, (far - at.theta)[:, free]):
            return self.prepared(at)
        residuals = residuals_around(expansion, at.reference, pilot, far, known.residuals)
        return Preparation(at.reference, scale, pilot, far, residuals=residuals)

    def _automatic_reference(self) -> tuple[Quadratic, ModeSearch | None]:
        """Posterior mode; in hierarchical models given the marginal mode of the hyperparameters."""
        expansion, starts, posterior = self.expansion, self.starts, self.posterior
        free, rng = self.free, self.rng
        start = expansion.from_values(starts.initial)
        off = start.copy()
        if expansion.effects is not None:  # the start may hide what the parameters do
            off[free] += 0.1 * np.random.default_rng(0).standard_normal(len(free))
        inner, outer = split_hierarchy(expansion, off, free)
        nested = 0 < len(outer) <= MAX_OUTER and len(inner) > 0
        if not nested:
            inner = free

        def settled(at: Quadratic) -> Quadratic:
            return polish(posterior, settle(at, inner, outer), inner)

        with doing("searching the posterior mode"):
            search = find_mode if expansion.effects is None else locate
            found = search(posterior, start, inner, rng)
            found = settled(found) if nested else found
        with doing("searching other modes"):
            modes = search_modes(
                posterior, found, inner, free, starts, rng, settled if nested else None
            )
        return (found if modes is None else Quadratic(expansion, modes.modes[0])), modes

    def without_digits(
        self,
        prepared: Preparation,
        share: float = _ROUNDED,
        among: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return elements along which sums over rows have too few digits for the posterior.

        Of all elements of theta that are free, or among some, given the others. Not looked at
        beyond the size of dense matrices.
        """
        free = self.free if among is None else among
        if len(free) > MAX_DENSE or not self.expansion.has_precision(len(self.free)):
            return free[:0]
        matrix = Quadratic(self.expansion, prepared.reference).precision(free)
        return free[rounded(matrix, share)] if np.all(np.isfinite(matrix)) else free[:0]

    @one_thread
    @doing("looking for impossible rows")
    def possible(self, prepared: Preparation) -> Preparation:
        """Leave out modes around which rows are impossible, by a pass over all rows at each.

        A batch may miss such rows for as long as a chain runs, and be wrong where they cut the
        posterior off. Around the first mode they raise `TallModelError`, which names them.
        """
        others = []
        if prepared.residuals is None:
            residuals_around(self.expansion, prepared.reference, prepared.pilot)
        for other in prepared.others:
            try:
                residuals_around(self.expansion, other.reference, other.pilot)
            except TallModelError:
                continue
            others.append(other)
        return replace(prepared, others=tuple(others))
