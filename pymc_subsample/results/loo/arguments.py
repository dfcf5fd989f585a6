"""What `pms.loo` takes: rows, or groups of rows, to leave out, and draws for which it works."""

import warnings
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_subsample.diagnostics.data_trees import signs_of
from pymc_subsample.diagnostics.drift import Drift
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.model.bambi import of_intercepts
from pymc_subsample.model.evaluation import Vector
from pymc_subsample.rows import Rows, Several
from pymc_subsample.validation import count, is_whole, shown


def chosen_rows(value: Any) -> int | np.ndarray | None:
    """Return how many rows, or which, are to be left out; None if it is not said."""
    if isinstance(value, str) or is_whole(value):
        return count("observations", value, auto=True, smallest=2)
    index = np.asarray(value)
    if index.dtype.kind not in "iu" or index.ndim != 1 or len(index) < 2:
        raise ValueError(
            'observations must be "auto", an integer of at least 2, or row numbers, two or more; '
            f"got {shown(value)}."
        )
    return index.astype(np.int64)


def within(wanted: int | np.ndarray | None, n: int, of: str) -> int | np.ndarray | None:
    """Return the same, if there are so many of the n rows or groups."""
    if isinstance(wanted, np.ndarray):
        if wanted.min() < 0 or wanted.max() >= n or len(np.unique(wanted)) < len(wanted):
            raise ValueError(
                f"observations must be different numbers from 0 to {n - 1}, those of {of}; got "
                f"{shown(wanted)}."
            )
        return wanted
    return None if wanted is None else count("observations", wanted, n, of)


def refuse_signs(idata: xr.DataTree) -> None:
    """Refuse draws of an estimate that may be negative."""
    if signs_of(idata, "posterior", None) is not None:
        raise ValueError(
            "pms.loo: some draws carry a negative sign, and importance weights of signed draws "
            "cannot be smoothed. Sample with pms.HMCECS(), whose draws have none, or with a larger "
            "subsample until no estimate is negative."
        )


def warn_of_others(posterior: xr.Dataset, model: pm.Model) -> None:
    """Warn of variables that the model does not have."""
    known = {v.name for v in [*model.free_RVs, *model.deterministics]}
    known |= {v.name for v in model.value_vars}
    others = [str(name) for name in posterior.data_vars if name not in known]
    if others:
        warnings.warn(
            f"pms.loo: idata.posterior holds {', '.join(map(repr, others))}, which the model does "
            "not have. If another model was sampled, pass that one: the draws of one model say "
            "nothing about what another predicts.",
            stacklevel=3,
        )


def require_one(tall: TallModel, names: list[str] | None) -> None:
    """Refuse rows of which it is not clear what is left out."""
    listed = ", ".join(map(repr, tall.likelihood))
    if names is None and len(tall.likelihood) > 1:
        raise TallModelError(
            f"pms.loo: {listed} have rows. Say whose are left out: "
            f"var_name={tall.likelihood[0]!r}, or several names, whose rows go together."
        )
    if len(tall.rows.names) > 1:
        raise TallModelError(
            f"pms.loo: {listed} have different numbers of rows ({tall.rows.counted}), which cannot "
            "be left out together. Name one of them as var_name."
        )


def refuse_others(model: pm.Model, vector: Vector, found: Drift) -> None:
    """Refuse draws that are far from where the model's posterior is."""
    if found.is_large:
        raise ValueError(
            "pms.loo: idata holds no sample of this model's posterior: "
            f"{found.said(model, vector)}. Pass the model and the data that were sampled."
            f"{of_intercepts(model)}"
        )


class Groups:
    """Which group each row is of, by their labels; rows of a group need not follow each other."""

    def __init__(self, labels: np.ndarray) -> None:
        self.labels, self._code = np.unique(labels, return_inverse=True)  # of groups, in order
        self.n = len(self.labels)
        self._order = np.argsort(self._code, kind="stable")
        self._starts = np.searchsorted(self._code[self._order], np.arange(self.n + 1))

    def rows(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rows of some groups, and the place in `chosen` of the group of each."""
        parts = [self._order[self._starts[g] : self._starts[g + 1]] for g in chosen]
        owner = np.repeat(np.arange(len(chosen)), [len(part) for part in parts])
        return np.concatenate(parts), owner

    def add(self, total: np.ndarray, values: np.ndarray, rows: slice) -> None:
        """Add numbers of successive rows, shape (k, m), to those of their groups, shape (k, n)."""
        some, inverse = np.unique(self._code[rows], return_inverse=True)
        for whole, part in zip(total, values, strict=True):
            whole[some] += np.bincount(inverse, part, minlength=len(some))


def read_groups(
    given: Any, n_rows: int, model: pm.Model, data: Rows | Several | None
) -> Groups | None:
    """Return the groups that an argument names or holds, None if it is None."""
    if given is None:
        return None
    labels = _column(given, model, data) if isinstance(given, str) else np.asarray(given)
    said = f"groups={given!r}" if isinstance(given, str) else "groups"
    if labels.shape != (n_rows,):
        raise ValueError(
            f"{said} must have one label for each of the {n_rows:,} rows; it has shape "
            f"{labels.shape}."
        )
    missing = labels != labels if labels.dtype.kind in "fcmM" else np.zeros(0, dtype=bool)
    if labels.dtype.kind == "O":
        missing = np.array([x is None or x != x for x in labels])
        labels = labels.astype(str)
    if missing.any():
        raise ValueError(
            f"{said} is missing in {missing.sum():,} rows (first: row {int(missing.argmax())}). "
            "Give every row a label."
        )
    groups = Groups(labels)
    if groups.n < 2:
        raise ValueError(f"{said} has one group, {shown(groups.labels[0])}: none can be left out.")
    return groups


def _column(name: str, model: pm.Model, data: Rows | Several | None) -> np.ndarray:
    known = sorted([v.name for v in model.data_vars] if data is None else data)
    if name in known:
        return np.asarray(model[name].get_value() if data is None else data.column(name)[:])
    where = "the model's pm.Data are" if data is None else "data has the columns"
    raise ValueError(
        f"groups={name!r}: {where} {known}. Name one of them, or pass the labels as an array."
    )
