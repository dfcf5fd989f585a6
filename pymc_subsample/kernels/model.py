"""The functions through which a model enters a compiled transition.

Each has one fixed signature and is handed over by address, so that the transitions are compiled
once for all models:

``forward(theta, phi, logprior)``
    parameters where they meet data, shape (P,), and the log prior, shape (1,);
``backward(theta, grad_phi, grad_theta)``
    gradient of the log prior plus the pull-back of `grad_phi`;
``difference(phi, rows, center, weight, correction, d, grad_phi)``
    residuals d_i = l_i - q_i, shape (m,), and the gradient in phi of
    w sum d - c/2 w^2 sum (d - mean d)^2;
``gradient(phi, rows, center, weight, grad_phi)``
    the gradient in phi of w sum d alone, without any log-likelihood;
``products(phi, rows, center, weight, bound, d, grad_phi)``
    the same residuals, in minibatches of `MINIBATCH` successive rows b, and the gradient in phi of
    sum_b log|w sum_{i in b} d_i - a|, where a is the soft lower bound;
``residual(phi, center, rows, d)``
    the same residuals alone;
``glow(phi, rows, center, weight, setting, d, grad_phi)``
    the same residuals and the gradient in phi of sum log(exp(w d) - 1); `setting` is not used;
``anchor(center, rows)``
    fills what is cached of new rows, at the reference point;
``change(phi, new_phi, center, rows, change)``
    d_i(new_phi) - d_i(phi), shape (m,), of rows that need not be anchored;
``gather(columns, index, rows)``
    packs rows `index`, shape (m,), of the raw columns at the addresses `columns` into `rows`,
    shape (width, m).
"""

from collections import namedtuple

from numba import types

from pymc_subsample.compiled.functions import INDEX, MATRIX, SCALAR, VECTOR, functions_at, inner

# Rows of one factor of the block-Poisson estimator (Dang et al. 2019, section 6.3).
MINIBATCH = 30

FORWARD = types.void(VECTOR, VECTOR, VECTOR)
BACKWARD = types.void(VECTOR, VECTOR, VECTOR)
DIFFERENCE = types.void(VECTOR, MATRIX, VECTOR, SCALAR, SCALAR, VECTOR, VECTOR)
GRADIENT = types.void(VECTOR, MATRIX, VECTOR, SCALAR, VECTOR)
RESIDUAL = types.void(VECTOR, VECTOR, MATRIX, VECTOR)
ANCHOR = types.void(VECTOR, MATRIX)
CHANGE = types.void(VECTOR, VECTOR, VECTOR, MATRIX, VECTOR)
GATHER = types.void(INDEX, INDEX, MATRIX)
_SIGNATURES = {
    "forward": FORWARD, "backward": BACKWARD, "difference": DIFFERENCE, "gradient": GRADIENT,
    "products": DIFFERENCE, "residual": RESIDUAL, "glow": DIFFERENCE, "anchor": ANCHOR,
    "change": CHANGE, "gather": GATHER,
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


# What a density at theta is of, which also takes theta and room for its gradient.
#
# target, rows, counts : see `estimates.perturbed`
# phi, d : scratch
Surface = namedtuple("Surface", "target rows counts phi d")

# Control variates: the reference in phi, sums over all rows of l*, its gradient and its Hessian
# there, over the temperature, and their order (0: none).
Sums = namedtuple("Sums", "center level slope curvature order")
SUMS = types.NamedTuple([VECTOR, SCALAR, VECTOR, MATRIX, types.int64], Sums)
