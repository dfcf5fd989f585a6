r"""Powers of what is zero in some rows, whatever the parameters are.

:math:`0^a` does not depend on parameters that do nothing to the zero, and neither do its
derivatives: in :math:`x^a`, where x is :math:`\sum_k x_k \alpha^k` of rows without any x_k, all are
zero for a > 0. PyTensor multiplies :math:`\log x` and :math:`x^{a-2}`, which are infinite, by what
is zero.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable

from pymc_subsample.likelihood.batch import BatchGraph
from pymc_subsample.symbolic.graph import depends_on, elemwise_name, rebuild, tensor_input

# Values of parameters, of which sums and products are not zero by chance.
_RANDOM = (0.5, 1.5)


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
    rng, parameters = np.random.default_rng(0), list(batch.parameters)
    moving = depends_on([rows], parameters)
    fixed: dict[Variable, Variable] = {
        v: pt.constant(rng.uniform(*_RANDOM, v.type.shape).astype(v.type.dtype)) for v in parameters
    }

    def hook(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if elemwise_name(node) != "Pow" or _is_whole(inputs[1]):
            return None
        base, exponent = node.inputs[0], inputs[1]
        if base not in axes or base not in moving:
            return None
        [test] = rebuild([pt.eq(base, 0)], dict(fixed))
        [test] = rebuild([test], dict(derived))
        if not any_row(test):
            return None
        zero = tensor_input("zero", "bool", [None if k == axes[base] else n
                                             for k, n in enumerate(base.type.shape)])  # fmt: skip
        batch.columns[zero], batch.axes[zero], derived[zero] = zero, axes[base], test
        of_zero = pt.switch(exponent > 0, 0.0, pt.switch(pt.eq(exponent, 0), 1.0, np.inf))
        power = pt.switch(zero, of_zero, pt.switch(zero, 1.0, inputs[0]) ** exponent)
        return [power.astype(node.outputs[0].type.dtype)]

    return rebuild([rows], {}, hook)[0]


def _is_whole(exponent: Variable) -> bool:
    """Whether powers are products."""
    return isinstance(exponent, Constant) and bool(np.all(exponent.data == np.trunc(exponent.data)))
