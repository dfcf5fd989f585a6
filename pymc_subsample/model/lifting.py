"""Products of effects and their scales, taken before rows pick from them or add them up.

In ``tau * z[group]`` or ``tau * (X @ z)`` rows would see tau and z, and a log-likelihood that is
not quadratic in them. In ``(tau * z)[group]`` and ``X @ (tau * z)`` they see one vector of effects,
and in ``tau * (z[home] - z[away])`` the difference of two elements of it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable, equal_computations
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Sum
from pytensor.tensor.subtensor import AdvancedSubtensor

from pymc_subsample.graph.concrete import on_disk, rebuild
from pymc_subsample.graph.nodes import elemwise_name, index_entries, is_product

_PRODUCTS, _SUMS = {"Mul", "TrueDiv"}, {"Add", "Sub", "Neg"}
_AFFINE = {*_SUMS, *_PRODUCTS}


def lifted(
    outputs: Sequence[Variable], dependent: set[Variable], arrays: Mapping[Variable, np.ndarray]
) -> list[Variable]:
    """Rebuild graphs with products of gathered parameters as gathers of products.

    Where a table is no larger than what rows pick from it. A product of parameters and a sum of
    columns becomes a sum of columns with such coefficients.
    """
    tables: list[Variable] = []

    def gathered(product: Variable) -> Variable | None:
        gather = _Gather(dependent, arrays)
        table = gather.table(product)
        if table is None or gather.node is None or _size(table) > _size(product):
            return None
        same = (t for t in tables if equal_computations([t], [table]))
        table = next(same, table)
        tables.append(table)
        _, *index = gather.node.inputs
        new = AdvancedSubtensor(gather.node.op.idx_list)(table, *index)
        return new if new.type.shape == product.type.shape else None

    depends = partial(_depends, dependent=dependent)

    def multiplied(factors: Sequence[Variable]) -> Variable | None:
        """Multiply columns and parameters, these before rows see them; None where that fails."""
        columns = [f for f in factors if not depends(f)]
        moved = [f for f in factors if f not in columns]
        product = pt.mul(*moved)
        if product.type.ndim and not product.type.broadcastable[0]:
            found = gathered(product)
            product = distributed(moved) if found is None else found
        return None if product is None else pt.mul(product, *columns)

    def distributed(factors: Sequence[Variable]) -> Variable | None:
        """Multiply the terms of a sum, or the coefficients of one of columns."""
        scales = [f for f in factors if all(f.type.broadcastable)]
        others = [f for f in factors if f not in scales]
        sums = [f for f in others if is_sum(f)]
        if len(sums) == 1:
            rest = [f for f in factors if f is not sums[0]]
            found = [(sign, multiplied([*rest, *term])) for sign, term in terms_of(sums[0])]
            terms = [sign * term for sign, term in found if term is not None]
            return pt.add(*terms) if len(terms) == len(found) else None
        if len(others) == 1 and scales:
            return scaled(others[0], pt.mul(*(f.dimshuffle([]) for f in scales)))
        return None

    def scaled(var: Variable, scale: Variable) -> Variable | None:
        node = var.owner
        if node is None:
            return None
        if isinstance(node.op, DimShuffle | Sum):
            new = scaled(node.inputs[0], scale)
            if new is None:
                return None
            return node.op(new) if isinstance(node.op, DimShuffle) else new.sum(axis=node.op.axis)
        product = is_product(node)
        moved = [i for i in node.inputs if depends(i)]
        if not (product or elemwise_name(node) == "Mul") or len(moved) != 1:
            return None
        if not product and not any(moved[0].type.broadcastable):
            return None  # as long as the rows
        return node.op(*(i * scale if i is moved[0] else i for i in node.inputs))

    def is_sum(var: Variable) -> bool:
        # Terms of data alone stay as they are: integers of few bits overflow as they are added.
        return elemwise_name(var.owner) in _SUMS and depends(var)

    def terms_of(total: Variable, sign: float = 1.0) -> Iterator[tuple[float, list[Variable]]]:
        """Yield the sign and the factors of each term of a sum."""
        name = elemwise_name(total.owner)
        if is_sum(total):
            first, *others = total.owner.inputs
            yield from terms_of(first, -sign if name == "Neg" else sign)
            for other in others:
                yield from terms_of(other, -sign if name == "Sub" else sign)
        else:
            split = name == "Mul" and depends(total)
            yield sign, list(total.owner.inputs) if split else [total]

    def is_total(var: Variable) -> bool:
        node = var.owner
        return var.type.ndim > 0 and not (node is None or isinstance(node.op, AdvancedSubtensor))

    clients = Counter(i for node in toposort(outputs) for i in dict.fromkeys(node.inputs))

    def hook(node: Apply, inputs: list[Variable]):
        moved = [new for old, new in zip(node.inputs, inputs, strict=True) if old in dependent]
        if elemwise_name(node) not in _PRODUCTS or len(moved) < 2:
            return None
        if not node.outputs[0].type.ndim or node.outputs[0].type.broadcastable[0]:
            return None
        new = gathered(node.op.make_node(*inputs).outputs[0])
        # A sum that rows see without the product as well would be seen twice.
        alone = all(clients[i] == 1 or not is_total(i) for i in node.inputs if i in dependent)
        if new is None and elemwise_name(node) == "Mul" and alone:
            new = multiplied(inputs)
        return None if new is None or new.type != node.outputs[0].type else [new]

    return rebuild(outputs, {}, hook)


def _depends(var: Variable, dependent: set[Variable]) -> bool:
    """Whether a variable, which may have been made here, is made of parameters."""
    return not dependent.isdisjoint(ancestors([var]))


class _Gather:
    """Rows that pick from the first axes of tables, all by the same integer columns."""

    def __init__(self, dependent: set[Variable], arrays: Mapping[Variable, np.ndarray]):
        self.node: Apply | None = None
        self._dependent, self._arrays = dependent, arrays
        self._tables: dict[Variable, Variable | None] = {}

    def table(self, var: Variable) -> Variable | None:
        """Return the table of which an affine graph is the gather; None where it is not one."""
        # Steps of a recursion are read twice each: without this, time doubles with each step.
        if var not in self._tables:
            self._tables[var] = self._table(var)
        return self._tables[var]

    def _table(self, var: Variable) -> Variable | None:
        if self._picks(var.owner):
            return var.owner.inputs[0]
        if not var.type.ndim:
            return var
        if var.type.broadcastable[0]:  # the same in every row
            more = self._n_columns() - 1
            return var if not more else var.dimshuffle(["x"] * more + list(range(var.type.ndim)))
        if var.owner is not None and isinstance(var.owner.op, DimShuffle):
            table, (rows, *rest) = self.table(var.owner.inputs[0]), var.owner.op.new_order
            if table is None or rows != 0:
                return None
            more = self._n_columns() - 1  # axes of the table in the place of the rows
            order = [axis if axis == "x" else axis + more for axis in rest]
            return table.dimshuffle([*range(more + 1), *order])
        if elemwise_name(var.owner) not in _AFFINE:
            return None
        # Gathers first: they say how many axes the others lack.
        inputs = sorted(var.owner.inputs, key=lambda i: i.type.broadcastable[:1])
        tables = {i: self.table(i) for i in inputs}
        if any(table is None for table in tables.values()):
            return None
        return var.owner.op(*(tables[i] for i in var.owner.inputs))

    def _picks(self, node: Apply | None) -> bool:
        if node is None or not isinstance(node.op, AdvancedSubtensor):
            return False
        x, *index = node.inputs
        usable = (
            index_entries(node) == index + [slice(None)] * (x.type.ndim - len(index))
            and all(e.type.ndim == 1 and e.type.dtype != "bool" for e in index)
            and self._dependent.isdisjoint(index)
            and None not in x.type.shape
        )
        if not usable or not _depends(x, self._dependent):
            return False
        if self.node is None:
            self.node = node
        return self.node.op.idx_list == node.op.idx_list and all(
            self._same(a, b) for a, b in zip(self.node.inputs[1:], index, strict=True)
        )

    def _same(self, a: Variable, b: Variable) -> bool:
        if a is b:
            return True
        x, y = self._arrays.get(a), self._arrays.get(b)
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
            return np.array_equal(x, y)
        return on_disk(x) and on_disk(y) and bool(x == y)

    def _n_columns(self) -> int:
        return 1 if self.node is None else len(self.node.inputs) - 1


def _size(var: Variable) -> float:
    return float(np.prod([np.inf if n is None else n for n in var.type.shape]))
