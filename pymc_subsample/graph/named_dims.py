"""Graphs whose arrays have named dimensions, as graphs of plain arrays."""

from collections.abc import Sequence

from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.xtensor.basic import tensor_from_xtensor
from pytensor.xtensor.type import XTensorType


def without_names(outputs: Sequence[Variable], leaves: Sequence[Variable]) -> list[Variable]:
    """Return graphs down to some variables, which stay as they are, as graphs of plain arrays."""
    above = ancestors(outputs, blockers=leaves)
    if not any(isinstance(v.type, XTensorType) for v in above):
        return list(outputs)
    places = {v: v.type() for v in leaves}
    copies = clone_replace(list(outputs), places)
    fgraph = FunctionGraph(outputs=[_plain(v) for v in copies], clone=False)
    rewrite_graph(fgraph, include=("lower_xtensor",), clone=False)
    fgraph.replace_all([(place, v) for v, place in places.items()], import_missing=True)
    return list(fgraph.outputs)


def _plain(var: Variable) -> Variable:
    return tensor_from_xtensor(var) if isinstance(var.type, XTensorType) else var
