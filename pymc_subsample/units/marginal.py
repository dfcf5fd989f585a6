"""`pms.marginalize`: a model with its local variables integrated out."""

import logging
import time
from collections.abc import Sequence

import numpy as np
import pymc as pm

from pymc_subsample.model import TallModelError
from pymc_subsample.model.context import generator, model_in_context
from pymc_subsample.rows.drawn_samples import warn_of_samples
from pymc_subsample.units.accuracy import TOLERABLE, Integral, Marginal, choose_nodes
from pymc_subsample.units.choosing import chosen, may_pay
from pymc_subsample.units.graphs import unit_graphs
from pymc_subsample.units.groupings import Grouping
from pymc_subsample.units.integrated import add_units, start_at, without
from pymc_subsample.units.missed_mass import refuse_other_modes
from pymc_subsample.units.modes import find_all_modes
from pymc_subsample.units.paths import of_path
from pymc_subsample.units.quadrature import nodes, nodes_of
from pymc_subsample.units.reading import Reading, read, warn_of_codes
from pymc_subsample.units.reference import find_reference, start_of
from pymc_subsample.units.standardised import standardised
from pymc_subsample.units.stored_check import in_memory, refuse_other_terms
from pymc_subsample.units.stored_tables import StoredTables
from pymc_subsample.units.unit_densities import UnitFunctions
from pymc_subsample.units.unread import without_unread
from pymc_subsample.units.verification import check_joint
from pymc_subsample.validation import count, name_list

_log = logging.getLogger("pymc.subsample")

_INTEGRALS = "_integrated_units"


def marginalize(
    model: pm.Model | None = None,
    integrate: str | Sequence[str] = "auto",
    *,
    n_nodes: int | None = None,
    rng: int | np.random.Generator | None = None,
) -> pm.Model:
    r"""Return the model with its local variables integrated out.

    Effects of customers, patients or players, ``z[customer]``, each with few rows, grow in number
    with the data. Given the parameters theta that all share, these units are independent, and the
    log-likelihood of one is

    .. math:: \log \int p(u \mid \theta) \prod_i p(y_i \mid u, \theta) \, du \approx
        \log \sum_k \exp(\log w_k + \log |S| + \tfrac12 |\nu_k|^2
        + \log p(m + S \nu_k \mid \theta) + \sum_i \log p(y_i \mid m + S \nu_k, \theta))

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
        grouping that has many levels of few rows, or an effect of each single row.
    n_nodes : int, optional
        Nodes per dimension. Default: the smallest number for which doubling it changes differences
        of the log posterior, at the edge of its bulk, by less than 0.01.
    rng : int or numpy.random.Generator, optional
        For the units from which the reference and the number of nodes are found. Default: 0.

    Returns
    -------
    pymc.Model
        A model of the other variables, with the same names, dimensions and priors, and one
        potential for each group of units with similar numbers of rows. Deterministics that depend
        on local variables are dropped. Its initial point is the reference. Any sampler takes it:
        `pm.sample` evaluates all units, ``pm.sample(step=pms.HMCECS())`` a subsample per draw. Data
        are read now: call this again after `pm.set_data`. They are those that the model holds: of a
        model written on a sample of rows on disk, that sample alone.

    Raises
    ------
    TallModelError
        If there are no local variables, or several groupings have many levels; if one that was
        named is not local, with the reason; if the integrals are off by more than 0.1, or a unit
        has several modes.

    See Also
    --------
    effects : Draws of what was integrated out.

    References
    ----------
    Pinheiro, J. C., and Bates, D. M. (1995). Approximations to the log-likelihood function in the
    nonlinear mixed-effects model. Journal of Computational and Graphical Statistics 4, 12-35.

    Examples
    --------
    An effect of every distance, and what these share:

    >>> routes, route = np.unique(miles, return_inverse=True)
    >>> with pm.Model() as by_route:
    ...     mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 1)
    ...     effect = pm.Normal("effect", mu, tau, shape=len(routes))
    ...     pm.Bernoulli("late", logit_p=effect[route], observed=late)
    >>> with pms.marginalize(by_route, "effect"):
    ...     shared = pm.sample()
    """
    began = time.perf_counter()
    model = model_in_context(model, "Call pms.marginalize()")
    random = generator(rng)
    per_dimension = None if n_nodes is None else count("n_nodes", n_nodes)
    model, unread = without_unread(model)
    names = name_list("integrate", integrate)
    automatic = names is None or names == ["auto"]
    left = [] if automatic else [n for n in names or () if n not in unread]
    if unread and not left and not (automatic and may_pay(model)):
        _log.info("marginalize: nothing observed depends on %s.", " and ".join(unread))
        return model
    reading = read(model)
    warn_of_codes(reading)
    warn_of_samples(reading.arrays.values(), "pms.marginalize", "a step with data=rows")
    grouping = chosen(reading, "auto" if automatic else left)
    new, marginal = without_local(reading, grouping, per_dimension, random)
    seconds = time.perf_counter() - began
    _log.info("marginalize: %s, in %.1f s.", described(marginal), seconds)
    return new


