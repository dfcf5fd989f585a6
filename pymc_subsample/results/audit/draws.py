"""Draws of a run, and what the posterior of all rows is at some of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
import xarray as xr

from pymc_subsample.diagnostics import array_stats
from pymc_subsample.diagnostics.beyond_draws import beyond
from pymc_subsample.diagnostics.reading_draws import columns, farthest_thetas, spread, to_theta
from pymc_subsample.diagnostics.scores import log_posteriors
from pymc_subsample.expansion import Expansion
from pymc_subsample.model import TallModel

_SAID = "pms.audit"
# Draws besides, the farthest in single elements, of which all rows are read.
_FARTHEST = 16
# Draws of which the score's test takes means and variances.
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

    def farthest(self) -> np.ndarray:
        """Log posterior at the draws that are farthest in single elements."""
        far = farthest_thetas(self.model, self.tall, self.posterior, _FARTHEST)
        return log_posteriors(self.expansion, far)[0] if len(far) else np.zeros(0)

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
