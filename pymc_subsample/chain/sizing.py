"""How many rows a subsample takes, and in how many blocks."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from pymc_subsample.bounds.predictor_ranges import exact_step
from pymc_subsample.chain.ellipsoid import shape
from pymc_subsample.chain.memory import total_memory
from pymc_subsample.chain.nuts_instead import nuts
from pymc_subsample.chain.progress import doing
from pymc_subsample.chain.setup import Preparation, Problem
from pymc_subsample.compiled.process import one_thread
from pymc_subsample.diagnostics.checks import amount, sentence
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.block_poisson import choose_products, log_variance
from pymc_subsample.expansion.estimators import (
    VARIANCE_BOUND,
    ResidualMoments,
    choose_n_blocks,
    choose_subsample_size,
    moments_from_sums,
)
from pymc_subsample.expansion.quadratic import Quadratic
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.expansion.residual_causes import distance_to_mode, find_cause, is_far
from pymc_subsample.expansion.residuals import Residuals, residuals_around
from pymc_subsample.expansion.undefined import flat_rows
from pymc_subsample.kernels.estimates import BLOCK_POISSON, PERTURBED
from pymc_subsample.kernels.model import MINIBATCH
from pymc_subsample.model import TallModelError

# Share of the rows read by an estimate, those that are read always among them. Beyond it reading
# all of them in order is faster than drawing some.
_MOST = 0.5
# Of the memory, that a chain may take to hold all rows. A choice: four chains, as `pm.sample` runs
# where it has the cores, then take less than half.
_OF_MEMORY = 0.1


@dataclass(frozen=True)
class Choice(Preparation):
    """The same with a subsample."""

    # Integers, shape (e,): rows that every estimate reads, in order.
    always: np.ndarray = field(kw_only=True)
    # Of the other rows' residuals on the 95% ellipsoid around the reference.
    moments: ResidualMoments = field(kw_only=True)
    # As given or chosen.
    subsample_size: int = field(kw_only=True)
    n_blocks: int = field(kw_only=True)
    # What made all rows be read, as was measured.
    why: str = field(default="", kw_only=True)


@one_thread
@doing("choosing the subsample")
def choose(
    problem: Problem, prepared: Preparation, subsample_size: int | None, n_blocks: int | None = 1
) -> Choice:
    """Choose what was not given of a subsample, by a pass over all rows at each mode.

    Raises `TallModelError` if rows are impossible around the reference, or the subsample size is
    left open and as many rows as the data have are too few.
    """
    first, others = _chosen(problem, prepared, subsample_size, n_blocks), []
    elsewhere = replace(problem, archive=None)
    for other in prepared.others:
        try:
            others.append(_chosen(elsewhere, other, subsample_size, n_blocks))
        except TallModelError:  # some likely parameters there make the data impossible
            continue
    return replace(first, others=tuple(others))


def _chosen(
    problem: Problem, prepared: Preparation, subsample_size: int | None, n_blocks: int | None
) -> Choice:
    kind, temperature, at = problem.kind, problem.temperature, prepared.reference
    points = prepared.pilot, prepared.far
    residuals = prepared.residuals or residuals_around(problem.expansion, at, *points)
    if problem.archive is not None:
        problem.archive.write(problem.expansion, at, *points, residuals)
    why = ""
    found = sized(kind, residuals, temperature, subsample_size, n_blocks)
    if subsample_size is None:
        # Where most rows would be read, or the reference may be far off, what counts is whether
        # all of them are enough.
        given = problem.given is not None
        most = len(found.always) + found.subsample_size > _MOST * residuals.n_rows
        judged = residuals.moments() if most or given else found.moments
        if not np.max(judged.variance(judged.n_rows, temperature)) <= VARIANCE_BOUND:
            causes, smooth = _causes(problem, at)
            if not (smooth and kind == PERTURBED and _fits_memory(problem.expansion)):
                raise TallModelError(_useless(judged, problem, at, causes))
            found = all_rows(kind, residuals.n_rows, temperature, n_blocks)
            why = causes[0]
        if kind == BLOCK_POISSON and choose_products(judged, temperature) is None:
            raise TallModelError(_no_products(judged, problem, at))
    return Choice(**vars(prepared) | {"residuals": None}, **found._asdict(), why=why)


class Sized(NamedTuple):
    """Rows to read always, moments of the others, and how many of these in how many blocks."""

    always: np.ndarray
    moments: ResidualMoments
    subsample_size: int
    n_blocks: int


def sized(
    kind: int,
    residuals: Residuals,
    temperature: float,
    subsample_size: int | None,
    n_blocks: int | None,
) -> Sized:
    """Choose what was not given; where that many rows are as good as all, all are read."""
    always, moments = choose_always(kind, residuals, temperature)
    size, blocks = choose_subsample(kind, moments, temperature, subsample_size, n_blocks)
    if kind == PERTURBED and subsample_size is None and len(always) + size >= residuals.n_rows:
        return all_rows(kind, residuals.n_rows, temperature, n_blocks)
    return Sized(always, moments, size, blocks)


def all_rows(kind: int, n: int, temperature: float, n_blocks: int | None) -> Sized:
    """Return the same of an estimate that is exact: one row is left to be drawn, many times."""
    alone = moments_from_sums(np.zeros((4, 1)), 1)
    chosen = choose_subsample(kind, alone, temperature, None, n_blocks)
    return Sized(np.arange(n - 1), alone, *chosen)


def _fits_memory(expansion: Expansion) -> bool:
    total = total_memory()  # not what happens to be free: a busy machine is to decide the same
    return total is None or 8.0 * expansion.width * expansion.n_rows <= _OF_MEMORY * total


def check_blocks(kind: int, subsample_size: int | None, blocks: int | None) -> None:
    """Refuse sizes that don't divide."""
    signed = kind == BLOCK_POISSON
    if signed and subsample_size and subsample_size % MINIBATCH:
        raise ValueError(
            f"subsample_size={subsample_size} is not a multiple of {MINIBATCH}, the size of a "
            "minibatch of the block-Poisson estimate. Use "
            f'{max(subsample_size // MINIBATCH, 1) * MINIBATCH}, or "auto".'
        )
    parts = subsample_size // MINIBATCH if signed and subsample_size else subsample_size
    if parts and blocks and parts % blocks:
        of = f"the {parts} minibatches of " if signed else ""
        raise ValueError(
            f"n_blocks={blocks} does not divide {of}subsample_size={subsample_size}. Choose a "
            'divisor, or leave n_blocks="auto".'
        )


