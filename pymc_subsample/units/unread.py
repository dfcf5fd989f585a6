"""Variables on which no row's density depends, as outcomes that are missing: their integral is one.

They are drawn from their distribution, given draws of the others.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.xtensor.type import XTensorType

from pymc_subsample.graph.concrete import concretize, rebuild, root_array
from pymc_subsample.graph.numpy_functions import frozen, numpy_function
from pymc_subsample.model.model_graphs import graph_of, model_of
from pymc_subsample.model.own_steps import own_steps
from pymc_subsample.model.selection import select_in_data


def unread(model: pm.Model) -> list[str]:
    """Return free variables of several elements, or integers, that nothing observed depends on.

    Neither itself, nor through other variables but these. What is missing in all rows is not
    observed.
    """
    kept = list(model.free_RVs)
    others = [*(v for v in model.observed_RVs if not _is_empty(model, v)), *model.potentials]
    found: list[Variable] = []
    while True:
        made = [v.owner.inputs for v in [*kept, *others] if v.owner is not None]
        read = set(ancestors(list(chain(*made))))
        new = [rv for rv in kept if rv not in read and _may_be(model, rv)]
        if not new:
            return [rv.name for rv in model.free_RVs if rv in found]
        found += new
        kept = [rv for rv in kept if rv not in new]


def without_unread(model: pm.Model) -> tuple[pm.Model, list[str]]:
    """Return a model without such variables, and their names."""
    names = unread(model)
    return (without_variables(model, names), names) if names else (model, [])


def _is_empty(model: pm.Model, observed: Variable) -> bool:
    values = root_array(model.rvs_to_values[observed])
    return values is not None and values.size == 0


def _may_be(model: pm.Model, rv: Variable) -> bool:
    """Whether a variable can be drawn here, and is not one of few that any sampler takes along."""
    if isinstance(rv.type, XTensorType) or rv.name in own_steps(model):
        return False
    shared = [v for v in model.basic_RVs if v is not rv and v.owner is rv.owner]
    discrete = rv.type.dtype.startswith(("int", "uint", "bool"))
    return not shared and (rv.type.ndim > 0 or discrete)


def without_variables(model: pm.Model, dropped: Sequence[str]) -> pm.Model:
    """Return a model without some variables, terms and potentials, and what depends on these.

    What reads an observed one of them reads its data.
    """
    old, memo = graph_of(model)
    gone = {memo[model[name]] for name in dropped}
    observed = [memo[v] for v in model.observed_RVs]
    data, free = {}, gone.difference(observed)
    for v in observed:
        distribution, values, *_ = v.owner.inputs
        if v in gone or not free.isdisjoint(ancestors([distribution], observed)):
            data[v] = values
    read_data = dict(zip(old.outputs, rebuild(old.outputs, dict(data)), strict=True))
    memo = {v: read_data.get(new, new) for v, new in memo.items() if new not in data}
    kept = [read_data[v] for v in old.outputs if v not in data]
    kept = [v for v in kept if gone.isdisjoint(ancestors([v]))]
    # Data that nothing reads any more would be set by `pm.set_data` in vain.
    named = [v for v in model.named_vars.values() if v not in model.data_vars]
    read = [v for v in named if memo.get(v) in kept]
    above = set(ancestors([*read, *(model.rvs_to_values.get(v, v) for v in read)]))
    idle = {memo[v] for v in model.data_vars if v not in above}
    return model_of([v for v in kept if v not in idle], old, model)


class UnreadDraws:
    """Draws of such variables, as value variables, given values of all others."""

    def __init__(self, model: pm.Model, names: Sequence[str]) -> None:
        # As PyMC has them, those of which others are made first.
        self.names = [rv.name for rv in model.free_RVs if rv.name in names]
        self._drawn = [_Afterwards(model, model[name]) for name in self.names]

    def at(self, point: Mapping[str, np.ndarray], rng: np.random.Generator) -> dict[str, Any]:
        """Return a draw given a point of value variables."""
        found: dict[str, Any] = {}
        for drawn in self._drawn:
            found[drawn.value] = drawn.draw({**point, **found}, rng)
        return found


class _Afterwards:
    """A variable as a function of value variables and random numbers."""

    def __init__(self, model: pm.Model, rv: Variable) -> None:
        value, node = model.rvs_to_values[rv], rv.owner
        self.value = value.name
        roots = [i for i in node.inputs if isinstance(i.type, RandomType)]
        parameters = [i for i in node.inputs if i not in roots]
        graphs = model.replace_rvs_by_values(parameters)
        tensors = [i for i, g in enumerate(graphs) if hasattr(g.type, "shape")]
        point = model.initial_point()
        concrete = concretize([graphs[i] for i in tensors], model.value_vars, point)
        outputs = select_in_data(concrete.outputs, concrete.arrays, concrete.values)
        for i, output in zip(tensors, frozen(outputs, concrete.arrays), strict=True):
            graphs[i] = output
        random = {root: root.type() for root in roots}
        given = iter(graphs)
        inputs = [random[i] if i in random else next(given) for i in node.inputs]
        new = node.op.make_node(*inputs).outputs[node.outputs.index(rv)]
        transform = model.rvs_to_transforms[rv]
        if transform is not None:
            new = transform.forward(new, *inputs)
        above = set(ancestors([new]))
        read = zip(model.value_vars, concrete.values, strict=True)
        places = {own.name: place for own, place in read if place in above}
        self._inputs, self._random = list(places), len(random)
        self._function = numpy_function([*random.values(), *places.values()], [new])

    def draw(self, point: Mapping[str, np.ndarray], rng: np.random.Generator) -> np.ndarray:
        """Draw it given a point of value variables."""
        seeds = rng.integers(2**63, size=self._random)
        generators: list[Any] = [np.random.default_rng(seed) for seed in seeds]
        return self._function(*generators, *(point[n] for n in self._inputs))[0]
