"""The chain's own coordinates: a smooth, invertible change of a model's value variables.

PyMC's vector of value variables is theta. The chain moves in psi, with ``theta = T(psi)`` and
log |det dT / dpsi| part of the prior. T whitens the effects that are found in the model's graph,
given the parameters on which their distribution depends; see `whitening`. All other elements of
psi are those of theta.

T depends on numbers that are fixed at set-up, the information and the score of each effect. They
follow the d elements of psi in every vector that the chain passes on, so that compiled functions
find them and a saved state holds them.
"""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import pytensor.tensor as pt
from numba import types
from pytensor.graph.basic import Variable

from pymc_subsample.compile import VECTOR, Compiled, compile_source
from pymc_subsample.control_variates.loops import compile_loops
from pymc_subsample.coordinates.blocks import Block, find_blocks
from pymc_subsample.coordinates.whitening import Entry, Matrix, Whitening, product, total, triangle
from pymc_subsample.kernels.model import BACKWARD, FORWARD
from pymc_subsample.likelihood import TallModel
from pymc_subsample.likelihood.graph import numpy_function, rebuild

_INVERSE = types.void(VECTOR, VECTOR)


def find_coordinates(tall: TallModel, names: Sequence[str]) -> "Coordinates | None":
    """Return coordinates that whiten the effects among variables `names`; None without any."""
    blocks = find_blocks(tall, names)
    return Coordinates(tall, blocks) if blocks else None


