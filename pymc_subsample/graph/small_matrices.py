"""Linear algebra of small matrices, as that of `pm.MvNormal`, by the elements of these.

Each element is then a number of its own. PyTensor's Ops call LAPACK, and compiled into a function
with numba take ten seconds.
"""

from functools import reduce
from operator import sub

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.linalg import Cholesky, SolveTriangular

# Rows and columns, at most. A choice: of ten a system is 45 products, and a factor 165.
_MOST = 10


def substituted(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
    """Solve small triangular systems by substitution; a hook of `concrete.rebuild`."""
    op = _op_of(node)
    if not isinstance(op, SolveTriangular):
        return None
    (matrix, b), n = inputs, inputs[0].type.shape[-1]
    if n is None or n > _MOST:
        return None
    if op.b_ndim == 2:  # columns last: a system for each
        b, matrix = b.swapaxes(-1, -2), matrix[..., None, :, :]
    solution: dict[int, Variable] = {}
    for i in range(n) if op.lower else reversed(range(n)):
        known = reduce(sub, (matrix[..., i, j] * x for j, x in solution.items()), b[..., i])
        solution[i] = known if op.unit_diagonal else known / matrix[..., i, i]
    x = pt.stack([solution[i] for i in range(n)], axis=-1)
    return [x if op.b_ndim == 1 else x.swapaxes(-1, -2)]


def factorised(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
    """Factorise small covariances column by column; a hook of `concrete.rebuild`.

    The factor of what is not positive definite has NaN, as PyTensor's has.
    """
    op = _op_of(node)
    if not isinstance(op, Cholesky):
        return None
    [matrix], n = inputs, inputs[0].type.shape[-1]
    if n is None or n > _MOST:
        return None
    factor: dict[tuple[int, int], Variable] = {}
    for j in range(n):
        for i in range(j, n):
            at = (i, j) if op.lower else (j, i)
            found = [factor[i, k] * factor[j, k] for k in range(j)]
            rest = reduce(sub, found, matrix[..., at[0], at[1]])
            factor[i, j] = pt.sqrt(rest) if i == j else rest / factor[j, j]
    zero = pt.zeros_like(matrix[..., 0, 0])
    rows = [pt.stack([factor.get((i, j), zero) for j in range(n)], axis=-1) for i in range(n)]
    return [pt.stack(rows, axis=-2 if op.lower else -1)]


def _op_of(node: Apply) -> Op:
    return node.op.core_op if isinstance(node.op, Blockwise) else node.op
