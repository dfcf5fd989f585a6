"""What a chain of HMC-ECS does: a block of the subsample is refreshed, then parameters move."""

from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from pymc.blocking import PointType
from pymc.step_methods.state import dataclass_state

from pymc_subsample.chain import points
from pymc_subsample.chain.ellipsoid import radius
from pymc_subsample.chain.method import Method, ReferredState, as_nuts_says, divergences
from pymc_subsample.chain.sizing import Choice
from pymc_subsample.chain.tuning import Tuning, TuningState, extent
from pymc_subsample.compiled.functions import address_of
from pymc_subsample.diagnostics.checks import Finding
from pymc_subsample.diagnostics.record import ChainRecord, without_crossings
from pymc_subsample.expansion.estimators import ResidualMoments
from pymc_subsample.kernels.dynamics import Moves, trajectory, tree
from pymc_subsample.kernels.estimates import (
    BLOCK_POISSON,
    FUNCTIONS,
    PERTURBED,
    SubsampleEstimate,
)
from pymc_subsample.kernels.model import MINIBATCH
from pymc_subsample.samplers.hmc_ecs.adaptation import Pace, adapt, estimator, forget
from pymc_subsample.samplers.hmc_ecs.checks import Estimates, check_hmc
from pymc_subsample.samplers.hmc_ecs.kernel import INFO, SubsampleArrays, transitions
from pymc_subsample.samplers.hmc_ecs.subsample import Subsample, SubsampleState

if TYPE_CHECKING:
    from pymc_subsample.samplers.hmc_ecs.step import HMCECS

DYNAMICS = {"hmc": trajectory, "nuts": tree}


@dataclass_state
class HMCECSState(ReferredState):
    """Everything the next draw depends on. The rows themselves are taken anew from the data."""

    row_rng: np.random.Generator
    moments: ResidualMoments
    subsample_size: int
    n_blocks: int
    subsample: SubsampleState
    tuning: TuningState
    record: ChainRecord
    estimator: str = field(metadata={"frozen": True})
    kernel: str = field(metadata={"frozen": True})
    max_treedepth: int = field(metadata={"frozen": True})
    control_variate_order: int = field(metadata={"frozen": True})
    target_accept: float = field(metadata={"frozen": True})
    path_length: float = field(metadata={"frozen": True})
    given: dict[str, Any] = field(metadata={"frozen": True})


# Chains


def _begin(step: "HMCECS", tune: int, draws: int) -> None:
    prepared = step.home
    assert isinstance(prepared, Choice)
    step.moments = prepared.moments
    step.subsample_size = prepared.subsample_size
    step.n_blocks = prepared.n_blocks
    step.subsample = Subsample(step.kind, step.subsample_size, step.n_blocks, prepared.always)
    step.tuning = Tuning(
        tune, step.active, step.expansion.theta_size, prepared.factor, step.target_accept
    )
    step.record = ChainRecord(draws=draws, size=step.tall.size)
    step.pace = Pace()


def _entered(step: "HMCECS", point: PointType) -> np.ndarray:
    theta = points.read(step, point)
    confined = step.kind == BLOCK_POISSON
    inside, most = confined or step.tuning.done > 0, np.inf
    if confined:
        most = radius(len(step.active))
    points.start(step, theta, point, step.tuning.factor, inside, most)
    if not len(step.subsample.index):
        step.subsample.draw(step.row_rng, step.n_rows)
    if step.subsample.rows is None:
        step.subsample.pack(step.expansion, step.reference.center)
    return theta


def _transitions(
    step: "HMCECS", theta: np.ndarray, size: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    sample, reference = step.subsample, step.reference
    thetas, infos = np.empty((size, len(theta))), np.empty((size, len(INFO)))
    thetas[0], refreshes = theta, size * step.transitions_per_draw
    fresh = sample.propose(step.row_rng, step.expansion, refreshes)
    step.step_size = float(step.tuning.step.current(step.tune))
    rows = MINIBATCH if step.kind == BLOCK_POISSON else sample.size
    others = step.n_rows - len(sample.always)
    transitions(step.kind, DYNAMICS[step.kernel])(
        address_of(step.rng), step.compiled, reference.sums(step.control_variate_order),
        SubsampleEstimate(
            others / (rows * step.temperature), _setting(step), float(sample.products),
            reference.theta, radius(len(step.active)), sample.exact, 1.0 / step.temperature,
        ),
        Moves(
            step.active, step.tuning.factor, step.step_size,
            extent(step.path_length, step.step_size) if step.kernel == "hmc" else
            float(step.max_treedepth),
        ),
        SubsampleArrays(sample.index, sample.rows, sample.counts, sample.group),
        fresh, thetas, infos,
    )  # fmt: skip
    sample.group = (sample.group + refreshes) % sample.n_groups
    return thetas, without_crossings(dict(zip(INFO, infos.T, strict=True)))


def _setting(step: "HMCECS") -> float:
    """How much of half its variance an estimate is less, or the a of the block-Poisson one."""
    if step.kind == PERTURBED:
        return 1.0
    return float(np.mean(step.moments.total)) / step.temperature - step.subsample.products


def _statistics(step: "HMCECS", infos: dict[str, np.ndarray]) -> dict[str, Any]:
    rows = (infos["rows_moved"] + infos["rows_refreshed"]).astype(int)
    return as_nuts_says(step, infos["tree_depth"]) | {
        "divergences": divergences(step, infos["diverging"]),
        "model_logp": infos["log_posterior"] - infos["volume"],  # of the model's variables
        "n_evaluations": 2 * rows,
        "step_size": step.step_size,
        "subsample_size": step.rows_read,
        "data_share": step.share,
    }


# After tuning


def _watch(step: "HMCECS", thetas: np.ndarray, infos: dict[str, np.ndarray]) -> None:
    step.record.add(thetas, infos)


def _check(step: "HMCECS") -> list[Finding]:
    signed = step.kind == BLOCK_POISSON
    estimates = Estimates(
        estimator=estimator(step),
        active=step.active,
        predicted=step.moments,
        factor=step.home.factor,
        n_blocks=step.n_blocks,
        given_reference=bool(step.given["reference"]),
        tune=step.tuning.total,
        began=step.began,
        kind=step.kind,
        confined=step.tuning.factor if signed else None,
        positive=partial(_positive, step),
    )
    return check_hmc(step.record, estimates)


def _positive(step: "HMCECS", thetas: np.ndarray) -> np.ndarray:
    """Return variables of which theta, shape (k, d), holds logarithms, shape (k, l)."""
    values, _ = step.expansion.written(thetas)
    logs = step.layout.places([v.name for v in step.vars if v.name.endswith("_log__")])
    with np.errstate(over="ignore"):
        return np.exp(values[:, logs])


METHOD = Method(
    state=HMCECSState, functions=lambda step: FUNCTIONS, begin=_begin, enter=_entered,
    transitions=_transitions, statistics=_statistics, adapt=adapt, watch=_watch, check=_check,
    forget=forget, compile=lambda step: transitions(step.kind, DYNAMICS[step.kernel]),
)  # fmt: skip
