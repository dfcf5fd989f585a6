"""How large the integration steps of a stochastic-gradient sampler are, and what they will cost."""

import logging

import numpy as np

from pymc_subsample.blas import one_thread
from pymc_subsample.compile import address_of
from pymc_subsample.control_variates.curvature import MAX_DENSE
from pymc_subsample.control_variates.factors import deviations, scaled
from pymc_subsample.control_variates.quadratic import Quadratic
from pymc_subsample.control_variates.search import has_precision
from pymc_subsample.diagnostics.checks import amount, sentence
from pymc_subsample.kernels import gradients
from pymc_subsample.kernels.gradients import Batches
from pymc_subsample.kernels.integrators import INTEGRATORS, Integrator
from pymc_subsample.schedules import Schedule
from pymc_subsample.stationary import (
    autocorrelation_time,
    choose_step_size,
    rescaled,
    sd_error,
    spectrum,
    variances,
)
from pymc_subsample.steps.chains import ChainStep
from pymc_subsample.steps.setup import Preparation

_log = logging.getLogger("pymc.subsample")

_forces = gradients.forces.get_overload(gradients.forces.signatures[0])

# Points and batches by which the noise of gradients is measured at set-up.
_POINTS, _BATCHES = 8, 64
# Steps that a batch may serve, and the error of standard deviations that this may add.
_HOLDS = (1, 2, 5, 10)
_HELD_ERROR = 0.002
# Integration steps per effective draw above which a chain hardly moves.
_SLOW = 10_000
# A given step size that is so small beside the automatic one is most likely of other units.
_TINY = 0.1
# Passes over the rows per effective draw above which noise makes subsampling useless.
_MANY_PASSES = 10


