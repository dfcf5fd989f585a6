"""What steps say of their set-up, and of a subsample that changes on the way."""

import logging
from typing import TYPE_CHECKING

import numpy as np

from pymc_subsample.all_rows import DRAWS, compare, nuts, pays
from pymc_subsample.diagnostics.checks import amount, remedies, sentence
from pymc_subsample.estimators import FEWEST_BLOCKS, MOST_BLOCKS, VARIANCE_BOUND
from pymc_subsample.kernels.estimates import BLOCK_POISSON
from pymc_subsample.kernels.model import MINIBATCH
from pymc_subsample.progress import doing
from pymc_subsample.steps.guards import company
from pymc_subsample.steps.modes import warn_of_modes
from pymc_subsample.steps.notices import Notice
from pymc_subsample.steps.sizing import predicted_variance

if TYPE_CHECKING:
    from pymc_subsample.steps.hmc_ecs import HMCECS
    from pymc_subsample.steps.scalable import ScalableMH

_log = logging.getLogger("pymc.subsample")

# Of the rows, from which reading all of them may be faster, and from which it is tried.
_NO_SMALL_SHARE, _LARGE_SHARE = 0.1, 0.25
# Predicted acceptance, where rows decide, that is told.
FEW_ACCEPTED = 0.5


def report(step: "HMCECS") -> None:
    """Log what the set-up chose, and warn of what it could not achieve."""
    m, n = step.subsample_size, step.n_rows
    variance = predicted_variance(step._kind, step.moments, m, step.temperature)
    path = "linear predictors" if step._expansion.linear else "general path"
    if step._expansion.highest_order < 2:
        path += f", control variates of order {step.control_variate_order}: too many parameters"
    blocks = "1 block" if step.n_blocks == 1 else f"{step.n_blocks} blocks"
    may_change = step.given["subsample_size"] is None and not step.given["reference"]
    large = step._share > _LARGE_SHARE
    _log.info(
        f"HMCECS: {n:,} rows of {', '.join(step.observed)} ({path}); subsample of "
        f"{'about ' * (step._kind == BLOCK_POISSON)}{m:,} rows "
        f"({m / n:.2%}) in {blocks}{_also(step)}{' to start with' if may_change else ''}; "
        f"predicted variance of the log-likelihood estimate {amount(variance)}"
        f"{_beside_all_rows(step) if large else _saves(step)}"
    )
    few = min(FEWEST_BLOCKS, m // MINIBATCH if step._kind == BLOCK_POISSON else m)
    if step.given["n_blocks"] is None and step.n_blocks < few:
        near = min(round(m / 10), n // 10) * 10
        _log.info(
            f"HMCECS: subsample_size={m} has no divisor from {FEWEST_BLOCKS} to {MOST_BLOCKS}, "
            f"so {m // step.n_blocks} rows are refreshed at once, which is accepted less "
            f"often. subsample_size={near} divides well."
        )
    warn_of_modes(step)
    if not variance <= VARIANCE_BOUND:
        _log.warning(
            f"HMCECS: the log-likelihood estimate is predicted to be too noisy, with a "
            f"variance of {amount(variance)} (should be at most {VARIANCE_BOUND:g}). "
            + sentence(
                remedies(m, step._largest, step._expansion.raisable, step.given["reference"])
            )
        )


def report_decisions(step: "ScalableMH") -> None:
    """Log what the set-up predicts of proposals that rows decide on, and warn of few accepted."""
    bounds, n = step.bounds, step.n_rows
    always = len(bounds.table.always)
    whole = f" and {bounds.passed:,.0f} of groups that are read as a whole" if bounds.passed else ""
    rows = bounds.per_decision
    _log.info(
        f"ScalableMH: {n:,} rows of {', '.join(step.observed)}; about "
        f"{max(bounds.drawn, 0.1):,.3g} rows{whole} ({min(rows / n, 1.0):.2%}) decide on a "
        f"proposal{f', {always:,} of them always' if always else ''}; predicted acceptance "
        f"{step.predicted_acceptance:.0%} ({step.acceptance}, {bounds.kind} bounds)"
        + (
            ". This is no small part of the data: pms.advise() compares other samplers"
            if rows > _NO_SMALL_SHARE * n
            else ""
        )
    )
    if step.predicted_acceptance < FEW_ACCEPTED:
        _log.warning(
            f"ScalableMH: rows are predicted to accept only {step.predicted_acceptance:.0%} of "
            f"the proposals, which move all {len(step._active):,} parameters at once: too many "
            "for so few rows. Draws will be right, but few of them effective. HMCECS "
            "does better here."
        )


def changed(step: "HMCECS", cause: str, before: int) -> Notice:
    """Say why the subsample has another size now, and which other steps have a part in it."""
    others = company(step)
    why = f"while {others}, {cause}" if others else cause
    return Notice(
        cause,
        f"HMCECS: {why}; a chain's subsample changed from {before:,} to "
        f"{step.subsample_size:,} rows ({step.subsample_size / step.n_rows:.2%})"
        f"{_also(step)}{_saves(step)}",
    )


def _also(step: "HMCECS") -> str:
    """Say how many rows are read always."""
    e = len(step.subsample.always)
    return f" and {e:,} outlying rows that are read always" if e else ""


def _saves(step: "HMCECS") -> str:
    """Say so where a subsample saves little, for the end of a log message."""
    if step._share < _NO_SMALL_SHARE:
        return ""
    return ". This is no small part of the data: pm.NUTS or nutpie on all rows may be faster"


def _beside_all_rows(step: "HMCECS") -> str:
    """Say how long a run takes, and NUTS on all rows, for the end of a log message."""
    # nutpie neither takes turns with other steps nor tempers.
    alike = len(step._active) == step._tall.size and step.temperature == 1.0
    if not alike or not _log.isEnabledFor(logging.INFO):
        return _saves(step)
    name, code = nuts()
    with doing(f"comparing it with {name}"):
        found = compare(step._model, step)
    said = f". An estimate reads {step._share:.0%} of the rows"
    each = f"{amount(1000 * found.per_gradient)} ms"
    if np.isnan(found.seconds):
        return f"{said}, and a gradient of all of them takes about {each}: try {code}"
    times = (
        f"{said}: {DRAWS:,} draws after as many of tuning take a chain about "
        f"{amount(found.seconds)} s, and with {name} on all rows about "
        f"{amount(found.full_seconds)} s, at {found.gradients:.0f} gradients per draw and "
        f"{each} each"
    )
    if pays(found.seconds, found.full_seconds):
        return f"{times}. HMCECS is the faster one"
    return f"{times}. Use {code}, which is exact"