def without_local(
    reading: Reading,
    grouping: Grouping,
    per_dimension: int | None,
    rng: np.random.Generator,
    stored: StoredTables | None = None,
) -> tuple[pm.Model, Marginal]:
    """Return a model without the variables of a grouping, and what it keeps of these.

    Units of rows on disk are `stored`, and the model is written on a sample of them.
    """
    marginal = integrated(reading, grouping, per_dimension, rng)
    new = without(marginal.functions.graphs.reading, grouping.names, marginal.functions)
    with new:
        add_units(new, marginal, stored)
    start_at(new, marginal.functions, marginal.reference)
    setattr(new, _INTEGRALS, marginal)
    return new, marginal


def integrated(
    reading: Reading, grouping: Grouping, per_dimension: int | None, rng: np.random.Generator
) -> Marginal:
    """Return integrals over the variables of a grouping."""
    refuse_other_terms(reading, grouping)
    whole, reading = reading, standardised(reading, grouping.names)
    functions = UnitFunctions(unit_graphs(reading, grouping))
    runs = grouping.runs
    check_joint(functions if runs is None else in_memory(whole, functions, runs), rng)
    theta = find_reference(functions, rng)
    modes = find_all_modes(functions, theta, start_of(functions))
    integral = choose_nodes(functions, theta, modes, rng, per_dimension)
    try:
        refuse_other_modes(functions, theta, modes, _reach(functions, integral.per_dimension), rng)
        if per_dimension is None and integral.error > TOLERABLE:
            raise inaccurate(integral, functions)
    except TallModelError as error:
        raise of_path(whole, functions.graphs, error) from None
    return Marginal(functions, theta, modes, integral)


def integrals_of(model: pm.Model) -> Marginal | None:
    """Return what was integrated out of a model, if it is one of `without_local`."""
    return getattr(model, _INTEGRALS, None)


def inaccurate(integral: Integral, functions: UnitFunctions) -> TallModelError:
    """Return what to say of integrals that are off by too much."""
    names = " and ".join(map(repr, functions.graphs.grouping.names))
    most = ""
    if integral.worst >= 0:
        rows = int(functions.n_rows[np.searchsorted(functions.levels, integral.worst)])
        most = f"; most in level {integral.worst:,}, of {rows:,} rows"
    return TallModelError(
        f"The integrals over {names} are off by {integral.error:.2g} at the edge of the posterior, "
        f"with {integral.per_dimension} nodes per dimension (at most {TOLERABLE:g}){most}. Pass a "
        "larger n_nodes= to pms.marginalize, or give scales a prior that excludes extreme values; "
        "for levels with very many rows, or if there are few levels, sample the model with pm.NUTS."
    )


def _reach(functions: UnitFunctions, per_dimension: int) -> float:
    """Return how far nodes come, zero for states."""
    if functions.graphs.exact:
        return 0.0
    each = range(1, functions.graphs.most + 1)
    return max(float(np.max(np.abs(nodes(size, per_dimension)[0]))) for size in each)


def described(marginal: Marginal) -> str:
    """Say what was integrated out: levels, rows, nodes and the error of these."""
    functions, rows = marginal.functions, marginal.functions.n_rows
    graphs = functions.graphs
    each = f"{rows.min():,} {'row' if rows.max() == 1 else 'rows'} each"
    if rows.min() < rows.max():
        each = f"{rows.min():,} to {rows.max():,} rows (mean {rows.mean():.1f})"
    kinds = None if graphs.active is None else np.unique(graphs.active[functions.levels], axis=0)
    numbers = nodes_of(graphs, marginal.integral.per_dimension, kinds)[1]
    numbers = np.isfinite(numbers).sum(axis=0)
    fewest, most = int(np.min(numbers)), int(np.max(numbers))
    points = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
    both = "states and nodes" if graphs.states is not None else "nodes"
    nodes_or_states = f"{points} {'states' if graphs.exact else both}"
    error = marginal.integral.error
    said = f" (error of the log density at far points {error:.1g})"
    said = "" if graphs.exact or np.isnan(error) else said
    return (
        f"{' and '.join(graphs.grouping.names)} integrated out: {len(rows):,} levels with {each}, "
        f"{nodes_or_states} per level{said}"
    )
