"""What steps say of their set-up."""

import logging

import numpy as np

from pymc_subsample.diagnostics.checks import MODES, amount, number, remedies, sentence
from pymc_subsample.estimators import FEWEST_BLOCKS, MOST_BLOCKS, VARIANCE_BOUND
from pymc_subsample.kernels.estimates import BLOCK_POISSON
from pymc_subsample.kernels.model import MINIBATCH
from pymc_subsample.likelihood import TallModelError
from pymc_subsample.steps.adaptation import AdaptiveSubsample
from pymc_subsample.steps.base import SubsampledStep
from pymc_subsample.steps.beside import Beside, beside_all_rows
from pymc_subsample.steps.sizing import Choice, predicted_variance

_log = logging.getLogger("pymc.subsample")


def report(step: AdaptiveSubsample) -> None:
    """Log what the set-up chose, and warn of what it could not achieve."""
    m, n = step.subsample_size, step.n_rows
    variance = predicted_variance(step._kind, step.moments, m, step.temperature)
    path = "linear predictors" if step._expansion.linear else "general path"
    if (limited := step._expansion.limited) is not None:
        path += f", control variates of order {step.control_variate_order}: {limited}"
    blocks = "1 block" if step.n_blocks == 1 else f"{step.n_blocks} blocks"
    may_change = step.given["subsample_size"] is None and not step.given["reference"]
    told = step._exact or _log.isEnabledFor(logging.INFO)
    beside = beside_all_rows(step) if told else Beside()
    if step._exact and beside.use:
        raise TallModelError(
            f"No subsample of the {n:,} rows of {', '.join(map(repr, step.observed))} is large "
            f"enough: what their expansions leave takes all of them{beside.said}."
        )
    subsample = (
        f"subsample of {'about ' * (step._kind == BLOCK_POISSON)}{m:,} rows "
        f"({m / n:.2%}) in {blocks}{step._also()}{' to start with' if may_change else ''}; "
        f"predicted variance of the log-likelihood estimate {amount(variance)}"
    )
    if step._exact:
        why = f" ({found.why})" if isinstance(found := step._home, Choice) and found.why else ""
        subsample = f"no subsample is large enough{why}: all rows are read, without approximation"
    _log.info(
        f"HMCECS: {n:,} rows of {', '.join(step.observed)} ({path}); {subsample}{beside.said}"
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
