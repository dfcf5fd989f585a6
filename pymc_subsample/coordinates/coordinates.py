"""The chain's own coordinates: a smooth, invertible change of a model's value variables.

PyMC's vector of value variables is theta. The chain moves in psi, with ``theta = T(psi)`` and
log |det dT / dpsi| part of the prior. T whitens the effects that are found in the model's graph,
given the parameters on which their distribution depends; see `whitening`. All other elements of
psi are those of theta.

Locations, on which no scale depends, are moved along: the effects u of few groups, such as three
airports, and an intercept b add up to what rows see, so that b alone is only as well known as the
groups vary, a funnel in their scale. The chain moves ``b + A u``, with A the regression of -b on u
given the rows, which is known equally well whatever the scale.

Scales are moved by the quantiles of their distributions; see `splines`.

T depends on numbers that are fixed at set-up: the information and the score of each effect, A and
the splines. They follow the d elements of psi in every vector that the chain passes on, so that
compiled functions find them and a saved state holds them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytensor.tensor as pt
from numba import types
from pytensor.graph.basic import Variable

from pymc_subsample.compile import VECTOR, Compiled, compile_source
from pymc_subsample.control_variates.loops import compile_loops
from pymc_subsample.coordinates.blocks import Block, find_blocks, joined, triangle
from pymc_subsample.kernels import splines, whitening
from pymc_subsample.kernels.model import BACKWARD, FORWARD
from pymc_subsample.likelihood import TallModel
from pymc_subsample.likelihood.graph import rebuild

# theta, given; theta, derivatives in given, those in theta twice
_GIVEN = types.void(VECTOR, VECTOR)
_GIVEN_BACK = types.void(VECTOR, VECTOR, VECTOR, VECTOR)
# psi, theta, e, volume; psi, theta, e, derivatives in theta, those in psi; theta, psi
_POSITION = types.void(VECTOR, VECTOR, VECTOR, VECTOR)
_PULL = types.void(VECTOR, VECTOR, VECTOR, VECTOR, VECTOR)
_INVERSE = types.void(VECTOR, VECTOR)

# So many effects are few: groups of one scale, or effects that each have their own and, as the
# coefficients of a smooth function, may be seen by every row. Time grows with the third power.
_FEW, _FEW_UNLIKE = 12, 32
# Elements that may move with them, and scales that are moved by quantiles.
_MOST_LOCATIONS, _MOST_BENT = 200, 200


def find_coordinates(tall: TallModel, names: Sequence[str]) -> "Coordinates | None":
    """Return coordinates that whiten the effects among variables `names`; None without any."""
    blocks = find_blocks(tall, names)
    if not blocks:
        return None
    moved = frozenset().union({block.name for block in blocks}, *(b.scales for b in blocks))
    locations = [name for name in names if name not in moved and name not in tall.discrete]
    sizes = dict(zip(tall.names, tall.slices, strict=True))
    if sum(sizes[name].stop - sizes[name].start for name in locations) > _MOST_LOCATIONS:
        locations = []
    known = {*locations, *moved} - {block.name for block in blocks}

    def is_joint(block: Block) -> bool:
        most = _FEW_UNLIKE if block.unlike else _FEW
        return block.units * block.components <= most and block.parents <= known

    blocks = [joined(block) if is_joint(block) else block for block in blocks]
    return Coordinates(tall, blocks, locations if any(b.joint for b in blocks) else [])


class Coordinates:
    """The map T, compiled when first used.

    Parameters
    ----------
    tall : TallModel
        The model.
    blocks : list of Block
        Its effects, parents first.
    locations : sequence of str
        Variables that joint effects move along.

    Attributes
    ----------
    size : int
        d, elements of theta and of psi.
    length : int
        d and the number of constants.
    places : dict of str to slice
        Elements of each block in psi; there they stand component by component.
    locations, scales, bent : ndarray of int
        Elements of the locations, those on which scales of effects depend, and those of them that
        are no effects.
    """

    def __init__(self, tall: TallModel, blocks: Sequence[Block], locations: Sequence[str] = ()):
        self.blocks = {block.name: block for block in blocks}
        self.size = tall.size
        self._tall = tall
        self._variables = dict(
            zip(tall.names, zip(tall.slices, tall.shapes, strict=True), strict=True)
        )
        self.places = {b.name: self._variables[b.name][0] for b in blocks}
        self._locations = {name: self._variables[name][0] for name in locations}
        elements = [np.r_[place] for place in self._locations.values()]
        self.locations = np.concatenate([np.zeros(0, dtype=int), *elements])
        # Element of theta at each position of the vectors that the compiled graphs work on.
        self.order = np.arange(tall.size)
        start = tall.size
        self._constants: dict[str, slice] = {}
        self._slants: dict[str, slice] = {}
        for block in blocks:
            place = self.places[block.name]
            self.order[place] = place.start + block.order.T.ravel()
            width = len(triangle(block.components)) + block.components
            self._constants[block.name] = slice(start, start + width * block.units)
            start += width * block.units
            if block.joint:
                self._slants[block.name] = slice(
                    start, start + block.components * len(self.locations)
                )
                start = self._slants[block.name].stop
        names = frozenset().union(*(block.scales for block in blocks))
        places = {name: self._variables[name][0] for name in tall.names if name in names}
        self.scales = np.concatenate([np.r_[place] for place in places.values()])
        moved = [np.r_[place] for name, place in places.items() if name not in self.blocks]
        self.bent = np.concatenate([np.zeros(0, dtype=int), *moved])
        if len(self.bent) > _MOST_BENT:
            self.bent = self.bent[:0]
        self._splines = slice(start, start + splines.WIDTH * len(self.bent))
        self.length = self._splines.stop

    # Constants of the map

    def constants(self, psi: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return information, shape (k(k+1)/2, J), and score, (k, J), as views of psi's tail."""
        block = self.blocks[name]
        k = block.components
        table = psi[self._constants[name]].reshape(-1, block.units)
        return table[:-k], table[-k:]

    def slant(self, psi: np.ndarray, name: str) -> np.ndarray:
        """Return A of a joint block, shape (k, locations), as a view of psi's tail."""
        return psi[self._slants[name]].reshape(self.blocks[name].components, -1)

    def splines(self, psi: np.ndarray) -> np.ndarray:
        """Return the constants of `kernels.splines`, a line for each of `bent`, as a view."""
        return psi[self._splines].reshape(len(self.bent), splines.WIDTH)

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
            left = left[0] if k == 1 else left.ravel() if block.joint else left
            found[name] = np.clip(1 - left, 0.0, 1.0)
        return found

    # Points

    def to_theta(self, psi: np.ndarray) -> tuple[np.ndarray, float]:
        """Return theta, shape (d,), and log |det dtheta/dpsi| at psi, shape (length,)."""
        theta, e, volume = np.empty(self.size), np.empty(self.size), np.empty(1)
        self._position(psi, theta, e, volume)
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
        block, given = self.blocks[name], self._given[name]
        k, numbers = block.components, np.empty(given.size)
        given.forward(np.ascontiguousarray(theta[self.order]), numbers)
        starts, steps = given.table
        place = starts[:, None] + steps[:, None] * np.arange(block.units)
        values = np.where(starts[:, None] < 0, 0.0, numbers[np.maximum(place, 0)])
        effect = np.moveaxis(values[: k * k].reshape(k, k, block.units), 2, 0)
        return effect, values[2 * k * k : 2 * k * k + k].T

    # Compiled functions

    def composed(self, forward: Compiled, backward: Compiled) -> dict[str, Callable[[], Compiled]]:
        """How to compile a model's parameter functions over psi in place of theta."""

        def written(name, inner, signature, **others):
            environment = {"inner": inner, "order": self.order, **others}
            source = _WRITTEN[name].format(size=self.size)
            return lambda: _compose(name, source, environment, signature)

        def composed_forward():
            return written("forward", forward, FORWARD, position=self._position)()

        def composed_backward():
            return written(
                "backward", backward, BACKWARD, position=self._position, pull=self._pull
            )()

        return {"forward": composed_forward, "backward": composed_backward}

    @cached_property
    def _given(self) -> "dict[str, _Given]":
        """What each block's distribution depends on, compiled."""
        theta = pt.tensor("theta", dtype="float64", shape=(self.size,))
        parts = self._split(theta)
        written = zip(self._tall.names, self._tall.value_graphs, strict=True)
        known = {graph: self._value(name, parts[name]) for name, graph in written}

        def compiled(block: Block) -> _Given:
            matrices = [entry for row in (*block.effect, *block.scale) for entry in row]
            entries = [*matrices, *block.offset, *block.mean]
            new = iter(rebuild([g for g in entries if g is not None], known))
            graphs = [None if g is None else next(new) for g in entries]
            return _Given.compiled(block, graphs, theta, self._above(block, parts))

        return {name: compiled(block) for name, block in self.blocks.items()}

    def _above(self, block: Block, parts: dict[str, list[Variable]]) -> dict[int, Variable]:
        """Vectors of theta on which a block's distribution depends, by where they start."""
        found = {}
        for name in sorted(block.parents):
            start = self._variables[name][0].start
            for vector in parts[name]:
                found[start] = vector
                start += vector.type.shape[0]
        return found

    @cached_property
    def _calls(self) -> list["_Calls"]:
        found = []
        for i, (name, block) in enumerate(self.blocks.items()):
            at = f"{block.components}, {block.units}, {block.width}, {self.places[name].start}"
            slant = self._slants[name].start if block.joint else 0
            found.append(_Calls(i, at, self._constants[name].start, slant, block))
        return found

    @cached_property
    def _environment(self) -> dict[str, object]:
        """What the compiled functions call."""
        found: dict[str, object] = {"np": np, "locations": self.locations, "bent": self.bent}
        for i, name in enumerate(self.blocks):
            given = self._given[name]
            found |= {
                f"table{i}": given.table,
                f"given{i}": given.forward,
                f"given_back{i}": given.backward,
            }
        return found

    def _compiled(self, name: str, lines: Sequence[str], signature: types.Type, **others):
        longest = max(given.size for given in self._given.values())
        source = _FRAMES[name].format(
            size=self.size,
            longest=longest,
            splines=self._splines.start,
            lines="\n    ".join(lines),
        )
        return _compose(name, source, self._environment | others, signature)

    @cached_property
    def _position(self) -> Compiled:
        lines = []
        for c in self._calls:
            if c.block.joint:
                lines += [*c.standard(), c.shear("psi", "theta", -1.0)]
        for c in self._calls:
            lines += [c.given()] if c.block.joint else c.standard()
            lines.append(c.spread())
        return self._compiled("position", lines, _POSITION)

    @cached_property
    def _pull(self) -> Compiled:
        lines = []
        for c in reversed(self._calls):
            lines += [c.given(), *c.spread_back()]
            lines += [] if c.block.joint else c.standard_back()
            lines.append(c.given_back())
        for c in self._calls:
            if c.block.joint:
                lines += [c.given(), *c.shear_back(), *c.standard_back(), c.given_back()]
        lines += [
            line
            for name, (place, _) in self._variables.items()
            if name not in self.blocks
            for line in (f"for i in range({place.start}, {place.stop}):", "    grad[i] = bar[i]")
        ]
        return self._compiled("pull", lines, _PULL)

    @cached_property
    def _inverse(self) -> Compiled:
        lines = []
        for c in self._calls:
            lines += [c.given(), *c.moved()]
            if c.block.joint:
                lines.append(c.shear("theta", "psi", 1.0))
        return self._compiled("inverse", lines, _INVERSE)

    def _split(self, vector: Variable) -> dict[str, list[Variable]]:
        """Return the vectors that theta or psi is made of: one per component of a variable."""
        parts = {}
        for name, (place, _) in self._variables.items():
            units = self.blocks[name].units if name in self.blocks else place.stop - place.start
            starts = range(place.start, max(place.stop, place.start + 1), max(units, 1))
            parts[name] = [vector[start : start + units] for start in starts]
        return parts

    def _value(self, name: str, vectors: list[Variable]) -> Variable:
        """Return a value variable in its own shape."""
        _, shape = self._variables[name]
        [flat] = vectors if len(vectors) == 1 else [pt.concatenate(vectors)]
        if len(vectors) > 1:
            flat = flat[np.argsort(self.blocks[name].order.T.ravel())]
        return flat.reshape(shape) if len(shape) else flat[0]


