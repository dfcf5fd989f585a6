"""One row of a batch graph as a graph of scalars.

Every variable becomes an array of PyTensor scalars whose row axis has length one: sums become
additions, a softmax over classes becomes a few exponentials, a choice by an integer column becomes
a chain of switches.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.tensor.subtensor import unflatten_index_variables

from pymc_subsample.graph.interpreter import Elements, NoForm, indexed_axes

# Elements that are gone through, at up to 0.1 ms each.
_MOST_SCALARS = 6_000


class Scalars(Elements):
    """Arrays of scalars that stand for variables, for one row, by ``apply(scalar_op, inputs)``."""

    most = _MOST_SCALARS

    def __init__(self, known: Mapping[Variable, np.ndarray], apply: Callable[[Op, list], list]):
        super().__init__(known)
        self._scalar = apply
        self._count = 0

    def _results(self, node: Apply) -> list[np.ndarray]:
        if isinstance(node.op, OpFromGraph):
            return self.evaluate(inline_ofg_node(node))
        found = super()._results(node)
        self._count += sum(r.size for r in found)
        if self._count > self.most:
            raise NoForm
        return found

    def _data(self, array: np.ndarray) -> np.ndarray:
        if array.size > self.most:
            raise NoForm
        return super()._data(array)

    def _number(self, x: np.generic) -> Any:
        return ps.constant(x, dtype=x.dtype.name)

    def _integer(self, element: Any) -> int:
        if not isinstance(element, Constant):
            raise NoForm
        return int(element.data)

    def _apply(self, op: Op, elements: list) -> list:
        return self._scalar(op, elements)

    def _pick(self, table: np.ndarray, index: Sequence) -> Any:
        *fixed, last = index
        row = table[tuple(map(self._integer, fixed))]
        with suppress(NoForm):
            return row[self._integer(last)]
        chosen = row[-1]
        for k, value in enumerate(row[:-1]):
            [chosen] = self._scalar(ps.switch, [self._is(last, k, len(row)), value, chosen])
        return chosen

    def _is(self, index: Any, k: int, length: int) -> Any:
        same = [self._scalar(ps.eq, [index, place])[0] for place in (k, k - length)]
        return self._scalar(ps.or_, same)[0]

    def _increased(self, node: Apply) -> np.ndarray:
        try:
            return super()._increased(node)
        except NoForm:
            x, y = (self.value(i) for i in node.inputs[:2])
        entries = unflatten_index_variables(node.inputs[2:], node.op.idx_list)
        index = [self.value(entries[a]) for a in indexed_axes(entries)]
        if len(index) != x.ndim or y.size != 1 or any(i.size != 1 for i in index):
            raise NoForm
        *fixed, last = [i.item() for i in index]
        result, value = x.copy(), y.item()
        row = result[tuple(map(self._integer, fixed))]
        for k, old in enumerate(row.copy()):
            new = value
            if not node.op.set_instead_of_inc:
                [new] = self._scalar(ps.add, [old, value])
            [row[k]] = self._scalar(ps.switch, [self._is(last, k, len(row)), new, old])
        return result
