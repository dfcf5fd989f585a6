"""Products of group effects and their scales, taken before rows pick from them.

In ``tau * z[group]`` rows would see tau and z, and a log-likelihood that is not quadratic in them.
In ``(tau * z)[group]`` they see one vector of effects, and in ``tau * (z[home] - z[away])`` the
difference of two elements of it.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable, equal_computations
from pytensor.graph.traversal import ancestors
from pytensor.tensor.subtensor import AdvancedSubtensor, unflatten_index_variables

from pymc_subsample.likelihood.graph import elemwise_name, rebuild

_PRODUCTS, _SUMS = {"Mul", "TrueDiv"}, {"Add", "Sub"}
_AFFINE = {*_SUMS, "Neg", *_PRODUCTS}


def lifted(
    outputs: Sequence[Variable],
    dependent: set[Variable],
    arrays: Mapping[Variable, np.ndarray],
) -> list[Variable]:
    """Rebuild graphs with products of gathered parameters as gathers of products.

    Where a table is no larger than what rows pick from it.

    Parameters
    ----------
    outputs : sequence of Variable
        Log-likelihoods of all rows.
    dependent : set of Variable
        Variables whose value depends on parameters.
    arrays : mapping of Variable to ndarray
        Values of the data placeholders.
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

    def distributed(factors: Sequence[Variable]) -> Variable | None:
        """Multiply a sum of what rows pick by several columns: a sum of gathers."""
        sums = [f for f in factors if elemwise_name(f.owner) in _SUMS and depends(f)]
        if len(sums) != 1:
            return None
        total = []
        for sign, term in _terms(sums[0]):
            parts = [*(f for f in factors if f is not sums[0]), *term]
            columns = [f for f in parts if not depends(f)]
            product = pt.mul(*(f for f in parts if depends(f)))
            if not all(product.type.broadcastable):
                product = gathered(product)
            if product is None:
                return None
            total.append(sign * pt.mul(product, *columns))
        return pt.add(*total)

    def depends(var: Variable) -> bool:
        return not dependent.isdisjoint(ancestors([var]))

    def hook(node: Apply, inputs: list[Variable]):
        pairs = list(zip(node.inputs, inputs, strict=True))
        factors = [new for old, new in pairs if old in dependent]
        if elemwise_name(node) not in _PRODUCTS or len(factors) < 2:
            return None
        new = gathered(node.op.make_node(*inputs).outputs[0])
        if new is None and elemwise_name(node) == "Mul" and len(factors) < len(inputs):
            # A product of parameters and columns, which no table is.
            new = gathered(node.op.make_node(*factors).outputs[0])
            if new is not None:
                new = node.op(new, *(i for old, i in pairs if old not in dependent))
        if new is None and elemwise_name(node) == "Mul":
            new = distributed(inputs)
        return None if new is None or new.type != node.outputs[0].type else [new]

    return rebuild(outputs, {}, hook)


def _terms(total: Variable, sign: float = 1.0) -> Iterator[tuple[float, list[Variable]]]:
    """Yield the sign and the factors of each term of a sum."""
    name = elemwise_name(total.owner)
    if name in _SUMS or name == "Neg":
        first, *others = total.owner.inputs
        yield from _terms(first, -sign if name == "Neg" else sign)
        for other in others:
            yield from _terms(other, -sign if name == "Sub" else sign)
    else:
        yield sign, list(total.owner.inputs) if name == "Mul" else [total]


class _Gather:
    """Rows that pick from the first axes of tables, all by the same integer columns."""

    def __init__(self, dependent: set[Variable], arrays: Mapping[Variable, np.ndarray]):
        self.node: Apply | None = None
        self._dependent, self._arrays = dependent, arrays

    def table(self, var: Variable) -> Variable | None:
        """Return the table of which an affine graph is the gather; None where it is not one."""
        if self._picks(var.owner):
            return var.owner.inputs[0]
        if not var.type.ndim:
            return var
        if var.type.broadcastable[0]:  # the same in every row
            more = self._n_columns() - 1
            return var if not more else var.dimshuffle(["x"] * more + list(range(var.type.ndim)))
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
        entries = list(unflatten_index_variables(index, node.op.idx_list))
        first = [e for e in entries if not isinstance(e, slice)]
        usable = (
            entries[: len(first)] == first
            and all(e == slice(None) for e in entries[len(first) :])
            and all(e.type.ndim == 1 and e.type.dtype != "bool" for e in first)
            and not any(e in self._dependent for e in first)
            and None not in x.type.shape
        )
        if not usable or not self._from_parameters(x):
            return False
        if self.node is None:
            self.node = node
        return self.node.op.idx_list == node.op.idx_list and all(
            self._same(a, b) for a, b in zip(self.node.inputs[1:], index, strict=True)
        )

    def _from_parameters(self, table: Variable) -> bool:
        """Whether a table is made of parameters; one that was made here has inputs that are."""
        if table in self._dependent:
            return True
        return table.owner is not None and any(
            i in self._dependent or (i.owner is not None and self._from_parameters(i))
            for i in table.owner.inputs
        )

    def _same(self, a: Variable, b: Variable) -> bool:
        if a is b:
            return True
        known = a in self._arrays and b in self._arrays
        return known and np.array_equal(self._arrays[a], self._arrays[b])

    def _n_columns(self) -> int:
        return 1 if self.node is None else len(self.node.inputs) - 1


def _size(var: Variable) -> float:
    return float(np.prod([np.inf if n is None else n for n in var.type.shape]))
