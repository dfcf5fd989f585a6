"""The step size where a posterior ends in a wall."""

import logging
from dataclasses import replace

import numpy as np
import pymc as pm
import pytest

import pymc_subsample as pms
from pymc_subsample.chain import nuts_instead
from pymc_subsample.chain.nuts_instead import Comparison
from pymc_subsample.chain.tuning import Tuning


@pytest.mark.parametrize(("when", "target"), [("late", 0.95), ("early", 0.8), ("never", 0.8)])
def test_draws_that_diverge_late_raise_the_acceptance_aimed_at(when, target):
    tuning = Tuning(1000, np.arange(2), 2, np.eye(2), 0.8)
    diverging = {"late": 120, "early": 20, "never": -1}[when]
    for k in range(150):
        tuning.add(np.zeros(2), 0.8, 0.0, float(k == diverging))
    assert tuning.due()
    assert tuning.calm() == (when == "late")
    tuning.restart(0.5)
    assert tuning.target_accept == pytest.approx(target)
    # Dual averaging leaves the step where the acceptance is the one aimed at.
    before = tuning.step.current(False)
    for _ in range(200):
        tuning.add(np.zeros(2), target, 0.0)
    assert tuning.step.current(False) == pytest.approx(10 * before, rel=0.1)
    copy = Tuning(1000, np.arange(2), 2, np.eye(2), 0.8)
    copy.sampling_state = tuning.sampling_state
    assert copy.target_accept == tuning.target_accept


def test_an_edge_at_which_steps_of_any_size_diverge_does_not():
    tuning = Tuning(1000, np.arange(2), 2, np.eye(2), 0.8)
    for k in range(150):
        tuning.add(np.zeros(2), 0.8, 0.0, float(k % 5 == 0))
    assert tuning.due()
    assert not tuning.calm()
    assert tuning.target_accept == 0.8


@pytest.mark.costly
def test_rows_that_draws_make_impossible_have_all_rows_read(monkeypatch, caplog):
    """A subsample without the smallest observation knows nothing of the wall that it is."""
    y = 1 + np.random.default_rng(3).lognormal(0, 0.7, 2_000)
    with pm.Model() as model:
        shift, mu = pm.Normal("shift", 0, 2, initval=0.5), pm.Normal("mu", 0, 1)
        ahead = y - shift
        logp = pm.logp(pm.LogNormal.dist(mu, 0.7), ahead)
        pm.Potential("y", pm.math.switch(ahead > 0, logp, -np.inf))
        step = pms.HMCECS()
    few = replace(
        step.prepared, subsample_size=200, n_blocks=10, always=np.zeros(0, dtype=np.int64)
    )
    step.prepared = few
    monkeypatch.setattr(nuts_instead, "compare", lambda *_: Comparison(0.001, 1.0, 20.0, 5.0))
    step.setup_chain(np.random.default_rng(0), 400, 200)
    monkeypatch.setattr(Tuning, "should_recentre", lambda self, _: not step.exact)
    monkeypatch.setattr(Tuning, "pilot", lambda self: self.recent()[:1] + [[y.min(), 0.0]])
    point, draws = model.initial_point(), []
    with caplog.at_level(logging.WARNING, "pymc.subsample"):
        for k in range(600):
            if k == 400:
                step.stop_tuning()
            point, [found] = step.step(point)
            draws.append(float(point["shift"]))
    assert step.exact
    assert found["data_share"] == 1.0
    late = np.array(draws[400:])
    assert late.max() < y.min()
    assert late.std() > 0