@dataclass(frozen=True)
class _Given:
    """K, scale, d and mean of a block as functions of theta; see `kernels.whitening`.

    Attributes
    ----------
    table : ndarray of int, shape (2, entries)
    size : int
        Numbers in all.
    forward, backward : Compiled
        ``forward(theta, given)``; ``backward(theta, bar_given, bar_theta, bar_theta)`` adds.
    """

    table: np.ndarray
    size: int
    forward: Compiled
    backward: Compiled

    @classmethod
    def compiled(
        cls,
        block: Block,
        graphs: Sequence[Variable | None],
        theta: Variable,
        above: dict[int, Variable],
    ) -> "_Given":
        """Lay the entries out, and compile them and their derivatives in vectors `above`."""
        table = np.full((2, len(graphs)), -1)
        outputs, start = {}, 0
        seen: dict[Variable, int] = {}
        for i, graph in enumerate(graphs):
            if graph is None:
                continue
            if graph in seen:
                table[:, i] = table[:, seen[graph]]
                continue
            seen[graph] = i
            by_unit = graph.type.ndim > 0 and graph.type.shape != (1,)
            table[:, i] = start, by_unit
            outputs[f"given[{start}{' + i' * by_unit}]"] = (
                graph if by_unit or not graph.type.ndim else graph[0]
            )
            start += block.units if by_unit else 1
        forward = compile_loops("given", [theta], outputs, ["given"], _GIVEN)
        bar_given = pt.tensor("bar_given", dtype="float64", shape=(start,))
        bar_theta = pt.tensor("bar_theta", dtype="float64", shape=theta.type.shape)
        objective, at = pt.zeros(()), 0
        for graph in outputs.values():
            size = graph.type.shape[0] if graph.type.ndim else 1
            weights = bar_given[at : at + size] if graph.type.ndim else bar_given[at]
            objective += (weights * graph).sum()
            at += size
        moved = list(above.values())
        gradient = pt.grad(objective, moved, disconnected_inputs="ignore")
        sums = {
            f"out[{place} + i]": bar_theta[place : place + part.type.shape[0]] + part
            for place, part in zip(above, gradient, strict=True)
        }
        backward = compile_loops(
            "given_back", [theta, bar_given, bar_theta], sums, ["out"], _GIVEN_BACK
        )
        return cls(table, start, forward, backward)


