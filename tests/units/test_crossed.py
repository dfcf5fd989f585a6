"""Variables that all units share, beside the units: of items, say, that all persons answer."""

import numpy as np
import pymc as pm
import pytest
from chains import QUIET, assert_moments

import pymc_subsample as pms

UNITS, ROWS = 8, 6


@pytest.mark.costly
def test_items_may_be_as_many_as_units():
    """Which axis has the units is told by where it comes from, not by its length."""
    rng = np.random.default_rng(1)
    person, item = np.divmod(np.arange(UNITS * ROWS), ROWS)
    item = (item + 3 * person) % UNITS
    root = np.linalg.cholesky(0.5 + 0.5 * np.eye(UNITS))  # items are alike
    y = rng.normal(size=UNITS)[person] + rng.normal(size=UNITS)[item] + rng.normal(size=len(item))
    with pm.Model():
        mu = pm.Normal("mu", 0, 2)
        u, f = pm.Normal("u", 0, 0.8, shape=UNITS), pm.Normal("f", shape=UNITS)
        pm.Normal("y", mu + u[person] + (root @ f)[item], 1, observed=y)
        found = pm.sample(
            1_000, tune=500, chains=2, cores=1, step=pms.HMCECS(integrate="u"), random_seed=1,
            **QUIET,
        ).posterior  # fmt: skip
    shared = np.column_stack([np.ones(len(y)), root[item]])
    cov = np.eye(len(y)) + 0.8**2 * (person[:, None] == person)
    posterior = np.linalg.inv(
        shared.T @ np.linalg.solve(cov, shared) + np.diag([0.25, *np.ones(UNITS)])
    )
    means, sds = posterior @ shared.T @ np.linalg.solve(cov, y), np.sqrt(np.diag(posterior))
    draws = np.dstack([found["mu"], *np.moveaxis(found["f"].to_numpy(), -1, 0)])
    assert draws.shape == (2, 1_000, 1 + UNITS)
    for k, (mean, sd) in enumerate(zip(means, sds, strict=True)):
        assert_moments(draws[..., k], mean, sd)
    with pytest.raises(AssertionError):
        assert_moments(draws[..., 0], means[0] + sds[0], sds[0])
