r"""Leaving out rows, or groups of them, where local variables are integrated out.

Given the variables that units share, rows depend on each other through a unit's own. What a group
of rows i of unit g adds is

.. math:: \log p(y_i \mid y_{g \setminus i}, \theta) = \log \int p(u, y_g \mid \theta) \, du
          - \log \int p(u, y_{g \setminus i} \mid \theta) \, du,

two integrals over the same nodes, and the log-likelihood of a unit where all of its rows are left
out (Vehtari, Mononen, Tolvanen, Sivula and Winther, 2016, section 4).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from scipy.special import logsumexp

from pymc_subsample.diagnostics.drift import SOME, Drift, drift_of_scores
from pymc_subsample.diagnostics.reading_draws import require_free_variables, spread, to_theta
from pymc_subsample.model import TallModelError
from pymc_subsample.model.evaluation import Vector
from pymc_subsample.results.loo.arguments import Groups, read_groups, refuse_others
from pymc_subsample.results.loo.elpd_data import labels
from pymc_subsample.results.loo.estimate import LeftOut, relative_efficiency
from pymc_subsample.results.loo.expanded import Approximation
from pymc_subsample.units.accuracy import Marginal
from pymc_subsample.units.quadrature import nodes
from pymc_subsample.units.reference import log_posterior
from pymc_subsample.units.run_marginal import refuse_moved
from pymc_subsample.units.unit_densities import UnitFunctions

_SAID = "pms.loo"
# Draws that tell of all rows, by mean and variance, which matter most. A choice: passes over all
# rows, as of `diagnostics.drift.SOME`.
_DRAWS = 24
# Nodes over those of the chain: without a row, units are wider. A choice: a unit that loses half
# of its rows is 1.4 times as wide.
_FINER = 2
# Rows at all nodes, in memory at a time. A choice: 2 MB for each array.
_TOGETHER = 2**18


def _term_of(marginal: Marginal, names: Sequence[str] | None) -> int:
    """Return which part of units' functions has the rows that are left out."""
    graphs = marginal.functions.graphs
    called = [graphs.reading.terms[i].name for i in graphs.grouping.index]
    found = [k for k, name in enumerate(called) if names is None or name in names]
    if len(found) != 1:
        raise TallModelError(
            f"pms.loo: {', '.join(map(repr, called))} have rows. Say whose are left out: "
            f"var_name={called[0]!r}."
        )
    return 1 + found[0]  # behind the prior


def has_rows(marginal: Marginal, names: Sequence[str] | None) -> bool:
    """Whether terms of units are among those whose rows are left out."""
    graphs = marginal.functions.graphs
    own = {graphs.reading.terms[i].name for i in graphs.grouping.index}
    return names is None or not own.isdisjoint(names)


