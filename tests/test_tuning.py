"""The step size where a posterior ends in a wall."""

import numpy as np
import pymc as pm
import pytest
from scipy import special

import pymc_subsample as pms
from pymc_subsample.steps.tuning import Tuning


@pytest.mark.parametrize("when, target", [("late", 0.95), ("early", 0.8), ("never", 0.8)])
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
