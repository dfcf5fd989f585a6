"""Products of small matrices as loops.

PyTensor multiplies matrices by BLAS, which takes ten seconds to compile into a function, and a
microsecond to call.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key
from pytensor.tensor.math import Dot

# Multiplications, beyond which BLAS is faster.
_MOST = 4_096


class LoopDot(Dot):
    """The product of two matrices."""


@register_funcify_default_op_cache_key(LoopDot)
def _compiled(op: Op, node: Apply, **kwargs: Any) -> tuple[Callable, int]:
    dtype = node.outputs[0].type.numpy_dtype

    @numba_njit
    def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        out = np.zeros((x.shape[0], y.shape[1]), dtype)
        for i in range(x.shape[0]):
            for k in range(x.shape[1]):
                for j in range(y.shape[1]):
                    out[i, j] += x[i, k] * y[k, j]
        return out

    return product, 1


def use_loops(fgraph: FunctionGraph) -> None:
    """Replace products of matrices that are known to be small."""
    for node in fgraph.toposort():
        if type(node.op) is Dot:
            x, y = node.inputs
            sizes = (*x.type.shape, y.type.shape[1])
            if None not in sizes and np.prod(sizes) <= _MOST:
                fgraph.replace(node.outputs[0], LoopDot()(x, y), reason="small product")