@dataclass(frozen=True)
class _Calls:
    """Lines of code that move block i; see `kernels.whitening`."""

    i: int
    at: str
    start: int
    slant: int
    block: Block

    def given(self) -> str:
        return f"given{self.i}(theta, given)"

    def standard(self) -> list[str]:
        return [self.given(), f"volume[0] += standard({self._whole}, psi, e)"]

    def spread(self) -> str:
        return f"volume[0] += spread({self._outer}, e, theta)"

    def moved(self) -> list[str]:
        return [f"gathered({self._outer}, theta, e)", f"moved({self._whole}, theta, e, psi)"]

    def shear(self, constants: str, out: str, sign: float) -> str:
        return f"shear({self._joint}, {constants}, e, locations, {sign}, {out})"

    def standard_back(self) -> list[str]:
        return [f"standard_back({self._whole}, psi, e, bar_e, bar_given, grad)"]

    def spread_back(self) -> list[str]:
        clear = ["for i in range(bar_given.shape[0]):", "    bar_given[i] = 0.0"]
        return [*clear, f"spread_back({self._outer}, e, bar, bar_given, bar_e)"]

    def shear_back(self) -> list[str]:
        clear = ["for i in range(bar_given.shape[0]):", "    bar_given[i] = 0.0"]
        return [*clear, f"shear_back({self._joint}, psi, e, locations, bar, bar_given, bar_e)"]

    def given_back(self) -> str:
        return f"given_back{self.i}(theta, bar_given, bar, bar)"

    @property
    def _outer(self) -> str:
        return f"{self.at}, table{self.i}, given"

    @property
    def _whole(self) -> str:
        return f"{self.at}, {self.start}, table{self.i}, given"

    @property
    def _joint(self) -> str:
        k, _, width, at = self.at.split(", ")
        return f"{k}, {width}, {at}, {self.slant}, table{self.i}, given"


