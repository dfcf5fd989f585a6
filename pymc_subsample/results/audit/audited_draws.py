"""Draws of a run, and the posterior's moments from what all rows say at some of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

from pymc_subsample.diagnostics import array_stats
from pymc_subsample.diagnostics.beyond_draws import beyond
from pymc_subsample.diagnostics.look import Look, log_posteriors, look_at
from pymc_subsample.diagnostics.reading_draws import (
    columns,
    farthest_thetas,
    reader,
    spread,
    to_theta,
)
from pymc_subsample.diagnostics.scores import KNOWN, by_scores, covariance_of
from pymc_subsample.diagnostics.stein_boundaries import (
    ManyLinesError,
    edges_near,
    ends_in_sight,
    prior_of,
)
from pymc_subsample.diagnostics.weights import (
    PosteriorMoments,
    by_weights,
    plain_moments,
    unknown_moments,
)
from pymc_subsample.expansion import Expansion
from pymc_subsample.expansion.continuity import Continuity
from pymc_subsample.model import TallModel

_SAID = "pms.audit"
# Draws besides, the farthest in single elements, of which all rows are read. A choice: a pass
# over the rows each.
_FARTHEST = 16
# Draws of which the score's test takes means and variances. A choice: their means are then good
# to 1.4% of a standard deviation.
_MOST_DRAWS = 5_000


@dataclass(frozen=True)
class AuditedDraws:
    """Those of each chain at places `at`, shape (k,), among all draws."""

    model: pm.Model
    tall: TallModel
    expansion: Expansion
    posterior: xr.Dataset
    at: np.ndarray
    # All draws of the variables that are reported, shape (chain, draw, p), and their labels.
    values: np.ndarray
    labels: list[str]
    # The audited ones in unconstrained space, shape (chain, k, d).
    thetas: np.ndarray
    counted: str  # What the model has: "rows" or "units".

    @property
    def flat(self) -> np.ndarray:
        """The audited ones, one after the other, shape (chain * k, d)."""
        return self.thetas.reshape(-1, self.tall.size)

    def every(self) -> np.ndarray:
        """All draws, or many of them, in unconstrained space, shape (chain, m, d)."""
        some = spread(self.posterior.sizes["draw"], self.posterior.sizes["chain"], _MOST_DRAWS)
        return to_theta(self.model, self.tall, self.posterior.isel(draw=some), _SAID)

    def look(self) -> Look:
        """Look at all rows at the audited draws, and at the farthest in single elements."""
        far = farthest_thetas(self.model, self.tall, self.posterior, _FARTHEST)
        return look_at(self.expansion, self.flat, far)

    def unreached(self, every: np.ndarray) -> tuple[tuple[float, str], int]:
        """Return `Audit.unreached`, what is beyond the farthest draws, and passes taken."""
        effective = np.asarray(array_stats.ess(every, chain_axis=0, draw_axis=1, method="mean"))
        flat = every.reshape(-1, every.shape[-1])

        def density(points: np.ndarray) -> np.ndarray:
            with np.errstate(all="ignore"):
                return log_posteriors(self.expansion, points)[0]

        tail, asked = beyond(density, flat, np.nan_to_num(np.minimum(effective, len(flat))))
        return (tail.stretch, self._element(tail.element)), asked

    def _element(self, place: int) -> str:
        """Name an element of theta by its variable, and its place there."""
        tall = self.tall
        for name, part, shape in zip(tall.names, tall.slices, tall.shapes, strict=True):
            if part.start <= place < part.stop:
                index = ", ".join(map(str, np.unravel_index(place - part.start, shape)))
                owner = next(v for v in self.model.value_vars if v.name == name)
                label = self.model.values_to_rvs[owner].name
                return f"{label}[{index}]" if shape else label
        raise IndexError(place)


def read(
    model: pm.Model,
    tall: TallModel,
    expansion: Expansion,
    posterior: xr.Dataset,
    names: Sequence[str],
    at: np.ndarray,
    counted: str,
) -> AuditedDraws:
    """Read draws of variables by their names; refuse those that are not finite or not the model's.

    Raises `ValueError`.
    """
    values, labels = columns(posterior, names)
    if not np.all(np.isfinite(values)):
        finite = np.isfinite(values).all(axis=(0, 1))
        bad = [x for x, ok in zip(labels, finite, strict=True) if not ok]
        raise ValueError(f"{_SAID}: draws of {', '.join(bad[:5])} are not finite.")
    thetas = to_theta(model, tall, posterior.isel(draw=at), _SAID)
    return AuditedDraws(model, tall, expansion, posterior, at, values, labels, thetas, counted)


# Draws beside which rows are asked whether they end the density. A choice of time.
_ASKED = 16
_NO_SCORES = (
    "These draws cannot be audited: scores are gradients. Compare with pm.Metropolis or "
    "pm.DEMetropolisZ on some thousand of the rows."
)


class Corrected(NamedTuple):
    """Moments of the draws and of the posterior, and what is known of these by their kind."""

    raw: PosteriorMoments
    found: PosteriorMoments
    # By weights: their shape and effective size, and signs of all draws if some are negative.
    k_hat: float = np.nan
    ess: float = np.nan
    signs: np.ndarray | None = None
    # By scores: as `Audit` has them, and how many more passes it took.
    p_value: float = np.nan
    edges: str = ""
    asked: int = 0


def of_weights(draws: AuditedDraws, stats: xr.Dataset, look: Look) -> tuple[Corrected, np.ndarray]:
    """Correct moments by importance weights, from the estimates that a run recorded.

    Also returns the weights' logarithms, shape (chain, k).
    """
    sign = stats["sign"].values.astype(float) if "sign" in stats else None
    lp = stats["lp"].values[:, draws.at]
    if not np.all(np.isfinite(lp)):
        raise ValueError("pms.audit: sample_stats['lp'] is not finite at some draws.")
    signs = sign if sign is not None and np.any(sign < 0) else None
    log_weights = look.logp[: len(look.usual)].reshape(draws.thetas.shape[:2]) - lp
    raw, found, k_hat, ess = by_weights(log_weights, draws.values, draws.at, sign)
    return Corrected(raw, found, k_hat, ess, signs), log_weights


def require_scores(draws: AuditedDraws) -> None:
    """Refuse rows whose log-likelihood jumps: gradients say nothing of it."""
    everything = np.arange(draws.tall.size)
    Continuity(draws.tall, draws.expansion, everything).require(_NO_SCORES, draws.flat)


def of_scores(
    draws: AuditedDraws,
    names: Sequence[str],
    look: Look,
    every: np.ndarray,
    generator: np.random.Generator,
) -> Corrected:
    """Correct moments of variables `names` by gradients of the log posterior."""
    if not np.all(np.isfinite(look.score)):
        raise ValueError(
            "pms.audit: the gradient of the log posterior is not finite at some draws."
        )
    raw, expansion, near = plain_moments(draws.values), draws.expansion, draws.flat
    read, steps = reader(draws.model, draws.tall, names), generator.spawn(1)[0]
    rows_end, asked = _ended_by_rows(draws, look.logp, every, steps)
    asked += 1  # gradients
    if rows_end:
        return Corrected(raw, unknown_moments(raw), edges="rows", asked=asked)
    beside = partial(edges_near, prior_of(expansion), near, rng=steps)
    n_draws = draws.values.shape[0] * draws.values.shape[1]
    try:
        found, p_value, cut = by_scores(
            expansion, draws.thetas, look.score.reshape(draws.thetas.shape), every, raw, n_draws,
            read, generator, beside,
        )  # fmt: skip
    except ManyLinesError:
        return Corrected(raw, unknown_moments(raw), edges="many", asked=asked)
    return Corrected(raw, found, p_value=p_value, edges="prior" if cut else "", asked=asked)


def _ended_by_rows(
    draws: AuditedDraws, logp: np.ndarray, every: np.ndarray, rng: np.random.Generator
) -> tuple[bool, int]:
    """Whether rows end the density beside draws where it is not nil, and passes taken."""
    expansion, thetas, passes = draws.expansion, draws.flat, 0
    scale = covariance_of(every.reshape(-1, thetas.shape[1]), KNOWN * thetas.shape[1])

    def level(points: np.ndarray) -> np.ndarray:
        nonlocal passes
        prior = np.array([expansion.parameters(x)[1] for x in points])
        passes += len(points)
        return np.where(np.isfinite(prior), log_posteriors(expansion, points)[0], 0.0)

    some = spread(len(thetas), 1, _ASKED)
    near = ends_in_sight(level, thetas[some], logp[some], np.linalg.cholesky(scale), rng) > 0
    return near, passes


def table(
    labels: Sequence[str], raw: PosteriorMoments, found: PosteriorMoments, audited: np.ndarray
) -> xr.Dataset:
    """Return `Audit.table`; `audited` are values of audited draws, (chain, k, p)."""
    scale = np.where(found.sd > 0, found.sd, 1.0)
    numbers = {
        "mean": raw.mean,
        "sd": raw.sd,
        "mean_mcse": raw.mean_mcse,
        "audited_mean": audited.mean(axis=(0, 1)),
        "audited_sd": audited.std(axis=(0, 1)),
        "corrected_mean": found.mean,
        "corrected_sd": found.sd,
        "corrected_mean_mcse": found.mean_mcse,
        "corrected_sd_mcse": found.sd_mcse,
        "bias": (raw.mean - found.mean) / scale,
        "bias_mcse": found.bias_mcse,
        "sd_error": np.where(found.sd > 0, raw.sd / scale - 1, 0.0),
        "sd_error_mcse": found.sd_error_mcse,
    }
    return xr.Dataset(
        {name: ("parameter", np.asarray(x, dtype=float)) for name, x in numbers.items()},
        coords={"parameter": labels},
    )
