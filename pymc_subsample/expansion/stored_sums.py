"""What passes over rows on disk have summed, stored with them: a later run reads new ones alone.

Sums and residuals are those at one reference and a few points around it. They serve a run on more
rows as long as the reference is near its posterior mode, and are then completed by a pass over the
rows that were appended.
"""

import logging
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.expansion.reference import Reference
from pymc_subsample.expansion.residuals import Residuals
from pymc_subsample.rows.store import Store
from pymc_subsample.rows.stored_results import read_result, write_result

_log = logging.getLogger("pymc.subsample")

# Rows that are compared with what was summed, and how many standard errors the sum may be off.
_SAMPLE, _OFF = 4096, 8.0
_SUMS = ("level", "slope", "curvature", "flat")


@dataclass(frozen=True)
class Known:
    """What is known of the first rows."""

    reference: Reference  # With sums over these rows alone.
    n_rows: int  # How many.
    # Shape (k, D), (j, D): points around the reference, as PyMC's vectors; none where residuals are
    # not known.
    pilot: np.ndarray
    far: np.ndarray
    residuals: Residuals | None = None  # Of these rows, at these points.


class Archive:
    """Where sums over rows on disk are stored, for one log-likelihood and kind of estimate."""

    def __init__(self, store: Store, identity: str, kind: int) -> None:
        self._store, self._identity, self._kind = store, identity, kind

    def _key(self, expansion: Expansion) -> str:
        return f"sums-{expansion.order}-{expansion.curvature}-{self._kind}-{self._identity}"

    def write(
        self,
        expansion: Expansion,
        reference: Reference,
        pilot: np.ndarray | tuple = (),
        far: np.ndarray | tuple = (),
        residuals: Residuals | None = None,
    ) -> None:
        """Store the sums over all rows at a reference, and the residuals at points around it."""
        arrays = {name: np.asarray(getattr(reference, name)) for name in _SUMS}
        arrays["theta"] = expansion.values(reference.theta)
        if residuals is not None:
            for name, points in (("pilot", pilot), ("far", far)):
                values = [expansion.values(theta) for theta in points]
                arrays[name] = np.array(values).reshape(len(points), len(arrays["theta"]))
            arrays |= {f"residuals.{n}": np.asarray(x) for n, x in asdict(residuals).items()}
        write_result(self._store, self._key(expansion), arrays)

    def known(self, expansion: Expansion) -> Known | None:
        """Return what is stored; None where nothing is, or the residuals are of no use."""
        found = read_result(self._store, self._key(expansion))
        if found is None:
            return None
        n_rows, arrays = found
        if not set(_SUMS) <= arrays.keys():
            return None  # of an earlier version
        theta = expansion.from_values(arrays["theta"])
        center, _ = expansion.parameters(theta)
        level, slope, curvature, flat = (arrays[name] for name in _SUMS)
        if center.shape != slope.shape:
            return None
        reference = Reference(theta, center, float(level), slope, curvature, int(flat))
        if not _plausible(expansion, reference, n_rows):
            _log.warning(
                "Sums kept beside %s do not agree with a sample of its rows: computing them again",
                self._store.path,
            )
            return None
        none = np.empty((0, len(arrays["theta"])))
        known = Known(reference, n_rows, none, none)
        if "pilot" not in arrays:
            return known
        given: dict[str, Any] = {f.name: arrays[f"residuals.{f.name}"] for f in fields(Residuals)}
        given |= {"largest": float(given["largest"]), "n_rows": int(given["n_rows"])}
        return replace(
            known, pilot=arrays["pilot"], far=arrays["far"], residuals=Residuals(**given)
        )


def _plausible(expansion: Expansion, reference: Reference, n_rows: int) -> bool:
    """Whether the log-likelihood of random rows has the mean that was summed."""
    index = np.random.default_rng(0).integers(0, n_rows, _SAMPLE)
    level = np.array(
        [expansion.totals([expansion.take(part)], reference.center, False)[0][0]
         for part in index.reshape(64, -1)]
    ) / (_SAMPLE // 64)  # fmt: skip
    mean = reference.level / n_rows
    error = level.std() / np.sqrt(len(level)) + 1e-9 * (1 + abs(mean))
    return bool(abs(level.mean() - mean) <= _OFF * error)
