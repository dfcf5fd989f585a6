"""What is asked: which sampler to take for a model, and what it would take."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm

from pymc_subsample.chain import arguments, variables
from pymc_subsample.chain.nuts_instead import nuts
from pymc_subsample.choice.few_rows import DOUBT, few_rows, size, written_with_jumps
from pymc_subsample.model import TallModelError
from pymc_subsample.model.bambi import has_rows
from pymc_subsample.model.binding import require_rows
from pymc_subsample.model.discovery import chosen_names, row_terms
from pymc_subsample.model.indices import warn_of_model
from pymc_subsample.model.own_steps import own_steps, said
from pymc_subsample.results.advise.decision import on_all_rows
from pymc_subsample.results.advise.result import Advice, Option
from pymc_subsample.results.advise.trials import Trials, refuse_bad_start
from pymc_subsample.rows import Rows
from pymc_subsample.samplers.registry import ADVISED


def advise(
    model: pm.Model | None = None,
    *,
    likelihood: Sequence[str] | None = None,
    dim: str | None = None,
    data: Rows | Sequence[Rows] | None = None,
    samplers: str | Sequence[str] = "auto",
    effective_draws: int = 1000,  # a choice; means are then good to 3% of a standard deviation
    seconds: float = 3.0,  # a choice of patience
    random_seed: int = 0,
) -> Advice:
    r"""Say in one line which sampler to take for a model, from short pilots.

    Steps are made and run one short tuned chain each through `pm.sample`: `HMCECS` and
    `ScalableMH`, which is exact, where the log-likelihood can be differentiated,
    `MinibatchBarkerMH` without control variates where it cannot, `AusterityGibbs` where all
    variables are binary. One is recommended if its pilot passes its own checks and one chain of it,
    which takes

    .. math:: S + 1000\,t + N / r

    seconds with set-up and compilation S, t per (tuning) draw, r effective draws per second and
    N = `effective_draws`, takes at most half the time of a sampler that reads all rows and saves
    at least 10 s. Below that the sampler on all rows is fast enough, and as exact as any. Where the
    time of that is a lower bound alone, which is said, saving 10 s of it is enough.

    A pilot takes at most about a tenth of the run that it is of, and the set-up before it is not
    lost: `Advice.step` goes on with it. Of steps that pay an exact one is recommended if it takes
    up to 1.5 times as long, or a second more: pilots cannot tell times apart that are closer, so
    that exactness is free. `HMCECS` is tried first, since its set-up is the shorter one; then
    `ScalableMH`, which takes over its reference, unless it could not be the one to recommend: by
    its set-up, which takes twice as long as that of `HMCECS` usually, or by the cube of the number
    of parameters, where that is over twenty times the number of rows and its set-up, which may then
    take fifty times as long, over a tenth of the run. In runs of seconds that set-up, of which
    3 s are never minded, may be more than the rest. Where there are so few rows that no sampler
    could save 10 s, none is tried.

    Parameters
    ----------
    model : pymc.Model, optional
        Default: the model on the context stack. Of Bambi's, its ``.backend.model`` once built.
    likelihood : sequence of str or variable, optional
        Observed variables and potentials whose rows are subsampled; as for the steps.
    dim : str, optional
        Name of the rows' dimension; as for the steps.
    data : Rows or sequence of Rows, optional
        Rows on disk, in the place of those that the model is written on; as for the steps. What is
        recommended instead of a step needs a model that holds all rows in memory.
    samplers : "auto" or sequence of str, default "auto"
        Steps to try, whatever that takes: any of "ScalableMH", "HMCECS", "FireflyMC", "SGLD",
        "SGHMC", "MinibatchBarkerMH", "AusterityMH" and "ConfidenceMH". The best of them, or a
        sampler on all rows, is recommended.
    effective_draws : int, default 1000
        Effective draws of the worst parameter that are wanted of one chain.
    seconds : float, default 3
        Time for a pilot's draws at most, beside the set-up; at least 150 draws are made.
    random_seed : int, default 0
        Of the pilots.

    Returns
    -------
    Advice
        The answer in one line, code, reason, and a table of all samplers; prints as such, and
        `plot_advice` draws it.

    Raises
    ------
    TypeError
        If there is no model, or `likelihood` holds something else than variables or names.
    TallModelError
        If nothing is observed, `likelihood` or `dim` names what the model does not have, or the log
        posterior is not finite where sampling would start: then no sampler can run.
    ValueError
        If there is no free variable, or an argument is out of range.

    Notes
    -----
    What the projection of NUTS on all rows assumes:

    - Gradients per effective draw, and per tuning draw, are those of PyMC's NUTS with its diagonal
      mass matrix on the prior and the rows' second-order expansion (up to 200 tuning draws, 400
      draws; no rows are read). Its trial is cut short where it is clear already that a step pays,
      and goes on where it is not, for up to twice `seconds`: a time from fewer than 100 draws is
      over what an effective draw per draw takes. Where the expansion is no density, gradients are
      the pilot's leapfrog steps. The trial begins in the posterior, and knows its scales: where
      these are far apart, as of predictors in natural units, NUTS has to find them while tuning,
      and the time is over the projection too. Whatever is over some time is called a lower bound.
    - A gradient of all rows takes 2.5 times as long as the step's own compiled value and gradient
      on all rows, and in bounds 1.4 times. PyTensor's took 1.4 to 4.5 times as long in trials;
      whole runs of nutpie in `tests/benchmarks/advise.py` were within a factor of 2.6 of the
      projection.
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
    >>> advice = pms.advise(model)
    >>> print(advice.answer)
    >>> with model:
    ...     idata = pm.sample(step=advice.step)
    """
    model = arguments.model_in_context(model, "call advise")
    wanted = arguments.count("effective_draws", effective_draws)
    seconds = arguments.between("seconds", seconds, 0.0, np.inf)
    random_seed = arguments.seed("random_seed", random_seed)
    chosen = _chosen(samplers)
    arguments.text("dim", dim, "a dimension")
    if data is not None:
        require_rows(data)
    variables.continuous_vars(None, model)
    terms = row_terms(model, likelihood)
    _check_dim(model, terms, dim)
    if data is None:
        warn_of_model(model, list(terms.values()))
    given = {"likelihood": chosen_names(likelihood) or None, "dim": dim, "data": data}
    given = {name: value for name, value in given.items() if value is not None}
    empty = Advice("", "", "", effective_draws=wanted, parameters=size(model))
    trials = Trials(model, given, empty, seconds, random_seed)
    if alone := own_steps(model):
        reason = f"{said(alone)}, on all rows. HMCECS can sample the others beside it (vars=)."
        advice = on_all_rows(empty, reason, ("pm.sample", "pm.sample()"))
    elif trials.discrete:
        advice = _discrete(model, trials, empty)
    else:
        few = None if chosen is not None else _of_few(model, terms, data, empty)
        advice = few or trials.advice(chosen)
    if any(has_rows(model, v.name) for v in model.deterministics):
        advice = replace(advice, code=_by_fit(advice.code))
    if data is None or "step=pms." in advice.code:
        return advice
    reason = f"{advice.reason} This needs a model that holds all rows in memory."
    return replace(advice, reason=reason, code=f"{advice.code}  # of the model on all rows")


def _discrete(model: pm.Model, trials: Trials, empty: Advice) -> Advice:
    rvs = [model.values_to_rvs[v] for v in model.value_vars]
    if not all(map(variables.is_binary, rvs)):
        names = ", ".join(repr(model.values_to_rvs[v].name) for v in model.discrete_value_vars)
        reason = (
            f"{names} is discrete, and not all variables are binary: HMCECS takes continuous ones, "
            "and sums over discrete ones of a row or a level, AusterityGibbs takes binary ones."
        )
        if written_with_jumps(model):
            reason = f"{reason} {DOUBT}"
        return on_all_rows(empty, reason, ("pm.sample", "pm.sample()"))
    return trials.binary()


def _of_few(
    model: pm.Model, terms: Iterable[str], data: Rows | Sequence[Rows] | None, empty: Advice
) -> Advice | None:
    """Recommend all rows where they are so few that many gradients per draw would not take 10 s."""
    few = few_rows(model, terms, data)
    if few is None:
        return None
    names = ", ".join(map(repr, terms))
    refuse_bad_start(
        model,
        TallModelError(
            f"The log-likelihood of {names} is not finite where sampling would start: the data are "
            "impossible there. Check them, or give an initval."
        ),
    )
    reason = (
        f"All rows are fast enough: so few{few.takes.format('')}, "
        "and no sampler saves much of it. None was tried; pms.auto() "
        "subsamples them, unless fallback=True."
    )
    option = Option(nuts()[0], True, "projected", few.seconds, rows=few.rows or np.nan)
    empty = replace(empty, rows=few.rows or 0, full_seconds=few.seconds, options=(option,))
    return on_all_rows(empty, reason)


def _by_fit(line: str) -> str:
    """Return the line that samples one of Bambi's models with a step."""
    if not line.startswith(start := "pm.sample(step="):
        return line
    step, _, options = line.removeprefix(start).partition("(")
    given = ", ".join(filter(None, ["model=model.backend.model", options.removesuffix("))")]))
    return f"model.fit(step={step}({given}))"


# Bad input


def _chosen(samplers: Any) -> list[str] | None:
    if isinstance(samplers, str) and samplers == "auto":
        return None
    names = [samplers] if isinstance(samplers, str) else samplers
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise TypeError(f'samplers must be "auto" or names of steps, got {samplers!r}.')
    names = list(names)
    unknown = [name for name in names if name not in ADVISED]
    if unknown or not names:
        raise ValueError(
            f'samplers must be "auto" or hold some of {", ".join(ADVISED)}; got {samplers!r}.'
        )
    return [name for name in ADVISED if name in names]


def _check_dim(model: pm.Model, terms: Iterable[str], dim: str | None) -> None:
    known = sorted({d for name in terms for d in model.named_vars_to_dims.get(name) or () if d})
    if dim is not None and dim not in known:
        raise TallModelError(
            f"dim={dim!r} is not a dimension of an observed variable; these have dimensions "
            f"{known}. Give the observed variable dims=."
        )
