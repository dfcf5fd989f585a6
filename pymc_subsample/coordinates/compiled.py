"""The map between coordinates in compiled code: kernels, and what they need of a model.

K, scale, d and mean of each block are functions of other parameters, compiled from the model's
graph. All else is the kernels', called block by block from a few lines that are written for the
model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pytensor.tensor as pt
from numba import types
from pytensor.graph.basic import Variable

from pymc_subsample.compiled.functions import VECTOR, Compiled, Named
from pymc_subsample.coordinates.blocks import EffectBlock
from pymc_subsample.coordinates.linking import called_in, composed, of_blocks
from pymc_subsample.expansion.loops import compile_loops
from pymc_subsample.graph.concrete import rebuild
from pymc_subsample.kernels.model import BACKWARD, FORWARD

if TYPE_CHECKING:
    from pymc_subsample.coordinates.coordinates import Coordinates

# theta, given; theta, derivatives in given, those in theta twice
_GIVEN = types.void(VECTOR, VECTOR)
_GIVEN_BACK = types.void(VECTOR, VECTOR, VECTOR, VECTOR)
# psi, theta, e, volume; psi, theta, e, derivatives in theta, those in psi; theta, psi
_POSITION = types.void(VECTOR, VECTOR, VECTOR, VECTOR)
_PULL = types.void(VECTOR, VECTOR, VECTOR, VECTOR, VECTOR)
_INVERSE = types.void(VECTOR, VECTOR)


class CompiledMap:
    """The functions of `Coordinates`, compiled when first used.

    Vectors theta are those of value variables, but for blocks, which stand component by component.
    Parents stand before children. Constants of splines stand from position `start` on.
    """

    def __init__(self, coordinates: "Coordinates", start: int) -> None:
        self._of, self._start = coordinates, start
        self._places = list(coordinates.layout.values())
        self._of_blocks: dict[tuple[str, int], tuple[str, Named]] = {}
        blocks = coordinates.blocks.values()
        self._owners = {name: block for block in blocks for name in block.orders}
        joint = [i for i, block in enumerate(blocks) if block.joint]
        self._joint, self._single = joint, [i for i in range(len(blocks)) if i not in joint]
        # By block the joint ones above it, whose part of the locations it does not see; and each
        # such set once, with the locations as seen from there.
        above: dict[str, frozenset[int]] = {}
        for i, block in enumerate(blocks):
            found = frozenset().union(*(above.get(name, frozenset()) for name in block.parents))
            above |= dict.fromkeys(block.orders, found | {i} if block.joint else found)
        self._above = [above[block.name] - {i} for i, block in enumerate(blocks)]
        self._sets = list(dict.fromkeys(found for found in self._above if found))

    def forward(self, inner: Compiled) -> Compiled:
        """Compile a model's ``forward`` over psi."""
        source, order = _FORWARD.format(size=self._of.size), self._of.order
        return composed(
            "forward", source, FORWARD, inner=inner, order=order, position=self.position
        )

    def backward(self, inner: Compiled) -> Compiled:
        """Compile a model's ``backward`` over psi."""
        source, order = _BACKWARD.format(size=self._of.size), self._of.order
        return composed(
            "backward", source, BACKWARD, inner=inner, order=order, position=self.position,
            pull=self._pull,
        )  # fmt: skip

    @cached_property
    def position(self) -> Compiled:
        """``position(psi, theta, e, volume)``."""
        lines = []
        if len(self._of.bent):
            lines.append(f"volume[0] += bend(bent, {self._start}, psi, theta)")
        if len(self._of.rows):
            lines.append("volume[0] += unfold(rows, theta)")
        lines += [f"{beta} = psi[:{self._of.size}].copy()" for beta in self._betas()]
        for i in self._joint:
            seen = ["theta", *self._betas(i)]
            lines += [
                f"given{i}(theta, given)",
                f"volume[0] += {self._call('standard', i, 'none, psi, psi, e')}",
                *(self._call("shear", i, f"psi, e, locations, -1.0, {beta}") for beta in seen),
            ]
        for i in range(len(self._places)):
            lines.append(f"given{i}(theta, given)")
            if i in self._single:
                along = f"locations, {self._beta(i)}, psi, e"
                lines.append(f"volume[0] += {self._call('standard', i, along)}")
            lines.append(f"volume[0] += {self._call('spread', i, 'e, theta')}")
        return self._compiled("position", _POSITION_SOURCE, lines, _POSITION)

    @cached_property
    def inverse(self) -> Compiled:
        """``inverse(theta, psi)``, with constants after theta."""
        lines = []
        if len(self._of.rows):
            lines.append("fold(rows, psi)")
        if len(self._of.bent):
            lines.append(f"straighten(bent, {self._start}, theta, psi)")
        # Singles see locations of which joint blocks have taken their part, but for those above.
        lines += [f"{beta} = theta[:{self._of.size}].copy()" for beta in self._betas()]
        for i in [*self._joint, *self._single]:
            along, beta = ("none", "psi") if i in self._joint else ("locations", self._beta(i))
            lines += [
                f"given{i}(theta, given)",
                self._call("gathered", i, "theta, e"),
                self._call("moved", i, f"{along}, {beta}, theta, e, psi"),
            ]
            if i in self._joint:
                others = [beta for beta in self._betas() if beta not in self._betas(i)]
                lines += [
                    self._call("shear", i, f"theta, e, locations, 1.0, {out}")
                    for out in ("psi", *others)
                ]
        return self._compiled("inverse", _INVERSE_SOURCE, lines, _INVERSE)

    @cached_property
    def _pull(self) -> Compiled:
        """Pull derivatives in theta, and the volume's, back to psi, and add them."""
        standard = "{}, {}, psi, e, bar_e, bar_given, {}, grad"
        lines = []
        for beta in self._betas():
            lines += [
                f"{beta}, bar_{beta} = psi[:{self._of.size}].copy(), np.zeros({self._of.size})"
            ]
        for i in self._joint:
            if seen := self._betas(i):
                lines.append(f"given{i}(theta, given)")
                for beta in seen:
                    lines.append(self._call("shear", i, f"psi, e, locations, -1.0, {beta}"))
        for i in reversed(range(len(self._places))):
            lines += [
                f"given{i}(theta, given)",
                self._call("spread_back", i, "e, bar, bar_given, bar_e"),
            ]
            if i in self._single:
                beta = self._beta(i)
                bar = "grad" if beta == "psi" else f"bar_{beta}"
                along = standard.format("locations", beta, bar)
                lines.append(self._call("standard_back", i, along))
            lines.append(f"given_back{i}(theta, bar_given, bar, bar)")
        for i in self._joint:
            total = " + ".join(["bar", *(f"bar_{beta}" for beta in self._betas(i))])
            lines += [
                f"given{i}(theta, given)",
                self._call("shear_back", i, f"psi, e, locations, {total}, bar_given, bar_e"),
                self._call("standard_back", i, standard.format("none", "psi", "grad")),
                f"given_back{i}(theta, bar_given, bar, bar)",
            ]
        for beta in self._betas():
            lines += ["for i in locations:", f"    grad[i] += bar_{beta}[i]"]
        for name, place in self._of.variables.items():
            if name not in self._owners:
                lines += [f"for i in range({place.start}, {place.stop}):", "    grad[i] += bar[i]"]
        if len(self._of.rows):
            lines.append("fold_back(rows, theta, grad)")
        if len(self._of.bent):
            lines.append(f"bend_back(bent, {self._start}, psi, grad)")
        return self._compiled("pull", _PULL_SOURCE, lines, _PULL)

    def _beta(self, i: int) -> str:
        """Name of the vector that holds the locations as a single block sees them."""
        above = self._above[i]
        return f"beta{self._sets.index(above)}" if above else "psi"

    def _betas(self, i: int | None = None) -> list[str]:
        """Names of all such vectors but psi, or of those of which joint block i takes its part."""
        return [f"beta{k}" for k, above in enumerate(self._sets) if i is None or i in above]

    def _call(self, kernel: str, i: int, rest: str) -> str:
        """Call a kernel for block i, in the form for blocks like it."""
        key = kernel, i
        if key not in self._of_blocks:
            table = list(self.given.values())[i].table
            self._of_blocks[key] = of_blocks(kernel, self._places[i], table)
        name, _ = self._of_blocks[key]
        return f"{name}(place{i}, at{i}, given, {rest})"

    def _compiled(
        self, name: str, source: str, lines: Sequence[str], signature: types.Type
    ) -> Compiled:
        found = list(self.given.values())
        source = source.format(
            size=self._of.size,
            longest=max(given.size for given in found),
            lines="\n    ".join(lines),
        )
        locations = self._of.locations
        environment: dict[str, object] = {
            "locations": locations, "none": locations[:0], "bent": self._of.bent,
            "rows": self._of.rows,
        }  # fmt: skip
        parts = zip(found, self._places, self._of.places.values(), strict=True)
        for i, (given, place, elements) in enumerate(parts):
            environment |= {
                f"place{i}": tuple(place),
                f"at{i}": np.ascontiguousarray(elements[:, 0]),
                f"given{i}": given.forward,
                f"given_back{i}": given.backward,
            }
        kernels = {**called_in(source), **dict(self._of_blocks.values())}
        return composed(name, source, signature, kernels, **environment)

    @cached_property
    def given(self) -> "dict[str, Given]":
        """What each block's distribution depends on."""
        tall = self._of.tall
        theta = pt.tensor("theta", dtype="float64", shape=(tall.size,))
        parts = self._split(theta)
        written = zip(tall.names, tall.value_graphs, tall.shapes, strict=True)
        known = {graph: self._value(name, parts[name], shape) for name, graph, shape in written}
        blocks = self._of.blocks.items()
        return {name: _given(block, theta, parts, known) for name, block in blocks}

    def _split(self, vector: Variable) -> dict[str, dict[int, Variable]]:
        """Return by where they start the vectors of theta: one per component of a variable."""
        parts = {}
        for name, place in self._of.variables.items():
            units = self._owners[name].units if name in self._owners else place.stop - place.start
            starts = range(place.start, max(place.stop, place.start + 1), max(units, 1))
            parts[name] = {start: vector[start : start + units] for start in starts}
        return parts

    def _value(self, name: str, parts: dict[int, Variable], shape: tuple[int, ...]) -> Variable:
        """Return a value variable in its own shape."""
        vectors = list(parts.values())
        [flat] = vectors if len(vectors) == 1 else [pt.concatenate(vectors)]
        if len(vectors) > 1:
            flat = flat[np.argsort(self._owners[name].orders[name].T.ravel())]
        return flat.reshape(shape) if len(shape) else flat[0]


