"""Models with many units, as people write them, against NUTS on all of their variables."""

import numpy as np
import pymc as pm
import pytest
from arviz_stats.base import array_stats
from chains import QUIET
from populations import POPULATIONS

import pymc_subsample as pms


def elements(run, name):
    """Draws of each element, shape (elements, chain, draw)."""
    values = run.posterior[name].transpose("chain", "draw", ...).to_numpy()
    return np.moveaxis(values.reshape(*values.shape[:2], -1), 2, 0)


def assert_same_mean(one, other, z=5.0):
    """Means of draws differ by less than z Monte Carlo errors of both (1e-6 per element)."""
    error = np.hypot(*(x.std() / np.sqrt(array_stats.ess(x)) for x in (one, other)))
    assert abs(one.mean() - other.mean()) < z * error


@pytest.mark.slow
@pytest.mark.parametrize("name", POPULATIONS)
def test_posteriors_of_shared_and_local_variables_are_those_of_nuts(name):
    make, local = POPULATIONS[name]
    model = make()
    run = pm.sample(
        1_000, tune=500, chains=2, cores=1, model=model, step=pms.HMCECS(model=model),
        random_seed=1, **QUIET,
    )  # fmt: skip
    checks = [f for f in pms.report(run).findings if f.name not in ("ess", "r_hat")]
    assert all(f.status != "fail" for f in checks)
    exact = pm.sample(
        1_500,
        tune=1_000,
        chains=2,
        cores=1,
        model=model,
        target_accept=0.95,
        random_seed=2,
        **QUIET,
    )
    for rv in model.free_RVs:
        both = zip(elements(run, rv.name), elements(exact, rv.name), strict=True)
        for mine, theirs in both:
            if np.ptp(theirs) == 0:  # the upper triangle of a factor
                continue
            assert_same_mean(mine, theirs)
            assert_same_mean((mine - mine.mean()) ** 2, (theirs - theirs.mean()) ** 2)
    assert all(run.posterior[n].shape[2:] == exact.posterior[n].shape[2:] for n in local)
