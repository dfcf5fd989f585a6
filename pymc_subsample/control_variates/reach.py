r"""How far the rows' linear predictors can move, and what their log-likelihoods can do meanwhile.

With one predictor :math:`\eta_i = o_i + x_i' \varphi` per row and a log-likelihood whose
derivative of order k + 1 in the predictor is at most c in size, the Taylor remainder of order k is
at most :math:`c |x_i' \delta|^{k+1} / (k + 1)!` for a step delta from the reference.
"""

from collections.abc import Callable, Sequence

import numpy as np
import scipy.linalg
from pytensor.graph.basic import Variable

from pymc_subsample.control_variates.expansion import Expansion
from pymc_subsample.likelihood.graph import numpy_function

# Kinds of rows, and range of predictors, over which a derivative is looked at.
_MOST_KINDS = 64
_WIDEST = 30.0
_ROUNDING = 1e-3
# Beyond this many elements of phi only the cruder of the two bounds is worth its set-up.
_MAX_DENSE = 500
_FAR = 1e300


def derivative_bound(
    derivative: Variable, predictor: Variable, data: Sequence[Variable], kinds: np.ndarray
) -> float | None:
    """Bound a derivative over all values of the predictor and all kinds of rows.

    Parameters
    ----------
    derivative : Variable
        Of the rows' log-likelihood, a vector graph of `predictor` and `data`.
    predictor, data
        Its inputs.
    kinds : ndarray, shape (len(data), k)
        Distinct values of the data.

    Returns
    -------
    float or None
        None where the derivative is not bounded. It is evaluated on a grid, and taken as bounded
        where its supremum over the outer half of the grid is that over the inner half.
    """
    # An even number of points: derivatives of powers are 0 * inf at zero.
    grid = np.linspace(-_WIDEST, _WIDEST, 6000)
    x = np.tile(grid, kinds.shape[1])
    columns = [np.repeat(values, len(grid)) for values in kinds]
    evaluate = numpy_function([predictor, *data], [derivative])
    with np.errstate(all="ignore"):
        values = np.abs(evaluate(x, *columns)[0])
    if not np.all(np.isfinite(values)):
        return None
    inner = values[np.abs(x) <= _WIDEST / 2].max(initial=0.0)
    if values.max(initial=0.0) > inner * (1 + 1e-5):
        return None
    return float(inner * (1 + _ROUNDING))


def distinct(batches, positions: Sequence[int]) -> np.ndarray | None:
    """Return the distinct values, shape (len(positions), k), of some columns, if they are few."""
    found = np.zeros((len(positions), 0))
    for rows in batches:
        found = np.unique(np.concatenate([found, rows[list(positions)]], axis=1), axis=1)
        if found.shape[1] > _MOST_KINDS:
            return None
    return found


def reach(expansion: Expansion, design: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Tabulate what bounds the predictors' changes; see `kernels.metropolis.farthest`.

    Parameters
    ----------
    expansion : Expansion
        Compiled model.
    design : callable
        Returns x of packed rows, shape (P, m).

    Returns
    -------
    ndarray, shape (P + 2, P)
        From one pass over the rows for the coefficients' maxima and their products, and one for
        the largest leverage.
    """
    size = expansion.phi_size
    table = np.zeros((size + 2, size))
    table[:size] = np.eye(size)
    table[size + 1] = _FAR
    dense = size <= _MAX_DENSE
    products = np.zeros((size, size))
    for rows in expansion.chunks():
        x = design(rows)
        table[size] = np.maximum(table[size], np.abs(x).max(axis=1))
        if dense:
            products += x @ x.T
    if not dense:
        return table
    ridge = 1e-10 * max(np.trace(products) / size, 1e-300)
    whiten = scipy.linalg.cholesky(products + ridge * np.eye(size))
    largest = 0.0
    for rows in expansion.chunks():
        white = scipy.linalg.solve_triangular(whiten, design(rows), trans="T")
        largest = max(largest, float((white**2).sum(axis=0).max()))
    table[:size] = whiten
    table[size + 1] = np.sqrt(largest)
    return table
