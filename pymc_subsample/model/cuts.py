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

from collections.abc import Callable, Iterator, Mapping
from itertools import product

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import toposort
from pytensor.tensor.elemwise import Elemwise
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from pymc_subsample.model.batch import BatchGraph
from pymc_subsample.model.predictors import Algebra, Predictor

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
    variables = [*offsets, *(v for n in nodes for v in n.outputs if v in algebra.dependent)]
    place = {v: k for k, v in enumerate(dict.fromkeys(variables))}
    source, sink = 2 * len(place), 2 * len(place) + 1
    flows: dict[tuple[int, int], int] = {(2 * place[output] + 1, sink): _NEVER}
    flows |= {(source, 2 * place[v]): _NEVER for v in offsets if v in place}
    for v, k in place.items():
        forms = algebra.forms(v) if v in offsets or algebra.is_row_predictor(v) else None
        flows[2 * k, 2 * k + 1] = _NEVER if forms is None else max(forms.size, 1)
    for node in nodes:
        starts = [2 * place[v] + 1 for v in node.inputs if v in place]
        if any(_axis(graph, node, v) is None for v in _met(graph, node, algebra.dependent)):
            starts.append(source)
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
    cut = [v for v, k in place.items() if 2 * k + 1 in near and 2 * k not in near]
    predictors = [
        Predictor(v, None if v in offsets else graph.axes[v], v in offsets, algebra.value(v))
        for v in cut
    ]
    return predictors if all(map(algebra.is_finite, predictors)) else None


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
    """Return where a variable that rows share is broadcast against them."""
    axis = graph.axes.get(node.outputs[0])
    known = isinstance(node.op, Elemwise) and axis is not None
    return axis if known and var.type.broadcastable[axis] else None
