"""What a step takes, and what NUTS on all rows would take, projected without running it.

A gradient of all rows is timed, and NUTS samples the rows' second-order expansion, which reads none
of them, to see how many gradients it needs.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import thread_time
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
from pymc.step_methods.hmc.quadpotential import QuadPotentialDiagAdapt

from pymc_subsample.compiled.process import shared
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.factors import deviations, scaled
from pymc_subsample.expansion.quadratic import Quadratic
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.graph.elements import computed_elements
from pymc_subsample.kernels.model import PERTURBED

if TYPE_CHECKING:
    from pymc_subsample.chain.engine import ChainStep

# Time that PyTensor's own log density and gradient of all rows take over that of the compiled
# expansion: 1.4 to 4.5 times for logistic and linear regressions, BLAS on one thread.
SLOWER, LEAST_SLOWER = 2.5, 1.4
# Of the compiled expansion's, by operations of the log-likelihood of a row: 0.4 to 3.6 ns, in the
# middle of ten models 1.1.
_PER_OPERATION = 1.1e-9
# To compile a model's log density and gradient: nutpie 0.16, which keeps nothing on disk, took 5
# to 10 s of processor time.
COMPILE_SECONDS = 5.0
# Of `pm.sample`, after as many of tuning. PyMC's defaults.
DRAWS = 1000
# Gradients per draw that NUTS takes of regressions (5 to 8 in trials of Poisson ones,
# zero-inflated ones and mixtures). A gradient is timed on so many rows at most, for so long: a
# choice, as noise of a tenth changes no advice.
FEW_GRADIENTS = 7
_TIMED_ROWS = 200_000
_TIMED_SECONDS = 0.05
# Of a model with a variable for each of many units, sampled as it is written: gradients per draw,
# of tuning and after (22, 26 and 28 in logistic panels, choices and missing covariates), seconds of
# PyMC's own code beside each (50 to 110 us), and by elements of the log density, of transcendental
# functions and others: fitted to 17 models, whose gradients take 0.4 to 1.8 times as long.
_GRADIENTS_AS_WRITTEN, _BESIDE, _PER_DEAR_ELEMENT, _PER_ELEMENT = 25, 8e-5, 8e-9, 1.7e-10
# Draws of a step that are timed, the first few that are not counted, and time that is enough. A
# choice: the first ones load code.
_PROBE, _FIRST, _PROBE_SECONDS = 12, 4, 5.0

# Standard deviations. No draw of a normal distribution is as far; where an expansion has no
# bound, draws soon are.
_ASTRAY = 12.0
# Normal draws in the chain's own coordinates that show variances of the model's variables. Their
# variances are good to 6%, the root of 2 / 500.
_POINTS = 500


@shared
@contextmanager
def quiet() -> Iterator[None]:
    """Keep PyMC, its steps and the numerics of a pilot from talking to the user.

    And PyTensor from showing rewrites of a graph that failed, without which it goes on. All threads
    share loggers and warnings.
    """
    loggers = [logging.getLogger(name) for name in ("pymc", "pytensor.graph.rewriting")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def seconds_per_pass(expansion: Expansion, evaluate: Callable[[np.ndarray], None]) -> float:
    """Seconds that a function of packed rows, shape (width, m), takes for all, by timing some."""
    chunks: list[np.ndarray] = []
    for rows in expansion.chunks():
        chunks.append(rows)
        if sum(c.shape[1] for c in chunks) >= _TIMED_ROWS:
            break
    evaluate(chunks[0])
    seconds = _seconds(evaluate, chunks)
    return seconds * expansion.n_rows / sum(c.shape[1] for c in chunks)


def _seconds(work: Callable[[np.ndarray], Any], parts: Sequence[np.ndarray]) -> float:
    """Seconds of the processor that something takes for all parts, again and again."""
    passes, start = 0, thread_time()
    while (spent := thread_time() - start) < _TIMED_SECONDS or not passes:
        for part in parts:
            work(part)
        passes += 1
    return spent / passes


def seconds_per_evaluation(step: "ChainStep") -> float:
    """Seconds of the log-likelihood of all rows, by the step's own code."""
    phi, _ = step.expansion.parameters(step.tall.ravel(step.tall.initial_point))

    def evaluate(rows: np.ndarray) -> None:
        step.expansion.loglik(phi, rows, np.empty(rows.shape[1]))

    return seconds_per_pass(step.expansion, evaluate)


def seconds_per_full_gradient(expansion: Expansion, reference: Reference) -> float:
    """Seconds of one log density and gradient of all rows as PyTensor compiles it: an estimate."""
    center = reference.center
    gradient = np.empty(expansion.phi_size)

    def evaluate(rows: np.ndarray) -> None:
        d = np.empty(rows.shape[1])
        expansion.residual(center, rows, center, PERTURBED, 1.0, 0.0, d, gradient)

    return SLOWER * seconds_per_pass(expansion, evaluate)


