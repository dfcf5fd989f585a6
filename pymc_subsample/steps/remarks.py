"""What steps say of their set-up."""

import logging

import numpy as np

from pymc_subsample.all_rows import DRAWS, compare, nuts, pays
from pymc_subsample.diagnostics.checks import MODES, amount, number, remedies, sentence
from pymc_subsample.estimators import FEWEST_BLOCKS, MOST_BLOCKS, VARIANCE_BOUND
from pymc_subsample.kernels.estimates import BLOCK_POISSON
from pymc_subsample.kernels.model import MINIBATCH
from pymc_subsample.progress import doing
from pymc_subsample.steps.adaptation import AdaptiveSubsample
from pymc_subsample.steps.base import SubsampledStep
from pymc_subsample.steps.sizing import predicted_variance

_log = logging.getLogger("pymc.subsample")

# Of the rows, from which reading all of them is tried.
_LARGE_SHARE = 0.25


def report(step: AdaptiveSubsample) -> None:
    """Log what the set-up chose, and warn of what it could not achieve."""
    m, n = step.subsample_size, step.n_rows
    variance = predicted_variance(step._kind, step.moments, m, step.temperature)
    path = "linear predictors" if step._expansion.linear else "general path"
    if (limited := step._expansion.limited) is not None:
        path += f", control variates of order {step.control_variate_order}: {limited}"
    blocks = "1 block" if step.n_blocks == 1 else f"{step.n_blocks} blocks"
    may_change = step.given["subsample_size"] is None and not step.given["reference"]
    large = step._share > _LARGE_SHARE
    _log.info(
        f"HMCECS: {n:,} rows of {', '.join(step.observed)} ({path}); subsample of "
        f"{'about ' * (step._kind == BLOCK_POISSON)}{m:,} rows "
        f"({m / n:.2%}) in {blocks}{step._also()}{' to start with' if may_change else ''}; "
        f"predicted variance of the log-likelihood estimate {amount(variance)}"
        f"{_beside_all_rows(step) if large else step._saves()}"
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


def warn_of_modes(step: SubsampledStep) -> None:
    """Say so where other modes compete, and in which variables they differ."""
    prepared = step._prepared
    if prepared is None or prepared.search is None or len(prepared.search.modes) < 2:
        return
    search = prepared.search
    here, *others = [step._expansion.values(mode.theta) for mode in search.modes]
    names = [
        name
        for name, part in step._read
        if not all(np.allclose(here[part], x[part], rtol=0.1, atol=0.1) for x in others)
    ]
    shares = ", ".join(f"{share:.2g}" for share in search.shares[: 1 + len(others)])
    begun = len(prepared.at_modes)
    starts = (
        f"start in {begun} of them and hardly ever change: R-hat will be large"
        if begun > 1
        else "start in the first, and hardly ever see the others"
    )
    _log.warning(
        f"{type(step).__name__}: the posterior has at least {number(len(search.modes))} modes that "
        f"differ in {', '.join(names)} and hold about {shares} of the mass that was found. Chains "
        f"{starts}. {MODES.remedy}"
    )


def _beside_all_rows(step: AdaptiveSubsample) -> str:
    """Say how long a run takes, and NUTS on all rows, for the end of a log message."""
    # nutpie neither takes turns with other steps nor tempers.
    alike = len(step._active) == step._tall.size and step.temperature == 1.0
    if not alike or not _log.isEnabledFor(logging.INFO):
        return step._saves()
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
