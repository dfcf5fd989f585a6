"""What NUTS on all rows would take, projected without running it.

A gradient of all rows is timed, and NUTS samples the rows' second-order expansion, which reads none
of them, to see how many gradients it needs.
"""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from time import thread_time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pymc as pm
from pymc.exceptions import SamplingError
from pymc.step_methods.hmc.quadpotential import QuadPotentialDiagAdapt

from pymc_subsample.diagnostics import array_stats
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.factors import deviations, scaled
from pymc_subsample.expansion.quadratic import Quadratic
from pymc_subsample.expansion.reference import Reference

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
# Of `pm.sample`, after as many of tuning.
DRAWS = 1000
# What an approximation must save: at least so many seconds, and this share of the time.
SAVED_SECONDS, _SAVED_SHARE = 10.0, 0.5
_TIMED_ROWS = 200_000
_TIMED_SECONDS = 0.1
# Draws of a step that are timed, the first few that are not counted, and time that is enough.
_PROBE, _FIRST, _PROBE_SECONDS = 12, 4, 5.0

# Draws of the trial run, if time allows, and fewest by which it is judged.
_NUTS_TUNE, _NUTS_DRAWS, _NUTS_FEWEST_TUNE, _NUTS_FEWEST = 200, 400, 50, 100
# Ratio of posterior standard deviations, in unconstrained space, from which on NUTS, which starts
# its tuning with one step size for all, spends more of it on finding them than a trial that knows
# them beforehand.
_UNITS = 100.0
# Tuning's share of a trial of NUTS; shares of draws whose divergences make its effective draws a
# bound, and of tuning draws from which on the expansion is no density.
_TUNING_SHARE, _FEW_DIVERGENCES, _OFTEN = 0.4, 0.05, 0.5
# Why a projection is a bound.
CUT, _DIVERGED = "its trial was cut short", "many draws of its trial diverged"
_APART = "it has to find scales that are far apart, which its trial knew"
# Standard deviations.
_ASTRAY = 12.0
# Normal draws in the chain's own coordinates that show variances of the model's variables.
_POINTS = 500
# Tuning draws of a short trial, and its time; gradients per draw that are many, and as many as NUTS
# takes of regressions (5 to 8 in trials of Poisson ones, zero-inflated ones and mixtures).
_SHORT, _SHORT_SECONDS, _MANY, FEW_GRADIENTS = 100, 1.0, 30, 7


@contextmanager
def quiet() -> Iterator[None]:
    """Keep PyMC, its steps and the numerics of a pilot from talking to the user."""
    logger = logging.getLogger("pymc")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def seconds_per_pass(
    expansion: Expansion, evaluate: Callable[[np.ndarray], None], least: float = _TIMED_SECONDS
) -> float:
    """Seconds that a function of packed rows, shape (width, m), takes for all, by timing some."""
    chunks: list[np.ndarray] = []
    for rows in expansion.chunks():
        chunks.append(rows)
        if sum(c.shape[1] for c in chunks) >= _TIMED_ROWS:
            break
    evaluate(chunks[0])
    passes, start = 0, thread_time()
    while (spent := thread_time() - start) < least or not passes:
        for rows in chunks:
            evaluate(rows)
        passes += 1
    return spent / passes * expansion.n_rows / sum(c.shape[1] for c in chunks)


def seconds_per_evaluation(step: "ChainStep") -> float:
    """Seconds of the log-likelihood of all rows, by the step's own code."""
    phi, _ = step.expansion.parameters(step.tall.ravel(step.tall.initial_point))

    def evaluate(rows: np.ndarray) -> None:
        step.expansion.change(phi, phi, phi, rows, np.empty(rows.shape[1]))

    return 0.5 * seconds_per_pass(step.expansion, evaluate)  # evaluates every row twice


def seconds_per_full_gradient(
    expansion: Expansion, reference: Reference, least: float = _TIMED_SECONDS
) -> float:
    """Seconds of one log density and gradient of all rows as PyTensor compiles it: an estimate."""
    center = reference.center
    gradient = np.empty(expansion.phi_size)

    def evaluate(rows: np.ndarray) -> None:
        expansion.difference(center, rows, center, 1.0, 0.0, np.empty(rows.shape[1]), gradient)

    return SLOWER * seconds_per_pass(expansion, evaluate, least)


def counted_gradient(operations: int, n_rows: int) -> float:
    """Seconds of the same by a count, of so many operations a row: for what must not vary."""
    return SLOWER * _PER_OPERATION * operations * n_rows


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


class _Expansion:
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
            len(variance), reference.theta.copy(), variance.copy(), 10, rng=rng
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


class Gradients(NamedTuple):
    """Gradients of all rows that NUTS needs."""

    # Their numbers.
    per_effective_draw: float
    per_tuning_draw: float
    # Why these are lower bounds, if they are.
    bound: str = ""


