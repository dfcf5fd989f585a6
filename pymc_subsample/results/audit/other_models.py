"""Signs that draws are of another model, or of other data, than an audit was given."""

from collections.abc import Iterable
from functools import partial

import numpy as np
import xarray as xr

from pymc_subsample.diagnostics.chain_ends import ChainEnd
from pymc_subsample.diagnostics.checks import TEMPERATURE
from pymc_subsample.diagnostics.drift import drift_of_scores
from pymc_subsample.diagnostics.look import Look, log_posteriors
from pymc_subsample.diagnostics.overlooked_rows import depth, how_deep
from pymc_subsample.expansion.estimators import VARIANCE_BOUND
from pymc_subsample.model.bambi import may_be_moved, of_intercepts, refuse_intercept
from pymc_subsample.model.support import impossible
from pymc_subsample.results.audit.audited_draws import AuditedDraws

_SAID = "pms.audit"
# Variance of log weights, over that of the noise which a run recorded, that is not its noise. A
# choice, far above what an estimate of that noise is off by.
_OTHER = 100.0


def refuse_impossible(draws: AuditedDraws, look: Look) -> None:
    """Refuse draws at which the log posterior is not finite, by what makes it so.

    And Bambi's intercepts that are not the model's.
    """
    moved = may_be_moved(draws.model, draws.posterior)
    logp = look.logp[: len(look.usual)]
    if not np.all(np.isfinite(logp)):
        _refuse_infinite(draws, logp, of_intercepts(draws.model) if moved else "")
    _refuse_moved(draws, moved)


def _refuse_infinite(draws: AuditedDraws, logp: np.ndarray, bambis: str) -> None:
    of, tall, thetas = draws.counted, draws.tall, draws.flat
    bad = np.flatnonzero(~np.isfinite(logp))
    prior = np.array([draws.expansion.parameters(thetas[k])[1] for k in bad])
    if np.isfinite(prior).all():
        cause = (
            f"If these are few, some {of} that the subsample hardly ever contained are impossible "
            "there, and the draws are not from the posterior; otherwise another model, or other "
            f"data, were sampled: pass those.{bambis}"
        )
    else:
        first = thetas[bad[~np.isfinite(prior)][0]]
        cause = (
            f"Of these, {np.sum(~np.isfinite(prior))} are outside of the support: "
            f"{impossible(draws.model, tall.unravel(first), tall.likelihood)}. The sampler does "
            "not see that constraint (a gradient does not), or another model was sampled: pass "
            "that, or use a step that accepts or rejects, such as pms.MinibatchBarkerMH."
        )
    raise ValueError(
        f"{_SAID}: the log posterior of all {of} is not finite at {len(bad)} of {len(logp)} draws. "
        f"{cause}"
    )


def _refuse_moved(draws: AuditedDraws, names: list[str]) -> None:
    tall, thetas, model = draws.tall, draws.flat, draws.model
    sd = thetas.std(axis=0)

    def heights(at: slice, moves: np.ndarray) -> np.ndarray:
        points = np.tile(thetas.mean(axis=0), (len(moves), 1))
        points[:, at] += moves
        return log_posteriors(draws.expansion, points)[0]

    for name in names:
        at = tall.slices[tall.names.index(model.rvs_to_values[model[name]].name)]
        refuse_intercept(name, sd[at], partial(heights, at), _SAID)


def of_drift(draws: AuditedDraws, look: Look, signs: np.ndarray | None) -> str:
    """Say so where gradients at the audited draws all point elsewhere."""
    weights = None if signs is None else signs[:, draws.at].ravel() / signs.mean()
    drift = drift_of_scores(look.usual, look.score, weights)
    if not drift.is_large:
        return ""
    return (
        "The draws are far from this model's posterior: "
        f"{drift.said(draws.model, draws.tall)}. If another model, or other data, were sampled, "
        "pass those; if not, the chains never got there."
    )


def of_other_estimates(stats: xr.Dataset, ends: Iterable[ChainEnd], log_weights: np.ndarray) -> str:
    """Say so where a run estimated something else, by the noise that its estimates have."""
    tempered = any(end.values.get(TEMPERATURE.name, 1.0) != 1.0 for end in ends)
    if "loglik_variance" not in stats or tempered:
        return ""
    recorded, found = float(stats["loglik_variance"].mean()), float(np.var(log_weights))
    if not found > max(VARIANCE_BOUND, _OTHER * recorded):
        return ""
    return (
        "Log posteriors of all rows differ from the run's estimates by a standard deviation of "
        f"{np.sqrt(found):,.3g}, although the run recorded {np.sqrt(recorded):,.3g} for its "
        "estimates: another model, or other data, were sampled, or the subsample hardly ever "
        "contained some rows that are far out. Pass the model and the data that were sampled."
    )


def of_overlooked(look: Look) -> str:
    """Say so where all rows make single draws all but impossible."""
    if not (deep := depth(look.logp, look.logp[: len(look.usual)])) > 1:
        return ""
    return (
        "Given all rows, some of the draws are all but impossible: their log density is "
        f"{how_deep(deep)}. Rows matter there that the sampler did not see, or it is stuck there. "
        "pms.HMCECS and pms.ScalableMH look for such rows; tune and sample for longer."
    )
