"""Draws of shared variables and of an effect are calibrated where 500 units are integrated out."""

import pytest
from sbc_units import PROBLEMS, calibrate

ERROR_RATE = 1e-5
REPLICATIONS = 96  # 12 expected in each of 8 bins

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("problem", PROBLEMS)
def test_shared_variables_and_an_effect_are_calibrated(problem):
    found = calibrate(problem, REPLICATIONS)
    assert found.p_value() > ERROR_RATE


@pytest.mark.parametrize("problem", PROBLEMS)
def test_integrals_of_one_node_are_noticed(problem):
    # Of what is missing two rows of five tell, and others are as they should be.
    share = 2 if problem == "covariate with holes" else 4
    found = calibrate(problem, REPLICATIONS // share, n_nodes=1)
    assert found.p_value() < ERROR_RATE
