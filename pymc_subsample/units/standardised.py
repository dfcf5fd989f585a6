"""Values of local variables in other forms: standardised, and single ones among others."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.multivariate import MvNormalRV
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Alloc
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor

from pymc_subsample.graph.concrete import rebuild, tensor_input
from pymc_subsample.units.places import PLACES, picks, placed, read_through
from pymc_subsample.units.reading import Reading


def standardised(reading: Reading, names: Iterable[str]) -> Reading:
    """Return a reading in which the values of variables with a scale are ``(x - mean) / scale``.

    Nodes that are fixed in these follow the mean and the scale, which may be near zero. A single
    missing value is the first of two.
    """
    for name in names:
        reading = _widened(reading, name) if name in reading.among_others else reading
        if name not in reading.forms:
            continue
        location, scale = reading.forms[name]
        value, op = reading.values[name], reading.model[name].owner.op
        e = tensor_input(value.name, value.type.dtype, value.type.shape)
        joint = isinstance(op, MvNormalRV)
        x = location + (pt.dot(e, scale.T) if joint else scale * e)
        if x.type.shape != value.type.shape:
            continue
        volume = log_volume(reading, name, e)
        reading = _with(reading, value, x)
        if isinstance(op, NormalRV) or joint:
            prior = -0.5 * (e**2 + np.log(2 * np.pi))
            prior = prior.sum(axis=1) if joint else prior
        else:  # its location and scale are those of values that are moved by now
            prior = reading.priors[name] + pt.log(reading.forms[name][1]) + pt.zeros_like(e)
        reading.priors[name], reading.values[name] = prior, e
        before, more = reading.standard.get(name, (x, 0.0))
        reading.standard[name] = before, volume + more
        del reading.forms[name]
    return reading


def _widened(reading: Reading, name: str) -> Reading:
    """Put two values in the place of a single one, of which nothing reads the second.

    A length of one is broadcast, so that the level of a single value is not told from what all
    levels share; of two it is.
    """
    value, arrays = reading.values[name], reading.arrays
    if value.type.shape != (1,):
        return reading
    both = tensor_input(value.name, value.type.dtype, (2,))
    first = both[placed(np.zeros(1, dtype=int), arrays)]

    def longer(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if isinstance(node.op, AdvancedSubtensor):  # the second reads nothing of others
            more = [_with_none(i, arrays) for i in inputs]
            return None if more == inputs else node.op.make_node(*more).outputs
        fills = isinstance(node.op, Alloc | SpecifyShape) and inputs[0].type.shape == (2,)
        return [inputs[0]] if fills and node.outputs[0].type.shape == (1,) else None

    def picked(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if not isinstance(node.op, AdvancedSubtensor) or first not in ancestors(inputs[:1]):
            return None
        counted = any(i in arrays and i.name != PLACES and np.any(arrays[i] < 0) for i in inputs)
        [table] = rebuild(inputs[:1], {first: both}, longer)
        # Negative numbers of a user's count from the end.
        return None if counted else node.op.make_node(table, *inputs[1:]).outputs

    try:
        graphs = [reading.priors[name], reading.constrained[name], *reading.forms.get(name, ())]
        priors, constrained, *form = rebuild(graphs, {value: both}, longer)
        new = _with(reading, value, first, picked)
    except (ValueError, TypeError, AssertionError):  # of a graph that is written for one
        return reading
    if not priors.type.shape == constrained.type.shape == (2,):
        return reading
    new.priors[name], new.values[name], new.constrained[name] = priors, both, constrained
    new.standard[name] = first, priors[1]
    if form:
        new.forms[name] = form[0], form[1]
    return new


def _with_none(index: Variable, arrays: dict[Variable, np.ndarray]) -> Variable:
    """Return places of two rows, of which the second has none, for those of a single one."""
    if index.name != PLACES or index.type.shape[0] != 1:
        return index
    value = arrays[index]
    return placed(np.concatenate([value, np.full_like(value, -1)]), arrays)


def log_volume(reading: Reading, name: str, e: Variable) -> Variable:
    """Return log |d x / d e| of a variable ``x = mean + scale e``."""
    _, scale = reading.forms[name]
    if isinstance(reading.model[name].owner.op, MvNormalRV):
        return pt.log(pt.diag(scale)).sum() * e.type.shape[0]
    return (pt.log(scale) + pt.zeros_like(e)).sum()


def _standard(new: Variable, reading: Reading) -> list[Variable]:
    """Return the input that a graph which takes the place of a value has in its place."""
    known = {*reading.values.values(), *reading.arrays}
    return [v for v in ancestors([new]) if v.owner is None and v not in known
            and not isinstance(v, Constant)]  # fmt: skip


def _with(
    reading: Reading,
    old: Variable,
    new: Variable,
    hook: Callable[[Apply, list[Variable]], list[Variable] | None] = lambda node, inputs: None,
) -> Reading:
    """Put a graph in the place of a value; the hook is that of `rebuild`."""
    pairs = [graph for form in reading.forms.values() for graph in form]
    moved = [graph for pair in reading.standard.values() for graph in pair]
    derived = reading.derived.values()
    whole = rebuild([*reading.graphs, *pairs, *derived, *moved], {old: new}, hook)
    if picks(new):
        values = [*(v for v in reading.values.values() if v is not old), *_standard(new, reading)]
        whole = read_through(whole, reading.arrays, values)
    graphs = iter(whole)
    return replace(
        reading,
        values=dict(reading.values),
        terms=[replace(term, graph=next(graphs)) for term in reading.terms],
        priors={name: next(graphs) for name in reading.priors},
        constrained={name: next(graphs) for name in reading.constrained},
        checks={next(graphs): said for said in reading.checks.values()},
        forms={name: (next(graphs), next(graphs)) for name in reading.forms},
        derived={name: next(graphs) for name in reading.derived},
        standard={name: (next(graphs), next(graphs)) for name in reading.standard},
    )
