"""Groups within groups: those whose rows all belong to one larger group, as classes to schools."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pymc_subsample.coordinates.blocks import EffectBlock, ancestry, ordered
from pymc_subsample.coordinates.effects import total
from pymc_subsample.expansion.expansion import Expansion
from pymc_subsample.model import TallModel

# Rows that are looked at: few at the start and evenly spread, which tell most groupings that are
# not nested, also where evenly spread ones see each group once; then so many at a time. A choice of
# time and memory.
_FEW, _MOST, _CHUNK = 2_000, 200_000, 50_000


def find_nesting(expansion: Expansion) -> list[np.ndarray]:
    """Return by element of phi that of the larger group which its rows see too, or -1: each (P,).

    One array for each two groupings of which one is nested in the other, and whose effects rows see
    alike. Of more than 200,000 rows so many are looked at; a group without any has -1.
    """
    if not expansion.linear:
        return []
    seen = expansion.sums.slot_coefficients
    alike = [pair for pair in permutations(range(len(seen)), 2) if seen[pair[0]] == seen[pair[1]]]
    links: dict[tuple[int, int], np.ndarray] = {}
    for levels in _levels(expansion) if alike else ():
        for inner, outer in list(links) or alike:
            link = links.pop((inner, outer), None)
            link = np.full(expansion.phi_size, -1) if link is None else link
            if _extended(link, levels[inner], levels[outer]):
                links[inner, outer] = link
        if not links:
            break
    return [link for (inner, outer), link in links.items() if (outer, inner) not in links]


def _levels(expansion: Expansion) -> Iterator[np.ndarray]:
    """Elements of phi that rows see in each slot, shape (k, m), some rows at a time."""
    n = expansion.n_rows
    few, many = (np.linspace(0, n - 1, min(m, n)).astype(np.int64) for m in (_FEW, _MOST))
    first = np.concatenate([np.arange(min(_FEW, n)), few])
    for index in [first, *np.split(many, range(_CHUNK, len(many), _CHUNK))]:
        yield expansion.sums.levels(expansion.take(index))


def _extended(link: np.ndarray, inner: np.ndarray, outer: np.ndarray) -> bool:
    """Add what more rows say to a link; return whether they agree with it and each other."""
    known = link[inner]
    if np.any((known >= 0) & (known != outer)):
        return False
    link[inner] = outer
    return np.array_equal(link[inner], outer)


def nested(
    tall: TallModel, blocks: list[EffectBlock], links: Sequence[np.ndarray]
) -> list[EffectBlock]:
    """Add the effects of larger groups to the offsets of those nested in them; parents first.

    Rows of a class tell the sum of its effect and its school's: given the rows one falls as the
    other rises, by how much depends on their scales.
    """
    seen = np.full(tall.phi_size, -1)  # by which block: its place among these
    for i, block in enumerate(blocks):
        for elements in block.seen:
            seen[elements] = i
    links = _followed(links, seen, [block.units for block in blocks])
    for i, block in enumerate(blocks):
        offset = _within(tall, block, links, (seen >= 0) & (seen != i))
        parents = block.parents | ancestry(tall, offset)
        linked = [*blocks[:i], replace(block, offset=offset, parents=parents), *blocks[i + 1 :]]
        if len(ordered(linked)) == len(blocks):  # no circle
            blocks = linked
    return ordered(blocks)


def _followed(
    links: Sequence[np.ndarray], seen: np.ndarray, units: Sequence[int]
) -> list[np.ndarray]:
    """Leave out links to a larger group which another grouping, crossed with this one, follows.

    Both would take up its effect; that of fewer groups, with more rows each, does.
    """
    inner = [int(seen[np.flatnonzero(link >= 0)[0]]) for link in links]
    outer = [int(seen[link[link >= 0][0]]) for link in links]
    pairs = set(zip(inner, outer, strict=True))

    def crossed(a: int, b: int) -> bool:
        return a != b and (a, b) not in pairs and (b, a) not in pairs

    found = []
    for link, a, of in zip(links, inner, outer, strict=True):
        others = {b for b, other in pairs if other == of != b and crossed(a, b)}
        if of in (a, -1) or a < 0 or all((units[a], a) < (units[b], b) for b in others - {-1}):
            found.append(link)
    return found


def _within(
    tall: TallModel, block: EffectBlock, links: Sequence[np.ndarray], known: np.ndarray
) -> list[Variable | None]:
    """Offsets of a block's components, and the effects, elements `known`, of larger groups."""
    found = list(block.offset)
    for a, elements in enumerate(block.seen):
        for link in links if len(elements) else ():
            outer = link[elements]
            for graph, part in zip(tall.phi_graphs, tall.phi_slices.values(), strict=True):
                within = (part.start <= outer) & (outer < part.stop)
                if not within.any() or not known[outer[within]].all():
                    continue
                effects = pt.concatenate([graph.ravel(), pt.zeros(1)])
                place = np.where(within, outer - part.start, part.stop - part.start)
                found[a] = total([found[a], effects[place]])
    return found
