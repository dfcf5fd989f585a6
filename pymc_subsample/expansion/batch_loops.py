"""Functions of a batch as loops over its rows, of which each is evaluated by itself.

PyTensor's own functions of a batch take half a minute to compile, make temporary arrays, and
evaluate the log-likelihood of every kind of row for all of them.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numba import types
from pytensor.graph.basic import Variable

from pymc_subsample.compiled.cache import compile_part
from pymc_subsample.compiled.functions import FAST, Compiled, compile_source
from pymc_subsample.expansion.fusion import row_graph
from pymc_subsample.expansion.loops import array_loops, indented
from pymc_subsample.expansion.schedule import Place
from pymc_subsample.expansion.statements import in_memory

_ROW = "rows[{}, i]"


def compile_batch(
    name: str,
    inputs: Mapping[str, Variable],
    outputs: Sequence[Mapping[str, Variable]],
    row: Sequence[str],
    others: Sequence[str],
    signature: types.Type,
    width: int,
    kind_at: int | None = None,
    *,
    scratch: Sequence[str] = (),
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    **called: object,
) -> Compiled:
    """Compile ``name(*inputs, *others)``, which goes through the rows one by one.

    Parameters
    ----------
    name : str
        Name of the function.
    inputs : mapping of str to Variable
        Vectors and numbers that rows share, and the batch as ``rows``, shape (width, m).
    outputs : sequence of mapping of str to Variable
        For each kind of row, graphs of a batch that are evaluated for one row: numbers, or vectors
        that do not grow with the batch. Lines find them in arrays of these names.
    row, before, after : sequence of str
        Lines for row i, and before and after all rows.
    others, scratch : sequence of str
        Names of other arguments, in order, and of what `before` makes and `row` uses.
    signature : numba signature
        Of all arguments.
    width : int
        Numbers of a packed row.
    kind_at : int, optional
        Position of a row's kind, if there are several.
    **called
        Functions of the package that `after` calls.

    Raises
    ------
    NoForm
        If a row has no such code.
    """
    arguments = [*inputs, *others]
    given = ", ".join([*arguments, *scratch])
    functions: dict[str, object] = {"np": np, **called}
    calls, keys = [], []
    for kind, graphs in enumerate(outputs):
        text, names, known = _loop(inputs, graphs, row, given, width, (kind_at, kind))
        key = "|".join([text, *known])
        exec(text, names)
        functions[f"loop{kind}"] = compile_part(names["loop"], key, fastmath=FAST)
        calls.append(f"loop{kind}({given})")
        keys.append(key)
    head = f"def {name}({', '.join(arguments)}):"
    source = "\n".join([head, *indented([*before, *calls, *after], 1)])
    return compile_source(name, source, functions, signature, "|".join(keys))


def _loop(
    inputs: Mapping[str, Variable],
    outputs: Mapping[str, Variable],
    row: Sequence[str],
    arguments: str,
    width: int,
    kind: tuple[int | None, int],
) -> tuple[str, dict, list[str]]:
    """Return the source of a loop over the rows of a kind, what it reads, and keys of that."""
    fgraph = row_graph(list(inputs.values()), list(outputs.values()))
    given = {}
    for key, var in zip(inputs, fgraph.inputs, strict=True):
        place = _ROW if key == "rows" else f"{key}[{{}}]" if var.type.ndim else key
        shape = (width, 1) if key == "rows" else var.type.shape
        given[var] = in_memory(place, shape, var.type.dtype)
    shared = {place.name for run in given.values() for place in run.places.values()} - {_ROW}
    sizes = {key: (var.type.shape or (1,))[0] or 1 for key, var in outputs.items()}
    places = [Place(f"{key}[{{}}]", np.arange(size)) for key, size in sizes.items()]
    code = array_loops(fgraph, given, shared, places)
    room = [f"{key} = np.empty({size})" for key, size in sizes.items()]
    at, number = kind
    others = [] if at is None else [f"if rows[{at}, i] != {number}:", "    continue"]
    lines = [
        f"def loop({arguments}):",
        *indented([*room, *code.before, "for i in range(rows.shape[1]):"], 1),
        *indented([*others, *code.lines, *row], 2),
    ]
    return "\n".join(lines), dict(code.functions), code.keys
