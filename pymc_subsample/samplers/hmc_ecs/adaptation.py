"""What an HMC-ECS chain changes while it tunes: mass matrix, reference point and subsample."""

from time import thread_time
from typing import Any

import numpy as np

from pymc_subsample.chain.beside import Outgrown, OutgrownError, beside_all_rows
from pymc_subsample.chain.calling import is_sampling
from pymc_subsample.chain.ellipsoid import far_points
from pymc_subsample.chain.engine import ChainStep
from pymc_subsample.chain.guards import company
from pymc_subsample.chain.notices import Notice
from pymc_subsample.chain.sizing import all_rows, choose_always, choose_subsample, sized
from pymc_subsample.chain.tuning import Tuning
from pymc_subsample.diagnostics.checks import amount, excess
from pymc_subsample.diagnostics.perturbation import errors_by_few, perturbation, standardised
from pymc_subsample.diagnostics.record import most_kept
from pymc_subsample.expansion.estimators import VARIANCE_AIM, VARIANCE_BOUND, ResidualMoments
from pymc_subsample.expansion.reference import Reference, reference_at
from pymc_subsample.expansion.residuals import residuals_around
from pymc_subsample.kernels.estimates import BLOCK_POISSON, PERTURBED
from pymc_subsample.kernels.model import MINIBATCH
from pymc_subsample.model import TallModelError
from pymc_subsample.samplers.hmc_ecs.subsample import ESTIMATORS, Subsample

# Of the subsample, in one look at a chain.
_MOST_GROWTH = 4.0
# Variance at a draw from which on it is looked at, over the bound: few draws perturb much.
_COVERED = 0.5
# Of the perturbation that is tolerable.
_PERTURBED_AIM = 0.5


