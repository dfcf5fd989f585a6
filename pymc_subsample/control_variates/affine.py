"""Tables of the affine map from phi to predictors, and where a packed row caches what."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from pymc_subsample.control_variates.columns import Packer
from pymc_subsample.symbolic.affine import Affine


@dataclass
class AffineMap:
    """Tables of the affine map from phi to predictors; see `kernels.linear`."""

    dense: np.ndarray
    dense_scale: np.ndarray
    gather: np.ndarray
    gather_scale: np.ndarray
    const: np.ndarray
    const_scale: np.ndarray
    offset: np.ndarray
    offset_scale: np.ndarray
    base: np.ndarray

    def shared(self, phi: np.ndarray) -> np.ndarray:
        """Return what phi adds to every predictor alike in all rows, shape (E,)."""
        total = np.zeros(len(self.base))
        for (e, element), scale in zip(self.const, self.const_scale, strict=True):
            total[e] += scale * phi[element]
        return total


@dataclass
class Layout:
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
    dense: list[tuple[int, int, int, float]] = []
    gather, const, offset = [], [], []
    for e, form in enumerate(forms):
        for term in form.terms:
            column = -1 if term.coefficient is None else packer.request(term.coefficient)
            if term.group is not None:
                gather.append(((e, column, term.index, packer.request(term.group)), term.scale))
            elif column < 0:
                const.append(((e, term.index), term.scale))
            else:
                dense.append((e, column, term.index, term.scale))
        for scale, data in form.offsets:
            offset.append(((e, packer.request(data)), scale))
    runs, scales = _runs(dense)
    return AffineMap(
        dense=_table(runs, 5),
        dense_scale=np.array(scales, dtype=float),
        gather=_table([g for g, _ in gather], 4),
        gather_scale=np.array([s for _, s in gather], dtype=float),
        const=_table([c for c, _ in const], 2),
        const_scale=np.array([s for _, s in const], dtype=float),
        offset=_table([o for o, _ in offset], 2),
        offset_scale=np.array([s for _, s in offset], dtype=float),
        base=np.array([f.constant for f in forms], dtype=float),
    )


def _runs(dense: Sequence[tuple[int, int, int, float]]) -> tuple[list[list[int]], list[float]]:
    runs: list[list[int]] = []
    scales: list[float] = []
    for e, column, index, scale in dense:
        if runs:
            last = runs[-1]
            step = index - (last[2] + (last[4] - 1) * last[3])
            follows = last[0] == e and column == last[1] + last[4] and scales[-1] == scale
            if follows and step > 0 and (last[4] == 1 or step == last[3]):
                last[3] = step
                last[4] += 1
                continue
        runs.append([e, column, index, 1, 1])
        scales.append(scale)
    return runs, scales


def _table(entries: Sequence, width: int) -> np.ndarray:
    return np.array(entries, dtype=np.int64).reshape(-1, width)


def multiplicity(which: Sequence[int]) -> float:
    """Return what divides a derivative in these predictors, as a Taylor coefficient."""
    return float(math.prod(math.factorial(k) for k in Counter(which).values()))