def choose_always(
    kind: int, residuals: Residuals, temperature: float
) -> tuple[np.ndarray, ResidualMoments]:
    """Choose the rows that the perturbed estimate reads always, whatever the subsample's size.

    Returns their numbers, in order, and the moments of the others.
    """
    always = np.zeros(0, dtype=np.int64)
    if kind == PERTURBED:
        always = residuals.choose_always(temperature)
    return always, residuals.moments(len(always))


def choose_subsample(
    kind: int,
    moments: ResidualMoments,
    temperature: float,
    subsample_size: int | None,
    n_blocks: int | None,
) -> tuple[int, int]:
    """Choose the size of the subsample and its number of blocks, where they are None."""
    # The block-Poisson estimate counts in minibatches: a few need no more blocks than there are.
    unit, rows = n_blocks or 10, MINIBATCH if kind == BLOCK_POISSON else 1
    most = max(moments.n_rows // rows, 1)
    if subsample_size is not None:
        parts = subsample_size // rows
    elif kind == BLOCK_POISSON:
        parts = choose_products(moments, temperature) or most
    else:
        parts = choose_subsample_size(moments, temperature)
    if kind == BLOCK_POISSON and n_blocks is None and parts < unit:
        unit = 1
    if subsample_size is None:
        parts = max(unit, min(-(-parts // unit) * unit, most // unit * unit))
    if n_blocks is None:
        variance = predicted_variance(kind, moments, rows * parts, temperature)
        n_blocks = choose_n_blocks(parts, variance)
    return rows * parts, n_blocks


def predicted_variance(
    kind: int, moments: ResidualMoments, subsample_size: int, temperature: float
) -> float:
    """Variance of the logarithm of an estimate from m rows, at the worst of the points."""
    if kind == PERTURBED:
        return float(np.max(moments.variance(subsample_size, temperature)))
    sd = float(np.sqrt(np.max(moments.variance(MINIBATCH, temperature))))
    return log_variance(subsample_size / MINIBATCH, sd) if np.isfinite(sd) else np.inf


def _causes(problem: Problem, at: Reference) -> tuple[list[str], bool]:
    """Say why the expansion leaves too much, as was measured, and whether rows are smooth there."""
    expansion, free = problem.expansion, problem.free
    quadratic = Quadratic(expansion, at)
    _, spread = shape(quadratic, problem.active, free)
    causes = [f"control_variate_order={expansion.order} is too low"] if expansion.raisable else []
    if expansion.rough is not None:
        causes += [f"PyTensor has no second derivatives ({expansion.rough})"]
    elif expansion.limited is not None:
        size = expansion.phi_size
        causes += [
            f"its {size:,} parameters, too many for control_variate_order=2, need more "
            f"{problem.each} than "
            f"there are (about {size**2 // 2:,} if each is informed by all of them)"
        ]
    given = problem.given is not None
    away = distance_to_mode(quadratic, spread, free) if given else 0.0
    if is_far(away):
        causes += [
            f"the given reference is far from the posterior mode, by about {amount(away)} standard "
            "deviations in each parameter, by the curvature there"
        ]
    if at.flat:
        causes += [flat_rows(expansion, at)]
    if not causes:
        found = find_cause(expansion, at, spread, free, problem.starts.blocks, problem.rng)
        return ([], False) if found is None else ([str(found)], found.smooth)
    return causes, False


def _useless(moments: ResidualMoments, problem: Problem, at: Reference, causes: list[str]) -> str:
    """Say that control variates help so little that no subsample is large enough.

    A kink hides the curvature of the log-likelihood from its expansion, whose mass matrix is then
    as wide as the prior: that run would read all rows at each of very many steps, in vain.
    """
    n, expansion = moments.n_rows, problem.expansion
    variance = float(np.max(moments.variance(n, problem.temperature)))
    advice = ["use control_variate_order=2"] if expansion.raisable else []
    advice += [] if problem.given is None else ["leave reference=None"]
    if at.flat and problem.kind == BLOCK_POISSON:
        advice += [f'use estimator="perturbed", which reads such {problem.each} always']
    why = f" Measured: {'; '.join(causes)}." if causes else ""
    each = problem.each
    return (
        f"The log-likelihood of {', '.join(map(repr, expansion.likelihood))} cannot be expanded "
        f"well enough to subsample its {each}: even {n:,} {each} per draw, as many as there are, "
        f"leave the estimate a variance of {amount(variance)} (should be at most "
        f"{VARIANCE_BOUND:g})."
        f"{why} " + sentence([*advice, "sample this model with pm.sample()"])
    )


def _no_products(moments: ResidualMoments, problem: Problem, at: Reference) -> str:
    """Say that there are too few rows for the block-Poisson estimate, but not for the other."""
    n, each = moments.n_rows, problem.each
    variance = predicted_variance(
        BLOCK_POISSON, moments, max(n // MINIBATCH, 1) * MINIBATCH, problem.temperature
    )
    left = [*exact_step(problem.expansion, at), 'use estimator="perturbed"']
    return (
        f"No subsample of the {n:,} {each} of {', '.join(map(repr, problem.expansion.likelihood))} "
        "is large enough for the block-Poisson estimate: even with as many as there are, its "
        f"logarithm has a variance of {amount(variance)} (should be at most {VARIANCE_BOUND:g}), "
        f"or a single {each[:-1]} or a point at the edge of what is sampled may turn its sign. "
        + sentence([*left, "sample this model with pm.sample()"])
    )


def instead_of_bounds(tries: Iterable[tuple[Problem, Preparation]]) -> str:
    """Say which sampler takes a model whose rows have no bounds, after a look at its subsample.

    `tries` are the model, and the model with rows on other scales, if these would help.
    """
    reads_all, each = False, "rows"
    for problem, prepared in tries:
        each = problem.each
        try:
            found = choose(problem, prepared, None, None)
        except TallModelError:
            continue
        if len(found.always) + found.subsample_size < problem.expansion.n_rows:
            return "Use HMCECS, which needs none."
        reads_all = True
    code = nuts(units=each == "units")[1]
    if reads_all:
        return f"Use HMCECS, which needs none but reads all {each} here, or {code}."
    return f"HMCECS cannot subsample these {each} either. Use {code}."