class NutsTrial:
    """NUTS on the expansion of a model's rows, which tells how many gradients it needs.

    The step samples all variables, with a reference point.
    """

    def __init__(self, step: "ChainStep", seed: int) -> None:
        diagonal = step.expansion.curvature == "diagonal"
        self._chain = None if diagonal else _Expansion(step, _NUTS_TUNE, _NUTS_DRAWS, seed)
        self._tuned, self._diverging = False, 0
        self._tuning, self._sizes, self._draws = (list[np.ndarray]() for _ in range(3))

    def gradients(self, seconds: float) -> Gradients | None:
        """Go on for some time, while it was too short; return gradients that NUTS needs.

        Until there are 100 draws, an effective one takes the gradients of a draw, at least. None
        where the expansion is no density away from the reference.
        """
        chain = self._chain
        if chain is None:
            return None
        if not self._tuned:
            done = sum(map(len, self._tuning))
            sizes, draws, diverging = chain.run(_NUTS_TUNE - done, _TUNING_SHARE * seconds)
            if chain.astray(draws) or diverging > _OFTEN * len(draws):
                self._chain = None
                return None
            self._tuning.append(sizes)
        tuning = np.concatenate(self._tuning)
        later = float(np.mean(tuning[len(tuning) // 3 :]))
        if len(tuning) < _NUTS_FEWEST_TUNE:
            return Gradients(later, later, CUT)
        if not self._tuned:
            chain.nuts.stop_tuning()
            self._tuned = True
        sizes, draws, diverging = chain.run(_NUTS_DRAWS, (1 - _TUNING_SHARE) * seconds)
        if chain.astray(draws):
            self._chain = None
            return None
        self._sizes.append(sizes)
        self._draws.append(draws)
        self._diverging += diverging
        sizes, draws = np.concatenate(self._sizes), np.concatenate(self._draws)
        if len(draws) < _NUTS_FEWEST:
            return Gradients(float(np.mean(sizes)), later, CUT)
        unfit = _DIVERGED if self._diverging > _FEW_DIVERGENCES * len(draws) else ""
        apart = _APART if chain.sd.max() > _UNITS * chain.sd.min() else ""
        return Gradients(float(sizes.sum() / smallest_ess(draws)), later, unfit or apart)


def smallest_ess(draws: np.ndarray) -> float:
    """Smallest bulk effective sample size of columns, shape (draws, k), that vary at all.

    At least 1, which stands for those of too few draws, or such that are not finite.
    """
    varying = [x for x in draws.T.astype(float) if np.ptp(x) != 0]
    found = [array_stats.ess(x[None, :], method="bulk") for x in varying]
    return max(float(np.min(found)), 1.0) if found and np.all(np.isfinite(found)) else 1.0


# Beside a step that reads a large share of the rows


@dataclass(frozen=True)
class Comparison:
    """What a chain of 1,000 draws, after as many of tuning, takes a step and NUTS on all rows."""

    per_gradient: float  # Seconds of the processor for a gradient of all rows.
    # The same of the step, and of NUTS with its compilation. nan where not even many gradients of
    # all rows would take long.
    seconds: float = np.nan
    full_seconds: float = np.nan
    gradients: float = np.nan  # Of all rows per draw of NUTS.


def compare(step: "ChainStep", drawn: tuple[float, float] | None = None) -> Comparison:
    """Time a few draws of a step, which samples all variables, and project NUTS on all rows.

    Seconds and gradients per draw are those `drawn`, if they are known. A gradient of all rows is
    timed. As many of them are taken per draw as NUTS needs in its tuning on the rows' expansion,
    within a second, or else as the step takes.
    """
    assert step.prepared is not None
    per_gradient = seconds_per_full_gradient(
        step.expansion, step.prepared.reference, 0.2 * _TIMED_SECONDS
    )
    if drawn is None and 2 * DRAWS * _MANY * per_gradient < SAVED_SECONDS:
        return Comparison(per_gradient)
    per_draw, steps = drawn or seconds_per_draw(step, 0)
    gradients = _gradients_of_tuning(step) or steps
    full = COMPILE_SECONDS + 2 * DRAWS * gradients * per_gradient
    return Comparison(per_gradient, 2 * DRAWS * per_draw, full, gradients)


def _gradients_of_tuning(step: "ChainStep") -> float | None:
    """Gradients per draw of NUTS in tuning; None where the expansion is no density."""
    if step.expansion.curvature == "diagonal":
        return None
    try:
        pilot = _Expansion(step, _SHORT, 0, 0)
        sizes, draws, diverging = pilot.run(_SHORT, _SHORT_SECONDS)
    except (SamplingError, ValueError):  # not finite where it starts
        return None
    if diverging > 0.2 * len(sizes) or pilot.astray(draws):
        return None
    return float(np.mean(sizes[len(sizes) // 3 :]))


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


def pays(seconds: float, full_seconds: float, bound: str = "") -> bool:
    """Whether an approximation saves enough: 10 s, and half the time if that is a projection.

    Projections are rough, but a lower bound errs to one side.
    """
    share = 0.0 if bound else _SAVED_SHARE
    return bool(full_seconds - seconds >= max(SAVED_SECONDS, share * full_seconds))


def nuts(units: bool = False) -> tuple[str, str]:
    """Name and code of the best NUTS on all rows, or units, that is installed."""
    of = ["model=pms.marginalize(model)"] if units else []
    if find_spec("nutpie") is None:
        return "pm.NUTS", f"pm.sample({', '.join(of)})"
    return "nutpie", f"pm.sample({', '.join(['nuts_sampler="nutpie"', *of])})"
