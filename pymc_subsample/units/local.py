"""Draws of local variables for each recorded draw of what units share."""

import hashlib
from collections.abc import Mapping

import numpy as np

from pymc_subsample.graph.concrete import depends_on, rebuild
from pymc_subsample.graph.numpy_functions import freeze, numpy_function
from pymc_subsample.units.accuracy import Marginal
from pymc_subsample.units.drawing import Drawer
from pymc_subsample.units.elsewhere import share_elsewhere
from pymc_subsample.units.functions import by_level
from pymc_subsample.units.modes import find_modes
from pymc_subsample.units.reference import start_of

# Levels at a time, so that arrays stay within a processor's cache.
_TOGETHER = 2_000


class LocalDraws:
    """Values of local variables, as the model's value variables, given those of shared ones.

    The random numbers of a draw follow from the shared values, a chain's `key` and the draw's
    `number`: draws do not depend on how many are made at a time, made again they are the same, and
    where shared values repeat they differ.
    """

    def __init__(self, marginal: Marginal) -> None:
        self._marginal, functions = marginal, marginal.functions
        graphs = self._graphs = functions.graphs
        reading, names = graphs.reading, graphs.grouping.names
        inputs = [*functions.values.values(), *(reading.values[name] for name in names)]
        outputs = [
            reading.standard[n][0] if n in reading.standard else reading.values[n] for n in names
        ]
        frozen = freeze(outputs, depends_on(outputs, inputs), reading.arrays)
        self._values = numpy_function(inputs, rebuild(outputs, frozen))
        self._names = [reading.model.rvs_to_values[reading.model[n]].name for n in names]
        self._parts = [self._drawer(levels) for levels in _parts(graphs.grouping.levels)]

    def _drawer(self, levels: np.ndarray) -> tuple[np.ndarray, Drawer, np.ndarray]:
        functions, theta = self._marginal.functions.of(levels), self._marginal.reference
        modes = find_modes(functions, theta, start_of(functions))
        drawer = Drawer(functions, modes, (functions, theta), self._marginal.integral.steps)
        return levels, drawer, share_elsewhere(functions, theta, modes, drawer.reach)

    @property
    def excess(self) -> tuple[float, int]:
        """Share of probability that draws miss, of the worst level, and that level."""
        found = [np.maximum(d.excess, elsewhere) for _, d, elsewhere in self._parts]
        found = [np.where(d.lost, 1.0, x) for x, (_, d, _) in zip(found, self._parts, strict=True)]
        each = np.concatenate(found)
        return float(each.max()), int(np.argmax(each))

    def at(self, point: Mapping[str, np.ndarray], key: bytes, number: int) -> dict[str, np.ndarray]:
        """Return a draw given a point of value variables, by the names of value variables."""
        functions = self._marginal.functions
        theta = functions.ravel(dict(point))
        counted = theta.tobytes() + number.to_bytes(8, signed=True)
        digest = hashlib.blake2b(counted, key=key, digest_size=16).digest()
        rng = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
        u = np.concatenate([drawer.draw(theta, rng) for _, drawer, _ in self._parts])
        own = [by_level(self._graphs, name, u) for name in self._graphs.grouping.names]
        found = self._values(*functions.split(theta), *own)
        return dict(zip(self._names, found, strict=True))


def _parts(levels: int) -> list[np.ndarray]:
    return np.array_split(np.arange(levels), -(-levels // _TOGETHER))
