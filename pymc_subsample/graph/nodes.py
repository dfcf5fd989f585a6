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


def lower_factor(cov: Variable) -> Variable:
    """Return the lower factor of a covariance, as PyMC was given it if it was."""
    while cov.owner is not None and isinstance(cov.owner.op, DimShuffle) and cov.type.ndim > 2:
        [cov] = cov.owner.inputs
    node = cov.owner
    if is_product(node) and equal_computations([node.inputs[1]], [node.inputs[0].mT]):
        return node.inputs[0]
    return pt.linalg.cholesky(cov)