@dataclass(frozen=True)
class Given:
    """K, scale, d and mean of a block as functions of theta; see `whitening`."""

    table: np.ndarray  # Integers, shape (2, entries).
    size: int  # Numbers in all.
    # ``forward(theta, given)``; ``backward(theta, bar_given, bar_theta, bar_theta)`` adds.
    forward: Compiled
    backward: Compiled


def _given(
    block: EffectBlock,
    theta: Variable,
    parts: dict[str, dict[int, Variable]],
    known: dict[Variable, Variable],
) -> Given:
    """Lay a block's entries out, and compile them and their derivatives in vectors of theta."""
    matrices = [entry for row in (*block.effect, *block.scale) for entry in row]
    entries = [*matrices, *block.offset, *block.mean]
    graphs = iter(rebuild([entry for entry in entries if entry is not None], known))
    table, size = np.full((2, len(entries)), -1), 0
    found: dict[Variable, tuple[int, bool]] = {}
    for i, entry in enumerate(entries):
        if entry is None:
            continue
        graph = next(graphs)
        if graph not in found:
            by_unit = graph.type.ndim > 0 and graph.type.shape != (1,)
            found[graph] = size, by_unit
            size += block.units if by_unit else 1
        table[:, i] = found[graph]
    outputs = {
        f"given[{start}{' + i' * by_unit}]": graph[0] if graph.type.ndim > by_unit else graph
        for graph, (start, by_unit) in found.items()
    }
    forward = compile_loops("given", [theta], outputs, ["given"], _GIVEN)
    bar_given = pt.tensor("bar_given", dtype="float64", shape=(size,))
    bar_theta = pt.tensor("bar_theta", dtype="float64", shape=theta.type.shape)
    objective = pt.zeros(())
    for graph, (start, by_unit) in zip(outputs.values(), found.values(), strict=True):
        weights = bar_given[start : start + block.units] if by_unit else bar_given[start]
        objective += (weights * graph).sum()
    above = {k: v for name in sorted(block.parents) for k, v in parts[name].items()}
    gradient = pt.grad(objective, list(above.values()), disconnected_inputs="ignore")
    sums = {
        f"out[{place} + i]": bar_theta[place : place + part.type.shape[0]] + part
        for place, part in zip(above, gradient, strict=True)
    }
    backward = compile_loops(
        "given_back", [theta, bar_given, bar_theta], sums, ["out"], _GIVEN_BACK
    )
    return Given(table, size, forward, backward)


_POSITION_SOURCE = """
def position(psi, theta, e, volume):
    given = np.empty({longest})
    for i in range({size}):
        theta[i] = psi[i]
    volume[0] = 0.0
    {lines}
"""

_INVERSE_SOURCE = """
def inverse(theta, psi):
    given, e = np.empty({longest}), np.empty({size})
    for i in range({size}):
        psi[i] = theta[i]
    {lines}
"""

_PULL_SOURCE = """
def pull(psi, theta, e, outer, grad):
    given, bar_given = np.empty({longest}), np.empty({longest})
    bar, bar_e = np.empty({size}), np.empty({size})
    for i in range({size}):
        bar[i] = outer[i]
    {lines}
"""

_FORWARD = """
def forward(psi, phi, logprior):
    moved, theta, e = np.empty({size}), np.empty({size}), np.empty({size})
    volume = np.empty(1)
    position(psi, moved, e, volume)
    for i in range({size}):
        theta[order[i]] = moved[i]
    inner(theta, phi, logprior)
    logprior[0] += volume[0]
"""

_BACKWARD = """
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
"""
