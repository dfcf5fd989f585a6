"""Scalar loops over arrays as compiled code: of each element, Python would take milliseconds."""

from functools import cache
from typing import Any

import numba
import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.scalar.loop import ScalarLoop
from pytensor.tensor.elemwise import Elemwise


class FastLoop(Op):
    """What `Elemwise` makes of a scalar loop."""

    __props__ = ("loop",)

    def __init__(self, loop: ScalarLoop) -> None:
        self.loop = loop

    def make_node(self, *inputs: Variable) -> Apply:
        """Take what the loop takes."""
        node = Elemwise(self.loop).make_node(*inputs)
        return Apply(self, node.inputs, [out.type() for out in node.outputs])

    def perform(self, node: Apply, inputs: Any, storage: Any) -> None:
        """Run the loop for each element."""
        arrays = np.broadcast_arrays(*inputs)
        shape = arrays[0].shape
        found = [np.empty(arrays[0].size, out.type.dtype) for out in node.outputs]
        _compiled(self.loop)(*(np.ravel(x) for x in arrays), *found)
        for place, values in zip(storage, found, strict=True):
            place[0] = values.reshape(shape)


@cache
def _compiled(loop: ScalarLoop) -> Any:
    # It takes a third of a second to import, and few models need it.
    from pytensor.link.numba.dispatch.basic import numba_funcify_ensure_cache

    size = len(loop.inputs_type)
    node = loop.make_node(ps.int32(), *(t() for t in loop.inputs_type))
    function, _ = numba_funcify_ensure_cache(loop, node)
    taken = [f"x{k}" for k in range(1 + size)]
    made = [f"y{k}" for k in range(loop.nout)]
    called = f"loop({', '.join(f'{x}[i]' for x in taken)})"
    code = f"def run({', '.join([*taken, *made])}):\n    for i in range(len(x0)):\n"
    code += f"        {''.join(f'{y}[i], ' for y in made)} = {called}"
    names = {"loop": function}
    exec(code, names)
    return numba.njit(names["run"], error_model="numpy")
