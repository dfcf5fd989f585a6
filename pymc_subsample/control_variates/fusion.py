"""Row functions as scalar functions.

A row's log-likelihood and its derivatives become one scalar function, called once per row inside
our own loop: no temporaries, and everything that depends on shared parameters alone is computed
once per batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.link.numba.dispatch.basic import numba_funcify_ensure_cache
from pytensor.scalar.basic import Composite

from pymc_subsample.control_variates.scalars import NotScalar, Scalars


@dataclass
class ScalarFunction:
    """``row(*varying, *hoisted) -> outputs`` and ``hoist(*shared) -> hoisted``.

    `used` and `used_shared` say which of the varying and shared inputs are arguments; `hoist` is
    None where nothing is computed from shared inputs alone.
    """

    row: Callable
    hoist: Callable | None
    used: list[int]
    used_shared: list[int]
    n_hoisted: int
    key: str | None


def fuse(
    outputs: Sequence[Variable], varying: Sequence[Variable], shared: Sequence[Variable]
) -> ScalarFunction:
    """Turn vector graphs over rows into scalar functions.

    Parameters
    ----------
    outputs : sequence of Variable
        One vector over rows each.
    varying : sequence of Variable
        Vector inputs over rows.
    shared : sequence of Variable
        Vector inputs that hold one value for all rows.

    Raises
    ------
    NotScalar
        If some Op has no form for one row.
    """
    fgraph = FunctionGraph([*varying, *shared], list(outputs), clone=True)
    rewrite_graph(
        fgraph,
        include=("canonicalize", "stabilize", "specialize"),
        exclude=("fusion", "inplace", "BlasOpt"),
    )
    varying, shared = fgraph.inputs[: len(varying)], fgraph.inputs[len(varying) :]
    scalars = {v: ps.float64(v.name) for v in fgraph.inputs}
    apply = _CheaperOps({scalars[v] for v in varying})
    known = {v: _single(s) for v, s in scalars.items()}
    arrays = Scalars(known, apply).evaluate(fgraph.outputs)
    if any(a.size != 1 for a in arrays):
        raise NotScalar
    results = [ps.cast(a.item(), "float64") for a in arrays]
    return _split(results, [scalars[v] for v in varying], [scalars[v] for v in shared])


def _single(scalar: Variable) -> np.ndarray:
    array = np.empty(1, dtype=object)
    array[0] = scalar
    return array


class _CheaperOps:
    """Applies scalar Ops, or what computes the same at less cost per row.

    Logistic functions of one argument share one exponential; a division by what rows share
    becomes a product with a reciprocal that is computed once; constants are folded.
    """

    def __init__(self, row_dependent: set[Variable]):
        self._row_dependent = row_dependent
        self._exponentials: dict[Variable, Variable] = {}
        self._applied: dict[tuple, list[Variable]] = {}

    def __call__(self, op, inputs: list[Variable]) -> list[Variable]:
        key = (op, *inputs)
        if key not in self._applied:
            self._applied[key] = self._apply(op, inputs)
            if any(i in self._row_dependent for i in inputs):
                self._row_dependent.update(self._applied[key])
        return self._applied[key]

    def _apply(self, op, inputs):
        if isinstance(op, ps.TrueDiv) and inputs[1] not in self._row_dependent:
            return [ps.mul(inputs[0], ps.reciprocal(inputs[1]))]
        if isinstance(op, ps.Softplus | ps.Sigmoid):
            [x] = inputs
            if x not in self._exponentials:
                self._exponentials[x] = ps.exp(ps.neg(ps.abs(x)))
            small = self._exponentials[x]
            if isinstance(op, ps.Softplus):
                # small <= 1: log(1 + small) is exact to one unit of 1, and cheaper than log1p.
                return [ps.add(ps.switch(ps.gt(x, 0.0), x, 0.0), ps.log(ps.add(1.0, small)))]
            inverse = ps.reciprocal(ps.add(1.0, small))
            return [ps.switch(ps.gt(x, 0.0), inverse, ps.mul(small, inverse))]
        return op.make_node(*inputs).outputs


def _split(results, varying, shared) -> ScalarFunction:
    known = list(ancestors(results))
    row_dependent = set(varying)
    for node in toposort(results):
        if any(i in row_dependent for i in node.inputs):
            row_dependent.update(node.outputs)
    hoisted: dict[Variable, None] = {}
    for node in toposort(results):
        if node.outputs[0] in row_dependent:
            hoisted |= {
                i: None
                for i in node.inputs
                if i not in row_dependent and not isinstance(i, Constant)
            }
    hoisted |= {r: None for r in results if r not in row_dependent and not isinstance(r, Constant)}
    used = [i for i, v in enumerate(varying) if v in known]
    names = list(hoisted)
    row, row_key = _compiled([varying[i] for i in used] + names, results)
    if not names:
        return ScalarFunction(row, None, used, [], 0, row_key)
    above = set(ancestors(names))
    used_shared = [i for i, v in enumerate(shared) if v in above]
    hoist, hoist_key = _compiled([shared[i] for i in used_shared], names)
    key = None if row_key is None or hoist_key is None else row_key + hoist_key
    return ScalarFunction(row, hoist, used, used_shared, len(names), key)


def _compiled(inputs, outputs):
    fresh = [i.type() for i in inputs]
    outputs = [ps.identity(v) if v in inputs or isinstance(v, Constant) else v for v in outputs]
    fgraph = FunctionGraph(list(inputs), outputs, clone=True)
    composite = Composite(fgraph.inputs, fgraph.outputs)
    return numba_funcify_ensure_cache(composite, composite.make_node(*fresh))
