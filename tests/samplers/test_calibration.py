"""Draws are calibrated: ranks of simulated truths among posterior draws are uniform."""

import pytest
from sbc import PROBLEMS, calibrate

ERROR_RATE = 1e-5
REPLICATIONS = 320  # 20 expected in each of 16 bins

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("problem", PROBLEMS)
def test_automatic_settings_are_calibrated(problem):
    found = calibrate(problem, REPLICATIONS)
    assert found.p_value() > ERROR_RATE


# First-order control variates and 20 of 400 rows, beside those that are always read: the correction
# carries much of the weight. With 28, leaving it out is not noticed.
HARD = {"order": 1, "subsample_size": 20}


def test_noisy_estimate_is_calibrated():
    assert calibrate("unknown sigma", REPLICATIONS, **HARD).p_value() > ERROR_RATE


def test_leaving_the_correction_out_is_noticed():
    found = calibrate("unknown sigma", REPLICATIONS, **HARD, corrected=False)
    assert found.p_value() < ERROR_RATE


@pytest.mark.parametrize("acceptance", ["factorised", "mh-ss"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_exact_draws_are_calibrated(problem, acceptance):
    found = calibrate(problem, REPLICATIONS, exact={"acceptance": acceptance})
    assert found.p_value() > ERROR_RATE
    assert found.subsample_size < 400  # a handful decide, of 400 rows
