"""What a node of a graph is: read off its Op, whatever its inputs."""

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable, equal_computations
from pytensor.tensor.basic import Alloc
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.subtensor import unflatten_index_variables


def is_constant(var: Variable, value: float, tolerance: float = 0.0) -> bool:
    """Whether `var` is the constant `value`, up to broadcasting and a tolerance."""
    while var.owner is not None:
        if elemwise_name(var.owner) == "Second":
            var = var.owner.inputs[1]
        elif isinstance(var.owner.op, DimShuffle | Alloc):
            var = var.owner.inputs[0]
        else:
            return False
    if not isinstance(var, Constant) or np.ndim(var.data) > 1:
        return False
    found = np.asarray(var.data, dtype=float)
    return bool(np.allclose(found, value, rtol=0.0, atol=tolerance))


def elemwise_name(node: Apply | None) -> str | None:
    """Name of the scalar Op of an Elemwise node."""
    if node is not None and isinstance(node.op, Elemwise):
        return type(node.op.scalar_op).__name__
    return None


def index_entries(node: Apply, inputs: Sequence[Variable] = ()) -> list:
    """Return what indexes each axis of an array, slices, numbers or arrays, of other inputs too."""
    x, *rest = inputs or node.inputs
    index = rest[len(rest) - node.op.n_index_vars :]
    entries = unflatten_index_variables(index, node.op.idx_list)
    return [*entries, *[slice(None)] * (x.type.ndim - len(entries))]


def is_product(node: Apply | None) -> bool:
    """Whether a node multiplies matrices, vectors or stacks of them."""
    op = None if node is None else node.op
    core = op.core_op if isinstance(op, Blockwise) else op
    return isinstance(core, Dot | BatchedDot)


def given_factor(cov: Variable) -> Variable | None:
    """Return the lower factor from which PyMC made a covariance; None if it was given another."""
    node = _without_stack(cov).owner
    if not is_product(node) or not getattr(node.inputs[0].tag, "lower_triangular", False):
        return None
    factor, other = node.inputs
    return factor if equal_computations([other], [factor.mT]) else None


def lower_factor(cov: Variable) -> Variable:
    """Return the lower factor of a covariance, as PyMC was given it if it was."""
    factor = given_factor(cov)
    return pt.linalg.cholesky(_without_stack(cov)) if factor is None else factor


def _without_stack(cov: Variable) -> Variable:
    while isinstance(cov.owner_op, DimShuffle) and cov.owner.op.is_left_expand_dims:
        [cov] = cov.owner.inputs
    return cov
