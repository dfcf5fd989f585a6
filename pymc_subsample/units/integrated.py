"""A model without its local variables: the log-likelihoods of units in their place."""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pymc.model.fgraph import fgraph_from_model, model_from_fgraph
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors
from pytensor.xtensor.type import XTensorType

from pymc_subsample.graph.concrete import rebuild
from pymc_subsample.graph.numpy_functions import numpy_function
from pymc_subsample.units.accuracy import Marginal
from pymc_subsample.units.functions import UnitFunctions
from pymc_subsample.units.graphs import UnitGraphs
from pymc_subsample.units.layout import Table, places, tables
from pymc_subsample.units.quadrature import nodes
from pymc_subsample.units.reading import Reading
from pymc_subsample.units.vectorised import broadcasts, vectorised
from pymc_subsample.units.verification import check_table

# Units of each table that are evaluated in another way.
_CHECKED = 20
_CONDITION = CheckParameterValue("parameters of units", can_be_replaced_by_ninf=True)


def without(reading: Reading, names: Sequence[str], functions: UnitFunctions) -> pm.Model:
    """Return the model without local variables and what depends on them."""
    model = reading.model
    given = dict(model.rvs_to_initial_values)
    try:
        model.rvs_to_initial_values.update(dict.fromkeys(given))
        old, memo = fgraph_from_model(model)
    finally:
        model.rvs_to_initial_values.update(given)
    local = {memo[model[name]] for name in names}
    integrated = {reading.terms[i].name for i in functions.graphs.grouping.index}
    dropped = {memo[model[name]] for name in integrated}
    kept = [v for v in old.outputs if v not in dropped and local.isdisjoint(ancestors([v]))]
    # Data that nothing reads any more would be set by `pm.set_data` in vain.
    read = [v for v in model.named_vars.values() if memo[v] in kept and v not in model.data_vars]
    above = set(ancestors([*read, *(model.rvs_to_values.get(v, v) for v in read)]))
    unread = {memo[v] for v in model.data_vars if v not in above}
    fgraph = FunctionGraph(outputs=[v for v in kept if v not in unread], clone=False)
    fgraph._coords, fgraph._dim_lengths = old._coords, old._dim_lengths
    return model_from_fgraph(fgraph, mutate_fgraph=True)


def start_at(model: pm.Model, functions: UnitFunctions, theta: np.ndarray) -> None:
    """Let the model start at the reference."""
    reading = functions.graphs.reading
    values = dict(zip(functions.values, functions.split(theta), strict=True))
    inputs = [reading.values[name] for name in values]
    outputs = [reading.constrained[name] for name in values]
    found = numpy_function(inputs, outputs)(*values.values())
    for name, value in zip(values, found, strict=True):
        model.set_initval(model[name], value)


def add_units(model: pm.Model, marginal: Marginal) -> None:
    """Add a potential with the log-likelihood of units for each table."""
    graphs = marginal.functions.graphs
    shared = {v: _tensor(model[name]) for name, v in graphs.shared.items()}
    name = " ".join(graphs.grouping.names)
    for table in tables(marginal.functions):
        some = table.of(_CHECKED)
        check_table(marginal, some.units, log_likelihood(marginal, some, "checked"))
        label = f"{name}: units of {' and '.join(map(str, table.lengths))} rows"
        term = log_likelihood(marginal, table, label)
        if graphs.conditions:
            term = _CONDITION(term, pt.all(pt.stack(graphs.conditions)))
        pm.Potential(label, rebuild([term], dict(shared))[0])
    terms = graphs.reading.terms
    integrated = {terms[i].name for i in graphs.grouping.index}
    for i, part in enumerate(terms):
        if part.name in integrated and i not in graphs.grouping.index:
            memo: dict[Variable, Variable] = {
                graphs.reading.constrained[n]: shared[v] for n, v in graphs.shared.items()
            }
            memo |= {v: pt.constant(x) for v, x in graphs.reading.arrays.items()}
            pm.Potential(f"{part.name}: part {i}", rebuild([part.graph], memo)[0])


def _tensor(variable: Variable) -> Variable:
    return variable.values if isinstance(variable.type, XTensorType) else variable


def log_likelihood(marginal: Marginal, table: Table, name: str) -> Variable:
    """Return the log-likelihood of each unit of a table."""
    functions, modes = marginal.functions, marginal.modes
    graphs = functions.graphs
    points, log_weights = nodes(graphs.size, marginal.integral.per_dimension)

    def data(what: str, value: np.ndarray) -> Variable:
        return pytensor.shared(value, name=f"{name}, {what}", shape=value.shape)

    m, S = modes.m[table.units], modes.S[table.units]
    u = []
    for i in range(graphs.size):
        node = data(f"mode{i}", m[:, i])[:, None]
        for j in range(graphs.size):
            node = node + data(f"spread{i}_{j}", S[:, i, j])[:, None] * points[None, :, j]
        u.append(node)
    volume = data("volume", modes.log_volume[table.units])
    total = volume[:, None] + log_weights[None, :]
    for t, (part, rows) in enumerate(
        zip([graphs.prior, *graphs.rows], functions.data, strict=True)
    ):
        length = 1 if t == 0 else table.lengths[t - 1]
        if not length:
            continue
        at, counts = places(rows, table.units, length)
        memo = {}
        for c, (v, column) in enumerate(zip(part.columns, rows.columns, strict=True)):
            axis = part.columns[v].axis
            values = np.moveaxis(np.take(column, at, axis=axis), axis, 0)
            memo[v] = data(f"{t}_{c}", np.ascontiguousarray(values))[:, None]
        repeated = 1 if broadcasts(part.output) else length
        memo |= {v: _local(graphs, name, u, repeated) for v, name in part.local.items()}
        found = vectorised(part.output, memo)
        if not counts.all():
            found = pt.switch(data(f"{t}_rows", counts)[:, None, :], found, 0.0)
        total = total + found.sum(axis=2)
    return pt.logsumexp(total, axis=1)


def _local(graphs: UnitGraphs, name: str, u: list[Variable], length: int) -> Variable:
    """Return a local variable at the nodes of units, with an axis for rows along which it is alike.

    That has one entry, or as many as rows.
    """
    place, shape = graphs.places[name], graphs.shapes[name]
    parts = u[place]
    axis = 2 + graphs.grouping.own[name]
    joined = pt.stack(parts, axis=2).reshape((*parts[0].shape, *shape)) if shape else parts[0]
    found = pt.expand_dims(joined, axis)
    if length == 1:
        return found
    return found * np.ones([length if i == axis else 1 for i in range(found.type.ndim)])
