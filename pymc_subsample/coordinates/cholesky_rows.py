r"""Rows of a Cholesky factor as the chain sees them: a scale and partial correlations.

A row :math:`L_1, ..., L_m, L_{m+1} > 0` of the factor of a covariance matrix is

.. math:: L_j = s \tanh(y_j) \prod_{l < j} \operatorname{sech}(y_l), \qquad
   L_{m+1} = s \prod_l \operatorname{sech}(y_l),

with s the standard deviation and tanh(y) canonical partial correlations (Lewandowski, Kurowicka and
Joe 2009, Journal of Multivariate Analysis 100(9), section 2). The elements of a row grow and shrink
together: where few groups tell them, that is a funnel. The volume is that of
:math:`(y, \log s) \to (L_1, ..., L_m, \log L_{m+1})`, :math:`s^m \prod_j \cosh(y_j)^{j - m}`.

Vectors hold :math:`L_1, ..., L_m, \log L_{m+1}`, or y and log s, from the first of `rows` of each
pair on, and m is the second.
"""

import numpy as np

from pymc_subsample.compiled.cache import kept


@kept()
def unfold(rows, theta):
    """Write elements of rows for y and log s, in place; return the log volume."""
    volume = 0.0
    for row in range(rows.shape[0]):
        at, m = rows[row, 0], rows[row, 1]
        volume += m * theta[at + m]
        for j in range(m):
            y = theta[at + j]
            theta[at + j] = np.exp(theta[at + m]) * np.tanh(y)
            logcosh = np.logaddexp(y, -y) - np.log(2.0)
            theta[at + m] -= logcosh
            volume += (j + 1 - m) * logcosh
    return volume


@kept()
def fold(rows, theta):
    """Write y and log s for elements of rows, in place."""
    for row in range(rows.shape[0]):
        at, m = rows[row, 0], rows[row, 1]
        for j in range(m - 1, -1, -1):
            y = np.arcsinh(theta[at + j] * np.exp(-theta[at + m]))
            theta[at + j] = y
            theta[at + m] += np.logaddexp(y, -y) - np.log(2.0)


@kept()
def fold_back(rows, theta, bar):
    """Turn derivatives in elements of rows into those in y and log s, and add the volume's."""
    for row in range(rows.shape[0]):
        at, m = rows[row, 0], rows[row, 1]
        left, log_rest = bar[at + m], theta[at + m]
        for j in range(m - 1, -1, -1):
            element = theta[at + j]
            t = np.tanh(np.arcsinh(element * np.exp(-log_rest)))
            log_rest -= 0.5 * np.log1p(-t * t)
            slope = bar[at + j] * np.exp(log_rest) * (1.0 - t * t)
            left, bar[at + j] = left + bar[at + j] * element, slope - t * left + (j + 1 - m) * t
        bar[at + m] = left + m