def _compose(name, source: str, environment: Mapping[str, object], signature) -> Compiled:
    """Compile source that calls the kernels and other compiled functions."""
    keys: list[str | None] = []
    names: dict[str, object] = {"np": np}
    names |= {k: getattr(room, k) for room, kernels in _KERNELS.items() for k in kernels}
    for key, value in environment.items():
        if isinstance(value, Compiled):
            names[key] = value.function
            keys.append(value.key)
        else:
            names[key] = value
            if isinstance(value, np.ndarray):
                keys.append(f"{value.shape}{value.tobytes().hex()}")
    known = None if None in keys else "|".join(map(str, keys))
    return compile_source(name, source, names, signature, known)


_KERNELS = {
    splines: ("bend", "bend_back", "straighten"),
    whitening: (
        "standard", "moved", "standard_back", "spread", "gathered", "spread_back", "shear",
        "shear_back",
    ),
}  # fmt: skip

_FRAMES = {
    "position": """
def position(psi, theta, e, volume):
    given = np.empty({longest})
    for i in range({size}):
        theta[i] = psi[i]
    volume[0] = bend(bent, {splines}, psi, theta)
    {lines}
""",
    "inverse": """
def inverse(theta, psi):
    given, e = np.empty({longest}), np.empty({size})
    for i in range({size}):
        psi[i] = theta[i]
    straighten(bent, {splines}, theta, psi)
    {lines}
""",
    "pull": """
def pull(psi, theta, e, outer, grad):
    given, bar_given = np.empty({longest}), np.empty({longest})
    bar, bar_e = np.empty({size}), np.empty({size})
    for i in range({size}):
        bar[i] = outer[i]
    {lines}
    bend_back(bent, {splines}, psi, grad)
""",
}

_WRITTEN = {
    "forward": """
def forward(psi, phi, logprior):
    moved, theta, e = np.empty({size}), np.empty({size}), np.empty({size})
    volume = np.empty(1)
    position(psi, moved, e, volume)
    for i in range({size}):
        theta[order[i]] = moved[i]
    inner(theta, phi, logprior)
    logprior[0] += volume[0]
""",
    "backward": """
def backward(psi, grad_phi, grad):
    moved, theta, e = np.empty({size}), np.empty({size}), np.empty({size})
    volume, outer = np.empty(1), np.empty({size})
    position(psi, moved, e, volume)
    for i in range({size}):
        theta[order[i]] = moved[i]
    inner(theta, grad_phi, outer)
    for i in range({size}):
        theta[i] = outer[order[i]]
    for i in range(psi.shape[0]):
        grad[i] = 0.0
    pull(psi, moved, e, theta, grad)
""",
}
