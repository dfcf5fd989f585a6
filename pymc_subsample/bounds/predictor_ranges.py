r"""How far the rows' linear predictors can move, and what their log-likelihoods can do meanwhile.

With one predictor :math:`\eta_i = o_i + x_i' \varphi` per row and a log-likelihood whose
derivative of order k + 1 in the predictor is at most c in size, the Taylor remainder of order k is
at most :math:`c |x_i' \delta|^{k+1} / (k + 1)!` for a step delta from the reference.

Most derivatives are bounded only near the reference. Where a row sees predictors
:math:`\eta_e = o_e + x_e' \varphi` and :math:`\|W \delta\| \le t`, predictor e moves by
:math:`a_e t` at most, :math:`a_e = \|W^{-T} x_e\|`. With :math:`c_{efg}` the largest size of a
third derivative while the predictors move so far, the remainder of order 2 is at most

.. math:: \frac{\|W \delta\|^3}{3!} \max_i \sum_{efg} c_{efg} a_e a_f a_g.
"""

from collections.abc import Iterable

import numpy as np
import scipy.linalg

from pymc_subsample.expansion.coefficients import within_their_span
from pymc_subsample.expansion.curvature import units
from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.expansion.reference import Reference

# What is added for points between those that are looked at. A choice.
_ROUNDING = 1e-3
# Beyond this many elements of phi only the cruder of the two bounds is worth its set-up: a choice,
# as a draw would multiply a matrix of 2 MB. What stands for a radius that is never left.
_MAX_DENSE = 500
_FAR = 1e300
# Radii around the reference, in posterior standard deviations beyond the typical distance.
_RADII = (3.0, 8.0)
# As rules say it, which know no model.
ELSE = (
    "If each row depends on the parameters through at most ten linear predictors, pms.ScalableMH() "
    "is exact and reads a few rows per draw."
)
# Rows looked at for advice, and the share of them that must have bounds.
_ROWS, _SHARE = 200, 0.75
# Standard deviations beyond the usual distance, and the smallest curvature over the largest.
_BEYOND, _FLAT = 2.0, 1e-6
# Numbers of gradients at a time. A choice: 32 MB.
_NUMBERS = 4_000_000


def everywhere(
    expansion: Expansion, without: np.ndarray | tuple = ()
) -> tuple[float, np.ndarray] | None:
    """Return `Expansion.slope` and the table that `linear_bound` takes beside it.

    It is of all rows but some. None where rows have no single predictor or the derivative is not
    bounded.
    """
    slope = expansion.slope()
    return None if slope is None else (slope, reach(expansion, without))


def reach(expansion: Expansion, without: np.ndarray | tuple = ()) -> np.ndarray:
    """Tabulate what bounds the predictors' changes; see `samplers.minibatch.largest_term.farthest`.

    Shape (P + 2, P). One pass over the rows for the coefficients' maxima and their products, and
    one for the largest leverage.
    """
    size = expansion.phi_size
    table = np.zeros((size + 2, size))
    table[:size] = np.eye(size)
    table[size + 1] = _FAR
    dense = size <= _MAX_DENSE
    squares = np.zeros((size, size))
    for largest, square in expansion.over(
        _squares, dense, without=without, result_bytes=squares.nbytes
    ):
        table[size] = np.maximum(table[size], largest)
        squares += square
    if not dense:
        return table
    ridge = 1e-10 * max(np.trace(squares) / size, 1e-300)
    whiten = scipy.linalg.cholesky(squares + ridge * np.eye(size))
    table[:size] = whiten
    table[size + 1] = np.sqrt(max(expansion.over(_leverage, whiten, without=without)))
    return table


def _squares(
    expansion: Expansion, batches: Iterable[np.ndarray], dense: bool
) -> tuple[np.ndarray, np.ndarray]:
    largest, squares = np.zeros(()), np.zeros(())
    for rows in batches:
        x = expansion.sums.design(rows)
        largest = np.maximum(largest, np.abs(x).max(axis=1))
        if dense:
            squares = squares + x @ x.T
    return largest, squares


