"""The fewest numbers through which the rows of a batch see the parameters.

A row may see many affine numbers that are made of few: the terms `j * eta` of a series, utilities
of thirty alternatives by two coefficients, `gammaln(j * a)` of one parameter. Taylor expansions
are in the fewest of them: the smallest set of predictors and parameters that parts parameters from
the log-likelihood, which is a minimum cut [1]_.

References
----------
.. [1] L. R. Ford and D. R. Fulkerson (1956). Maximal flow through a network. Canadian Journal of
   Mathematics 8.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from pymc_subsample.graph.concrete import depends_on, rebuild, tensor_input
from pymc_subsample.graph.interpreter import NoForm, array_of
from pymc_subsample.graph.nodes import is_product
from pymc_subsample.graph.numpy_functions import freeze
from pymc_subsample.graph.scalars import Scalars
from pymc_subsample.model.batch import BatchGraph
from pymc_subsample.model.predictors import MAX_PREDICTORS, Algebra, Predictor, find_predictors

# More than any cut that is of use: what must not be cut.
_NEVER = 10**6


def fewest_predictors(
    graph: BatchGraph,
    offsets: Mapping[Variable, int],
    extremes: Callable[[Variable, int], np.ndarray],
) -> list[Predictor] | None:
    """Find the smallest set of predictors of a batch log-likelihood, nearest to it.

    Arguments are those of `predictors.find_predictors`. Parameters are predictors whose `axis` is
    None: rows see functions of them alone, as `along_rows` has them. Returns None if rows see more
    than elementwise functions of them, such as elements picked by an index.
    """
    algebra = Algebra(graph, offsets, extremes)
    output = graph.outputs[0]
    nodes = [n for n in toposort([output]) if not algebra.dependent.isdisjoint(n.outputs)]
    variables = dict.fromkeys(
        [*offsets, *(v for n in nodes for v in n.outputs if v in algebra.dependent)]
    )
    sizes = {}
    for v in variables:
        forms = algebra.forms(v) if v in offsets or algebra.is_row_predictor(v) else None
        sizes[v] = _NEVER if forms is None else max(forms.size, 1)
    fixed = [
        v
        for node in nodes
        if any(_axis(graph, node, v) is None for v in _met(graph, node, algebra.dependent))
        for v in node.outputs
    ]
    cut = _fewest(sizes, nodes, [*offsets, *fixed], [output])
    if cut is None:
        return None
    predictors = [
        Predictor(v, None if v in offsets else graph.axes[v], v in offsets, algebra.value(v))
        for v in cut
    ]
    return predictors if all(map(algebra.is_finite, predictors)) else None


def through_fewer(
    graph: BatchGraph, values: Sequence[Variable], arrays: Mapping[Variable, np.ndarray]
) -> BatchGraph:
    """Let rows see few numbers in the place of many that are made of these.

    Such as `alpha`, in the place of its first dozen powers. Numbers that rows pick by an index, or
    multiply as matrices, stay as they are, and so do all where they are few, or make few
    predictors, or are no scalar code. Parameters are made of `values` and of data, `arrays`.
    """
    if _sees_few(graph):
        return graph
    fixed = [
        v
        for node in toposort(graph.outputs)
        if any(o in graph.axes for o in node.outputs)
        for v in node.inputs
        if v not in graph.axes and _axis(graph, node, v) is None
    ]
    above = set(ancestors(fixed))
    seen = {k: old for k, old in graph.parameters.items() if k not in above and _is_numbers(old)}
    olds = list(seen.values())
    dependent = depends_on(olds, values)
    # In the order of the graph: rows see numbers in that of this table.
    made_of = [*values, *(o for node in toposort(olds) for o in node.outputs)]
    sizes = {v: _size(v) for v in made_of if v in dependent}
    if sum(sizes[old] for old in olds) <= MAX_PREDICTORS:
        return graph
    few = _fewest(sizes, toposort(olds), values, olds) or olds
    made = {new: old for new, old in seen.items() if old not in few}
    inputs = {v: tensor_input(v.name, v.type.dtype, v.type.shape) for v in few if v not in olds}
    if not made or 2 * sum(map(sizes.__getitem__, inputs)) > sum(sizes[v] for v in made.values()):
        return graph
    known = inputs | {old: new for new, old in seen.items() if new not in made}
    known |= freeze(list(made.values()), arrays)
    functions = rebuild(list(made.values()), dict(known))
    if not _has_scalar_code(functions, [v for v in known.values() if v.owner is None]):
        return graph
    memo = dict(zip(made, functions, strict=True))
    outputs = rebuild(graph.outputs, memo)
    parameters = {new: old for new, old in graph.parameters.items() if new not in made}
    return replace(
        graph,
        outputs=outputs,
        axes={memo.get(v, v): axis for v, axis in graph.axes.items()},
        parameters=parameters | {new: old for old, new in inputs.items()},
    )


def _sees_few(graph: BatchGraph) -> bool:
    """Whether each term of a row sees few predictors as it is.

    These are nearer to the log-likelihood than what they are made of, so that expansions in them
    leave less: of a normal term with one of them, nothing.
    """
    if not all(map(_has_lengths, graph.parameters)):
        return True  # such a model is refused
    starts = np.cumsum([0, *(prod(v.type.shape) for v in graph.parameters)]).tolist()
    offsets = dict(zip(graph.parameters, starts, strict=False))
    for output in graph.outputs:
        found = find_predictors(replace(graph, outputs=[output]), offsets, _unknown)
        if found is None or sum(p.forms.size for p in found) > MAX_PREDICTORS:
            return False
    return True


def _unknown(var: Variable, axis: int) -> np.ndarray:
    """Stand in for extremes of columns that nobody has read: finite, and none negative."""
    return np.zeros((2, prod(n for a, n in enumerate(var.type.shape) if a != axis)))


def _has_scalar_code(graphs: Sequence[Variable], inputs: Sequence[Variable]) -> bool:
    """Whether a row can compute graphs of small arrays by itself."""
    known = {
        v: array_of((ps.float64() for _ in range(_size(v))), v.type.shape)
        for v in inputs
        if not isinstance(v, Constant)
    }
    try:
        Scalars(known, lambda op, elements: op.make_node(*elements).outputs).evaluate(graphs)
    except NoForm:
        return False
    return True


def _size(var: Variable) -> int:
    return prod(var.type.shape) if _is_numbers(var) else _NEVER


def _has_lengths(var: Variable) -> bool:
    return isinstance(var.type, TensorType) and None not in var.type.shape


def _is_numbers(var: Variable) -> bool:
    """Whether expansions can be in the elements of a variable: not in truths or counts."""
    return _has_lengths(var) and np.dtype(var.type.dtype).kind == "f"


def _fewest(
    sizes: Mapping[Variable, int],
    nodes: Iterable[Apply],
    sources: Sequence[Variable],
    sinks: Sequence[Variable],
) -> list[Variable] | None:
    """Return the variables of the smallest size that part sinks from sources, nearest to sinks."""
    place = {v: k for k, v in enumerate(sizes)}
    source, sink = 2 * len(place), 2 * len(place) + 1
    flows = {(2 * k, 2 * k + 1): sizes[v] for v, k in place.items()}
    flows |= {(source, 2 * place[v]): _NEVER for v in sources if v in place}
    flows |= {(2 * place[v] + 1, sink): _NEVER for v in sinks}
    for node in nodes:
        starts = [2 * place[v] + 1 for v in node.inputs if v in place]
        ends = [2 * place[v] for v in node.outputs if v in place]
        flows |= dict.fromkeys(product(starts, ends), _NEVER)
    (start, end), capacity = np.array([*flows]).T, np.array([*flows.values()], dtype=np.int32)
    network = csr_array((capacity, (start, end)), shape=(sink + 1,) * 2)
    found = maximum_flow(network, source, sink)
    if found.flow_value >= _NEVER:
        return None
    left = csr_array(network - found.flow)
    left.eliminate_zeros()
    reaching, _ = breadth_first_order(csr_array(left.T), sink, return_predecessors=True)
    near = set(reaching.tolist())
    return [v for v, k in place.items() if 2 * k + 1 in near and 2 * k not in near]


def along_rows(
    graph: BatchGraph, parameters: Mapping[Variable, Variable]
) -> dict[Variable, Variable]:
    """Return what takes the place of what rows see of parameters, given a value for each row.

    `parameters` have values with a row axis in front.
    """
    dependent = set(parameters)
    memo: dict[Variable, Variable] = {}
    for node in toposort(graph.outputs[:1]):
        if not dependent.isdisjoint(node.inputs) and not any(o in graph.axes for o in node.outputs):
            dependent.update(node.outputs)
    for node in toposort(graph.outputs[:1]):
        for v in _met(graph, node, dependent):
            axis = _axis(graph, node, v)
            if v not in memo and axis is not None:
                value = vectorize_graph(v, dict(parameters))
                memo[v] = pt.moveaxis(value.squeeze(axis + 1), 0, axis).astype(v.type.dtype)
    return memo


def _met(graph: BatchGraph, node: Apply, dependent: set[Variable]) -> Iterator[Variable]:
    """Yield what rows see of the parameters in a node, the same in all rows."""
    if any(o in graph.axes for o in node.outputs):
        yield from (v for v in node.inputs if v in dependent and v not in graph.axes)


def _axis(graph: BatchGraph, node: Apply, var: Variable) -> int | None:
    """Return where a variable that rows share is broadcast against them.

    As it is where they are elements, or matrices of a stack that are multiplied by one of theirs.
    """
    axis = graph.axes.get(node.outputs[0])
    if axis is None:
        return None
    stacks = is_product(node) and axis < node.outputs[0].type.ndim - 2
    known = isinstance(node.op, Elemwise) or (stacks and isinstance(node.op, Blockwise))
    return axis if known and var.type.broadcastable[axis] else None
