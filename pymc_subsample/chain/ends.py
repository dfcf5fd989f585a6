"""What a chain's checks found where priors or potentials end the density."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pymc_subsample.diagnostics.checks import Check, amount
from pymc_subsample.diagnostics.divergences import RULE_NAMES
from pymc_subsample.diagnostics.edges import ends_near
from pymc_subsample.diagnostics.overlooked import OVERLOOKED
from pymc_subsample.model.support import impossible

# Share of the draws before divergences that are beside an edge, from which on that is the cause.
_MOST = 0.5
# Standard deviations that a trajectory may go, from one tail to the other: one draw in 16,000 is
# beyond 4.
_REACH = 8.0
_SMOOTH = (
    "Write the constraint into the variables (a bounded or positive distribution, an ordered "
    "transform, a parameter for the distance from the edge), or use pms.MinibatchBarkerMH, which "
    "needs no gradients"
)


def confirm_crossings(step: Any) -> None:
    """Take trajectories for rejections at an edge only where the prior or a potential has one."""
    record = step.record
    if getattr(record, "crossings", 0):
        record.confirm(_ends_near(step, record.beside, _REACH))


def _ends_near(step: Any, points: Sequence[np.ndarray], reach: float = 1.0) -> np.ndarray:
    at = np.reshape(points, (len(points), len(step.record.last)))
    return ends_near(step._logprior, at, np.array(step.record.kept), step.active, reach)


def with_causes(step: Any, checks: Sequence[Check]) -> list[Check]:
    """Name the constraint where it is what makes checks fail, in place of the usual remedy."""
    return [check if check.passed else _with_cause(step, check) for check in checks]


def _with_cause(step: Any, check: Check) -> Check:
    if check.rule.name == OVERLOOKED.name and not np.isfinite(check.value):
        out = [x for x in step.record.kept if not np.isfinite(step._logprior(x))]
        if out:
            return replace(
                check,
                advice=f"{len(out)} of {len(step.record.kept)} draws that were looked at are "
                f"outside of the support: {_named(step, out[0])}. This step moves by gradients, "
                f"which do not see where a density ends. {_SMOOTH}.",
            )
    if check.rule.name in RULE_NAMES and len(step.record.before):
        share = float(np.mean(_ends_near(step, step.record.before)))
        if share > _MOST:
            said = check.advice.partition(": ")[0]
            return replace(
                check,
                advice=f"{said}: beside {amount(100 * share)}% of the draws before them the prior "
                "or a potential ends the density, and trajectories that cross the edge are thrown "
                "back. Nothing is missing beyond it, but what else may make them diverge is not "
                f"told apart. {_SMOOTH}; pms.audit says whether these draws are right.",
            )
    return check


def _named(step: Any, theta: np.ndarray) -> str:
    values = step.tall.unravel(step.expansion.values(theta))
    return impossible(step._model, values, step.tall.observed)
