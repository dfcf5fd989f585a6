"""Tables of sets of rows, which are filled up to as many rows each."""

from dataclasses import dataclass

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable


@dataclass
class SetLayout:
    """Where elements of some sets stand: place l of set j has element ``at[j, l]``."""

    at: np.ndarray  # Shape (sets, length).
    counts: np.ndarray  # Whether it is one, and does not fill up.

    def of(self, graph: Variable, axis: int, nothing: float | np.bool) -> Variable:
        """Put `nothing` in the place of what fills up, along an axis after that of sets."""
        if self.counts.all():
            return graph
        others = [i for i in range(graph.type.ndim) if i not in (0, axis)]
        counts = constant("elements", np.expand_dims(self.counts, tuple(others)))
        return pt.switch(counts, graph, nothing)


def constant(name: str, value: np.ndarray) -> Variable:
    """Return data as a variable that is not hashed, as constants of many rows would be."""
    return pytensor.shared(value, name=name, shape=value.shape)


class SetTable:
    """Sets that are filled up to as many rows, and what of them is made already."""

    def __init__(self, sets: np.ndarray) -> None:
        self.sets = sets
        self.layouts: dict[bytes, SetLayout] = {}
        self.pieces: dict[tuple[Variable, int], Variable] = {}
