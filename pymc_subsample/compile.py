"""PyTensor graphs as numba functions that write into buffers and are cached on disk.

A compiled transition calls the model's functions through first-class function types, so that the
transition itself is compiled once for all models. For that every function of one role has one
explicit signature, with results written into arrays that the caller owns.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256

import numba
import pytensor
from numba import types
from pytensor.graph.basic import Variable
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_funcify_ensure_cache

VECTOR = types.Array(types.float64, 1, "C")
MATRIX = types.Array(types.float64, 2, "C")
SCALAR = types.float64

_VERSION = "1"


def compile_graph(
    name: str,
    inputs: Sequence[Variable],
    outputs: Sequence[Variable],
    signature: types.Type,
) -> Callable:
    """Compile a PyTensor graph to ``name(*inputs, *output_buffers)``.

    Parameters
    ----------
    name : str
        Name of the function.
    inputs, outputs : sequence of Variable
        The graph. Buffers have the shapes of the outputs; a scalar output takes a buffer of
        shape (1,).
    signature : numba signature
        Of inputs and buffers; the function returns nothing.

    Returns
    -------
    callable
        A compiled numba function.
    """
    function = pytensor.function(
        list(inputs), list(outputs), mode="NUMBA", on_unused_input="ignore"
    )
    inner, key = numba_funcify_ensure_cache(function.maker.fgraph)
    arguments = ", ".join(f"x{i}" for i in range(len(inputs)))
    results = ", ".join(f"r{i}" for i in range(len(outputs)))
    buffers = ", ".join(f"out{i}" for i in range(len(outputs)))
    lines = [f"def {name}({arguments}, {buffers}):", f"    {results}, = inner({arguments})"]
    for i, output in enumerate(outputs):
        if output.type.ndim == 0:
            lines.append(f"    out{i}[0] = r{i}.item()")
        else:
            lines.append(f"    out{i}[...] = r{i}")
    return compile_source(name, "\n".join(lines), {"inner": inner}, signature, key)


def compile_source(
    name: str, source: str, environment: dict, signature: types.Type, key: str | None
) -> Callable:
    """Compile Python source to a numba function with an explicit signature, cached under `key`.

    `key` identifies everything that `environment` holds; with None nothing is cached.
    """
    if key is not None:
        key = sha256("|".join([_VERSION, key, str(signature), source]).encode()).hexdigest()
    function = compile_numba_function_src(
        source, name, {**environment, "__name__": __name__}, cache_key=key
    )
    compiled = numba.njit(signature, cache=key is not None, error_model="numpy", fastmath=_FAST)(
        function
    )
    compiled.cache_key = key
    return compiled


# Reassociation lets dot products vectorise; NaN and infinity keep their meaning, because a
# non-finite energy is how a trajectory is rejected.
_FAST = {"reassoc", "contract", "arcp", "nsz"}
