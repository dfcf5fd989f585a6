"""`pms.marginalize`: a model with its local variables integrated out."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.model.fgraph import fgraph_from_model, model_from_fgraph
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors
from pytensor.xtensor.type import XTensorType

from pymc_subsample.likelihood import TallModelError
from pymc_subsample.symbolic.graph import rebuild
from pymc_subsample.units.discovery import chosen
from pymc_subsample.units.functions import UnitFunctions
from pymc_subsample.units.graphs import unit_graphs
from pymc_subsample.units.layout import Table, places, tables
from pymc_subsample.units.modes import Modes, find_modes
from pymc_subsample.units.quadrature import nodes
from pymc_subsample.units.reading import Reading, read, standardised
from pymc_subsample.units.reference import Integral, choose_nodes, find_reference, start_of
from pymc_subsample.units.vectorised import vectorised

_log = logging.getLogger("pymc.subsample")

# Beyond, the error of integrals is seen in the posterior: differences of the log density by a tenth
# at the edge of where draws are.
_TOLERABLE = 0.1
_KEPT = "_integrated_units"


@dataclass(frozen=True)
class Marginal:
    """What has been integrated out of a model."""

    functions: UnitFunctions
    reference: np.ndarray  # Values of shared variables.
    modes: Modes
    integral: Integral


def marginalize(
    model: pm.Model | None = None,
    integrate: str | Sequence[str] = "auto",
    *,
    n_nodes: int | None = None,
    random_seed: int | np.random.Generator | None = None,
) -> pm.Model:
    """Return the model with its local variables integrated out.

    Effects of customers, patients or players, ``z[customer]``, each told by few rows, grow with the
    data. Given what all share, theta, such units are independent, and the log-likelihood of one is

    .. math:: \\log \\int p(u \\mid \\theta) \\prod_i p(y_i \\mid u, \\theta) \\, du \\approx
        \\log \\sum_k \\exp(\\log w_k + \\log |S| + \\tfrac12 |\\nu_k|^2
        + \\log p(m + S \\nu_k \\mid \\theta) + \\sum_i \\log p(y_i \\mid m + S \\nu_k, \\theta))

    by quadrature around the unit's mode m, whose curvature is that of :math:`(S S^T)^{-1}`, at a
    reference theta: adaptive Gauss-Hermite quadrature (Naylor and Smith, 1982; Pinheiro and Bates,
    1995) with nodes that stay where they are, so that it is a smooth function of theta. In two and
    three dimensions nodes are products, in more those of a quasi-random sequence.

    Parameters
    ----------
    model : pymc.Model, optional
        Default: that of the context.
    integrate : "auto" or str or sequence of str, default "auto"
        Names of the free variables to integrate out, all of one grouping. "auto": those of the
        grouping that has many levels of few rows.
    n_nodes : int, optional
        Nodes per dimension. Default: the fewest of which doubling their number changes differences
        of the log posterior, at the edge of where draws are, by less than 0.01.
    random_seed : int or numpy.random.Generator, optional
        For the units at which the reference and the number of nodes are found.

    Returns
    -------
    pymc.Model
        With the other variables, whose names, dimensions and priors are as they were, and a
        potential for the units of about as many rows each. Deterministics of local variables are
        left out. It starts at the reference. Any sampler takes it: `pm.sample` for all units,
        ``pm.sample(step=pms.HMCECS())`` for some of them per draw.

    Raises
    ------
    TallModelError
        If there are no local variables, or several groupings have many levels; if one that was
        named is not local, with the reason; if integrals are off by more than 0.1.

    See Also
    --------
    effects : Draws of what was integrated out.

    References
    ----------
    Pinheiro, J. C., and Bates, D. M. (1995). Approximations to the log-likelihood function in the
    nonlinear mixed-effects model. Journal of Computational and Graphical Statistics 4, 12-35.

    Examples
    --------
    The airline-by-distance pairs of the flights, and what they share:

    >>> routes, route = np.unique(miles, return_inverse=True)
    >>> with pm.Model() as by_route:
    ...     mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 1)
    ...     effect = pm.Normal("effect", mu, tau, shape=len(routes))
    ...     pm.Bernoulli("late", logit_p=effect[route], observed=late)
    >>> with pms.marginalize(by_route, "effect"):
    ...     shared = pm.sample()
    """
    began = time.perf_counter()
    model = pm.modelcontext(model)
    rng = np.random.default_rng(random_seed)
    reading = read(model)
    grouping = chosen(reading, integrate)
    reading = standardised(reading, grouping.names)
    functions = UnitFunctions(unit_graphs(reading, grouping))
    theta = find_reference(functions, rng)
    modes = find_modes(functions, theta, start_of(functions))
    if n_nodes is None:
        integral = choose_nodes(functions, theta, modes, rng)
        _refuse_inaccurate(integral, functions)
    else:
        integral = Integral(n_nodes, np.nan, -1)
    marginal = Marginal(functions, theta, modes, integral)
    new = _without(reading, grouping.names, functions)
    with new:
        _add_units(new, marginal)
    _start(new, functions, theta)
    setattr(new, _KEPT, marginal)
    _say(marginal, time.perf_counter() - began)
    return new


def marginal_of(model: pm.Model) -> Marginal:
    """Return what was integrated out of a model."""
    found = getattr(model, _KEPT, None)
    if found is None:
        raise TypeError(
            "model must be what pms.marginalize has returned: it keeps the units that were "
            "integrated out."
        )
    return found


def _refuse_inaccurate(integral: Integral, functions: UnitFunctions) -> None:
    if not integral.error > _TOLERABLE:
        return
    grouping = functions.graphs.grouping
    rows = int(functions.n_rows[np.searchsorted(functions.levels, integral.worst)])
    raise TallModelError(
        f"The integrals over {' and '.join(map(repr, grouping.names))} are off by "
        f"{integral.error:.2g} at the edge of where draws are, with {integral.per_dimension} nodes "
        f"per dimension (at most {_TOLERABLE:g}); most in level {integral.worst:,}, of {rows:,} "
        "rows. Give n_nodes= a larger number, or a scale a prior that keeps it from values "
        "far out; a level with very many rows, or with few beside it, is for pm.NUTS."
    )


def _say(marginal: Marginal, seconds: float) -> None:
    functions, grouping = marginal.functions, marginal.functions.graphs.grouping
    rows, size = functions.n_rows, functions.graphs.size
    points = len(nodes(size, marginal.integral.per_dimension)[0])
    error = marginal.integral.error
    _log.info(
        "marginalize: %s integrated out, of %s levels with %s to %s rows (mean %.1f), by %d nodes "
        "each%s, in %.1f s.",
        " and ".join(grouping.names),
        f"{len(rows):,}",
        f"{rows.min():,}",
        f"{rows.max():,}",
        rows.mean(),
        points,
        "" if np.isnan(error) else f" (error of the log density at far points {error:.1g})",
        seconds,
    )


def _without(reading: Reading, names: Sequence[str], functions: UnitFunctions) -> pm.Model:
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
    kept = [
        v
        for v in old.outputs
        if v not in dropped and local.isdisjoint(ancestors([v]))
    ]
    data = {memo[v] for v in model.data_vars}
    read = set(ancestors([v for v in kept if v not in data]))
    unread = [v for v in kept if v in data and v not in read]
    fgraph = FunctionGraph(outputs=[v for v in kept if v not in unread], clone=False)
    fgraph._coords, fgraph._dim_lengths = old._coords, old._dim_lengths
    return model_from_fgraph(fgraph, mutate_fgraph=True)


def _start(model: pm.Model, functions: UnitFunctions, theta: np.ndarray) -> None:
    """Let the model start at the reference."""
    reading = functions.graphs.reading
    values = dict(zip(functions.values, functions.split(theta), strict=True))
    inputs = [reading.values[name] for name in values]
    outputs = [reading.constrained[name] for name in values]
    from pymc_subsample.symbolic.graph import numpy_function

    found = numpy_function(inputs, outputs)(*values.values())
    for name, value in zip(values, found, strict=True):
        model.set_initval(model[name], value)


def _add_units(model: pm.Model, marginal: Marginal) -> None:
    """Add a potential with the log-likelihood of units for each table."""
    graphs = marginal.functions.graphs
    shared = {v: _tensor(model[name]) for name, v in graphs.shared.items()}
    name = "_".join(graphs.grouping.names)
    for table in tables(marginal.functions):
        term = _log_likelihood(marginal, table, f"{name}_{'_'.join(map(str, table.lengths))}")
        label = f"{name}: units of {' and '.join(map(str, table.lengths))} rows"
        pm.Potential(label, rebuild([term], dict(shared))[0])
    conditions = rebuild(graphs.conditions, dict(shared))
    if conditions:
        pm.Potential(f"{name}: conditions", pt.switch(pt.all(pt.stack(conditions)), 0.0, -np.inf))
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


def _log_likelihood(marginal: Marginal, table: Table, name: str) -> Variable:
    """Return the log-likelihood of each unit of a table."""
    functions, modes = marginal.functions, marginal.modes
    graphs = functions.graphs
    points, log_weights = nodes(graphs.size, marginal.integral.per_dimension)

    def data(what: str, value: np.ndarray) -> Variable:
        return pytensor.shared(value, name=f"{name}_{what}", shape=value.shape)

    m, S = modes.m[table.units], modes.S[table.units]
    u = []
    for i in range(graphs.size):
        node = data(f"mode{i}", m[:, i])[:, None]
        for j in range(graphs.size):
            node = node + data(f"spread{i}_{j}", S[:, i, j])[:, None] * points[None, :, j]
        u.append(node)
    volume = data("volume", np.linalg.slogdet(S)[1])
    total = volume[:, None] + log_weights[None, :]
    for t, (part, rows) in enumerate(zip([graphs.prior, *graphs.rows], functions.data, strict=True)):
        length = 1 if t == 0 else table.lengths[t - 1]
        if not length:
            continue
        at, counts = places(rows, table.units, length)
        memo = {}
        for c, (v, column) in enumerate(zip(part.columns, rows.columns, strict=True)):
            axis = part.columns[v].axis
            values = np.moveaxis(np.take(column, at, axis=axis), axis, 0)
            memo[v] = data(f"{t}_{c}", np.ascontiguousarray(values))[:, None]
        memo |= {v: _local(graphs, part.local[v], u, v) for v in part.local}
        found = vectorised(part.output, memo)
        if not counts.all():
            found = pt.switch(data(f"{t}_rows", counts)[:, None, :], found, 0.0)
        total = total + found.sum(axis=2)
    return pt.logsumexp(total, axis=1)


def _local(graphs, name: str, u: list[Variable], row: Variable) -> Variable:
    """Return a local variable at the nodes of units, with an axis of length one for rows."""
    place, shape = graphs.places[name], graphs.shapes[name]
    parts = u[place]
    if not shape:
        return parts[0][:, :, None]
    joined = pt.stack(parts, axis=2).reshape((*parts[0].shape, *shape))
    return pt.expand_dims(joined, 2 + graphs.grouping.own[name])
