"""Where a step's variables are in theta."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from pymc.blocking import PointType

from pymc_subsample.model import TallModel
from pymc_subsample.model.binding import quoted


class ThetaLayout:
    """Places in PyMC's vector theta, shape (d,), of a model's value variables, and a step's own.

    What a chain moves, and all else calls theta, is that vector or `Coordinates` of its own.
    """

    def __init__(self, tall: TallModel, own: Sequence[Any]) -> None:
        names = {v.name for v in own}
        every = list(zip(tall.names, tall.slices, tall.shapes, strict=True))
        self.every: list[tuple[str, slice]] = [(name, part) for name, part, _ in every]
        self.own: list[tuple[str, slice, tuple[int, ...]]] = [x for x in every if x[0] in names]
        self.discrete = tall.discrete
        self._kinds = {v.name: v.type.dtype for v in own if v.name in tall.discrete}

    def places(self, names: Collection[str]) -> np.ndarray:
        """Positions of variables."""
        found = [np.r_[part] for name, part in self.every if name in names]
        return np.concatenate([np.zeros(0, dtype=int), *found])

    def continuous(self) -> np.ndarray:
        """Positions of continuous variables."""
        return self.places({name for name, _ in self.every} - set(self.discrete))

    def called(self, element: int) -> str:
        """Name an element of the step's own variables."""
        for name, part, shape in self.own:
            if part.start <= element < part.stop:
                index = ", ".join(map(str, np.unravel_index(element - part.start, shape)))
                return f"{quoted(name)}[{index}]" if shape else quoted(name)
        raise IndexError(element)

    def points(self, point: Mapping[str, np.ndarray], values: np.ndarray) -> list[PointType]:
        """Return `point` with the step's variables as in vectors of values, shape (n, d)."""
        n, columns = len(values), {}
        for name, part, shape in self.own:
            column = values[:, part].reshape(n, *shape)
            columns[name] = column.astype(self._kinds.get(name, column.dtype), copy=False)
        return [{**point, **{name: x[i, ...] for name, x in columns.items()}} for i in range(n)]
