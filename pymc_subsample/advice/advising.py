"""The step that fits a model, its pilot and what it is compared with."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import thread_time
from typing import Any

import numpy as np
import pymc as pm

from pymc_subsample import arguments
from pymc_subsample.advice.decision import code, compared, on_all_rows, preferred, worth_another
from pymc_subsample.advice.pilot import Pilot, run_pilot
from pymc_subsample.advice.result import Advice
from pymc_subsample.all_rows import (
    COMPILE_SECONDS,
    DRAWS,
    nuts,
    nuts_gradients,
    quiet,
    seconds_per_full_gradient,
    seconds_per_pass,
)
from pymc_subsample.data import Rows
from pymc_subsample.likelihood import TallModelError
from pymc_subsample.likelihood.discovery import chosen_names, row_terms
from pymc_subsample.steps import variables
from pymc_subsample.steps.barker import MinibatchBarkerMH
from pymc_subsample.steps.base import SubsampledStep
from pymc_subsample.steps.gibbs import AusterityGibbs
from pymc_subsample.steps.hmc_ecs import HMCECS
from pymc_subsample.steps.remarks import FEW_ACCEPTED
from pymc_subsample.steps.scalable import ScalableMH
from pymc_subsample.symbolic.graph import UNDIFFERENTIABLE, numpy_function


def advise(
    model: pm.Model | None = None,
    *,
    observed: Sequence[str] | None = None,
    dim: str | None = None,
    data: Rows | None = None,
    effective_draws: int = 1000,
    seconds: float = 3.0,
    random_seed: int = 0,
) -> Advice:
    r"""Say whether subsampling the rows would pay for a model, from a short pilot.

    The step that fits the model is made and runs one short tuned chain through `pm.sample`:
    `ScalableMH`, which is exact, or `HMCECS` where the log-likelihood can be differentiated,
    `MinibatchBarkerMH` without control variates where it cannot, `AusterityGibbs` where all
    variables are binary. It is recommended if the pilot passes the step's own checks and one chain
    of it, which takes

    .. math:: S + 1000\,t + N / r

    seconds with set-up and compilation S, t per (tuning) draw, r effective draws per second and
    N = `effective_draws`, takes at most half the time of a sampler that reads all rows and saves
    at least 10 s. Below that the sampler on all rows is fast enough, and as exact as any.

    `HMCECS` is made too where `ScalableMH` refuses the model, is predicted to accept fewer than
    half of its proposals, or fails in its pilot, and where its draws would take longer than it
    takes to try another step. Of two steps that pay the exact one is recommended if it takes up to
    1.5 times as long: pilots cannot tell times apart that are closer, so that exactness is free.

    Parameters
    ----------
    model : pymc.Model, optional
        Default: the model on the context stack.
    observed : sequence of str or variable, optional
        Observed variables and potentials whose rows are subsampled; as for the steps.
    dim : str, optional
        Name of the rows' dimension; as for the steps.
    data : Rows, optional
        Rows on disk, in the place of those that the model is written on; as for the steps. What is
        recommended instead of a step needs a model that holds all rows in memory.
    effective_draws : int, default 1000
        Effective draws of the worst parameter that are wanted of one chain.
    seconds : float, default 3
        Time for the pilot's draws, beside the set-up; at least 150 draws are made.
    random_seed : int, default 0
        Of the pilot.

    Returns
    -------
    Advice
        Recommendation, reason, code and numbers; prints as a table.

    Raises
    ------
    TypeError
        If there is no model, or `observed` holds something else than variables or names.
    TallModelError
        If nothing is observed, `observed` or `dim` names what the model does not have, or the log
        posterior is not finite where sampling would start: then no sampler can run.
    ValueError
        If there is no free variable, or an argument is out of range.

    Notes
    -----
    What the projection of NUTS on all rows assumes:

    - Gradients per effective draw, and per tuning draw, are those of PyMC's NUTS with its diagonal
      mass matrix on the prior and the rows' second-order expansion (200 tuning draws, 400 draws;
      no rows are read). Where that is no density, they are the pilot's leapfrog steps.
    - A gradient of all rows takes 2.5 times as long as the step's own compiled value and gradient
      on all rows. PyTensor's took 1.4 to 4.5 times as long in trials; whole runs of nutpie
      in `tests/benchmarks/advise.py` were within a factor of 2.6 of the projection.
    - Compilation takes 5 s, as nutpie's does with warm caches. The set-up of the step is measured:
      where its compiled code was not on disk yet, a later run will take less.
    - Other costs of its draws are nothing, which favours NUTS on small data.
    - Seconds are of the processor and one thread. A busy machine takes longer, for both sides
      alike; linear algebra on many cores makes NUTS on all rows faster.

    The alternative for binary variables is `AusterityGibbs(epsilon=0)`, Gibbs sampling on all rows,
    whose pilot is run too; that to `MinibatchBarkerMH` is Metropolis on all rows, with one pass
    per transition and the pilot's effective draws per transition.

    Chains in parallel multiply both sides alike. A pilot is short: effective sample sizes are
    good to about 30%, and rare failures need not show; the run itself is checked again.

    Examples
    --------
    >>> with model:
    ...     print(pms.advise())
    """
    model = arguments.model_in_context(model, "call advise")
    wanted = arguments.count("effective_draws", effective_draws)
    seconds = arguments.between("seconds", seconds, 0.0, np.inf)
    random_seed = arguments.seed("random_seed", random_seed)
    arguments.text("dim", dim, "a dimension")
    variables.continuous_vars(None, model)
    terms = row_terms(model, observed)
    _check_dim(model, terms, dim)
    given: dict[str, Any] = {"observed": chosen_names(observed) or None, "dim": dim, "data": data}
    empty = Advice("", "", "", effective_draws=wanted, parameters=_size(model))
    find = _discrete if model.discrete_value_vars else _differentiable
    advice = find(model, given, empty, seconds, random_seed)
    if data is None or f"pms.{advice.tried}(" in advice.code:
        return advice
    reason = f"{advice.reason} That takes a model that holds all rows in memory."
    return replace(advice, reason=reason, code=f"{advice.code}  # of the model on all rows")


def _differentiable(
    model: pm.Model, given: dict[str, Any], empty: Advice, seconds: float, seed: int
) -> Advice:
    found: list[Advice] = []
    refusals, beside, full, instead = [], "", None, nuts()
    for kind in (ScalableMH, HMCECS):
        try:
            step, setup = _made(kind, model, given)
        except TallModelError as refusal:
            if isinstance(refusal.__cause__, UNDIFFERENTIABLE):
                _refuse_bad_start(model, refusal)
                return _without_gradient(model, given, empty, seconds, seed)
            refusals.append(refusal)
            continue
        advice = replace(empty, tried=kind.__name__, against=instead[0], rows=step.n_rows)
        if isinstance(step, HMCECS):
            moments, m = step.moments, step.subsample_size
            advice = replace(
                advice,
                loglik_variance=float(np.max(moments.variance(m))),
                perturbation=float(np.max(moments.perturbation(m))),
            )
        elif step.predicted_acceptance < FEW_ACCEPTED:
            beside = (
                "ScalableMH, which is exact, would accept only about "
                f"{step.predicted_acceptance:.0%} of its proposals: too many parameters move at "
                "once for so few rows."
            )
            continue
        pilot = run_pilot(model, step, seconds, seed)
        full = full or _projected(model, step, pilot, seconds, seed)
        found.append(compared(advice, pilot, given, setup, **full, instead=instead))
        if not worth_another(found[-1], seconds):
            break
    if not found:
        _refuse_bad_start(model, refusals[-1])
        return on_all_rows(empty, f"{kind.__name__} refuses the model. {refusals[-1]}")
    advice = preferred(found)
    said = [advice.reason, beside]
    if advice.tried == "HMCECS" and refusals:
        said += [str(refusals[0]).removesuffix(" Use HMCECS.")]
    if step._search is not None and len(step._search.modes) > 1:
        said += [
            "The posterior has at least two modes, and a chain of any sampler may see only one."
        ]
    return replace(advice, reason=" ".join(filter(None, said)))


def _projected(
    model: pm.Model, step: ScalableMH | HMCECS, pilot: Pilot, seconds: float, seed: int
) -> dict[str, float]:
    """Effective draws per second of NUTS on all rows, and its seconds before them."""
    each = seconds_per_full_gradient(step._expansion, step.reference)
    gradients, tuning = nuts_gradients(model, step, seconds, seed) or (
        pilot.gradients_per_draw / pilot.ess_per_draw,
        pilot.gradients_per_draw,
    )
    return {
        "full_ess_per_second": 1 / (gradients * each),
        "full_fixed": COMPILE_SECONDS + DRAWS * tuning * each,
    }


def _made[Step: SubsampledStep](
    kind: type[Step], model: pm.Model, given: dict[str, Any], **more: Any
) -> tuple[Step, float]:
    """Make a step; return it and the seconds that took."""
    start = thread_time()
    with quiet():
        step = kind(model=model, **given, **more)
    return step, thread_time() - start


def _discrete(
    model: pm.Model, given: dict[str, Any], empty: Advice, seconds: float, seed: int
) -> Advice:
    rvs = [model.values_to_rvs[v] for v in model.value_vars]
    if not all(map(variables.is_binary, rvs)):
        names = ", ".join(repr(model.values_to_rvs[v].name) for v in model.discrete_value_vars)
        return replace(
            empty,
            recommendation="pm.sample",
            reason=f"{names} is discrete, and not all variables are binary: HMCECS needs "
            "continuous ones, AusterityGibbs binary ones. If you can, marginalise what is "
            "discrete.",
            code="pm.sample()",
        )
    try:
        step, setup = _made(AusterityGibbs, model, given)
    except TallModelError as refusal:
        _refuse_bad_start(model, refusal)
        reason = f"AusterityGibbs refuses the model. {refusal}"
        return replace(empty, recommendation="pm.sample", reason=reason, code="pm.sample()")
    pilot = run_pilot(model, step, seconds, seed)
    exact, _ = _made(AusterityGibbs, model, given, epsilon=0.0)
    full = run_pilot(model, exact, seconds, seed)
    advice = replace(
        empty, tried="AusterityGibbs", against="AusterityGibbs(epsilon=0)", rows=step.n_rows
    )
    return compared(
        advice,
        pilot,
        given,
        setup,
        full_ess_per_second=full.ess_per_draw / full.seconds_per_draw,
        full_fixed=setup + DRAWS * full.seconds_per_draw,
        instead=("AusterityGibbs", code("AusterityGibbs", given, "epsilon=0")),
    )


def _without_gradient(
    model: pm.Model, given: dict[str, Any], empty: Advice, seconds: float, seed: int
) -> Advice:
    step, setup = _made(MinibatchBarkerMH, model, given, control_variate_order=None)
    pilot = run_pilot(model, step, seconds, seed)
    expansion = step._expansion
    phi, _ = expansion.parameters(step._tall.ravel(step._tall.initial_point))

    def evaluate(rows: np.ndarray) -> None:
        expansion.change(phi, phi, phi, rows, np.empty(rows.shape[1]))

    # `change` evaluates every row twice, Metropolis once.
    transition = 0.5 * seconds_per_pass(expansion, evaluate)
    full_ess = pilot.ess_per_draw / (step.transitions_per_draw * transition)
    return compared(
        replace(empty, tried="MinibatchBarkerMH", against="pm.Metropolis", rows=step.n_rows),
        pilot,
        given,
        setup,
        full_ess_per_second=full_ess,
        full_fixed=COMPILE_SECONDS + DRAWS * step.transitions_per_draw * transition,
        instead=("pm.sample", "pm.sample()"),
    )


# Bad input


def _check_dim(model: pm.Model, terms: Iterable[str], dim: str | None) -> None:
    known = sorted({d for name in terms for d in model.named_vars_to_dims.get(name) or () if d})
    if dim is not None and dim not in known:
        raise TallModelError(
            f"dim={dim!r} is not a dimension of an observed variable; these have dimensions "
            f"{known}. Give the observed variable dims=."
        )


def _refuse_bad_start(model: pm.Model, refusal: TallModelError) -> None:
    """Raise a refusal again where no sampler could run: the start is impossible."""
    point = model.initial_point()
    try:
        logp = numpy_function(model.value_vars, [model.logp()])(*map(point.get, _names(model)))
    except Exception as error:
        raise refusal from error
    if not np.all(np.isfinite(logp)):
        raise refusal


def _names(model: pm.Model) -> list[str]:
    return [v.name for v in model.value_vars]


def _size(model: pm.Model) -> int:
    point = model.initial_point()
    return int(sum(np.size(point[name]) for name in _names(model)))