class UnitsLeftOut(LeftOut):
    """Rows of units, or groups of them, left out one at a time; `thetas` of shape (S, d)."""

    def __init__(
        self,
        marginal: Marginal,
        term: int,
        thetas: np.ndarray,
        r_eff: float,
        groups: Groups | None,
    ) -> None:
        self._marginal, self._term, self._thetas = marginal, term, thetas
        self._groups, self._r_eff = groups, r_eff
        functions = marginal.functions
        grouping, part = functions.graphs.grouping, functions.parts[term]
        position = list(grouping.index)[term - 1]
        self._name = functions.graphs.reading.terms[position].name
        # Of each row of the term: its unit, and its place among rows that have one; -1 for none.
        self._unit, self._place = np.full((2, len(grouping.index[position])), -1)
        chosen = np.arange(len(part.index)) if part.chosen is None else part.chosen
        self._unit[chosen] = functions.position[part.index]
        self._place[chosen] = np.arange(len(chosen))
        self.n = len(self._unit) if groups is None else groups.n
        self.draws = len(thetas)
        self.elpd, self.p, self.k = np.full((3, self.n), np.nan)
        self._times = _FINER * marginal.integral.per_dimension
        most = functions.graphs.most
        several = 64 if functions.graphs.exact else len(nodes(most, self._times)[0])
        self._most = max(1, int(_TOGETHER / (several * max(functions.n_rows.mean(), 1.0))))

    def known(self) -> Approximation:
        """Return what some of the draws tell of all rows, or groups."""
        some = self._thetas[spread(self.draws, 1, _DRAWS)]
        found = self._values(np.arange(self.n), some)
        mean, variance = found.mean(axis=1), found.var(axis=1)
        return Approximation(mean, mean - variance / 2, variance)

    def _logliks(self, index: np.ndarray) -> np.ndarray:
        return self._values(index, self._thetas)

    def _values(self, index: np.ndarray, thetas: np.ndarray) -> np.ndarray:
        parts = [index[k : k + self._most] for k in range(0, len(index), self._most)]
        return np.concatenate([self._of(part, thetas) for part in parts])

    def _of(self, index: np.ndarray, thetas: np.ndarray) -> np.ndarray:
        """Return what some rows, or groups, add given all others, (k, S)."""
        rows, owner = index, np.arange(len(index))
        if self._groups is not None:
            rows, owner = self._groups.rows(index)
        result, alone = np.zeros((len(index), len(thetas))), self._unit[rows] < 0
        if alone.any():
            result += self._of_rows(rows[alone], owner[alone], len(index), thetas)
        rows, owner = rows[~alone], owner[~alone]
        if not len(rows):
            return result
        units, unit = np.unique(self._unit[rows], return_inverse=True)
        pairs, pair = np.unique(owner * len(units) + unit, return_inverse=True)
        of, own = pairs // len(units), pairs % len(units)
        functions = self._marginal.functions
        own_functions = functions.among(units)
        points, log_weights = own_functions.joint_nodes(self._times)
        K, log_weights = len(points), log_weights.reshape(len(points), -1)
        several = functions.among(np.tile(units, K))
        # Rows of the term as they stand at each node, and the pair that leaves each out.
        here = several.data[self._term].rows.reshape(K, -1)[0]
        left = np.full(len(self._unit), -1)
        left[self._place[rows]] = pair
        left = left[here]
        gone = left >= 0
        whole = np.bincount(pair, minlength=len(pairs)) == functions.n_rows[units][own]
        for s, theta in enumerate(thetas):
            modes = self._marginal.modes_at(own_functions, theta, units)
            u = np.concatenate([modes.at(nu) for nu in points])
            total, each = several.log_density_and_rows(theta, u, self._term)
            total = np.nan_to_num(total.reshape(K, -1), nan=-np.inf) + log_weights
            each = np.nan_to_num(each.reshape(K, -1)[:, gone], nan=-np.inf)
            sums = np.array([np.bincount(left[gone], x, len(pairs)) for x in each])
            complete = logsumexp(total, axis=0)[own]
            with np.errstate(invalid="ignore"):
                without = np.nan_to_num(total[:, own] - sums, nan=-np.inf)
            # Of a unit without rows the prior is left, which is one.
            rest = np.where(whole, -modes.log_volume[own], logsumexp(without, axis=0))
            result[:, s] += np.bincount(of, complete - rest, len(index))
        return result

    def _of_rows(
        self, rows: np.ndarray, owner: np.ndarray, n: int, thetas: np.ndarray
    ) -> np.ndarray:
        """Return the log-likelihoods of rows without a unit, added up by owner, (n, S)."""
        found = []
        for theta in thetas:
            chosen, each = self._marginal.functions.without_level(self._name, theta)
            known = np.zeros(len(self._unit))
            known[chosen] = each
            found.append(np.bincount(owner, known[rows], n))
        return np.array(found).T


def of_units(
    posterior: xr.Dataset,
    model: pm.Model,
    marginal: pm.Model,
    integrals: Marginal,
    names: list[str] | None,
    groups: Any,
    reff: float | None,
) -> tuple[UnitsLeftOut, Approximation, tuple[str, np.ndarray | None]]:
    """Return rows of a run that integrated local variables out, and what is known of them."""
    graphs = integrals.functions.graphs
    integrals = replace(integrals, functions=UnitFunctions(graphs, apart=True))
    require_free_variables(posterior, marginal, _SAID)
    refuse_moved(integrals, model, posterior, _SAID)
    term = _term_of(integrals, names)
    functions = integrals.functions
    position = list(graphs.grouping.index)[term - 1]
    leaving = read_groups(groups, len(graphs.grouping.index[position]), model, None)
    own = posterior[list(functions.values)]
    vector = Vector({v.name: functions.start[v.name] for v in functions.values.values()})
    thetas = to_theta(marginal, vector, own, _SAID).reshape(-1, vector.size)
    refuse_others(marginal, vector, _drift(integrals, thetas))
    reff = relative_efficiency(own) if reff is None else reff
    left = UnitsLeftOut(integrals, term, thetas, reff, leaving)
    observed = graphs.reading.terms[position].name
    return left, left.known(), labels(model, observed, groups, leaving)


def _drift(integrals: Marginal, thetas: np.ndarray) -> Drift:
    some = thetas[spread(len(thetas), 1, SOME)]
    counted = np.ones(len(integrals.functions.levels))
    own, times = integrals.functions, integrals.integral.per_dimension
    scores = [log_posterior(own, x, integrals.modes_at(own, x), times, counted)[1] for x in some]
    return drift_of_scores(thetas, np.array(scores))
