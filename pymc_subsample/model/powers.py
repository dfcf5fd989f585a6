r"""Powers of what is zero in some rows, whatever the parameters are.

:math:`0^a` does not depend on parameters that do nothing to the zero, and neither do its
derivatives: in :math:`x^a`, where x is :math:`\sum_k x_k \alpha^k` of rows without any x_k, all are
zero for a > 0, and those of its root. PyTensor multiplies :math:`\log x` and :math:`x^{a-2}`, which
are infinite, by what is zero.
"""

from collections.abc import Callable, Collection, Mapping
from functools import reduce
from operator import and_, mul, or_

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Sum
from pytensor.tensor.subtensor import Subtensor

from pymc_subsample.graph.concrete import depends_on, rebuild, tensor_input
from pymc_subsample.graph.nodes import elemwise_name, is_product
from pymc_subsample.model.batch import BatchGraph

# Functions that are zero where their argument is.
_ODD = {"Abs", "ArcTan", "Cast", "Expm1", "Log1p", "Neg", "Sinh", "Sqr", "Sqrt", "Tanh"}


def without_zeros(
    rows: Variable,
    batch: BatchGraph,
    axes: Mapping[Variable, int],
    derived: dict[Variable, Variable],
    any_row: Callable[[Variable], bool],
) -> Variable:
    """Write powers of what data make zero as a choice between such rows and the others.

    `axes` are those of variables that carry rows. ``any_row(test)`` says whether a graph of columns
    is true of any row; `batch` and `derived` gain columns that say which rows are zero.
    """
    moving = depends_on([rows], list(batch.parameters))
    zeros: dict[Variable, Variable | None] = {}

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        found = _power(node, inputs, derived)
        if found is None:
            return None
        base, value, exponent = found
        if elemwise_name(node) == "Exp" and base in derived:
            # PyTensor knows powers of data that are zero, where they are written as such.
            log = derived[base]
            if not any_row(pt.eq(log, -np.inf)):
                return None
            value = tensor_input("base", log.type.dtype, base.type.shape)
            batch.columns[value], batch.axes[value] = value, batch.axes[base]
            derived[value] = log.owner.inputs[0].astype(log.type.dtype)
            return [(value**exponent).astype(node.outputs[0].type.dtype)]
        if _is_whole(exponent):
            return None
        if base not in axes or base not in moving:
            return None
        found = _zero(base, moving, zeros)
        if found is None or found.type.broadcastable[axes[base]]:
            return None
        [test] = rebuild([found], dict(derived))
        if not any_row(test):
            return None
        shape = [None if k == axes[base] else n for k, n in enumerate(base.type.shape)]
        shape = [1 if one else n for one, n in zip(found.type.broadcastable, shape, strict=True)]
        zero = tensor_input("zero", "bool", shape)
        batch.columns[zero], batch.axes[zero], derived[zero] = zero, axes[base], test
        of_zero = pt.switch(exponent > 0, 0.0, pt.switch(pt.eq(exponent, 0), 1.0, np.inf))
        power = pt.switch(zero, of_zero, pt.switch(zero, 1.0, value) ** exponent)
        return [power.astype(node.outputs[0].type.dtype)]

    return rebuild([rows], {}, hook)[0]


def _power(
    node: Apply, inputs: list[Variable], derived: Mapping[Variable, Variable]
) -> tuple[Variable, Variable, Variable] | None:
    """Return the base of a power as it was and as it is, and the exponent.

    Also of one that is written ``exp(exponent * log(base))``. Where that logarithm is a column, it
    stands for the base.
    """
    name = elemwise_name(node)
    if name in ("Pow", "Sqrt"):
        return node.inputs[0], inputs[0], [*inputs, pt.constant(0.5)][1]
    if name != "Exp" or elemwise_name(node.inputs[0].owner) != "Mul":
        return None
    factors, now = node.inputs[0].owner.inputs, inputs[0].owner.inputs
    logs = [k for k, f in enumerate(factors) if elemwise_name(derived.get(f, f).owner) == "Log"]
    if len(logs) != 1 or len(now) != len(factors):
        return None
    [k] = logs
    others = [x for j, x in enumerate(now) if j != k]
    if factors[k] in derived:
        return factors[k], now[k], reduce(mul, others)
    return factors[k].owner.inputs[0], now[k].owner.inputs[0], reduce(mul, others)


def _zero(
    var: Variable, moving: Collection[Variable], known: dict[Variable, Variable | None]
) -> Variable | None:
    """Return where data make an expression zero, a graph without what moves; None for nowhere.

    By the form of the expression: at some parameters others may underflow to zero. What is found
    joins what is `known`.
    """
    if var not in known:
        known[var] = _zero_by_form(var, moving, known)
    return known[var]


def _zero_by_form(
    var: Variable, moving: Collection[Variable], found: dict[Variable, Variable | None]
) -> Variable | None:
    if var not in moving:
        return pt.eq(var, 0)
    if var.owner is None:
        return None
    node, name, op = var.owner, elemwise_name(var.owner), var.owner.op
    of = [_zero(i, moving, found) for i in node.inputs]
    known = [z for z in of if z is not None]
    if not known:
        return None
    if name == "Mul":
        return reduce(or_, known)
    if name in ("Add", "Sub"):
        return reduce(and_, known) if len(known) == len(of) else None
    if name == "TrueDiv":
        return of[0]
    if name == "Second":
        return of[1]
    if name in _ODD:
        return of[0]
    if name == "Switch" and node.inputs[0] not in moving:
        first, second = (np.False_ if z is None else z for z in of[1:])
        return pt.switch(node.inputs[0], first, second)
    if is_product(node) and of[0] is not None:
        # Rows of the first factor that are all zeros.
        zeros = pt.all(of[0], axis=-1)
        missing = var.type.ndim - zeros.type.ndim
        return pt.shape_padright(zeros, missing) if missing else zeros
    if isinstance(op, Sum):
        return pt.all(known[0], axis=op.axis)
    if isinstance(op, DimShuffle) or (isinstance(op, Subtensor) and of[0] is not None):
        return op.make_node(known[0], *node.inputs[1:]).outputs[0]
    return None


def _is_whole(exponent: Variable) -> bool:
    """Whether powers are products."""
    return isinstance(exponent, Constant) and bool(np.all(exponent.data == np.trunc(exponent.data)))
