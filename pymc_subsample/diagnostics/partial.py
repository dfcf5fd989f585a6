"""Checks of a chain whose end is missing, as far as its draws tell."""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from pymc_subsample.diagnostics import hmc, metropolis, stochastic
from pymc_subsample.diagnostics.checks import Rule
from pymc_subsample.diagnostics.divergences import NEAREST, Loss
from pymc_subsample.estimators import VARIANCE_BOUND

# The statistic of which a rule's number is the mean over draws.
_MEANS = {
    hmc.NOISE.name: "loglik_variance",
    hmc.REFRESH.name: "subset_accepted",
    hmc.ACCEPTANCE.name: "acceptance_rate",
    metropolis.ACCEPTED.name: "accepted",
    stochastic.TEMPERATURE.name: "temperature",
}
# Rules of what divergences do, by their share of the draws: the least that they do, since no chain
# has more effective draws than draws here.
_DIVERGENCES = hmc.DIVERGENCES.name, stochastic.DIVERGED.name


def from_draws(rules: Sequence[Rule], chain: xr.Dataset) -> list[tuple[Rule, float, bool]]:
    """Judge rules that are means or sums over some draws of a chain: rules, numbers, verdicts."""
    found = []
    for rule in rules:
        divergences = rule.name in _DIVERGENCES
        values = chain.get("diverging" if divergences else _MEANS.get(rule.name, ""))
        if values is None or values.dims != ("draw",):
            continue
        value = float(values.mean())
        if divergences:
            value = Loss(int(values.sum()), len(values), value, NEAREST).excess()
        passed = rule.holds(value)
        if rule.name == hmc.NOISE.name:
            noisy = ~(values.values <= 2 * VARIANCE_BOUND)
            passed = passed and bool(np.mean(noisy) <= hmc.EXCESS_BOUND)
        found.append((rule, value, passed))
    return found
