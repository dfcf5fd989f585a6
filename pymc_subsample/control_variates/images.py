"""Where the modes of a symmetric model would be, given one: mirrored, and with labels swapped."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, zip_longest

import numpy as np

# Elements of a variable that are mirrored one by one, and pairs of labels of a length.
_ELEMENTS = 6
_PAIRS = 3


@dataclass(frozen=True)
class Block:
    """A variable's place in theta."""

    name: str  # Of the value variable.
    part: slice  # Its elements.
    shape: tuple[int, ...]
    # Whether its values have a sign: those of the logarithm of a positive variable have not.
    signed: bool = True
    # Whether its elements stand for themselves: those of an ordered or a simplex variable do not.
    labelled: bool = True


def images(
    blocks: Sequence[Block], theta: np.ndarray, active: np.ndarray, rng: np.random.Generator
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
        [[(b, None)] for b in signed],
        *_swaps(blocks, rng),
        list(_label_flips(signed, rng)),
        [[(a, None), (b, None)] for a, b in combinations(signed, 2)],
        list(_element_flips(signed, rng)),
    ]
    makers = [make for make in chain.from_iterable(zip_longest(*kinds)) if make is not None]
    found: list[np.ndarray] = []
    for make in makers:
        new = theta.copy()
        for block, change in make:
            values = theta[block.part].reshape(block.shape)
            new[block.part] = np.ravel(-values if change is None else change(values))
        new[~moving] = theta[~moving]
        if not any(np.allclose(new, old) for old in (theta, *found)):
            found.append(new)
    return found


# What a symmetry does to the values of each variable; None stands for minus.
type _Image = list[tuple[Block, Callable[..., np.ndarray] | None]]


def _families(blocks: Sequence[Block]) -> Iterator[tuple[int, list[tuple[Block, int]]]]:
    """Yield variables and their axis by the length of that axis."""
    lengths = sorted({size for b in blocks for size in b.shape if size > 1})
    for length in lengths:
        yield length, [(b, b.shape.index(length)) for b in blocks if length in b.shape]


def _swaps(blocks: Sequence[Block], rng: np.random.Generator) -> tuple[list[_Image], list[_Image]]:
    labelled = [b for b in blocks if b.labelled]
    together: list[_Image] = []
    alone: list[_Image] = []
    for length, members in _families(labelled):
        pairs = list(combinations(range(length), 2))
        for k in rng.permutation(len(pairs))[:_PAIRS]:
            order = np.arange(length)
            order[list(pairs[k])] = pairs[k][::-1]
            swapped: _Image = [
                (b, lambda x, o=order, a=axis: np.take(x, o, axis=a)) for b, axis in members
            ]
            together.append(swapped)
            alone += [[one] for one in swapped] if len(swapped) > 1 else []
    return together, alone


def _label_flips(blocks: Sequence[Block], rng: np.random.Generator) -> Iterator[_Image]:
    for length, members in _families(blocks):
        for label in rng.permutation(length)[:_PAIRS]:
            sign = np.where(np.arange(length) == label, -1.0, 1.0)
            yield [(b, lambda x, s=sign, a=axis: _along(x, s, a)) for b, axis in members]


def _along(values: np.ndarray, sign: np.ndarray, axis: int) -> np.ndarray:
    shape = [1] * values.ndim
    shape[axis] = len(sign)
    return values * sign.reshape(shape)


def _element_flips(blocks: Sequence[Block], rng: np.random.Generator) -> Iterator[_Image]:
    for block in blocks:
        size = int(np.prod(block.shape, dtype=int))
        for element in rng.permutation(size)[:_ELEMENTS]:
            sign = np.where(np.arange(size) == element, -1.0, 1.0).reshape(block.shape)
            yield [(block, lambda x, s=sign: x * s)]
