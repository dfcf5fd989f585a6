"""Models whose rows are sets of rows, where log-likelihoods are functions of sums over sets."""

from functools import partial

import numpy as np
import pymc as pm
import pytensor
from pymc.logprob.basic import transformed_conditional_logp
from pymc.model.fgraph import ModelObservedRV
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.xtensor.type import XTensorType

from pymc_subsample.graph.concrete import concretize, rebuild
from pymc_subsample.graph.numpy_functions import evaluate
from pymc_subsample.model.errors import CoupledRows, TallModelError
from pymc_subsample.model.model_graphs import graph_of, model_of
from pymc_subsample.model.parameter_checks import split_checks
from pymc_subsample.model.set_axes import adds
from pymc_subsample.model.set_terms import SetTerm
from pymc_subsample.model.support import owner_of_check
from pymc_subsample.model.terms import TermPart, parts_of


def sets_side_by_side(
    model: pm.Model, *, apart: bool = True, refused: dict[str, TallModelError] | None = None
) -> pm.Model:
    """Return a model whose rows are sets of rows, where terms are functions of sums over sets.

    Such terms become potentials, one for each number of rows that sets are filled up to, or unless
    `apart` one with all sets in order, by the term's name. The model itself if there are none, or
    if their rows depend on each other in other ways: `refused` gains why, by the names of terms.
    """
    observed = {rv.name: rv for rv in model.observed_RVs}
    found = [
        v
        for v in [*model.observed_RVs, *model.potentials]
        if any(adds(a.owner) for a in ancestors([v]))
    ]
    if not found:
        return model
    shapes = model.eval_rv_shapes()
    point = {rv.name: np.zeros(shapes[rv.name]) for rv in model.free_RVs}
    free = {rv: rv.type(name=rv.name) for rv in model.free_RVs}
    values = {**free, **{rv: model.rvs_to_values[rv] for rv in model.observed_RVs}}
    rvs = [v for v in found if v.name in observed]
    graphs = rvs and transformed_conditional_logp(
        rvs, rvs_to_values=values, rvs_to_transforms=dict.fromkeys(values)
    )
    graphs += rebuild(found[len(rvs) :], dict(values))
    terms = {v.name: graph for v, graph in zip(found, graphs, strict=True)}
    concrete = concretize(graphs, list(free.values()), point)
    arrays, potentials = dict(concrete.arrays), dict[str, Variable]()
    at = dict(zip(concrete.values, _near_start(model), strict=True))
    for name, graph in zip(list(terms), concrete.outputs, strict=True):
        [graph], checks = split_checks([graph])
        parts = [TermPart(name, graph)] if name in observed else parts_of(name, graph)
        try:
            term = SetTerm(parts, checks, concrete.values, arrays, partial(owner_of_check, model))
            made = term.potentials(name, apart)
            _check(name, graph, list(made.values()), at, arrays)
            potentials |= made
        except CoupledRows as error:
            del terms[name]
            if refused is not None:
                refused[name] = error.refusal_of_sets(name)
    if not terms:
        return model
    old, memo = graph_of(model)
    dropped = {memo[model[name]] for name in terms}
    kept = [v for v in old.outputs if v not in dropped]
    read = [v for v in dropped if isinstance(v.owner.op, ModelObservedRV)]
    old.replace_all([(v, v.owner.inputs[1]) for v in read], import_missing=True)
    new = model_of(kept, old, model)
    known: dict[Variable, Variable] = {
        value: v.values if isinstance(v.type, XTensorType) else v
        for value, rv in zip(concrete.values, model.free_RVs, strict=True)
        for v in [new[rv.name]]
    }
    above = [v for v in ancestors(list(potentials.values())) if v in arrays]
    known |= {v: pytensor.shared(arrays[v], name=v.name, shape=arrays[v].shape) for v in above}
    with new:
        for name, graph in potentials.items():
            pm.Potential(name, rebuild([graph], dict(known))[0])
    return new


def _near_start(model: pm.Model) -> list[np.ndarray]:
    """Return values of the free variables at a random point near the start."""
    rng = np.random.default_rng(0)
    point = model.initial_point()
    start = [np.asarray(point[v.name]) for v in model.value_vars]
    moved = [x + 0.1 * rng.normal(size=x.shape) if x.dtype.kind == "f" else x for x in start]
    graphs = model.replace_rvs_by_values(list(model.free_RVs))
    graphs = [g.values if isinstance(g.type, XTensorType) else g for g in graphs]
    concrete = concretize(graphs, model.value_vars, point)
    given = dict(zip(concrete.values, moved, strict=True))
    return evaluate(concrete.outputs, concrete.arrays | given)


def _check(
    name: str,
    graph: Variable,
    made: list[Variable],
    at: dict[Variable, np.ndarray],
    arrays: dict[Variable, np.ndarray],
) -> None:
    """Compare the log density of sets, side by side, with that of the term as it is."""
    written, *found = evaluate([graph, *made], at | arrays)
    total, expected = sum(float(np.sum(x)) for x in found), float(np.sum(written))
    size = 1.0 + float(np.sum(np.abs(written)))
    # Both are sums of the same terms in another order.
    if np.isfinite(expected) and not abs(total - expected) <= 1e-8 * size:
        raise TallModelError(
            f"The log density of {name!r} is {total} with its rows put together by sets, where the "
            f"model has {expected}: it was not read as it is. Please report this model, and sample "
            "it with pm.NUTS."
        )
