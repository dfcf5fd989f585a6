"""What links code that is written for a model: kernels by their names, and other functions.

Kernels are compiled once for all models, those of blocks once for all of one form, and are no part
of the code that calls them: linked into it they would be optimised anew, for seconds.
"""

from collections.abc import Mapping
from hashlib import sha256
from inspect import signature as parameters
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numba import types

from pymc_subsample.compiled.cache import compile_kept
from pymc_subsample.compiled.functions import (
    SCALAR,
    VECTOR,
    Compiled,
    Named,
    by_name,
    compile_source,
)
from pymc_subsample.compiled.keys import identity
from pymc_subsample.coordinates import cholesky_rows, scale_splines, whitening


class BlockPlace(NamedTuple):
    """Where a block is; see `whitening`."""

    components: int
    units: int
    width: int
    start: int
    slant: int


# Constants of compiled code cannot be written to.
_INDICES, _TABLE = (types.Array(types.int64, n, "C", readonly=True) for n in (1, 2))
_BLOCK = types.UniTuple(types.int64, len(BlockPlace._fields)), _INDICES, VECTOR
# The kernels; those of blocks without their tables.
_KERNELS = {
    "unfold": (cholesky_rows.unfold, SCALAR(_TABLE, VECTOR)),
    "fold": (cholesky_rows.fold, types.void(_TABLE, VECTOR)),
    "fold_back": (cholesky_rows.fold_back, types.void(_TABLE, VECTOR, VECTOR)),
    "bend": (scale_splines.bend, SCALAR(_INDICES, types.int64, VECTOR, VECTOR)),
    "bend_back": (scale_splines.bend_back, types.void(_INDICES, types.int64, VECTOR, VECTOR)),
    "straighten": (scale_splines.straighten, types.void(_INDICES, types.int64, VECTOR, VECTOR)),
}
_OF_BLOCKS = {
    "standard": (whitening.standard, SCALAR(*_BLOCK, _INDICES, *[VECTOR] * 3)),
    "moved": (whitening.moved, types.void(*_BLOCK, _INDICES, *[VECTOR] * 4)),
    "standard_back": (whitening.standard_back, types.void(*_BLOCK, _INDICES, *[VECTOR] * 7)),
    "spread": (whitening.spread, SCALAR(*_BLOCK, *[VECTOR] * 2)),
    "gathered": (whitening.gathered, types.void(*_BLOCK, *[VECTOR] * 2)),
    "spread_back": (whitening.spread_back, types.void(*_BLOCK, *[VECTOR] * 4)),
    "shear": (whitening.shear, types.void(*_BLOCK, *[VECTOR] * 2, _INDICES, SCALAR, VECTOR)),
    "shear_back": (
        whitening.shear_back, types.void(*_BLOCK, *[VECTOR] * 2, _INDICES, *[VECTOR] * 3)
    ),
}  # fmt: skip


def called_in(source: str) -> dict[str, Named]:
    """Return the kernels that source calls, but those of blocks."""
    return {
        name: by_name(name, *kernel) for name, kernel in _KERNELS.items() if f"{name}(" in source
    }


def of_blocks(kernel: str, place: BlockPlace, table: np.ndarray) -> tuple[str, Named]:
    """Return a kernel in the form for blocks like one, and the name by which source calls it."""
    like = f"{place.components}, {place.width}, {table.tolist()}"
    name = f"{kernel}_{sha256(like.encode()).hexdigest()[:16]}"
    function, signature = _OF_BLOCKS[kernel]
    return name, by_name(name, _for_blocks(function, place, table), signature)


def _for_blocks(kernel: Any, block: BlockPlace, table: np.ndarray) -> Any:
    """Return a kernel for blocks of one number of components, width and table: twice as fast.

    It is called without the table.
    """
    place, at, _, *others = parameters(kernel.py_func).parameters
    rest = ", ".join(others)
    fixed = f"({block.components}, {place}[1], {block.width}, {place}[3], {place}[4])"
    source = f"lambda {place}, {at}, {rest}: kernel({fixed}, {at}, table, {rest})"
    made = eval(source, {"kernel": kernel, "table": table, "__name__": __name__})
    made.__name__ = kernel.__name__
    known = f"{identity(kernel.py_func)} {source} {table.tolist()}"
    return compile_kept(made, known, ())


def composed(
    name: str,
    source: str,
    signature: types.Type,
    kernels: Mapping[str, Named] = MappingProxyType({}),
    **environment: Any,
) -> Compiled:
    """Compile source that calls other compiled functions, and kernels by name."""
    keys = [*map(_key, environment.values())]
    known = None if None in keys else "|".join(map(str, keys))
    return compile_source(name, source, {"np": np, **kernels, **environment}, signature, known)


def _key(value: Any) -> str | None:
    if isinstance(value, np.ndarray):
        return f"{value.shape}{value.tobytes().hex()}"
    return "" if isinstance(value, Compiled) else repr(value)  # which has a key of its own
