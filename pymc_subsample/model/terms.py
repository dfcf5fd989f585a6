"""Terms of the log density: which have rows, and what the others cost."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Sum

from pymc_subsample.graph.nodes import elemwise_name, is_product

# Reading so many in full, at every evaluation, costs no more than a subsample, and adds no noise.
FEW_NUMBERS = 5_000


@dataclass(frozen=True)
class TermPart:
    """Log-likelihood of an observed variable or potential, or one of several that it adds up.

    `summed`: the model adds up its elements itself.
    """

    name: str
    graph: Variable
    summed: bool = False

    @property
    def shape(self) -> tuple:
        """Lengths of its axes, as far as they are known."""
        return self.graph.type.shape


@dataclass(frozen=True)
class RowTerm:
    """A term with one log-likelihood per row along an axis; `strict`: it must be subsampled."""

    name: str
    graph: Variable
    axis: int
    n_rows: int
    strict: bool


@dataclass(frozen=True)
class Whole:
    """A term that is evaluated in full, why, and how many numbers of the data it reads."""

    name: str
    graph: Variable
    why: str
    numbers: int = 0


def parts_of(name: str, graph: Variable) -> list[TermPart]:
    """Undo the sums that a potential consists of: ``a.sum() - 2 * b.sum() + c``."""
    if graph.type.ndim:
        return [TermPart(name, graph)]
    return [TermPart(name, part, summed=part.type.ndim > 0) for part in _added(graph)]


def _added(graph: Variable) -> list[Variable]:
    """Return graphs of which `graph` is the sum, over all elements of each."""
    node = graph.owner
    if node is None or graph.type.ndim:
        return [graph]
    if isinstance(node.op, Sum):
        return [node.inputs[0]]
    while isinstance(node.op, DimShuffle) and node.inputs[0].owner is not None:
        node = node.inputs[0].owner
    if is_product(node):
        a, b = node.inputs
        if a.type.shape[:-1] == b.type.shape[1:] == (1,):  # a row times a column
            return [a.dimshuffle(1) * b.dimshuffle(0)]
        return [graph]
    match elemwise_name(graph.owner), [_added(i) for i in graph.owner.inputs]:
        case "Add", parts:
            return [x for part in parts for x in part]
        case "Sub", [a, b]:
            return [*a, *(-x for x in b)]
        case "Neg", [a]:
            return [-x for x in a]
        case "TrueDiv", [a, [b]] if not b.type.ndim:
            return [x / b for x in a]
        case "Mul", parts:
            several = [p for p in parts if len(p) > 1 or p[0].type.ndim]
            if len(several) == 1:
                result = several[0]
                for [factor] in (p for p in parts if p is not several[0]):
                    result = [x * factor for x in result]
                return result
    return [graph]


def numbers_read(
    graph: Variable, dependent: set[Variable], arrays: Mapping[Variable, np.ndarray]
) -> int:
    """Count the numbers of the data that meet parameters in a graph."""
    inputs = {i for n in toposort([graph]) if n.outputs[0] in dependent for i in n.inputs}
    data = [v for v in inputs if v not in dependent and any(a in arrays for a in ancestors([v]))]
    shapes = [getattr(v.type, "shape", ()) for v in data]
    return sum(int(np.prod(s, dtype=int)) for s in shapes if None not in s)
