"""Row functions as scalar functions.

A row's log-likelihood and its derivatives become one scalar function, called once per row inside
our own loop: no temporaries, and everything that depends on shared parameters alone is computed
once per batch.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph, Output
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar.math import TriGamma
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Sum

from pymc_subsample.compiled.scalar_source import scalar_function
from pymc_subsample.graph.concrete import specialised
from pymc_subsample.graph.interpreter import NoForm, array_of
from pymc_subsample.graph.nodes import elemwise_name
from pymc_subsample.graph.scalars import Scalars

# Different operations of a row. They compile in 1.5 ms each, 5,800 of a series of 100 terms in the
# time that loops over arrays take; a recursion is never sooner compiled as arrays.
MOST_OPERATIONS = 8_000
# Steps of the recurrence of polygamma functions, after which the series below is exact to rounding.
_RECURSIONS = 12
# B_2, B_4, ...
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730)
_LINEAR = {"Add", "Sub", "Neg", "Mul", "Switch", "Identity", "Second"}


@dataclass
class ScalarFunction:
    """``row(*varying, *hoisted) -> outputs`` and ``hoist(*shared) -> hoisted``."""

    # Numba functions of floats: a tuple of outputs for one row, one float for one output. `hoist`
    # is None where nothing is computed from shared inputs alone.
    row: Callable
    hoist: Callable | None
    # Which of the varying and the shared inputs are arguments.
    used: list[int]
    used_shared: list[int]
    n_hoisted: int  # Number of hoisted values.
    n_operations: int  # Of both functions.
    key: str | None  # Identifies the functions for the disk cache.


def fuse(
    fgraph: FunctionGraph, varying: Sequence[Variable], shared: Sequence[Variable]
) -> ScalarFunction:
    """Turn vector graphs over rows, as rewritten for compilation, into scalar functions of rows.

    Inputs `varying` are vectors over rows, `shared` ones hold one value for all rows. Raises
    `NoForm` where some Op has no form for one row, or there are more than `MOST_OPERATIONS`.
    """
    scalars = {v: ps.float64(v.name) for v in fgraph.inputs}
    known = {v: array_of([s], (1,)) for v, s in scalars.items()}
    return fused(fgraph.outputs, known, [scalars[v] for v in varying], [scalars[v] for v in shared])


def fused(
    outputs: Sequence[Variable],
    known: Mapping[Variable, np.ndarray],
    varying: Sequence[Variable],
    shared: Sequence[Variable],
) -> ScalarFunction:
    """Do what `fuse` does, of graphs over arrays that are `known` as scalars of one row."""
    arrays = _Row(known, CheaperOps(varying)).evaluate(outputs)
    if any(a.size != 1 for a in arrays):
        raise NoForm
    return split([ps.cast(a.item(), "float64") for a in arrays], varying, shared)


def row_graph(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> FunctionGraph:
    """Copy graphs over rows and rewrite them as for compilation."""
    fgraph = specialised(inputs, outputs)
    _keep_small_softplus(fgraph)
    return fgraph


def _keep_small_softplus(fgraph: FunctionGraph) -> None:
    """Write softplus with log1p where more than its absolute error matters.

    log(1 + x) takes 7 ns where log1p takes 27. That log(1 + 1e-20) is 0 does no harm to a sum;
    it does to a logarithm of it or a quotient.
    """
    for node in list(fgraph.apply_nodes):
        [out, *_] = node.outputs
        if elemwise_name(node) == "Softplus" and not _is_term(fgraph, out):
            [x] = node.inputs
            exact = pt.switch(x > 0, x, 0.0) + pt.log1p(pt.exp(-pt.abs(x)))
            fgraph.replace(out, exact.astype(out.type.dtype), import_missing=True)


def _is_term(fgraph: FunctionGraph, var: Variable) -> bool:
    """Whether a variable enters every output as one term of a sum, up to a factor."""
    return all(
        isinstance(node.op, Output)
        or (
            (elemwise_name(node) in _LINEAR or isinstance(node.op, Sum | DimShuffle))
            and _is_term(fgraph, node.outputs[0])
        )
        for node, _ in fgraph.clients[var]
    )


class _Row(Scalars):
    # Rows of series, alternatives and hidden states took 0.8 to 1.5 elements for each operation.
    most = 10 * MOST_OPERATIONS


class Ops:
    """Applies scalar Ops, each once."""

    def __init__(self, varying: Iterable[Variable] = ()) -> None:
        self._varying = set(varying)
        self._found: dict[tuple, list[Variable]] = {}

    def __call__(self, op: Op, inputs: list[Variable]) -> list[Variable]:
        """Return the outputs of an Op."""
        key = (op, *(_identity(i) for i in inputs))
        if key not in self._found:
            if len(self._found) >= MOST_OPERATIONS:
                raise NoForm
            self._found[key] = self._apply(op, inputs)
            if any(i in self._varying for i in inputs):
                self._varying.update(self._found[key])
        return self._found[key]

    def _apply(self, op: Op, inputs: list[Variable]) -> list[Variable]:
        return op.make_node(*inputs).outputs


class CheaperOps(Ops):
    """Applies scalar Ops, or what computes the same at less cost per row.

    Logistic functions of one argument share one exponential; a division by what rows share
    becomes a product with a reciprocal that is computed once.
    """

    def _apply(self, op: Op, inputs: list[Variable]) -> list[Variable]:
        if isinstance(op, ps.TrueDiv) and inputs[1] not in self._varying:
            [quotient] = super()._apply(op, inputs)
            divisor = ps.cast(inputs[1], quotient.type.dtype)  # of few digits, if of small integers
            return [ps.mul(inputs[0], ps.reciprocal(divisor))]
        if isinstance(op, ps.Softplus | ps.Sigmoid):
            [x] = inputs
            small = x
            for step in (ps.abs, ps.neg, ps.exp):
                [small] = self(step, [small])
            if isinstance(op, ps.Softplus):
                # Exact to 1e-16 absolutely, and cheaper than log1p; see _keep_small_softplus.
                return [ps.add(ps.switch(ps.gt(x, 0.0), x, 0.0), ps.log(ps.add(1.0, small)))]
            inverse = ps.reciprocal(ps.add(1.0, small))
            return [ps.switch(ps.gt(x, 0.0), inverse, ps.mul(small, inverse))]
        if isinstance(op, TriGamma):
            return [_trigamma(ps.cast(inputs[0], "float64"))]
        return super()._apply(op, inputs)


def _identity(var: Variable) -> Hashable:
    return (var.type, var.data.tobytes()) if isinstance(var, Constant) else var


def applied(graphs: Sequence[Variable], leaves: Sequence[Variable], apply: Ops) -> list[Variable]:
    """Make scalar graphs anew, up to leaves, by another way to apply Ops."""
    new: dict[Variable, Variable] = {v: v for v in leaves}
    for node in toposort(graphs, blockers=list(leaves)):
        outputs = apply(node.op, [new.get(i, i) for i in node.inputs])
        new.update(zip(node.outputs, outputs, strict=True))
    return [new.get(g, g) for g in graphs]


def _trigamma(x: Variable) -> Variable:
    """Differentiate digamma at x > 0, for which PyTensor would call Python at every row.

    The recurrence leads to an argument where the asymptotic series (Abramowitz and Stegun 1964,
    6.4.12) is exact to double precision.
    """
    terms = [ps.reciprocal(ps.sqr(ps.add(x, float(k)))) for k in range(_RECURSIONS)]
    inverse = ps.reciprocal(ps.add(x, float(_RECURSIONS)))
    square = ps.sqr(inverse)
    *numbers, last = _BERNOULLI
    series = ps.mul(last, square)
    for number in reversed(numbers):
        series = ps.mul(square, ps.add(number, series))
    far = ps.mul(inverse, ps.add(1.0, ps.mul(0.5, inverse), series))
    return ps.switch(ps.gt(x, 0.0), ps.add(*terms, far), np.nan)


def split(
    results: Sequence[Variable], varying: Sequence[Variable], shared: Sequence[Variable]
) -> ScalarFunction:
    """Compile scalar graphs, with what depends on shared inputs alone as a function of its own."""
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
    size = len(list(toposort(results)))
    row, row_key = scalar_function([varying[i] for i in used] + names, results)
    if not names:
        return ScalarFunction(row, None, used, [], 0, size, row_key)
    above = set(ancestors(names))
    used_shared = [i for i, v in enumerate(shared) if v in above]
    hoist, hoist_key = scalar_function([shared[i] for i in used_shared], names)
    key = None if row_key is None or hoist_key is None else row_key + hoist_key
    return ScalarFunction(row, hoist, used, used_shared, len(names), size, key)
