"""The functions through which a model enters a compiled transition.

Each has one fixed signature and is handed over by address, so that the transitions are compiled
once for all models:

``forward(theta, phi, logprior)``
    parameters where they meet data, shape (P,), and the log prior, shape (1,);
``backward(theta, grad_phi, grad_theta)``
    gradient of the log prior plus the pull-back of `grad_phi`;
``residual(phi, rows, center, rule, weight, setting, d, grad_phi)``
    writes residuals d_i = l_i - q_i, shape (m,), and adds the gradient in phi of what the rule
    makes of them:

    - `PERTURBED`: w sum d - c/2 w^2 sum (d - mean d)^2, with c = `setting`;
    - `BLOCK_POISSON`: sum_b log|w sum_{i in b} d_i - a|, of minibatches b of `MINIBATCH`
      successive rows, with a = `setting`, the soft lower bound;
    - `BRIGHT`: sum log(exp(w d) - 1), on the linear-predictor path;
    - `ALONE`: nothing; `grad_phi` is scratch;
``gradient(phi, rows, center, weight, grad_phi)``
    adds the gradient in phi of w sum d, without any log-likelihood;
``anchor(center, rows)``
    fills what is cached of new rows, at the reference point;
``left(phi, center, rows, value)``
    d_i + l_i*, shape (m,): what the control variates' change from the reference leaves of the
    log-likelihood. Of control variates of order 0, and of rows that were packed over zeros and not
    anchored, this is the log-likelihood;
``gather(columns, index, rows)``
    packs rows `index`, shape (m,), of the raw columns at the addresses `columns` into `rows`,
    shape (width, m).
"""

from collections import namedtuple

import numpy as np
from numba import types

from pymc_subsample.compiled.functions import INDEX, MATRIX, SCALAR, VECTOR, functions_at, inner

# Rows of one factor of the block-Poisson estimator (Dang et al. 2019, section 6.3).
MINIBATCH = 30

# What a residual counts for: the rules of `residual`.
PERTURBED, BLOCK_POISSON, BRIGHT, ALONE = range(4)

FORWARD = types.void(VECTOR, VECTOR, VECTOR)
BACKWARD = types.void(VECTOR, VECTOR, VECTOR)
RESIDUAL = types.void(VECTOR, MATRIX, VECTOR, types.int64, SCALAR, SCALAR, VECTOR, VECTOR)
GRADIENT = types.void(VECTOR, MATRIX, VECTOR, SCALAR, VECTOR)
ANCHOR = types.void(VECTOR, MATRIX)
LEFT = types.void(VECTOR, VECTOR, MATRIX, VECTOR)
GATHER = types.void(INDEX, INDEX, MATRIX)
_SIGNATURES = {
    "forward": FORWARD, "backward": BACKWARD, "residual": RESIDUAL, "gradient": GRADIENT,
    "anchor": ANCHOR, "left": LEFT, "gather": GATHER,
}  # fmt: skip

# How a transition gets at a model.
#
# functions, columns : addresses of the functions that it names, and of the raw columns
# width : columns of a packed row
Model = namedtuple("Model", "functions columns width")
MODEL = types.NamedTuple([INDEX, INDEX, types.int64], Model)


def functions(names):
    """Make what returns a model's functions of these names, at addresses (in compiled code)."""
    signatures = namedtuple("Functions", names)(*(_SIGNATURES[name] for name in names))
    return inner(lambda addresses: functions_at(addresses, signatures))


@inner
def change(left, phi, new_phi, center, rows, out):
    """Write d_i(new_phi) - d_i(phi), shape (m,); rows of order 0 need not be anchored."""
    before = np.empty(out.shape[0])
    left(phi, center, rows, before)
    left(new_phi, center, rows, out)
    for i in range(out.shape[0]):
        out[i] -= before[i]


# What a density at theta is of, which also takes theta and room for its gradient.
#
# target, rows, counts : see `estimates.perturbed`
# phi, d : scratch
Surface = namedtuple("Surface", "target rows counts phi d")

# Control variates: the reference in phi, sums over all rows of l*, its gradient and its Hessian
# there, over the temperature, and their order (0: none).
Sums = namedtuple("Sums", "center level slope curvature order")
SUMS = types.NamedTuple([VECTOR, SCALAR, VECTOR, MATRIX, types.int64], Sums)
