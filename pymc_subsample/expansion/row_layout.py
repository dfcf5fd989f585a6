"""Tables of the affine map from phi to predictors, and where a packed row caches what."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from pymc_subsample.expansion.packing import Packer
from pymc_subsample.graph.affine import Affine
from pymc_subsample.kernels.linear import CONST, DENSE, GATHER, OFFSET

# Stands for the second derivatives of a row that has none that are finite: its control variate is
# of order 1. It adds nothing to a sum, says which rows these are, and is no denormal number.
FLAT = 2.0**-1000

# Numbers of a table, and their scale.
type _Entry = tuple[list[int], float]


@dataclass
class AffineMap:
    """Tables of the affine map from phi to predictors; see `kernels.linear` for their columns."""

    dense: np.ndarray
    dense_scale: np.ndarray
    gather: np.ndarray
    gather_scale: np.ndarray
    const: np.ndarray
    const_scale: np.ndarray
    offset: np.ndarray
    offset_scale: np.ndarray
    base: np.ndarray

    def joined(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the table of all entries, and their scales, as `kernels.linear` reads them."""
        kinds = {
            OFFSET: (self.offset, self.offset_scale),
            DENSE: (self.dense, self.dense_scale),
            GATHER: (self.gather, self.gather_scale),
            CONST: (self.const, self.const_scale),
        }
        parts = []
        for kind, (numbers, _) in kinds.items():
            part = np.zeros((len(numbers), 6), dtype=np.int64)
            part[:, 0], part[:, 1 : 1 + numbers.shape[1]] = kind, numbers
            parts.append(part)
        return np.concatenate(parts), np.concatenate([scales for _, scales in kinds.values()])

    def shared(self, phi: np.ndarray) -> np.ndarray:
        """Return what phi adds to every predictor alike in all rows, shape (E,)."""
        total = np.zeros(len(self.base))
        for (e, element), scale in zip(self.const, self.const_scale, strict=True):
            total[e] += scale * phi[element]
        return total


@dataclass
class RowLayout:
    """Positions of the cached columns of a packed row."""

    star: int
    n_varying: int
    n_predictors: int
    order: int

    @property
    def level(self) -> int:
        """Column of l_i*."""
        return self.star + self.n_varying

    @property
    def slope(self) -> int:
        """First column of g_i."""
        return self.level + 1

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.slope + sum(len(self.derivatives(k)) for k in (1, 2, 3))

    def derivatives(self, k: int) -> dict[tuple[int, ...], int]:
        """Column of each k-fold derivative in predictors e <= f <= g; order 3 alone has three."""
        if k > max(self.order, 2):
            return {}
        first = self.slope + sum(len(self.derivatives(below)) for below in range(1, k))
        which = combinations_with_replacement(range(self.n_predictors), k)
        return {each: first + place for place, each in enumerate(which)}


def affine_map(forms: Sequence[Affine], packer: Packer) -> AffineMap:
    """Translate affine forms into tables, with neighbouring terms joined into runs."""
    dense: list[_Entry] = []
    gather: list[_Entry] = []
    const: list[_Entry] = []
    offset: list[_Entry] = []
    for e, form in enumerate(forms):
        for term in form.terms:
            column = -1 if term.coefficient is None else packer.request(term.coefficient)
            if term.group is not None:
                gather.append(([e, column, term.index, packer.request(term.group)], term.scale))
            elif column < 0:
                const.append(([e, term.index], term.scale))
            else:
                _add_to_run(dense, e, column, term.index, term.scale)
        offset += [([e, packer.request(data)], scale) for scale, data in form.offsets]
    base = np.array([f.constant for f in forms], dtype=float)
    return AffineMap(
        *_table(dense, 5), *_table(gather, 4), *_table(const, 2), *_table(offset, 2), base
    )


def _add_to_run(runs: list[_Entry], e: int, column: int, index: int, scale: float) -> None:
    if runs:
        last, before = runs[-1]
        step = index - (last[2] + (last[4] - 1) * last[3])
        follows = last[0] == e and column == last[1] + last[4] and before == scale
        if follows and step > 0 and (last[4] == 1 or step == last[3]):
            last[3] = step
            last[4] += 1
            return
    runs.append(([e, column, index, 1, 1], scale))


def _table(entries: Sequence[_Entry], width: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.array([n for n, _ in entries], dtype=np.int64).reshape(-1, width)
    return numbers, np.array([scale for _, scale in entries], dtype=float)