class Coordinates:
    """The map T, compiled when first used.

    Parameters
    ----------
    tall : TallModel
        The model.
    blocks : list of Block
        Its effects, parents first.

    Attributes
    ----------
    size : int
        d, elements of theta and of psi.
    length : int
        d and the number of constants.
    places : dict of str to slice
        Elements of each block in psi; there they stand component by component.
    """

    def __init__(self, tall: TallModel, blocks: Sequence[Block]):
        self.blocks = {block.name: block for block in blocks}
        self.size = tall.size
        self._tall = tall
        self._variables = dict(
            zip(tall.names, zip(tall.slices, tall.shapes, strict=True), strict=True)
        )
        self.places = {b.name: self._variables[b.name][0] for b in blocks}
        # Element of theta at each position of the vectors that the compiled graphs work on.
        self.order = np.arange(tall.size)
        start = tall.size
        self._constants: dict[str, slice] = {}
        for block in blocks:
            place = self.places[block.name]
            self.order[place] = place.start + block.order.T.ravel()
            width = len(triangle(block.components)) + block.components
            self._constants[block.name] = slice(start, start + width * block.units)
            start += width * block.units
        self.length = start

    @property
    def scales(self) -> np.ndarray:
        """Elements of theta on which scales of effects depend."""
        names = frozenset().union(*(block.scales for block in self.blocks.values()))
        return np.concatenate([np.r_[self._variables[name][0]] for name in names])

    # Constants of the map

    def constants(self, psi: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return information, shape (k(k+1)/2, J), and score, (k, J), as views of psi's tail."""
        block = self.blocks[name]
        k = block.components
        table = psi[self._constants[name]].reshape(-1, block.units)
        return table[:-k], table[-k:]

    def centring(self, psi: np.ndarray) -> dict[str, np.ndarray]:
        """Weight of the centred form at psi, from 0 to 1: shape (J,), or (k, J).

        The share of an effect's prior variance that the data take away.
        """
        theta, _ = self.to_theta(psi)
        found = {}
        for name, block in self.blocks.items():
            k = block.components
            table, _ = self.constants(psi, name)
            information = np.empty((block.units, k, k))
            for (a, b), row in zip(triangle(k), table, strict=True):
                information[:, a, b] = information[:, b, a] = row
            effect, _ = self.strengths(theta, name)
            precision = np.eye(k) + effect.transpose(0, 2, 1) @ information @ effect
            left = np.linalg.inv(precision)[:, range(k), range(k)].T
            found[name] = np.clip(1 - (left[0] if k == 1 else left), 0.0, 1.0)
        return found

    # Points

    def to_theta(self, psi: np.ndarray) -> tuple[np.ndarray, float]:
        """Return theta, shape (d,), and log |det dtheta/dpsi| at psi, shape (length,)."""
        theta, volume = np.empty(self.size), np.empty(1)
        self._position(psi, theta, volume)
        out = np.empty(self.size)
        out[self.order] = theta
        return out, float(volume[0])

    def from_theta(self, theta: np.ndarray, psi: np.ndarray) -> np.ndarray:
        """Return psi for theta, shape (d,), with the constants of another psi, shape (length,)."""
        found = psi.copy()
        found[: self.size] = theta[self.order]
        moved = np.empty(self.size)
        self._inverse(found, moved)
        found[: self.size] = moved
        return found

    def strengths(self, theta: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return effect, shape (J, k, k), and offset, shape (J, k), of a block at theta."""
        return self._numbers[name](theta)

    @cached_property
    def _numbers(self) -> dict[str, Callable]:
        def evaluator(block: Block) -> Callable:
            k = block.components
            graphs = [
                pt.zeros(()) if g is None else g
                for row in (*block.effect, block.offset)
                for g in row
            ]
            function = numpy_function([self._tall.theta], graphs)

            def evaluate(theta):
                values = [np.broadcast_to(v, block.units) for v in function(theta)]
                effect = np.array(values[: k * k]).reshape(k, k, block.units)
                return np.moveaxis(effect, 2, 0), np.array(values[k * k :]).T

            return evaluate

        return {name: evaluator(block) for name, block in self.blocks.items()}

    # Compiled functions

    def composed(self, forward: Compiled, backward: Compiled) -> dict[str, Callable[[], Compiled]]:
        """How to compile a model's parameter functions over psi in place of theta."""
        names = {"np": np, "order": self.order, "position": self._position.function}
        shared = [self.order.tobytes().hex(), str(self.size), self._position.key]

        def compiled(name, source, environment, keys, signature):
            known = None if None in keys else "|".join(keys)
            return compile_source(name, source, names | environment, signature, known)

        def composed_forward():
            return compiled(
                "forward", _FORWARD.format(size=self.size), {"inner": forward.function},
                [*shared, forward.key], FORWARD,
            )  # fmt: skip

        def composed_backward():
            pull = self._pull
            return compiled(
                "backward", _BACKWARD.format(size=self.size),
                {"inner": backward.function, "pull": pull.function},
                [*shared, backward.key, pull.key], BACKWARD,
            )  # fmt: skip

        return {"forward": composed_forward, "backward": composed_backward}

    @cached_property
    def _position(self) -> Compiled:
        psi, _, theta, volume = self._graph
        outputs = self._laid_out("theta", theta) | {"volume[0]": volume}
        return compile_loops("position", [psi], outputs, ["theta", "volume"], FORWARD)

    @cached_property
    def _pull(self) -> Compiled:
        psi, parts, theta, objective = self._graph
        outer = pt.tensor("outer", dtype="float64", shape=(self.size,))
        weights = self._split(outer)
        for name, vectors in theta.items():
            objective += sum((w * x).sum() for w, x in zip(weights[name], vectors, strict=True))
        moved = [vector for vectors in parts.values() for vector in vectors]
        found = iter(pt.grad(objective, moved, disconnected_inputs="ignore"))
        gradient = {name: [next(found) for _ in vectors] for name, vectors in parts.items()}
        outputs = self._laid_out("grad", gradient)
        return compile_loops("pull", [psi, outer], outputs, ["grad"], BACKWARD)

    @cached_property
    def _inverse(self) -> Compiled:
        theta = pt.tensor("theta", dtype="float64", shape=(self.length,))
        parts = self._split(theta)
        known = {name: self._value(name, vectors) for name, vectors in parts.items()}
        outputs = dict(parts)
        for block in self.blocks.values():
            mean, scale = self._given(block.mean, known), self._given_matrix(block.scale, known)
            e = _solve(scale, [x - m for x, m in zip(parts[block.name], mean, strict=True)])
            outputs[block.name] = self._whitening(block, known, theta).moved(e)
        return compile_loops("inverse", [theta], self._laid_out("psi", outputs), ["psi"], _INVERSE)

    @cached_property
    def _graph(
        self,
    ) -> tuple[Variable, dict[str, list[Variable]], dict[str, list[Variable]], Variable]:
        """psi, its vectors and those of theta by variable, and log |det|."""
        psi = pt.tensor("psi", dtype="float64", shape=(self.length,))
        parts = self._split(psi)
        theta = {name: vectors for name, vectors in parts.items() if name not in self.places}
        known = {name: self._value(name, vectors) for name, vectors in theta.items()}
        volume = pt.zeros(())
        for block in self.blocks.values():
            whitening = self._whitening(block, known, psi)
            e = whitening.standard(parts[block.name])
            mean, scale = self._given(block.mean, known), self._given_matrix(block.scale, known)
            theta[block.name] = [
                total([m, *map(product, row, e)]) for m, row in zip(mean, scale, strict=True)
            ]
            known[block.name] = self._value(block.name, theta[block.name])
            logs = [*whitening.log_volume(), *(pt.log(scale[a][a]) for a in range(len(e)))]
            volume += sum(log.sum() if log.type.ndim else block.units * log for log in logs)
        return psi, parts, theta, volume

    def _split(self, vector: Variable) -> dict[str, list[Variable]]:
        """Return the vectors that theta or psi is made of: one per component of a variable."""
        parts = {}
        for name, (place, _) in self._variables.items():
            units = self.blocks[name].units if name in self.blocks else place.stop - place.start
            starts = range(place.start, place.stop, max(units, 1))
            parts[name] = [vector[start : start + units] for start in starts]
        return parts

    def _value(self, name: str, vectors: list[Variable]) -> Variable:
        """Return a value variable in its own shape."""
        _, shape = self._variables[name]
        [flat] = vectors if len(vectors) == 1 else [pt.concatenate(vectors)]
        if len(vectors) > 1:
            flat = flat[np.argsort(self.blocks[name].order.T.ravel())]
        return flat.reshape(shape) if len(shape) else flat[0]

    def _given(self, graphs: Sequence[Variable], known: dict[str, Variable]) -> list[Variable]:
        """Put values in place of the value variables of graphs over theta."""
        parts = zip(self._tall.names, self._tall.value_graphs, strict=True)
        return rebuild(list(graphs), {part: known[name] for name, part in parts if name in known})

    def _given_matrix(self, matrix: Matrix, known: dict[str, Variable]) -> list[list[Entry]]:
        new = iter(self._given([g for row in matrix for g in row if g is not None], known))
        return [[None if g is None else next(new) for g in row] for row in matrix]

    def _whitening(self, block: Block, known: dict[str, Variable], vector: Variable) -> Whitening:
        """Return a block's whitening, with the constants that `vector` ends with."""
        k, units, start = block.components, block.units, self._constants[block.name].start
        places = triangle(k)
        rows = [vector[start + i * units : start + (i + 1) * units] for i in range(len(places) + k)]
        information: list[list[Entry]] = [[None] * k for _ in range(k)]
        for (a, b), row in zip(places, rows[:-k], strict=True):
            information[a][b] = information[b][a] = row
        effect, offset = self._given_matrix(block.effect, known), self._given(block.offset, known)
        return Whitening(effect, offset, information, rows[-k:])

    def _laid_out(self, buffer: str, parts: dict[str, list[Variable]]) -> dict[str, Variable]:
        """Where each vector goes in a buffer."""
        outputs = {}
        for name, (place, _) in self._variables.items():
            vectors = parts[name]
            units = (place.stop - place.start) // len(vectors)
            for a, vector in enumerate(vectors):
                outputs[f"{buffer}[{place.start + a * units} + i]"] = vector
        return outputs


def _solve(matrix, x: list[Variable]) -> list[Variable]:
    """Solve with a lower-triangular matrix."""
    found: list[Variable] = []
    for a, left in enumerate(x):
        for b in range(a):
            if matrix[a][b] is not None:
                left = left - matrix[a][b] * found[b]
        found.append(left / matrix[a][a])
    return found


_FORWARD = """
def forward(psi, phi, logprior):
    moved, theta, volume = np.empty({size}), np.empty({size}), np.empty(1)
    position(psi, moved, volume)
    for i in range({size}):
        theta[order[i]] = moved[i]
    inner(theta, phi, logprior)
    logprior[0] += volume[0]
"""

_BACKWARD = """
def backward(psi, grad_phi, grad):
    moved, theta, volume = np.empty({size}), np.empty({size}), np.empty(1)
    outer = np.empty({size})
    position(psi, moved, volume)
    for i in range({size}):
        theta[order[i]] = moved[i]
    inner(theta, grad_phi, outer)
    for i in range({size}):
        moved[i] = outer[order[i]]
    for i in range(psi.shape[0]):
        grad[i] = 0.0
    pull(psi, moved, grad)
"""
