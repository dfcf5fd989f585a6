"""The chain's own coordinates: a smooth, invertible change of a model's value variables.

PyMC's vector of value variables is theta. The chain moves in psi, with ``theta = T(psi)`` and
log |det dT / dpsi| part of the prior. T whitens the effects that are found in the model's graph,
given the parameters on which their distribution depends; see `whitening`. All other elements of
psi are those of theta.

Locations, on which no scale depends, are moved along: the effects u of few groups, such as three
airports, and an intercept b add up to what rows see, so that b alone is only as well known as the
groups vary, a funnel in their scale. The chain moves ``b + A u``, with A the regression of -b on u
given the rows, which is known equally well whatever the scale. The effects of many groups move
along with b instead, which these tell well.

Scales are moved by the quantiles of their distributions; see `scale_splines`. Cholesky factors of
covariances are standard deviations and partial correlations to it; see `cholesky_rows`.

T depends on numbers that are fixed at set-up: the information and the score of each effect, A, D
and the splines. They follow the d elements of psi in every vector that the chain passes on, so that
compiled functions find them and a saved state holds them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np

from pymc_subsample.compiled.functions import Compiled
from pymc_subsample.coordinates import scale_splines
from pymc_subsample.coordinates.blocks import (
    EffectBlock,
    factor_rows,
    find_blocks,
    joined,
    merged,
    together,
)
from pymc_subsample.coordinates.compiled import CompiledMap
from pymc_subsample.coordinates.linking import BlockPlace
from pymc_subsample.coordinates.nesting import nested
from pymc_subsample.coordinates.qr import QRCoordinates
from pymc_subsample.model import TallModel

# So many effects are few; more are where groups are half as many, or where effects have scales of
# their own and, as the coefficients of a smooth function, may be seen by every row. Time grows with
# the third power.
_FEW, _MOST = 12, 32
# Elements that may move with them, and scales that are moved by quantiles. A choice: time grows
# with the third power of either.
_MOST_LOCATIONS, _MOST_BENT = 200, 200


def find_coordinates(
    tall: TallModel, names: Sequence[str], nesting: Sequence[np.ndarray] = ()
) -> "Coordinates | None":
    """Return coordinates that whiten the effects among variables `names`; None without any.

    `nesting` is what `find_nesting` returns.
    """
    blocks = find_blocks(tall, names)
    if not blocks:
        return None
    effects = {name for block in blocks for name in block.orders}
    moved = effects.union(*(block.scales for block in blocks))
    locations = [name for name in names if name not in moved and name not in tall.discrete]
    sizes = dict(zip(tall.names, tall.slices, strict=True))
    if sum(sizes[name].stop - sizes[name].start for name in locations) > _MOST_LOCATIONS:
        locations = []
    known = {*locations, *moved} - effects

    def is_joint(block: EffectBlock) -> bool:
        most = _MOST if block.unlike or block.units <= _FEW // 2 else _FEW
        return block.units * block.components <= most and block.parents <= known

    blocks = [merged(group) for group in together(blocks)]
    if nesting:
        blocks = nested(tall, blocks, nesting)
    blocks = [joined(block) if is_joint(block) else block for block in blocks]
    return Coordinates(tall, blocks, locations)


class Coordinates:
    """The map T of a model's effects, parents first, compiled when first used.

    `locations` names variables that move the rows as effects do, and on which no scale depends.

    Attributes
    ----------
    variables : dict of str to slice
        Places of the model's variables in theta.
    size, length : int
        d, elements of theta and of psi, and these with the constants.
    places : dict of str to ndarray of int, shape (k, J)
        Elements of each block in psi.
    depth : dict of str to int
        Of each block, how many generations of blocks are above it, itself included.
    ancestors : dict of str to frozenset of str
        By variable of a block those on which its distribution depends, and those on which these do.
    locations, scales, bent : ndarray of int
        Elements of the locations, those on which scales of effects depend, and those of them that
        are no effects.
    rows : ndarray of int, shape (rows, 2)
        Rows of Cholesky factors among these; see `cholesky_rows`.
    """

    linear: Literal[False] = False
    # In which the map ends where columns are taken apart, in the place of theta.
    qr: QRCoordinates | None = None

    def __init__(
        self, tall: TallModel, blocks: Sequence[EffectBlock], locations: Sequence[str] = ()
    ) -> None:
        above: dict[str, int] = {}
        self.ancestors: dict[str, frozenset[str]] = {}
        for block in blocks:
            depth = 1 + max(above.get(name, 0) for name in block.parents)
            above |= dict.fromkeys(block.orders, depth)
            found = (self.ancestors.get(name, frozenset()) for name in block.parents)
            self.ancestors |= dict.fromkeys(block.orders, block.parents.union(*found))
        self.depth = {block.name: above[block.name] for block in blocks}
        # Of blocks side by side, joint ones take their part of locations before others see them.
        blocks = sorted(blocks, key=lambda block: (self.depth[block.name], block.joint))
        self.blocks = {block.name: block for block in blocks}
        self.tall, self.size = tall, tall.size
        self.variables = dict(zip(tall.names, tall.slices, strict=True))
        self.places: dict[str, np.ndarray] = {}
        self.locations = self.elements(locations)
        # Element of theta at each position of the vectors that the compiled graphs work on.
        self.order = np.arange(tall.size)
        start = tall.size
        self.layout: dict[str, BlockPlace] = {}
        for block in blocks:
            for name, order in block.orders.items():
                place = self.variables[name]
                self.order[place] = place.start + order.T.ravel()
            k, units = block.components, block.units
            starts = [self.variables[name].start + units * i for name, i in block.columns]
            self.places[block.name] = np.array(starts)[:, None] + np.arange(units)
            slant = start + (k * (k + 1) // 2 + k) * units
            self.layout[block.name] = BlockPlace(k, units, block.width, start, slant)
            start = slant + k * len(self.locations)
        scales = set().union(*(block.scales for block in blocks))
        effects = {name for block in blocks for name in block.orders}
        self.scales = self.elements(name for name in tall.names if name in scales)
        moved = [name for name in tall.names if name in scales - effects]
        if len(self.elements(moved)) > _MOST_BENT:
            moved = []
        self.bent = self.elements(moved)
        rows = [
            (self.variables[name].start + first, m)
            for name in moved
            for first, m in factor_rows(tall, name)
        ]
        self.rows = np.array(rows, dtype=int).reshape(-1, 2)
        self._splines = slice(start, start + scale_splines.WIDTH * len(self.bent))
        self.length = self._splines.stop
        self._map = CompiledMap(self, start)

    def elements(self, names: Iterable[str]) -> np.ndarray:
        """Return the elements of some variables in theta."""
        found = [np.r_[self.variables[name]] for name in names]
        return np.concatenate([np.zeros(0, dtype=int), *found])

    @property
    def units(self) -> list[np.ndarray]:
        """Elements, shape (k, J), of the blocks that are not joint."""
        return [self.places[name] for name, block in self.blocks.items() if not block.joint]

    # Constants of the map

    def constants(self, psi: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return information, shape (k(k+1)/2, J), and score, (k, J), as views of psi's tail."""
        k, units, _, start, slant = self.layout[name]
        table = psi[start:slant].reshape(-1, units)
        return table[:-k], table[-k:]

    def slant(self, psi: np.ndarray, name: str) -> np.ndarray:
        """Return D, or A of a joint block, shape (k, locations), as a view of psi's tail."""
        k, slant = self.layout[name].components, self.layout[name].slant
        return psi[slant : slant + k * len(self.locations)].reshape(k, -1)

    def splines(self, psi: np.ndarray) -> np.ndarray:
        """Return the constants of `scale_splines`, a line for each of `bent`, as a view."""
        return psi[self._splines].reshape(len(self.bent), scale_splines.WIDTH)

    def centring(self, psi: np.ndarray) -> dict[str, np.ndarray]:
        """Weight of the centred form at psi, from 0 to 1: shape (J,), or (k, J).

        The share of an effect's prior variance that the data take away.
        """
        theta, _ = self.to_theta(psi)
        found = {}
        for name, block in self.blocks.items():
            k = block.components
            table, _ = self.constants(psi, name)
            information, (a, b) = np.empty((block.units, k, k)), np.triu_indices(k)
            information[:, a, b] = information[:, b, a] = table.T
            effect, _ = self.strengths(theta, name)
            precision = np.eye(k) + effect.transpose(0, 2, 1) @ information @ effect
            left = np.linalg.inv(precision)[:, range(k), range(k)].T
            for variable in block.orders:
                own = [a for a, (other, _) in enumerate(block.columns) if other == variable]
                weight = np.clip(1 - left[own], 0.0, 1.0)
                found[variable] = weight.ravel() if block.joint or len(own) == 1 else weight
        return found

    # Points

    def to_theta(self, psi: np.ndarray) -> tuple[np.ndarray, float]:
        """Return theta, shape (d,), and log |det dtheta/dpsi| at psi, shape (length,)."""
        theta, e, volume = np.empty(self.size), np.empty(self.size), np.empty(1)
        self._map.position(psi, theta, e, volume)
        out = np.empty(self.size)
        out[self.order] = theta
        if self.qr is None:
            return out, float(volume[0])
        out, constant = self.qr.to_theta(out)
        return out, float(volume[0]) + constant

    def from_theta(self, theta: np.ndarray, psi: np.ndarray) -> np.ndarray:
        """Return psi for theta, shape (d,), with the constants of another psi, shape (length,)."""
        found = psi.copy()
        theta = theta if self.qr is None else self.qr.from_theta(theta)
        found[: self.size] = theta[self.order]
        moved = np.empty(self.size)
        self._map.inverse(found, moved)
        found[: self.size] = moved
        return found

    def strengths(self, theta: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return effect, shape (J, k, k), and offset, shape (J, k), of a block at theta."""
        block, given = self.blocks[name], self._map.given[name]
        k, numbers = block.components, np.empty(given.size)
        given.forward(np.ascontiguousarray(theta[self.order]), numbers)
        starts, steps = given.table
        place = starts[:, None] + steps[:, None] * np.arange(block.units)
        values = np.where(starts[:, None] < 0, 0.0, numbers[np.maximum(place, 0)])
        effect = np.moveaxis(values[: k * k].reshape(k, k, block.units), 2, 0)
        return effect, values[2 * k * k : 2 * k * k + k].T

    def composed(self, forward: Compiled, backward: Compiled) -> dict[str, Callable[[], Compiled]]:
        """How to compile a model's parameter functions over psi in place of theta."""
        return {
            "forward": lambda: self._map.forward(forward),
            "backward": lambda: self._map.backward(backward),
        }
