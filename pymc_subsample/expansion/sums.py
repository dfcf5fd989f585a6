"""Full-data sums of anchored rows: dense columns by BLAS, groups by counting."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product

import numpy as np
import scipy.sparse

from pymc_subsample.expansion.curvature import SparseSum, Totals
from pymc_subsample.expansion.row_layout import FLAT, AffineMap, RowLayout
from pymc_subsample.kernels.vectors import count

# Per predictor, columns with the elements of phi that they multiply, or the element of each row
# with its coefficient.
Dense = list[list[tuple[slice, np.ndarray]]]
IndexGroups = list[list[tuple[np.ndarray, np.ndarray]]]


class LinearSums:
    """Adds sums of l*, grad l* and hess l* of anchored rows, (width, m), with linear predictors.

    And counts those without a Hessian.
    """

    def __init__(self, affine: AffineMap, layout: RowLayout, size: int) -> None:
        self._map = affine
        self._at = layout
        self._size = size

    def __call__(self, center: np.ndarray, rows: np.ndarray, total: Totals) -> None:
        """Add some rows; no curvature where that is empty."""
        at, size, (level, slope, curvature, flat) = self._at, len(center), total
        level[0] += rows[at.level].sum()
        flat[0] += np.count_nonzero(self.flat(rows, center))
        dense, groups = self._dense(rows), self._groups(rows)
        for e in range(at.n_predictors):
            g = rows[at.slope + e]
            for where, z in dense[e]:
                slope[where] += z @ g
            for index, value in groups[e]:
                slope += _count(index, value, g[None], size)[0]
        if isinstance(curvature, SparseSum):
            self._add_sparse(rows, curvature)
        elif curvature.ndim == 1:
            self._add_diagonal(rows, dense, groups, curvature)
        elif len(curvature):
            self._add_full(rows, dense, groups, curvature)

    def _add_full(
        self, rows: np.ndarray, dense: Dense, groups: IndexGroups, curvature: np.ndarray
    ) -> None:
        size = len(curvature)
        for (e, f), column in self._at.derivatives(2).items():
            h = rows[column]
            block = curvature if e == f else np.zeros_like(curvature)
            for where, z in dense[e]:
                weighted = z * h
                for other, y in dense[f]:
                    block[where, other] += weighted @ y.T
                for index, value in groups[f]:
                    block[where] += _count(index, value, weighted, size)
            for index, value in groups[e]:
                weight = value * h
                for other, y in dense[f]:
                    block[:, other] += _count(index, weight, y, size).T
                for second, factor in groups[f]:
                    pairs = _count(index * size + second, weight, factor[None], size * size)
                    block += pairs.reshape(size, size)
            if e != f:
                curvature += block + block.T

    def _add_sparse(self, rows: np.ndarray, curvature: SparseSum) -> None:
        predictors = self._sparse(rows)
        for (e, f), column in self._at.derivatives(2).items():
            product = predictors[e].T @ predictors[f].multiply(rows[column][:, None]).tocsr()
            curvature.add(product if e == f else product + product.T)

    def _sparse(self, rows: np.ndarray) -> list[scipy.sparse.csr_array]:
        """Per predictor, its derivative in phi, shape (m, P)."""
        m = rows.shape[1]
        every, found = np.arange(m), []
        for dense, groups in zip(self._dense(rows), self._groups(rows), strict=True):
            columns = [np.empty(0, dtype=np.int64)]
            columns += [np.full(m, a) for where, _ in dense for a in range(self._size)[where]]
            columns += [index for index, _ in groups]
            values = [np.empty(0), *(v for _, z in dense for v in z), *(v for _, v in groups)]
            place = np.tile(every, len(values) - 1), np.concatenate(columns)
            shape = (m, self._size)
            found.append(scipy.sparse.csr_array((np.concatenate(values), place), shape))
        return found

    def _add_diagonal(
        self, rows: np.ndarray, dense: Dense, groups: IndexGroups, diagonal: np.ndarray
    ) -> None:
        """Products of a term with itself; of others only those of group terms of one index."""
        for (e, f), column in self._at.derivatives(2).items():
            h = rows[column] if e == f else 2 * rows[column]
            for where, z in dense[e]:
                for other, y in dense[f]:
                    if where == other and (e != f or z is y):
                        diagonal[where] += (z * y) @ h
            for index, value in groups[e]:
                for second, factor in groups[f]:
                    shared = h * factor * (index == second)
                    diagonal += _count(index, value, shared[None], len(diagonal))[0]

    def flat(self, rows: np.ndarray, _: np.ndarray) -> np.ndarray:
        """Say which anchored rows, shape (m,), have control variates of order 1 at most."""
        [*columns] = self._at.derivatives(2).values()
        return rows[columns[0]] == FLAT if columns else np.zeros(rows.shape[1], dtype=bool)

    def design(self, rows: np.ndarray, predictor: int = 0) -> np.ndarray:
        """Return the gradient in phi of one predictor of packed rows, shape (P, m)."""
        x = np.zeros((self._size, rows.shape[1]))
        for where, z in self._dense(rows)[predictor]:
            x[where] += z
        every = np.arange(rows.shape[1])
        for index, value in self._groups(rows)[predictor]:
            x[index, every] += value
        return x

    @cached_property
    def common(self) -> np.ndarray:
        """Elements of phi that all rows see, in order."""
        dense = [
            np.arange(first, first + (length - 1) * step + 1, step)
            for _, _, first, step, length in self._map.dense
        ]
        return np.unique(np.concatenate([self._map.const[:, 1], *dense]))

    @cached_property
    def slots(self) -> list[tuple[int, int]]:
        """First element and column of groups, wherever rows see the element of their group."""
        return list(dict.fromkeys((p, g) for _, _, p, g in self._map.gather.tolist()))

    @property
    def slot_coefficients(self) -> list[list[tuple[int, int, float]]]:
        """By slot: predictors that see it, columns that multiply it, -1 for none, and scales."""
        seen = list(zip(self._map.gather.tolist(), self._map.gather_scale.tolist(), strict=True))
        return [
            sorted((e, value, scale) for (e, value, *at), scale in seen if tuple(at) == slot)
            for slot in self.slots
        ]

    def levels(self, rows: np.ndarray) -> np.ndarray:
        """Return the element of phi that each packed row sees in each of the slots, (k, m)."""
        found = [first + rows[column].astype(np.int64) for first, column in self.slots]
        return np.array(found, dtype=np.int64).reshape(len(found), rows.shape[1])

    def local_design(self, rows: np.ndarray, predictor: int) -> np.ndarray:
        """Return a predictor's gradient in the elements that a row sees.

        Shape (k, m): of those in `common`, then of each of the slots.
        """
        x = np.zeros((len(self.common) + len(self.slots), rows.shape[1]))
        for where, z in self._dense(rows)[predictor]:
            x[np.searchsorted(self.common, np.arange(self._size)[where])] += z
        seen = self._map.gather[self._map.gather[:, 0] == predictor]
        for (_, value), (_, _, first, group) in zip(
            self._groups(rows)[predictor], seen.tolist(), strict=True
        ):
            x[len(self.common) + self.slots.index((first, group))] += value
        return x

    def thirds(
        self, rows: np.ndarray, x: Sequence[np.ndarray]
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        r"""Yield terms of the third derivatives of anchored rows.

        `x` are the predictors' gradients, shape (m, k). Each term is p, q and v, of the same shape,
        for :math:`p_{ia} q_{ib} v_{ic}` of row i.
        """
        size, columns = self._at.n_predictors, self._at.derivatives(3)
        for e, f in product(range(size), repeat=2):
            weights = (rows[columns[tuple(sorted((e, f, g)))], :, None] for g in range(size))
            yield x[e], x[f], sum((w * z for w, z in zip(weights, x, strict=True)), 0.0 * x[0])

    def _dense(self, rows: np.ndarray) -> Dense:
        """Per predictor, the columns that multiply some elements of phi: (place, (k, m))."""
        blocks: Dense = [[] for _ in range(self._at.n_predictors)]
        for (e, column, element, step, length), scale in zip(
            self._map.dense, self._map.dense_scale, strict=True
        ):
            where = slice(element, element + (length - 1) * step + 1, step)
            z = rows[column : column + length]
            blocks[e].append((where, z if scale == 1.0 else scale * z))
        for (e, element), scale in zip(self._map.const, self._map.const_scale, strict=True):
            blocks[e].append((slice(element, element + 1), np.full((1, rows.shape[1]), scale)))
        return blocks

    def _groups(self, rows: np.ndarray) -> IndexGroups:
        """Per predictor, which element of phi each row sees and its coefficient, each (m,)."""
        entries: IndexGroups = [[] for _ in range(self._at.n_predictors)]
        for (e, column, element, group), scale in zip(
            self._map.gather, self._map.gather_scale, strict=True
        ):
            value = scale * (rows[column] if column >= 0 else np.ones(rows.shape[1]))
            entries[e].append((element + rows[group].astype(np.int64), value))
        return entries


def _count(index: np.ndarray, value: np.ndarray, weights: np.ndarray, size: int) -> np.ndarray:
    out = np.zeros((len(weights), size))
    count(index, value, weights, out)
    return out
