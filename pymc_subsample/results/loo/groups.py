"""Groups of rows that are left out together."""

from typing import Any

import numpy as np
import pymc as pm

from pymc_subsample.rows import Rows, Several
from pymc_subsample.validation import shown


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