def counted_gradient(operations: int, n_rows: int) -> float:
    """Seconds of the same by a count, of so many operations a row: for what must not vary."""
    return SLOWER * _PER_OPERATION * operations * n_rows


def seconds_as_written(model: pm.Model) -> float:
    """Seconds of NUTS on a model whose units have variables of their own: 2 x 1,000 draws.

    By a count: to compile the log density and its gradient takes 1 to 30 s. Draws of some
    parameters can be worth much less than as many effective ones. Infinite where PyMC has no
    gradient of all variables, or no log density: who reads the model says why.
    """
    if model.discrete_value_vars:
        return np.inf
    try:
        density = model.logp()
    except (NotImplementedError, RuntimeError, ValueError):
        return np.inf
    dear, others = computed_elements([density], model.value_vars)
    gradient = _PER_DEAR_ELEMENT * dear + _PER_ELEMENT * others + _BESIDE
    return COMPILE_SECONDS + 2 * DRAWS * _GRADIENTS_AS_WRITTEN * gradient


class _Expanded:
    """Log posterior whose rows are replaced by their expansion, as `pm.NUTS` takes a density."""

    _raveled_inputs = True
    _extra_vars_shared: dict = {}  # noqa: RUF012  as PyMC reads it
    dtype = "float64"

    def __init__(self, quadratic: Quadratic) -> None:
        self._quadratic = quadratic

    def _pytensor_function(self, theta: np.ndarray) -> tuple[np.float64, np.ndarray]:
        found = self._quadratic
        return np.float64(found.log_density(theta)), found.gradient(theta)


class NutsOnExpansion:
    """PyMC's NUTS on the exact prior and the rows' second-order expansion, which reads no rows.

    Its mass matrix is diagonal, as NUTS adapts it, and starts at the posterior's own.
    """

    def __init__(self, step: "ChainStep", tune: int, draws: int, seed: int) -> None:
        assert step.prepared is not None
        model = step.sampled_model
        tall, expansion, free = step.tall, step.expansion.as_written(), step.layout.continuous()
        reference, scale = step.prepared.reference, step.prepared.factor
        rng = np.random.default_rng(seed)
        if step.expansion.coordinates is not None:  # NUTS moves in the model's own variables
            points = np.tile(reference.theta, (_POINTS, 1))
            points[:, free] += scaled(scale, rng.standard_normal((_POINTS, len(free))))
            variance = np.var([step.expansion.values(point) for point in points], axis=0)
            reference = replace(reference, theta=step.expansion.values(reference.theta))
        else:
            variance = deviations(scale, len(free)) ** 2
        self.reference, self.sd, self.tall = reference, np.sqrt(variance), tall
        self._point = {**model.initial_point(), **tall.unravel(reference.theta)}
        potential = QuadPotentialDiagAdapt(
            # 10: the weight of the first variances, as in PyMC.
            len(variance),
            reference.theta.copy(),
            variance.copy(),
            10,
            rng=rng,
        )
        with quiet():
            self.nuts = pm.NUTS(
                model=model,
                logp_dlogp_func=_Expanded(Quadratic(expansion, reference)),
                potential=potential,
            )
        self.nuts.setup_chain(np.random.default_rng(seed), tune, draws)

    def run(self, most: int, seconds: float) -> tuple[np.ndarray, np.ndarray, int]:
        """Go on for some draws, or some time; return sizes of trees, draws, and divergences."""
        start = thread_time()
        sizes, draws, diverging = [], [], 0
        with quiet(), np.errstate(all="ignore"):
            for _ in range(most):
                self._point, [stats] = self.nuts.step(self._point)
                sizes.append(stats["tree_size"])
                draws.append(self.tall.ravel(self._point))
                diverging += bool(stats["diverging"])
                if thread_time() - start > seconds:
                    break
        return np.array(sizes), np.array(draws), diverging

    def astray(self, draws: np.ndarray) -> bool:
        """Whether some draws, shape (k, d), are so far out that the expansion is no density."""
        return not np.all(np.abs(draws - self.reference.theta) < _ASTRAY * self.sd)


def seconds_per_draw(step: "ChainStep", seed: int) -> tuple[float, float]:
    """Seconds and leapfrog steps, if any, per draw of a few tuning draws without the first."""
    twin = object.__new__(type(step))  # which moves on, and leaves the step as it is
    twin.__dict__.update(step.__dict__)
    twin.setup_chain(np.random.default_rng(seed), _PROBE, 0)
    point = step.model.initial_point()
    times, steps = [], []
    for _ in range(_PROBE):
        start = thread_time()
        point, [stats] = twin.step(point)
        times.append(thread_time() - start)
        steps.append(stats.get("n_steps", np.nan))
        if len(times) > _FIRST and sum(times) > _PROBE_SECONDS:
            break
    return float(np.mean(times[_FIRST:])), float(np.mean(steps[_FIRST:]))
