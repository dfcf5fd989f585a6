"""What HMC-ECS says of its set-up."""

import logging
from typing import TYPE_CHECKING

from pymc_subsample.chain.beside import Beside, beside_all_rows
from pymc_subsample.chain.competing import warn_of_modes
from pymc_subsample.chain.sizing import Choice, predicted_variance
from pymc_subsample.diagnostics.checks import amount, remedies, sentence
from pymc_subsample.expansion.estimators import FEWEST_BLOCKS, MOST_BLOCKS, VARIANCE_BOUND
from pymc_subsample.kernels.estimates import BLOCK_POISSON
from pymc_subsample.kernels.model import MINIBATCH
from pymc_subsample.model import TallModelError
from pymc_subsample.samplers.hmc_ecs.adaptation import also

if TYPE_CHECKING:
    from pymc_subsample.samplers.hmc_ecs.step import HMCECS

_log = logging.getLogger("pymc.subsample")


def report(step: "HMCECS") -> None:
    """Log what the set-up chose, and warn of what it could not achieve."""
    m, n = step.subsample_size, step.n_rows
    variance = predicted_variance(step.kind, step.moments, m, step.temperature)
    path = "linear predictors" if step.expansion.linear else "general path"
    if (limited := step.expansion.limited) is not None:
        path += f", control variates of order {step.control_variate_order}: {limited}"
    blocks = "1 block" if step.n_blocks == 1 else f"{step.n_blocks} blocks"
    may_change = step.given["subsample_size"] is None and not step.given["reference"]
    told = step.exact or _log.isEnabledFor(logging.INFO)
    beside = beside_all_rows(step) if told else Beside()
    if step.exact and beside.use:
        raise TallModelError(
            f"No subsample of the {n:,} rows of {', '.join(map(repr, step.observed))} is large "
            f"enough: what their expansions leave takes all of them{beside.said}."
        )
    subsample = (
        f"subsample of {'about ' * (step.kind == BLOCK_POISSON)}{m:,} rows "
        f"({m / n:.2%}) in {blocks}{also(step)}{' to start with' if may_change else ''}; "
        f"predicted variance of the log-likelihood estimate {amount(variance)}"
    )
    if step.exact:
        why = f" ({found.why})" if isinstance(found := step.home, Choice) and found.why else ""
        subsample = f"no subsample is large enough{why}: all rows are read, without approximation"
    _log.info(
        f"HMCECS: {n:,} rows of {', '.join(step.observed)} ({path}); {subsample}{beside.said}"
    )
    few = min(FEWEST_BLOCKS, m // MINIBATCH if step.kind == BLOCK_POISSON else m)
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
            + sentence(remedies(m, step.largest, step.expansion.raisable, step.given["reference"]))
        )
