"""What was read of a model by units, against the model as it was written."""

import numpy as np
from pymc.logprob.utils import ParameterValueError
from pytensor.graph.basic import Variable
from pytensor.graph.rewriting.utils import rewrite_graph

from pymc_subsample.graph.concrete import concretize
from pymc_subsample.graph.numpy_functions import evaluate, numpy_function
from pymc_subsample.model import TallModel, TallModelError
from pymc_subsample.units.accuracy import Marginal
from pymc_subsample.units.drawing import StateDrawer
from pymc_subsample.units.reference import integrals
from pymc_subsample.units.unit_arrays import variable_of
from pymc_subsample.units.unit_densities import UnitFunctions

# Sums of many terms in another order agree to this share of their size.
_TOLERANCE = 1e-8
# Points: near the start, where conditions of the model hold.
_SPREADS = (0.1, 0.01, 1e-3, 1e-4)


def check_joint(functions: UnitFunctions, rng: np.random.Generator) -> None:
    """Compare the log density of all variables, by units and as the model has it, at a point.

    As far from the start as they agree: in the model's own graph probabilities are clipped, or
    rounded to 0 or 1, and rates overflow, where a slope of a year moves by a tenth.
    """
    names, model = functions.graphs.grouping.names, functions.graphs.reading.model
    theta = rng.standard_normal(functions.size)
    graphs = functions.graphs
    every = functions.of(np.arange(graphs.grouping.levels))
    u = rng.standard_normal((graphs.grouping.levels, graphs.size))
    for spread in _SPREADS:
        try:
            away, at = spread * theta, spread * u
            if graphs.states is not None:  # of which rows may rule some out
                shared = functions.ravel(functions.start) + away
                at = StateDrawer(every).draw(shared, rng, at)
            parts, written = _evaluated(every, away, at)
        except ParameterValueError:
            TallModel(model)  # names the rows, and columns that are not finite
            raise
        found, size = float(np.sum(parts)), float(np.sum(np.abs(parts)))
        if abs(found - written) <= _TOLERANCE * size < np.inf:
            return
    if not np.isfinite([found, written]).all():
        TallModel(model)
    _compare(found, written, size, names)


def _evaluated(every: UnitFunctions, away: np.ndarray, u: np.ndarray) -> tuple[list[float], float]:
    """Return parts of the log density by units, and that of the model."""
    graphs = every.graphs
    reading, model = graphs.reading, graphs.reading.model
    theta = every.ravel(every.start) + away
    shared = dict(zip(every.values, every.split(theta), strict=True))
    inputs = {reading.values[name]: value for name, value in shared.items()}
    inputs |= {reading.values[name]: variable_of(graphs, name, u) for name in graphs.shapes}
    before = {
        rv: reading.standard[rv][0] if rv in reading.standard else v
        for rv, v in reading.values.items()
    }
    volumes = [volume for _, volume in reading.standard.values()]
    found = evaluate([*before.values(), *volumes], reading.arrays | inputs)
    total = every.rest(theta)
    each = every.joint(theta, u)
    parts = [total, *each, *(-np.asarray(v) for v in found[len(before) :])]
    if graphs.active is not None:  # as `Tables.priors` has them
        parts.append(0.5 * np.sum(u[~(graphs.active | graphs.discrete)] ** 2))
    as_written = dict(zip(before, found, strict=False))
    point = {model.rvs_to_values[model[rv]].name: x for rv, x in as_written.items()}
    concrete = concretize([model.logp()], model.value_vars, point, reading.placed)
    given = {v: point[old.name] for v, old in zip(concrete.values, model.value_vars, strict=True)}
    [written] = evaluate(concrete.outputs, concrete.arrays | given)
    if not np.isfinite(written):  # probabilities that are rounded to 0 or 1, say
        [graph] = concrete.outputs
        graph = rewrite_graph(graph, include=("canonicalize", "stabilize"), clone=False)
        [written] = evaluate([graph], concrete.arrays | given)
    return parts, float(written)


def check_table(marginal: Marginal, log_likelihood: Variable) -> None:
    """Compare the graph of units' log-likelihoods with what functions of rows add up to."""
    functions = marginal.functions
    graphs, theta = functions.graphs, marginal.reference
    inputs = [graphs.reading.values[name] for name in graphs.shared]
    shared = numpy_function(inputs, [graphs.reading.constrained[name] for name in graphs.shared])
    found = shared(*functions.split(theta))
    [vectorised] = numpy_function(list(graphs.shared.values()), [log_likelihood])(*found)
    modes = marginal.modes_at(functions, theta)
    expected = integrals(functions, theta, modes, marginal.integral.per_dimension)[0]
    for a, b in zip(vectorised, expected, strict=True):
        _compare(a, b, abs(b) + 1.0, graphs.grouping.names)


def _compare(found: float, expected: float, size: float, names: list[str]) -> None:
    if not abs(found - expected) <= _TOLERANCE * size:
        raise TallModelError(
            f"The log density by units of {' and '.join(map(repr, names))} is {found}, where the "
            f"model has {expected}: it was not read as it is. Please report this model, and "
            "sample it with pm.NUTS."
        )
