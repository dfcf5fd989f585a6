"""Graphs of small arrays as statements, and these as loops: elementwise graphs and their sums.

Priors, transforms and their gradients are mostly elementwise in each variable, joined by sums,
choices of elements and products of small matrices; so are the sums and series inside a row. A call
of PyTensor's own functions for them costs more than their arithmetic, which shows where a batch has
a hundred rows, and takes many times as long to compile. So does code in which each of the elements
has lines of its own.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from numba import types
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph

from pymc_subsample.compiled.functions import Compiled, compile_graph, compile_source
from pymc_subsample.expansion.fusion import CheaperOps, Ops
from pymc_subsample.expansion.schedule import Place, Run, Schedule
from pymc_subsample.expansion.statements import Statements, in_memory, lengths, number
from pymc_subsample.graph.concrete import specialised
from pymc_subsample.graph.interpreter import NoForm


def compile_loops(
    name: str,
    inputs: Sequence[Variable],
    outputs: Mapping[str, Variable],
    buffers: Sequence[str],
    signature: types.Type,
) -> Compiled:
    """Compile a graph of vectors as `compile_graph` does, by loops where it is elementwise."""
    try:
        code = parameter_loops(inputs, outputs)
    except NoForm:
        return compile_graph(name, inputs, outputs, buffers, signature)
    arguments = ", ".join([*(f"x{k}" for k in range(len(inputs))), *buffers])
    source = [f"def {name}({arguments}):", *(f"    {line}" for line in code.before)]
    return compile_source(name, "\n".join(source), code.functions, signature, "|".join(code.keys))


def parameter_loops(inputs: Sequence[Variable], outputs: Mapping[str, Variable]) -> Schedule:
    """Return the code of vectors, shared by all rows, in vectors ``x0``, ``x1``, ...

    Raises `NoForm` unless outputs are made of elementwise graphs, rearrangements of elements that
    are known beforehand, and sums.
    """
    fgraph = specialised(inputs, list(outputs.values()))
    given = {
        v: in_memory(f"x{k}[{{}}]", v.type.shape, v.type.dtype) for k, v in enumerate(fgraph.inputs)
    }
    loops = Statements(fgraph, given)
    targets = [_target(*found) for found in outputs.items()]
    for target, var in zip(targets, fgraph.outputs, strict=True):
        loops.store(loops.value(var), target)
    return Schedule(loops.statements, [t.name for t in targets], Ops, "i", loops.constants)


def row_loops(
    fgraph: FunctionGraph,
    given: Mapping[Variable, Place],
    shared: set[str],
    results: Sequence[str],
) -> Schedule:
    """Return the code that computes numbers of one row, as variables with these names.

    `given` says where inputs are, which are numbers; those of names `shared` are the same in all
    rows.
    """
    known = {v: Run((1,), *number(place, "float64")) for v, place in given.items()}
    return array_loops(fgraph, known, shared, [Place(name, None) for name in results])


def array_loops(
    fgraph: FunctionGraph,
    given: Mapping[Variable, Run],
    shared: set[str],
    results: Sequence[Place],
) -> Schedule:
    """Return the code that computes numbers and arrays of one row; see `row_loops`."""
    names = {place.name for run in given.values() for place in run.places.values()}
    loops = Statements(fgraph, given, names - shared)
    for place, var in zip(results, fgraph.outputs, strict=True):
        run = loops.value(var)
        if run.size != (1 if place.index is None else len(place.index)):
            raise NoForm
        loops.store(run, place, varies=True)
    return Schedule(loops.statements, [p.name for p in results], CheaperOps, "k", loops.constants)


def indented(lines: Sequence[str], levels: int) -> list[str]:
    """Return lines of code some levels deeper."""
    return [f"{'    ' * levels}{line}" for line in lines]


def _target(code: str, var: Variable) -> Place:
    """Return the places that an output goes to: "grad[4 + i]" or "total[0]"."""
    name, at = code.removesuffix("]").split("[")
    start = int(at.removesuffix("i").removesuffix(" + ") or 0)
    return Place(f"{name}[{{}}]", start + np.arange(prod(lengths(var.type.shape))))