def _leverage(expansion: Expansion, batches: Iterable[np.ndarray], whiten: np.ndarray) -> float:
    """Largest leverage of a row of the batch."""
    [rows] = batches
    white = scipy.linalg.solve_triangular(whiten, expansion.sums.design(rows), trans="T")
    return float((white**2).sum(axis=0).max())


def nearby(
    expansion: Expansion,
    center: np.ndarray,
    curvature: np.ndarray,
    without: np.ndarray | tuple = (),
) -> np.ndarray | None:
    """Tabulate what bounds the rows' remainders near the reference, in the metric of the curvature.

    The table of `samplers.minibatch.largest_term.local_bound`, shape (P + 2, max(P, 2)), holds W in
    its first rows, then per radius t the radius and the largest remainder of a row, of all but
    some, over the distance to the power of k + 1. None where rows have no few predictors, or no
    radius has a finite one.
    """
    size, remainder = len(center), expansion.remainder(center)
    if remainder is None or size > _MAX_DENSE:
        return None
    factor, inverse = metric(curvature)
    radii = np.sqrt(size) + np.array(_RADII)
    largest = np.zeros(len(radii))

    def over(rows: np.ndarray) -> list[float]:
        expansion.anchor(center, rows)
        gradients = _gradients(expansion, rows, inverse)
        return [remainder(rows, gradients, radius).max() for radius in radii]

    for found in expansion.workers.map(over, expansion.chunks(without)):
        largest = np.maximum(largest, found)
    if not np.isfinite(largest[0]):
        return None
    table = np.zeros((size + len(radii), max(size, 2)))
    table[:size, :size] = factor
    table[size:, 0], table[size:, 1] = radii, (1 + _ROUNDING) * largest
    return table


def _gradients(expansion: Expansion, rows: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """Return W^-T x_e of packed rows, shape (E, m, k), in as few dimensions as they span."""
    every, found = range(expansion.n_predictors), list[np.ndarray]()
    each = max(1, _NUMBERS // (len(every) * len(inverse)))
    for first in range(0, rows.shape[1], each):
        some = np.ascontiguousarray(rows[:, first : first + each])
        designs = (expansion.sums.design(some, e) for e in every)
        found.append(within_their_span(np.array([(inverse @ x).T for x in designs])))
    return np.concatenate(found, axis=1)


def exact_step(expansion: Expansion, reference: Reference) -> list[str]:
    """Return advice to use `ScalableMH`, if it would take the model, for lists of remedies.

    Its control variates are of order 2 in few linear predictors per row, and most of some rows have
    bounds on what these leave as far as a posterior without its prior reaches.
    """
    few = expansion.n_predictors > 0 and expansion.phi_size <= _MAX_DENSE
    if expansion.order < 2 or not few or expansion.curvature != "full":
        return []
    near = expansion.remainder(reference.center)
    if near is None or not np.all(np.isfinite(reference.curvature)):
        return []
    chosen = np.linspace(0, expansion.n_rows - 1, min(_ROWS, expansion.n_rows)).astype(np.int64)
    rows = expansion.take(chosen)
    expansion.anchor(reference.center, rows)
    _, inverse = metric(reference.curvature, _FLAT)
    with np.errstate(all="ignore"):
        bounds = near(
            rows, _gradients(expansion, rows, inverse), np.sqrt(expansion.phi_size) + _BEYOND
        )
    if np.mean(np.isfinite(bounds)) < _SHARE:
        return []
    return ["use pms.ScalableMH(), which is exact"]


def metric(curvature: np.ndarray, flat: float = 1e-10) -> tuple[np.ndarray, np.ndarray]:
    """Return W with W'W about the size of the curvature, and the transpose of its inverse.

    In units of its diagonal, every direction counts as at least `flat` times the most curved one.
    """
    scale = units(curvature)
    values, vectors = scipy.linalg.eigh(curvature / np.outer(scale, scale))
    values = np.sqrt(np.maximum(np.abs(values), flat * max(np.abs(values).max(), 1e-300)))
    return values[:, None] * vectors.T * scale, vectors.T / scale / values[:, None]
