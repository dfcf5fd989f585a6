"""Models as graphs of PyMC's, and models of some of their outputs."""

from collections.abc import Sequence

import pymc as pm
from pymc.model.fgraph import fgraph_from_model, model_from_fgraph
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph


def graph_of(model: pm.Model) -> tuple[FunctionGraph, dict[Variable, Variable]]:
    """Return a model's graph, and what is there in the place of its variables.

    Initial values are left out, since PyMC cannot carry them over.
    """
    given = dict(model.rvs_to_initial_values)
    try:
        model.rvs_to_initial_values.update(dict.fromkeys(given))
        return fgraph_from_model(model)
    finally:
        model.rvs_to_initial_values.update(given)


def model_of(outputs: Sequence[Variable], graph: FunctionGraph) -> pm.Model:
    """Return a model of outputs of a graph, which may have been rebuilt, with its coordinates."""
    new = FunctionGraph(outputs=list(outputs), clone=False)
    new._coords, new._dim_lengths = graph._coords, graph._dim_lengths
    return model_from_fgraph(new, mutate_fgraph=True)