class AutomaticStepSize(ChainStep):
    """Chooses a step size by the posterior's curvature and the gradients' noise at the reference.

    Subclasses say how they move, and keep what is chosen.
    """

    batch_size: int
    steps_per_batch: int | None
    transitions_per_draw: int
    friction: float
    temperature: float
    metric: str
    schedule: Schedule
    automatic_step_size: float
    hold: int
    metric_factor: np.ndarray
    row_rng: np.random.Generator
    integrator: str
    _sampling: int
    _floor: float
    _index_chain: int
    _permutation: np.ndarray
    _curvature: np.ndarray | None
    _precision: np.ndarray | None
    _chosen_step_size: float
    _chosen_hold: int

    @one_thread
    def _choose_step_size(self) -> None:
        """Choose it where it is automatic, and say what the chain will cost."""
        prepared, name, integrator = self._prepared, type(self).__name__, self._integrator
        share = self.batch_size / self.n_rows
        rows = f"{name}: {self.n_rows:,} rows of {', '.join(self.observed)}; batches of "
        rows += f"{self.batch_size:,} rows ({share:.2%})"
        if prepared is None:
            _log.info(rows)
            return
        curvature, noise = self._spectrum(prepared)
        chosen = choose_step_size(integrator, self.friction, curvature, noise)
        if self.schedule.automatic:
            self.automatic_step_size = self._chosen_step_size = chosen
        h = float(self.schedule.sizes(np.zeros(1), self.automatic_step_size)[0])
        if not h or not self.temperature:
            _log.info(f"{rows}; step size {h:.2g}")
            return

        def predicted(held: int) -> float:
            """Error of standard deviations where the noise of `held` steps is the same."""
            position, _ = variances(integrator, h, self.friction, 1.0, curvature, held * noise)
            return float(np.abs(sd_error(position, 1.0, curvature)).max())

        if self.steps_per_batch is None and not self._index_chain:
            most = predicted(1) + _HELD_ERROR
            self.hold = self._chosen_hold = max(
                held for held in _HOLDS if held == 1 or predicted(held) <= most
            )
        error = predicted(self.hold)
        if not error < np.inf:
            _log.warning(
                f"{name}: at step_size {h:.2g} the dynamics are unstable around the reference. Use "
                'a smaller one, or step_size="auto".'
            )
            return
        steps = autocorrelation_time(integrator, h, self.friction, curvature)
        served = min(self.hold, self.transitions_per_draw)
        _log.info(
            f"{rows}{f' for {served} steps each' if served > 1 else ''}; step size {h:.2g}; "
            f"predicted error of standard deviations {amount(100 * error)}%, {amount(steps)} steps "
            "per effective draw"
        )
        if self.schedule.automatic:
            quiet = choose_step_size(integrator, self.friction, curvature, np.zeros_like(noise))
            best = autocorrelation_time(integrator, quiet, self.friction, curvature)
            self._warn_if_slow(h, steps, best)
        elif self._is_slow(steps) and h < _TINY * chosen:
            _log.warning(
                f"{name}: step_size {h:.2g} is so small, in units of the metric, that an effective "
                f'draw takes {steps:,.0f} steps. Use a larger one, or step_size="auto", which is '
                f"{chosen:.2g} here."
            )

    def _is_slow(self, steps: float) -> bool:
        return steps > max(_SLOW, 100 * self.transitions_per_draw)

    def _warn_if_slow(self, h: float, steps: float, best: float) -> None:
        """Say why an effective draw takes many steps; without noise it would take `best`."""
        name, passes = type(self).__name__, steps * self.batch_size / self.n_rows
        slow = self._is_slow(steps)
        if steps > 2 * best and (slow or passes > _MANY_PASSES):
            quieter = [] if self.control_variate_order == 2 else ["use control_variate_order=2"]
            _log.warning(
                f"{name}: the gradients of {self.batch_size:,} rows are so noisy that only a tiny "
                f"step size ({h:.2g}) gives the right standard deviations, at which an effective "
                f"draw takes {steps:,.0f} steps, or {passes:,.0f} passes over the rows; larger "
                f"batches take as many. {sentence([*quieter, 'use pms.HMCECS'])}"
            )
        elif slow:
            _log.warning(
                f"{name}: the posterior is so much narrower in some directions than in others, in "
                f"units of the metric, that an effective draw takes {steps:,.0f} steps, or "
                f"{passes:,.0f} passes over the rows, whatever the size of the batch. Use "
                'metric="curvature", scale the columns alike, or use pms.HMCECS.'
            )

    def _spectrum(self, prepared: Preparation) -> tuple[np.ndarray, np.ndarray]:
        """Curvature of the posterior and noise of the gradients, direction by direction."""
        reference, active = prepared.reference, self._active
        size = len(active)
        z = self.rng.standard_normal((_POINTS, size))
        thetas = np.tile(reference.theta, (_POINTS, 1))
        thetas[:, active] += scaled(prepared.factor, z)
        forces = np.array([self._sampled_forces(theta, _BATCHES) for theta in thetas])
        centred = forces - forces.mean(axis=1, keepdims=True)
        freedom = _POINTS * (_BATCHES - 1)
        noise = np.sum(centred**2, axis=(0, 1)) / freedom
        if size <= MAX_DENSE:
            noise = np.einsum("pbi,pbj->ij", centred, centred) / freedom
        scale = self._own_metric(np.mean(forces**2, axis=(0, 1)))
        if self._whitened:
            curvature = self._curvature = self._whitened_curvature(prepared)
        else:
            curvature = self._precision = self._posterior_precision(prepared, scale)
        if scale is not None:
            curvature, noise = rescaled(curvature, scale), rescaled(noise, scale)
        return spectrum(curvature, noise)

    def _posterior_precision(self, prepared: Preparation, scale: np.ndarray | None) -> np.ndarray:
        """Precision at the reference, shape (a, a), or of many parameters its diagonal, (a,).

        Of a diagonal the largest element, in units of the preconditioner, is the largest curvature.
        """
        quadratic = Quadratic(self._expansion, prepared.reference)
        active, size = self._active, len(self._active)
        if has_precision(self._expansion, size) and size <= MAX_DENSE:
            return quadratic.precision(active)
        found = deviations(prepared.factor, size) ** -2.0
        units = np.ones(size) if scale is None else scale
        steepest = int(np.argmax(rescaled(found, units)))
        largest = quadratic.largest_curvature(active, units, self.rng)
        found[steepest] = max(found[steepest], largest / units[steepest] ** 2)
        return found

    def _whitened_curvature(self, prepared: Preparation) -> np.ndarray:
        """Curvature in units of the metric: one, but for the largest where that is diagonal."""
        curvature = np.ones(len(self._active))
        if len(prepared.factor) == 1 and len(self._active) > 1:
            quadratic = Quadratic(self._expansion, prepared.reference)
            curvature[0] = quadratic.largest_curvature(self._active, prepared.factor[0], self.rng)
        return curvature

    def _own_metric(self, square: np.ndarray) -> np.ndarray | None:
        """Root of what multiplies the step size, given mean squares of the gradient, (a,)."""
        own = self._integrator.own_metric
        return None if own is None else own(self._floor, self.n_rows, square)

    def _sampled_forces(self, theta: np.ndarray, count: int) -> np.ndarray:
        """Return independent stochastic gradients in units of the metric, shape (count, a)."""
        out = np.empty((count, len(self._active)))
        _forces(address_of(self.row_rng), self._compiled, self._sums(), self._batches(), theta, out)
        return out

    def _batches(self) -> Batches:
        return Batches(
            self._permutation, self._sampling, self.batch_size, self._active, self.metric_factor
        )

    @property
    def _integrator(self) -> Integrator:
        return INTEGRATORS[self.integrator]

    @property
    def _whitened(self) -> bool:
        return self.metric == "curvature"
