"""Models as graphs of PyMC's, and models of some of their outputs."""

from collections.abc import Sequence

import pymc as pm
from pymc.model.fgraph import fgraph_from_model, model_from_fgraph
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph


def graph_of(model: pm.Model) -> tuple[FunctionGraph, dict[Variable, Variable]]:
    """Return a model's graph, without initial values, and what is there for its variables."""
    given = dict(model.rvs_to_initial_values)
    try:
        model.rvs_to_initial_values.update(dict.fromkeys(given))
        return fgraph_from_model(model)
    finally:
        model.rvs_to_initial_values.update(given)


def model_of(outputs: Sequence[Variable], graph: FunctionGraph, model: pm.Model) -> pm.Model:
    """Return a model of outputs of the graph of a model, which may have been rebuilt.

    It has the coordinates and the initial values of that model, but for values that are graphs.
    """
    some = FunctionGraph(outputs=list(outputs), clone=False)
    some._coords, some._dim_lengths = graph._coords, graph._dim_lengths
    new = model_from_fgraph(some, mutate_fgraph=True)
    for rv, value in model.rvs_to_initial_values.items():
        if rv.name in new.named_vars and not isinstance(value, Variable):
            new.rvs_to_initial_values[new[rv.name]] = value
    return new
