"""Times of proposals: the best of a table is the best by enumeration, and limits are right."""

import numpy as np
import pytest

from pymc_subsample.bounds.thinning import (
    RowsRead,
    better_acceptance,
    lag_one,
    left_by_a_move,
    most_effective_moves,
)

# Standard errors: error rate 1e-5.
SIGMAS = 4.4


def test_time_of_a_decision_grows_with_all_that_it_reads():
    usual = RowsRead(rows=10.0, strata=3, seen=5, cubes=35)
    for more in ({"rows": 11.0}, {"strata": 4}, {"cubes": 36}):
        assert RowsRead(**(vars(usual) | more)).time > usual.time
    assert RowsRead(0.0, 0, 30, 0).time == 0.0


@pytest.mark.parametrize(("accepted", "left"), [(1.0, 0.9), (0.9, 0.5), (0.5, 0.99), (0.7, 0.0)])
@pytest.mark.parametrize("others", [0.1, 3.0, 100.0])
def test_moves_are_as_many_as_make_most_effective_draws(accepted, left, others):
    """An autoregression of correlation r has (1 - r) / (1 + r) effective draws per draw."""
    found = most_effective_moves(accepted, left, 1.0, others)
    rates = []
    for k in range(1, 17):
        r = 1 - accepted * (1 - left**k)
        rates.append((1 - r) / (1 + r) / (others + k))
    assert found == 1 + int(np.argmax(rates))
    if left == 0.0:
        assert found == 1


@pytest.mark.parametrize("moves", [1, 3])
def test_what_a_move_leaves_is_found_again(moves):
    """Of proposals that are moves of correlation .7, accepted or not by chance."""
    rng, accepted, left = np.random.default_rng(moves), 0.8, 0.7
    n, x = 100_000, np.zeros(4)
    draws = np.empty((n, 4))
    for i in range(n):
        if rng.random() < accepted:
            r = left**moves
            x = r * x + np.sqrt(1 - r**2) * rng.normal(size=4)
        draws[i] = x
    between = 1 - accepted * (1 - left**moves)
    found = lag_one(draws)
    # The largest of four, less twice what one of independent draws is off by.
    assert between - SIGMAS / np.sqrt(n) < found < between + SIGMAS / np.sqrt(n)
    np.testing.assert_allclose(left_by_a_move(between, accepted, moves), left)


def test_slowest_of_few_draws_is_no_less_than_the_mean():
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(200, 30)), 2, axis=0)  # of lag one one half
    assert 0.4 < lag_one(x) < 0.6


def test_form_that_accepts_in_less_time():
    assert better_acceptance(0.9, 0.9, 1.0, 1.0) == "factorised"  # a row that rejects ends it
    assert better_acceptance(0.5, 0.9, 1.0, 1.0) == "mh-ss"
    assert better_acceptance(0.899, 0.9, 0.0, 1.0) == "mh-ss"
