"""The hostile trial: its truths, what it runs, and what counts as a refusal."""

import json

import numpy as np
import pymc as pm
import pytest
from _bank_references import load
from _hostile import TARGETS
from _hostile_truth import ENOUGH, gaussian, grid, importance, states
from hostile import FAMILIES, REFERENCES, SAMPLERS, is_refusal, trials

import pymc_subsample as pms


def test_all_truths_are_stored_and_accurate():
    stored = json.loads(REFERENCES.read_text())
    assert set(stored) == set(TARGETS)
    for entry in stored.values():
        assert entry["ess"] >= ENOUGH
        assert np.all(np.array(entry["mean_error"]) <= 0.02 * np.array(entry["sd"]))
        assert np.all(np.array(entry["sd_error"]) <= 0.02 * np.array(entry["sd"]))


@pytest.mark.parametrize(
    "name",
    ["robust", "spins", *(pytest.param(n, marks=pytest.mark.slow) for n in TARGETS)],
)
def test_truths_belong_to_the_models(name):
    load(TARGETS[name], False, REFERENCES)


def test_every_sampler_meets_every_family_that_suits_it():
    met = {}
    for name, target in TARGETS.items():
        assert target.family in FAMILIES
        for sampler, setting in trials(name, SAMPLERS):
            met.setdefault(sampler, set()).add("bad settings" if setting else target.family)
    continuous = {t.family for t in TARGETS.values() if not t.binary} | {"bad settings"}
    for sampler in set(SAMPLERS) - {"AusterityGibbs", "HMCECS, NUTS"}:
        assert met[sampler] == continuous
    assert met["AusterityGibbs"] == {"binary", "bad settings"}
    assert sum(len(trials(n, SAMPLERS)) for n in TARGETS) >= 300


def near(found, exact, sds=5.0):
    for name in ("mean", "sd"):
        noise = np.hypot(getattr(found, f"{name}_error"), getattr(exact, f"{name}_error"))
        off = np.abs(getattr(found, name) - getattr(exact, name))
        if not np.all(off <= sds * noise + 1e-6 * exact.sd):
            return False
    return True


@pytest.mark.costly(cases=0)
def test_importance_sampling_and_grids_agree_with_closed_forms():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 2)) @ [[1.0, 0.6], [0.0, 0.8]]
    y = X @ [1.0, 2.0] + rng.normal(size=50)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 3, shape=2)
        pm.Normal("y", X @ b, 1.0, observed=y)
    exact = gaussian(X, y, 1.0, 3.0)(model)
    assert near(importance(proposals=8_000)(model), exact)
    low, high = exact.mean - 8 * exact.sd, exact.mean + 8 * exact.sd
    box = [(a, c, 121) for a, c in zip(low, high, strict=True)]
    found = grid(*box)(model)
    np.testing.assert_allclose(found.mean, exact.mean, atol=1e-4 * exact.sd.min())
    np.testing.assert_allclose(found.sd, exact.sd, rtol=1e-4)
    assert not near(importance(proposals=8_000)(model), gaussian(X, y, 1.0, 1.0)(model))


@pytest.mark.costly
def test_importance_sampling_weighs_the_modes_that_it_is_told_of():
    with pm.Model() as model:
        pm.NormalMixture("b", w=[0.7, 0.3], mu=[-10, 10], sigma=[1.0, 2.0])
    exact = grid((-30.0, 40.0, 4_001))(model)
    assert exact.mean[0] == pytest.approx(-4.0, abs=1e-6)
    starts = {"b": np.array(-10.0)}, {"b": np.array(10.0)}
    assert near(importance(*starts, proposals=8_000)(model), exact)
    assert not near(importance(starts[0], proposals=8_000)(model), exact)


def test_states_are_summed():
    with pm.Model() as model:
        x = pm.Bernoulli("x", [0.3, 0.6], shape=2)
        pm.Potential("never", pm.math.switch(pm.math.eq(x.sum(), 2), -np.inf, 0.0))
    weight = np.array([0.28, 0.42, 0.12])  # none, the second, the first
    np.testing.assert_allclose(states(model).mean, weight[[2, 1]] / weight.sum())


def test_only_what_was_raised_on_purpose_is_a_refusal():
    def error_of(function):
        try:
            function()
        except Exception as error:
            return error

    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1, observed=np.zeros(100))
    assert is_refusal(error_of(lambda: pms.HMCECS(model=model, subsample_size=-1)))
    assert not is_refusal(error_of(lambda: np.linalg.inv(np.zeros((2, 2)))))
    assert not is_refusal(error_of(lambda: np.ones(2) + np.ones(3)))
    assert not is_refusal(error_of(lambda: pms.plot_subsample(np.ones((2, 2)) @ np.ones(3))))
