"""Where the modes of a symmetric model would be, given one: mirrored, and with labels swapped."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, zip_longest

import numpy as np

# Elements of a variable that are mirrored one by one, and pairs of labels of a length. Choices of
# time: where a symmetry holds for one element, it holds for others.
_ELEMENTS = 6
_PAIRS = 3


@dataclass(frozen=True)
class ThetaPart:
    """A variable's place in theta."""

    name: str  # Of the value variable.
    part: slice  # Its elements.
    shape: tuple[int, ...]
    # Whether its values have a sign: those of the logarithm of a positive variable have not.
    signed: bool = True
    # Whether its elements stand for themselves: those of an ordered or a simplex variable do not.
    labelled: bool = True

    @property
    def elements(self) -> np.ndarray:
        """Places of its elements in theta, in its shape."""
        return np.arange(self.part.start, self.part.stop).reshape(self.shape)


# Elements of theta, those whose values they get, and with which sign.
type _Image = tuple[np.ndarray, np.ndarray, float]


def images(
    blocks: Sequence[ThetaPart], theta: np.ndarray, active: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Return images of theta, shape (d,), under symmetries that models often have, by turns.

    Labels are swapped in all variables with an axis of the same length at once, as in the means,
    scales and weights of a mixture, and in each alone. Signs change of one variable, of two at once
    (factors and loadings), of one label in all of them (hidden units of a network, columns of
    loadings) and of single elements. Elements that are not `active` keep their values.
    """
    moving = np.zeros(len(theta), dtype=bool)
    moving[active] = True
    blocks = [b for b in blocks if np.any(moving[b.part])]
    signed = [b for b in blocks if b.signed]
    kinds: list[list[_Image]] = [
        [_flip(b.elements) for b in signed],
        *_swaps([b for b in blocks if b.labelled], rng),
        list(_label_flips(signed, rng)),
        [_flip(a.elements, b.elements) for a, b in combinations(signed, 2)],
        list(_element_flips(signed, rng)),
    ]
    found: list[np.ndarray] = []
    for image in chain.from_iterable(zip_longest(*kinds)):
        if image is None:
            continue
        new, (target, source, sign) = theta.copy(), image
        new[target] = sign * theta[source]
        new[~moving] = theta[~moving]
        if not any(np.allclose(new, old) for old in (theta, *found)):
            found.append(new)
    return found


def _flip(*elements: np.ndarray) -> _Image:
    every = np.concatenate([x.ravel() for x in elements])
    return every, every, -1.0


def _families(blocks: Sequence[ThetaPart]) -> Iterator[list[np.ndarray]]:
    """Yield elements of variables with an axis of the same length, that axis first."""
    for length in sorted({size for b in blocks for size in b.shape if size > 1}):
        yield [
            np.moveaxis(b.elements, b.shape.index(length), 0).reshape(length, -1)
            for b in blocks
            if length in b.shape
        ]


def _swaps(
    blocks: Sequence[ThetaPart], rng: np.random.Generator
) -> tuple[list[_Image], list[_Image]]:
    together: list[_Image] = []
    alone: list[_Image] = []
    for members in _families(blocks):
        pairs = list(combinations(range(len(members[0])), 2))
        for k in rng.permutation(len(pairs))[:_PAIRS]:
            here, there = list(pairs[k]), list(pairs[k][::-1])
            swapped: list[_Image] = [(x[here].ravel(), x[there].ravel(), 1.0) for x in members]
            targets, sources, _ = zip(*swapped, strict=True)
            together.append((np.concatenate(targets), np.concatenate(sources), 1.0))
            alone += swapped if len(swapped) > 1 else []
    return together, alone


def _label_flips(blocks: Sequence[ThetaPart], rng: np.random.Generator) -> Iterator[_Image]:
    for members in _families(blocks):
        for label in rng.permutation(len(members[0]))[:_PAIRS]:
            yield _flip(*(x[label] for x in members))


def _element_flips(blocks: Sequence[ThetaPart], rng: np.random.Generator) -> Iterator[_Image]:
    for block in blocks:
        for element in rng.permutation(block.elements.size)[:_ELEMENTS]:
            yield _flip(block.elements.ravel()[[element]])
