"""Draws of shared variables and of one unit's are calibrated where 500 units are integrated out."""

import pytest
from sbc_units import PROBLEMS, calibrate, counted_twice

ERROR_RATE = 1e-5
REPLICATIONS = 96  # 12 expected in each of 8 bins

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("problem", PROBLEMS)
def test_shared_variables_and_one_of_a_unit_are_calibrated(problem):
    found = calibrate(problem, REPLICATIONS)
    assert found.p_value() > ERROR_RATE


@pytest.mark.parametrize("problem", [name for name in PROBLEMS if name != "classes"])
def test_integrals_of_one_node_are_noticed(problem):
    # Of what is missing two rows of five tell, and others are as they should be.
    share = 2 if problem == "covariate with holes" else 4
    found = calibrate(problem, REPLICATIONS // share, n_nodes=1)
    assert found.p_value() < ERROR_RATE


def test_a_state_that_counts_twice_is_noticed():
    """By ranks too: the set-up, which is not asked here, refuses it first."""
    found = calibrate("classes", REPLICATIONS // 4, states=counted_twice)
    assert found.p_value() < ERROR_RATE
