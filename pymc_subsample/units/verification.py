"""What was read of a model by units, against the model as it was written."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pymc as pm
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
# What is misread differs by the distance, or the square of it, from one point to the next; what is
# clipped or rounded at one is not at the next. Between them, and what doubles of sums tell apart.
_SUDDEN, _DIGITS = 1e-3, 1e-13


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
    before = np.inf
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
        off = abs(found - written)
        misread = off > max(_SUDDEN * before, _DIGITS * size)
        if off <= _TOLERANCE * size < np.inf and not misread:
            return
        before = off if np.isfinite(off) else np.inf
    if not np.isfinite([found, written]).all():
        TallModel(model)
    raise _misread(found, written, names)


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
    return parts, _written(model, [model.logp()], as_written, reading.placed)[0]


def _written(
    model: pm.Model,
    graphs: Sequence[Variable],
    values: Mapping[str, np.ndarray],
    placed: Mapping[Variable, Any] = MappingProxyType({}),
) -> tuple[float, float]:
    """Return the sum of log densities as a model has them, given values, and that of their sizes.

    Values have the names of variables.
    """
    point = {model.rvs_to_values[model[rv]].name: x for rv, x in values.items()}
    concrete = concretize(graphs, model.value_vars, point, placed)
    given = {v: point[old.name] for v, old in zip(concrete.values, model.value_vars, strict=True)}

    def summed(outputs: Sequence[Variable]) -> tuple[float, float]:
        found = evaluate(outputs, concrete.arrays | given)
        return sum(float(np.sum(x)) for x in found), sum(float(np.sum(np.abs(x))) for x in found)

    found, size = summed(concrete.outputs)
    if not np.isfinite(found):  # probabilities that are rounded to 0 or 1, say
        rewritten = [
            rewrite_graph(graph, include=("canonicalize", "stabilize"), clone=False)
            for graph in concrete.outputs
        ]
        return summed(rewritten)
    return found, size


def check_rest(new: pm.Model, marginal: Marginal, units: Collection[str]) -> None:
    """Compare what a marginal model has beside units, at the reference, with the model's own.

    So that no term is lost with what is integrated out. `units` are the potentials of these.
    """
    functions, theta = marginal.functions, marginal.reference
    beside = [v for v in [*new.basic_RVs, *new.potentials] if v.name not in units]
    graphs = new.logp(vars=beside, sum=False) if beside else []
    values = dict(zip(functions.values, functions.split(theta), strict=True))
    found, size = _written(new, graphs, values)
    expected = functions.rest(theta)
    if not abs(found - expected) <= _TOLERANCE * (size + 1.0):
        names = " and ".join(map(repr, functions.graphs.grouping.names))
        raise TallModelError(
            f"Without the units of {names} the log density is {found} with {names} integrated out, "
            f"where it is {expected} in the model: terms are lost, or count twice. Please report "
            "this model, and sample it with pm.NUTS."
        )


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
        raise _misread(found, expected, names)


def _misread(found: float, expected: float, names: Sequence[str]) -> TallModelError:
    return TallModelError(
        f"The log density by units of {' and '.join(map(repr, names))} is {found}, where the "
        f"model has {expected}: it was not read as it is. Please report this model, and "
        "sample it with pm.NUTS."
    )
