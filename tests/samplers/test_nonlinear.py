"""Every sampler on the path of models whose rows see more than a few predictors."""

import numpy as np
import pymc as pm
import pytest
from chains import QUIET
from exact_cases import Case
from scipy.stats import norm

import pymc_subsample as pms
from pymc_subsample import expansion as control_variates

CONTROLLED = {"control_variate_order": 2}
FINE = {"batch_size": 50, "transitions_per_draw": 60}
STEPS = {
    "HMCECS": lambda: pms.HMCECS(subsample_size=200),
    "NUTS": lambda: pms.HMCECS(kernel="nuts", subsample_size=200),
    "signed": lambda: pms.HMCECS(estimator="block-poisson"),
    "Barker": lambda: pms.MinibatchBarkerMH(transitions_per_draw=20),
    "Barker, Langevin": lambda: pms.MinibatchBarkerMH(
        proposal=pms.proposals.Langevin(), transitions_per_draw=10, **CONTROLLED
    ),
    "austerity": lambda: pms.AusterityMH(transitions_per_draw=20, epsilon=0.01, **CONTROLLED),
    "austerity, Langevin": lambda: pms.AusterityMH(
        proposal=pms.proposals.Langevin(), transitions_per_draw=10, epsilon=0.01, **CONTROLLED
    ),
    "confidence": lambda: pms.ConfidenceMH(transitions_per_draw=20, **CONTROLLED),
    "SGLD": lambda: pms.sgmcmc.SGLD(step_size=0.02, **FINE),
    "SGLD, order 1": lambda: pms.sgmcmc.SGLD(step_size=0.002, control_variate_order=1, **FINE),
    "SVRGLD": lambda: pms.sgmcmc.SVRGLD(step_size=0.01, refresh_period=5, **FINE),
    "SGHMC": lambda: pms.sgmcmc.SGHMC(step_size=0.2, **FINE),
    "EWSG": lambda: pms.sgmcmc.EWSG(step_size=0.02, **CONTROLLED, **FINE),
}


@pytest.fixture(scope="module")
def squares():
    """Twelve squares of lines per row."""
    rng = np.random.default_rng(5)
    X, Z = rng.normal(size=(2, 600, 12))
    y = ((1 + 0.2 * X - 0.1 * Z) ** 2).mean(axis=1) + rng.normal(size=600)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        b = pm.Normal("b", 0, 1)
        pm.Normal("y", ((1 + a * X + b * Z) ** 2).mean(axis=1), 1.0, observed=y)
    terms = np.column_stack([
        1 - y, 2 * X.mean(axis=1), 2 * Z.mean(axis=1),
        (X**2).mean(axis=1), 2 * (X * Z).mean(axis=1), (Z**2).mean(axis=1),
    ])  # fmt: skip
    gram = terms.T @ terms

    def logp(a, b):
        powers = np.stack([np.ones_like(a), a, b, a**2, a * b, b**2])
        rows = np.einsum("iab,ij,jab->ab", powers, gram, powers)
        return norm.logpdf(a) + norm.logpdf(b) - rows / 2

    return Case(model=model, logp=logp, center=(0.2, -0.1), names=("a", "b"))


@pytest.mark.costly(cases=0)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", STEPS)
def test_posterior_is_the_exact_one(squares, name, monkeypatch):
    monkeypatch.setattr(control_variates, "linear_predictors", lambda model: None)
    with squares.model:
        step = STEPS[name]()
        result = pm.sample(1500, tune=500, chains=2, cores=1, random_seed=6, step=step, **QUIET)
    assert not step.expansion.linear
    if name == "signed":
        found = pms.summary(result).loc[list(squares.names)]
        assert np.all(abs(found["mean"] - squares.mean) < 5 * found["mcse_mean"])
        assert np.all(abs(found["sd"] - squares.sd) < 5 * found["mcse_sd"])
    else:
        squares.assert_posterior(result)
    assert pms.report(result).status in ("pass", "warn")
