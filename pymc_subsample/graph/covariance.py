"""Covariances as graphs, and the factors that they were made of."""

import pytensor.tensor as pt
from pytensor.graph.basic import Variable, equal_computations
from pytensor.tensor.elemwise import DimShuffle

from pymc_subsample.graph.concrete import is_product


def lower_factor(cov: Variable) -> Variable:
    """Return the lower factor of a covariance, as PyMC was given it if it was."""
    while cov.owner is not None and isinstance(cov.owner.op, DimShuffle) and cov.type.ndim > 2:
        [cov] = cov.owner.inputs
    node = cov.owner
    if is_product(node) and equal_computations([node.inputs[1]], [node.inputs[0].mT]):
        return node.inputs[0]
    return pt.linalg.cholesky(cov)
