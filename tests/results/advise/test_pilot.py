"""What short chains are worth, and the gradients of all rows that NUTS needs, read from none."""

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest

import pymc_subsample as pms
from pymc_subsample.chain.nuts_cost import quiet
from pymc_subsample.chain.nuts_trial import CUT, NutsTrial, smallest_ess
from tests.results.advise.test_advising import logistic


def gradients(model):
    with model, quiet():
        step = pms.HMCECS()
    return NutsTrial(step, 0).gradients(60.0)


@pytest.mark.costly(cases=0)
def test_gradients_are_those_of_nuts_on_all_rows():
    """Both are estimates from a few hundred draws, hence a factor of 1.6."""
    model = logistic(2_000, correlation=0.9)
    per_effective, per_tuning, bound = gradients(model)
    assert not bound
    with model, quiet():
        trace = pm.sample(
            600, tune=400, chains=1, cores=1, nuts_sampler="pymc", progressbar=False,
            random_seed=2, return_inferencedata=False, compute_convergence_checks=False,
        )  # fmt: skip
    sizes = trace.get_sampler_stats("tree_size").sum()
    actual = sizes / smallest_ess(trace.get_values("beta"))
    assert actual / 1.6 < per_effective < 1.6 * actual
    assert per_tuning > 1
    assert gradients(logistic(2_000))[0] < per_effective


@pytest.mark.costly
def test_out_of_time_the_projection_is_a_bound():
    """Not the leapfrog steps of another sampler, in coordinates of its own."""
    model = logistic(2_000, correlation=0.9)
    with model, quiet():
        step = pms.HMCECS()
    trial = NutsTrial(step, 0)
    short, whole = (trial.gradients(seconds) for seconds in (1e-9, 60.0))  # which goes on
    assert short is not None
    assert whole is not None
    assert 1 <= short.per_effective_draw < whole.per_effective_draw
    assert short.bound == CUT
    assert not whole.bound
    alone = NutsTrial(step, 0).gradients(60.0)
    assert alone.per_effective_draw / 1.6 < whole.per_effective_draw
    assert whole.per_effective_draw < 1.6 * alone.per_effective_draw


def test_expansion_that_is_no_density_projects_nothing(monkeypatch):
    model = logistic(2_000)
    with model, quiet():
        step = pms.HMCECS()
    at = step.prepared.reference
    bent = replace(step.prepared, reference=replace(at, curvature=-at.curvature))
    monkeypatch.setattr(step, "prepared", bent)
    assert NutsTrial(step, 0).gradients(20.0) is None


def test_only_varying_parameters_count():
    draws = np.random.default_rng(6).normal(size=(500, 2))
    constant = np.zeros((500, 1))
    walk = np.cumsum(draws[:, :1], axis=0)
    assert smallest_ess(np.hstack([draws, constant])) > 250
    assert smallest_ess(np.hstack([draws, walk])) < 50
    assert smallest_ess(constant) == 1
    assert (
        smallest_ess(np.hstack([draws, np.full((500, 1), np.nan)])) == 1
    )  # of which none is known