class AdaptiveSubsample(ChainStep):
    """Adapts mass matrix, reference point and subsample in tuning."""

    estimator: str
    reference: Reference
    moments: ResidualMoments
    subsample: Subsample
    subsample_size: int
    n_blocks: int
    temperature: float
    step_size: float
    tuning: Tuning
    # What the user chose.
    given: dict[str, Any]
    _pace: "Pace"

    @property
    def _kind(self) -> int:
        return ESTIMATORS[self.estimator]

    @property
    def _largest(self) -> int:
        """The largest subsample that there is."""
        n = self.n_rows - len(self.subsample.always)
        return n // MINIBATCH * MINIBATCH if self._kind == BLOCK_POISSON else n

    @property
    def _exact(self) -> bool:
        """Whether all rows are read; see `sizing.all_rows`."""
        return len(self.subsample.always) == self.n_rows - 1

    @property
    def _rows_read(self) -> int:
        """Rows that an estimate reads."""
        return self.n_rows if self._exact else self.subsample_size + len(self.subsample.always)

    @property
    def _share(self) -> float:
        return self._rows_read / self.n_rows

    @property
    def _may_cover(self) -> bool:
        return self._kind == PERTURBED and not self.given["reference"]

    @property
    def _may_resize(self) -> bool:
        return self._may_cover and self.given["subsample_size"] is None

    def _adapt(self, theta: np.ndarray, info: dict[str, float]) -> Notice | None:
        """Record a draw, and change what recent ones ask for; return what is to be said of it."""
        tuning, before, cause = self.tuning, self.subsample_size, ""
        always = len(self.subsample.always)
        tuning.add(
            theta, info["acceptance_rate"], info["loglik_variance"], info["diverging"],
            info["crossed"] > 0 and info["n_steps"] > 1,
        )  # fmt: skip
        self._pace.add(info["n_steps"])
        if not tuning.due():
            return None
        better = tuning.better_factor()
        moved = not self.given["reference"] and tuning.should_recentre(self.reference.theta)
        if better is not None:
            tuning.factor = better
        try:
            if moved:
                cause = "the chain settled away from the reference point"
                self._recentre(theta)
            elif self._may_resize and tuning.noise() > 0.9 * VARIANCE_BOUND:
                cause = "the estimate is noisier on the way than was predicted"
                self._enlarge(tuning.noise() / VARIANCE_AIM)
            elif self._may_cover and tuning.peak() > _COVERED * VARIANCE_BOUND:
                cause = "the estimate is noisier in the tails than was predicted"
                self._cover()
        except TallModelError:
            cause = "recent draws make rows impossible that the subsample was without"
            self._read_all()
        if self._may_resize and tuning.is_last_look:
            ratio = np.sqrt(self._perturbation() / _PERTURBED_AIM)  # it falls like m^-2
            if ratio > 1:
                cause = "the estimate perturbs the posterior by more than was predicted"
                self._enlarge(ratio)
        changed = moved or better is not None
        calmer = tuning.calm()
        if changed and self._kind == BLOCK_POISSON:
            self.start_at_reference = True  # inside the new ellipsoid
        tuning.restart(self.step_size if changed or calmer else None)
        same = self.subsample_size == before and len(self.subsample.always) == always
        notice = None if same else self._changed(cause, before, always)
        self._pace = Pace()
        return notice

    def _recentre(self, theta: np.ndarray) -> None:
        """Move the reference to the mean of recent draws and choose the subsample size again."""
        center = self._settled(theta)
        reference = reference_at(self.expansion, center, self.temperature)
        far = far_points(self._kind, center, self.tuning.factor, self.active, self.rng)
        residuals = residuals_around(self.expansion, reference, self.tuning.pilot(), far)
        self.reference = reference
        self._take(
            *sized(
                self._kind, residuals, self.temperature,
                self.given["subsample_size"], self.given["n_blocks"],
            )
        )  # fmt: skip

    def _cover(self) -> None:
        """Choose the subsample for the draws where the estimate was noisiest, if that takes more.

        The moments are those at these draws from then on: more than at usual ones.
        """
        at = self.reference.theta
        far = far_points(self._kind, at, self.tuning.factor, self.active, self.rng)
        residuals = residuals_around(self.expansion, self.reference, self.tuning.noisiest(), far)
        given = self.given["subsample_size"]
        always, moments = choose_always(self._kind, residuals, self.temperature)
        m, _ = choose_subsample(
            self._kind, moments, self.temperature, given, self.given["n_blocks"]
        )
        m = min(m, int(_MOST_GROWTH) * self.subsample_size)  # one draw may be anywhere
        if m + len(always) > self.subsample_size + len(self.subsample.always):
            self._resize(m, always, moments)

    def _read_all(self) -> None:
        """Read all rows from now on, and start again: the chain may be where some are impossible.

        Where the user chose the subsample, the chain's end judges.
        """
        if self._may_resize and not self._exact:
            blocks, temperature = self.given["n_blocks"], self.temperature
            self._take(*all_rows(self._kind, self.n_rows, temperature, blocks))
            self.start_at_reference = True

    def _perturbation(self) -> float:
        """Return errors of means and standard deviations at recent draws, over what is tolerable.

        By some thousands of random rows, as the check at the chain's end begins.
        """
        recent = self.tuning.recent()
        many = min(len(recent), most_kept(recent.shape[1]))
        thetas = recent[np.linspace(0, len(recent) - 1, many).astype(int)]
        shares = np.full(len(thetas), 1 / len(thetas))
        errors = errors_by_few(
            self.expansion, self.reference, thetas, shares, self.subsample_size,
            self.temperature, self.subsample.always,
        )  # fmt: skip
        off = perturbation(errors.weights(), shares, standardised(thetas[:, self.active], shares))
        return excess(off.shift, off.stretch)

    def _enlarge(self, ratio: float) -> None:
        """Take more rows, if the ratio says so: what was predicted at a few points is larger."""
        unit, before = self.given["n_blocks"] or 10, self.subsample_size
        wanted = before * min(ratio, _MOST_GROWTH) if np.isfinite(ratio) else 0.0
        wanted = -int(-wanted // unit) * unit
        if wanted > before:
            self._resize(wanted, self.subsample.always, self.moments)

    def _resize(self, m: int, always: np.ndarray, moments: ResidualMoments) -> None:
        """Take m rows beside those that are read always; all rows if that is as many."""
        blocks, temperature = self.given["n_blocks"], self.temperature
        if self._kind == PERTURBED and m + len(always) >= self.n_rows:
            self._take(*all_rows(self._kind, self.n_rows, temperature, blocks))
        else:
            size = choose_subsample(self._kind, moments, temperature, m, blocks)
            self._take(always, moments, *size)

    def _take(self, always: np.ndarray, moments: ResidualMoments, m: int, n_blocks: int) -> None:
        self.moments, self.subsample_size, self.n_blocks = moments, m, n_blocks
        self.subsample = Subsample(self._kind, self.subsample_size, self.n_blocks, always)
        self._forget()

    def _changed(self, cause: str, before: int, always: int) -> Notice:
        """Say why the subsample has another size now, and which other steps have a part in it.

        A run that has become so slow that NUTS on all rows saves most of its time ends, unless a
        chain has draws after tuning.
        """
        others = company(self)
        why = f"while {others}, {cause}" if others else cause
        now, were = self.subsample_size, len(self.subsample.always) != always
        drawn = self._pace.per_draw(self._rows_read / (before + always))
        beside = beside_all_rows(self, drawn)
        size = (
            f"{now:,} rows ({now / self.n_rows:.2%}; {before:,} before){self._also()}"
            f"{f' ({always:,} before)' * were}"
        )
        if self._exact:
            size = f"all {self.n_rows:,} rows ({before + always:,} before)"
        if beside.use and self._may_resize:
            said = (
                f"HMCECS: {why}; an estimate has to read {size}, and a draw takes about "
                f"{amount(drawn[0])} s{beside.said}. To go on with fewer rows, and too much noise, "
                "give HMCECS(subsample_size=...). A run in which no chain has draws ends here; "
                "another goes on, and keeps its draws if it is interrupted."
            )
            if not is_sampling():
                raise OutgrownError(said)
            return Outgrown(cause, said)
        reads = "reads" if self._exact else "draws"
        return Notice(
            cause, f"HMCECS: {why}; a chain's subsample changed: it {reads} {size}{beside.said}"
        )

    def _also(self) -> str:
        """Say how many rows are read always."""
        e = len(self.subsample.always)
        return f" and {e:,} outlying rows that are read always" if e else ""


class Pace:
    """Time and gradients of the draws since it was made."""

    def __init__(self) -> None:
        self._began, self._spent = thread_time(), 0.0
        self._draws, self._gradients = 0, 0.0

    def add(self, gradients: float) -> None:
        """Count a draw that has just been made; what is adapted after it is no part of its time."""
        self._spent = thread_time() - self._began
        self._draws, self._gradients = self._draws + 1, self._gradients + gradients

    def per_draw(self, growth: float) -> tuple[float, float]:
        """Seconds and gradients per draw, were that many times as many rows read."""
        return max(growth, 1.0) * self._spent / self._draws, self._gradients / self._draws
