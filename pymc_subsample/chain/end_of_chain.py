"""The end of a chain: what its checks found, and the causes of it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.util import is_transformed_name

from pymc_subsample.chain.integrating import check_units, each
from pymc_subsample.chain.points import log_prior
from pymc_subsample.diagnostics import chain_ends, checks, tails
from pymc_subsample.diagnostics.checks import Finding, amount
from pymc_subsample.diagnostics.divergences import RULE_NAMES
from pymc_subsample.diagnostics.integrals import worded
from pymc_subsample.diagnostics.look import log_densities
from pymc_subsample.diagnostics.overlooked_rows import OVERLOOKED
from pymc_subsample.diagnostics.stein_boundaries import ends_near
from pymc_subsample.diagnostics.tails import TAIL
from pymc_subsample.model.support import impossible

# Share of the draws before divergences that are beside an edge, from which on that is the cause.
# A majority.
_MOST = 0.5
# Standard deviations that a trajectory may go, from one tail to the other: one draw in 16,000 is
# beyond 4.
_REACH = 8.0
_SMOOTH = (
    "Write the constraint into the variables (a bounded or positive distribution, an ordered "
    "transform, a parameter for the distance from the edge), or use pms.MinibatchBarkerMH, which "
    "needs no gradients"
)


def judged(step: Any) -> dict[str, Any]:
    """Check a finished chain: the statistic of its last draw with what was found."""
    _confirm_crossings(step)
    found = [_with_cause(step, x) for x in (*step.method.check(step), *check_tails(step))]
    found += check_units(step)
    step.thread = None
    return _recorded(step, found)


def check_tails(step: Any) -> list[Finding]:
    """Look how the density falls beyond draws that are very far out, if there are some."""
    if TAIL not in step.sampler.rules or step.temperature != 1.0:
        return []
    density = partial(log_densities, step.expansion, temperature=step.temperature)
    draws = np.array(step.record.thinned)
    return tails.check_tails(density, step.n_rows, draws, _untransformed(step), step.layout.called)


def _untransformed(step: Any) -> np.ndarray:
    """Return the elements that are the model's variables, without a transformation."""
    effects = step.expansion.effects
    apart = {} if effects is None else effects.blocks
    names = [x for x, *_ in step.layout.own if not is_transformed_name(x) and x not in apart]
    places = step.layout.places(names)
    return places if effects is None else np.setdiff1d(places, effects.bent)


def _recorded(step: Any, found: Sequence[Finding]) -> dict[str, Any]:
    """Return the statistic of a chain's last draw: what was found, and maybe a warning."""
    if step.search is not None:
        found = [*found, checks.check_modes(step.search)]
    name, sampler = type(step).__name__, step.sampler
    said = checks.warning(name, found)
    level = "warn" if said else "debug"
    said = worded(said, each(step)) if said else f"{name}: all checks passed"
    done = step.record.done
    end = chain_ends.found(sampler.name, sampler.family, done, found, step.search)
    return {"warning": SamplerWarning(WarningType.BAD_PARAMS, said, level, extra=end)}


def _confirm_crossings(step: Any) -> None:
    """Take trajectories for rejections at an edge only where the prior or a potential has one."""
    record = step.record
    if getattr(record, "crossings", 0):
        record.confirm(_ends_near(step, record.beside, _REACH))


def _ends_near(step: Any, points: Sequence[np.ndarray], reach: float = 1.0) -> np.ndarray:
    at = np.reshape(points, (len(points), len(step.record.last)))
    draws = np.array(step.record.thinned)
    return ends_near(partial(log_prior, step), at, draws, step.active, reach)


def _with_cause(step: Any, finding: Finding) -> Finding:
    """Name the constraint if that is what makes a rule fail, in place of the usual remedy."""
    if finding.passed:
        return finding
    if finding.name == OVERLOOKED.name and not np.isfinite(finding.value):
        out = [x for x in step.record.thinned if not np.isfinite(log_prior(step, x))]
        if out:
            return replace(
                finding,
                advice=f"{len(out)} of {len(step.record.thinned)} draws that were looked at are "
                f"outside of the support: {_named(step, out[0])}. This step moves by gradients, "
                f"which do not see where a density ends. {_SMOOTH}.",
            )
    if finding.name in RULE_NAMES and len(step.record.before):
        share = float(np.mean(_ends_near(step, step.record.before)))
        if share > _MOST:
            said = finding.advice.partition(": ")[0]
            return replace(
                finding,
                advice=f"{said}: next to {amount(100 * share)}% of the draws before them the prior "
                "or a potential cuts the density off, and trajectories that cross the edge are "
                "thrown back. Nothing is missing beyond it, but divergences with another cause "
                f"cannot be told apart. {_SMOOTH}; pms.audit checks whether these draws are right.",
            )
    return finding


def _named(step: Any, theta: np.ndarray) -> str:
    values = step.tall.unravel(step.expansion.values(theta))
    return impossible(step.sampled_model, values, step.tall.likelihood)
